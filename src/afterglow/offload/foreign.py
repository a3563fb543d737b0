"""Whole ledgers offloaded by drivers that are not ours, as one task each."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from afterglow.errors import AfterglowError, HotLogError
from afterglow.offload.drivers import offloader_of
from afterglow.offload.task import PartResult, failed, open_home_ledger
from afterglow.read.places import Tiers

if TYPE_CHECKING:
    from afterglow.offload.task import LedgerTask, OpenLedger

_tiers = Tiers()


def run_ledger(task: LedgerTask, *, open_ledger: OpenLedger | None = None) -> PartResult:
    """Do a task; see :func:`~afterglow.offload.task.run_part`. How much memory it takes is up to the driver."""
    opener = open_ledger or (lambda ledger_id: open_home_ledger(task.home, task.instance, ledger_id))
    started = time.perf_counter()
    try:
        offloader = offloader_of(task.policy, task.own, _tiers)
        with opener(task.ledger_id) as ledger:
            if ledger.confirmed + 1 != task.entries:
                raise HotLogError(
                    f"ledger {task.ledger_id} has {ledger.confirmed + 1} entries as seen here, and {task.entries} are "
                    "to be offloaded; the engine has not written it back yet"
                )
            offloader.offload(ledger, task.uuid, dict(task.metadata))
    except AfterglowError as error:
        return failed(task, error)
    return PartResult(task.task_id, None, (), None, upload_seconds=time.perf_counter() - started)
