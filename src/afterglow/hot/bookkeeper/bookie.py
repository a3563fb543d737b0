"""One bookie: its address, its connection, whether it answers batch reads, and the backoff after failures."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from afterglow.errors import AccessDenied, HotLogTimeout, HotLogUnavailable
from afterglow.hot.bookkeeper.connection import BookieConnection, RequestWindow
from afterglow.hot.bookkeeper.protocol import ReturnCode
from afterglow.pacing import Backoff, TokenBucket

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.hot.bookkeeper.connection import ReadLimits

_BACKOFF_S: Final = Backoff(0.5, 30.0)


class Bookie:
    """One bookie of the cluster. Thread-safe; connects on demand.

    Args:
        bookie_id: Its id, which need not be an address.
        resolve: Returns its present address, which may change when it restarts.
        limits: Limits of the load and of waits.
        total: The token bucket of all bookies; None: no limit.
    """

    def __init__(
        self,
        bookie_id: str,
        resolve: Callable[[str], tuple[str, int]],
        limits: ReadLimits,
        total: TokenBucket | None = None,
    ) -> None:
        self.bookie_id = bookie_id
        self._resolve = resolve
        self._limits = limits
        self._window = RequestWindow(limits.slow_s)
        own = None if limits.bookie_bytes_per_s is None else TokenBucket(limits.bookie_bytes_per_s)
        self._buckets = tuple(bucket for bucket in (own, total) if bucket is not None)
        self._lock = threading.Lock()
        self._connection: BookieConnection | None = None
        self._open: set[BookieConnection] = set()
        self._is_closed = False
        self._failures = 0
        self._usable_at = 0.0
        self._probe_lock = threading.Lock()
        self._has_batches: bool | None = None

    @property
    def is_usable(self) -> bool:
        """Whether it is connected or may be tried: it has not failed just now."""
        return time.monotonic() >= self._usable_at

    def connection(self) -> BookieConnection:
        """Return the connection; a new one after a failure.

        Raises:
            HotLogUnavailable: The bookie cannot be reached.
        """
        with self._lock:
            if self._connection is None or self._connection.error is not None:
                self._connection = self._connect()
            return self._connection

    def can_batch(self, ledger_id: int, entry_id: int) -> bool:
        """Whether it answers batch reads; the first call asks it, on a connection of its own.

        An older bookie resets the connection on a batch read, and so does one that requires authentication. A single
        read distinguishes them: it comes first, and after a reset again.

        Args:
            ledger_id: A ledger that it may hold.
            entry_id: An entry of the ledger.

        Raises:
            HotLogUnavailable: It cannot be reached.
            AccessDenied: It requires authentication.
        """
        with self._probe_lock:
            if self._has_batches is None:
                if not self.is_usable:
                    raise HotLogUnavailable(f"bookie {self.bookie_id} has failed just now; try again later")
                try:
                    self._has_batches = self._probe(ledger_id, entry_id)
                except HotLogUnavailable:
                    self._back_off(self._failures + 1)
                    raise
            return self._has_batches

    def close(self) -> None:
        """Close all connections; none is opened again."""
        with self._lock:
            self._is_closed = True
        for connection in list(self._open):
            connection.close()

    def _probe(self, ledger_id: int, entry_id: int) -> bool:
        connection = self._connect()
        try:
            if connection.read(ledger_id, entry_id).code == ReturnCode.UNAUTHORIZED:
                raise access_denied(self.bookie_id)
            connection.read(ledger_id, entry_id, 1, 1)
        except HotLogTimeout:
            raise
        except HotLogUnavailable:
            if not connection.has_answered:
                raise
        else:
            return True
        finally:
            connection.close()
        connection = self._connect()
        try:
            connection.read(ledger_id, entry_id)
        finally:
            connection.close()
        return False

    def _connect(self) -> BookieConnection:
        if self._is_closed:
            raise HotLogUnavailable(f"bookie {self.bookie_id} cannot be read: the client was closed; open another")
        try:
            address = self._resolve(self.bookie_id)
            connection = BookieConnection(
                self.bookie_id,
                address,
                self._limits,
                self._window,
                buckets=self._buckets,
                on_failure=self._on_failure,
            )
        except HotLogUnavailable:
            self._back_off(self._failures + 1)
            raise
        self._open.add(connection)
        if connection.error is not None:
            self._open.discard(connection)  # it has failed before it was added
        self._usable_at = 0.0
        return connection

    def _on_failure(self, connection: BookieConnection, batch_unanswered: bool) -> None:  # noqa: FBT001 - a callback
        self._open.discard(connection)
        if connection is not self._connection:
            return  # a probe, or closed by this process
        if batch_unanswered:
            self._has_batches = None  # it may have been replaced by an older one
        self._back_off(1 if connection.has_answered else self._failures + 1)

    def _back_off(self, failures: int) -> None:
        self._failures = failures
        self._usable_at = time.monotonic() + _BACKOFF_S.delay(failures)


def access_denied(bookie_id: str) -> AccessDenied:
    """Return the error for a bookie that requires authentication."""
    return AccessDenied(f"bookie {bookie_id} requires authentication, which is not supported; read through a broker")
