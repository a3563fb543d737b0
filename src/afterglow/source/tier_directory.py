"""Topic directory of a tier alone: topics, ledgers and segments from its objects, without metadata.

The tier is listed when it is needed, and again once the listing is old. Objects that a server writes meanwhile appear
in the next listing. A tier has no policies, no schemas, and no hot log.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Final

from afterglow.config.choices import DamagePolicy
from afterglow.errors import ConfigError, InvalidName, NotSupported, TopicMissing
from afterglow.format.blocks import Format
from afterglow.format.objects import parse_key
from afterglow.format.position import Position
from afterglow.metadata.names import TopicName
from afterglow.metadata.store import wall_clock_ms
from afterglow.read.hot_readers import UnavailableHotLog
from afterglow.source.directory import SourceSegment, SourceSnapshot
from afterglow.source.tier_ledgers import names, topic_of_objects
from afterglow.source.tier_objects import list_objects

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from afterglow.config import BrokerConfig
    from afterglow.format.schema import SchemaVersion
    from afterglow.source.listing_cache import ListingCache
    from afterglow.source.tier_ledgers import TierTopic
    from afterglow.source.tier_objects import ListedObject, TierListing
    from afterglow.storage import ObjectStore
    from afterglow.tier.locations import TierLocation

_log = logging.getLogger(__name__)

_MIN_AGE_S: Final = 2.0
_AGE_FACTOR: Final = 10.0
"""A listing is used for as long as listing took, times this, and at least ``_MIN_AGE_S``."""
_IN_PROGRESS_MS: Final = 3_600_000
"""A data object without an index may be in progress until it is this old."""


@dataclass(frozen=True, slots=True)
class _Listed:
    """One listing, by topic."""

    topics: Mapping[TopicName, Sequence[ListedObject]]
    until_s: float
    """Monotonic time at which it is old."""
    made: dict[TopicName, TierTopic] = field(default_factory=dict)
    """Ledger lists that were derived from it."""


class TierDirectory:
    """A :class:`~afterglow.source.directory.TopicDirectory` over the objects of a tier. Thread-safe.

    Args:
        source: Its address, as it was given.
        location: The tier location.
        store: Its store.
        cache: Keeps what was read of objects.
        config: The settings of this process.
    """

    def __init__(
        self, source: str, location: TierLocation, store: ObjectStore, cache: ListingCache, config: BrokerConfig
    ) -> None:
        self._source = source
        self._location = location
        self._store = store
        self._cache = cache
        self._config = config
        self._lock = Lock()
        self._known: dict[str, tuple[str, ListedObject]] | None = None
        self._listed: _Listed | None = None
        self._reported: set[str] = set()

    @property
    def source(self) -> str:
        """Its address, for messages."""
        return self._source

    def topics(self) -> tuple[str, ...]:
        """Full names of all topics; see :class:`TopicDirectory`."""
        return tuple(sorted(map(str, self._list().topics)))

    def names_in_namespace(self, topic: TopicName) -> tuple[str, ...]:
        """Full names in the topic's namespace; see :class:`TopicDirectory`."""
        found = [other for other in self._list().topics if other.namespace == topic.namespace]
        return tuple(sorted({*map(str, found), *(str(other.base) for other in found)}))

    def partitions(self, topic: TopicName) -> int:
        """Number of partitions of a topic, by the greatest one that has objects; see :class:`TopicDirectory`."""
        known = self._list().topics
        if topic in known:
            return 0
        indexes = (other.partition_index for other in known if other.base == topic)
        return 1 + max((index for index in indexes if index is not None), default=-1)

    def exists(self, topic: TopicName) -> bool:
        """Whether a topic has objects; see :class:`TopicDirectory`."""
        return topic in self._list().topics

    def snapshot(self, topic: TopicName) -> SourceSnapshot:
        """The current state of a topic; see :class:`TopicDirectory`.

        Raises:
            ConfigError: The objects are those of several clusters.
            CorruptIndex: An object is damaged, and the entries that it has are not known.
        """
        found = self._topic(topic)
        if found.error is not None:
            skips = self._config.damaged_data_policy is DamagePolicy.SKIP_AND_REPORT
            if isinstance(found.error, ConfigError) or not skips:
                raise found.error.with_traceback(None)
            self._report(str(found.error))
        for finding in found.findings:
            self._report(finding)
        hot = UnavailableHotLog(f"source {self._source} has no hot log; give the home or the address of a cluster")
        return SourceSnapshot(found.info, hot, None, found.missing)

    def policy(self, topic: TopicName) -> BrokerConfig:  # noqa: ARG002 - a tier has no policies
        """The settings of this process; see :class:`TopicDirectory`."""
        return self._config

    def segments(self, topic: TopicName) -> tuple[SourceSegment, ...]:
        """All its segments, also those that overlap others; see :class:`TopicDirectory`."""
        objects = self._list().topics.get(topic, ())
        found = (
            SourceSegment(
                str(topic),
                listed.key.uuid,
                Position(listed.extents[0].ledger_id, listed.extents[0].first),
                Position(listed.extents[-1].ledger_id, listed.extents[-1].last),
                sum(extent.last - extent.first + 1 for extent in listed.extents),
                listed.size_bytes,
                self._location,
                str(listed.key),
                0,
                listed.modified_ms,
            )
            for listed in objects
            if listed.key.format is Format.V2 and listed.extents
        )
        return tuple(sorted(found, key=lambda segment: segment.begin))

    def schemas(self, topic: TopicName) -> tuple[SchemaVersion, ...]:
        """Raise an error; see :class:`TopicDirectory`.

        Raises:
            NotSupported: Always: schemas are in metadata.
        """
        raise NotSupported(
            f"source {self._source} has no schemas of {topic}; pass them as scan(decode=[SchemaVersion(…), …]), or "
            "give the home or the admin API as the source"
        )

    def _topic(self, topic: TopicName) -> TierTopic:
        listed = self._list()
        objects = listed.topics.get(topic)
        if objects is None:
            raise TopicMissing(f"topic does not exist any more: {topic} in source {self._source}")
        found = listed.made.get(topic)
        if found is None:
            found = listed.made[topic] = topic_of_objects(str(topic), objects, self._source)
        return found

    def _list(self) -> _Listed:
        with self._lock:
            if self._listed is None or time.monotonic() >= self._listed.until_s:
                self._listed = self._refresh()
            return self._listed

    def _refresh(self) -> _Listed:
        began_s = time.monotonic()
        known = self._known = self._cache.load() if self._known is None else self._known

        def learn(learned: Mapping[str, tuple[str, ListedObject]]) -> None:
            known.update(learned)
            self._cache.add(learned)

        listing = list_objects(self._store, known, learn)
        gone = known.keys() - listing.objects.keys()
        for key in gone:
            del known[key]
        if gone:
            self._cache.remove(gone)
        ended_s = time.monotonic()
        return _Listed(self._by_topic(listing), ended_s + max(_AGE_FACTOR * (ended_s - began_s), _MIN_AGE_S))

    def _by_topic(self, listing: TierListing) -> dict[TopicName, list[ListedObject]]:
        topics: dict[TopicName, list[ListedObject]] = {}
        nameless = []
        for key, listed in listing.objects.items():
            try:
                topics.setdefault(TopicName.from_managed_ledger_name(listed.managed_ledger), []).append(listed)
            except InvalidName:
                nameless.append(key)
        if nameless:
            self._report(
                f"{self._source}: objects name no topic, and are not read: {names(sorted(nameless))}; copy objects "
                "together with their user metadata"
            )
        self._report_parts(listing)
        return topics

    def _report_parts(self, listing: TierListing) -> None:
        recent_ms = wall_clock_ms() - _IN_PROGRESS_MS
        old = [each for each in listing.incomplete if each.modified_ms < recent_ms or each.missing == str(each.key)]
        if old:
            self._report(
                f"{self._source}: objects are incomplete, and are not read: "
                f"{names(sorted(f'{each.missing} is missing' for each in old))}"
            )
        if listing.foreign:
            self._report(f"{self._source}: other objects are ignored: {names(listing.foreign)}" + self._hint(listing))

    def _hint(self, listing: TierListing) -> str:
        """Where to look, if no object of ours is at the address but some are below it."""
        if listing.objects:
            return ""
        for key in listing.foreign:
            directory, _, name = key.rpartition("/")
            try:
                parse_key(name)
            except InvalidName:
                continue
            return f"; offloaded objects are in {self._source.rstrip('/')}/{directory}: give that address"
        return ""

    def _report(self, finding: str) -> None:
        """Log a finding once."""
        if finding not in self._reported:
            self._reported.add(finding)
            _log.warning("%s", finding)
