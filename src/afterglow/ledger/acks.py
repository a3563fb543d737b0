"""Acknowledged entries of a topic: the mark-delete position, ranges of single entries, and messages of batches.

On the wire and in metadata a bit set is a list of 64-bit words as Java's ``BitSet`` has them: signed, the lowest first,
without trailing zero words. Bit *i* is message *i*; 1 means **not** acknowledged. Missing words are zero.

The mark-delete position advances over acknowledged entries only, also from one ledger to the next; it never skips an
entry of the layout that is not acknowledged.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING, Final

from afterglow.errors import InvalidPosition
from afterglow.format.position import LedgerRange, Position

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from afterglow.ledger.layout import Layout

_LARGEST: Final = 2**63 - 1


class EntryRanges:
    """A set of entries. Not thread-safe.

    For each ledger two parallel sorted lists: first and last entry of each range, both inclusive. Ranges neither
    overlap nor touch. Acknowledgements mostly extend a range or add one near the end, which costs a bisection.
    """

    def __init__(self) -> None:
        self._ledgers: dict[int, tuple[list[int], list[int]]] = {}
        self._count = 0

    @property
    def count(self) -> int:
        """Entries in the set."""
        return self._count

    def __len__(self) -> int:
        """Number of ranges."""
        return sum(len(firsts) for firsts, _ in self._ledgers.values())

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Each range as ledger, first and last entry, both inclusive, in order."""
        for ledger_id in sorted(self._ledgers):
            for first, last in zip(*self._ledgers[ledger_id], strict=True):
                yield ledger_id, first, last

    def __contains__(self, position: Position) -> bool:
        return self.end_of_range(position) is not None

    def end_of_range(self, position: Position) -> int | None:
        """Last entry of the range that contains ``position``; None if no range does."""
        firsts, lasts = self._ledgers.get(position.ledger_id, ((), ()))
        at = bisect_right(firsts, position.entry_id) - 1
        return lasts[at] if at >= 0 and position.entry_id <= lasts[at] else None

    def gap_end(self, position: Position) -> int:
        """The entry before the next range of the ledger, for a ``position`` outside ranges; else the largest id."""
        firsts, _ = self._ledgers.get(position.ledger_id, ((), ()))
        at = bisect_right(firsts, position.entry_id)
        return firsts[at] - 1 if at < len(firsts) else _LARGEST

    def add(self, ledger_id: int, first: int, last: int) -> int:
        """Add the entries from ``first`` to ``last``, both inclusive; returns the number of new ones."""
        firsts, lasts = self._ledgers.setdefault(ledger_id, ([], []))
        begin = bisect_left(lasts, first - 1)  # the first range that touches or follows
        end = bisect_right(firsts, last + 1)  # after the last range that touches
        covered = sum(lasts[at] - firsts[at] + 1 for at in range(begin, end))
        if begin < end:
            first = min(first, firsts[begin])
            last = max(last, lasts[end - 1])
        firsts[begin:end] = [first]
        lasts[begin:end] = [last]
        added = last - first + 1 - covered
        self._count += added
        return added

    def remove_through(self, position: Position) -> None:
        """Remove every entry up to ``position``, inclusive."""
        for ledger_id in [id_ for id_ in self._ledgers if id_ < position.ledger_id]:
            firsts, lasts = self._ledgers.pop(ledger_id)
            self._count -= _total(firsts, lasts)
        known = self._ledgers.get(position.ledger_id)
        if known is None:
            return
        firsts, lasts = known
        end = bisect_right(lasts, position.entry_id)
        self._count -= _total(firsts[:end], lasts[:end])
        del firsts[:end], lasts[:end]
        if not firsts:
            del self._ledgers[position.ledger_id]
        elif firsts[0] <= position.entry_id:
            self._count -= position.entry_id + 1 - firsts[0]
            firsts[0] = position.entry_id + 1

    def clear(self) -> None:
        """Remove everything."""
        self._ledgers.clear()
        self._count = 0


def _total(firsts: list[int], lasts: list[int]) -> int:
    return sum(lasts) - sum(firsts) + len(firsts)


_WORD_BYTES: Final = 8


def from_words(words: Sequence[int]) -> int:
    """Java's words, signed or unsigned, as one integer."""
    return int.from_bytes(b"".join((word & (2**64 - 1)).to_bytes(_WORD_BYTES, "little") for word in words), "little")


