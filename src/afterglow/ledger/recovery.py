"""Recovery of a topic that is opened: take ownership, find its end, restore the broker entry metadata (PIP-70).

Broker time never goes back within a topic, whatever the clock does. The index counts messages without a gap; an entry
carries that of its last message. Every entry of a stamped topic is stamped, also one without messages (a marker): it
repeats the index, so that the last entry of a ledger always says how far the topic has come.

1. Raise the owner epoch. *Crash: the topic has no owner; the next opener begins here again.*
2. Close every hot ledger that the list does not call finished. This also stops an owner in the same process whose
   appends were still going through. *Crash: a closed ledger can be closed again.*
3. Find how far index and broker time have come: the maximum of what the list says and the last entries of those
   ledgers, or else of the newest one.
4. Commit the ends of these ledgers, index and broker time; empty ledgers leave the list. *Crash: done.*
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from afterglow.config.choices import DamagePolicy, EntryInterceptor
from afterglow.errors import CorruptEntry, LedgerMissing
from afterglow.format.entry import encode_broker_metadata, split_broker_metadata
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

    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.hot.log import HotLog
    from afterglow.ledger.environment import Clock, Environment
    from afterglow.ledger.ledger_list import LedgerRecord
    from afterglow.ledger.topic_metadata import Snapshot, TopicMetadata


class Stamper:
    """Gives out stamps for one topic. Not thread-safe: its user holds a lock.

    Args:
        interceptors: What to write.
        reached: How far the topic had come.
        clock: Gives the time.
    """

    def __init__(self, interceptors: Collection[EntryInterceptor], reached: EntryStamp, clock: Clock) -> None:
        self._with_time = EntryInterceptor.BROKER_TIMESTAMP in interceptors
        self._with_index = EntryInterceptor.INDEX in interceptors
        self._given = reached
        self._confirmed = reached
        self._clock = clock

    @property
    def confirmed(self) -> EntryStamp:
        """How far the topic has come with its last confirmed entry."""
        return self._confirmed

    @property
    def confirmed_time_ms(self) -> int | None:
        """Broker time of the last confirmed entry; None where no time is written."""
        return self._confirmed.broker_time_ms if self._with_time else None

    def stamp(self, messages: int) -> tuple[bytes, EntryStamp]:
        """The bytes for the next entry, and how far the topic will have come with it."""
        time_ms = self._given.broker_time_ms
        index = self._given.index
        if self._with_time:
            now_ms = self._clock.now_ms()
            time_ms = now_ms if time_ms is None else max(now_ms, time_ms)
        if self._with_index and messages:
            index = messages - 1 if index is None else index + messages
        self._given = EntryStamp(index, time_ms)
        if not self._with_time and not self._with_index:
            return b"", self._given
        return encode_broker_metadata(
            time_ms if self._with_time else None, index if self._with_index else None
        ), self._given

    def confirm(self, reached: EntryStamp) -> None:
        """Note that the entry with this stamp is durable."""
        self._confirmed = reached

    def roll_back(self) -> None:
        """Take back every stamp that was not confirmed. The time stays: it need not be continuous, only ordered."""
        self._given = EntryStamp(self._confirmed.index, self._given.broker_time_ms)


def stamp_of(entry: Buffer) -> EntryStamp:
    """How far a topic had come with an entry: nothing known where the entry has no broker metadata, or is damaged."""
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
    """Steps 2 to 4, for a topic that was just taken over.

    Returns:
        The list, in which every ledger is finished, and how far index and broker time have come.

    Raises:
        LedgerMissing: The hot log lacks a ledger of which the list does not know how it ended.
        MetadataError: The list could not be changed.
    """
    snapshot = metadata.snapshot
    hot = environment.hot
    rows = records(snapshot.info)
    skip = environment.config.damaged_data_policy is DamagePolicy.SKIP_AND_REPORT
    reached = last_stamp(snapshot.info)
    ends: list[LedgerEnd] = []
    for row in rows:
        if not row.finished:
            end, its = _end_of(name, row.ledger_id, hot, skip=skip)
            ends.append(end)
            reached = reached.later(its)
    if not ends:
        reached = reached.later(_stamp_of_newest(rows, hot))
    now_ms = environment.clock.now_ms()

    def edit(info: ManagedLedgerInfo) -> None:
        for end in ends:
            finish_ledger(info, end, now_ms)
        drop_empty(info)
        record_last_stamp(info, reached)

    return metadata.update(edit), reached


def _end_of(name: str, ledger_id: int, hot: HotLog, *, skip: bool) -> tuple[LedgerEnd, EntryStamp]:
    try:
        ledger = hot.open(ledger_id)
    except LedgerMissing as error:
        if not skip:
            raise LedgerMissing(
                f"the hot log has no ledger {ledger_id}, which {name} was writing to: give it the right directory, or "
                "set damagedDataPolicy=skip-and-report to open the topic without that ledger's entries"
            ) from error
        _log.error("the hot log has no ledger %d of %s; its entries are lost", ledger_id, name)
        return LedgerEnd(ledger_id, 0, 0, None), EntryStamp()
    ledger.close()
    last = ledger.confirmed
    reached = stamp_of(ledger.read(last, last)[0]) if last >= 0 else EntryStamp()
    return LedgerEnd(ledger_id, last + 1, ledger.size_bytes, reached.broker_time_ms), reached


def _stamp_of_newest(rows: tuple[LedgerRecord, ...], hot: HotLog) -> EntryStamp:
    """What the last entry says: for lists that were written by others, who do not record a broker time."""
    newest = next((row for row in reversed(rows) if row.entries), None)
    if newest is None or newest.hot_deleted or not newest.entries:
        return EntryStamp()
    try:
        return stamp_of(hot.open(newest.ledger_id).read(newest.entries - 1, newest.entries - 1)[0])
    except LedgerMissing:
        return EntryStamp()
