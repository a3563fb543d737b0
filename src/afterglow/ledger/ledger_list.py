"""The list of a topic's ledgers: records to read, and edits that a compare-and-set applies.

Every edit may be applied to a list that has it already, and then changes nothing: an edit whose first outcome was
unknown is simply applied again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from afterglow.format.position import EARLIEST, Position
from afterglow.ledger.properties import BROKER_TIME, INDEX, get_number, get_trash, raise_number, set_text, set_trash

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """One ledger of the list."""

    ledger_id: int
    entries: int | None
    """None while it is open, or was when its owner died."""
    size_bytes: int | None
    """Bytes of all entries; None together with :attr:`entries`."""
    closed_ms: int
    """When it was closed, epoch milliseconds; 0 while open."""
    last_broker_time_ms: int | None
    """Broker time of its last entry; None where it was not recorded."""
    hot_deleted: bool
    """Whether the hot copy is gone and only the tier has it."""

    @property
    def finished(self) -> bool:
        """Whether the list says how long it is."""
        return self.entries is not None


@dataclass(frozen=True, slots=True)
class LedgerEnd:
    """How a ledger ended."""

    ledger_id: int
    entries: int
    size_bytes: int
    last_broker_time_ms: int | None
    """Broker time of its last entry; None where it has none."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a topic's index and broker time have come. Neither ever goes back."""

    index: int | None = None
    """Index of the last message, from 0; None before the first."""
    broker_time_ms: int | None = None
    """The newest broker time, epoch milliseconds; None before the first."""

    def later(self, other: Progress) -> Progress:
        """The maximum of both, field by field."""
        return Progress(
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


def progress(info: ManagedLedgerInfo) -> Progress:
    """How far index and broker time had come at the last roll-over."""
    index = get_number(info, INDEX)
    # Pulsar counts from -1.
    return Progress(None if index is None or index < 0 else index, get_number(info, BROKER_TIME))


def record_progress(info: ManagedLedgerInfo, reached: Progress) -> None:
    """Record how far index and broker time have come."""
    raise_number(info, INDEX, reached.index)
    raise_number(info, BROKER_TIME, reached.broker_time_ms)


def add_ledger(info: ManagedLedgerInfo, ledger_id: int) -> None:
    """Append a new, open ledger; empty ones before it have marked the topic's end long enough."""
    if all(ledger.ledgerId != ledger_id for ledger in info.ledgerInfo):
        info.ledgerInfo.add(ledgerId=ledger_id, timestamp=0)
    drop_empty(info)


def finish_ledger(info: ManagedLedgerInfo, end: LedgerEnd, now_ms: int) -> None:
    """Record how long a ledger is and that it is closed; one that has left the list stays gone."""
    for ledger in info.ledgerInfo:
        if ledger.ledgerId == end.ledger_id and not ledger.HasField("entries"):
            ledger.entries = end.entries
            ledger.size = end.size_bytes
            ledger.timestamp = now_ms
            if end.last_broker_time_ms is not None:
                set_text(ledger, BROKER_TIME, str(end.last_broker_time_ms))
    drop_empty(info)


def drop_empty(info: ManagedLedgerInfo) -> None:
    """Drop closed ledgers without entries, except the last of the list: it marks where the topic ends."""
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
    """Take ledgers off the list and remember that their hot copies are to be deleted."""
    going: set[int] = set()
    for at in range(len(info.ledgerInfo) - 1, -1, -1):
        if (ledger_id := info.ledgerInfo[at].ledgerId) in ledger_ids:
            del info.ledgerInfo[at]
            going.add(ledger_id)
    if going:
        set_trash(info, going.union(get_trash(info)))


def covered_entries(row: ManagedLedgerInfo.LedgerInfo) -> int:
    """How many entries of a ledger, from its first on, are in committed segments."""
    return max((part.endEntryId + 1 for part in row.offloadContext.offloadSegment if part.complete), default=0)


def offloaded_whole(row: ManagedLedgerInfo.LedgerInfo) -> bool:
    """Whether a closed ledger is in the tier from its first entry to its last: by itself, or in segments."""
    context = row.offloadContext
    if not row.HasField("entries") or not row.entries:
        return False
    committed = all(part.complete for part in context.offloadSegment)
    return context.complete or (covered_entries(row) >= row.entries and committed)


def first_unoffloaded(info: ManagedLedgerInfo) -> Position:
    """The first position that is not in the tier; behind the last entry where everything is."""
    behind = EARLIEST
    for row in sorted(info.ledgerInfo, key=lambda row: row.ledgerId):
        covered = row.entries if row.offloadContext.complete else covered_entries(row)
        behind = Position(row.ledgerId, covered)
        if not row.HasField("entries") or covered < row.entries:
            break
    return behind


def free_ledgers(info: ManagedLedgerInfo, ledger_ids: Collection[int]) -> None:
    """Say that the hot copies of offloaded ledgers are gone, and remember that they are to be deleted."""
    going = {
        row.ledgerId
        for row in info.ledgerInfo
        if row.ledgerId in ledger_ids and offloaded_whole(row) and not row.offloadContext.bookkeeperDeleted
    }
    for row in info.ledgerInfo:
        if row.ledgerId in going:
            row.offloadContext.bookkeeperDeleted = True
    if going:
        set_trash(info, going.union(get_trash(info)))


def forget_trash(info: ManagedLedgerInfo, ledger_ids: Iterable[int]) -> None:
    """Strike ledgers whose hot copies are gone off the list of those to be deleted."""
    set_trash(info, set(get_trash(info)).difference(ledger_ids))


def _maximum(left: int | None, right: int | None) -> int | None:
    if left is None or right is None:
        return right if left is None else left
    return max(left, right)
