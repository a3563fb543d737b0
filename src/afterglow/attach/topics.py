"""The attached topics of this process: an :class:`~afterglow.offload.topics.OffloadTopics`."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from afterglow.attach.topic import AttachedTopic
from afterglow.errors import AfterglowError, EntriesMissing, TopicClosed, TopicMissing
from afterglow.format.metadata_envelope import parse_managed_ledger
from afterglow.ledger.cache import TailCache
from afterglow.ledger.layout import Layout
from afterglow.ledger.topic_metadata import TopicMetadata
from afterglow.metadata.names import TopicName
from afterglow.offload.pending_deletes import names_below

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from afterglow.attach.cluster import AttachedCluster
    from afterglow.attach.hot_ledgers import AttachedLedgers
    from afterglow.config import BrokerConfig
    from afterglow.format.position import Position
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.ledger.environment import Clock
    from afterglow.ledger.topic_metadata import Edit
    from afterglow.metadata.paths import AfterglowPaths
    from afterglow.metadata.store import MetadataStore


class AttachedTopics:
    """All attached topics. Thread-safe.

    Args:
        cluster: The cluster.
        hot: Reads its ledgers.
        metadata: Holds our copies of ledger lists.
        paths: Their paths.
        config: Settings of the process.
        clock: The clock.
    """

    def __init__(
        self,
        *,
        cluster: AttachedCluster,
        hot: AttachedLedgers,
        metadata: MetadataStore,
        paths: AfterglowPaths,
        config: BrokerConfig,
        clock: Clock,
    ) -> None:
        self.hot = hot
        self.cache = TailCache(0)
        """Without entries: tasks read them from bookies."""
        self._cluster = cluster
        self._metadata = metadata
        self._paths = paths
        self._config = config
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[str, AttachedTopic] = {}
        self._opening: dict[str, threading.Lock] = {}

    @property
    def clock(self) -> Clock:
        """The clock."""
        return self._clock

    def exists(self, name: str) -> bool:
        """Whether a topic is attached, or was attached and has records left.

        Raises:
            MetadataUnavailable: The store cannot be reached.
        """
        return self.opened(name) is not None or self._metadata.get(self._paths.managed_ledger(name)) is not None

    def open(self, name: str, *, create: bool = False) -> AttachedTopic:
        """An attached topic; the same object until it is closed.

        1. Take ownership of our copy of its metadata, or create the copy. *Crash: the next owner does the same.*
        2. Merge the cluster's ledger list into it.

        Args:
            name: The managed-ledger name.
            create: Whether to attach a topic that was not attached before.

        Raises:
            TopicMissing: The cluster has no such topic, or it was not attached and is not to be.
            Fenced: Another process owns the topic.
            AfterglowError: It cannot be opened.
        """
        with self._lock:
            opening = self._opening.setdefault(name, threading.Lock())
        with opening:
            if (known := self.opened(name)) is not None:
                return known
            ledgers = self._cluster.ledgers(TopicName.from_managed_ledger_name(name))
            if ledgers is None:
                raise TopicMissing(f"{name} does not exist in cluster {self._cluster.settings.name}")
            metadata = TopicMetadata(self._metadata, self._paths.managed_ledger(name), self._config, self._clock)
            metadata.open(create=create)
            topic = AttachedTopic(name, metadata, self.hot)
            topic.follow(ledgers, None)
            with self._lock:
                self._open[name] = topic
            return topic

    def recorded(self) -> Iterator[str]:
        """Managed-ledger names of all topics that were ever attached and have records left.

        Raises:
            MetadataUnavailable: The store cannot be reached.
        """
        return names_below(self._metadata, self._paths.managed_ledgers)

    def is_deleted(self, name: str) -> bool:
        """Whether the cluster has deleted a topic, and this process does not follow it any more.

        Raises:
            MetadataUnavailable: The store cannot be reached.
        """
        return self.opened(name) is None and self._cluster.ledgers(TopicName.from_managed_ledger_name(name)) is None

    def update_deleted(self, name: str, edit: Edit) -> None:
        """Change our copy of a topic that the cluster has deleted; a copy without ledgers is removed.

        1. Take ownership of the copy. *Crash: nothing was changed.*
        2. Commit the edit. *Crash: the edit is applied entirely or not at all.*
        3. Remove the copy, if no ledger is left in it. *Crash: the next call does it.*

        Raises:
            TopicMissing: No copy exists.
            TopicClosed: The topic is followed again: the cluster has created it anew.
            MetadataError: The store failed.
        """
        with self._lock:
            opening = self._opening.setdefault(name, threading.Lock())
        with opening:
            if not self.is_deleted(name):
                raise TopicClosed(f"{name} was created anew; it is followed again")
            metadata = TopicMetadata(self._metadata, self._paths.managed_ledger(name), self._config, self._clock)
            metadata.open(create=False)
            if not metadata.update(edit).info.ledgerInfo:
                metadata.remove()

    def opened(self, name: str) -> AttachedTopic | None:
        """The topic if it is attached by this process, else None."""
        with self._lock:
            return self._open.get(name)

    def all_opened(self) -> tuple[AttachedTopic, ...]:
        """Every topic that is attached by this process."""
        with self._lock:
            return tuple(self._open.values())

    def close(self, name: str) -> None:
        """Stop following a topic, such as one that the cluster has deleted; its segments stay."""
        with self._lock:
            self._open.pop(name, None)

    def check_listed(self, name: str, ledger_ids: Collection[int]) -> None:
        """Check that the cluster has trimmed none of some ledgers of a topic.

        Raises:
            EntriesMissing: It has.
            MetadataUnavailable: The store cannot be reached.
            CorruptMetadata: The list does not parse.
        """
        if not ledger_ids:
            return
        ledgers = self._cluster.ledgers(TopicName.from_managed_ledger_name(name))
        listed = {ledger.ledgerId for ledger in ledgers.ledgerInfo} if ledgers is not None else set()
        if gone := sorted(set(ledger_ids) - listed):
            raise EntriesMissing(
                f"{name}: the cluster has trimmed ledger {gone[0]} while a broker delivered it, so that the entries "
                "that it did not deliver may be lost"
            )

    def has_entries(self, topic: TopicName, after: Position, through: Position) -> bool:
        """Whether a topic has entries behind one position up to another, as far as we or the cluster know.

        See :class:`~afterglow.hot.pulsar.subscription_hold.SubscriptionHolds`. True if it cannot be found out.
        """
        known = self.opened(topic.managed_ledger_name)
        if known is None or through.entry_id >= 0 or known.layout.entries_between(after, through):
            return True
        try:
            ledgers = self._cluster.ledgers(topic)
        except AfterglowError:
            return True
        listed = () if ledgers is None else ledgers.ledgerInfo
        return bool(Layout.of((each.ledgerId, each.entries) for each in listed).entries_between(after, through))

    def info(self, name: str) -> ManagedLedgerInfo:
        """Our copy of a topic's metadata; not to be changed.

        Raises:
            TopicMissing: It was never attached.
            MetadataUnavailable: The store cannot be reached.
        """
        if (known := self.opened(name)) is not None:
            return known.info
        found = self._metadata.get(self._paths.managed_ledger(name))
        if found is None or not found.value:
            raise TopicMissing(f"topic {name} is not attached")
        return parse_managed_ledger(found.value)

    def all_topics(self) -> tuple[TopicName, ...]:
        """Every topic that is attached by this process. Topics that it does not follow have no work."""
        return tuple(topic.topic for topic in self.all_opened())
