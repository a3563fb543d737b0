"""Recovery of a topic that is opened: take ownership, find its end, restore index and broker time (PIP-70).

Broker time never decreases within a topic, whatever the clock does. The index counts messages without a gap; an entry
carries that of its last message. Every entry of a stamped topic is stamped, also one without messages (a marker): it
repeats the index, so that the last entry of a ledger always has the topic's last index and broker time.

1. Raise the owner epoch. *Crash: the topic has no owner; the next process that opens it begins here again.*
2. Close every hot ledger that is open in the list. This also stops an earlier owner in the same process that is still
   appending. *Crash: a closed ledger can be closed again.*
3. Find the last index and broker time: the maximum of those in the list and in the last entries of these ledgers, or
   else of the newest one.
4. Commit the ends of these ledgers, index and broker time; remove empty ledgers from the list. *Crash: done.*
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from afterglow.config.choices import DamagePolicy, EntryInterceptor
from afterglow.errors import CorruptEntry, LedgerMissing
from afterglow.format.entry import split_broker_metadata
from afterglow.ledger.ledger_list import (
    EntryStamp,
    LedgerEnd,
    drop_empty,
    finish_ledger,
    last_stamp,
    record_last_stamp,
    records,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from typing_extensions import Buffer

    from afterglow.format.frames import FramedEntries
    from afterglow.format.new_entries import NewEntries
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.hot.log import HotLog
    from afterglow.ledger.environment import Clock, Environment
    from afterglow.ledger.ledger_list import LedgerRecord
    from afterglow.ledger.topic_metadata import Snapshot, TopicMetadata


class Stamper:
    """Assigns index and broker time to the entries of one topic. Not thread-safe: the append path holds a lock.

    Args:
        interceptors: Which of the two to write.
        reached: Stamp of the topic's last entry.
        clock: Source of the broker time.
    """

    def __init__(self, interceptors: Collection[EntryInterceptor], reached: EntryStamp, clock: Clock) -> None:
        self._with_time = EntryInterceptor.BROKER_TIMESTAMP in interceptors
        self._with_index = EntryInterceptor.INDEX in interceptors
        self._given = reached
        self._confirmed = reached
        self._clock = clock

    @property
    def confirmed(self) -> EntryStamp:
        """Stamp of the last confirmed entry."""
        return self._confirmed

    @property
    def confirmed_time_ms(self) -> int | None:
        """Broker time of the last confirmed entry; None if broker times are not written."""
        return self._confirmed.broker_time_ms if self._with_time else None

    def frame(self, entries: NewEntries, first_id: int) -> tuple[FramedEntries, EntryStamp]:
        """The next entries of the topic as frames, with broker entry metadata, and the stamp of the last one."""
        time_ms = self._given.broker_time_ms
        index = self._given.index
        if self._with_time:
            now_ms = self._clock.now_ms()
            time_ms = now_ms if time_ms is None else max(now_ms, time_ms)
        before = None if not self._with_index else -1 if index is None else index
        framed, last = entries.framed(first_id, time_ms if self._with_time else None, before)
        if last >= 0:
            index = last
        self._given = EntryStamp(index, time_ms)
        return framed, self._given

    def confirm(self, reached: EntryStamp) -> None:
        """Record that the entry with this stamp is durable."""
        self._confirmed = reached

    def roll_back(self) -> None:
        """Revoke unconfirmed indexes. The time stays: it need not be continuous, only ordered."""
        self._given = EntryStamp(self._confirmed.index, self._given.broker_time_ms)


def stamp_of(entry: Buffer) -> EntryStamp:
    """The stamp in an entry; empty if the entry has no broker entry metadata, or is damaged."""
    try:
        metadata, _ = split_broker_metadata(entry)
    except CorruptEntry:
        return EntryStamp()
    if metadata is None:
        return EntryStamp()
    return EntryStamp(
        metadata.index if metadata.HasField("index") else None,
        metadata.broker_timestamp if metadata.HasField("broker_timestamp") else None,
    )


_log = logging.getLogger(__name__)


def recover(name: str, environment: Environment, metadata: TopicMetadata) -> tuple[Snapshot, EntryStamp]:
    """Steps 2 to 4, for a topic whose owner epoch was just raised.

    Returns:
        The metadata, in which every ledger is closed, and the stamp of the topic's last entry.

    Raises:
        LedgerMissing: The hot log lacks a ledger that is open in the list, and that was not swept as empty.
        MetadataError: The list could not be changed.
    """
    snapshot = metadata.snapshot
    hot = environment.hot
    ledgers = records(snapshot.info)
    skip = environment.config.damaged_data_policy is DamagePolicy.SKIP_AND_REPORT
    reached = last_stamp(snapshot.info)
    ends: list[LedgerEnd] = []
    for record in ledgers:
        if not record.finished:
            end, its = _end_of(name, record.ledger_id, environment, skip=skip)
            ends.append(end)
            reached = reached.later(its)
    if not ends:
        reached = reached.later(_stamp_of_newest(ledgers, hot))
    now_ms = environment.clock.now_ms()

    def edit(info: ManagedLedgerInfo) -> None:
        for end in ends:
            finish_ledger(info, end, now_ms)
        drop_empty(info)
        record_last_stamp(info, reached)

    return metadata.update(edit), reached


def _end_of(name: str, ledger_id: int, environment: Environment, *, skip: bool) -> tuple[LedgerEnd, EntryStamp]:
    try:
        ledger = environment.hot.open(ledger_id)
    except LedgerMissing as error:
        if environment.swept.get(str(ledger_id)) is not None:
            return LedgerEnd(ledger_id, 0, 0, None), EntryStamp()
        if not skip:
            raise LedgerMissing(
                f"hot log lacks ledger {ledger_id}, the last one of {name}; check the hot log's directory, or set "
                "damagedDataPolicy=skip-and-report to open the topic without that ledger's entries"
            ) from error
        _log.error("the hot log lacks ledger %d of %s; its entries are lost", ledger_id, name)
        return LedgerEnd(ledger_id, 0, 0, None), EntryStamp()
    ledger.close()
    last = ledger.confirmed
    reached = stamp_of(ledger.read(last, last)[0]) if last >= 0 else EntryStamp()
    return LedgerEnd(ledger_id, last + 1, ledger.size_bytes, reached.broker_time_ms), reached


def _stamp_of_newest(ledgers: tuple[LedgerRecord, ...], hot: HotLog) -> EntryStamp:
    """The stamp of the last entry, for lists written by Pulsar, which does not record a broker time."""
    newest = next((record for record in reversed(ledgers) if record.entries), None)
    if newest is None or newest.hot_deleted or not newest.entries:
        return EntryStamp()
    try:
        return stamp_of(hot.open(newest.ledger_id).read(newest.entries - 1, newest.entries - 1)[0])
    except LedgerMissing:
        return EntryStamp()