def to_words(bits: int) -> tuple[int, ...]:
    """An integer as Java's words, signed, without trailing zero words."""
    count = (bits.bit_length() + 63) // 64
    data = bits.to_bytes(count * _WORD_BYTES, "little")
    return tuple(
        int.from_bytes(data[at : at + _WORD_BYTES], "little", signed=True) for at in range(0, len(data), _WORD_BYTES)
    )


class BatchAcks:
    """The partly acknowledged batches of one cursor. Not thread-safe."""

    def __init__(self) -> None:
        self._bits: dict[Position, int] = {}
        self._order: list[Position] = []

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[tuple[Position, tuple[int, ...]]]:
        """Each batch with its words, in order."""
        for position in self._order:
            yield position, to_words(self._bits[position])

    def words(self, position: Position) -> tuple[int, ...] | None:
        """Messages of a batch that are not acknowledged, as words; None if no message of it was acknowledged."""
        bits = self._bits.get(position)
        return None if bits is None else to_words(bits)

    def has_between(self, first: Position, last: Position) -> bool:
        """Whether there is a batch from ``first`` to ``last``, both inclusive."""
        at = bisect_left(self._order, first)
        return at < len(self._order) and self._order[at] <= last

    def ack(self, position: Position, words: Sequence[int]) -> bool:
        """Acknowledge all messages of a batch whose bits are 0; returns whether the batch is complete."""
        bits = from_words(words)
        known = self._bits.get(position)
        if known is None:
            if bits:
                self._bits[position] = bits
                insort(self._order, position)
            return not bits
        bits &= known
        if bits:
            self._bits[position] = bits
        else:
            self.drop(position)
        return not bits

    def drop(self, position: Position) -> None:
        """Remove one batch, because its whole entry is acknowledged."""
        if self._bits.pop(position, None) is not None:
            del self._order[bisect_right(self._order, position) - 1]

    def remove_through(self, position: Position) -> None:
        """Remove every batch up to ``position``, inclusive."""
        end = bisect_right(self._order, position)
        for gone in self._order[:end]:
            del self._bits[gone]
        del self._order[:end]

    def clear(self) -> None:
        """Remove everything."""
        self._bits.clear()
        self._order.clear()


def consecutive(positions: Sequence[Position]) -> Iterator[LedgerRange]:
    """Runs of positions of which each follows the one before it."""
    if not positions:
        return
    ledger_id, first = positions[0].ledger_id, positions[0].entry_id
    last = first
    for position in positions[1:]:
        if position.entry_id == last + 1 and position.ledger_id == ledger_id:
            last += 1
            continue
        yield LedgerRange(ledger_id, first, last)
        ledger_id, first = position.ledger_id, position.entry_id
        last = first
    yield LedgerRange(ledger_id, first, last)


