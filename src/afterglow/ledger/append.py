"""The append path: entries go to the ledger in use, in order, and their completions come back in order.

No append waits for metadata or for another ledger to be created; what cannot be written yet is held, and the caller is
called back. Two rules keep index, broker time and the order of receipts whole:

* **One ledger at a time is being written.** A switch to the next ledger takes place when nothing is in flight in the
  old one; what comes meanwhile is held. Otherwise a failure in the old ledger could leave a hole before entries that
  the next already confirmed.
* **A failed append fails everything behind it**, in flight or held. The ledger has then ended; the next one is used
  only after the list says how it ended, since what a crash recovers of it may be longer.

Callbacks run outside every lock, one at a time, in the order of the appends, on whichever thread completed one.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from afterglow.errors import EntryTooLarge, HotLogError
from afterglow.format.position import EARLIEST, Position
from afterglow.ledger.ledger_list import Progress
from afterglow.ledger.rollover import RolloverLimits
from afterglow.pacing import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from afterglow.errors import AfterglowError
    from afterglow.hot.log import HotLedger
    from afterglow.ledger.environment import Environment
    from afterglow.ledger.ledger_list import LedgerEnd
    from afterglow.ledger.recovery import Stamper
    from afterglow.ledger.state import TopicState

    Done: TypeAlias = Callable[["Position | AfterglowError"], None]
    """Called once with where the entry stands, or why it was not written."""

_log = logging.getLogger(__name__)

# After a failed attempt to get a new ledger: the first wait, and the longest. A full disk is asked again every few
# seconds, which is soon enough for a producer that retries for 30 s.
_BACKOFF_S: Final = Backoff(0.1, 5.0)

_MAX_ENTRY_BYTES: Final = 2**31 - 1024
"""A frame's length has 31 bits; the broker's metadata takes a part of it."""


class AppendEvents(Protocol):
    """What the append path asks for, and tells. Called outside every lock."""

    def ledger_wanted(self) -> None:
        """Get a new ledger, then call ``switch_to`` or ``no_ledger``."""

    def ledger_ended(self, ledger: HotLedger, end: LedgerEnd) -> None:
        """The next ledger is in use; nothing is in flight in this one."""

    def appended(self) -> None:
        """Readers can see more entries."""


@dataclass(slots=True, eq=False)
class _Append:
    """One append under way."""

    parts: Sequence[bytes | bytearray | memoryview]
    messages: int
    done: Done
    position: Position = EARLIEST
    data: bytes = b""
    reached: Progress = field(default_factory=Progress)
    finished: bool = False
    error: HotLogError | None = None


class Appender:
    """Appends to one topic. Thread-safe.

    Args:
        environment: Limits of a ledger, cache, clock.
        state: Told what readers may see.
        stamper: Gives out broker time and index.
        events: Told what happens, and asked for ledgers.
    """

    def __init__(self, environment: Environment, state: TopicState, stamper: Stamper, events: AppendEvents) -> None:
        self._state = state
        self._lock = state.lock
        self._idle = threading.Condition(self._lock)
        self._stamper = stamper
        self._limits = RolloverLimits.from_config(environment.config)
        self._cache = environment.cache
        self._clock = environment.clock
        self._events = events
        self._ledger: HotLedger | None = None
        self._next: HotLedger | None = None
        self._opened_at = 0.0
        self._appended_at = 0.0
        self._given_entries = 0
        self._given_bytes = 0
        self._in_flight: deque[_Append] = deque()
        self._held: deque[_Append] = deque()
        self._broken: HotLedger | None = None  # ended by a failure, and the list must say so before another is used
        self._refusal: AfterglowError | None = None
        self._failure: AfterglowError | None = None
        self._wanted = False
        self._retry_at = 0.0
        self._failures = 0
        self._after: deque[Callable[[], None]] = deque()
        self._more_to_read = False
        self._settling = False
        self._pumping = False

    # --- what callers do ----------------------------------------------------------------------------------------------

    def append(self, parts: Sequence[bytes | bytearray | memoryview], messages: int, done: Done) -> None:
        """Append one entry, given as pieces to be joined; ``done`` may be called before this returns.

        Raises:
            EntryTooLarge: No ledger can hold it.
        """
        if (size := sum(len(part) for part in parts)) > _MAX_ENTRY_BYTES:
            raise EntryTooLarge(f"an entry of {size} bytes passes the {_MAX_ENTRY_BYTES} that a ledger can hold")
        with self._lock:
            error = self._reason_to_refuse()
            if error is None:
                self._held.append(_Append(parts, messages, done))
                self._pump()
            else:
                self._after.append(partial(done, error))
        self._settle()

    def roll_if_due(self) -> None:
        """Ask for the next ledger if the one in use is full, old, or has long been idle."""
        with self._lock:
            if self._ledger is not None:
                now = self._clock.monotonic()
                if self._limits.idle(self._given_entries, now - self._appended_at):
                    self._want(now)
                self._want_if_full(now)
        self._settle()

    def refuse(self, error: AfterglowError) -> None:
        """Refuse every append from now on, and those that are held; those in flight go on."""
        with self._lock:
            self._refusal = error
            self._fail_held(error)
        self._settle()

    def accept(self) -> None:
        """Accept appends again after :meth:`refuse`."""
        with self._lock:
            self._refusal = None

    @property
    def refusal(self) -> AfterglowError | None:
        """Why no append is accepted for good; None where they are, or may be soon."""
        return self._refusal

    @property
    def broken(self) -> HotLedger | None:
        """A ledger that a failure has ended, until the list says so; to be closed before anyone is told its end."""
        return self._broken

    @property
    def wanted(self) -> bool:
        """Whether a new ledger was asked for and has not come yet."""
        return self._wanted

    @property
    def switching(self) -> bool:
        """Whether a new ledger is there and waits for the appends in flight in the old one."""
        return self._next is not None

    @property
    def progress(self) -> Progress:
        """How far index and broker time have come with the last confirmed entry."""
        with self._lock:
            return self._stamper.confirmed

    def wait_for_switch(self) -> None:
        """Wait until the ledger given to :meth:`switch_to` is in use: for the appends in flight before it."""
        with self._lock:
            self._idle.wait_for(lambda: self._next is None)

    def shut(self, error: AfterglowError) -> None:
        """Refuse further appends, wait for those in flight, and end the ledger in use."""
        self.refuse(error)
        while True:
            with self._lock:
                ledger = self._ledger
            if ledger is None:
                break
            _close(ledger)
            with self._lock:
                self._idle.wait_for(lambda: not self._in_flight)
                if self._ledger is ledger:
                    self._ledger = None
                    self._end_tail()
        self._settle()

    # --- what the roll-over brings ------------------------------------------------------------------------------------

    def switch_to(self, ledger: HotLedger) -> bool:
        """Use a new, empty ledger that the list names, as soon as nothing is in flight in the old one.

        Returns:
            Whether it will be used; if not, a ledger has failed of which the list must be told first.
        """
        with self._lock:
            if self._broken is not None and self._state.has_ended(self._broken.ledger_id):
                return False
            self._broken = None
            self._failure = None
            self._failures = 0
            self._wanted = False
            self._next = ledger
            self._pump()
        self._settle()
        return True

    def no_ledger(self, error: AfterglowError) -> None:
        """Say that no new ledger could be had. With none in use, what is held fails."""
        with self._lock:
            self._wanted = False
            self._failures += 1
            self._retry_at = self._clock.monotonic() + _BACKOFF_S.delay(self._failures)
            if self._ledger is None:
                self._failure = error
                self._fail_held(error)
        self._settle()

    # --- inside; the lock is held -------------------------------------------------------------------------------------

    def _reason_to_refuse(self) -> AfterglowError | None:
        if self._refusal is not None:
            return self._refusal
        if self._failure is not None and not self._wanted and self._clock.monotonic() < self._retry_at:
            return self._failure
        return None

    def _pump(self) -> None:
        """Give the ledger in use what is held; switch to the next one where that is possible."""
        if self._pumping:
            return
        self._pumping = True
        try:
            if self._next is not None and not self._in_flight:
                self._flip()
            while self._held and self._next is None:
                if self._ledger is None:
                    self._want(self._clock.monotonic())
                    break
                self._give(self._ledger, self._held.popleft())
        finally:
            self._pumping = False

    def _give(self, ledger: HotLedger, item: _Append) -> None:
        stamp, item.reached = self._stamper.stamp(item.messages)
        item.data = b"".join((stamp, *item.parts))
        item.parts = ()
        item.position = Position(ledger.ledger_id, self._given_entries)
        self._given_entries += 1
        self._given_bytes += len(item.data)
        self._appended_at = self._clock.monotonic()
        self._in_flight.append(item)
        try:
            entry_id = ledger.append((item.data,), partial(self._completed, item))
        except HotLogError as error:
            self._completed(item, error)
            return
        assert entry_id == item.position.entry_id
        self._want_if_full(self._appended_at)

    def _completed(self, item: _Append, error: HotLogError | None) -> None:
        """Called by the hot log, on any thread, also from within its ``append``."""
        with self._lock:
            item.finished = True
            item.error = error
            while self._in_flight and self._in_flight[0].finished:
                head = self._in_flight[0]
                if head.error is not None:
                    self._fail(head.error)
                    break
                self._confirm(self._in_flight.popleft())
            self._pump()
            if not self._in_flight:
                self._idle.notify_all()
        self._settle()

    def _confirm(self, item: _Append) -> None:
        self._stamper.confirm(item.reached)
        self._state.confirm(len(item.data))
        self._cache.put(item.position.ledger_id, item.position.entry_id, item.data)
        self._more_to_read = True
        self._after.append(partial(item.done, item.position))

    def _fail(self, error: HotLogError) -> None:
        """End the ledger in use at its last confirmed entry; everything in flight and held fails."""
        _log.warning("ledger %s failed and ends there: %s", self._state.writing_to, error)
        while self._in_flight:
            self._after.append(partial(self._in_flight.popleft().done, error))
        self._fail_held(error)
        self._stamper.roll_back()
        self._failure = error
        self._retry_at = 0.0
        self._broken, self._ledger = self._ledger, None
        self._end_tail()

    def _fail_held(self, error: AfterglowError) -> None:
        while self._held:
            self._after.append(partial(self._held.popleft().done, error))

    def _flip(self) -> None:
        old = self._ledger
        if old is not None:
            self._after.append(partial(self._events.ledger_ended, old, self._end_tail()))
        assert self._next is not None
        self._ledger = self._next
        self._next = None
        self._given_entries = 0
        self._given_bytes = 0
        self._opened_at = self._appended_at = self._clock.monotonic()
        before = self._state.layout.ids[-1:]
        self._state.begin(self._ledger.ledger_id)
        if before and self._cache.buffer is not None:
            self._cache.buffer.extend(before[0], self._ledger.ledger_id)  # else it is not known before the next tick
        self._idle.notify_all()

    def _end_tail(self) -> LedgerEnd:
        return self._state.end_tail(self._stamper.confirmed_time_ms)

    def _want_if_full(self, now: float) -> None:
        if self._limits.full(self._given_entries, self._given_bytes, now - self._opened_at):
            self._want(now)

    def _want(self, now: float) -> None:
        if self._wanted or self._next is not None or now < self._retry_at or self._refusal is not None:
            return
        self._wanted = True
        self._after.append(self._events.ledger_wanted)

    # --- outside the lock ---------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Run what was left to be run outside the lock.

        Not where another thread is at it, which then goes on with this, nor from within a hot log that completes an
        append before it returns: then this thread still holds the lock, and does it after.
        """
        while True:
            with self._lock:
                if self._pumping or self._settling or not (self._after or self._more_to_read):
                    return
                self._settling = True
                calls = list(self._after)
                self._after.clear()
                if self._more_to_read:
                    self._more_to_read = False
                    calls.append(self._events.appended)
            try:
                for call in calls:
                    _run(call)
            finally:
                with self._lock:
                    self._settling = False


def _run(call: Callable[[], None]) -> None:
    """Keep one caller's mistake from stopping the rest."""
    try:
        call()
    except Exception:  # noqa: BLE001  it is another's code, and any may come
        _log.exception("a callback of an append failed")


def _close(ledger: HotLedger) -> None:
    """End a ledger; how it ends is known already, so that a failure only costs its recovery some work."""
    try:
        ledger.close()
    except HotLogError as error:
        _log.warning("ledger %d could not be closed: %s", ledger.ledger_id, error)
