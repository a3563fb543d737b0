"""The local hot log: durable ledgers below a home on the local disk.

* An append is acknowledged when it is synced to the journal: one journal and one sync for all ledgers.
* The files of ledgers are written in the background, and synced at checkpoints.
* A start after a crash replays the journals since the last checkpoint: no acknowledged entry is lost, no torn entry is
  served, and open ledgers are closed.
* If the disk is full, read-only or failing, appends and creations fail while the process and reads continue; they work
  again once the cause is removed.

One process writes a home at a time; others read it (:func:`~afterglow.hot.local.shared_ledger.open_shared`). The log is
not replicated: entries that the disk loses are lost.
"""

from __future__ import annotations

import logging
import uuid
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Self

from afterglow.errors import CorruptBlock, HotLogError, LedgerMissing
from afterglow.hot.local.checkpointer import Checkpointer
from afterglow.hot.local.commit import Committer
from afterglow.hot.local.disk import Disk
from afterglow.hot.local.flush_scheduler import FlushScheduler
from afterglow.hot.local.journal import created_section, deleted_section, state_section
from afterglow.hot.local.ledger import LocalLedger, LogComponents
from afterglow.hot.local.ledger_files import HEAD_BYTES, LedgerHead
from afterglow.hot.local.ledger_state import LedgerState, LedgerTable
from afterglow.hot.local.open_files import LedgerFile, OpenFiles
from afterglow.hot.local.paths import HotLogPaths, disk_error
from afterglow.hot.local.published_ends import PublishedEnds
from afterglow.hot.local.recovery import Recovery
from afterglow.hot.local.writeback import Writeback
from afterglow.hot.log import call_each

if TYPE_CHECKING:
    from pathlib import Path

    from afterglow.hot.log import Completion, Deliver

_log = logging.getLogger(__name__)
_MIB = 1 << 20


