"""Dispatch of the tasks of all topics to a runner as jobs, at the rates that policies allow.

A task is admitted while no token bucket that it draws on is in debt, and may then bring them into debt by its size: so
the rate is kept over time for tasks of any size, and no thread waits. A task that is not admitted waits for the next
tick.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from afterglow.errors import AfterglowError, StorageError
from afterglow.offload.task import PartTask, failed
from afterglow.pacing import TokenBucket

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from threading import RLock
    from uuid import UUID

    from afterglow.config import BrokerConfig
    from afterglow.ledger.environment import Clock
    from afterglow.offload.task import PartResult, StreamTask, Task
    from afterglow.offload.topic_offload import TopicOffload

_log = logging.getLogger(__name__)

MAX_RUNNING_BYTES: Final = 1 << 30
"""Bytes of one topic's tasks that run at a time; a larger task runs alone."""


class TaskRunner(Protocol):
    """Runs tasks in other threads or processes, many at a time. Thread-safe."""

    def prepare(self) -> None:
        """Start what tasks run on, since some will come soon; returns at once. Further calls have no effect.

        A failure is logged; the first job tries again and reports it.
        """
        ...

    def submit(self, tasks: Sequence[Task], done: Callable[[Task, PartResult], None]) -> None:
        """Run tasks as one job; returns at once.

        Args:
            tasks: At least one; each is run by :func:`~afterglow.offload.task.run_task`.
            done: Called once per task, from any thread, as soon as that task has ended, also if the job failed as a
                whole. It must not block.
        """
        ...

    def close(self) -> None:
        """Run no further task. Running tasks may complete; ``done`` need not be called for them any more."""
        ...


class TaskDispatcher:
    """Hands tasks out to a runner. Thread-safe; never waits.

    Args:
        runner: Runs the tasks.
        clock: Time for rates and for stalled attempts.
        lock: Guards the attempts.
        on_result: Called for every task that has ended.
    """

    def __init__(
        self, runner: TaskRunner, clock: Clock, lock: RLock, on_result: Callable[[Task, PartResult], None]
    ) -> None:
        self._runner = runner
        self._clock = clock
        self._lock = lock
        self._on_result = on_result
        self._throttle = TaskThrottle(clock)

    def hand_out(self, topics: Collection[TopicOffload]) -> None:
        """Submit waiting tasks that rates admit, of all topics in turn, as one job."""
        tasks: list[Task] = []
        with self._lock:
            waiting = list(topics)
            while waiting:
                waiting = [topic for topic in waiting if self._admit(topic, tasks)]
        if not tasks:
            return
        try:
            self._runner.submit(tasks, self._on_result)
        except Exception as error:  # noqa: BLE001 - of any kind: no topic must wait for these tasks
            _log.warning("cannot start an offload job: %s", error)
            cause = (
                error if isinstance(error, AfterglowError) else StorageError(f"cannot start an offload job: {error!r}")
            )
            for task in tasks:
                self._on_result(task, failed(task, cause))

    def log_stalled(self, topics: Collection[TopicOffload], stalled_s: float) -> None:
        """Log attempts and segments that have made no progress for ``stalled_s`` seconds; each once."""
        with self._lock:
            since_s = self._clock.monotonic() - stalled_s
            for topic in topics:
                if (first := topic.newly_stalled_segment(stalled_s)) is not None:
                    _log.warning(
                        "segment %s of %s, from %s on, has made no progress for %d s: %d of %d parts are uploaded; %s",
                        *(first.uuid, topic.name, first.begin, stalled_s, len(first.record.done)),
                        *(len(first.record.planned), topic.stream_error or first.record.last_error or "no error known"),
                    )
                for attempt in topic.ledgers.attempts:
                    if attempt.stalled or attempt.progress_s > since_s:
                        continue
                    attempt.stalled = True
                    _log.warning(
                        "the offload of ledger %d of %s has made no progress for %d s: it is %s, %d of %d tasks ended",
                        *(attempt.ledger_id, topic.name, stalled_s, attempt.stage.name.lower()),
                        *(len(attempt.results), len(attempt.tasks)),
                    )

    def drop(self, name: str) -> None:
        """Drop the token buckets of a topic."""
        with self._lock:
            self._throttle.drop(name)

    def _admit(self, topic: TopicOffload, tasks: list[Task]) -> bool:
        """Take one task of a topic; returns whether one was admitted."""
        found = topic.next_task()
        if found is None or not self._throttle.admits(topic.name, topic.policy):
            return False
        task, requests = found
        self._throttle.charge(topic.name, topic.policy, task.size_bytes, requests)
        topic.hand_out(task)
        tasks.append(task)
        return True


