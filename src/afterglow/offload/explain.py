"""Why each ledger of a topic is where it is: for people, and for programs by its state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from afterglow.ledger.ledger_list import offloaded_whole
from afterglow.metadata.names import TopicName
from afterglow.offload import planner
from afterglow.offload.wording import at, span, times

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from afterglow.config import BrokerConfig
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.storage.health import Outage


class LedgerState(StrEnum):
    """Where a ledger is on its way to the tier."""

    OPEN = "open"
    EMPTY = "empty"
    SYSTEM_TOPIC = "system-topic"
    NO_TIER = "no-tier"
    STREAMING = "streaming"
    IN_SEGMENTS = "in-segments"
    NOT_TRIGGERED = "not-triggered"
    WAITING = "waiting"
    DUE = "due"
    OFFLOADING = "offloading"
    FAILED = "failed"
    OFFLOADED = "offloaded"
    WAITING_FOR_LAG = "waiting-for-lag"
    TO_BE_FREED = "to-be-freed"
    FREED = "freed"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a ledger is not further yet."""

    ledger_id: int
    state: LedgerState
    sentence: str
    """For people, with numbers and settings."""
    next_ms: int | None = None
    """When something will happen by itself, epoch milliseconds; None where that is not known."""
    error: str | None = None
    """What went wrong at the last attempt."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A failed attempt to offload or to free a ledger."""

    error: str
    """One line."""
    attempts: int
    """That failed in a row."""
    next_try_ms: int
    """Epoch milliseconds; not tried before, unless by hand."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one process is doing for a topic."""

    running: frozenset[int] = frozenset()
    """Ledgers that are being offloaded now."""
    troubles: Mapping[int, Trouble] | None = None
    """What failed, by ledger."""
    manual_before: int | None = None
    """Ledgers below this id are wanted by hand."""
    outage: Outage | None = None
    """Of the tier that the policy names."""


def explain(
    name: str,
    info: ManagedLedgerInfo,
    *,
    writing_to: int | None,
    policy: BrokerConfig,
    obstacle: str | None,
    work: Work,
    now_ms: int,
    streamed: Callable[[ManagedLedgerInfo.LedgerInfo], Explanation | None] = lambda _row: None,
) -> tuple[Explanation, ...]:
    """Why each ledger is where it is, oldest first.

    Args:
        name: The managed-ledger name.
        info: The topic's list.
        writing_to: The ledger that takes appends, if any.
        policy: The topic's.
        obstacle: Why no tier can be used; None where one can.
        work: What this process is doing.
        now_ms: Epoch milliseconds.
        streamed: Says of a ledger what segments have to do with it; None where nothing.
    """
    system = planner.is_system_topic(TopicName.from_managed_ledger_name(name))
    due = planner.due(info, writing_to=writing_to, policy=policy, now_ms=now_ms, manual_before=work.manual_before)
    kept = planner.kept_bytes(info, writing_to)
    found = []
    for row in sorted(info.ledgerInfo, key=lambda row: row.ledgerId):
        told = _in_tier(row, policy, work, now_ms)
        if told is None and not system:
            told = streamed(row)
        if told is None:
            told = _unfit(row, writing_to, obstacle, system=system)
        if told is None:
            told = _on_its_way(row, work, now_ms) or (_due(row) if row.ledgerId in due else None)
            told = _waiting(row, policy, kept, now_ms) if told is None else with_outage(told, work.outage, now_ms)
        found.append(told)
    return tuple(found)


def with_outage(told: Explanation, outage: Outage | None, now_ms: int) -> Explanation:
    """Add that the tier is unavailable for which a ledger waits, where it is."""
    if outage is None:
        return told
    reason = outage.sentence(now_ms)
    sentence = f"{told.sentence} {reason}; what waits for it is tried again as soon as it answers."
    return replace(told, state=LedgerState.FAILED, sentence=sentence, error=f"{reason}: {outage.error}")


