"""A hot log in memory, for tests and simulation: the same rules, nothing durable.

With ``deferred`` set, appends and state wait until :meth:`MemoryLog.complete` or :meth:`MemoryLog.fail` is called, so
that a test decides what is confirmed when. Creation, closing and deletion are never deferred.
"""

from __future__ import annotations

import threading
from collections import deque
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from afterglow.errors import HotLogError, LedgerClosed, LedgerMissing
from afterglow.format.frames import FRAME, FRAME_BYTES
from afterglow.hot.delivery import call_each
from afterglow.hot.parts import total_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from afterglow.hot.log import Completion, Deliver

__all__ = ["MemoryLedger", "MemoryLog"]

FIRST_LEDGER_ID = 1


class _Waiting(NamedTuple):
    """A change that is not confirmed yet."""

    ledger: MemoryLedger | None
    """The ledger of an append."""

    size: int
    apply: Callable[[], None]
    done: Completion


class MemoryLedger:
    """A :class:`~afterglow.hot.log.HotLedger` in memory."""

    def __init__(self, log: MemoryLog, ledger_id: int) -> None:
        self._log = log
        self._ledger_id = ledger_id
        self._entries: list[bytes] = []
        self._next = 0
        self._closed = False

    @property
    def ledger_id(self) -> int:
        """Unique in its log, growing with creation, never reused."""
        return self._ledger_id

    @property
    def confirmed(self) -> int:
        """Id of the last confirmed entry; -1 before the first."""
        return len(self._entries) - 1

    @property
    def size_bytes(self) -> int:
        """Bytes of all confirmed entries, without frames."""
        return sum(map(len, self._entries))

    @property
    def closed(self) -> bool:
        """Whether it takes no more entries."""
        return self._closed

    @property
    def settled(self) -> bool:
        """Whether no append is under way."""
        return self._next == len(self._entries)

    def append(self, parts: Sequence[bytes | bytearray | memoryview], done: Completion) -> int:
        """Append one entry.

        Raises:
            LedgerClosed: The ledger takes no more entries.
            TypeError: A piece is not contiguous bytes.
            EntryTooLarge: The entry's length does not fit the frame's 31 bits.
        """
        size = total_bytes(parts)
        with self._log.lock:
            if self._closed:
                raise LedgerClosed(f"ledger {self._ledger_id} takes no more entries; go on in a new one")
            entry_id = self._next
            self._next += 1
            self._log.enqueue(_Waiting(self, size, lambda: self._entries.append(b"".join(parts)), done))
        self._log.complete_unless_deferred()
        return entry_id

    def read(self, first: int, last: int) -> list[bytes | memoryview]:
        """The confirmed entries ``first`` to ``last``, both inclusive; fewer where ``last`` is not confirmed yet.

        Raises:
            LedgerMissing: The ledger was deleted.
        """
        return list(self._stored()[max(first, 0) : max(last + 1, 0)])

    def read_frames(self, first: int, max_bytes: int) -> tuple[memoryview, int]:
        """Confirmed entries from ``first`` on as contiguous frames, and how many; at least one if there is one.

        Raises:
            LedgerMissing: The ledger was deleted.
        """
        frames = bytearray()
        count = 0
        for entry_id, entry in enumerate(self._stored()[first:] if first >= 0 else [], first):
            if count and len(frames) + FRAME_BYTES + len(entry) > max_bytes:
                break
            frames += FRAME.pack(len(entry), entry_id) + entry
            count += 1
        return memoryview(bytes(frames)), count

    def offsets(self, first: int, last: int) -> NDArray[np.int64]:
        """Offset of each frame from entry ``first`` to ``last`` among the ledger's frames, and behind ``last``.

        Raises:
            IndexError: ``first`` to ``last`` is not a stretch of confirmed entries.
            LedgerMissing: The ledger was deleted.
        """
        entries = self._stored()
        if not 0 <= first <= last < len(entries):
            raise IndexError(f"entries {first} to {last} are not among the {len(entries)} of ledger {self._ledger_id}")
        ends = accumulate((FRAME_BYTES + len(entry) for entry in entries), initial=0)
        return np.fromiter(ends, np.int64)[first : last + 2]

    def close(self) -> None:
        """Take no more entries, and wait until none is under way; another thread must complete what is deferred."""
        with self._log.lock:
            self._closed = True
            self._log.settled.wait_for(lambda: self.settled)

    def fence(self) -> None:
        """End at the last confirmed entry. The lock is held."""
        self._closed = True
        self._next = len(self._entries)

    def _stored(self) -> list[bytes]:
        with self._log.lock:
            self._log.refuse_missing(self._ledger_id)
            return list(self._entries)


