"""The ledger list of a topic: records to read, and edits that a compare-and-set applies.

Edits are idempotent: an edit whose first outcome was unknown is applied again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from afterglow.format.position import EARLIEST, Position
from afterglow.ledger.properties import (
    BROKER_TIME,
    INDEX,
    get_number,
    get_pending_deletes,
    raise_number,
    set_pending_deletes,
    set_text,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """One ledger of the list."""

    ledger_id: int
    entries: int | None
    """None while it is open, or if it was when its owner died."""
    size_bytes: int | None
    """Bytes of all entries; None together with :attr:`entries`."""
    closed_ms: int
    """Time of closing, epoch milliseconds; 0 while open."""
    last_broker_time_ms: int | None
    """Broker time of its last entry; None if not recorded."""
    hot_deleted: bool
    """Whether the hot copy was freed and only a tier has the ledger."""

    @property
    def finished(self) -> bool:
        """Whether the list has its length."""
        return self.entries is not None


@dataclass(frozen=True, slots=True)
class LedgerEnd:
    """The end of a closed ledger."""

    ledger_id: int
    entries: int
    size_bytes: int
    last_broker_time_ms: int | None
    """Broker time of its last entry; None if it has none."""


@dataclass(frozen=True, slots=True)
class EntryStamp:
    """Index and broker time of an entry (PIP-70). Within a topic neither ever decreases."""

    index: int | None = None
    """Index of the entry's last message, from 0; None before the first message of the topic."""
    broker_time_ms: int | None = None
    """Epoch milliseconds; None before the first entry of the topic."""

    def later(self, other: EntryStamp) -> EntryStamp:
        """The maximum of both, field by field."""
        return EntryStamp(
            _maximum(self.index, other.index),
            _maximum(self.broker_time_ms, other.broker_time_ms),
        )


def records(info: ManagedLedgerInfo) -> tuple[LedgerRecord, ...]:
    """The ledgers, ascending by id."""
    return tuple(
        LedgerRecord(
            ledger.ledgerId,
            ledger.entries if ledger.HasField("entries") else None,
            ledger.size if ledger.HasField("entries") else None,
            ledger.timestamp,
            get_number(ledger, BROKER_TIME),
            ledger.offloadContext.bookkeeperDeleted,
        )
        for ledger in sorted(info.ledgerInfo, key=lambda ledger: ledger.ledgerId)
    )


def last_stamp(info: ManagedLedgerInfo) -> EntryStamp:
    """The stamp that was recorded at the last roll-over."""
    index = get_number(info, INDEX)
    # Pulsar counts from -1.
    return EntryStamp(None if index is None or index < 0 else index, get_number(info, BROKER_TIME))


def record_last_stamp(info: ManagedLedgerInfo, reached: EntryStamp) -> None:
    """Record index and broker time of the topic's last entry."""
    raise_number(info, INDEX, reached.index)
    raise_number(info, BROKER_TIME, reached.broker_time_ms)


def add_ledger(info: ManagedLedgerInfo, ledger_id: int) -> None:
    """Append a new, open ledger; empty ones before it, which marked the end of the topic, are removed."""
    if all(ledger.ledgerId != ledger_id for ledger in info.ledgerInfo):
        info.ledgerInfo.add(ledgerId=ledger_id, timestamp=0)
    drop_empty(info)


def finish_ledger(info: ManagedLedgerInfo, end: LedgerEnd, now_ms: int) -> bool:
    """Record the end of a ledger, if it is still in the list; returns whether the list did not have it."""
    is_new = False
    for ledger in info.ledgerInfo:
        if ledger.ledgerId == end.ledger_id and not ledger.HasField("entries"):
            is_new = True
            ledger.entries = end.entries
            ledger.size = end.size_bytes
            ledger.timestamp = now_ms
            if end.last_broker_time_ms is not None:
                set_text(ledger, BROKER_TIME, str(end.last_broker_time_ms))
    drop_empty(info)
    return is_new


def drop_empty(info: ManagedLedgerInfo) -> None:
    """Remove closed ledgers without entries, except the last of the list: it marks the end of the topic."""
    newest = max((ledger.ledgerId for ledger in info.ledgerInfo), default=-1)
    drop_ledgers(
        info,
        {
            ledger.ledgerId
            for ledger in info.ledgerInfo
            if ledger.HasField("entries") and not ledger.entries and ledger.ledgerId != newest
        },
    )


def drop_ledgers(info: ManagedLedgerInfo, ledger_ids: Collection[int]) -> None:
    """Remove ledgers from the list, and record their hot copies as pending deletes."""
    dropped: set[int] = set()
    for at in range(len(info.ledgerInfo) - 1, -1, -1):
        if (ledger_id := info.ledgerInfo[at].ledgerId) in ledger_ids:
            del info.ledgerInfo[at]
            dropped.add(ledger_id)
    if dropped:
        set_pending_deletes(info, dropped.union(get_pending_deletes(info)))


def covered_entries(ledger: ManagedLedgerInfo.LedgerInfo) -> int:
    """Number of entries of a ledger, from its first on, that are in committed segments."""
    segments = ledger.offloadContext.offloadSegment
    return max((segment.endEntryId + 1 for segment in segments if segment.complete), default=0)


def is_fully_offloaded(ledger: ManagedLedgerInfo.LedgerInfo) -> bool:
    """Whether all entries of a closed ledger are in the tier, as one object or in segments."""
    context = ledger.offloadContext
    if not ledger.HasField("entries") or not ledger.entries:
        return False
    committed = all(segment.complete for segment in context.offloadSegment)
    return context.complete or (covered_entries(ledger) >= ledger.entries and committed)


def first_unoffloaded(info: ManagedLedgerInfo) -> Position:
    """The first position that is not in the tier; after the last entry if all are."""
    found = EARLIEST
    for ledger in sorted(info.ledgerInfo, key=lambda ledger: ledger.ledgerId):
        covered = ledger.entries if ledger.offloadContext.complete else covered_entries(ledger)
        found = Position(ledger.ledgerId, covered)
        if not ledger.HasField("entries") or covered < ledger.entries:
            break
    return found


def free_ledgers(info: ManagedLedgerInfo, ledger_ids: Collection[int]) -> None:
    """Mark the hot copies of offloaded ledgers as gone, and record them as pending deletes."""
    freed: set[int] = set()
    for ledger in info.ledgerInfo:
        context = ledger.offloadContext
        if ledger.ledgerId in ledger_ids and is_fully_offloaded(ledger) and not context.bookkeeperDeleted:
            context.bookkeeperDeleted = True
            freed.add(ledger.ledgerId)
    if freed:
        set_pending_deletes(info, freed.union(get_pending_deletes(info)))


def remove_pending_deletes(info: ManagedLedgerInfo, ledger_ids: Iterable[int]) -> None:
    """Remove pending deletes that were carried out."""
    set_pending_deletes(info, set(get_pending_deletes(info)).difference(ledger_ids))


def _maximum(left: int | None, right: int | None) -> int | None:
    if left is None or right is None:
        return right if left is None else left
    return max(left, right)