def _in_tier(row: ManagedLedgerInfo.LedgerInfo, policy: BrokerConfig, work: Work, now_ms: int) -> Explanation | None:
    if not offloaded_whole(row):
        return None
    count = len(row.offloadContext.offloadSegment)
    there = f"It is in the tier, in {count} segment{'' if count == 1 else 's'}" if count else "It is in the tier"
    if row.offloadContext.bookkeeperDeleted:
        return Explanation(row.ledgerId, LedgerState.FREED, f"{there}, and its hot copy is gone.")
    free_ms = planner.freed_at_ms(policy, row)
    if free_ms is None:
        return Explanation(
            row.ledgerId,
            LedgerState.OFFLOADED,
            f"{there}; its hot copy stays, since managedLedgerOffloadDeletionLagInMillis is not set.",
        )
    if now_ms <= free_ms:
        return Explanation(
            row.ledgerId,
            LedgerState.WAITING_FOR_LAG,
            f"{there}; its hot copy goes at {at(free_ms)}, in {span(free_ms - now_ms)}, "
            f"managedLedgerOffloadDeletionLagInMillis={policy.managed_ledger_offload_deletion_lag_in_millis} after the "
            "offload.",
            free_ms + 1,
        )
    trouble = (work.troubles or {}).get(row.ledgerId)
    if trouble is not None:
        return Explanation(
            row.ledgerId,
            LedgerState.TO_BE_FREED,
            f"{there}, but its hot copy stays until a check of that has been passed: {trouble.error}. "
            f"Checked again in {span(trouble.next_try_ms - now_ms)}.",
            trouble.next_try_ms,
            trouble.error,
        )
    return Explanation(row.ledgerId, LedgerState.TO_BE_FREED, f"{there}; its hot copy goes once that has been checked.")


def _unfit(
    row: ManagedLedgerInfo.LedgerInfo, writing_to: int | None, obstacle: str | None, *, system: bool
) -> Explanation | None:
    """Why a ledger is no candidate."""
    if not planner.is_closed(row, writing_to):
        return Explanation(
            row.ledgerId, LedgerState.OPEN, "It is being written; whole ledgers are offloaded once they are closed."
        )
    if not row.entries:
        return Explanation(row.ledgerId, LedgerState.EMPTY, "It has no entries.")
    if system:
        return Explanation(row.ledgerId, LedgerState.SYSTEM_TOPIC, "System topics are never offloaded.")
    if obstacle is not None:
        return Explanation(row.ledgerId, LedgerState.NO_TIER, f"It cannot be offloaded: {obstacle}", error=obstacle)
    return None


def _on_its_way(row: ManagedLedgerInfo.LedgerInfo, work: Work, now_ms: int) -> Explanation | None:
    if row.ledgerId in work.running:
        return Explanation(row.ledgerId, LedgerState.OFFLOADING, "It is being offloaded now.")
    trouble = (work.troubles or {}).get(row.ledgerId)
    if trouble is None:
        return None
    return Explanation(
        row.ledgerId,
        LedgerState.FAILED,
        f"Offloading failed {times(trouble.attempts)}: {trouble.error}. "
        f"Tried again in {span(trouble.next_try_ms - now_ms)} if it is still due.",
        trouble.next_try_ms,
        trouble.error,
    )


def _due(row: ManagedLedgerInfo.LedgerInfo) -> Explanation:
    return Explanation(row.ledgerId, LedgerState.DUE, "It is due and waits for its turn.")


def _waiting(
    row: ManagedLedgerInfo.LedgerInfo, policy: BrokerConfig, kept: Mapping[int, int], now_ms: int
) -> Explanation:
    threshold = policy.managed_ledger_offload_threshold_in_bytes
    at_ms = planner.due_at_ms(policy, row)
    reasons = []
    if threshold >= 0:
        reasons.append(
            f"the closed ledgers from here on have {kept[row.ledgerId]} bytes, and "
            f"managedLedgerOffloadThresholdInBytes={threshold} keeps that many out of the tier"
        )
    if at_ms is not None:
        reasons.append(
            f"managedLedgerOffloadThresholdInSeconds={policy.managed_ledger_offload_threshold_in_seconds} after its "
            f"close comes at {at(at_ms)}, in {span(at_ms - now_ms)}"
        )
    if not reasons:
        return Explanation(
            row.ledgerId,
            LedgerState.NOT_TRIGGERED,
            "Neither managedLedgerOffloadThresholdInBytes nor managedLedgerOffloadThresholdInSeconds is set: it is "
            "offloaded by hand only.",
        )
    return Explanation(row.ledgerId, LedgerState.WAITING, f"It waits: {'; '.join(reasons)}.", at_ms)
