"""Whole ledgers offloaded by drivers that are not ours, as one task each."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from afterglow.errors import AfterglowError, HotLogError
from afterglow.hot.pulsar.runs import LedgerRange
from afterglow.offload.drivers import offloader_of
from afterglow.offload.reach import Route, reach
from afterglow.offload.task import PartResult, failed
from afterglow.read.places import Tiers

if TYPE_CHECKING:
    from afterglow.offload.task import LedgerTask, OpenLedger

_tiers = Tiers()


def run_ledger(task: LedgerTask, *, open_ledger: OpenLedger | None = None) -> PartResult:
    """Do a task; see :func:`~afterglow.offload.task.run_part`. How much memory it takes is up to the driver."""
    route: Route | None = None
    started = time.perf_counter()
    try:
        offloader = offloader_of(task.policy, task.own, _tiers)
        with ExitStack() as held:
            if open_ledger is None:
                whole = LedgerRange(task.ledger_id, 0, task.entries - 1)
                open_ledger, route = held.enter_context(reach(task, [whole]))
            ledger = held.enter_context(open_ledger(task.ledger_id))
            if ledger.confirmed + 1 != task.entries:
                raise HotLogError(
                    f"ledger {task.ledger_id} has {ledger.confirmed + 1} entries as seen here, and {task.entries} are "
                    "to be offloaded; the engine has not written it back yet"
                )
            offloader.offload(ledger, task.uuid, dict(task.metadata))
    except AfterglowError as error:
        return failed(task, error)
    took_s = time.perf_counter() - started
    file_bytes = task.size_bytes if route is Route.FILES else 0
    return PartResult(task.task_id, None, (), None, upload_seconds=took_s, route=route, file_bytes=file_bytes)
