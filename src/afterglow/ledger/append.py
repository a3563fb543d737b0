"""The append path: entries go to the current ledger in order, and their completions come back in order.

No append waits for metadata or for the creation of a ledger; entries that cannot be written yet are held, and the
caller is called back. Two rules keep index, broker time and the order of receipts consistent:

* **One ledger at a time is written.** Appends switch to the next ledger when nothing is in flight in the old one;
  entries that arrive meanwhile are held. Otherwise a failure in the old ledger could leave a hole before entries that
  the next one has already confirmed.
* **A failed append fails every later one**, in flight or held, and ends the ledger. The next ledger is used only after
  the list has the end of the failed one, since recovery after a crash might find it longer.

Callbacks run outside every lock, one at a time, in the order of the appends, on whichever thread completed an append.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from afterglow.errors import EntryTooLarge, HotLogError
from afterglow.format.frames import FramedEntries
from afterglow.format.position import Position
from afterglow.ledger.ledger_list import EntryStamp
from afterglow.ledger.rollover import RolloverLimits
from afterglow.pacing import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from afterglow.errors import AfterglowError
    from afterglow.format.new_entries import NewEntries
    from afterglow.hot.log import HotLedger
    from afterglow.ledger.environment import Environment
    from afterglow.ledger.ledger_list import LedgerEnd
    from afterglow.ledger.managed_ledger_state import ManagedLedgerState
    from afterglow.ledger.recovery import Stamper
    from afterglow.ledger.rollover import Roller

    Done: TypeAlias = Callable[["Position | AfterglowError"], None]
    """Called once with the position of the first entry, or with the error if none of them was written."""

_log = logging.getLogger(__name__)

# Waits after failed attempts to create a ledger, first and longest. A full disk is tried again every few seconds, which
# is soon enough for a producer that retries for 30 s.
_BACKOFF_S: Final = Backoff(0.1, 5.0)

_MAX_BYTES: Final = 2**31 - 1024
"""A frame's length has 31 bits; 1 KiB of it is left for the broker entry metadata."""

_NOT_FRAMED: Final = FramedEntries.one(0)
_NO_STAMP: Final = EntryStamp()


@dataclass(slots=True, eq=False)
class _Append:
    """One append in flight or held: entries that are stored together or not at all."""

    entries: NewEntries
    done: Done
    framed: FramedEntries = _NOT_FRAMED
    ledger_id: int = -1
    reached: EntryStamp = _NO_STAMP
    finished: bool = False
    error: HotLogError | None = None


