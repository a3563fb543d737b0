"""What is in the tier of a topic, in numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from afterglow.errors import HotLogError
from afterglow.format.frames import FRAME_BYTES
from afterglow.ledger.ledger_list import covered_entries, offloaded_whole

if TYPE_CHECKING:
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.hot.log import HotLog
    from afterglow.offload.reach import RouteBytes
    from afterglow.offload.topic import TopicOffload
    from afterglow.read.latencies import LatencySummary


@dataclass(frozen=True, slots=True)
class OffloadStatistics:
    """What is in the tier of one topic, and what this process is doing about the rest."""

    offloaded_bytes: int
    """Of entries in the tier: of whole ledgers, and of others as far as committed segments reach."""
    last_ledger_id: int
    """The newest that is in the tier as a whole; 0: none is."""
    last_success_ms: int
    """When an offload last succeeded in this process, epoch milliseconds; 0: none has."""
    last_failure_ms: int
    """When one last failed; 0: none has."""
    running: tuple[int, ...]
    """Ledgers that are being offloaded."""
    stalled: tuple[int, ...]
    """Those of them that have not come further for ``offloadStallWarningSeconds``."""
    read_bytes: RouteBytes
    """What tasks have read and uploaded in this process."""
    failed_tasks: int
    """Tries of tasks that failed in this process."""
    failed_writes: int
    """Those of them that the store has failed."""
    read_latency: LatencySummary
    """What tasks took to read a part from the hot log, and to check and measure it."""
    deletions_done: int
    """Objects that this process has deleted."""
    deletions_failed: int
    """Tries of that which failed; each is repeated."""
    failed_segments: int
    """Segments on their way whose last attempt failed, as far as this process knows."""
    failing: bool
    """Whether an offload failed in this process and has not succeeded since."""


def statistics_of(topic: TopicOffload, info: ManagedLedgerInfo, hot: HotLog) -> OffloadStatistics:
    """The numbers of a topic, given its list and where its hot ledgers are. May wait for a disk."""
    rows = [row for row in info.ledgerInfo if offloaded_whole(row)]
    partly = [row for row in info.ledgerInfo if row.offloadContext.offloadSegment and not offloaded_whole(row)]
    attempts = topic.window.attempts
    return OffloadStatistics(
        offloaded_bytes=sum(row.size for row in rows) + sum(_covered_bytes(row, hot) for row in partly),
        last_ledger_id=max((row.ledgerId for row in rows), default=0),
        last_success_ms=topic.last_success_ms,
        last_failure_ms=topic.last_failure_ms,
        running=tuple(sorted(attempt.ledger_id for attempt in attempts)),
        stalled=tuple(sorted(attempt.ledger_id for attempt in attempts if attempt.stalled)),
        read_bytes=topic.read_bytes,
        failed_tasks=topic.failed_tasks,
        failed_writes=topic.failed_writes,
        read_latency=topic.read_latencies.summary(),
        deletions_done=topic.deletions_done,
        deletions_failed=topic.deletions_failed,
        failed_segments=sum(1 for upload in topic.stream.uploads if upload.record.last_error),
        failing=topic.failing,
    )


def _covered_bytes(row: ManagedLedgerInfo.LedgerInfo, hot: HotLog) -> int:
    """Bytes of the entries of a ledger that committed segments hold; 0 where the hot log cannot tell."""
    last = covered_entries(row) - 1
    if last < 0:
        return 0
    try:
        return int(hot.open(row.ledgerId).offsets(last, last)[1]) - FRAME_BYTES * (last + 1)
    except (HotLogError, IndexError):
        return 0
