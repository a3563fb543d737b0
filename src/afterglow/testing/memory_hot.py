"""Hot log in memory, with completions, failures and crashes under the control of a test. Nothing is durable.

It fulfils the contract of :mod:`afterglow.hot.log`. Appends and state are confirmed at once unless
:attr:`MemoryLog.held` is set; then :meth:`MemoryLog.complete` confirms them.
"""

from __future__ import annotations

import threading
from collections import deque
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from afterglow.errors import DiskFull, HotLogError, LedgerClosed, LedgerMissing
from afterglow.format.frames import FRAME, FRAME_BYTES
from afterglow.hot.local.ledger import total_bytes
from afterglow.hot.log import call_each

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from afterglow.format.frames import FramedEntries
    from afterglow.hot.log import Completion


class MemoryLedger:
    """A ledger of a :class:`MemoryLog`."""

    def __init__(self, log: MemoryLog, ledger_id: int) -> None:
        self._log = log
        self.ledger_id = ledger_id
        self.entries: list[bytes] = []
        self.pending: deque[tuple[list[bytes], Completion]] = deque()
        self.closed = False
        self.deleted = False

    @property
    def confirmed(self) -> int:
        """Id of the last confirmed entry."""
        return len(self.entries) - 1

    @property
    def size_bytes(self) -> int:
        """Bytes of all confirmed entries."""
        return sum(map(len, self.entries))

    def append(self, parts: Sequence[bytes | bytearray | memoryview], done: Completion) -> int:
        """Append one entry; see the protocol."""
        if not self.closed:  # a closed ledger reports that it is closed, also if its log is closed
            self._log.check_alive()
        total_bytes(parts)
        return self._append([b"".join(parts)], done, None)

    def append_framed(self, entries: FramedEntries, done: Completion) -> None:
        """Append framed entries; see the protocol."""
        if not self.closed:
            self._log.check_alive()
        self._append(list(map(bytes, entries.entries(entries.first, entries.end))), done, entries.first)

    def _append(self, entries: list[bytes], done: Completion, first: int | None) -> int:
        with self._log.lock:
            self._log.announce("append", self.ledger_id)
            if self.closed:
                raise LedgerClosed(f"ledger {self.ledger_id} is closed")
            entry_id = len(self.entries) + sum(len(each) for each, _ in self.pending)
            if first not in {None, entry_id}:
                raise ValueError(f"entries from {first} on do not follow entry {entry_id - 1}")
            self.pending.append((entries, done))
            self._log.queue.append(self)
            if not self._log.held:
                self._log.complete()
        return entry_id

    def read(self, first: int, last: int) -> list[bytes | memoryview]:
        """The confirmed entries ``first`` to ``last``."""
        self._check_there()
        self._log.reads += 1
        return list(self.entries[max(first, 0) : max(last + 1, 0)])

    def read_frames(self, first: int, max_bytes: int) -> tuple[memoryview, int]:
        """Confirmed entries from ``first`` on as frames, and how many."""
        self._check_there()
        out = bytearray()
        count = 0
        for entry_id in range(first, len(self.entries)):
            data = self.entries[entry_id]
            if count and len(out) + FRAME_BYTES + len(data) > max_bytes:
                break
            out += FRAME.pack(len(data), entry_id) + data
            count += 1
        return memoryview(bytes(out)), count

    def offsets(self, first: int, last: int) -> NDArray[np.int64]:
        """Offset of each frame, and the end of the last."""
        self._check_there()
        if not 0 <= first <= last <= self.confirmed:
            raise IndexError(f"{first}..{last} of {self.confirmed}")
        lengths = [0, *(FRAME_BYTES + len(data) for data in self.entries)]
        return np.cumsum(lengths, dtype=np.int64)[first : last + 2]

    def close(self) -> None:
        """Close the ledger after its last confirmed entry; pending appends are completed first."""
        self._log.check_alive()
        with self._log.lock:
            self._log.announce("close", self.ledger_id)
            while self.pending:
                self._log.complete(1)
            self.closed = True
            self._log.after("close")

    def fail(self, error: HotLogError) -> None:
        """Fail every pending append and fence the ledger."""
        self.closed = True
        while self.pending:
            call_each([self.pending.popleft()[1]], error)

    def _check_there(self) -> None:
        self._log.check_alive()
        if self.deleted:
            raise LedgerMissing(f"ledger {self.ledger_id} was deleted")


