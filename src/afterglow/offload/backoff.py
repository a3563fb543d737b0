"""Backoff of ledgers and segments after failures, and reports of task results to the health of tiers.

An upload is retried at three levels:

- A request: :mod:`afterglow.storage.retry`, within the deadline of the request.
- A segment: :mod:`afterglow.offload.segments.topic_stream` resumes it with the parts that are missing.
- A ledger: :class:`LedgerBackoff` says when :mod:`afterglow.offload.ledger_offload` begins the next attempt.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from afterglow.offload.task import PartTask
from afterglow.pacing import Backoff
from afterglow.storage.health import FAILURES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from afterglow.config import BrokerConfig
    from afterglow.errors import AfterglowError
    from afterglow.offload.environment import OffloadEnvironment
    from afterglow.offload.task import PartResult, Task
    from afterglow.storage.health import TierHealth


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LedgerFailure:
    """Failed attempts to offload or to free a ledger."""

    error: str
    """The last error, in one line."""
    attempts: int
    """Number of attempts that failed in a row."""
    retry_at_ms: int
    """Time of the next attempt, epoch milliseconds; only a manual offload retries earlier."""


class LedgerBackoff:
    """Failures by ledger, retried with exponential backoff. Guarded by the environment's lock.

    Args:
        name: The managed-ledger name.
        environment: Clock, schedule, and backoff settings.
    """

    def __init__(self, name: str, environment: OffloadEnvironment) -> None:
        self._name = name
        self._env = environment
        self._by_ledger: dict[int, LedgerFailure] = {}
        self.last_ms = 0
        """Time of the last failure, epoch milliseconds; 0: none."""

    def __len__(self) -> int:
        return len(self._by_ledger)

    def snapshot(self) -> dict[int, LedgerFailure]:
        """All failures, by ledger."""
        with self._env.lock:
            return dict(self._by_ledger)

    def is_retry_due(self, ledger_id: int, now_ms: int) -> bool:
        """Whether a ledger may be tried now."""
        with self._env.lock:
            failure = self._by_ledger.get(ledger_id)
            return failure is None or failure.retry_at_ms <= now_ms

    def record(self, ledger_id: int, error: AfterglowError, what: str, tiers: Iterable[str]) -> None:
        """Record a failure; the ledger is retried with exponential backoff.

        Args:
            ledger_id: The ledger whose copy failed.
            error: The failure.
            what: Consequence for the ledger, for the log message.
            tiers: Tiers that its copy is in, or was to be written to.
        """
        now_ms = self._env.clock.now_ms()
        with self._env.lock:
            known = self._by_ledger.get(ledger_id)
            attempts = 1 if known is None else known.attempts + 1
            failure = LedgerFailure(str(error), attempts, now_ms + backoff_ms(self._env.policies.config, attempts))
            self._by_ledger[ledger_id] = failure
            self.last_ms = now_ms
        self._env.schedule.put(self._name, failure.retry_at_ms)
        level = failure_level(self._env.tiers.health, error, tiers)
        _log.log(level, "ledger %d of %s %s, attempt %d: %s", ledger_id, self._name, what, attempts, error)

    def retry_now(self) -> None:
        """End all backoffs; the numbers of failed attempts are kept."""
        with self._env.lock:
            self._by_ledger = {id_: replace(failure, retry_at_ms=0) for id_, failure in self._by_ledger.items()}

    def remove(self, ledger_id: int) -> None:
        """Remove the failure of a ledger that succeeded, or needs no retry."""
        with self._env.lock:
            self._by_ledger.pop(ledger_id, None)

    def retain(self, ledger_ids: Collection[int]) -> None:
        """Remove all failures but those of these ledgers: the others are in the tier, or not in the ledger list."""
        with self._env.lock:
            for ledger_id in self._by_ledger.keys() - set(ledger_ids):
                del self._by_ledger[ledger_id]


def backoff_ms(policy: BrokerConfig, failures: int) -> int:
    """Time before the next attempt, which doubles with each failure in a row up to a limit. At least one failure."""
    first, longest = policy.offload_retry_min_backoff_millis, policy.offload_retry_max_backoff_millis
    return int(Backoff(first, longest).delay(failures))


def tier_of(task: Task) -> str | None:
    """The tier that a task writes to, as ``str(TierLocation)``; None if only its driver knows it."""
    if not isinstance(task, PartTask):
        return None
    endpoint = dict(task.options).get("endpoint")
    return f"{task.url} at {endpoint}" if endpoint else task.url


def report_task_begin(health: TierHealth, task: Task) -> None:
    """Report that a task goes out, which will send requests to its tier from another process."""
    if (tier := tier_of(task)) is not None:
        health.began(tier, task.task_id)


def report_task_result(health: TierHealth, task: Task, result: PartResult) -> None:
    """Report the result of a task. Failures that are not the tier's do not count."""
    if (tier := tier_of(task)) is None:
        return
    health.ended(tier, task.task_id)
    if result.error is None:
        health.answered(tier)
    elif isinstance(result.error, FAILURES):
        health.failed(tier, result.error)


def failure_level(health: TierHealth, error: AfterglowError, tiers: Iterable[str]) -> int:
    """Log level of a failure: debug if an outage of its tier explains it, which was logged once already."""
    known = isinstance(error, FAILURES) and any(health.outage(tier) is not None for tier in tiers)
    return logging.DEBUG if known else logging.WARNING
