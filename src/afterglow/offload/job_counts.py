"""How jobs of tasks went, in numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from threading import Lock
from typing import Final

JOB_SECONDS: Final = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Times by which jobs are told apart: from some small parts to a backlog of hours."""


@dataclass(frozen=True, slots=True)
class JobCounts:
    """Jobs since the start. One fails where it leaves tasks undone; a task that was done and says no is none."""

    running: int = 0
    """Begun and not ended, those that wait for a thread included."""
    succeeded: int = 0
    failed: int = 0
    seconds: float = 0.0
    """Of those that have ended, from when they were handed in."""
    within: tuple[int, ...] = (0,) * len(JOB_SECONDS)
    """How many of those took no longer than each of ``JOB_SECONDS``."""


class JobCounters:
    """Counts jobs. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts = JobCounts()

    def begun(self) -> None:
        """A job was handed in."""
        with self._lock:
            self._counts = replace(self._counts, running=self._counts.running + 1)

    def ended(self, seconds: float, *, failed: bool) -> None:
        """A job has ended."""
        with self._lock:
            known = self._counts
            self._counts = JobCounts(
                known.running - 1,
                known.succeeded + (not failed),
                known.failed + failed,
                known.seconds + seconds,
                tuple(count + (seconds <= most) for count, most in zip(known.within, JOB_SECONDS, strict=True)),
            )

    def counts(self) -> JobCounts:
        """The counts as of now."""
        return self._counts