class Acks:
    """The acknowledgements of one cursor. Not thread-safe.

    Args:
        mark_delete: Everything up to here is acknowledged, inclusive.
    """

    def __init__(self, mark_delete: Position) -> None:
        self.mark_delete = mark_delete
        self.entries = EntryRanges()
        self.batches = BatchAcks()

    def contains(self, position: Position) -> bool:
        """Whether the whole entry is acknowledged."""
        return position <= self.mark_delete or position in self.entries

    def is_any_acked(self, ledger_id: int, first: int, last: int) -> bool:
        """Whether any of these entries, both ends inclusive, is acknowledged as a whole or in part."""
        begin, end = Position(ledger_id, first), Position(ledger_id, last)
        if self.contains(begin) or self.entries.gap_end(begin) < last:
            return True
        return self.batches.has_between(begin, end)

    def ack(self, position: Position, words: Sequence[int] | None, layout: Layout) -> bool:
        """Acknowledge one entry, or the messages of its batch whose bits in ``words`` are 0.

        Returns:
            Whether the whole entry is acknowledged now and was not before. Entries outside the topic are ignored.
        """
        if self.contains(position) or not layout.contains(position):
            return False
        if words is not None and not self.batches.ack(position, words):
            return False
        self.batches.drop(position)
        self.entries.add(position.ledger_id, position.entry_id, position.entry_id)
        if position == layout.at_or_after(self.mark_delete.next()):
            self.advance(layout)
        return True

    def ack_all(self, positions: Sequence[Position], layout: Layout) -> int:
        """Acknowledge entries as a whole; returns the number of those that were not before.

        Consecutive entries are acknowledged together, unless a batch is acknowledged in part.
        """
        if len(self.batches):
            return sum(self.ack(position, None, layout) for position in positions)
        before = self.entries.count + layout.rank(self.mark_delete)
        for entries in consecutive(positions):
            self.ack_range(entries, layout)
        return self.entries.count + layout.rank(self.mark_delete) - before

    def ack_range(self, entries: LedgerRange, layout: Layout) -> bool:
        """Acknowledge consecutive entries of one ledger; those outside the topic are ignored.

        Returns:
            Whether anything changed.
        """
        ledger_id = entries.ledger_id
        first, last = max(entries.first, 0), min(entries.last, (layout.entries_of(ledger_id) or 0) - 1)
        if ledger_id == self.mark_delete.ledger_id:
            first = max(first, self.mark_delete.entry_id + 1)
        if first > last or ledger_id < self.mark_delete.ledger_id:
            return False
        if not self.entries.add(ledger_id, first, last):
            return False
        self.advance(layout)
        return True

    def ack_through(self, position: Position, words: Sequence[int] | None, layout: Layout) -> bool:
        """Acknowledge everything before ``position``, and that entry, or only some messages of its batch.

        Returns:
            Whether anything changed.

        Raises:
            InvalidPosition: The position is after the last entry.
        """
        if position > layout.last:
            raise InvalidPosition(f"cannot acknowledge {position}: the topic ends at {layout.last}")
        if words is not None and any(words):
            before = self.batches.words(position)
            changed = self._ack_all_through(position.previous(), layout)
            return self.ack(position, words, layout) or changed or self.batches.words(position) != before
        return self._ack_all_through(position, layout)

    def reset(self, position: Position, words: Sequence[int] | None = None) -> None:
        """Drop all acknowledgements and make the entry at ``position`` the first that is not acknowledged.

        Args:
            position: An entry, or the position of the next one to come.
            words: Messages of its batch that are not acknowledged; None: all.
        """
        self.mark_delete = position.previous()
        self.entries.clear()
        self.batches.clear()
        if words is not None and any(words):
            self.batches.ack(position, words)

    def drop_trimmed(self, layout: Layout) -> None:
        """Drop acknowledgements of ledgers that were removed from the topic."""
        before_first = Position(layout.first.ledger_id, -1)
        if before_first > self.mark_delete:
            self.entries.remove_through(before_first)
            self.batches.remove_through(before_first)
            self.advance(layout)

    def backlog(self, layout: Layout) -> int:
        """Number of entries that are not wholly acknowledged."""
        return layout.entries_between(self.mark_delete, layout.last) - self.entries.count

    def unacked(self, layout: Layout) -> Iterator[LedgerRange]:
        """The ranges of entries that are not acknowledged, in order."""
        for entries in layout.ranges(self.mark_delete.next()):
            first = entries.first
            while first <= entries.last:
                end = self.entries.end_of_range(Position(entries.ledger_id, first))
                if end is not None:
                    first = end + 1
                    continue
                last = min(self.entries.gap_end(Position(entries.ledger_id, first)), entries.last)
                yield LedgerRange(entries.ledger_id, first, last)
                first = last + 1

    def _ack_all_through(self, position: Position, layout: Layout) -> bool:
        count = layout.entries_of(position.ledger_id)
        if count is not None and position.entry_id >= count:  # entries to come are not acknowledged
            position = Position(position.ledger_id, count - 1)
        if position <= self.mark_delete:
            return False
        self.mark_delete = position
        self.advance(layout)
        return True

    def advance(self, layout: Layout) -> None:
        """Move the mark-delete position over acknowledged entries; needed after ``entries`` was filled directly."""
        while True:
            following = layout.at_or_after(self.mark_delete.next())
            end = None if following is None else self.entries.end_of_range(following)
            if following is None or end is None:
                break
            self.mark_delete = Position(following.ledger_id, end)
        self.entries.remove_through(self.mark_delete)
        self.batches.remove_through(self.mark_delete)
