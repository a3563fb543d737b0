"""From the attempts of all topics to jobs: what waits and may go out, goes out together."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from afterglow.errors import AfterglowError, StorageError
from afterglow.offload.task import failed
from afterglow.offload.throttle import Admission

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from threading import RLock

    from afterglow.ledger.clock import Clock
    from afterglow.offload.runner import TaskRunner
    from afterglow.offload.task import PartResult, Task
    from afterglow.offload.topic import TopicOffload

_log = logging.getLogger(__name__)


class Dispatcher:
    """Hands tasks out to a runner. Thread-safe; never waits.

    Args:
        runner: Runs them.
        clock: For rates, and for what stands still.
        lock: Guards the attempts.
        ended: Told of every task that has ended.
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
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody must wait for these tasks
            _log.warning("no job could be started: %s", error)
            told = error if isinstance(error, AfterglowError) else StorageError(f"no job could be started: {error!r}")
            for task in tasks:
                self._ended(task, failed(task, told))

    def name_stalled(self, topics: Collection[TopicOffload], patience_s: float) -> None:
        """Name attempts in the log that have not come further for so many seconds; each once."""
        with self._lock:
            since_s = self._clock.monotonic() - patience_s
            for topic in topics:
                if (stream := topic.stream.stalled(self._clock.now_ms(), patience_s)) is not None:
                    first = stream.uploads[0]
                    _log.warning(
                        "segment %s of %s, from %s on, has not come further for %d s: %d of %d parts are uploaded; %s",
                        *(first.uuid, topic.name, first.begin, patience_s, len(first.record.done)),
                        *(len(first.record.planned), stream.error or first.record.last_error or "no error was told"),
                    )
                for attempt in topic.window.attempts:
                    if attempt.stalled or attempt.progress_s > since_s:
                        continue
                    attempt.stalled = True
                    _log.warning(
                        "the offload of ledger %d of %s has not come further for %d s: it is %s, %d of %d tasks ended",
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
