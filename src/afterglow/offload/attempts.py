"""Attempts to offload whole ledgers, in the memory of the process that makes them, and how many may run at a time.

What survives a crash is in metadata.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from threading import RLock
    from uuid import UUID

    from afterglow.errors import AfterglowError
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.ledger.environment import Clock
    from afterglow.offload.blocks import BlockCopy, CopyOrder
    from afterglow.offload.offloader import LedgerOffloader
    from afterglow.offload.task import PartResult, Task


class Stage(Enum):
    """Progress of an attempt."""

    CLAIMED = auto()
    """No other attempt may begin; nothing was changed yet, or nothing but metadata."""
    COPYING = auto()
    """Its tasks wait or run."""
    ENDING = auto()
    """No task of it runs any more; the object is being finished and committed."""
    COMMITTING = auto()
    """The object is whole; its commit failed or had no known outcome, and is tried again."""


@dataclass(slots=True, eq=False)
class Attempt:
    """One ledger being offloaded. Guarded by the lock of its window, except what only its lane uses."""

    order: CopyOrder
    size_bytes: int
    """Bytes of the ledger's entries."""
    replaces: UUID | None
    """UUID of an earlier attempt that failed."""
    offloader: LedgerOffloader
    progress_s: float
    """When it last came further, by the clock that only passes."""
    stage: Stage = Stage.CLAIMED
    copy: BlockCopy | None = None
    """Of our own drivers."""
    tasks: tuple[Task, ...] = ()
    handed_out: int = 0
    """How many of the tasks, in their order."""
    results: dict[str, PartResult] = field(default_factory=dict)
    """By task."""
    cancelled: bool = False
    """The ledger is removed from the ledger list, or the topic is no longer ours: nothing is committed."""
    stalled: bool = False
    """Whether it was named as stalled."""
    failed_commits: int = 0
    retry_at_ms: int = 0
    """When the commit is tried again, epoch milliseconds."""

    @property
    def ledger_id(self) -> int:
        """The ledger."""
        return self.order.ledger_id

    @property
    def uuid(self) -> UUID:
        """Of this attempt alone."""
        return self.order.uuid

    @property
    def failure(self) -> AfterglowError | None:
        """Of the first task, in their order, that failed."""
        found = (self.results[task.task_id].error for task in self.tasks if task.task_id in self.results)
        return next((error for error in found if error is not None), None)

    @property
    def running(self) -> int:
        """Tasks that were handed out and have not ended."""
        return self.handed_out - len(self.results)

    @property
    def wants_more(self) -> bool:
        """Whether it has tasks to hand out, and they are of use."""
        return (
            self.stage is Stage.COPYING
            and self.handed_out < len(self.tasks)
            and not self.cancelled
            and self.failure is None
        )

    @property
    def ended(self) -> bool:
        """Whether no task runs, and none will."""
        return self.stage is Stage.COPYING and not self.running and not self.wants_more


MOST_LEDGERS: Final = 64
MOST_BYTES: Final = 1 << 30
"""Under way for one topic at a time. Polls come every second, so that this bounds a topic to 1 GiB/s; a larger ledger
is admitted alone, and its tasks go out within the same bound."""


