"""Verification runs of a server: one at a time, each in its own thread, with the figures for its metrics.

Findings wait in a small buffer for the client. A client that reads slowly slows the run down; if it disconnects, the
run is cancelled. Only the figures of a run are kept.
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
"""Findings in the buffer: about a millisecond of JSON."""
_FULL_POLL_S: Final = 0.1
"""Interval at which a run with a full buffer checks for cancellation."""
_GRACE_S: Final = 5.0
"""Wait for a running verification at shutdown."""
_INTERNAL_ERROR: Final = "internal error of the server; see its log"


class VerifyState(StrEnum):
    """Result of a run."""

    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class VerifyRunning(AfterglowError):
    """Another verification runs, or the server is shutting down."""


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """Figures of an ended run."""

    state: VerifyState
    error: str
    """Reason of a failure; empty otherwise."""
    started_ms: int
    ended_ms: int
    counts: Mapping[FindingKind, int]
    """Findings by kind, including those that the sweep deleted."""
    faults: int
    """Findings that are faults and were not deleted."""
    deleted: Mapping[FindingKind, int]
    """Objects that the sweep has deleted, by kind of finding."""


@dataclass(frozen=True, slots=True)
class VerifyFigures:
    """Figures of all runs since the start."""

    running: int = 0
    ended: Mapping[VerifyState, int] = field(default_factory=dict)
    last: Mapping[bool, VerifyResult] = field(default_factory=dict)
    """The last completed run, by whether it was deep."""
    deleted: Mapping[FindingKind, int] = field(default_factory=dict)
    """Objects that sweeps have deleted, by kind of finding."""


class VerifyRun:
    """One verification. Created by :meth:`VerifyRuns.start`; thread-safe for one reader."""

    def __init__(self, request: VerifyRequest, started_ms: int, on_change: Callable[[], None]) -> None:
        self.control = VerifyControl()
        self.result: VerifyResult | None = None
        """None during the run. Set after the last finding was buffered."""
        self.request = request
        self.started_ms = started_ms
        self.counts: Counter[FindingKind] = Counter()
        self.deleted: Counter[FindingKind] = Counter()
        self.faults = 0
        self._on_change = on_change
        self._buffer: Queue[ReportedFinding] = Queue(_BUFFERED)

    def take(self) -> list[ReportedFinding]:
        """Return the findings since the last call."""
        taken: list[ReportedFinding] = []
        try:
            while len(taken) < _BUFFERED:
                taken.append(self._buffer.get_nowait())
        except Empty:
            pass
        return taken

    def verify(self, open_verifier: Callable[[VerifyControl], TierVerifier]) -> tuple[VerifyState, str]:
        """Run to the end, in its own thread; returns the state, and the reason of a failure."""
        try:
            verifier = open_verifier(self.control)
            with ExitStack() as stack:
                deep = stack.enter_context(verifier.deep(progress=self.control.on_bytes)) if self.request.deep else None
                for found in verifier.run(self.request, deep):
                    self._report(found)
        except Exception as error:  # noqa: BLE001 - any error ends the run
            if self.control.cancelled:  # a cancelled Spark job fails with an error of its own
                return VerifyState.CANCELLED, ""
            known = isinstance(error, AfterglowError)
            _log.warning("verification failed: %s", error, exc_info=None if known else error)
            return VerifyState.FAILED, str(error) if known else _INTERNAL_ERROR
        return VerifyState.DONE, ""

    def end(self, result: VerifyResult) -> None:
        """Set the result, and notify the reader."""
        self.result = result
        self._on_change()

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
        open_verifier: Creates the verifier of the server, with a control.
        clock: Clock for the times of runs.
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
            on_change: Called in another thread for every finding, and at the end of the run.

        Raises:
            VerifyRunning: Another run is active, or the server is shutting down.
        """
        with self._lock:
            if self._closed:
                raise VerifyRunning("the server is shutting down; no verification was started")
            if self._running is not None:
                raise VerifyRunning("another verification is running; wait for it to end, or interrupt its client")
            run = VerifyRun(request, self._clock.now_ms(), on_change)
            # A daemon: a store that does not answer must not keep the process alive.
            thread = threading.Thread(target=self._run, args=(run,), name="afterglow-verify", daemon=True)
            self._running = run, thread
            thread.start()
            return run

    def figures(self) -> VerifyFigures:
        """Figures of all runs."""
        with self._lock:
            deleted = self._deleted
            if self._running is not None:
                deleted = deleted + Counter(self._running[0].deleted)
            return VerifyFigures(int(self._running is not None), dict(self._ended), dict(self._last), dict(deleted))

    def close(self) -> None:
        """Refuse new runs, and cancel the active one; it is abandoned if it does not end within some seconds."""
        with self._lock:
            self._closed = True
            running = self._running
        if running is None:
            return
        run, thread = running
        run.control.cancel()
        thread.join(_GRACE_S)
        if thread.is_alive():
            _log.warning("the verification did not end within %g s, not waiting any longer", _GRACE_S)
            self._end(run, VerifyState.CANCELLED, "")

    def _run(self, run: VerifyRun) -> None:
        self._end(run, *run.verify(self._open_verifier))

    def _end(self, run: VerifyRun, state: VerifyState, error: str) -> None:
        with self._lock:  # so that a client that sees the end finds it counted, and can start the next run
            if run.result is not None:
                return
            self._running = None
            self._ended[state] += 1
            self._deleted += Counter(run.deleted)
            result = VerifyResult(
                state, error, run.started_ms, self._clock.now_ms(), dict(run.counts), run.faults, dict(run.deleted)
            )
            if state is VerifyState.DONE:
                self._last[run.request.deep] = result
            run.end(result)
