"""Uncovered ranges of a topic, to be streamed in segments. Pure functions of its ledger list.

The segments of a ledger are contiguous from its first entry on, and they are committed in order, so that covered
entries are always the beginning of the ledger. The two ways of offload never share a ledger: a ledger that is offloaded
whole gets no segment, and a ledger with any segment is completed in segments, also after streaming was disabled.
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
    """Id of the last entry, inclusive; at least ``first``."""
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
    """Consecutive entries of one or more ledgers."""

    ranges: tuple[EntryRange, ...]
    """At least one; each begins with the entry after the last of the range before."""
    growing: bool
    """Whether further entries will extend the range."""

    @property
    def begin(self) -> Position:
        """The first entry."""
        return self.ranges[0].begin

    @property
    def end(self) -> Position:
        """The last entry so far."""
        return self.ranges[-1].end

    def up_to(self, end: Position) -> PositionRange:
        """The entries up to ``end``, which must be an entry of the range. The result does not grow."""
        kept = [entry_range for entry_range in self.ranges if entry_range.begin <= end]
        if kept[-1].end > end:
            last = kept[-1]
            kept[-1] = EntryRange(last.ledger_id, last.first, end.entry_id, closed=False)
        return PositionRange(tuple(kept), growing=False)

    def after(self, position: Position) -> PositionRange | None:
        """The entries after ``position``; None if none exists."""
        kept = []
        for entry_range in self.ranges:
            if entry_range.end <= position:
                continue
            first = position.entry_id + 1 if entry_range.ledger_id == position.ledger_id else entry_range.first
            kept.append(EntryRange(entry_range.ledger_id, first, entry_range.last, entry_range.closed))
        return PositionRange(tuple(kept), self.growing) if kept else None


def uncovered_ranges(
    ledgers: Iterable[ManagedLedgerInfo.LedgerInfo],
    entries_of: Callable[[int], int | None],
    *,
    streaming: bool,
    writing_to: int | None,
    assigned_to: Position | None = None,
) -> tuple[PositionRange, ...]:
    """Entries that are to be streamed and are in no segment yet, in order.

    Args:
        ledgers: The ledgers of the ledger list.
        entries_of: Returns the number of a ledger's entries that readers may see; None if there are none.
        streaming: Whether streaming is enabled. If not, only ledgers that have segments already are completed.
        writing_to: The ledger that is being written.
        assigned_to: The last entry of the last assigned segment; entries up to it are not uncovered.
    """
    found: list[PositionRange] = []
    ranges: list[EntryRange] = []
    for ledger, count in _with_entries(ledgers, entries_of):
        closed = ledger.ledgerId != writing_to
        entry_range = _uncovered(ledger, count, closed=closed, after=assigned_to)
        mine = streaming or (closed and len(ledger.offloadContext.offloadSegment) > 0)
        if entry_range is None or not mine or ledger.offloadContext.complete:
            if ranges:
                found.append(PositionRange(tuple(ranges), growing=False))
                ranges = []
            continue
        ranges.append(entry_range)
    if ranges:
        # Entries may follow in the newest ledger, or in the next one.
        found.append(PositionRange(tuple(ranges), growing=streaming))
    return tuple(found)


def needs_streaming(info: ManagedLedgerInfo, *, streaming: bool) -> bool:
    """Whether a topic that is not open has entries to stream, or a segment to finish."""
    ledgers = info.ledgerInfo
    # After streaming was disabled, the ledger that is being written must be closed if it has segments.
    unended = any(
        streaming or ledger.offloadContext.offloadSegment for ledger in ledgers if not ledger.HasField("entries")
    )
    if unended or any(is_assigned(ledger) for ledger in ledgers):
        return True
    counts = {ledger.ledgerId: ledger.entries for ledger in ledgers}
    return bool(uncovered_ranges(ledgers, counts.get, streaming=streaming, writing_to=None))


def range_between(layout: Layout, begin: Position, end: Position) -> PositionRange:
    """The entries from ``begin`` to ``end``, both inclusive; both must exist."""
    ranges = []
    for span in layout.ranges(begin):
        if span.ledger_id > end.ledger_id:
            break
        last = min(span.last, end.entry_id) if span.ledger_id == end.ledger_id else span.last
        ranges.append(EntryRange(span.ledger_id, span.first, last, closed=last == span.last))
    return PositionRange(tuple(ranges), growing=False)


def find_ledger(info: ManagedLedgerInfo, ledger_id: int) -> ManagedLedgerInfo.LedgerInfo | None:
    """A ledger of the ledger list; None if it is not in the list."""
    return next((ledger for ledger in info.ledgerInfo if ledger.ledgerId == ledger_id), None)


def is_assigned(ledger: ManagedLedgerInfo.LedgerInfo) -> bool:
    """Whether an uncommitted segment begins in the ledger."""
    return any(not item.complete for item in ledger.offloadContext.offloadSegment)


def assigned_from(info: ManagedLedgerInfo) -> int | None:
    """The first ledger in which an uncommitted segment begins; None if none exists.

    Its end is not in the ledger list: every later ledger may have entries of it.
    """
    return min((ledger.ledgerId for ledger in info.ledgerInfo if is_assigned(ledger)), default=None)


def has_failed_attempt(ledger: ManagedLedgerInfo.LedgerInfo) -> bool:
    """Whether a whole-ledger attempt is incomplete: its objects must be deleted before a segment begins."""
    context = ledger.offloadContext
    return context.HasField("uidMsb") and not context.complete and not context.offloadSegment


def _with_entries(
    ledgers: Iterable[ManagedLedgerInfo.LedgerInfo], entries_of: Callable[[int], int | None]
) -> Iterator[tuple[ManagedLedgerInfo.LedgerInfo, int]]:
    """Ledgers with entries, in order; empty ones do not interrupt a range."""
    for ledger in sorted(ledgers, key=lambda ledger: ledger.ledgerId):
        if count := entries_of(ledger.ledgerId):
            yield ledger, count


def _uncovered(
    ledger: ManagedLedgerInfo.LedgerInfo, count: int, *, closed: bool, after: Position | None
) -> EntryRange | None:
    first = covered_entries(ledger)
    if after is not None and ledger.ledgerId <= after.ledger_id:
        first = count if ledger.ledgerId < after.ledger_id else max(first, after.entry_id + 1)
    return EntryRange(ledger.ledgerId, first, count - 1, closed) if first < count else None