class AttemptWindow:
    """The attempts of one topic. Thread-safe.

    Args:
        lock: Guards the attempts.
        clock: Dates the progress of attempts.
    """

    def __init__(self, lock: RLock, clock: Clock) -> None:
        self._lock = lock
        self._clock = clock
        self._attempts: dict[int, Attempt] = {}
        self._removing: set[int] = set()

    def __len__(self) -> int:
        return len(self._attempts)

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """All that are under way."""
        with self._lock:
            return tuple(self._attempts.values())

    @property
    def has_removals(self) -> bool:
        """Whether ledgers are about to leave the ledger list, of which nothing may begin."""
        with self._lock:
            return bool(self._removing)

    def copies(self, ledger_id: int) -> bool:
        """Whether a ledger is being copied, and is to be committed."""
        with self._lock:
            attempt = self._attempts.get(ledger_id)
            return attempt is not None and not attempt.cancelled

    def writes(self, uuid: UUID) -> bool:
        """Whether a task may still write an object of that UUID."""
        return any(attempt.uuid == uuid for attempt in self.attempts)

    # --- attempts -----------------------------------------------------------------------------------------------------

    def claim(
        self,
        rows: Collection[ManagedLedgerInfo.LedgerInfo],
        new_attempt: Callable[[ManagedLedgerInfo.LedgerInfo], Attempt],
    ) -> list[Attempt]:
        """Begin attempts for ledgers that have none and are not being removed, in order, as far as there is room."""
        claimed: list[Attempt] = []
        with self._lock:
            room_bytes = MOST_BYTES - sum(attempt.size_bytes for attempt in self._attempts.values())
            for row in rows:
                if row.ledgerId in self._attempts or row.ledgerId in self._removing:
                    continue
                full = len(self._attempts) >= MOST_LEDGERS or room_bytes < row.size
                if self._attempts and full:
                    break
                attempt = self._attempts[row.ledgerId] = new_attempt(row)
                claimed.append(attempt)
                room_bytes -= row.size
        return claimed

    def begin(self, attempts: Collection[Attempt]) -> None:
        """Let attempts that are ready hand out their tasks."""
        with self._lock:
            for attempt in attempts:
                attempt.stage = Stage.COPYING
                attempt.progress_s = self._clock.monotonic()

    def drop(self, attempt: Attempt) -> None:
        """End an attempt."""
        with self._lock:
            self._attempts.pop(attempt.ledger_id, None)

    def take_ended(self) -> list[Attempt]:
        """Attempts of which no task runs any more; each is given once."""
        with self._lock:
            ended = [attempt for attempt in self._attempts.values() if attempt.ended]
            for attempt in ended:
                attempt.stage = Stage.ENDING
            return ended

    def committing(self, now_ms: int) -> list[Attempt]:
        """Attempts whose commit is to be tried again now."""
        return [a for a in self.attempts if a.stage is Stage.COMMITTING and a.retry_at_ms <= now_ms]

    # --- ledgers to be removed ----------------------------------------------------------------------------------------

    def begin_removal(self, ledger_ids: Collection[int]) -> list[Attempt]:
        """Begin nothing for these ledgers, and commit nothing any more; returns what is under way for them."""
        with self._lock:
            self._removing.update(ledger_ids)
            return self.cancel(ledger_ids)

    def end_removal(self) -> None:
        """The ledgers have left the list, or stay after all."""
        with self._lock:
            self._removing.clear()

    def cancel(self, ledger_ids: Collection[int] | None = None) -> list[Attempt]:
        """Commit nothing any more, of these ledgers or of all; returns what is under way for them."""
        with self._lock:
            found = [a for a in self._attempts.values() if ledger_ids is None or a.ledger_id in ledger_ids]
            for attempt in found:
                attempt.cancelled = True
            return found

    # --- tasks --------------------------------------------------------------------------------------------------------

    def next_task(self) -> tuple[Task, int] | None:
        """A task to hand out, and the requests that come with it; None where none waits or enough are out."""
        with self._lock:
            out_bytes = sum(
                task.size_bytes
                for attempt in self._attempts.values()
                for task in attempt.tasks[: attempt.handed_out]
                if task.task_id not in attempt.results
            )
            attempt = next((a for a in self._attempts.values() if a.wants_more), None)
            if attempt is None:
                return None
            task = attempt.tasks[attempt.handed_out]
            if out_bytes and out_bytes + task.size_bytes > MOST_BYTES:
                return None
            # With an attempt's first task those of its owner: head and index, of several parts create and complete.
            owners = 0 if attempt.handed_out else 2 if len(attempt.tasks) == 1 else 4
            return task, 1 + owners

    def hand_out(self, task: Task) -> None:
        """The task that :meth:`next_task` gave goes out."""
        with self._lock:
            attempt = self._attempt_of(task)
            if attempt is not None:
                attempt.handed_out += 1
                attempt.progress_s = self._clock.monotonic()

    def on_task_result(self, task: Task, result: PartResult) -> bool:
        """Take a result, the first of each task; returns whether its attempt can be finished now."""
        with self._lock:
            attempt = self._attempt_of(task)
            if attempt is None or task.task_id in attempt.results:
                return False
            attempt.results[task.task_id] = result
            attempt.progress_s = self._clock.monotonic()
            attempt.stalled = False
            return attempt.ended

    def _attempt_of(self, task: Task) -> Attempt | None:
        return next((attempt for attempt in self._attempts.values() if attempt.order.key == task.key), None)