class SegmentTasks:
    """Waiting and running tasks of one topic's segments. Thread-safe.

    Args:
        lock: Guards them.
    """

    def __init__(self, lock: RLock) -> None:
        self._lock = lock
        self._waiting: deque[StreamTask] = deque()
        self._running: dict[str, StreamTask] = {}

    def __len__(self) -> int:
        with self._lock:
            return len(self._waiting) + len(self._running)

    def add(self, tasks: Collection[StreamTask]) -> None:
        """Add waiting tasks."""
        with self._lock:
            self._waiting.extend(tasks)

    def drop_waiting(self) -> None:
        """Drop the waiting tasks."""
        with self._lock:
            self._waiting.clear()

    def next_task(self) -> tuple[StreamTask, int] | None:
        """The next task to hand out, and the number of its requests; None if none waits or the limit is reached."""
        with self._lock:
            if not self._waiting:
                return None
            task = self._waiting[0]
            running_bytes = sum(running.size_bytes for running in self._running.values())
            if running_bytes and running_bytes + task.size_bytes > MAX_RUNNING_BYTES:
                return None
            # The first part also pays for the owner's requests: create and complete of the upload, head, index, its
            # check. A driver's task makes them itself.
            owners = 0 if task.number > 1 else 5 if isinstance(task, PartTask) else 3
            return task, 1 + owners

    def hand_out(self, task: StreamTask) -> None:
        """Count the task that :meth:`next_task` returned as running."""
        with self._lock:
            self._waiting.popleft()
            self._running[task.task_id] = task

    def end(self, task: StreamTask) -> bool:
        """Remove a task that has ended; returns whether it was running here: each ends once."""
        with self._lock:
            return self._running.pop(task.task_id, None) is not None

    def is_writing(self, uuid: UUID) -> bool:
        """Whether a task may still write an object of a UUID."""
        with self._lock:
            return any(task.key == str(uuid) for task in self._running.values())


class _RatedBucket(NamedTuple):
    rate: int
    bucket: TokenBucket


class TaskThrottle:
    """Token buckets of bytes and requests, for the process and for each topic. Not thread-safe.

    Args:
        clock: Tokens accrue by its monotonic time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._buckets: dict[tuple[str, str], _RatedBucket] = {}

    def admits(self, name: str, policy: BrokerConfig) -> bool:
        """Whether a task of the topic may be handed out now."""
        return all(bucket.charge(0) <= 0 for _, bucket in self._of(name, policy))

    def charge(self, name: str, policy: BrokerConfig, size_bytes: int, requests: int) -> None:
        """Charge a task that is handed out."""
        for unit, bucket in self._of(name, policy):
            bucket.charge(size_bytes if unit == "bytes" else requests)

    def drop(self, name: str) -> None:
        """Drop the buckets of a topic."""
        for unit in ("bytes", "requests"):
            self._buckets.pop((name, unit), None)

    def _of(self, name: str, policy: BrokerConfig) -> Iterator[tuple[str, TokenBucket]]:
        for owner, unit, rate in (
            ("", "bytes", policy.offload_throttling_rate_in_bytes),
            ("", "requests", policy.offload_throttling_rate_in_requests),
            (name, "bytes", policy.offload_throttling_rate_per_topic_in_bytes),
            (name, "requests", policy.offload_throttling_rate_per_topic_in_requests),
        ):
            if not rate:
                self._buckets.pop((owner, unit), None)
                continue
            known = self._buckets.get((owner, unit))
            if known is None or known.rate != rate:  # the policy was changed: the new rate starts with a full bucket
                known = self._buckets[owner, unit] = _RatedBucket(rate, TokenBucket(rate, clock=self._clock.monotonic))
            yield unit, known.bucket


JOB_SECONDS: Final = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Histogram buckets of job durations: from some small parts to a backlog of hours."""


@dataclass(frozen=True, slots=True)
class JobCounts:
    """Jobs since the start. A job fails if it leaves tasks undone, not if the result of a task is an error."""

    running: int = 0
    """Submitted and not ended, also if they wait for a thread."""
    succeeded: int = 0
    failed: int = 0
    seconds: float = 0.0
    """Of jobs that have ended, from their submission."""
    within: tuple[int, ...] = (0,) * len(JOB_SECONDS)
    """Number of ended jobs that took no longer than each of ``JOB_SECONDS``."""


class JobCounters:
    """Counts jobs. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts = JobCounts()

    def begun(self) -> None:
        """Count a submitted job."""
        with self._lock:
            self._counts = replace(self._counts, running=self._counts.running + 1)

    def ended(self, seconds: float, *, failed: bool) -> None:
        """Count an ended job."""
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
        """The current counts."""
        return self._counts
