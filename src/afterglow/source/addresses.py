"""Addresses of sources, and opening of the topic directory and the object locator of an address."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from afterglow.config.choices import EntryPath
from afterglow.errors import ConfigError
from afterglow.hot.bookkeeper import BookKeeperAddress
from afterglow.metadata.address import open_metadata
from afterglow.metadata.admin_client import AdminClient
from afterglow.metadata.cluster_credentials import ClusterCredentials
from afterglow.metadata.paths import AfterglowPaths
from afterglow.metadata.pulsar_cluster import PulsarCluster
from afterglow.read.ranges import ObjectLocator
from afterglow.source.admin_directory import AdminDirectory
from afterglow.source.attached_directory import AttachedDirectory, attached_paths
from afterglow.source.cluster_directory import ClusterBrokers, ClusterDirectory
from afterglow.source.cluster_hot import ClusterHot, bookies_of
from afterglow.source.home_directory import TIER_DIRECTORY, HomeDirectory, read_metadata
from afterglow.source.listing_cache import ListingCache, cache_file
from afterglow.source.tier_directory import TierDirectory
from afterglow.tier.locations import FILESYSTEM, TierLocation, configured_location

if TYPE_CHECKING:
    from contextlib import ExitStack

    from afterglow.config import BrokerConfig
    from afterglow.source.directory import TopicDirectory
    from afterglow.tier.locations import Tiers

Hot: TypeAlias = Literal["read", "skip"]
Entries: TypeAlias = Literal["auto", "bookkeeper", "broker"]

TIER_SCHEMES: Final = frozenset({"file", "s3", "az", "gs"})
"""Schemes of a tier as a source."""

_FORMS: Final = (
    "the home directory that `afterglow serve --home` runs on, http://HOST:8080, zk://HOST:2181, or the address of a "
    "tier, s3://BUCKET[/PREFIX] or file:///PATH"
)


@dataclass(frozen=True, slots=True)
class SourceAddress:
    """Address and credentials of a source; see :func:`~afterglow.source.connect.connect`."""

    source: str
    """A directory, or a URL."""
    metadata: str | None = None
    """Address of Afterglow's metadata, if not in the source."""
    service_url: str | None = None
    """Address of the brokers; None: the one that the source reports."""
    token: str | None = None
    ca_file: str | None = None
    entries: EntryPath = EntryPath.AUTO
    """Where entries of a Pulsar cluster are read that are in no tier."""

    @property
    def scheme(self) -> str:
        """Scheme of a URL; empty for a directory."""
        scheme, separator, _ = self.source.partition("://")
        return scheme if separator else ""

    @property
    def is_tier(self) -> bool:
        """Whether it is the address of a tier, which is read without metadata."""
        return self.scheme in TIER_SCHEMES


def open_source(
    address: SourceAddress, config: BrokerConfig, explicit: TierLocation | None, stores: Tiers, held: ExitStack
) -> tuple[TopicDirectory, ObjectLocator]:
    """Open a source.

    Args:
        address: The source.
        config: The settings of this process.
        explicit: Location of all objects, which overrides metadata.
        stores: Opens the stores of tiers.
        held: Closes the opened metadata stores.

    Raises:
        ConfigError: An address is malformed.
        MetadataError: The metadata cannot be read.
    """
    if address.is_tier:
        return _open_tier(address, config, explicit, stores)
    if address.scheme not in {"", "http", "https", "zk"}:
        raise ConfigError(f"invalid source address {address.source!r}; expected {_FORMS}")
    credentials = ClusterCredentials.of(address.token, address.ca_file)
    if not address.scheme:
        return _open_home(address, config, credentials, explicit, held)
    directory: TopicDirectory
    cluster: AdminClient | PulsarCluster
    if address.scheme == "zk":
        store = open_metadata(address.source, config)
        held.callback(store.close)
        cluster = PulsarCluster(store)
        brokers = ClusterBrokers(cluster, credentials, address.service_url)
        bookies = None if address.entries is EntryPath.BROKER else BookKeeperAddress(address.source)
        hot = ClusterHot(address.entries, lambda: bookies, credentials)
        directory = ClusterDirectory(address.source, cluster, brokers, hot, config)
    else:
        cluster = AdminClient(address.source, credentials)
        hot = ClusterHot(address.entries, partial(bookies_of, cluster), credentials)
        directory = AdminDirectory(cluster, hot, config, address.service_url)
    if address.metadata is None:
        return directory, ObjectLocator(explicit=explicit)
    # An Afterglow is attached to the cluster: its segments are added.
    options: dict[str, Any] = {"read_only": True} if address.metadata.startswith("sqlite:") else {}
    metadata = open_metadata(address.metadata, config, **options)
    held.callback(metadata.close)
    paths = attached_paths(metadata, address.metadata, cluster.clusters())
    return AttachedDirectory(directory, metadata, paths), ObjectLocator(metadata, paths, explicit=explicit)


def parse_entry_path(text: str) -> EntryPath:
    """Parse where entries are read that are in no tier.

    Raises:
        ConfigError: It is not ``auto``, ``bookkeeper`` or ``broker``.
    """
    try:
        return EntryPath(text)
    except ValueError:
        raise ConfigError(f"entries={text!r} is unknown; use {', '.join(get_args(Entries))}") from None


def check_hot(hot: str) -> bool:
    """Whether hot logs are read.

    Raises:
        ConfigError: The value is neither ``read`` nor ``skip``.
    """
    if hot not in get_args(Hot):
        raise ConfigError(f"hot={hot!r} is unknown; use {' or '.join(get_args(Hot))}")
    return hot == "read"


def _open_home(
    address: SourceAddress,
    config: BrokerConfig,
    credentials: ClusterCredentials,
    explicit: TierLocation | None,
    held: ExitStack,
) -> tuple[TopicDirectory, ObjectLocator]:
    home = Path(address.source)
    metadata = read_metadata(home, address.metadata)
    held.callback(metadata.close)
    paths = AfterglowPaths(config.cluster_name)
    server_tier = TierLocation(FILESYSTEM, str(home.absolute() / TIER_DIRECTORY))
    directory = HomeDirectory(
        address.source, home, metadata, paths, config, credentials=credentials, service_url=address.service_url
    )
    return directory, ObjectLocator(metadata, paths, server_tier=server_tier, explicit=explicit)


def _open_tier(
    address: SourceAddress, config: BrokerConfig, explicit: TierLocation | None, stores: Tiers
) -> tuple[TopicDirectory, ObjectLocator]:
    """Open a tier as a source.

    Raises:
        ConfigError: The address is malformed, or a tier or metadata is given too.
    """
    if explicit is not None or address.metadata is not None:
        raise ConfigError(
            f"source {address.source!r} is a tier itself; leave out tier and metadata, or give the home or the address "
            "of a cluster as the source"
        )
    location = configured_location(address.source, config)
    store = stores.store(location, config)
    directory = TierDirectory(address.source, location, store, ListingCache(cache_file(str(location))), config)
    return directory, ObjectLocator(explicit=location)
