"""Uncovered ranges of a topic, to be streamed in segments: pure functions of its ledger list.

Within a ledger segments come one behind the other from its first entry on, and they are committed in order, so that
what is covered is always the beginning of the ledger. Two ways of offload never share one: a ledger with an object of
its own stays as it is, and one with any segment ends in segments, also after streaming was switched off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from afterglow.format.position import Position
from afterglow.ledger.ledger_list import covered_entries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.ledger.layout import Layout


@dataclass(frozen=True, slots=True)
class EntryRange:
    """Consecutive entries of one ledger."""

    ledger_id: int
    first: int
    """Id of the first entry, inclusive."""
    last: int
    """Id of the last entry, inclusive; never below ``first``."""
    closed: bool
    """Whether no entry follows in this ledger."""

    @property
    def begin(self) -> Position:
        """Its first entry."""
        return Position(self.ledger_id, self.first)

    @property
    def end(self) -> Position:
        """Its last entry."""
        return Position(self.ledger_id, self.last)


@dataclass(frozen=True, slots=True)
class PositionRange:
    """Consecutive ranges of ledgers: each begins with the entry that follows the last of the one before."""

    ranges: tuple[EntryRange, ...]
    """At least one."""
    growing: bool
    """Whether further entries will belong to the same range."""

    @property
    def begin(self) -> Position:
        """The first entry."""
        return self.ranges[0].begin

    @property
    def end(self) -> Position:
        """The last entry so far."""
        return self.ranges[-1].end

    def up_to(self, end: Position) -> PositionRange:
        """The part that does not stand behind ``end``, which must be an entry of it; nothing follows it."""
        kept = [entry_range for entry_range in self.ranges if entry_range.begin <= end]
        if kept[-1].end > end:
            last = kept[-1]
            kept[-1] = EntryRange(last.ledger_id, last.first, end.entry_id, closed=False)
        return PositionRange(tuple(kept), growing=False)

    def after(self, position: Position) -> PositionRange | None:
        """The part that stands behind ``position``; None where nothing does."""
        kept = []
        for entry_range in self.ranges:
            if entry_range.end <= position:
                continue
            first = position.entry_id + 1 if entry_range.ledger_id == position.ledger_id else entry_range.first
            kept.append(EntryRange(entry_range.ledger_id, first, entry_range.last, entry_range.closed))
        return PositionRange(tuple(kept), self.growing) if kept else None


def uncovered_ranges(
    rows: Iterable[ManagedLedgerInfo.LedgerInfo],
    entries_of: Callable[[int], int | None],
    *,
    streaming: bool,
    writing_to: int | None,
    assigned_to: Position | None = None,
) -> tuple[PositionRange, ...]:
    """Entries that belong into segments and are in none yet, in order.

    Args:
        rows: The list of ledgers.
        entries_of: How many entries of a ledger readers may see; None where they may see none.
        streaming: Whether the policy wants segments. If not, only ledgers that have some already are finished.
        writing_to: The ledger that takes appends.
        assigned_to: The last entry of the last segment that is assigned and not committed; what stands before it is
            taken.
    """
    found: list[PositionRange] = []
    ranges: list[EntryRange] = []
    for row, count in _with_entries(rows, entries_of):
        closed = row.ledgerId != writing_to
        entry_range = _uncovered(row, count, closed=closed, after=assigned_to)
        mine = streaming or (closed and len(row.offloadContext.offloadSegment) > 0)
        if entry_range is None or not mine or row.offloadContext.complete:
            if ranges:
                found.append(PositionRange(tuple(ranges), growing=False))
                ranges = []
            continue
        ranges.append(entry_range)
    if ranges:
        # Entries may still come behind the newest ledger, in it or in the one that will follow.
        found.append(PositionRange(tuple(ranges), growing=streaming))
    return tuple(found)


def needs_streaming(info: ManagedLedgerInfo, *, streaming: bool) -> bool:
    """Whether a topic that is not open has something to stream, or a segment to finish."""
    rows = info.ledgerInfo
    # After a switch back the ledger that is being written must end, if a part of it is in segments.
    unended = any(streaming or row.offloadContext.offloadSegment for row in rows if not row.HasField("entries"))
    if unended or any(is_assigned(row) for row in rows):
        return True
    counts = {row.ledgerId: row.entries for row in rows}
    return bool(uncovered_ranges(rows, counts.get, streaming=streaming, writing_to=None))


def range_between(layout: Layout, begin: Position, end: Position) -> PositionRange:
    """The entries from one to another, both inclusive; both must be there."""
    ranges = []
    for span in layout.ranges(begin):
        if span.ledger_id > end.ledger_id:
            break
        last = min(span.last, end.entry_id) if span.ledger_id == end.ledger_id else span.last
        ranges.append(EntryRange(span.ledger_id, span.first, last, closed=last == span.last))
    return PositionRange(tuple(ranges), growing=False)


def is_assigned(row: ManagedLedgerInfo.LedgerInfo) -> bool:
    """Whether a segment begins in the ledger that is not committed yet."""
    return any(not item.complete for item in row.offloadContext.offloadSegment)


def assigned_from(info: ManagedLedgerInfo) -> int | None:
    """The first ledger in which a segment begins that is not committed; None where there is none.

    Its end is not in the ledger list: every ledger behind may hold entries of it.
    """
    return min((row.ledgerId for row in info.ledgerInfo if is_assigned(row)), default=None)


def failed_attempt(row: ManagedLedgerInfo.LedgerInfo) -> bool:
    """Whether an offload of the whole ledger was begun and not finished: its objects must go before segments come."""
    context = row.offloadContext
    return context.HasField("uidMsb") and not context.complete and not context.offloadSegment


def _with_entries(
    rows: Iterable[ManagedLedgerInfo.LedgerInfo], entries_of: Callable[[int], int | None]
) -> Iterator[tuple[ManagedLedgerInfo.LedgerInfo, int]]:
    """Ledgers in order; those without entries are not in the way of anything."""
    for row in sorted(rows, key=lambda row: row.ledgerId):
        if count := entries_of(row.ledgerId):
            yield row, count


def _uncovered(
    row: ManagedLedgerInfo.LedgerInfo, count: int, *, closed: bool, after: Position | None
) -> EntryRange | None:
    first = covered_entries(row)
    if after is not None and row.ledgerId <= after.ledger_id:
        first = count if row.ledgerId < after.ledger_id else max(first, after.entry_id + 1)
    return EntryRange(row.ledgerId, first, count - 1, closed) if first < count else None
