"""Handle to a running server: the parts that the admin API and the metrics use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from afterglow.offload.task_dispatch import JobCounts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from afterglow.broker.service import BrokerService
    from afterglow.offload.service import OffloadService
    from afterglow.pipeline.verify_runs import VerifyRuns
    from afterglow.read.counters import ReadCounts
    from afterglow.storage.wrapper import OperationCount


@dataclass(slots=True)
class ServerHandle:
    """The parts of one running server. The defaults describe a broker without a tier."""

    service: BrokerService
    offload: OffloadService | None = None
    verify_runs: VerifyRuns | None = None
    read_counts: Callable[[str], ReadCounts | None] = lambda _name: None
    """Reads of a topic by serving tier, from the managed-ledger name; None for a topic that was not opened."""
    tier_requests: Callable[[], Mapping[str, OperationCount]] = dict
    """Requests of this process to tiers since the start, by operation; tasks make theirs on their own."""
    offload_jobs: Callable[[], JobCounts] = JobCounts
    """Counts of offload jobs since the start."""
    on_shutdown: Callable[[], None] | None = None
    """Starts a clean end of the process and returns at once; None: the program around the server ends it."""
