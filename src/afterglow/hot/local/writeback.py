"""Write-back: confirmed entries go from memory to the files of their ledgers, in the background.

A round writes the entries of some 100 ms: for each ledger one write of frames and one of offsets, and one write for all
that publishes their new ends. So a ledger costs two writes in a round however many group commits it was in, and
published entries are always written. Entries that are not flushed yet are read from memory.

A ledger whose files cannot be written takes no more entries: its unflushed entries stay in memory and in the journal,
and are retried in each round.
"""

from __future__ import annotations

import threading
from itertools import accumulate, chain, islice
from typing import TYPE_CHECKING

import numpy as np

from afterglow.hot.local.ledger_files import LedgerHead, end_offset
from afterglow.hot.local.ledger_state import NO_SLOT, UnflushedFrames
from afterglow.hot.local.open_files import LedgerFile
from afterglow.hot.local.paths import disk_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.errors import HotLogError
    from afterglow.hot.local.disk import Disk
    from afterglow.hot.local.ledger_state import LedgerState, LedgerTable
    from afterglow.hot.local.open_files import OpenFiles
    from afterglow.hot.local.paths import HotLogPaths
    from afterglow.hot.local.published_ends import PublishedEnds


class Writeback:
    """The writer of ledger files. Rounds do not overlap."""

    def __init__(self, disk: Disk, paths: HotLogPaths, files: OpenFiles, book: LedgerTable) -> None:
        self.published: PublishedEnds | None = None
        """The table of published ends; None during recovery."""
        self.unflushed_bytes = 0
        """Bytes that only the journal and memory have."""
        self.schedule_flush: Callable[[], None] = lambda: None
        """Called with the lock held when there is something to flush."""
        self._disk = disk
        self._paths = paths
        self._files = files
        self._book = book
        self._lock = book.lock
        self._round = threading.RLock()
        self._unflushed: list[LedgerState] = []
        self._ending: list[LedgerState] = []
        self._pending_deletes: set[int] = set()

    def add_unflushed(self, ledgers: list[LedgerState], frame_bytes: int) -> None:
        """Flush these ledgers in the next round. The lock is held."""
        self._unflushed += ledgers
        self.unflushed_bytes += frame_bytes
        self.schedule_flush()

    def add_ending(self, ledger: LedgerState) -> None:
        """Mark a ledger's file as closed once all its entries are written. The lock is held."""
        ledger.ending = True
        self._ending.append(ledger)
        self.schedule_flush()

    def create(self, ledger: LedgerState) -> None:
        """Create a ledger's files, or reuse those that a crash left.

        Raises:
            OSError: They cannot be created.
        """
        with self._round:
            if self.published is not None:
                ledger.slot = self.published.take()
                self.published.set(ledger.slot, ledger.ledger_id, 0, 0)
            for path in (self._paths.frames(ledger.ledger_id), self._paths.offsets(ledger.ledger_id)):
                self._disk.close(self._disk.open(path, write=True, create=True))
            self._write_head(ledger, closed=False)
            if self.published is not None:
                self.published.publish()
            with self._lock:
                ledger.unsynced = True

    def flush(self) -> None:
        """Run one round.

        1. For each ledger, write its frames, then its offsets. *Crash: the journal has them.*
        2. Mark closed ledgers in their files.
        3. Publish the ends of all.

        Raises:
            HotLogError: Some of it failed, and will be retried.
        """
        with self._round:
            with self._lock:
                unflushed, self._unflushed = self._unflushed, []
                ending, self._ending = self._ending, []
            failure: HotLogError | None = None
            for ledger in unflushed:
                try:
                    self._flush(ledger)
                except OSError as error:
                    failure = disk_error(error, f"cannot write ledger {ledger.ledger_id}")
                    with self._lock:
                        ledger.closed = True
                        self._unflushed.append(ledger)
            for ledger in ending:
                try:
                    self._close(ledger)
                except OSError as error:
                    failure = disk_error(error, f"cannot close ledger {ledger.ledger_id}")
                    with self._lock:
                        self._ending.append(ledger)
            if self.published is not None:
                try:
                    self.published.publish()
                except OSError as error:
                    failure = disk_error(error, f"cannot write {self._paths.published}")
            if failure is not None:
                raise failure

    def schedule_delete(self, ledger_id: int) -> None:
        """Remove a ledger's files, at the latest before the next checkpoint. The lock is held."""
        self._pending_deletes.add(ledger_id)

    def finish_deletes(self) -> None:
        """Remove the files of pending deletes: the frames first, since a ledger exists by its frames.

        Raises:
            OSError: A file could not be removed; its ledger stays pending.
        """
        with self._round:
            for ledger_id in list(self._pending_deletes):
                self._drop(ledger_id)
                self._disk.unlink(self._paths.frames(ledger_id))
                self._disk.unlink(self._paths.offsets(ledger_id))
                self._files.close_ledger(ledger_id)  # after the unlink: open files would keep their space
                with self._lock:
                    self._pending_deletes.discard(ledger_id)

    def end(self, ledger: LedgerState) -> None:
        """Close a ledger that a crash left open: truncate its files after its last entry.

        Raises:
            OSError: They cannot be written.
        """
        with self._files.use(ledger.ledger_id, LedgerFile.FRAMES, write=True) as file:
            self._disk.truncate(file, ledger.flushed_bytes)
        with self._files.use(ledger.ledger_id, LedgerFile.OFFSETS, write=True) as file:
            self._disk.truncate(file, end_offset(ledger.flushed_entries))
        self._close(ledger)

    def write_offsets(self, ledger_id: int, first: int, start: int, sizes: list[int]) -> None:
        """Write the end offsets of frames, of which the first is that of entry ``first`` at offset ``start``.

        Raises:
            OSError: The file cannot be written.
        """
        ends = np.fromiter(islice(accumulate(sizes, initial=start), 1, None), "<i8", len(sizes))
        with self._files.use(ledger_id, LedgerFile.OFFSETS, write=True) as file:
            self._disk.write(file, ends.tobytes(), end_offset(first))

    def write_frames(self, ledger_id: int, frames: list[memoryview], start: int) -> None:
        """Write frames at their offset in a ledger's file.

        Raises:
            OSError: The file cannot be written.
        """
        with self._files.use(ledger_id, LedgerFile.FRAMES, write=True) as file:
            self._disk.write_buffers(file, frames, start)

    def write_head(self, ledger: LedgerState) -> None:
        """Write the head again.

        Raises:
            OSError: The file cannot be written.
        """
        self._write_head(ledger, closed=ledger.head_closed)

    def _drop(self, ledger_id: int) -> None:
        """Drop a ledger from the table."""
        with self._lock:
            ledger = self._book.active.pop(ledger_id, None)
            if ledger is None:
                return
            self.unflushed_bytes -= sum(len(part.frames) for part in ledger.tail)
            ledger.tail.clear()
        self._release_slot(ledger)

    def _release_slot(self, ledger: LedgerState) -> None:
        if self.published is not None and ledger.slot != NO_SLOT:
            self.published.release(ledger.slot)
            ledger.slot = NO_SLOT

    def _flush(self, ledger: LedgerState) -> None:
        with self._lock:
            buffers = list(ledger.tail)
        if not buffers:
            return  # deleted meanwhile
        sizes = list(chain.from_iterable(part.sizes for part in buffers))
        frames = [part.frames for part in buffers]
        frame_bytes = sum(map(len, frames))
        try:
            self.write_frames(ledger.ledger_id, frames, ledger.flushed_bytes)
            self.write_offsets(ledger.ledger_id, ledger.flushed_entries, ledger.flushed_bytes, sizes)
        except OSError:
            # The frames are views of whole groups, which keep the entries of every ledger in memory: copy them.
            with self._lock:
                ledger.tail[: len(buffers)] = [UnflushedFrames(buffers[0].first, sizes, memoryview(b"".join(frames)))]
            raise
        with self._lock:
            ledger.flushed(len(buffers), len(sizes), frame_bytes)
            self.unflushed_bytes -= frame_bytes
            if ledger.tail:
                self._unflushed.append(ledger)
        if self.published is not None and ledger.slot != NO_SLOT:
            self.published.set(ledger.slot, ledger.ledger_id, ledger.flushed_entries, ledger.flushed_bytes)

    def _close(self, ledger: LedgerState) -> None:
        with self._lock:
            if ledger.tail or not ledger.settled:
                self._ending.append(ledger)  # in a later round
                return
            if ledger.ledger_id not in self._book.active:
                return  # deleted meanwhile
        self._write_head(ledger, closed=True)
        with self._lock:
            ledger.head_closed = True
            ledger.unsynced = True
        self._release_slot(ledger)

    def _write_head(self, ledger: LedgerState, *, closed: bool) -> None:
        end = (ledger.flushed_entries, ledger.flushed_bytes) if closed else (0, 0)
        head = LedgerHead(ledger.ledger_id, ledger.slot, closed, *end)
        with self._files.use(ledger.ledger_id, LedgerFile.OFFSETS, write=True) as file:
            self._disk.write(file, head.encode(), 0)
