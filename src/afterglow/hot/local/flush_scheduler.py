"""The background thread that flushes ledgers and makes checkpoints on schedule."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from afterglow.errors import HotLogError

if TYPE_CHECKING:
    from afterglow.hot.local.checkpointer import Checkpointer
    from afterglow.hot.local.commit import Committer
    from afterglow.hot.local.writeback import Writeback

_log = logging.getLogger(__name__)

_URGENT_BYTES = 16 << 20  # unflushed bytes that trigger a round at once
_PAUSE_FACTOR = 4  # rounds take at most a fifth of the time: with very many ledgers they are less frequent
_RETRY_S = 1.0  # between attempts while the disk fails


class FlushScheduler:
    """Schedules rounds of the write-back and checkpoints."""

    def __init__(
        self,
        committer: Committer,
        writeback: Writeback,
        checkpointer: Checkpointer,
        *,
        flush_interval_s: float,
        checkpoint_interval_s: float,
    ) -> None:
        self._committer = committer
        self._writeback = writeback
        self._checkpointer = checkpointer
        self._flush_interval_s = flush_interval_s
        self._checkpoint_interval_s = checkpoint_interval_s
        self._wake = threading.Condition(committer.lock)
        self._stopping = False
        self._pause_s = flush_interval_s
        self._flush_at: float | None = None
        self._checkpoint_at = 0.0
        self._rotated = False
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="afterglow-writeback", daemon=True)

    def start(self) -> None:
        """Start the thread; it begins with a checkpoint of the recovered state."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; unflushed entries stay in memory and in the journal."""
        with self._committer.lock:
            self._stopping = True
            self._wake.notify()
        self._thread.join()

    def schedule_flush(self) -> None:
        """Schedule a round, at once if many bytes are unflushed. The lock is held."""
        if self._flush_at is None:
            self._flush_at = time.monotonic() + self._pause_s
            self._wake.notify()
        elif self._writeback.unflushed_bytes >= _URGENT_BYTES and not self._failing:
            self._flush_at = 0.0
            self._wake.notify()

    def rotated(self) -> None:
        """Schedule a checkpoint, because a journal file was full. The lock is held."""
        self._rotated = True
        self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._committer.lock:
                while not self._stopping and (wait_s := self._wait_s()) > 0:
                    self._wake.wait(wait_s)
                if self._stopping:
                    return
                checkpoint = self._rotated or time.monotonic() >= self._checkpoint_at
            try:
                if checkpoint:
                    self._checkpoint()
                else:
                    self._flush()
            except Exception:  # noqa: BLE001 - the thread must not end: memory would fill up unnoticed
                _log.exception("the hot log failed to flush; it will retry")
                self._retry_later()

    def _wait_s(self) -> float:
        now = time.monotonic()
        if self._rotated:
            return 0.0
        at = self._checkpoint_at if self._flush_at is None else min(self._flush_at, self._checkpoint_at)
        return at - now

    def _flush(self) -> None:
        with self._committer.lock:
            self._flush_at = None
        start = time.monotonic()
        try:
            self._writeback.flush()
        except HotLogError as error:
            self._log_failure(error)
        else:
            self._failing = False
        self._pause_s = max(self._flush_interval_s, _PAUSE_FACTOR * (time.monotonic() - start))

    def _flush_if_due(self) -> None:
        at = self._flush_at
        if at is not None and time.monotonic() >= at:
            self._flush()

    def _checkpoint(self) -> None:
        with self._committer.lock:
            full, self._rotated = self._rotated, False
            self._checkpoint_at = time.monotonic() + self._checkpoint_interval_s
        if not full and self._committer.fresh and self._checkpointer.journal == self._committer.number:
            return  # nothing changed since the last one
        try:
            self._checkpointer.make(rotate=not full, between=self._flush_if_due)
        except HotLogError as error:
            self._log_failure(error)

    def _log_failure(self, error: HotLogError) -> None:
        """Log the first of several failures, and schedule a retry."""
        if not self._failing:
            _log.warning("%s; the journal has everything, and the flush is retried", error)
        self._failing = True
        self._retry_later()

    def _retry_later(self) -> None:
        with self._committer.lock:
            self._flush_at = time.monotonic() + _RETRY_S
            self._checkpoint_at = min(self._checkpoint_at, self._flush_at)
