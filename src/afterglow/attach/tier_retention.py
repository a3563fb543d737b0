"""Retention of the tier: segments of ledgers that the cluster has trimmed are deleted once they are past it.

The tier may keep a topic for longer than the cluster does, by default for ever. Ledgers leave our copy of the ledger
list from the oldest on, and only after the cluster has trimmed them, so that the log never gets a hole:

1. Record a pending delete of each segment that no other ledger names. *Crash: the list still names the segments, and
   nothing is deleted; the next check repeats it.*
2. Remove the ledgers from our copy of the list, with one compare-and-set. *Crash: the next start carries out the
   pending deletes.*
3. Delete objects and records: steps 3 to 6 of :mod:`afterglow.offload.pending_deletes`.

Of a topic that the cluster has deleted all ledgers count as trimmed. Its copy of the list is removed with the last one.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from afterglow.attach.ledger_merge import merge_ledgers, remove_ledgers
from afterglow.errors import AfterglowError, Fenced, TopicClosed, TopicMissing
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
from afterglow.ledger.ledger_list import records
from afterglow.ledger.offload_hooks import recorded_removal
from afterglow.ledger.retention import Retention, ledgers_to_trim
from afterglow.offload.segments.uncovered import assigned_from

if TYPE_CHECKING:
    from collections.abc import Collection

    from afterglow.attach.topics import AttachedTopics
    from afterglow.config import BrokerConfig
    from afterglow.ledger.environment import Clock
    from afterglow.ledger.offload_hooks import OffloadHooks
    from afterglow.offload.topics import OffloadPolicies

_log = logging.getLogger(__name__)


def retention_of(policy: BrokerConfig) -> Retention:
    """The retention of the tier under an effective policy."""
    return Retention.of(policy.tier_retention_time_in_minutes, policy.tier_retention_size_in_mb)


def expired_ledgers(info: ManagedLedgerInfo, retention: Retention, now_ms: int) -> list[int]:
    """Ids of the ledgers that are past retention, oldest first. Pure.

    Args:
        info: Our copy of the ledger list.
        retention: The retention of the tier. The cluster's ledgers count in its size, and are not selected.
        now_ms: Epoch milliseconds.
    """
    listed = {ledger.ledgerId: ledger for ledger in info.ledgerInfo}
    if not listed:
        return []
    rows = []
    for row in records(info):
        # The cluster may have trimmed a ledger before its end was known here.
        offloaded = (segment.offloadedTimestamp for segment in listed[row.ledger_id].offloadContext.offloadSegment)
        rows.append(replace(row, closed_ms=row.closed_ms or max(offloaded, default=now_ms)))
    kept = [row.ledger_id for row in rows if not row.hot_deleted]
    if (assigned := assigned_from(info)) is not None:
        kept.append(assigned)
    # The last row is never selected: it stands for the entries that the topic may still get.
    end = replace(rows[-1], ledger_id=rows[-1].ledger_id + 1, entries=None, size_bytes=None)
    return ledgers_to_trim([*rows, end], min(kept, default=None), retention, now_ms, lambda _ledger_id: False)


class TierRetention:
    """Deletes what is past retention. One thread at a time.

    Args:
        topics: The attached topics.
        hooks: Record and carry out the deletion of copies in tiers.
        policies: Effective policies of topics.
        clock: The clock.
    """

    def __init__(self, *, topics: AttachedTopics, hooks: OffloadHooks, policies: OffloadPolicies, clock: Clock) -> None:
        self._topics = topics
        self._hooks = hooks
        self._policies = policies
        self._clock = clock

    def check(self) -> None:
        """Check every topic that has records, also those that the cluster has deleted.

        Raises:
            Fenced: Another process has become the owner.
            MetadataUnavailable: The store cannot be reached.
        """
        for name in tuple(self._topics.recorded()):
            try:
                self.check_topic(name)
            except Fenced:
                raise
            except (TopicMissing, TopicClosed):
                continue  # detached, or created anew, meanwhile
            except AfterglowError as error:
                _log.warning("the tier retention of %s is applied later: %s", name, error)

    def check_topic(self, name: str) -> tuple[int, ...]:
        """Steps 1 and 2 for one topic; returns the ids of the removed ledgers.

        Raises:
            TopicMissing: It was never attached.
            TopicClosed: The cluster has created the topic anew in this moment.
            Fenced: Another process has become the owner.
            MetadataError: The store failed; nothing is lost, and the next call continues.
        """
        retention = retention_of(self._policies.of(name))
        if retention.time_ms < 0 and retention.size_bytes < 0:
            return ()
        topic = self._topics.opened(name)
        if topic is None and not self._topics.is_deleted(name):
            return ()  # not followed by this process, such as outside its pattern
        info = self._topics.info(name)
        if topic is None:
            info = _without_cluster(info)
        expired = expired_ledgers(info, retention, self._clock.now_ms())
        if not expired:
            if topic is None and not info.ledgerInfo:  # after a crash, or because nothing of it was in segments
                self._topics.update_deleted(name, partial(_remove_from_deleted, ledger_ids=()))
            return ()
        leaving = [ledger for ledger in info.ledgerInfo if ledger.ledgerId in expired]
        with recorded_removal(self._hooks, name, leaving):
            if topic is not None:
                topic.update(partial(remove_ledgers, ledger_ids=expired))
            else:
                self._topics.update_deleted(name, partial(_remove_from_deleted, ledger_ids=expired))
        _log.info("%s: %d ledgers up to %d are past the tier's retention", name, len(expired), expired[-1])
        return tuple(expired)


def _without_cluster(info: ManagedLedgerInfo) -> ManagedLedgerInfo:
    """A copy of our list as it is once the cluster has no ledger of the topic any more."""
    changed = ManagedLedgerInfo()
    changed.CopyFrom(info)
    merge_ledgers(changed, ManagedLedgerInfo())
    return changed


def _remove_from_deleted(own: ManagedLedgerInfo, ledger_ids: Collection[int]) -> None:
    merge_ledgers(own, ManagedLedgerInfo())
    remove_ledgers(own, ledger_ids)