class MemoryLog:
    """A :class:`~afterglow.hot.log.HotLog` with :class:`~afterglow.hot.log.KeyedState` in memory."""

    def __init__(self, *, deferred: bool = False, deliver: Deliver = call_each) -> None:
        """Make an empty log.

        Args:
            deferred: Confirm nothing before :meth:`complete` is called.
            deliver: Calls completions.
        """
        self.deferred = deferred
        """Whether appends wait for :meth:`complete`; may be changed at any time."""
        self.lock = threading.Lock()
        """Guards everything."""
        self.settled = threading.Condition(self.lock)
        """Notified when appends end."""
        self._deliver = deliver
        self._delivering = threading.Lock()
        self._waiting: deque[_Waiting] = deque()
        self._ledgers: dict[int, MemoryLedger] = {}
        self._next_ledger_id = FIRST_LEDGER_ID
        self._state: dict[bytes, bytes] = {}
        self._refusal: HotLogError | None = None
        self._closed = False

    @property
    def pending_bytes(self) -> int:
        """Bytes that wait to be confirmed."""
        with self.lock:
            return sum(waiting.size for waiting in self._waiting)

    def create(self) -> MemoryLedger:
        """A new, empty ledger.

        Raises:
            HotLogError: The log refuses (:meth:`refuse`), or is closed.
        """
        with self.lock:
            self._refuse_closed()
            if self._refusal is not None:
                raise self._refusal
            ledger = MemoryLedger(self, self._next_ledger_id)
            self._next_ledger_id += 1
            self._ledgers[ledger.ledger_id] = ledger
            return ledger

    def open(self, ledger_id: int) -> MemoryLedger:
        """An existing ledger.

        Raises:
            LedgerMissing: There is none.
        """
        with self.lock:
            self.refuse_missing(ledger_id)
            return self._ledgers[ledger_id]

    def delete(self, ledger_id: int) -> None:
        """Delete a ledger, closing it first. A ledger that does not exist is no error."""
        with self.lock:
            self._refuse_closed()
            ledger = self._ledgers.get(ledger_id)
        if ledger is not None:
            ledger.close()
            with self.lock:
                self._ledgers.pop(ledger_id, None)

    def ledgers(self) -> tuple[int, ...]:
        """Ids of all ledgers, ascending."""
        with self.lock:
            return tuple(sorted(self._ledgers))

    def put_state(self, key: bytes, value: bytes | None, done: Completion) -> None:
        """Set the value of a key, or remove it with None.

        Raises:
            HotLogError: The log is closed.
        """

        def apply() -> None:
            if value is None:
                self._state.pop(key, None)
            else:
                self._state[key] = value

        with self.lock:
            self._refuse_closed()
            self.enqueue(_Waiting(None, len(key) + len(value or b""), apply, done))
        self.complete_unless_deferred()

    def state(self) -> dict[bytes, bytes]:
        """All keys with their confirmed values, as of now."""
        with self.lock:
            return dict(self._state)

    def close(self) -> None:
        """Complete what waits, close every ledger, and give nothing any more."""
        self.complete()
        with self.lock:
            for ledger in self._ledgers.values():
                ledger.fence()
            self._closed = True

    # --- what a test or a simulation decides ------------------------------------------------------------------------

    def complete(self, count: int | None = None) -> int:
        """Confirm the oldest ``count`` waiting changes, or all; gives how many there were."""
        with self._delivering:
            with self.lock:
                taken = [self._waiting.popleft() for _ in range(min(count or len(self._waiting), len(self._waiting)))]
                for waiting in taken:
                    waiting.apply()
                self.settled.notify_all()
            if taken:
                self._deliver([waiting.done for waiting in taken], None)
        return len(taken)

    def fail(self, error: HotLogError) -> int:
        """Fail all waiting changes and fence the ledgers that they touch; gives how many there were."""
        with self._delivering:
            with self.lock:
                taken = list(self._waiting)
                self._waiting.clear()
                for waiting in taken:
                    if waiting.ledger is not None:
                        waiting.ledger.fence()
                self.settled.notify_all()
            if taken:
                self._deliver([waiting.done for waiting in taken], error)
        return len(taken)

    def refuse(self, error: HotLogError | None) -> None:
        """From now on fail every append and creation, as a full disk would; with None, take them again."""
        with self.lock:
            self._refusal = error

    # --- for its ledgers --------------------------------------------------------------------------------------------

    def enqueue(self, waiting: _Waiting) -> None:
        """Add a change. The lock is held."""
        self._waiting.append(waiting)

    def complete_unless_deferred(self) -> None:
        """Settle what waits, where nobody else does."""
        if self._refusal is not None:
            self.fail(self._refusal)
        elif not self.deferred:
            self.complete()

    def refuse_missing(self, ledger_id: int) -> None:
        """Insist that there is such a ledger. The lock is held.

        Raises:
            LedgerMissing: There is none.
        """
        self._refuse_closed()
        if ledger_id not in self._ledgers:
            raise LedgerMissing(f"there is no ledger {ledger_id}")

    def _refuse_closed(self) -> None:
        if self._closed:
            raise HotLogError("the hot log is closed")
