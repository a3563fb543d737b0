"""A cursor: how far one subscription or reader has come in a topic.

What is acknowledged and what is to be read next are kept apart: the first survives a restart, the second begins behind
it again. After a restart nothing that was acknowledged comes back except what was not yet persisted; a mark-delete
position never stands behind anything that was not acknowledged.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from afterglow.ledger.acks import Acks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from afterglow.format.position import LedgerRange, Position
    from afterglow.ledger.cursor_codec import CursorRecord
    from afterglow.ledger.reader import EntryReader, StoredEntry


class Cursor:
    """A cursor, in memory only. Thread-safe.

    Args:
        name: Of the subscription or reader, not encoded.
        reader: Reads the topic.
        record: Where it begins.
    """

    durable = False
    """Whether it survives a restart, and holds back trimming."""

    def __init__(self, name: str, reader: EntryReader, record: CursorRecord) -> None:
        self.name = name
        self._reader = reader
        self._lock = threading.RLock()
        self._acks = Acks(record.mark_delete)
        for ledger_id, first, last in record.ranges:
            self._acks.entries.add(ledger_id, first, last)
        for position, words in record.batches:
            self._acks.batches.ack(position, words)
        self._positions = dict(record.positions)
        self._properties = dict(record.properties)
        self._acks.settle(reader.layout)
        self._read_position = self._acks.mark_delete.next()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, mark_delete={self.mark_delete}, read={self.read_position})"

    # --- acknowledgements ---------------------------------------------------------------------------------------------

    @property
    def mark_delete(self) -> Position:
        """Everything up to here is acknowledged, inclusive."""
        return self._acks.mark_delete

    @property
    def backlog(self) -> int:
        """Entries that are not acknowledged as a whole."""
        with self._lock:
            layout = self._reader.layout
            self._acks.drop_trimmed(layout)
            return self._acks.backlog(layout)

    @property
    def individually_acked(self) -> tuple[tuple[int, int, int], ...]:
        """Acknowledged entries behind the mark-delete position: ledger, first and last entry, both inclusive."""
        with self._lock:
            return tuple(self._acks.entries)

    def is_acked(self, position: Position) -> bool:
        """Whether the whole entry is acknowledged."""
        with self._lock:
            return self._acks.contains(position)

    def ack_set(self, position: Position) -> tuple[int, ...] | None:
        """Java's words of a partly acknowledged batch, 1 = not acknowledged; None where nothing of it is."""
        with self._lock:
            return self._acks.batches.words(position)

    def unacked(self) -> list[LedgerRange]:
        """Every stretch of entries that are not acknowledged, in order."""
        with self._lock:
            return list(self._acks.unacked(self._reader.layout))

    def ack(self, acks: Iterable[tuple[Position, Sequence[int] | None]]) -> int:
        """Acknowledge single entries, or messages of their batches.

        Args:
            acks: Positions, each with None for the whole entry, or with words whose 0 bits are the messages.

        Returns:
            How many entries are acknowledged as a whole now and were not before. What is not in the topic is ignored.
        """
        whole = 0
        changed = False
        with self._lock:
            layout = self._reader.layout
            for position, words in acks:
                now_whole = self._acks.ack(position, words, layout)
                whole += now_whole
                changed = changed or now_whole or words is not None
        if changed:
            self._changed()
        return whole

    def ack_ranges(self, spans: Iterable[LedgerRange]) -> None:
        """Acknowledge whole stretches of entries: those that nobody can be given."""
        with self._lock:
            layout = self._reader.layout
            changed = [self._acks.ack_range(span, layout) for span in spans]
        if any(changed):
            self._changed()

    def ack_through(
        self,
        position: Position,
        ack_set: Sequence[int] | None = None,
        positions: Mapping[str, int] | None = None,
    ) -> None:
        """Acknowledge everything up to ``position``; of its batch only the messages whose bits are 0, if given.

        Args:
            position: An entry.
            ack_set: Java's words, 1 = not acknowledged.
            positions: Numbers to be kept with it, in place of the last ones; None: those stay.

        Raises:
            InvalidPosition: The position is behind the last entry.
        """
        with self._lock:
            changed = self._acks.ack_through(position, ack_set, self._reader.layout)
            if positions is not None and positions != self._positions:
                self._positions = dict(positions)
                changed = True
            self._read_position = max(self._read_position, self._acks.mark_delete.next())
        if changed:
            self._changed()

    def clear_backlog(self) -> None:
        """Acknowledge everything that is there."""
        self.ack_through(self._reader.layout.last)

    def reset(self, position: Position, ack_set: Sequence[int] | None = None) -> Position:
        """Make the entry at ``position`` the next to be read, and the first that is not acknowledged.

        Args:
            position: An entry; where there is none, the one after it counts; behind the last, all is acknowledged.
            ack_set: Which messages of its batch are not acknowledged, as Java's words; None: all.

        Returns:
            What will be read next.
        """
        with self._lock:
            layout = self._reader.layout
            found = layout.at_or_after(position)
            target = layout.last.next() if found is None else found
            self._acks.reset(target, ack_set if target == position else None)
            self._read_position = target
        self._changed(urgent=True)
        return target

    def drop_trimmed(self) -> None:
        """Forget what is known of ledgers that have left the topic."""
        with self._lock:
            self._acks.drop_trimmed(self._reader.layout)

    # --- reading ------------------------------------------------------------------------------------------------------

    @property
    def read_position(self) -> Position:
        """What :meth:`read` looks at next; an entry need not stand there."""
        return self._read_position

    def has_more(self) -> bool:
        """Whether :meth:`read` would find an entry, acknowledged or not."""
        return self._reader.layout.at_or_after(self._read_position) is not None

    def read(self, max_entries: int, max_bytes: int) -> list[StoredEntry]:
        """The next entries that are not acknowledged; they are not read again until :meth:`rewind`.

        Raises:
            LedgerMissing: No copy of a ledger can be read.
            CorruptBlock: What is stored is damaged.
        """
        while True:
            start = self._read_position
            found = self._reader.read(start, max_entries, max_bytes)
            with self._lock:
                if self._read_position != start:  # moved meanwhile: what was read belongs to another place
                    continue
                if not found:
                    return []
                self._read_position = found[-1].position.next()
                if fresh := [entry for entry in found if not self._acks.contains(entry.position)]:
                    return fresh

    def rewind(self) -> None:
        """Read again from the first entry that is not acknowledged."""
        with self._lock:
            self._read_position = self._acks.mark_delete.next()

    # --- properties ---------------------------------------------------------------------------------------------------

    @property
    def properties(self) -> dict[str, str]:
        """The subscription's own properties."""
        with self._lock:
            return dict(self._properties)

    @property
    def positions(self) -> dict[str, int]:
        """Numbers that came with the last acknowledgement."""
        with self._lock:
            return dict(self._positions)

    def _changed(self, *, urgent: bool = False) -> None:
        """Called after every change, outside the lock.

        Args:
            urgent: Whether the change goes back: a crash that forgot it would keep entries from being read again.
        """
