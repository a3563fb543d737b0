"""Connection to a source: the topics of a server or of a Pulsar cluster, read-only.

No server needs to run: topics are read from its home while it runs or after it has stopped, and objects from the tier
locations in metadata, with credentials from the environment.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Self

from afterglow.config import load_conf
from afterglow.errors import TopicMissing
from afterglow.metadata.names import TopicName
from afterglow.read.counters import ReadCounters
from afterglow.read.tier_reader import TierReader
from afterglow.source.addresses import SourceAddress, check_hot, open_source, parse_entry_path
from afterglow.source.partition import SourceContext
from afterglow.source.topic import SourceTopic
from afterglow.tier.locations import Tiers, own_tier

if TYPE_CHECKING:
    from afterglow.source.addresses import Entries, Hot

__all__ = ["Source", "SourceTopic", "connect"]


def connect(
    source: str | Path,
    tier: str | None = None,
    metadata: str | None = None,
    *,
    hot: Hot = "read",
    service_url: str | None = None,
    token: str | None = None,
    ca_file: str | None = None,
    entries: Entries = "auto",
    timeout_s: float | None = None,
) -> Source:
    """Connect to a source of topics.

    Args:
        source: The home directory of a server, running or not; ``http://host:8080``, the admin API of an Apache Pulsar
            cluster or of an Afterglow; ``zk://host:2181[/chroot]``, a cluster's ZooKeeper, whether or not brokers run;
            ``s3://bucket[/prefix]`` or ``file:///path``, a tier alone, whose objects name their topics.
        tier: Location of all objects, which overrides metadata: ``file:///path`` or ``s3://bucket[/prefix]``.
        metadata: Metadata of the server, if not in its home: ``sqlite:PATH``. For a cluster: metadata of an Afterglow
            that is attached to it, ``sqlite:PATH`` or ``zk://…``, whose segments are added.
        hot: ``skip`` skips entries that no tier has.
        service_url: Brokers that serve entries of the hot log, ``pulsar://host:port``; by default those of the cluster.
        token: Token for a cluster, or ``file:///path``; by default ``AFTERGLOW_TOKEN``.
        ca_file: Trusted certificate authorities for TLS; by default ``AFTERGLOW_CA_FILE``, else those of the system.
        entries: Where entries of a Pulsar cluster are read that no tier has: ``bookkeeper``, ``broker``, or ``auto``:
            from bookies, and from brokers where bookies cannot be reached or require authentication.
        timeout_s: Seconds after which a request to a tier that does not answer fails, with its retries; by default the
            setting ``offloadRequestTimeoutSeconds``.

    Raises:
        ConfigError: An address, or a setting in the environment, is malformed.
        NotSupported: This release cannot read this kind of source or tier.
        MetadataUnavailable: The home does not exist, or its metadata cannot be read.
        CorruptMetadata: The metadata is damaged.
    """
    address = SourceAddress(str(source), metadata, service_url, token, ca_file, parse_entry_path(entries))
    reads_hot = check_hot(hot)
    config = load_conf(environ=os.environ)
    explicit = None if tier is None else own_tier(Path(), tier, config)
    with ExitStack() as stack:
        stores = Tiers(deadline_s=timeout_s)
        directory, locator = open_source(address, config, explicit, stores, stack)
        tiers = TierReader(stores, config, locator)
        stack.callback(tiers.close)
        context = SourceContext(directory, tiers, ReadCounters(), skips_hot=not reads_hot and not address.is_tier)
        return Source(context, stack.pop_all())
    raise AssertionError("unreachable: the block returns or raises")


class Source:
    """The topics of a server or of a cluster. Made by :func:`connect`; a context manager. Thread-safe."""

    def __init__(self, context: SourceContext, stack: ExitStack) -> None:
        self._context = context
        self._directory = context.directory
        self._stack = stack

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Source({self._directory.source!r})"

    @property
    def counters(self) -> ReadCounters:
        """Counts of all reads."""
        return self._context.counters

    def topics(self) -> tuple[str, ...]:
        """Full names of all topics, each partition by itself.

        Raises:
            MetadataError: The metadata cannot be read.
        """
        return self._directory.topics()

    def topic(self, name: str) -> SourceTopic:
        """A topic, by any spelling of its name; that of a partitioned topic means all its partitions.

        Raises:
            InvalidName: The name is not a valid persistent topic name.
            TopicMissing: The topic does not exist.
            MetadataError: The metadata cannot be read.
        """
        topic = TopicName.parse(name)
        count = self._directory.partitions(topic)
        wanted = [topic.partition(index) for index in range(count)] if count else [topic]
        found = tuple(partition for partition in wanted if self._directory.exists(partition))
        if not found and not count:
            raise TopicMissing(f"source {self._directory.source} has no topic {topic}{self._hint(topic)}")
        return SourceTopic(topic, found, self._context)

    def close(self) -> None:
        """Close all connections; a second call does nothing."""
        self._stack.close()

    def _hint(self, topic: TopicName) -> str:
        names = self._directory.names_in_namespace(topic)
        near = get_close_matches(str(topic), names, n=3, cutoff=0.8)
        if near:
            return f"; did you mean {' or '.join(near)}?"
        return f"; namespace {topic.namespace} has {len(names)} topics" if names else ""
