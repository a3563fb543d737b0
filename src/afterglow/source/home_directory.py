"""Topic directory of a server's home. Metadata is opened read-only: nothing is written, created or locked.

A running server announces its service URL in a file in its home, for processes on other machines, such as the tasks of
a Spark job, which do not have the hot log on their disk. The file of a server that was killed is harmless: connections
to the address fail.
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
from afterglow.read.hot_readers import HotLocation, SharedHotLog
from afterglow.source.directory import SourceSegment, SourceSnapshot

if TYPE_CHECKING:
    from pathlib import Path

    from afterglow.config import BrokerConfig
    from afterglow.metadata.cluster_credentials import ClusterCredentials
    from afterglow.metadata.names import TopicName
    from afterglow.metadata.paths import AfterglowPaths
    from afterglow.metadata.store import MetadataStore

METADATA_FILE: Final = "metadata.db"
"""Default metadata file in a server's home."""
TIER_DIRECTORY: Final = "tier"
"""Default directory of objects in a server's home."""


def read_metadata(home: Path, address: str | None) -> MetadataStore:
    """Open the metadata of a home read-only, whether or not a server is running there.

    Args:
        home: The directory.
        address: Address of the metadata, if not in the home.

    Raises:
        MetadataUnavailable: The home or its metadata does not exist, or cannot be read.
        CorruptMetadata: The metadata is damaged.
        NotSupported: The address names a store that cannot be read yet.
        WrongVersion: A newer release wrote the metadata.
    """
    if not home.is_dir():
        raise MetadataUnavailable(f"source {home}: no such directory; give the directory of `afterglow serve --home`")
    if address is None:
        file = home / METADATA_FILE
        if not file.is_file():
            raise MetadataUnavailable(
                f"source {home} is not a server's home: {METADATA_FILE} is missing; give the directory of `afterglow "
                "serve --home`, and --metadata sqlite:PATH if its metadata is elsewhere; a directory of offloaded "
                f"objects is given as {home.absolute().as_uri()}"
            )
        address = f"sqlite:{file.absolute()}"
    if not address.startswith("sqlite:"):
        raise NotSupported(
            f"metadata {address!r} cannot be read with a home in this release; give sqlite:PATH of the server's "
            "metadata file"
        )
    return open_metadata(address, read_only=True)


_FILE: Final = "serving.json"
_SERVICE_URL: Final = "serviceUrl"


def announce(home: Path, service_url: str) -> None:
    """Write the broker's service URL to the home; does nothing for an empty one.

    Raises:
        OSError: The file cannot be written.
    """
    if not service_url:
        return
    new = home / f"{_FILE}.new"
    new.write_text(json.dumps({_SERVICE_URL: service_url}) + "\n", "utf-8")
    os.replace(new, home / _FILE)  # noqa: PTH105 - atomic: readers see the old file or the new one


def withdraw(home: Path) -> None:
    """Remove the announced service URL; errors are ignored, since a crash leaves the file too."""
    with suppress(OSError):
        (home / _FILE).unlink(missing_ok=True)


def announced(home: Path) -> str:
    """The service URL that the server of a home announced; empty if none exists."""
    try:
        found = json.loads((home / _FILE).read_text("utf-8"))[_SERVICE_URL]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return found if isinstance(found, str) else ""


class HomeDirectory:
    """A :class:`~afterglow.source.directory.TopicDirectory` over a server's home.

    Args:
        source: The home, as it was given.
        home: Its path.
        metadata: Its metadata; closed by the caller.
        paths: Paths of Afterglow's records in the metadata.
        config: The settings of this process.
        credentials: Credentials for the server's broker, for processes that do not have the home on their disk.
        service_url: Address of that broker; None: the announced one.
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
        self._hot = SharedHotLog(home)
        self._credentials = credentials
        self._service_url = service_url

    @property
    def source(self) -> str:
        """Its address, for messages."""
        return self._source

    def topics(self) -> tuple[str, ...]:
        """Full names of all topics; see :class:`TopicDirectory`."""
        catalog = self._catalog
        return tuple(
            str(topic)
            for tenant in catalog.tenants()
            for namespace in catalog.namespaces(tenant)
            for topic in catalog.topics(namespace)
        )

    def names_in_namespace(self, topic: TopicName) -> tuple[str, ...]:
        """Full names in the topic's namespace; see :class:`TopicDirectory`."""
        known = (*self._catalog.topics(topic.namespace), *self._catalog.partitioned_topics(topic.namespace))
        return tuple(sorted({str(other) for other in known}))

    def partitions(self, topic: TopicName) -> int:
        """Number of partitions of a topic; see :class:`TopicDirectory`."""
        return self._catalog.partitions(topic)

    def exists(self, topic: TopicName) -> bool:
        """Whether a topic exists; see :class:`TopicDirectory`."""
        return self._stored(topic) is not None

    def snapshot(self, topic: TopicName) -> SourceSnapshot:
        """The current state of a topic; see :class:`TopicDirectory`."""
        value = self._stored(topic)
        if value is None:
            raise TopicMissing(f"topic does not exist any more: {topic} in source {self._source}")
        self._policies.changed(None)
        location = HotLocation(
            str(self._home.absolute()),
            str(topic),
            self._service_url or announced(self._home),
            read_instance(self._home) or "",
            self._credentials,
        )
        return SourceSnapshot(parse_managed_ledger(value), self._hot, location)

    def policy(self, topic: TopicName) -> BrokerConfig:
        """Effective policy of a topic; see :class:`TopicDirectory`."""
        return self._policies.of(topic.managed_ledger_name)

    def segments(self, topic: TopicName) -> tuple[SourceSegment, ...]:
        """Its offloaded segments; see :class:`TopicDirectory`."""
        return stored_segments(self._metadata, self._paths, topic)

    def schemas(self, topic: TopicName) -> tuple[SchemaVersion, ...]:
        """Every version of its schema; see :class:`TopicDirectory`."""
        return tuple(
            SchemaVersion(
                stored.version,
                TYPE_NAMES[stored.schema.type],
                stored.schema.schema_data,
                {pair.key: pair.value for pair in stored.schema.properties},
            )
            for stored in SchemaRegistry(self._metadata, self._paths).versions(topic)
        )

    def _stored(self, topic: TopicName) -> bytes | None:
        stored = self._metadata.get(managed_ledger_path(topic.managed_ledger_name))
        return None if stored is None or not stored.value else stored.value


def stored_segments(metadata: MetadataStore, paths: AfterglowPaths, topic: TopicName) -> tuple[SourceSegment, ...]:
    """The offloaded segments of a topic, from the records in a store, by position.

    Raises:
        MetadataError: The store cannot be read.
        CorruptMetadata: A record is damaged.
    """
    parent = paths.segments(topic.managed_ledger_name)
    found = []
    for child in metadata.children(parent):
        node = metadata.get(f"{parent}/{child}")
        if node is not None:
            found.append(SourceSegment.parse(str(topic), node.value, f"{parent}/{child}"))
    return tuple(sorted(found, key=lambda segment: segment.begin))
