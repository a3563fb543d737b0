"""Figures of checks and sweeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from afterglow.engine.check_jobs import CheckState
from afterglow.verify import Kind

if TYPE_CHECKING:
    from afterglow.engine.check_jobs import CheckFigures
    from afterglow.engine.metrics.samples import Samples


def add_checks(samples: Samples, figures: CheckFigures) -> None:
    """Add what checks have found, and what sweeps have deleted."""
    samples.add("afterglow_checks_running", figures.running)
    for state in (CheckState.DONE, CheckState.FAILED, CheckState.CANCELLED):
        samples.add("afterglow_checks_total", figures.ended.get(state, 0), state)
    for kind in (Kind.ORPHAN_OBJECT, Kind.LEAKED_UPLOAD):
        samples.add("afterglow_sweep_deleted_total", figures.deleted.get(kind, 0), kind)
    for deep, view in figures.last.items():
        depth = "deep" if deep else "shallow"
        ended_ms = view.ended_ms or 0
        samples.add("afterglow_check_last_timestamp_seconds", ended_ms / 1000, depth)
        samples.add("afterglow_check_last_duration_seconds", (ended_ms - view.begun_ms) / 1000, depth)
        for kind in Kind:
            left = view.counts.get(kind, 0) - view.deleted.get(kind, 0)
            samples.add("afterglow_check_findings", left, depth, kind)
