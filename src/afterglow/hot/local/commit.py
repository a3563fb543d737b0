"""Group commit: one thread, one journal, one sync for everything that all ledgers have queued.

An append only queues. The thread takes all queued entries, writes them as one batch, syncs once, and calls the
completions. While it syncs, the next group gathers: the slower the disk, the larger the groups. Beyond its bytes, a
group costs a constant and some microseconds for each ledger in it.

**After a failed write or sync** the file is abandoned; the group and everything queued after it fails; the ledgers in
it are fenced at their last confirmed entry; ledgers with nothing in flight are not affected. The next group begins a
new file, whose header voids what the old one may hold of the failed group. Until that is possible every group fails in
the same way, and the process continues.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from afterglow.errors import HotLogError
from afterglow.hot.local.journal import SECTION, JournalFile, JournalStart, SectionKind
from afterglow.hot.local.paths import disk_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.hot.local.disk import Disk
    from afterglow.hot.local.ledger_state import LedgerState, QueuedEntries
    from afterglow.hot.local.paths import HotLogPaths
    from afterglow.hot.log import Completion, Deliver

_log = logging.getLogger(__name__)

# Joining a group copies it while holding the GIL: 4 MiB take about a millisecond.
_GROUP_BYTES = 4 << 20


class CompletionWaiter:
    """A completion on which a thread waits."""

    def __init__(self) -> None:
        self._called = threading.Event()
        self._error: HotLogError | None = None

    def __call__(self, error: HotLogError | None) -> None:
        """Set the result."""
        self._error = error
        self._called.set()

    def wait(self) -> None:
        """Wait for the result.

        Raises:
            HotLogError: The operation failed.
        """
        self._called.wait()
        if self._error is not None:
            raise type(self._error)(str(self._error)) from self._error


class _Control(NamedTuple):
    """A queued change other than an append."""

    section: bytes
    apply: Callable[[], None]
    """Called with the lock held when it is durable."""

    done: Completion
    keep_on_failure: bool
    """Whether it is written with a later group if this one fails."""


class _Group(NamedTuple):
    controls: list[_Control]
    queued: list[QueuedEntries]

    def body(self) -> bytes:
        """The sections, joined."""
        out: list[bytes | bytearray | memoryview] = [control.section for control in self.controls]
        for ledger, buffers, sizes, _, frame_bytes in self.queued:
            head = (ledger.ledger_id, ledger.entries, ledger.frame_bytes)
            out.append(SECTION.pack(SectionKind.APPENDED, len(sizes), *head, frame_bytes))
            out += buffers
        return b"".join(out)


class Committer:
    """The journal and the thread that writes it."""

    def __init__(
        self,
        disk: Disk,
        paths: HotLogPaths,
        lock: threading.Lock,
        *,
        journal_max_bytes: int,
        deliver: Deliver,
        confirmed: Callable[[list[LedgerState], int], None],
    ) -> None:
        """Prepare; nothing is written before :meth:`start`.

        Args:
            disk: Calls to the operating system.
            paths: Names of the files.
            lock: Guards the state that the log's threads share.
            journal_max_bytes: Size at which the next file is begun.
            deliver: Calls completions.
            confirmed: Called with the lock held, with ledgers that have entries to flush, and their bytes.
        """
        self.lock = lock
        """Guards the state that the log's threads share."""
        self.rotated: Callable[[], None] = lambda: None
        """Called with the lock held when a file was full."""
        self.pending_bytes = 0
        """Bytes queued or being written."""
        self._disk = disk
        self._paths = paths
        self._journal_max_bytes = journal_max_bytes
        self._deliver = deliver
        self._confirmed = confirmed
        self._work = threading.Condition(lock)
        self._settled = threading.Condition(lock)
        self._idle = False
        self._stopping = False
        self._dirty: list[LedgerState] = []
        self._controls: list[_Control] = []
        self._kept: list[_Control] = []
        self._rotations: list[CompletionWaiter] = []
        self._journal: JournalFile | None = None
        self._newest = 0  # the greatest number ever used
        self._start = JournalStart()  # start of the next file
        self._thread = threading.Thread(target=self._run, name="afterglow-journal", daemon=True)

    @property
    def number(self) -> int:
        """Number of the current or last file. Everything confirmed before it began is in earlier files."""
        return self._start.previous

    @property
    def fresh(self) -> bool:
        """Whether the current file has no batch yet."""
        return self._journal is not None and self._journal.empty

    def start(self, newest: int, start: JournalStart) -> None:
        """Begin a journal file after the existing ones, and start the thread.

        Raises:
            OSError: The file could not be created.
        """
        self._newest = newest
        self._start = start
        self._begin_file()
        self._thread.start()

    def enqueue(self, ledger: LedgerState, frame_bytes: int) -> None:
        """Record that an entry was added to a ledger's queue. The lock is held."""
        if not ledger.queued_bytes:
            self._dirty.append(ledger)
        ledger.queued_bytes += frame_bytes
        self.pending_bytes += frame_bytes
        if self._idle:
            self._idle = False
            self._work.notify()

    def submit(
        self, section: bytes, apply: Callable[[], None], done: Completion, *, keep_on_failure: bool = False
    ) -> None:
        """Queue a change other than an append.

        Raises:
            HotLogError: The log is closed.
        """
        with self.lock:
            if self._stopping:
                raise HotLogError(f"the hot log at {self._paths.root} is closed")
            self._controls.append(_Control(section, apply, done, keep_on_failure))
            self.pending_bytes += len(section)
            self._work.notify()

    def write(self, section: bytes, apply: Callable[[], None] = lambda: None, *, keep_on_failure: bool = False) -> None:
        """Make a change other than an append, and wait until it is durable. Without bytes it only syncs.

        Raises:
            HotLogError: It is not durable.
        """
        self.refuse_own_thread()
        outcome = CompletionWaiter()
        self.submit(section, apply, outcome, keep_on_failure=keep_on_failure)
        outcome.wait()

    def settle(self, ledger: LedgerState) -> None:
        """Wait until no append of a ledger is in flight. The lock is held, and released meanwhile."""
        while not ledger.settled:
            self.refuse_own_thread()
            self._settled.wait()

    def fence_durable(self, ledger: LedgerState) -> bool:
        """Whether no crash can bring back a failed append of a ledger."""
        return ledger.fenced_in < self.number

    def rotate(self) -> int:
        """Begin a new file; returns its number. Everything confirmed before the call is in earlier files.

        Raises:
            HotLogError: The file could not be created.
        """
        outcome = CompletionWaiter()
        with self.lock:
            if self._stopping:
                raise HotLogError(f"the hot log at {self._paths.root} is closed")
            self._rotations.append(outcome)
            self._work.notify()
        outcome.wait()
        return self.number

    def stop(self) -> None:
        """Write the queued changes, then stop the thread."""
        with self.lock:
            self._stopping = True
            self._work.notify()
        self._thread.join()
        self._abandon_file()

    def refuse_own_thread(self) -> None:
        """Prevent a deadlock: a completion must not wait for the thread that calls it.

        Raises:
            RuntimeError: The caller is that thread.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError("a completion must not wait for the log that calls it; use another thread")

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self.lock:
                while not (self._dirty or self._controls or self._rotations or self._stopping):
                    self._idle = True
                    self._work.wait()
                self._idle = False
                group = self._take()
                rotations, self._rotations = self._rotations, []
            if rotations:
                self._rotate(rotations)
            if group is not None:
                self._commit(group)
            elif self._stopping:
                return

    def _take(self) -> _Group | None:
        """Take the queued changes and entries as a group, up to a size."""
        if not (self._dirty or self._controls):
            return None
        controls = self._kept + self._controls
        self._kept, self._controls = [], []
        taken, size = 0, 0
        for ledger in self._dirty:
            taken += 1
            size += ledger.queued_bytes
            if size >= _GROUP_BYTES:
                break
        queued = [ledger.take() for ledger in self._dirty[:taken]]
        self._dirty = self._dirty[taken:]
        return _Group(controls, queued)

    def _commit(self, group: _Group) -> None:
        """Make a group durable, or fail it.

        1. Begin a file if none is open. *Crash: nothing of the group is stored.*
        2. Write and sync. *Crash before the end: the group is stored or not; no completion was called.*
        3. Confirm, call completions.
        """
        try:
            journal = self._journal or self._begin_file()
            body = group.body()
            journal.append(body)
        except OSError as error:
            self._fail(group, disk_error(error, f"cannot write the journal in {self._paths.journals}"))
        except Exception as error:  # noqa: BLE001 - waiting producers must be notified, whatever the error
            self._fail(group, HotLogError(f"cannot write the journal in {self._paths.journals}: {error!r}"))
        else:
            self._confirm(group, body)
            if journal.end >= self._journal_max_bytes:
                self._rotate([])

    def _confirm(self, group: _Group, body: bytes) -> None:
        frames = memoryview(body)
        at = 0
        dones: list[Completion] = []
        unflushed: list[LedgerState] = []
        frame_bytes = 0
        with self.lock:
            for control in group.controls:
                control.apply()
                at += len(control.section)
            self.pending_bytes -= at
            for ledger, _, sizes, entry_dones, length in group.queued:
                at += SECTION.size
                if ledger.confirm(sizes, frames[at : at + length]):
                    unflushed.append(ledger)
                at += length
                frame_bytes += length
                dones += entry_dones
            self.pending_bytes -= frame_bytes
            self._confirmed(unflushed, frame_bytes)
            self._settled.notify_all()
        self._call(group.controls, dones, None)

    def _fail(self, group: _Group, error: HotLogError) -> None:
        """Fail a group and everything queued after it, and abandon the file."""
        _log.error("%s; appends fail, reads continue", error)
        self._abandon_file()
        dones: list[Completion] = []
        with self.lock:
            for ledger, _, _, entry_dones, _ in group.queued:
                dones += entry_dones
                dones += ledger.fence(self.number)
            for ledger in self._dirty:
                dones += ledger.fence(self.number)
            controls = group.controls + self._controls
            self._kept = [control._replace(done=_ignore) for control in controls if control.keep_on_failure]
            self._dirty, self._controls = [], []
            self.pending_bytes = sum(len(control.section) for control in self._kept)
            self._settled.notify_all()
        self._call(controls, dones, error)

    def _call(self, controls: list[_Control], dones: list[Completion], error: HotLogError | None) -> None:
        """Notify the threads that wait in this log's own methods, then the others through the ``deliver`` hook.

        The former do not use the hook: it may run completions on the very thread that waits.
        """
        others: list[Completion] = []
        for control in controls:
            if isinstance(control.done, CompletionWaiter):
                control.done(error)
            else:
                others.append(control.done)
        dones = others + dones if others else dones
        try:
            if dones:
                self._deliver(dones, error)
        except Exception:  # noqa: BLE001 - the next group must proceed, whatever the hook raises
            _log.exception("%d completions of the hot log could not be delivered", len(dones))

    # --- files ------------------------------------------------------------------------------------------------------

    def _begin_file(self) -> JournalFile:
        self._newest += 1
        journal = JournalFile(self._disk, self._paths, self._newest, self._start)
        self._start = JournalStart(journal.number, journal.end)
        self._journal = journal
        return journal

    def _abandon_file(self) -> None:
        """Close the current file for good; its synced batches stay valid."""
        journal, self._journal = self._journal, None
        if journal is not None:
            self._start = JournalStart(journal.number, journal.end)
            with suppress(OSError):
                journal.close()

    def _rotate(self, outcomes: list[CompletionWaiter]) -> None:
        """Switch to a new file.

        If it cannot be created, the old one must be abandoned all the same: a header that did reach the disk says how
        much of the old file is valid, and that must stay true.
        """
        self._abandon_file()
        try:
            self._begin_file()
        except OSError as error:
            translated = disk_error(error, f"cannot begin a journal file in {self._paths.journals}")
            _log.warning("%s", translated)
            for outcome in outcomes:
                outcome(translated)
            return
        with self.lock:
            if not outcomes:
                self.rotated()
        for outcome in outcomes:
            outcome(None)


def _ignore(_: HotLogError | None) -> None:
    """Completion of a change without a waiter."""
