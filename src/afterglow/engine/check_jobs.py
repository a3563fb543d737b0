"""Checks of a running engine, one at a time, each on a thread of its own.

Of the last few jobs everything is kept that was found, up to a number of findings of each kind: a bucket may hold
millions of others' objects, which must not crowd out what is wrong. What is past it is counted.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from afterglow.engine.check_watch import Progress, Watch
from afterglow.errors import AfterglowError
from afterglow.ledger.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from afterglow.engine.checking import CheckRequest, TierChecker, Told
    from afterglow.ledger.clock import Clock
    from afterglow.verify import Kind

_log = logging.getLogger(__name__)

KEPT_OF_A_KIND: Final = 1_000
"""Findings: with all eleven kinds some five megabytes for a job."""
_KEPT_JOBS: Final = 8
_GRACE_S: Final = 5.0
"""For a check that runs when the engine ends."""
_FAULT: Final = "the engine failed inside; its log says more"


class CheckState(StrEnum):
    """Where a job stands."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class CheckRunning(AfterglowError):
    """A check runs already: wait for it to end, or cancel it."""


@dataclass(frozen=True, slots=True)
class CheckView:
    """A job as of now."""

    id: str
    request: CheckRequest
    state: CheckState
    begun_ms: int
    ended_ms: int | None
    progress: Progress
    counts: Mapping[Kind, int]
    """Findings so far by kind, those that were swept included."""
    faults: int
    """Findings so far that are faults and still there."""
    deleted: Mapping[Kind, int]
    """What the sweep has deleted so far, by kind."""
    kept: int
    """Findings that can be had."""
    error: str
    """Why it failed; empty otherwise."""


@dataclass(frozen=True, slots=True)
class CheckFigures:
    """All checks since the start in numbers."""

    running: int = 0
    ended: Mapping[CheckState, int] = field(default_factory=dict)
    """Jobs by how they ended."""
    last: Mapping[bool, CheckView] = field(default_factory=dict)
    """The last that came to its end, by whether it was a deep one."""
    deleted: Mapping[Kind, int] = field(default_factory=dict)
    """What sweeps have deleted."""


class CheckJob:
    """One check. Made by :meth:`CheckJobs.begin`; thread-safe."""

    def __init__(self, request: CheckRequest, begun_ms: int) -> None:
        self.id = str(uuid4())
        self.watch = Watch()
        self._lock = threading.Lock()
        self._view = CheckView(self.id, request, CheckState.QUEUED, begun_ms, None, Progress(), {}, 0, {}, 0, "")
        self._counts: Counter[Kind] = Counter()
        self._deleted: Counter[Kind] = Counter()
        self._faults = 0
        self._kept: list[Told] = []

    def view(self) -> CheckView:
        """The job as of now."""
        with self._lock:
            return replace(
                self._view,
                progress=self.watch.progress,
                counts=dict(self._counts),
                faults=self._faults,
                deleted=dict(self._deleted),
                kept=len(self._kept),
            )

    def findings(self, start: int, count: int) -> Sequence[Told]:
        """Findings that were kept, in the order in which they were made."""
        with self._lock:
            return self._kept[start : start + count]

    def cancel(self) -> None:
        """Have it end at its next step; one that has ended stays as it is."""
        if self.view().ended_ms is None:
            self.watch.cancel()

    def run(self, open_checker: Callable[[Watch], TierChecker]) -> tuple[CheckState, str]:
        """Run it to its end; gives how that came, and why where it failed. On a thread of its own."""
        with self._lock:
            self._view = replace(self._view, state=CheckState.RUNNING)
        try:
            self._check(open_checker(self.watch))
        except Exception as error:  # noqa: BLE001 - whatever it is, the job has ended with it
            if self.watch.cancelled:  # Spark, told to end, fails in words of its own
                return CheckState.CANCELLED, ""
            known = isinstance(error, AfterglowError)
            _log.warning("check %s failed: %s", self.id, error, exc_info=None if known else error)
            return CheckState.FAILED, str(error) if known else _FAULT
        return CheckState.DONE, ""

    def end(self, state: CheckState, error: str, ended_ms: int) -> None:
        """Have it stand at its end."""
        with self._lock:
            self._view = replace(self._view, state=state, error=error, ended_ms=ended_ms)

    def _check(self, checker: TierChecker) -> None:
        request = self._view.request
        with ExitStack() as stack:
            objects = stack.enter_context(checker.deep(progress=self.watch.read_bytes)) if request.deep else None
            for told in checker.run(request, objects):
                self._take(told)

    def _take(self, told: Told) -> None:
        kind = told.finding.kind
        with self._lock:
            self._counts[kind] += 1
            self._deleted[kind] += told.deleted
            self._faults += told.fault
            if self._counts[kind] <= KEPT_OF_A_KIND:
                self._kept.append(told)


class CheckJobs:
    """The checks of an engine. Thread-safe.

    Args:
        open_checker: Gives the checker of the engine, whose steps a watch is told of.
        clock: Dates the jobs.
    """

    def __init__(self, open_checker: Callable[[Watch], TierChecker], clock: Clock | None = None) -> None:
        self._open_checker = open_checker
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._jobs: deque[CheckJob] = deque(maxlen=_KEPT_JOBS)
        self._running: threading.Thread | None = None
        self._closed = False
        self._ended: Counter[CheckState] = Counter()
        self._last: dict[bool, CheckView] = {}
        self._deleted: Counter[Kind] = Counter()

    def begin(self, request: CheckRequest) -> CheckJob:
        """Begin a check.

        Raises:
            CheckRunning: One runs already, or the engine is about to end.
        """
        with self._lock:
            if self._closed:
                raise CheckRunning("the engine is shutting down, and begins no check")
            if self._running is not None:
                raise CheckRunning(f"check {self._jobs[-1].id} still runs: wait for it to end, or cancel it")
            job = CheckJob(request, self._clock.now_ms())
            self._jobs.append(job)
            # A daemon: a store that does not answer must not keep the process alive.
            self._running = threading.Thread(target=self._run, args=(job,), name="afterglow-check", daemon=True)
            self._running.start()
            return job

    def jobs(self) -> tuple[CheckJob, ...]:
        """The last few, the newest first."""
        with self._lock:
            return tuple(reversed(self._jobs))

    def job(self, job_id: str) -> CheckJob | None:
        """One of them; None where there is none of that id any more."""
        return next((job for job in self.jobs() if job.id == job_id), None)

    def figures(self) -> CheckFigures:
        """All of them in numbers."""
        with self._lock:
            swept = self._deleted
            if self._running is not None:
                swept = swept + Counter(self._jobs[-1].view().deleted)
            return CheckFigures(int(self._running is not None), dict(self._ended), dict(self._last), dict(swept))

    def close(self) -> None:
        """Begin no more, and have the one that runs end; it is left behind where it does not within some seconds."""
        with self._lock:
            self._closed = True
            running = self._running
            job = self._jobs[-1] if self._jobs else None
        if running is None or job is None:
            return
        job.cancel()
        running.join(_GRACE_S)
        if running.is_alive():
            _log.warning("check %s takes longer than %g s to end and is left behind", job.id, _GRACE_S)

    def _run(self, job: CheckJob) -> None:
        state, error = job.run(self._open_checker)
        with self._lock:  # so that whoever sees the end finds it counted, and the way free for the next
            job.end(state, error, self._clock.now_ms())
            view = job.view()
            self._running = None
            self._ended[state] += 1
            self._deleted += Counter(view.deleted)
            if state is CheckState.DONE:
                self._last[view.request.deep] = view
