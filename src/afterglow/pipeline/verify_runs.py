"""Verification runs of a server: one at a time, each on a thread of its own, with the figures for its metrics.

Findings wait in a small buffer for the client that asked for them. A client that reads slowly slows the run down; one
that is gone has it cancelled. Nothing of a run is kept but its figures.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from queue import Empty, Full, Queue
from typing import TYPE_CHECKING, Final

from afterglow.errors import AfterglowError
from afterglow.ledger.environment import SystemClock
from afterglow.pipeline.tier_verifier import VerifyControl

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from afterglow.ledger.environment import Clock
    from afterglow.pipeline.tier_verifier import ReportedFinding, TierVerifier, VerifyRequest
    from afterglow.verify import FindingKind

_log = logging.getLogger(__name__)

_BUFFERED: Final = 200
"""Findings: a millisecond of JSON."""
_FULL_POLL_S: Final = 0.1
"""How often a run whose buffer is full looks whether it was cancelled."""
_GRACE_S: Final = 5.0
"""For a run that is under way when the server ends."""
_FAULT: Final = "the server failed inside; its log says more"


class VerifyState(StrEnum):
    """How a run ended."""

    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class VerifyRunning(AfterglowError):
    """Another verification runs, or the server is shutting down."""


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """A run that has ended."""

    state: VerifyState
    error: str
    """Why it failed; empty otherwise."""
    started_ms: int
    ended_ms: int
    counts: Mapping[FindingKind, int]
    """Findings by kind, those that were swept included."""
    faults: int
    """Findings that are faults and still there."""
    deleted: Mapping[FindingKind, int]
    """What the sweep has deleted, by kind."""


@dataclass(frozen=True, slots=True)
class VerifyFigures:
    """All runs since the start in numbers."""

    running: int = 0
    ended: Mapping[VerifyState, int] = field(default_factory=dict)
    last: Mapping[bool, VerifyResult] = field(default_factory=dict)
    """The last run that is done, by whether it was a deep one."""
    deleted: Mapping[FindingKind, int] = field(default_factory=dict)
    """What sweeps have deleted."""


class VerifyRun:
    """One verification. Made by :meth:`VerifyRuns.start`; thread-safe for one reader."""

    def __init__(self, request: VerifyRequest, started_ms: int, on_change: Callable[[], None]) -> None:
        self.control = VerifyControl()
        self.result: VerifyResult | None = None
        """None while it runs. Set after the last finding was buffered."""
        self.request = request
        self.started_ms = started_ms
        self.counts: Counter[FindingKind] = Counter()
        self.deleted: Counter[FindingKind] = Counter()
        self.faults = 0
        self._on_change = on_change
        self._buffer: Queue[ReportedFinding] = Queue(_BUFFERED)

    def take(self) -> list[ReportedFinding]:
        """The findings that have come since the last call."""
        taken: list[ReportedFinding] = []
        try:
            while len(taken) < _BUFFERED:
                taken.append(self._buffer.get_nowait())
        except Empty:
            pass
        return taken

    def verify(self, open_verifier: Callable[[VerifyControl], TierVerifier]) -> tuple[VerifyState, str]:
        """Run to the end; gives the state, and why it failed. On a thread of its own."""
        try:
            verifier = open_verifier(self.control)
            with ExitStack() as stack:
                deep = stack.enter_context(verifier.deep(progress=self.control.on_bytes)) if self.request.deep else None
                for found in verifier.run(self.request, deep):
                    self._report(found)
        except Exception as error:  # noqa: BLE001 - whatever it is, the run has ended with it
            if self.control.cancelled:  # Spark, when cancelled, fails in words of its own
                return VerifyState.CANCELLED, ""
            known = isinstance(error, AfterglowError)
            _log.warning("verification failed: %s", error, exc_info=None if known else error)
            return VerifyState.FAILED, str(error) if known else _FAULT
        return VerifyState.DONE, ""

    def end(self, state: VerifyState, error: str, ended_ms: int) -> VerifyResult:
        """Set the result, and notify the reader."""
        self.result = VerifyResult(
            state, error, self.started_ms, ended_ms, dict(self.counts), self.faults, dict(self.deleted)
        )
        self._on_change()
        return self.result

    def _report(self, found: ReportedFinding) -> None:
        kind = found.finding.kind
        self.counts[kind] += 1
        self.deleted[kind] += found.deleted
        self.faults += found.fault
        while True:
            try:
                self._buffer.put(found, timeout=_FULL_POLL_S)
                break
            except Full:
                self.control.step()
        self._on_change()


class VerifyRuns:
    """The verification runs of a server. Thread-safe.

    Args:
        open_verifier: Makes the verifier of the server under a control.
        clock: Dates the runs.
    """

    def __init__(self, open_verifier: Callable[[VerifyControl], TierVerifier], clock: Clock | None = None) -> None:
        self._open_verifier = open_verifier
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._running: tuple[VerifyRun, threading.Thread] | None = None
        self._closed = False
        self._ended: Counter[VerifyState] = Counter()
        self._last: dict[bool, VerifyResult] = {}
        self._deleted: Counter[FindingKind] = Counter()

    def start(self, request: VerifyRequest, on_change: Callable[[], None]) -> VerifyRun:
        """Start a verification.

        Args:
            request: Its options.
            on_change: Called on another thread when there is a finding to take, and when the run has ended.

        Raises:
            VerifyRunning: Another one runs, or the server is shutting down.
        """
        with self._lock:
            if self._closed:
                raise VerifyRunning("the server is shutting down and starts no verification")
            if self._running is not None:
                raise VerifyRunning("another verification is running: wait for it to end, or interrupt its client")
            run = VerifyRun(request, self._clock.now_ms(), on_change)
            # A daemon: a store that does not answer must not keep the process alive.
            thread = threading.Thread(target=self._run, args=(run,), name="afterglow-verify", daemon=True)
            self._running = run, thread
            thread.start()
            return run

    def figures(self) -> VerifyFigures:
        """All runs in numbers."""
        with self._lock:
            deleted = self._deleted
            if self._running is not None:
                deleted = deleted + Counter(self._running[0].deleted)
            return VerifyFigures(int(self._running is not None), dict(self._ended), dict(self._last), dict(deleted))

    def close(self) -> None:
        """Start no more, and cancel the one that runs; it is left behind where it does not end within some seconds."""
        with self._lock:
            self._closed = True
            running = self._running
        if running is None:
            return
        run, thread = running
        run.control.cancel()
        thread.join(_GRACE_S)
        if thread.is_alive():
            _log.warning("the verification takes longer than %g s to end and is left behind", _GRACE_S)
            self._end(run, VerifyState.CANCELLED, "")

    def _run(self, run: VerifyRun) -> None:
        self._end(run, *run.verify(self._open_verifier))

    def _end(self, run: VerifyRun, state: VerifyState, error: str) -> None:
        with self._lock:  # so that a client that sees the end finds it counted, and may start the next
            if run.result is not None:
                return
            self._running = None
            self._ended[state] += 1
            self._deleted += Counter(run.deleted)
            result = run.end(state, error, self._clock.now_ms())
            if state is VerifyState.DONE:
                self._last[run.request.deep] = result
