"""Durable cursors: states are written often, snapshots periodically; see :mod:`afterglow.ledger.cursor_store`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from afterglow.ledger.cursor import Cursor
from afterglow.ledger.cursor_codec import CursorRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from afterglow.errors import HotLogError
    from afterglow.ledger.cursor_store import CursorStore
    from afterglow.ledger.environment import Clock, Environment
    from afterglow.ledger.reader import EntryReader

_log = logging.getLogger(__name__)

_NEVER: Final = float("-inf")


class DurableCursor(Cursor):
    """A cursor that survives a restart. Thread-safe.

    At most one state is in flight at a time; later changes are in the next one. A busy subscription thus costs at most
    one state per group commit, and the configured rate per second.
    """

    durable = True

    def __init__(
        self, name: str, reader: EntryReader, record: CursorRecord, store: CursorStore, environment: Environment
    ) -> None:
        config = environment.config
        self._store = store
        self._clock: Clock = environment.clock
        self.limit_rate(config.managed_ledger_default_mark_delete_rate_limit)
        self._snapshot_interval_s = float(config.managed_ledger_cursor_position_flush_seconds)
        self._max_ranges = config.managed_ledger_max_unacked_ranges_to_persist
        self._max_batches = config.managed_ledger_max_batch_deleted_index_to_persist
        self._cursor_id = record.cursor_id
        self._sequence = record.sequence
        self._snapshot_sequence = record.sequence
        self._snapshot_at = self._clock.monotonic()
        self._put_at = _NEVER
        self._dirty = False
        self._putting = False
        self._again = False  # write once more as soon as the state in flight completes
        self._gone = False
        self._waiters: list[Callable[[HotLogError | None], None]] = []
        super().__init__(name, reader, record)

    def limit_rate(self, per_second: float) -> None:
        """Limit the states persisted per second from now on; 0: no limit."""
        self._interval_s = 1.0 / per_second if per_second > 0 else 0.0

    def flush(self, done: Callable[[HotLogError | None], None] | None = None) -> None:
        """Persist the newest state; ``done`` is called once it is durable or failed, possibly before this returns."""
        with self._lock:
            if done is not None:
                self._waiters.append(done)
            if self._putting:
                self._dirty = True
                return
            if not self._dirty:
                waiters, self._waiters = self._waiters, []
                record = None
            else:
                record = self._begin_put()
        if record is not None:
            self._put(record)
        else:
            for waiter in waiters:
                waiter(None)

    def tick(self) -> bool:
        """Persist a state that the rate limit held back; returns whether a snapshot is due."""
        now = self._clock.monotonic()
        with self._lock:
            due = self._dirty and not self._putting and now - self._put_at >= self._interval_s
            snapshot_due = (
                self._sequence != self._snapshot_sequence and now - self._snapshot_at >= self._snapshot_interval_s
            )
        if due:
            self.flush()
        return snapshot_due

    def snapshot(self) -> None:
        """Write the newest state both as snapshot and as state.

        Raises:
            MetadataError: The store failed; the snapshot may have been written.
        """
        with self._lock:
            self._snapshot_at = self._clock.monotonic()
            self._sequence += 1
            record = self._record()
        # The same sequence in both: the state wins then, since it is never truncated for its size.
        self._store.put_state(record, _logged)
        self._store.put_snapshot(record)
        with self._lock:
            self._snapshot_sequence = max(self._snapshot_sequence, record.sequence)

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Replace the subscription's properties, and write a snapshot.

        Raises:
            MetadataError: The store failed; the properties are as before, or unknown until the next snapshot.
        """
        with self._lock:
            before, self._properties = self._properties, dict(properties)
        try:
            self.snapshot()
        except Exception:
            with self._lock:
                self._properties = before
            raise

    def close(self) -> None:
        """Write a last snapshot if anything changed since the one before.

        Raises:
            MetadataError: The store failed; the state log has the state all the same.
        """
        with self._lock:
            changed = not self._gone and (self._dirty or self._sequence != self._snapshot_sequence)
            self._dirty = False
        if changed:
            self.snapshot()

    def abandon(self) -> None:
        """Stop persisting."""
        with self._lock:
            self._gone = True
            self._dirty = False

    def delete(self) -> None:
        """Delete the cursor.

        Raises:
            MetadataError: The store failed; the cursor may be gone.
        """
        self.abandon()
        self._store.delete()

    def _changed(self, *, urgent: bool = False) -> None:
        with self._lock:
            self._dirty = not self._gone
            due = not self._putting and self._clock.monotonic() - self._put_at >= self._interval_s
            self._again = self._again or (urgent and self._putting)
        if due or urgent:
            self.flush()

    def _begin_put(self) -> CursorRecord:
        self._dirty = self._again = False
        self._putting = True
        self._put_at = self._clock.monotonic()
        self._sequence += 1
        return self._record()

    def _put(self, record: CursorRecord) -> None:
        with self._lock:
            waiters, self._waiters = self._waiters, []

        def completed(error: HotLogError | None) -> None:
            with self._lock:
                self._putting = False
                if error is not None:
                    _logged(error)
                    self._dirty = not self._gone
                    self._again = False  # not at once: the next change or tick retries
                following = self._begin_put() if self._dirty and (self._waiters or self._again) else None
            for waiter in waiters:
                waiter(error)
            if following is not None:
                self._put(following)

        self._store.put_state(record, completed)

    def _record(self) -> CursorRecord:
        ranges = tuple(self._acks.entries)[: self._max_ranges]
        batches = tuple(self._acks.batches)[: self._max_batches]
        return CursorRecord(
            self._acks.mark_delete,
            ranges,
            batches,
            dict(self._position_properties),
            dict(self._properties),
            self._cursor_id,
            self._sequence,
        )


def _logged(error: HotLogError | None) -> None:
    if error is not None:
        _log.warning("the state of a cursor was not persisted, and will be with the next one: %s", error)