class LocalLog:
    """A :class:`~afterglow.hot.log.HotLog` with :class:`~afterglow.hot.log.KeyedState` on the local disk."""

    def __init__(
        self,
        home: Path,
        *,
        journal_max_bytes: int = 256 * _MIB,
        checkpoint_interval_ms: int = 60_000,
        flush_interval_ms: int = 100,
        max_open_files: int = 256,
        deliver: Deliver = call_each,
        disk: Disk | None = None,
    ) -> None:
        """Open a home, created if it is missing, and recover it after a crash.

        Args:
            home: The server's home; the log is in ``hot`` below it.
            journal_max_bytes: Size of a journal file that triggers a checkpoint (``journalMaxSizeMB``).
            checkpoint_interval_ms: Longest time between checkpoints (``flushInterval``).
            flush_interval_ms: Time after which other processes can read a confirmed entry.
            max_open_files: Limit of open files of ledgers.
            deliver: Calls the completions of a group commit, from the log's thread.
            disk: The calls to the operating system.

        Raises:
            HotLogError: The home is in use by another process, the disk fails, or an acknowledged entry cannot be
                recovered.
        """
        self._disk = disk = disk or Disk()
        self._paths = paths = HotLogPaths(home)
        self._book = book = LedgerTable()
        self._files = OpenFiles(disk, paths, max_open_files)
        self._writeback = Writeback(disk, paths, self._files, book)
        self._committer = Committer(
            disk,
            paths,
            book.lock,
            journal_max_bytes=journal_max_bytes,
            deliver=deliver,
            confirmed=self._writeback.add_unflushed,
        )
        self._components = LogComponents(disk, paths, self._files, book, self._writeback, self._committer)
        self._checkpointer = Checkpointer(self._components)
        self._background = FlushScheduler(
            self._committer,
            self._writeback,
            self._checkpointer,
            flush_interval_s=flush_interval_ms / 1000,
            checkpoint_interval_s=checkpoint_interval_ms / 1000,
        )
        with ExitStack() as held:
            try:
                self.instance = self._open(held)
                """The id of this hot log, as stored in ``hot/instance``."""
            except OSError as error:
                raise disk_error(error, f"the hot log at {paths.root} cannot be opened") from error
            self._held = held.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pending_bytes(self) -> int:
        """Bytes in memory: queued for the journal, or not yet in the files of ledgers."""
        return self._committer.pending_bytes + self._writeback.unflushed_bytes

    def create(self) -> LocalLedger:
        """A new, empty ledger.

        1. Choose an id; it is never reused.
        2. Record it in the journal. *Crash before it is durable: no ledger. After: an empty one.*
        3. Create its files.

        Raises:
            DiskFull: The disk has no space for it.
            HotLogError: The log cannot take a new ledger now.
        """
        with self._book.lock:
            self._refuse_closing()
            ledger = LedgerState(self._book.next_ledger_id)
            ledger.created = False
            self._book.next_ledger_id += 1
            self._book.active[ledger.ledger_id] = ledger
        try:
            self._committer.write(created_section(ledger.ledger_id), lambda: setattr(ledger, "created", True))
        except BaseException:
            with self._book.lock:
                del self._book.active[ledger.ledger_id]
            raise
        try:
            self._writeback.create(ledger)
        except OSError as error:
            self._remove(ledger.ledger_id)
            raise disk_error(error, f"cannot create the files of ledger {ledger.ledger_id}") from error
        with self._book.lock:
            self._book.ids.add(ledger.ledger_id)
        return LocalLedger(self._components, ledger)

    def open(self, ledger_id: int) -> LocalLedger:
        """An existing ledger.

        Raises:
            LedgerMissing: The ledger does not exist.
            CorruptBlock: Its file of offsets is damaged.
        """
        with self._book.lock:
            self._refuse_closing()
            if ledger_id not in self._book.ids:
                raise LedgerMissing(f"ledger {ledger_id} not found in {self._paths.ledgers}")
            ledger = self._book.active.get(ledger_id)
        if ledger is None:
            ledger = self._load(ledger_id)
        return LocalLedger(self._components, ledger)

    def delete(self, ledger_id: int) -> None:
        """Delete a ledger and its bytes, closing it first.

        1. Record the deletion in the journal. *Crash: the ledger exists or not.*
        2. Remove its files. *Crash: recovery removes them.*

        If the journal cannot be written, for which the deletion may have to free space, the files are removed all the
        same, and the record follows with the next group. *Crash before that: the ledger may come back, if it is younger
        than the last checkpoint.*

        Raises:
            HotLogError: Its files cannot be removed now; they will be before the next checkpoint.
        """
        with self._book.lock:
            self._refuse_closing()
            if ledger_id not in self._book.ids:
                return
            ledger = self._book.active.get(ledger_id)
        if ledger is not None:
            with suppress(HotLogError):  # a fence that is not durable does not matter any more
                LocalLedger(self._components, ledger).close()
        with self._book.lock:
            self._book.ids.discard(ledger_id)
        self._remove(ledger_id)

    def ledgers(self) -> tuple[int, ...]:
        """Ids of all ledgers, ascending."""
        with self._book.lock:
            return tuple(sorted(self._book.ids))

    def put_state(self, key: bytes, value: bytes | None, done: Completion) -> None:
        """Set the value of a key, or remove it with None; ``done`` is called when that is durable.

        Raises:
            HotLogError: The log is closed.
        """
        state = self._book.state

        def apply() -> None:
            if value is None:
                state.pop(key, None)
            else:
                state[key] = value

        with self._book.lock:
            self._refuse_closing()
        self._committer.submit(state_section(key, value), apply, done)

    def state(self) -> dict[bytes, bytes]:
        """All keys with their durable values, as of now."""
        with self._book.lock:
            return dict(self._book.state)

    def flush(self) -> None:
        """Make all confirmed entries readable by other processes now.

        Raises:
            HotLogError: A ledger cannot be written; its entries stay readable in this process.
        """
        self._writeback.flush()

    def checkpoint(self) -> None:
        """Make a checkpoint, so that a start need not replay entries that are confirmed now.

        Raises:
            HotLogError: The checkpoint failed; the last one stays valid, with its journals.
        """
        self._checkpointer.make(rotate=True)

    def close(self) -> None:
        """Close every open ledger, make a checkpoint if the disk permits, and release all resources.

        Closing twice is not an error.
        """
        with self._book.lock:
            if self._book.closing:
                return
            self._committer.refuse_own_thread()
            self._book.closing = True
            ledgers = list(self._book.active.values())
        for ledger in ledgers:
            with suppress(HotLogError):  # recovery closes it
                LocalLedger(self._components, ledger).close()
        self._background.stop()
        try:
            self._checkpointer.make(rotate=True)
        except HotLogError as error:
            _log.warning("%s; the next start replays the journal", error)
        with self._book.lock:
            self._book.closed = True
        self._held.close()

    # --- opening ----------------------------------------------------------------------------------------------------

    def _open(self, held: ExitStack) -> str:
        """Recover, and begin a journal; returns the instance id.

        1. Lock the home. Replay the journals (:mod:`afterglow.hot.local.recovery`). *Crash: repeated.*
        2. Begin a journal file after them. *Crash: repeated; the new file is replayed too.* The recovered entries are
           durable from here on.
        3. Close the ledgers; readers see that in their files. Create a table of published ends.
        """
        disk, paths = self._disk, self._paths
        for path in (paths.home, paths.root, paths.journals, paths.ledgers):
            if not path.is_dir():
                disk.make_directory(path)
                disk.sync_directory(path.parent)
        lock_file = disk.open(paths.lock, write=True, create=True)
        held.callback(disk.close, lock_file)
        if not disk.lock(lock_file):
            raise HotLogError(f"{paths.home} is in use by another process; stop that process, or use another home")
        held.callback(self._files.close)
        instance = self._identity()
        recovery = Recovery(disk, paths, self._book, self._writeback)
        start = recovery.replay()
        self._committer.start(recovery.newest_journal, start)
        held.callback(self._committer.stop)
        recovery.finish(start.carried)
        self._checkpointer.journal = recovery.journal
        published = self._writeback.published = PublishedEnds(disk, paths)
        held.callback(published.close)
        self._writeback.schedule_flush = self._background.schedule_flush
        self._committer.rotated = self._background.rotated
        self._background.start()
        return instance

    def _identity(self) -> str:
        """The instance id, created once."""
        try:
            with self._disk.opened(self._paths.instance) as file:
                return self._disk.read(file, 100, 0).decode("ascii").strip()
        except FileNotFoundError:
            pass
        instance = str(uuid.uuid4())
        draft = self._paths.instance.with_suffix(".new")
        with self._disk.opened(draft, write=True, create=True, empty=True) as file:
            self._disk.write(file, f"{instance}\n".encode("ascii"), 0)
            self._disk.sync(file)
        self._disk.rename(draft, self._paths.instance)
        self._disk.sync_directory(self._paths.root)
        return instance

    # --- ledgers ----------------------------------------------------------------------------------------------------

    def _load(self, ledger_id: int) -> LedgerState:
        """Load the state of a durably closed ledger from its file."""
        try:
            with self._files.use(ledger_id, LedgerFile.OFFSETS) as file:
                head = LedgerHead.decode(self._disk.read(file, HEAD_BYTES, 0))
        except FileNotFoundError as error:
            raise LedgerMissing(f"ledger {ledger_id} was deleted: {error}") from error
        except OSError as error:
            raise disk_error(error, f"cannot open ledger {ledger_id}") from error
        if head is None or not head.closed or head.ledger_id != ledger_id:
            raise CorruptBlock(f"the head of {self._paths.offsets(ledger_id)} is damaged; restore it from a copy")
        return LedgerState(ledger_id, head.entries, head.frame_bytes, closed=True)

    def _remove(self, ledger_id: int) -> None:
        schedule_delete = partial(self._writeback.schedule_delete, ledger_id)
        try:
            self._committer.write(deleted_section(ledger_id), schedule_delete, keep_on_failure=True)
        except HotLogError as error:
            _log.info("ledger %d is deleted before its deletion is recorded: %s", ledger_id, error)
            with self._book.lock:
                schedule_delete()
        try:
            self._writeback.finish_deletes()
        except OSError as error:
            raise disk_error(error, f"cannot remove the files of ledger {ledger_id}") from error

    def _refuse_closing(self) -> None:
        if self._book.closing:
            raise HotLogError(f"the hot log at {self._paths.root} is closed")
