"""Planner of ledger offload: ledgers that are due, and hot copies that may be freed. Pure functions.

A ledger is a candidate once it is closed, unless it is empty, in the tier already, or in segments; nor if it is the
ledger in which an uncommitted segment begins, or a later one: the segment may hold entries of it. Candidates are due if
a manual offload covers them, if they are older than the time threshold, or if they exceed the size threshold: from the
newest closed ledger to the oldest, all ledgers from the one at which the sum of sizes exceeds it. Ledgers that are in
the tier count in that sum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from afterglow.format.objects import ledger_uuid
from afterglow.ledger.ledger_list import is_fully_offloaded
from afterglow.offload.segments.uncovered import assigned_from

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from afterglow.config import BrokerConfig
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.metadata.names import TopicName

SYSTEM_NAMESPACE: Final = "pulsar/system"


def is_system_topic(topic: TopicName) -> bool:
    """Whether a topic is a system topic of Pulsar, which is never offloaded."""
    return str(topic.namespace) == SYSTEM_NAMESPACE or topic.local_name.startswith("__")


def is_closed(ledger: ManagedLedgerInfo.LedgerInfo, writing_to: int | None) -> bool:
    """Whether a ledger accepts no more entries, and the ledger list has their number."""
    return ledger.HasField("entries") and ledger.ledgerId != writing_to


def is_candidate(ledger: ManagedLedgerInfo.LedgerInfo, writing_to: int | None) -> bool:
    """Whether a ledger could be offloaded as a whole."""
    context = ledger.offloadContext
    return is_closed(ledger, writing_to) and ledger.entries > 0 and not context.complete and not context.offloadSegment


def is_triggered(policy: BrokerConfig) -> bool:
    """Whether any threshold is set, so that ledgers become due without a manual offload."""
    return (
        max(policy.managed_ledger_offload_threshold_in_bytes, policy.managed_ledger_offload_threshold_in_seconds) >= 0
    )


def due(
    info: ManagedLedgerInfo,
    *,
    writing_to: int | None,
    policy: BrokerConfig,
    now_ms: int,
    manual_before: int | None = None,
) -> tuple[int, ...]:
    """Ids of the ledgers that are to be offloaded now, oldest first.

    Args:
        info: The topic's ledger list.
        writing_to: The ledger that is being written, if any.
        policy: The topic's effective policy.
        now_ms: Epoch milliseconds.
        manual_before: All candidates with a smaller id are due.
    """
    streamed = assigned_from(info)
    chosen = [
        ledger.ledgerId
        for ledger, kept_bytes in _walk(info, writing_to)
        if is_candidate(ledger, writing_to)
        and (streamed is None or ledger.ledgerId < streamed)
        and (
            (manual_before is not None and ledger.ledgerId < manual_before)
            or 0 <= policy.managed_ledger_offload_threshold_in_bytes < kept_bytes
            or ((at_ms := due_at_ms(policy, ledger)) is not None and now_ms >= at_ms)
        )
    ]
    return tuple(reversed(chosen))


def due_at_ms(policy: BrokerConfig, ledger: ManagedLedgerInfo.LedgerInfo) -> int | None:
    """Time at which a closed ledger is due by the time threshold; None if it is not set."""
    seconds = policy.managed_ledger_offload_threshold_in_seconds
    return None if seconds < 0 else ledger.timestamp + 1000 * seconds


def kept_bytes(info: ManagedLedgerInfo, writing_to: int | None) -> dict[int, int]:
    """For each closed ledger, the bytes from its first entry to the end of the newest closed ledger."""
    return {ledger.ledgerId: total for ledger, total in _walk(info, writing_to)}


def given_up(info: ManagedLedgerInfo, *, pursued: Collection[int]) -> tuple[int, ...]:
    """Ids of the ledgers with an incomplete attempt that will not be retried.

    Args:
        info: The topic's ledger list.
        pursued: Ledgers that are due, or being offloaded.
    """
    return tuple(
        ledger.ledgerId
        for ledger in info.ledgerInfo
        if ledger_uuid(ledger) is not None and not ledger.offloadContext.complete and ledger.ledgerId not in pursued
    )


def freeable(info: ManagedLedgerInfo, *, policy: BrokerConfig, now_ms: int) -> tuple[int, ...]:
    """Ids of the ledgers whose hot copies may be freed once their objects have been verified, oldest first."""
    found = (
        ledger.ledgerId
        for ledger in info.ledgerInfo
        if (at_ms := freed_at_ms(policy, ledger)) is not None and now_ms > at_ms
    )
    return tuple(sorted(found))


def freed_at_ms(policy: BrokerConfig, ledger: ManagedLedgerInfo.LedgerInfo) -> int | None:
    """The time after which the hot copy of a ledger may be freed; None: it is kept, or freed already."""
    context = ledger.offloadContext
    lag_ms = policy.managed_ledger_offload_deletion_lag_in_millis
    if lag_ms is None or lag_ms < 0 or context.bookkeeperDeleted or not is_fully_offloaded(ledger):
        return None
    newest = max((segment.offloadedTimestamp for segment in context.offloadSegment), default=0)
    return max(context.timestamp, newest) + lag_ms


def next_poll_ms(info: ManagedLedgerInfo, *, writing_to: int | None, policy: BrokerConfig, now_ms: int) -> int | None:
    """The next time at which a ledger becomes due by time, or a hot copy may be freed; None: never."""
    times_ms = [due_at_ms(policy, ledger) for ledger in info.ledgerInfo if is_candidate(ledger, writing_to)]
    # A ledger is due at its time, and a hot copy may be freed after its time.
    freed_ms = (freed_at_ms(policy, ledger) for ledger in info.ledgerInfo)
    times_ms += [None if at_ms is None else at_ms + 1 for at_ms in freed_ms]
    return min((at_ms for at_ms in times_ms if at_ms is not None and at_ms > now_ms), default=None)


def _walk(info: ManagedLedgerInfo, writing_to: int | None) -> Iterator[tuple[ManagedLedgerInfo.LedgerInfo, int]]:
    """Closed ledgers from the newest on, each with the sum of sizes up to and including its own."""
    total = 0
    for ledger in sorted(info.ledgerInfo, key=lambda ledger: ledger.ledgerId, reverse=True):
        if is_closed(ledger, writing_to):
            total += ledger.size
            yield ledger, total
