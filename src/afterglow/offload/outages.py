"""Tiers of tasks, and what their results say of them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from afterglow.offload.task import PartTask
from afterglow.storage.health import FAILURES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from afterglow.errors import AfterglowError
    from afterglow.offload.task import PartResult, Task
    from afterglow.storage.health import TierHealth


def tier_of(task: Task) -> str | None:
    """Where a task writes, as its :class:`~afterglow.read.places.TierPlace` reads; None: only its driver knows."""
    if not isinstance(task, PartTask):
        return None
    endpoint = dict(task.options).get("endpoint")
    return f"{task.url} at {endpoint}" if endpoint else task.url


def note_begin(health: TierHealth, task: Task) -> None:
    """A task goes out, and will ask its tier for something in another process."""
    if (tier := tier_of(task)) is not None:
        health.began(tier, task.task_id)


def note_result(health: TierHealth, task: Task, result: PartResult) -> None:
    """A task has ended. One that failed for another reason says nothing of its tier."""
    if (tier := tier_of(task)) is None:
        return
    health.ended(tier, task.task_id)
    if result.error is None:
        health.answered(tier)
    elif isinstance(result.error, FAILURES):
        health.failed(tier, result.error)


def failure_level(health: TierHealth, error: AfterglowError, tiers: Iterable[str]) -> int:
    """How loud the log is about a failure: an outage of its tier is there already, once for all that wait for it."""
    known = isinstance(error, FAILURES) and any(health.outage(tier) is not None for tier in tiers)
    return logging.DEBUG if known else logging.WARNING
