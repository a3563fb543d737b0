"""One topic of an attached cluster: written by the cluster's brokers, offloaded by this process.

Its ledger list is our copy of the cluster's, below ``/afterglow/<cluster>/``, with our segments.
"""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import TYPE_CHECKING

from afterglow.attach.ledger_merge import (
    committed_end,
    delivered_ledgers,
    lost_ranges,
    merge_ledgers,
    record_release,
    recorded_lost,
    recorded_release,
    remove_ledgers,
    tail_of,
)
from afterglow.hot.pulsar.hold_state import SkippedRange
from afterglow.ledger.managed_ledger_state import ManagedLedgerState
from afterglow.ledger.reader import StoredEntry
from afterglow.metadata.names import TopicName

if TYPE_CHECKING:
    from collections.abc import Collection

    from afterglow.attach.hot_ledgers import AttachedLedgers
    from afterglow.attach.ledger_merge import Tail
    from afterglow.format.position import LedgerRange, Position
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.ledger.layout import Layout
    from afterglow.ledger.ledger_list import LedgerRecord
    from afterglow.ledger.topic_metadata import Edit, Snapshot, TopicMetadata

_log = logging.getLogger(__name__)


class AttachedTopic:
    """An :class:`~afterglow.offload.topics.OffloadTopic` of a cluster. Thread-safe.

    Args:
        name: Its managed-ledger name.
        metadata: Our copy of its metadata, just opened, so that this process is the owner.
        hot: Reads the cluster's ledgers.
    """

    def __init__(self, name: str, metadata: TopicMetadata, hot: AttachedLedgers) -> None:
        self.name = name
        self.topic = TopicName.from_managed_ledger_name(name)
        self.reader = _Reader(hot, self)
        self.trimmer = _Trimmer(self)
        self._metadata = metadata
        self._hot = hot
        self._lock = threading.RLock()
        self._state = ManagedLedgerState(metadata.snapshot)
        self._tail: Tail | None = None

    def __repr__(self) -> str:
        return f"AttachedTopic({self.topic}, {self.layout.first}..{self.layout.last})"

    # --- what offload asks --------------------------------------------------------------------------------------------

    @property
    def info(self) -> ManagedLedgerInfo:
        """Our copy of its metadata; not to be changed."""
        return self._state.snapshot.info

    @property
    def ledgers(self) -> tuple[LedgerRecord, ...]:
        """The ledgers of the list, ascending by id."""
        return self._state.records

    @property
    def layout(self) -> Layout:
        """The ledgers with their confirmed entries, as far as they are known here."""
        return self._state.layout

    @property
    def size_bytes(self) -> int:
        """Bytes of these entries."""
        return self._state.size_bytes

    @property
    def writing_to(self) -> int | None:
        """Id of the ledger that a broker writes; None if none is known."""
        return self._state.writing_to

    @property
    def terminated(self) -> Position | None:
        """The last entry of a terminated topic; None if it takes entries."""
        return self._state.terminated

    @property
    def owner_epoch(self) -> int:
        """The epoch under which this process owns our copy."""
        return self._metadata.owner_epoch

    @property
    def committed_end(self) -> Position | None:
        """The last entry up to which all entries are in segments, or are left to the cluster; None: none is."""
        return committed_end(self.info.ledgerInfo)

    @property
    def lost(self) -> tuple[LedgerRange, ...]:
        """Entries that the cluster has trimmed before they were in the tier, as recorded."""
        return recorded_lost(self.info)

    @property
    def released(self) -> SkippedRange | None:
        """Entries that are not in the tier, and that the subscription does not hold any more; None: there are none."""
        released, end = recorded_release(self.info), self.committed_end
        return None if released is None or (end is not None and end >= released.through) else released

    @property
    def held_from(self) -> Position | None:
        """The position behind which the subscription holds back trimming: that of our newest acknowledgement."""
        released, end = self.released, self.committed_end
        return end if released is None else released.through

    def bytes_behind(self, position: Position | None) -> int:
        """Bytes of the confirmed entries behind a position, by the average size of the entries of its ledger."""
        layout, total = self.layout, 0
        open_bytes = self.size_bytes - sum(ledger.size_bytes or 0 for ledger in self.ledgers)
        for ledger in self.ledgers:
            entries = layout.entries_of(ledger.ledger_id)
            if not entries or (position is not None and ledger.ledger_id < position.ledger_id):
                continue
            is_begun = position is not None and ledger.ledger_id == position.ledger_id
            left = max(entries - position.entry_id - 1, 0) if position is not None and is_begun else entries
            total += (open_bytes if ledger.size_bytes is None else ledger.size_bytes) * left // entries
        return total

    def release(self, through: Position) -> None:
        """Record that entries up to a position are not held any more, before they are acknowledged.

        Raises:
            Fenced: Another process owns our copy.
            MetadataError: The store failed.
        """
        released = SkippedRange(self.committed_end or self.layout.first.previous(), through)
        self.update(partial(record_release, released=released))

    def update(self, edit: Edit) -> Snapshot:
        """Change our copy; see :meth:`afterglow.ledger.topic_metadata.TopicMetadata.update`.

        Raises:
            Fenced: Another process owns it.
            MetadataError: The store failed.
        """
        snapshot = self._metadata.update(edit)
        with self._lock:
            self._state.apply(snapshot)
        return snapshot

    def check_owner(self) -> None:
        """Read the owner epoch again.

        Raises:
            Fenced: Another process owns it.
            MetadataUnavailable: The store cannot be reached.
        """
        self._metadata.check_owner()

    def roll(self) -> None:
        """Do nothing: only the cluster closes ledgers, and the stream waits for that."""

    def commit_ends(self) -> None:
        """Do nothing: :meth:`follow` commits the ends of ledgers."""

    # --- what the cluster reports -------------------------------------------------------------------------------------

    def follow(
        self, cluster: ManagedLedgerInfo, last_confirmed: Position | None, open_bytes: int | None = None
    ) -> None:
        """Take a newer state of the cluster's topic.

        1. Commit the merged list. *Crash: the next owner merges again.*
        2. Let offload see the confirmed entries of the ledger that is being written.

        Args:
            cluster: The cluster's ledger list, read before ``last_confirmed``.
            last_confirmed: The last confirmed entry, if it is known; where entries are read from brokers, the last one
                that is delivered.
            open_bytes: Bytes of the entries of its ledger, as far as they are known; needed if entries are read from
                brokers.

        Raises:
            Fenced: Another process owns our copy.
            MetadataError: The store failed.
            AfterglowError: The size of the newest entries cannot be read from their bookies.
        """
        if self._hot.from_brokers:
            for ledger in (*self.info.ledgerInfo, *cluster.ledgerInfo):
                if ledger.entries:
                    self._hot.confirm(ledger.ledgerId, ledger.entries - 1, ledger.size)
            cluster = delivered_ledgers(self.info, cluster, last_confirmed)
        lost = lost_ranges(self.info, cluster)
        for entries in lost:
            _log.error(
                "%s: the cluster has trimmed entries %d to %d of ledger %d before they were in the tier",
                *(self.topic, entries.first, entries.last, entries.ledger_id),
            )
        self._confirm_closed(cluster)
        existing = {ledger.ledgerId for ledger in self.info.ledgerInfo}
        self.update(partial(merge_ledgers, cluster=cluster))
        for ledger_id in existing.difference(ledger.ledgerId for ledger in cluster.ledgerInfo):
            self._hot.drop(ledger_id)
        tail = tail_of(cluster, last_confirmed, self._tail)
        if tail == self._tail:
            return
        size = 0
        if tail is not None and tail.entries:
            self._hot.confirm(tail.ledger_id, tail.entries - 1, open_bytes)
            size = self._hot.bytes_up_to(tail.ledger_id, tail.entries - 1)
        with self._lock:
            self._tail = tail
            self._state.follow_tail(None if tail is None else tail.ledger_id, 0 if tail is None else tail.entries, size)

    def _confirm_closed(self, cluster: ManagedLedgerInfo) -> None:
        """Allow reads of ledgers that were closed meanwhile, before offload sees their ends."""
        open_ids = {ledger.ledgerId for ledger in self.info.ledgerInfo if not ledger.HasField("entries")}
        for ledger in cluster.ledgerInfo:
            if ledger.ledgerId in open_ids and ledger.entries:
                self._hot.confirm(ledger.ledgerId, ledger.entries - 1)


