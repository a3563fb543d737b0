"""A connected source: the topics of an engine, read beside it and without it.

Nothing here writes, and nothing needs the engine: topics are read from its home while it runs and after it has stopped,
objects from the places that metadata names, with credentials from the environment.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from difflib import get_close_matches
from pathlib import Path
from typing import Self

from afterglow.config import load_conf
from afterglow.engine.home import TIER_DIRECTORY, read_metadata
from afterglow.engine.source_part import Rooms
from afterglow.engine.source_topic import SourceTopic
from afterglow.engine.stored_directory import HomeDirectory
from afterglow.engine.tier import own_tier
from afterglow.errors import ConfigError, NotSupported, TopicMissing
from afterglow.metadata.names import TopicName
from afterglow.metadata.paths import AfterglowPaths
from afterglow.read.counters import ReadCounters
from afterglow.read.places import FILESYSTEM, TierPlace, Tiers
from afterglow.read.stretches import Locator
from afterglow.read.tier_source import TierSource

__all__ = ["Source", "SourceTopic", "connect"]


def connect(source: str | Path, tier: str | None = None, metadata: str | None = None) -> Source:
    """Connect to a source of topics.

    Args:
        source: The home directory of an engine, running or not.
        tier: Where all objects are, whatever metadata says: ``file:///path`` or ``s3://bucket[/prefix]``.
        metadata: Where the engine keeps its metadata, if not in its home: ``sqlite:PATH``.

    Raises:
        ConfigError: An address is malformed, or a setting in the environment.
        NotSupported: The source or the tier is of a kind that this release does not read.
        MetadataUnavailable: There is no such home, or its metadata cannot be read.
        CorruptMetadata: Its metadata is damaged.
    """
    home = _home(str(source))
    config = load_conf(environ=os.environ)
    explicit = None if tier is None else own_tier(home, tier, config)
    with ExitStack() as stack:
        opened = read_metadata(home, metadata)
        stack.callback(opened.close)
        paths = AfterglowPaths(config.cluster_name)
        own = TierPlace(FILESYSTEM, str(home.absolute() / TIER_DIRECTORY))
        tiers = TierSource(Tiers(), config, Locator(opened, paths, own=own, explicit=explicit))
        stack.callback(tiers.close)
        directory = HomeDirectory(str(source), home, opened, paths, config)
        return Source(Rooms(directory, tiers, ReadCounters()), stack.pop_all())
    raise AssertionError("unreachable: the block returns or raises")


class Source:
    """The topics of an engine. Made by :func:`connect`; a context manager. Thread-safe."""

    def __init__(self, rooms: Rooms, stack: ExitStack) -> None:
        self._rooms = rooms
        self._directory = rooms.directory
        self._stack = stack

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Source({self._directory.source!r})"

    @property
    def counters(self) -> ReadCounters:
        """Which tier has served what."""
        return self._rooms.counters

    def topics(self) -> tuple[str, ...]:
        """Full names of all topics, each partition by itself.

        Raises:
            MetadataError: The metadata cannot be read.
        """
        return self._directory.topics()

    def topic(self, name: str) -> SourceTopic:
        """A topic, by any spelling of its name; that of a partitioned topic means all its partitions.

        Raises:
            InvalidName: The name is no persistent topic's.
            TopicMissing: There is no such topic.
            MetadataError: The metadata cannot be read.
        """
        topic = TopicName.parse(name)
        count = self._directory.partitions(topic)
        wanted = [topic.partition(index) for index in range(count)] if count else [topic]
        found = tuple(part for part in wanted if self._directory.exists(part))
        if not found and not count:
            raise TopicMissing(f"source {self._directory.source} has no topic {topic}{self._near(topic)}")
        return SourceTopic(topic, found, self._rooms)

    def close(self) -> None:
        """Let go of everything; a second call does nothing."""
        self._stack.close()

    def _near(self, topic: TopicName) -> str:
        names = self._directory.names_beside(topic)
        near = get_close_matches(str(topic), names, n=3, cutoff=0.8)
        if near:
            return f"; did you mean {' or '.join(near)}?"
        return f"; namespace {topic.namespace} has {len(names)} topics" if names else ""


def _home(source: str) -> Path:
    scheme, separator, _ = source.partition("://")
    if not separator:
        return Path(source)
    if scheme in {"http", "https", "zk"}:
        raise NotSupported(
            f"source {source!r}: this release reads the home directory of an engine; reading by way of its admin API "
            "or of ZooKeeper is to come"
        )
    raise ConfigError(f"source {source!r} is no address; give the home directory that `afterglow serve --home` runs on")
