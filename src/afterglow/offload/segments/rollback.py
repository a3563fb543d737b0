"""Rollback of a topic's segments, so that a Pulsar without support for segments can serve it.

1. Record a pending delete of the object of each segment. *Crash: the ledger list still names them, so that nothing
   happens, and the next call repeats it.*
2. With one compare-and-set remove all segments from the ledger list, and with them, if that is allowed, ledgers without
   a hot copy. *Crash: the next start carries out the pending deletes.*
3. Delete objects and records; see :mod:`afterglow.offload.pending_deletes`.

Afterwards the ledgers are as if they had never been offloaded, and may be offloaded whole. A topic that streams, or has
an assigned segment, is refused: its policy must be changed first, and the last segment committed. Nothing is deleted
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
    from afterglow.metadata.paths import AfterglowPaths
    from afterglow.metadata.store import MetadataStore
    from afterglow.offload.pending_deletes import PendingDelete
    from afterglow.offload.segments.listing import SegmentView
    from afterglow.offload.topics import HotLedgers, OffloadTopic


@dataclass(frozen=True, slots=True)
class LostLedger:
    """A ledger that exists in segments only."""

    ledger_id: int
    entries: int


@dataclass(frozen=True, slots=True)
class Rollback:
    """Segments to be deleted, and the consequences for ledgers."""

    segments: tuple[SegmentView, ...]
    """Segments whose objects and records are deleted, in the order of positions."""
    ledgers: tuple[int, ...]
    """Ledgers with these segments that have all their entries in the hot log."""
    lost: tuple[LostLedger, ...]
    """Ledgers without a hot copy: they are removed from the ledger list, and their entries are lost."""
    done: bool = False
    """Whether it is committed in metadata; objects are deleted later."""


def plan_rollback(
    name: str,
    info: ManagedLedgerInfo,
    policy: BrokerConfig,
    *,
    hot: HotLedgers,
    metadata: MetadataStore,
    paths: AfterglowPaths,
) -> Rollback:
    """Plan a rollback. Waits for metadata and the hot log.

    Args:
        name: The managed-ledger name.
        info: The topic's ledger list.
        policy: The topic's effective policy.
        hot: The hot log.
        metadata: Holds the records of segments.
        paths: Paths of the records.

    Raises:
        ConfigError: The topic streams.
        OffloadInProgress: A segment is assigned and not committed.
        AfterglowError: The records, or the hot log, cannot be read.
    """
    if policy.streaming_offload_enabled:
        raise ConfigError(
            f"cannot delete the segments of {_shown(name)}: it streams to the tier, and would get segments again; set "
            "streamingOffloadEnabled=false for it first"
        )
    named = _named(info.ledgerInfo)
    _check_settled(name, info, named)
    ledger_infos = [ledger_info for ledger_info in info.ledgerInfo if ledger_info.offloadContext.offloadSegment]
    lost = [
        ledger_info
        for ledger_info in ledger_infos
        if ledger_info.offloadContext.bookkeeperDeleted or not _is_hot(ledger_info, hot)
    ]
    gone = {ledger_info.ledgerId for ledger_info in lost}
    views = [view for view in list_segments(metadata, paths, name) if view.status is SegmentStatus.OFFLOADED]
    return Rollback(
        segments=tuple(view for view in views if view.id in {str(uuid) for uuid in named}),
        ledgers=tuple(sorted(ledger_info.ledgerId for ledger_info in ledger_infos if ledger_info.ledgerId not in gone)),
        lost=tuple(
            LostLedger(ledger_info.ledgerId, ledger_info.entries)
            for ledger_info in sorted(lost, key=lambda ledger_info: ledger_info.ledgerId)
        ),
    )


def roll_back(
    ledger: OffloadTopic,
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
        plan: The plan.
        lose_data: Whether ledgers without a hot copy may be removed.
        metadata: Holds the records of segments.
        paths: Paths of the records.
        record: Records a pending delete. Must be durable when it returns.

    Raises:
        WouldLoseData: Ledgers have no hot copy, and ``lose_data`` is not set.
        NotSupported: The topic is terminated, and the ledger that marks its end would have to be removed.
        OffloadInProgress: The ledger list has changed since the plan was made: plan again.
        Fenced: The topic has a new owner; nothing was changed.
        MetadataError: The store failed. The ledger list was changed completely, or not at all.
    """
    check_loss(ledger.topic, plan, lose_data=lose_data)
    lost = {each.ledger_id for each in plan.lost}
    if lost:
        _keep_an_end(ledger, lost)
    ledger_infos = [ledger_info for ledger_info in ledger.info.ledgerInfo if ledger_info.offloadContext.offloadSegment]
    named = _named(ledger_infos)
    for pending in pending_deletes_of_segments(ledger.name, ledger_infos, set(), metadata, paths):
        record(pending)

    def edit(info: ManagedLedgerInfo) -> None:
        _check_settled(ledger.name, info, named)
        for ledger_info in info.ledgerInfo:
            if (
                ledger_info.offloadContext.bookkeeperDeleted
                and ledger_info.offloadContext.offloadSegment
                and ledger_info.ledgerId not in lost
            ):
                raise OffloadInProgress(
                    f"the hot copy of ledger {ledger_info.ledgerId} was deleted meanwhile; try again"
                )
        for uuid in named:
            edits.remove_segment(info, uuid=uuid)

    if lost:
        ledger.trimmer.discard(lost, edit)
    else:
        ledger.update(edit)
    return replace(plan, done=True)


