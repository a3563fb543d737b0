"""Whole ledgers offloaded by drivers that are not ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from afterglow.errors import NotSupported
from afterglow.offload.task import failed

if TYPE_CHECKING:
    from afterglow.offload.task import LedgerTask, OpenLedger, PartResult


def run_ledger(task: LedgerTask, *, open_ledger: OpenLedger | None = None) -> PartResult:  # noqa: ARG001 - stub
    """Do a task."""
    return failed(task, NotSupported("no driver"))
