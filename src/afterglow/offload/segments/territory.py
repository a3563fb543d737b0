"""Which entries of a topic are to be streamed: pure functions of its list of ledgers.

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


@dataclass(frozen=True, slots=True)
class Stretch:
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
class Run:
    """Consecutive stretches: each begins with the entry that follows the last of the one before."""

    stretches: tuple[Stretch, ...]
    """At least one."""
    growing: bool
    """Whether entries will follow that belong to the same run."""

    @property
    def begin(self) -> Position:
        """The first entry."""
        return self.stretches[0].begin

    @property
    def end(self) -> Position:
        """The last entry so far."""
        return self.stretches[-1].end

    def up_to(self, end: Position) -> Run:
        """The part that does not stand behind ``end``, which must be an entry of it; nothing follows it."""
        kept = [piece for piece in self.stretches if piece.begin <= end]
        if kept[-1].end > end:
            last = kept[-1]
            kept[-1] = Stretch(last.ledger_id, last.first, end.entry_id, closed=False)
        return Run(tuple(kept), growing=False)

    def after(self, position: Position) -> Run | None:
        """The part that stands behind ``position``; None where nothing does."""
        kept = []
        for piece in self.stretches:
            if piece.end <= position:
                continue
            first = position.entry_id + 1 if piece.ledger_id == position.ledger_id else piece.first
            kept.append(Stretch(piece.ledger_id, first, piece.last, piece.closed))
        return Run(tuple(kept), self.growing) if kept else None


def to_stream(
    rows: Iterable[ManagedLedgerInfo.LedgerInfo],
    entries_of: Callable[[int], int | None],
    *,
    streaming: bool,
    writing_to: int | None,
    assigned_to: Position | None = None,
) -> tuple[Run, ...]:
    """Entries that belong into segments and are in none yet, in order.

    Args:
        rows: The list of ledgers.
        entries_of: How many entries of a ledger readers may see; None where they may see none.
        streaming: Whether the policy wants segments. If not, only ledgers that have some already are finished.
        writing_to: The ledger that takes appends.
        assigned_to: The last entry of the last segment that is assigned and not committed; what stands before it is
            taken.
    """
    runs: list[Run] = []
    pieces: list[Stretch] = []
    for row, count in _with_entries(rows, entries_of):
        closed = row.ledgerId != writing_to
        piece = _uncovered(row, count, closed=closed, after=assigned_to)
        mine = streaming or (closed and len(row.offloadContext.offloadSegment) > 0)
        if piece is None or not mine or row.offloadContext.complete:
            if pieces:
                runs.append(Run(tuple(pieces), growing=False))
                pieces = []
            continue
        pieces.append(piece)
    if pieces:
        # Entries may still come behind the newest ledger, in it or in the one that will follow.
        runs.append(Run(tuple(pieces), growing=streaming))
    return tuple(runs)


def is_assigned(row: ManagedLedgerInfo.LedgerInfo) -> bool:
    """Whether a segment begins in the ledger that is not committed yet."""
    return any(not item.complete for item in row.offloadContext.offloadSegment)


def assigned_from(info: ManagedLedgerInfo) -> int | None:
    """The first ledger in which a segment begins that is not committed; None where there is none.

    How far it reaches the list does not tell: every ledger behind may hold entries of it.
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
) -> Stretch | None:
    first = covered_entries(row)
    if after is not None and row.ledgerId <= after.ledger_id:
        first = count if row.ledgerId < after.ledger_id else max(first, after.entry_id + 1)
    return Stretch(row.ledgerId, first, count - 1, closed) if first < count else None