class MemoryLog:
    """A :class:`~afterglow.hot.log.HotLog` and :class:`~afterglow.hot.log.KeyedState` under a test's control."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """Guards every change. Held while completions are called, so that they come in order."""
        self.ledgers_by_id: dict[int, MemoryLedger] = {}
        self.values: dict[bytes, bytes] = {}
        self.queue: deque[MemoryLedger | tuple[bytes, bytes | None, Completion]] = deque()
        self.held = False
        """Whether appends and puts wait for :meth:`complete`."""
        self.full = False
        """Whether the disk is full: creation of ledgers and every append fail."""
        self.before: Callable[[str], None] = _nothing
        """Called before every effect, with its name; an exception ends the process at that point."""
        self.after: Callable[[str], None] = _nothing
        """Called after a ledger was created, closed or deleted; an exception ends the process at that point."""
        self.subject = 0
        """The ledger that is changed while :attr:`before` is called; 0 if it has no id yet."""
        self.reads = 0
        """Number of calls of ``read``."""
        self._next_id = 1
        self._dead = False

    @property
    def pending_bytes(self) -> int:
        """Bytes of all pending appends."""
        pending = (entries for ledger in self.ledgers_by_id.values() for entries, _ in ledger.pending)
        return sum(len(data) for entries in pending for data in entries)

    def create(self) -> MemoryLedger:
        """A new, empty ledger."""
        self.check_alive()
        with self.lock:
            self.announce("create", 0)
            if self.full:
                raise DiskFull("no space for a new ledger")
            ledger = MemoryLedger(self, self._next_id)
            self._next_id += 1
            self.ledgers_by_id[ledger.ledger_id] = ledger
            self.after("create")
        return ledger

    def open(self, ledger_id: int) -> MemoryLedger:
        """An existing ledger."""
        self.check_alive()
        if ledger_id not in self.ledgers_by_id:
            raise LedgerMissing(f"ledger {ledger_id} does not exist")
        return self.ledgers_by_id[ledger_id]

    def delete(self, ledger_id: int) -> None:
        """Delete a ledger."""
        self.check_alive()
        with self.lock:
            self.announce("delete", ledger_id)
            ledger = self.ledgers_by_id.pop(ledger_id, None)
            if ledger is not None:
                ledger.close()
                ledger.deleted = True
            self.after("delete")

    def ledgers(self) -> tuple[int, ...]:
        """Ids of all ledgers."""
        self.check_alive()
        return tuple(sorted(self.ledgers_by_id))

    def put_state(self, key: bytes, value: bytes | None, done: Completion) -> None:
        """Set or remove a value."""
        self.check_alive()
        with self.lock:
            self.announce("put_state", 0)
            self.queue.append((key, value, done))
            if not self.held:
                self.complete()

    def state(self) -> Mapping[bytes, bytes]:
        """All keys with their durable values."""
        self.check_alive()
        return dict(self.values)

    def close(self) -> None:
        """Close every ledger."""
        if not self._dead:
            self.complete()
            self._dead = True
            for ledger in self.ledgers_by_id.values():
                ledger.closed = True

    def announce(self, effect: str, ledger_id: int) -> None:
        """Call :attr:`before` with an effect that is about to happen."""
        self.subject = ledger_id
        self.before(effect)

    # --- controls of a test -------------------------------------------------------------------------------------------

    def complete(self, count: int | None = None) -> int:
        """Complete the oldest ``count`` appends and puts, or all; returns their number."""
        done = 0
        with self.lock:
            while self.queue and done != count:
                done += 1
                item = self.queue.popleft()
                if isinstance(item, MemoryLedger):
                    self._complete_append(item)
                    continue
                key, value, completion = item
                if self.full:
                    call_each([completion], DiskFull("no space for a value"))
                    continue
                if value is None:
                    self.values.pop(key, None)
                else:
                    self.values[key] = value
                call_each([completion], None)
        return done

    def crash(self, survivors: int = 0) -> MemoryLog:
        """End this log as the kill of its process would, and open its durable state.

        Args:
            survivors: Number of each ledger's pending appends that are durable without a confirmation.
        """
        self._dead = True
        after = MemoryLog()
        after.values = dict(self.values)
        after._next_id = self._next_id
        for ledger_id, ledger in self.ledgers_by_id.items():
            copy = MemoryLedger(after, ledger_id)
            pending = [entries for entries, _ in ledger.pending]
            copy.entries = [*ledger.entries, *chain.from_iterable(pending[:survivors])]
            copy.closed = True
            after.ledgers_by_id[ledger_id] = copy
        return after

    def check_alive(self) -> None:
        """Raise an error if the log was closed, or its process has ended."""
        if self._dead:
            raise HotLogError("this hot log is closed")

    def _complete_append(self, ledger: MemoryLedger) -> None:
        if not ledger.pending:  # failed together with an earlier append
            return
        if self.full:
            ledger.fail(DiskFull("no space for an entry"))
            return
        entries, completion = ledger.pending.popleft()
        ledger.entries += entries
        call_each([completion], None)


def _nothing(_effect: str) -> None:
    """Let the effect happen."""
