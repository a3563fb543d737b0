"""Topics of a server's home: its metadata, opened so that nothing is ever written, made or locked.

Readers of the home need it only for processes on other machines, such as tasks of a Spark job: these find no hot log on
their own disk. What a server that was killed has left is as good as nothing: nobody answers there.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from afterglow.catalog.catalog import Catalog
from afterglow.catalog.schema_compatibility import TYPE_NAMES
from afterglow.catalog.schema_registry import SchemaRegistry
from afterglow.errors import MetadataUnavailable, NotSupported, TopicMissing
from afterglow.format.metadata_envelope import parse_managed_ledger
from afterglow.format.schema import SchemaVersion
from afterglow.hot.local.shared_ledger import read_instance
from afterglow.metadata.address import open_metadata
from afterglow.metadata.paths import managed_ledger_path
from afterglow.policy.resolver import Policies
from afterglow.read.hot_readers import HotLocation, SharedHot
from afterglow.source.directory import Look, SourceSegment

if TYPE_CHECKING:
    from pathlib import Path

    from afterglow.config import BrokerConfig
    from afterglow.metadata.cluster_credentials import ClusterCredentials
    from afterglow.metadata.names import TopicName
    from afterglow.metadata.paths import AfterglowPaths
    from afterglow.metadata.store import MetadataStore

METADATA_FILE: Final = "metadata.db"
"""Where a server keeps its metadata in its home, unless told otherwise."""
TIER_DIRECTORY: Final = "tier"
"""Where a server keeps objects in its home, unless told otherwise."""


def read_metadata(home: Path, address: str | None) -> MetadataStore:
    """Open the metadata of a home to read it, whether or not a server runs there.

    Args:
        home: The directory.
        address: Where the metadata is, if not in the home.

    Raises:
        MetadataUnavailable: There is no such home, it has no metadata, or these cannot be read.
        CorruptMetadata: They are damaged.
        NotSupported: The address names a store that cannot be read yet.
        WrongVersion: A newer release made them.
    """
    if not home.is_dir():
        raise MetadataUnavailable(
            f"source {home}: there is no such directory; give the home that `afterglow serve --home` runs on"
        )
    if address is None:
        file = home / METADATA_FILE
        if not file.is_file():
            raise MetadataUnavailable(
                f"source {home} is no server's home: it has no {METADATA_FILE}; give the directory that `afterglow "
                "serve --home` runs on, and --metadata sqlite:PATH if its metadata is elsewhere"
            )
        address = f"sqlite:{file.absolute()}"
    if not address.startswith("sqlite:"):
        raise NotSupported(
            f"metadata {address!r}: beside a home only sqlite:PATH can be read in this release; read from where the "
            "server keeps its metadata in a file"
        )
    return open_metadata(address, read_only=True)


_FILE: Final = "serving.json"
_SERVICE_URL: Final = "serviceUrl"


def announce(home: Path, service_url: str) -> None:
    """Say where the broker is reached; an empty address says nothing.

    Raises:
        OSError: The disk refuses.
    """
    if not service_url:
        return
    new = home / f"{_FILE}.new"
    new.write_text(json.dumps({_SERVICE_URL: service_url}) + "\n", "utf-8")
    os.replace(new, home / _FILE)  # noqa: PTH105 - readers see the old one or the new one


def withdraw(home: Path) -> None:
    """Say it no more; where the disk refuses, it is as after a crash."""
    with suppress(OSError):
        (home / _FILE).unlink(missing_ok=True)


def announced(home: Path) -> str:
    """Where the server on a home says that it is reached; empty where it says nothing."""
    try:
        found = json.loads((home / _FILE).read_text("utf-8"))[_SERVICE_URL]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return found if isinstance(found, str) else ""


def stored_schemas(metadata: MetadataStore, paths: AfterglowPaths, topic: TopicName) -> tuple[SchemaVersion, ...]:
    """Every version of a topic's schema, oldest first; a partition has those of its topic.

    Raises:
        MetadataError: They cannot be read.
        CorruptMetadata: A version is damaged.
    """
    return tuple(
        SchemaVersion(
            stored.version,
            TYPE_NAMES[stored.schema.type],
            stored.schema.schema_data,
            {pair.key: pair.value for pair in stored.schema.properties},
        )
        for stored in SchemaRegistry(metadata, paths).versions(topic)
    )


class HomeDirectory:
    """A :class:`~afterglow.source.directory.TopicDirectory` over a server's home.

    Args:
        source: The home, as it was given.
        home: The same.
        metadata: Its metadata; closed by whoever opened it.
        paths: Where records of ours are in it.
        config: The settings of this process.
        credentials: Credentials for the broker, for readers that cannot open the home directory.
        service_url: Where that broker is reached, if not where it says.
    """

    def __init__(
        self,
        source: str,
        home: Path,
        metadata: MetadataStore,
        paths: AfterglowPaths,
        config: BrokerConfig,
        *,
        credentials: ClusterCredentials,
        service_url: str | None = None,
    ) -> None:
        self._source = source
        self._metadata = metadata
        self._paths = paths
        self._catalog = Catalog(metadata, config.cluster_name)
        self._policies = Policies(config, self._catalog)
        self._home = home
        self._hot = SharedHot(home)
        self._credentials = credentials
        self._service_url = service_url

    @property
    def source(self) -> str:
        """Its address, for messages."""
        return self._source

    def topics(self) -> tuple[str, ...]:
        """Full names of all topics; see the protocol."""
        catalog = self._catalog
        return tuple(
            str(topic)
            for tenant in catalog.tenants()
            for namespace in catalog.namespaces(tenant)
            for topic in catalog.topics(namespace)
        )

    def names_beside(self, topic: TopicName) -> tuple[str, ...]:
        """Full names in the topic's namespace; see the protocol."""
        known = (*self._catalog.topics(topic.namespace), *self._catalog.partitioned_topics(topic.namespace))
        return tuple(sorted({str(other) for other in known}))

    def partitions(self, topic: TopicName) -> int:
        """How many partitions a topic has; see the protocol."""
        return self._catalog.partitions(topic)

    def exists(self, topic: TopicName) -> bool:
        """Whether there is such a topic; see the protocol."""
        return self._stored(topic) is not None

    def look(self, topic: TopicName) -> Look:
        """A topic as it is now; see the protocol.

        Raises:
            TopicMissing: There is no such topic any more.
            CorruptMetadata: Its list is damaged.
        """
        value = self._stored(topic)
        if value is None:
            raise TopicMissing(f"source {self._source} has no topic {topic} any more")
        self._policies.changed(None)
        location = HotLocation(
            str(self._home.absolute()),
            str(topic),
            self._service_url or announced(self._home),
            read_instance(self._home) or "",
            self._credentials,
        )
        return Look(parse_managed_ledger(value), self._hot, location)

    def policy(self, topic: TopicName) -> BrokerConfig:
        """What holds for a topic; see the protocol."""
        return self._policies.of(topic.managed_ledger_name)

    def segments(self, topic: TopicName) -> tuple[SourceSegment, ...]:
        """Its offloaded segments; see the protocol.

        Raises:
            CorruptMetadata: A record is damaged.
        """
        return stored_segments(self._metadata, self._paths, topic)

    def schemas(self, topic: TopicName) -> tuple[SchemaVersion, ...]:
        """Every version of its schema; see the protocol.

        Raises:
            CorruptMetadata: A version is damaged.
        """
        from afterglow.source.home_directory import stored_schemas  # noqa: PLC0415 - only who decodes waits for it

        return stored_schemas(self._metadata, self._paths, topic)

    def _stored(self, topic: TopicName) -> bytes | None:
        stored = self._metadata.get(managed_ledger_path(topic.managed_ledger_name))
        return None if stored is None or not stored.value else stored.value


def stored_segments(metadata: MetadataStore, paths: AfterglowPaths, topic: TopicName) -> tuple[SourceSegment, ...]:
    """The offloaded segments of a topic that a store has records of, by position.

    Raises:
        MetadataError: It cannot be read.
        CorruptMetadata: A record is damaged.
    """
    parent = paths.segments(topic.managed_ledger_name)
    found = []
    for child in metadata.children(parent):
        node = metadata.get(f"{parent}/{child}")
        if node is not None:
            found.append(SourceSegment.parse(str(topic), node.value, f"{parent}/{child}"))
    return tuple(sorted(found, key=lambda segment: segment.begin))
