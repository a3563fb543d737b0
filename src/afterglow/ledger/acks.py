"""What of a topic is acknowledged: everything up to the mark-delete position, single entries, parts of batches.

Nothing here knows how it is stored. The mark-delete position runs ahead only over entries that are acknowledged, also
from one ledger to the next; it never skips an entry of the layout that is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from afterglow.errors import InvalidPosition
from afterglow.format.position import Position
from afterglow.ledger.batch_acks import BatchAcks
from afterglow.ledger.layout import Span
from afterglow.ledger.ranges import EntryRanges

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from afterglow.ledger.layout import Layout


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

    def ack(self, position: Position, words: Sequence[int] | None, layout: Layout) -> bool:
        """Acknowledge one entry, or the messages of its batch whose bits in ``words`` are 0.

        Returns:
            Whether the entry is acknowledged as a whole now and was not before. What is not in the topic is ignored.
        """
        if self.contains(position) or not layout.contains(position):
            return False
        if words is not None and not self.batches.ack(position, words):
            return False
        self.batches.forget(position)
        self.entries.add(position.ledger_id, position.entry_id, position.entry_id)
        if position == layout.at_or_after(self.mark_delete.next()):
            self._advance(layout)
        return True

    def ack_span(self, span: Span, layout: Layout) -> bool:
        """Acknowledge a stretch of entries of one ledger; what of it is not in the topic is ignored.

        Returns:
            Whether anything changed.
        """
        first, last = span.first, min(span.last, (layout.entries_of(span.ledger_id) or 0) - 1)
        if span.ledger_id == self.mark_delete.ledger_id:
            first = max(first, self.mark_delete.entry_id + 1)
        if first > last or span.ledger_id < self.mark_delete.ledger_id:
            return False
        if not self.entries.add(span.ledger_id, first, last):
            return False
        self._advance(layout)
        return True

    def ack_through(self, position: Position, words: Sequence[int] | None, layout: Layout) -> bool:
        """Acknowledge everything before ``position``, and that entry too, or only a part of its batch.

        Returns:
            Whether anything changed.

        Raises:
            InvalidPosition: The position is behind the last entry.
        """
        if position > layout.last:
            raise InvalidPosition(f"{position} cannot be acknowledged: the topic ends at {layout.last}")
        if words is not None and any(words):
            before = self.batches.words(position)
            changed = self._ack_all_through(position.previous(), layout)
            return self.ack(position, words, layout) or changed or self.batches.words(position) != before
        return self._ack_all_through(position, layout)

    def reset(self, position: Position, words: Sequence[int] | None = None) -> None:
        """Forget everything: the entry at ``position`` is the first that is not acknowledged.

        Args:
            position: An entry, or where one will be.
            words: Which messages of its batch are not acknowledged; None: all.
        """
        self.mark_delete = position.previous()
        self.entries.clear()
        self.batches.clear()
        if words is not None and any(words):
            self.batches.ack(position, words)

    def trimmed(self, layout: Layout) -> None:
        """Forget what is known of ledgers that have left the topic."""
        before_first = Position(layout.first.ledger_id, -1)
        if before_first > self.mark_delete:
            self.entries.remove_through(before_first)
            self.batches.remove_through(before_first)
            self._advance(layout)

    def settle(self, layout: Layout) -> None:
        """Let the mark-delete position run ahead as far as it can; needed once after the parts were filled in."""
        self._advance(layout)

    def backlog(self, layout: Layout) -> int:
        """How many entries are not acknowledged as a whole."""
        return layout.entries_between(self.mark_delete, layout.last) - self.entries.count

    def unacked(self, layout: Layout) -> Iterator[Span]:
        """Every stretch of entries that are not acknowledged, in order."""
        for span in layout.spans(self.mark_delete.next()):
            first = span.first
            while first <= span.last:
                end = self.entries.end_of_run(Position(span.ledger_id, first))
                if end is not None:
                    first = end + 1
                    continue
                last = min(self.entries.gap_end(Position(span.ledger_id, first)), span.last)
                yield Span(span.ledger_id, first, last)
                first = last + 1

    def _ack_all_through(self, position: Position, layout: Layout) -> bool:
        count = layout.entries_of(position.ledger_id)
        if count is not None and position.entry_id >= count:  # not what the ledger will hold later
            position = Position(position.ledger_id, count - 1)
        if position <= self.mark_delete:
            return False
        self.mark_delete = position
        self._advance(layout)
        return True

    def _advance(self, layout: Layout) -> None:
        while True:
            following = layout.at_or_after(self.mark_delete.next())
            end = None if following is None else self.entries.end_of_run(following)
            if following is None or end is None:
                break
            self.mark_delete = Position(following.ledger_id, end)
        self.entries.remove_through(self.mark_delete)
        self.batches.remove_through(self.mark_delete)
