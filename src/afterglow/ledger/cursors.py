"""The cursors of one topic: durable ones by name, and those of readers."""

from __future__ import annotations

import logging
import secrets
import threading
from typing import TYPE_CHECKING
from weakref import WeakSet

from afterglow.errors import AfterglowError, CursorMissing, VersionConflict
from afterglow.ledger.cursor import Cursor
from afterglow.ledger.cursor_codec import CursorRecord
from afterglow.ledger.cursor_store import CursorStore
from afterglow.ledger.durable_cursor import DurableCursor
from afterglow.metadata.names import decode_name
from afterglow.metadata.paths import cursor_path, managed_ledger_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from afterglow.format.position import Position
    from afterglow.ledger.environment import Environment
    from afterglow.ledger.layout import Layout
    from afterglow.ledger.reader import EntryReader
    from afterglow.ledger.topic_metadata import TopicMetadata

_log = logging.getLogger(__name__)


class Cursors:
    """Durable cursors by name, and unnamed cursors of readers. Thread-safe.

    Args:
        ledger_name: The topic's managed-ledger name.
        environment: Metadata store, states, settings.
        topic: The topic's metadata.
        reader: Reads the topic.
    """

    def __init__(self, ledger_name: str, environment: Environment, topic: TopicMetadata, reader: EntryReader) -> None:
        self._ledger_name = ledger_name
        self._environment = environment
        self._topic = topic
        self._reader = reader
        self._changing = threading.RLock()
        """Held while a cursor is created or deleted, which waits for metadata."""
        self._lock = threading.Lock()
        """Guards the fields below. Held for moments only, since an event loop takes it."""
        self._durable: dict[str, DurableCursor] = {}
        self._readers: WeakSet[Cursor] = WeakSet()
        self._rate = environment.config.managed_ledger_default_mark_delete_rate_limit

    def load(self) -> None:
        """Open every durable cursor that is in metadata.

        Raises:
            MetadataError: The store failed.
            CorruptMetadata: A cursor does not parse.
        """
        names = self._environment.metadata.children(managed_ledger_path(self._ledger_name))
        with self._changing:
            for name in map(decode_name, names):
                self._open(name)

    @property
    def durable(self) -> Mapping[str, DurableCursor]:
        """The durable cursors by name, as of now."""
        with self._lock:
            return dict(self._durable)

    def limit_rate(self, per_second: float) -> None:
        """Limit the states that each cursor persists per second from now on; 0: no limit."""
        with self._lock:
            self._rate = per_second
            for cursor in self._durable.values():
                cursor.limit_rate(per_second)

    def get(self, name: str) -> DurableCursor:
        """A durable cursor.

        Raises:
            CursorMissing: No cursor has that name.
        """
        with self._lock:
            if name not in self._durable:
                raise CursorMissing(f"cursor {name!r} of {self._ledger_name} not found")
            return self._durable[name]

    def create(self, name: str, start: Position, properties: Mapping[str, str] | None = None) -> DurableCursor:
        """A durable cursor; created if it is missing, else unchanged. Waits for metadata.

        Args:
            name: Name of the subscription, not encoded.
            start: The first entry that a new cursor reads; ``EARLIEST`` and ``LATEST`` mean the ends of the topic.
            properties: Properties of a new cursor.

        Raises:
            InvalidName: The name is not well-formed.
            MetadataError: The store failed; the cursor may exist.
        """
        with self._changing:
            if (known := self.durable.get(name)) is not None:
                return known
            store = self._store(name)
            record = CursorRecord(
                _before(start, self._reader.layout),
                properties=dict(properties or {}),
                cursor_id=secrets.randbits(63),
                sequence=1,
            )
            try:
                store.create(record)
            except VersionConflict:  # created by an earlier attempt with an unknown outcome
                return self._open(name)
            return self._add(name, record, store)

    def delete(self, name: str) -> None:
        """Delete a durable cursor. Waits for metadata.

        Raises:
            CursorMissing: No cursor has that name.
            MetadataError: The store failed; the cursor may be missing after a restart.
        """
        with self._changing:
            self.get(name).delete()
            with self._lock:
                del self._durable[name]

    def create_reader(self, name: str, start: Position) -> Cursor:
        """A cursor in memory only. It does not hold back trimming, and needs no deletion: it is weakly referenced.

        Args:
            name: For messages; need not be unique.
            start: The first entry to read; ``EARLIEST`` and ``LATEST`` mean the ends of the topic.
        """
        cursor = Cursor(name, self._reader, CursorRecord(_before(start, self._reader.layout)))
        with self._lock:
            self._readers.add(cursor)
        return cursor

    @property
    def readers(self) -> tuple[Cursor, ...]:
        """The cursors in memory that are still referenced."""
        with self._lock:
            return tuple(self._readers)

    def mark_deletes(self) -> list[Position]:
        """The mark-delete positions of the durable cursors. Entries after the lowest must be kept."""
        return [cursor.mark_delete for cursor in self.durable.values()]

    def drop_trimmed(self) -> None:
        """Drop acknowledgements of ledgers that were removed from the topic."""
        for cursor in (*self.durable.values(), *self.readers):
            cursor.drop_trimmed()

    def tick(self) -> None:
        """Persist states that the rate limit held back, and snapshots that are due. May wait for metadata."""
        for cursor in self.durable.values():
            if cursor.tick():
                try:
                    cursor.snapshot()
                except AfterglowError as error:
                    _log.warning("snapshot of cursor %r of %s failed: %s", cursor.name, self._ledger_name, error)

    def close(self) -> None:
        """Persist last snapshots. Failures are logged: the state log has the state."""
        for cursor in self.durable.values():
            try:
                cursor.close()
            except AfterglowError as error:
                _log.warning("last snapshot of cursor %r of %s failed: %s", cursor.name, self._ledger_name, error)

    def abandon(self) -> None:
        """Stop persisting: the topic is being deleted."""
        for cursor in self.durable.values():
            cursor.abandon()

    def _open(self, name: str) -> DurableCursor:
        store = self._store(name)
        return self._add(name, store.load(), store)

    def _add(self, name: str, record: CursorRecord, store: CursorStore) -> DurableCursor:
        cursor = DurableCursor(name, self._reader, record, store, self._environment)
        with self._lock:
            cursor.limit_rate(self._rate)
            self._durable[name] = cursor
        return cursor

    def _store(self, name: str) -> CursorStore:
        return CursorStore(cursor_path(self._ledger_name, name), self._environment, self._topic)


def _before(start: Position, layout: Layout) -> Position:
    """The mark-delete position of a cursor whose first entry to read is ``start``."""
    found = layout.at_or_after(start)
    return layout.last if found is None else found.previous()