class _Reader:
    """Reads single entries from bookies, such as the first one of a segment for its time."""

    def __init__(self, hot: AttachedLedgers, topic: AttachedTopic) -> None:
        self._hot = hot
        self._topic = topic

    def read(self, position: Position, max_entries: int, max_bytes: int) -> list[StoredEntry]:
        """The entry at ``position``, or the first one after it; further ones are not needed. None from a broker."""
        del max_entries, max_bytes
        if self._hot.from_brokers:
            return []
        found = self._topic.layout.at_or_after(position)
        if found is None:
            return []
        entries = self._hot.open(found.ledger_id).read(found.entry_id, found.entry_id)
        return [StoredEntry(found, entry) for entry in entries]


class _Trimmer:
    """Deletes no hot copy, since these are the cluster's. Ledgers that it has trimmed may leave our list."""

    def __init__(self, topic: AttachedTopic) -> None:
        self._topic = topic

    def free(self, ledger_ids: Collection[int]) -> tuple[int, ...]:
        """Delete nothing."""
        del ledger_ids
        return ()

    def discard(self, ledger_ids: Collection[int], edit: Edit) -> None:
        """Remove ledgers from our copy, together with another edit, in one compare-and-set.

        Raises:
            Fenced: Another process owns our copy.
            MetadataError: The store failed.
            AfterglowError: The edit raised it; nothing was changed.
        """

        def both(info: ManagedLedgerInfo) -> None:
            edit(info)
            remove_ledgers(info, ledger_ids)

        self._topic.update(both)
