"""The cursor of a subscription or reader: acknowledgements and read position in a topic.

Acknowledgements survive a restart; the read position starts again after the mark-delete position. After a restart no
acknowledged entry is delivered again unless its acknowledgement was not persisted yet. The mark-delete position is
never after an entry that is not acknowledged.
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
        name: Name of the subscription or reader, not encoded.
        reader: Reads the topic.
        record: Its first state.
    """

    durable = False
    """Whether it survives a restart and holds back trimming."""

    def __init__(self, name: str, reader: EntryReader, record: CursorRecord) -> None:
        self.name = name
        self._reader = reader
        self._lock = threading.RLock()
        self._acks = Acks(record.mark_delete)
        for ledger_id, first, last in record.ranges:
            self._acks.entries.add(ledger_id, first, last)
        for position, words in record.batches:
            self._acks.batches.ack(position, words)
        self._position_properties = dict(record.position_properties)
        self._properties = dict(record.properties)
        self._acks.advance(reader.layout)
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
        """Number of entries that are not wholly acknowledged."""
        with self._lock:
            layout = self._reader.layout
            self._acks.drop_trimmed(layout)
            return self._acks.backlog(layout)

    @property
    def individually_acked(self) -> tuple[tuple[int, int, int], ...]:
        """Acknowledged entries after the mark-delete position: ledger, first and last entry, both inclusive."""
        with self._lock:
            return tuple(self._acks.entries)

    def is_acked(self, position: Position) -> bool:
        """Whether the whole entry is acknowledged."""
        with self._lock:
            return self._acks.contains(position)

    def is_any_acked(self, ledger_id: int, first: int, last: int) -> bool:
        """Whether any of these entries, both ends inclusive, is acknowledged as a whole or in part."""
        with self._lock:
            return self._acks.is_any_acked(ledger_id, first, last)

    def ack_set(self, position: Position) -> tuple[int, ...] | None:
        """Java's words of a partly acknowledged batch, 1 = not acknowledged; None if no message of it is."""
        with self._lock:
            return self._acks.batches.words(position)

    def unacked(self) -> list[LedgerRange]:
        """The ranges of entries that are not acknowledged, in order."""
        with self._lock:
            return list(self._acks.unacked(self._reader.layout))

    def ack(self, acks: Sequence[tuple[Position, Sequence[int] | None]]) -> int:
        """Acknowledge single entries, or messages of their batches.

        Args:
            acks: Positions, each with None for the whole entry, or with words whose 0 bits are the messages.

        Returns:
            Number of entries that are wholly acknowledged now and were not before; entries outside the topic are
            ignored.
        """
        whole = 0
        changed = False
        with self._lock:
            layout = self._reader.layout
            if all(words is None for _, words in acks):
                whole = self._acks.ack_all([position for position, _ in acks], layout)
                changed = whole > 0
            else:
                for position, words in acks:
                    now_whole = self._acks.ack(position, words, layout)
                    whole += now_whole
                    changed = changed or now_whole or words is not None
        if changed:
            self._changed()
        return whole

    def ack_ranges(self, ranges: Iterable[LedgerRange]) -> None:
        """Acknowledge ranges of entries that cannot be delivered."""
        with self._lock:
            layout = self._reader.layout
            changed = [self._acks.ack_range(entries, layout) for entries in ranges]
        if any(changed):
            self._changed()

    def ack_through(
        self,
        position: Position,
        ack_set: Sequence[int] | None = None,
        position_properties: Mapping[str, int] | None = None,
    ) -> None:
        """Acknowledge everything up to ``position``; of its batch only messages whose bits in ``ack_set`` are 0.

        Args:
            position: An entry.
            ack_set: Java's words, 1 = not acknowledged.
            position_properties: Numbers to be stored with the position, in place of the last ones; None: keep those.

        Raises:
            InvalidPosition: The position is after the last entry.
        """
        with self._lock:
            changed = self._acks.ack_through(position, ack_set, self._reader.layout)
            if position_properties is not None and position_properties != self._position_properties:
                self._position_properties = dict(position_properties)
                changed = True
            self._read_position = max(self._read_position, self._acks.mark_delete.next())
        if changed:
            self._changed()

    def clear_backlog(self) -> None:
        """Acknowledge all entries."""
        self.ack_through(self._reader.layout.last)

    def reset(self, position: Position, ack_set: Sequence[int] | None = None) -> Position:
        """Make the entry at ``position`` the next to be read, and the first that is not acknowledged.

        Args:
            position: An entry; else the next entry is used; after the last entry, everything is acknowledged.
            ack_set: Messages of its batch that are not acknowledged, as Java's words; None: all.

        Returns:
            The new read position.
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
        """Drop acknowledgements of ledgers that were removed from the topic."""
        with self._lock:
            self._acks.drop_trimmed(self._reader.layout)

    # --- reading ------------------------------------------------------------------------------------------------------

    @property
    def read_position(self) -> Position:
        """The position from which :meth:`read` continues; it need not be that of an entry."""
        return self._read_position

    def read(self, max_entries: int, max_bytes: int) -> list[StoredEntry]:
        """The next entries that are not acknowledged; they are not read again until :meth:`rewind`.

        Raises:
            LedgerMissing: No copy of a ledger can be read.
            CorruptBlock: A stored entry is damaged.
        """
        while True:
            start = self._read_position
            found = self._reader.read(start, max_entries, max_bytes)
            with self._lock:
                if self._read_position != start:  # moved meanwhile: these entries are from another place
                    continue
                if not found:
                    return []
                self._read_position = found[-1].position.next()
                if fresh := [entry for entry in found if not self._acks.contains(entry.position)]:
                    return fresh

    def rewind(self) -> None:
        """Move the read position back to the first entry that is not acknowledged."""
        with self._lock:
            self._read_position = self._acks.mark_delete.next()

    # --- properties ---------------------------------------------------------------------------------------------------

    @property
    def properties(self) -> dict[str, str]:
        """The subscription's own properties."""
        with self._lock:
            return dict(self._properties)

    @property
    def position_properties(self) -> dict[str, int]:
        """Numbers stored with the last cumulative acknowledgement, as in Pulsar's ``PositionInfo``."""
        with self._lock:
            return dict(self._position_properties)

    def _changed(self, *, urgent: bool = False) -> None:
        """Called after every change, outside the lock.

        Args:
            urgent: Whether the cursor was moved back: if a crash lost that, entries would not be delivered again.
        """
