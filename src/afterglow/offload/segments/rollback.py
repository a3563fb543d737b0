"""Rollback of a topic's segments, so that a Pulsar without segments can serve it.

1. Record a delete of the object of each segment. *Crash: the ledger list still names them, so that nothing happens,
   and the next call repeats it.*
2. With one compare-and-set let no ledger name a segment any more; ledgers whose hot copy is gone leave the list with
   it, if that is allowed. *Crash: what is on record is deleted at the next start.*
3. Objects and records are deleted; see :mod:`afterglow.offload.pending_deletes`.

Afterwards the ledgers are as if they had never been offloaded, and may be offloaded whole. A topic that streams, or has
a segment on its way, is refused: its policy must be changed first, and the last segment finished. Nothing is deleted
before the hot copies have been checked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from afterglow.errors import ConfigError, LedgerMissing, NotSupported, OffloadInProgress, WouldLoseData
from afterglow.format.objects import get_uuid
from afterglow.metadata.names import TopicName
from afterglow.offload.pending_deletes import pending_deletes_of_segments
from afterglow.offload.segments import edits
from afterglow.offload.segments.listing import SegmentStatus, list_segments
from afterglow.offload.segments.uncovered import is_assigned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from uuid import UUID

    from afterglow.config import BrokerConfig
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.hot.log import HotLog
    from afterglow.ledger.managed_ledger import ManagedLedger
    from afterglow.metadata.paths import AfterglowPaths
    from afterglow.metadata.store import MetadataStore
    from afterglow.offload.pending_deletes import PendingDelete
    from afterglow.offload.segments.listing import SegmentView


@dataclass(frozen=True, slots=True)
class LostLedger:
    """A ledger that only segments hold."""

    ledger_id: int
    entries: int


@dataclass(frozen=True, slots=True)
class Rollback:
    """What goes, and what that means for ledgers."""

    segments: tuple[SegmentView, ...]
    """Whose objects and records go, in the order of positions."""
    ledgers: tuple[int, ...]
    """Ledgers that name these now and have all their entries in the hot log."""
    lost: tuple[LostLedger, ...]
    """Ledgers whose hot copy is gone: they leave the list, and their entries are lost."""
    done: bool = False
    """Whether it was done, as far as metadata goes; objects follow."""


def plan_rollback(
    name: str,
    info: ManagedLedgerInfo,
    policy: BrokerConfig,
    *,
    hot: HotLog,
    metadata: MetadataStore,
    paths: AfterglowPaths,
) -> Rollback:
    """What would go. Waits for metadata and the hot log.

    Args:
        name: The managed-ledger name.
        info: The topic's list.
        policy: The topic's.
        hot: Where the hot copies must be.
        metadata: Where records of segments are.
        paths: Where in it.

    Raises:
        ConfigError: The topic streams.
        OffloadInProgress: A segment is on its way.
        AfterglowError: The records, or the hot log, cannot be read.
    """
    if policy.streaming_offload_enabled:
        raise ConfigError(
            f"{_shown(name)} streams to the tier, and would get segments again: set streamingOffloadEnabled=false for "
            "it first"
        )
    named = _named(info.ledgerInfo)
    _check_settled(name, info, named)
    rows = [row for row in info.ledgerInfo if row.offloadContext.offloadSegment]
    lost = [row for row in rows if row.offloadContext.bookkeeperDeleted or not _is_hot(row, hot)]
    gone = {row.ledgerId for row in lost}
    views = [view for view in list_segments(metadata, paths, name) if view.status is SegmentStatus.OFFLOADED]
    return Rollback(
        segments=tuple(view for view in views if view.id in {str(uuid) for uuid in named}),
        ledgers=tuple(sorted(row.ledgerId for row in rows if row.ledgerId not in gone)),
        lost=tuple(LostLedger(row.ledgerId, row.entries) for row in sorted(lost, key=lambda row: row.ledgerId)),
    )


def roll_back(
    ledger: ManagedLedger,
    plan: Rollback,
    *,
    lose_data: bool,
    metadata: MetadataStore,
    paths: AfterglowPaths,
    record: Callable[[PendingDelete], None],
) -> Rollback:
    """Steps 1 and 2. Waits for metadata.

    Args:
        ledger: The topic, owned by this process.
        plan: What was found to go.
        lose_data: Whether ledgers may leave the list whose hot copy is gone.
        metadata: Where records of segments are.
        paths: Where in it.
        record: Puts on record that an object is to go. Must be durable when it returns.

    Raises:
        WouldLoseData: Hot copies are gone, and that is not allowed.
        NotSupported: The topic is terminated, and the ledger that marks its end would have to leave the list.
        OffloadInProgress: Something has changed since the plan was made: plan again.
        Fenced: Another owner has taken over; nothing was changed.
        MetadataError: The store failed. The list is as before, or as it is to be.
    """
    check_loss(ledger.topic, plan, lose_data=lose_data)
    lost = {each.ledger_id for each in plan.lost}
    if lost:
        _keep_an_end(ledger, lost)
    rows = [row for row in ledger.info.ledgerInfo if row.offloadContext.offloadSegment]
    named = _named(rows)
    for pending in pending_deletes_of_segments(ledger.name, rows, set(), metadata, paths):
        record(pending)

    def edit(info: ManagedLedgerInfo) -> None:
        _check_settled(ledger.name, info, named)
        for row in info.ledgerInfo:
            if row.offloadContext.bookkeeperDeleted and row.offloadContext.offloadSegment and row.ledgerId not in lost:
                raise OffloadInProgress(f"the hot copy of ledger {row.ledgerId} was deleted meanwhile: ask again")
        for uuid in named:
            edits.remove_segment(info, uuid=uuid)

    if lost:
        ledger.trimmer.discard(lost, edit)
    else:
        ledger.update(edit)
    return replace(plan, done=True)


def check_loss(topic: TopicName, plan: Rollback, *, lose_data: bool) -> None:
    """Check that a plan loses no entries, or that it may.

    Raises:
        WouldLoseData: Hot copies are gone, and that is not allowed.
    """
    if plan.lost and not lose_data:
        raise WouldLoseData(
            f"{topic}: the hot copies of ledgers {', '.join(str(each.ledger_id) for each in plan.lost)} are gone, and "
            f"their {sum(each.entries for each in plan.lost)} entries are in segments alone; to lose them, give "
            "--lose-data"
        )


def _keep_an_end(ledger: ManagedLedger, lost: set[int]) -> None:
    """Have another ledger mark where the topic ends, if the one that does is lost."""
    if max(row.ledgerId for row in ledger.info.ledgerInfo) not in lost:
        return
    if ledger.terminated is not None:
        raise NotSupported(
            f"{ledger.topic} is terminated, and the hot copy of its last ledger is gone: delete the topic instead"
        )
    ledger.roll()


def _check_settled(name: str, info: ManagedLedgerInfo, named: set[UUID]) -> None:
    """Insist that no segment is on its way, nor has come since ``named`` was read."""
    if any(is_assigned(row) for row in info.ledgerInfo):
        raise OffloadInProgress(f"a segment of {_shown(name)} is on its way: wait until it is offloaded")
    if not _named(info.ledgerInfo) <= named:
        raise OffloadInProgress(f"{_shown(name)} has got another segment meanwhile: ask again")


def _shown(name: str) -> str:
    return str(TopicName.from_managed_ledger_name(name))


def _named(rows: Iterable[ManagedLedgerInfo.LedgerInfo]) -> set[UUID]:
    found = {get_uuid(segment) for row in rows for segment in row.offloadContext.offloadSegment}
    return {uuid for uuid in found if uuid is not None}


def _is_hot(row: ManagedLedgerInfo.LedgerInfo, hot: HotLog) -> bool:
    """Whether the hot log has all entries of a ledger; of one that is being written, all that there are."""
    try:
        return hot.open(row.ledgerId).confirmed + 1 >= row.entries
    except LedgerMissing:
        return False