class Appender:
    """Appends to one topic. Thread-safe.

    Args:
        environment: Limits of a ledger, cache, clock.
        state: Updated with each confirmed entry.
        stamper: Assigns broker time and index.
        roller: Creates new ledgers, and commits the ends of old ones. Called outside every lock.
        on_append: Called outside every lock after readers can see more entries.
    """

    def __init__(
        self,
        environment: Environment,
        state: ManagedLedgerState,
        stamper: Stamper,
        roller: Roller,
        on_append: Callable[[], None],
    ) -> None:
        self._state = state
        self._lock = state.lock
        self._idle = threading.Condition(self._lock)
        self._stamper = stamper
        self._limits = RolloverLimits.from_config(environment.config)
        self._cache = environment.cache
        self._clock = environment.clock
        self._roller = roller
        self._on_append = on_append
        self._ledger: HotLedger | None = None
        self._next: HotLedger | None = None
        self._opened_at = 0.0
        self._appended_at = 0.0
        self._given_entries = 0
        self._given_bytes = 0
        self._in_flight: deque[_Append] = deque()
        self._held: deque[_Append] = deque()
        self._broken: HotLedger | None = None  # ended by a failure, which must be committed before another is used
        self._refusal: AfterglowError | None = None
        self._failure: AfterglowError | None = None
        self._wanted = False
        self._retry_at = 0.0
        self._failures = 0
        self._after: deque[Callable[[], None]] = deque()
        self._more_to_read = False
        self._settling = False
        self._pumping = False

    # --- called by the managed ledger ---------------------------------------------------------------------------------

    def append(self, entries: NewEntries, done: Done) -> None:
        """Append entries; ``done`` may be called before this returns, after which their memory may be reused.

        Raises:
            EntryTooLarge: No ledger can hold them.
        """
        if (size := entries.size_bytes) > _MAX_BYTES:
            raise EntryTooLarge(f"entry too large: {size} bytes; a ledger can hold {_MAX_BYTES}")
        with self._lock:
            error = self._reason_to_refuse()
            if error is None:
                item = _Append(entries, done)
                self._held.append(item)
                self._pump()
                if item.framed is _NOT_FRAMED:
                    item.entries = entries.detached()
            else:
                self._after.append(partial(done, error))
        self._settle()

    def roll_if_due(self) -> None:
        """Request the next ledger if the current one is full, too old, or idle for too long."""
        with self._lock:
            if self._ledger is not None:
                now = self._clock.monotonic()
                if self._limits.idle(self._given_entries, now - self._appended_at):
                    self._want(now)
                self._want_if_full(now)
        self._settle()

    def refuse(self, error: AfterglowError) -> None:
        """Refuse every append from now on, and those that are held; appends in flight continue."""
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
        """The error with which all appends are refused; None if they are accepted, or may be soon."""
        return self._refusal

    @property
    def broken(self) -> HotLedger | None:
        """A ledger that ended by a failure, until its end is committed; to be closed before that."""
        return self._broken

    @property
    def wanted(self) -> bool:
        """Whether a new ledger was requested and is not available yet."""
        return self._wanted

    @property
    def switching(self) -> bool:
        """Whether a new ledger is available and waits for the appends in flight in the old one."""
        return self._next is not None

    @property
    def last_stamp(self) -> EntryStamp:
        """Index and broker time of the last confirmed entry."""
        with self._lock:
            return self._stamper.confirmed

    def wait_for_switch(self) -> None:
        """Wait until the ledger given to :meth:`switch_to` is in use, that is, for the appends in flight before it."""
        with self._lock:
            self._idle.wait_for(lambda: self._next is None)

    def shut(self, error: AfterglowError) -> None:
        """Refuse further appends, wait for those in flight, and end the current ledger."""
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

    # --- called by the roll-over --------------------------------------------------------------------------------------

    def switch_to(self, ledger: HotLedger) -> bool:
        """Use a new, empty ledger that the list names, as soon as nothing is in flight in the old one.

        Returns:
            Whether it will be used; False if the end of a failed ledger must be committed first.
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
        """Report that no new ledger could be created. Without a current ledger, held appends fail."""
        with self._lock:
            self._wanted = False
            self._failures += 1
            self._retry_at = self._clock.monotonic() + _BACKOFF_S.delay(self._failures)
            if self._ledger is None:
                self._failure = error
                self._fail_held(error)
        self._settle()

    # --- the lock is held ---------------------------------------------------------------------------------------------

    def _reason_to_refuse(self) -> AfterglowError | None:
        if self._refusal is not None:
            return self._refusal
        if self._failure is not None and not self._wanted and self._clock.monotonic() < self._retry_at:
            return self._failure
        return None

    def _pump(self) -> None:
        """Hand held appends to the current ledger; switch to the next one first if nothing is in flight."""
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
        item.framed, item.reached = self._stamper.frame(item.entries, self._given_entries)
        item.ledger_id = ledger.ledger_id
        self._given_entries = item.framed.end
        self._given_bytes += item.framed.payload_bytes
        self._appended_at = self._clock.monotonic()
        self._in_flight.append(item)
        try:
            ledger.append_framed(item.framed, partial(self._completed, item))
        except HotLogError as error:
            self._completed(item, error)
            return
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
        self._state.confirm(len(item.framed), item.framed.payload_bytes)
        self._cache.put(item.ledger_id, item.framed)
        self._more_to_read = True
        self._after.append(partial(item.done, Position(item.ledger_id, item.framed.first)))

    def _fail(self, error: HotLogError) -> None:
        """End the current ledger at its last confirmed entry; appends in flight and held fail."""
        _log.warning("ledger %s failed and ends at its last confirmed entry: %s", self._state.writing_to, error)
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
            self._after.append(partial(self._roller.ledger_ended, old, self._end_tail()))
        assert self._next is not None
        self._ledger = self._next
        self._next = None
        self._given_entries = 0
        self._given_bytes = 0
        self._opened_at = self._appended_at = self._clock.monotonic()
        before = self._state.layout.ids[-1:]
        self._state.begin(self._ledger.ledger_id)
        if before and self._cache.buffer is not None:
            # The buffer would otherwise learn of the ledger with the next tick, and miss its first entries.
            self._cache.buffer.add_ledger(before[0], self._ledger.ledger_id)
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
        self._after.append(self._roller.ledger_wanted)

    # --- outside the lock ---------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Run the calls that must not be made under the lock.

        If another thread is running them, it continues with these. If a hot log completes an append before it returns,
        this thread still holds the lock, and runs them after releasing it.
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
                    calls.append(self._on_append)
            try:
                for call in calls:
                    _run(call)
            finally:
                with self._lock:
                    self._settling = False


def _run(call: Callable[[], None]) -> None:
    try:
        call()
    except Exception:  # noqa: BLE001  a callback may raise anything, and must not stop the others
        _log.exception("a callback of an append failed")


def _close(ledger: HotLedger) -> None:
    """Close a ledger whose end is known already: a failure only costs its recovery some work."""
    try:
        ledger.close()
    except HotLogError as error:
        _log.warning("ledger %d could not be closed: %s", ledger.ledger_id, error)