def check_loss(topic: TopicName, plan: Rollback, *, lose_data: bool) -> None:
    """Check that a plan loses no entries, or is allowed to.

    Raises:
        WouldLoseData: Ledgers have no hot copy, and ``lose_data`` is not set.
    """
    if plan.lost and not lose_data:
        raise WouldLoseData(
            f"cannot delete the segments of {topic}: ledgers {', '.join(str(each.ledger_id) for each in plan.lost)} "
            f"have no hot copy, and their {sum(each.entries for each in plan.lost)} entries are in segments only; to "
            "lose them, give --lose-data"
        )


def _keep_an_end(ledger: OffloadTopic, lost: set[int]) -> None:
    """Roll over to a new ledger if the last one, which marks the end of the topic, is lost."""
    if max(ledger_info.ledgerId for ledger_info in ledger.info.ledgerInfo) not in lost:
        return
    if ledger.terminated is not None:
        raise NotSupported(
            f"cannot delete the segments of {ledger.topic}: it is terminated, and its last ledger has no hot copy; "
            "delete the topic instead"
        )
    ledger.roll()


def _check_settled(name: str, info: ManagedLedgerInfo, named: set[UUID]) -> None:
    """Check that no segment is assigned, and that none was added since ``named`` was read."""
    if any(is_assigned(ledger_info) for ledger_info in info.ledgerInfo):
        raise OffloadInProgress(f"a segment of {_shown(name)} is being uploaded; wait until it is offloaded")
    if not _named(info.ledgerInfo) <= named:
        raise OffloadInProgress(f"{_shown(name)} has another segment meanwhile; try again")


def _shown(name: str) -> str:
    return str(TopicName.from_managed_ledger_name(name))


def _named(ledger_infos: Iterable[ManagedLedgerInfo.LedgerInfo]) -> set[UUID]:
    found = {get_uuid(segment) for ledger_info in ledger_infos for segment in ledger_info.offloadContext.offloadSegment}
    return {uuid for uuid in found if uuid is not None}


def _is_hot(ledger_info: ManagedLedgerInfo.LedgerInfo, hot: HotLedgers) -> bool:
    """Whether the hot log has all entries of a ledger, or all entries so far of the ledger that is being written."""
    try:
        return hot.open(ledger_info.ledgerId).confirmed + 1 >= ledger_info.entries
    except LedgerMissing:
        return False
