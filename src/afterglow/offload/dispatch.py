"""Dispatch of tasks of all topics to a runner as jobs, at the rates that policies allow.

A task is admitted while no bucket that it draws on is in debt, and may then bring them into debt by its size: so the
rate holds over time for tasks of any size, and no thread waits. A task that is not admitted is offered again at the
next tick.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from afterglow.errors import AfterglowError, StorageError
from afterglow.offload.attempts import MOST_BYTES
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


class TaskRunner(Protocol):
    """Runs tasks somewhere else, many at a time. Thread-safe."""

    def submit(self, tasks: Sequence[Task], done: Callable[[Task, PartResult], None]) -> None:
        """Run tasks as one job; returns at once.

        Args:
            tasks: At least one; :func:`run_task` does each of them.
            done: Called once per task, from any thread, as soon as that task has ended, also where the job failed as a
                whole. It must not block.
        """
        ...

    def close(self) -> None:
        """Run no further task. What is under way may go on; ``done`` need not be called for it any more."""
        ...


class Dispatcher:
    """Hands tasks out to a runner. Thread-safe; never waits.

    Args:
        runner: Runs them.
        clock: For rates, and for what stands still.
        lock: Guards the attempts.
        ended: Called for every task that has ended.
    """

    def __init__(
        self, runner: TaskRunner, clock: Clock, lock: RLock, ended: Callable[[Task, PartResult], None]
    ) -> None:
        self._runner = runner
        self._clock = clock
        self._lock = lock
        self._ended = ended
        self._admission = Admission(clock)

    def hand_out(self, topics: Collection[TopicOffload]) -> None:
        """Give the runner what waits and may go out, of all topics in turn, as one job."""
        tasks: list[Task] = []
        with self._lock:
            waiting = list(topics)
            while waiting:
                waiting = [topic for topic in waiting if self._admit(topic, tasks)]
        if not tasks:
            return
        try:
            self._runner.submit(tasks, self._ended)
        except Exception as error:  # noqa: BLE001 - of any kind: no topic must wait for these tasks
            _log.warning("no job could be started: %s", error)
            cause = error if isinstance(error, AfterglowError) else StorageError(f"no job could be started: {error!r}")
            for task in tasks:
                self._ended(task, failed(task, cause))

    def name_stalled(self, topics: Collection[TopicOffload], patience_s: float) -> None:
        """Log attempts that have made no progress for so many seconds; each once."""
        with self._lock:
            since_s = self._clock.monotonic() - patience_s
            for topic in topics:
                if (first := topic.stalled_segment(patience_s)) is not None:
                    _log.warning(
                        "segment %s of %s, from %s on, has made no progress for %d s: %d of %d parts are uploaded; %s",
                        *(first.uuid, topic.name, first.begin, patience_s, len(first.record.done)),
                        *(len(first.record.planned), topic.stream_error or first.record.last_error or "no error known"),
                    )
                for attempt in topic.window.attempts:
                    if attempt.stalled or attempt.progress_s > since_s:
                        continue
                    attempt.stalled = True
                    _log.warning(
                        "the offload of ledger %d of %s has made no progress for %d s: it is %s, %d of %d tasks ended",
                        *(attempt.ledger_id, topic.name, patience_s, attempt.stage.name.lower()),
                        *(len(attempt.results), len(attempt.tasks)),
                    )

    def forget(self, name: str) -> None:
        """Drop what is held for a topic."""
        with self._lock:
            self._admission.forget(name)

    def _admit(self, topic: TopicOffload, tasks: list[Task]) -> bool:
        """Take one task of a topic; returns whether there was one that may go out."""
        found = topic.next_task()
        if found is None or not self._admission.open(topic.name, topic.policy):
            return False
        task, requests = found
        self._admission.charge(topic.name, topic.policy, task.size_bytes, requests)
        topic.hand_out(task)
        tasks.append(task)
        return True


class _Rated(NamedTuple):
    rate: int
    bucket: TokenBucket


class SegmentTasks:
    """Tasks of one topic's segments that wait or run. Thread-safe.

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
        """Have tasks wait."""
        with self._lock:
            self._waiting.extend(tasks)

    def drop_waiting(self) -> None:
        """Drop the tasks that wait."""
        with self._lock:
            self._waiting.clear()

    def next_task(self) -> tuple[StreamTask, int] | None:
        """A task to hand out, and the requests that come with it; None where none waits or enough are out."""
        with self._lock:
            if not self._waiting:
                return None
            task = self._waiting[0]
            out_bytes = sum(running.size_bytes for running in self._running.values())
            if out_bytes and out_bytes + task.size_bytes > MOST_BYTES:
                return None
            # With a segment's first part those of its owner: head, index, its check; of several also create, complete.
            several = isinstance(task, PartTask) and task.upload_id is not None
            owners = 0 if task.number > 1 else 5 if several else 3
            return task, 1 + owners

    def hand_out(self, task: StreamTask) -> None:
        """The task that :meth:`next_task` gave goes out."""
        with self._lock:
            self._waiting.popleft()
            self._running[task.task_id] = task

    def end(self, task: StreamTask) -> bool:
        """Take note that a task has ended; returns whether it was running here: each ends once."""
        with self._lock:
            return self._running.pop(task.task_id, None) is not None

    def writes(self, uuid: UUID) -> bool:
        """Whether a task may still write an object of that UUID."""
        with self._lock:
            return any(task.key == str(uuid) for task in self._running.values())


class Admission:
    """Buckets of bytes and requests, for the process and for each topic. Not thread-safe.

    Args:
        clock: Tokens are earned by its time that only passes.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._buckets: dict[tuple[str, str], _Rated] = {}

    def open(self, name: str, policy: BrokerConfig) -> bool:
        """Whether a task of the topic may be handed out now."""
        return all(bucket.charge(0) <= 0 for _, bucket in self._of(name, policy))

    def charge(self, name: str, policy: BrokerConfig, size_bytes: int, requests: int) -> None:
        """Take note of a task that is handed out."""
        for unit, bucket in self._of(name, policy):
            bucket.charge(size_bytes if unit == "bytes" else requests)

    def forget(self, name: str) -> None:
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
            if known is None or known.rate != rate:  # a policy was changed: the new rate holds from a full bucket on
                known = self._buckets[owner, unit] = _Rated(rate, TokenBucket(rate, clock=self._clock.monotonic))
            yield unit, known.bucket


JOB_SECONDS: Final = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Buckets of job durations: from some small parts to a backlog of hours."""


@dataclass(frozen=True, slots=True)
class JobCounts:
    """Jobs since the start. A job fails where it leaves tasks undone, not where a task's result is an error."""

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
