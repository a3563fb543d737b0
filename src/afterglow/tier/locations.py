"""Tier locations: where offloaded objects are, and how a process opens the stores that hold them.

Objects of the built-in drivers are read and written through stores that are opened here. A location of any other driver
is an address that only that driver understands: see :mod:`afterglow.tier.drivers`.

A location is everything about a tier but its credentials. It is made from an address (``--tier``), from a policy, or
from what metadata recorded when an object was written: objects are looked for where they were put, so that a later
change of bucket never strands old data. Credentials and time-outs always come from the policy of today.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

from afterglow.config.broker import SETTINGS
from afterglow.config.settings_offload import driver_keys
from afterglow.errors import ConfigError, CorruptMetadata, NotSupported
from afterglow.format.proto import afterglow_pb2
from afterglow.storage import open_store
from afterglow.storage.health import TierHealth

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from afterglow.config import BrokerConfig
    from afterglow.format.proto.managed_ledger_pb2 import OffloadDriverMetadata
    from afterglow.storage import ObjectStore

FILESYSTEM: Final = "filesystem"
MEMORY: Final = "memory"
MAPFILES: Final = "filesystem-mapfiles"
"""A directory of Hadoop MapFiles, as Pulsar's own ``filesystem`` driver writes them. No driver has this name."""

_S3_FAMILY: Final = {"aws-s3": "AWS_S3", "S3": "S3", "aliyun-oss": "ALIYUN_OSS"}
"""Drivers that speak S3's protocol, each with the constant by which Pulsar's metadata names it."""
_DRIVERS: Final = {name.lower(): name for name in (FILESYSTEM, MEMORY, *_S3_FAMILY)}

_FORMAT_KEY: Final = "afterglowFormat"
_FORMAT: Final = "blocks"
"""Tells our directory of objects from the Hadoop MapFiles of Pulsar's own ``filesystem`` driver."""
_PREFIX_KEY: Final = "afterglowPrefix"

_MAX_OPEN: Final = 64
"""Stores kept open. A store costs some sockets; few servers know more than a handful of places."""


@dataclass(frozen=True, slots=True)
class TierLocation:
    """Where objects lie: everything but credentials."""

    driver: str
    """As policies name it: ``filesystem``, ``S3``, ``aws-s3``, ``aliyun-oss``; ``memory`` in tests; MAPFILES; or the
    name of an external driver."""
    bucket: str
    """The bucket; for ``filesystem`` the absolute path of the root directory."""
    region: str = ""
    """Empty: the SDK's own default."""
    endpoint: str = ""
    """URL of the service; empty: the provider's own."""
    prefix: str = ""
    """What stands before every key, without slashes at its ends."""
    properties: tuple[tuple[str, str], ...] = ()
    """What an external driver gave as its metadata, sorted by key: by these it finds its objects again."""

    @property
    def url(self) -> str:
        """The address, as ``--tier`` takes it."""
        below = f"/{self.prefix}" if self.prefix else ""
        if self.driver in {FILESYSTEM, MAPFILES}:
            return f"file://{quote(self.bucket)}{quote(below)}"
        scheme = "s3" if self.driver in _S3_FAMILY else self.driver
        return f"{scheme}://{self.bucket}{below}"

    def __str__(self) -> str:
        if self.properties:
            return f"driver {self.driver} ({', '.join(f'{key}={value}' for key, value in self.properties)})"
        return f"{self.url} at {self.endpoint}" if self.endpoint else self.url


def location_of_url(url: str, *, region: str = "", endpoint: str = "") -> TierLocation:
    """The place that an address names.

    Raises:
        ConfigError: The address is malformed.
        NotSupported: Its scheme is reserved.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise ConfigError(f"tier {url!r} is no address; write file:///path or s3://bucket[/prefix]")
    if scheme == "file":
        return TierLocation(FILESYSTEM, _root(url))
    bucket, _, prefix = rest.partition("/")
    if scheme == "memory":
        return TierLocation(MEMORY, bucket, prefix=prefix.strip("/"))
    if scheme in {"az", "gs"}:
        raise NotSupported(f"tier {url!r}: az:// and gs:// are not available in this release; use s3:// or file://")
    if scheme != "s3" or not bucket:
        raise ConfigError(f"tier {url!r} names no place; write file:///path or s3://bucket[/prefix]")
    return TierLocation("S3" if endpoint else "aws-s3", bucket, region, endpoint, prefix.strip("/"))


def location_of_policy(policy: BrokerConfig, own: TierLocation | None) -> TierLocation:
    """Where a topic's objects go by its policy, with a built-in driver.

    Args:
        policy: The topic's.
        own: The server's own tier, for policies that name no driver.

    Raises:
        ConfigError: The policy names another driver, or none and there is no own tier, or lacks the driver's bucket.
    """
    if policy.managed_ledger_offload_driver is None:
        if own is None:
            raise ConfigError("there is no tier: set managedLedgerOffloadDriver, or start with --tier")
        return own
    driver = _DRIVERS.get(policy.managed_ledger_offload_driver.lower())
    if driver is None:
        raise ConfigError(
            f"managedLedgerOffloadDriver={policy.managed_ledger_offload_driver} is not a built-in driver, so that its "
            f"objects cannot be listed here; the built-in drivers are {', '.join(_S3_FAMILY)} and {FILESYSTEM}"
        )
    if driver == FILESYSTEM:
        if policy.file_system_uri is None:
            raise ConfigError("managedLedgerOffloadDriver=filesystem needs fileSystemURI, such as file:///path")
        return TierLocation(FILESYSTEM, _root(policy.file_system_uri))
    bucket = driver_setting(policy, driver, "Bucket")
    if not bucket:
        keys = " or ".join(driver_keys(driver, "Bucket"))
        raise ConfigError(f"managedLedgerOffloadDriver={driver} needs a bucket: set {keys}")
    region, endpoint = (driver_setting(policy, driver, suffix) or "" for suffix in ("Region", "ServiceEndpoint"))
    return TierLocation(driver, bucket, region, endpoint)


def driver_setting(policy: BrokerConfig, driver: str, suffix: str) -> Any:
    """A property of a driver: of its keys the first that was given; see :func:`driver_keys`.

    Args:
        policy: The topic's.
        driver: Name of the driver.
        suffix: ``Bucket``, ``Region``, ``ServiceEndpoint``, ``MaxBlockSizeInBytes`` or ``ReadBufferSizeInBytes``.
    """
    rows = [SETTINGS[key] for key in driver_keys(driver, suffix) if key in SETTINGS]
    for row in rows:
        value = getattr(policy, row.attribute)
        if row.key in policy.origins or value != row.default:
            return value
    return rows[0].default


def is_built_in(driver: str) -> bool:
    """Whether a driver, by its name in any case, stores blocks that are read and written here; else it is external."""
    return driver.lower() in _DRIVERS


def location_of_driver(driver: OffloadDriverMetadata) -> TierLocation:
    """Where metadata says that an object was put. Whether an external driver is installed is found out when it is used.

    Raises:
        NotSupported: The driver stored another format than blocks.
        CorruptMetadata: The properties of a built-in driver do not tell a place.
    """
    properties = {pair.key: pair.value for pair in driver.properties}
    name = _DRIVERS.get(driver.name.lower())
    if name is None:
        return external_location(driver.name, properties)
    if name == FILESYSTEM:
        root = properties.get("storageBasePath", "")
        if properties.get(_FORMAT_KEY) != _FORMAT:
            raise NotSupported(
                f"Hadoop MapFiles of Pulsar's filesystem driver in {root or 'a directory'} can only be read as whole "
                f"ledgers; this needs a directory of blocks, with {_FORMAT_KEY}={_FORMAT}"
            )
        if not root.startswith("/"):
            raise CorruptMetadata(f"the metadata of driver {name} has no absolute storageBasePath: {root!r}")
        return TierLocation(FILESYSTEM, root, prefix=properties.get(_PREFIX_KEY, ""))
    if not properties.get("bucket"):
        raise CorruptMetadata(f"the metadata of driver {name} names no bucket: {properties}")
    return TierLocation(
        name,
        properties["bucket"],
        properties.get("region", ""),
        properties.get("serviceEndpoint", ""),
        properties.get(_PREFIX_KEY, ""),
    )


def external_location(driver: str, properties: Mapping[str, str]) -> TierLocation:
    """The place of an external driver, by the metadata that the driver gave."""
    bucket, region, endpoint = (properties.get(name, "") for name in ("bucket", "region", "serviceEndpoint"))
    return TierLocation(driver, bucket, region, endpoint, properties=tuple(sorted(properties.items())))


def mapfiles_of_driver(driver: OffloadDriverMetadata) -> TierLocation | None:
    """Where metadata says that Pulsar's ``filesystem`` driver has put MapFiles; None where something else is told.

    Raises:
        NotSupported: They are not on a local file system.
        CorruptMetadata: The driver's properties do not tell a place.
    """
    properties = {pair.key: pair.value for pair in driver.properties}
    if driver.name.lower() != FILESYSTEM or properties.get(_FORMAT_KEY) == _FORMAT:
        return None
    root = properties.get("storageBasePath", "")
    if root.startswith("/"):
        return TierLocation(MAPFILES, str(PurePosixPath(root)))
    try:
        return TierLocation(MAPFILES, _root(root))
    except ConfigError as error:
        raise CorruptMetadata(
            f"the metadata of driver {driver.name} has no absolute storageBasePath: {error}"
        ) from error


def driver_metadata(location: TierLocation) -> dict[str, str]:
    """Properties of a place for ``OffloadDriverMetadata``, in Pulsar's order; the driver is its name."""
    if not is_built_in(location.driver):
        return dict(location.properties)
    ours = {_PREFIX_KEY: location.prefix} if location.prefix else {}
    if location.driver == FILESYSTEM:
        return {"storageBasePath": location.bucket, _FORMAT_KEY: _FORMAT, **ours}
    return {
        "managedLedgerOffloadDriver": _S3_FAMILY.get(location.driver, location.driver.upper()),
        "bucket": location.bucket,
        "region": location.region,
        "serviceEndpoint": location.endpoint,
        **ours,
    }


def location_of_record(location: afterglow_pb2.ObjectLocation) -> TierLocation:
    """The place in a record of ours."""
    properties = tuple(sorted(location.driver_metadata.items()))
    return TierLocation(
        location.driver, location.bucket, location.region, location.endpoint, location.prefix, properties
    )


def location_record(location: TierLocation, key: str) -> afterglow_pb2.ObjectLocation:
    """A place and an object's key for a record of ours."""
    return afterglow_pb2.ObjectLocation(
        driver=location.driver,
        bucket=location.bucket,
        region=location.region,
        endpoint=location.endpoint,
        key=key,
        prefix=location.prefix,
        driver_metadata=dict(location.properties),
    )


def store_options(location: TierLocation, policy: BrokerConfig) -> dict[str, str]:
    """What :func:`~afterglow.storage.open_store` needs beside the place's address. Holds secrets: do not print it.

    Raises:
        NotSupported: The policy wants a role to be assumed.
    """
    if location.driver not in _S3_FAMILY:
        return {}
    deadline_s = policy.offload_request_timeout_seconds
    options = {
        "retry_deadline_s": str(deadline_s),
        "timeout_s": str(deadline_s),
        # so that a request whose connection has died is repeated before its time is up
        "read_timeout_s": str(max(deadline_s / 2, 1)),
    }
    if location.endpoint:
        options["endpoint"] = location.endpoint
    if location.region:
        options["region"] = location.region
    if location.driver == "aliyun-oss":
        options["path_style"] = "false"  # the service refuses buckets in the path
    options |= _credentials(location, policy)
    return options


def _credentials(location: TierLocation, policy: BrokerConfig) -> dict[str, str]:
    key = policy.s3_managed_ledger_offload_credential_id
    secret = policy.s3_managed_ledger_offload_credential_secret
    if not (key and secret) and location.driver != "aws-s3":
        key, secret = os.environ.get("ACCESS_KEY_ID"), os.environ.get("ACCESS_KEY_SECRET")  # as Pulsar's drivers do
    if key and secret:
        return {"access_key": key, "secret_key": secret}
    if policy.s3_managed_ledger_offload_role:
        raise NotSupported(
            "s3ManagedLedgerOffloadRole is not assumed by this release; give the role to the SDK instead, as role_arn "
            "of an AWS profile, or set s3ManagedLedgerOffloadCredentialId and s3ManagedLedgerOffloadCredentialSecret"
        )
    return {}


class Tiers:
    """Opened stores by place. Thread-safe; the ones unused for longest are let go.

    Args:
        wrap: Put around every store that is opened, to count, throttle or spoil its requests.
        health: Is told of every try of a request; by default one that makes no probes.
    """

    def __init__(
        self, wrap: Callable[[ObjectStore], ObjectStore] = lambda store: store, health: TierHealth | None = None
    ) -> None:
        self.health = TierHealth() if health is None else health
        """Which places do not answer."""
        self._wrap = wrap
        self._lock = Lock()
        self._open: OrderedDict[tuple[TierLocation, frozenset[tuple[str, str]]], ObjectStore] = OrderedDict()

    def store(self, location: TierLocation, policy: BrokerConfig) -> ObjectStore:
        """The store of a place, with the policy's credentials. Nothing is asked of it yet.

        Raises:
            ConfigError: Place and policy do not make a store, or the place is that of an external driver.
            MissingDependency: The store's SDK is not installed.
            NotSupported: The policy asks for something that stores here do not offer.
        """
        if location.driver != MAPFILES and not is_built_in(location.driver):
            raise ConfigError(f"{location} belongs to the external driver {location.driver}, which opens no store")
        options = store_options(location, policy)
        key = (location, frozenset(options.items()))
        with self._lock:
            found = self._open.get(key)
            if found is None:
                opened = open_store(location.url, partial(self.health.monitored, str(location)), **options)
                found = self._open[key] = self._wrap(opened)
                if len(self._open) > _MAX_OPEN:
                    self._open.popitem(last=False)
            else:
                self._open.move_to_end(key)
            return found


def _root(url: str) -> str:
    """The absolute directory of a ``file`` URL; ``file:/path`` is written by Hadoop, ``file:///path`` by all others."""
    scheme, _, rest = url.partition(":")
    path = unquote(rest.removeprefix("//"))
    if scheme != "file":
        raise NotSupported(f"the directory {url!r} is not on a local file system; use file:///path")
    if not path.startswith("/"):
        raise ConfigError(f"{url!r} names no absolute path; write file:///path")
    return str(PurePosixPath(path))


_KEYS_OF: Final = "aws-s3"
"""Whose keys for region and endpoint hold for ``--tier``: of all drivers it knows the most spellings of them."""


def own_tier(home: Path, url: str | None, config: BrokerConfig) -> TierLocation:
    """The tier of a server.

    Args:
        home: The server's home directory, which must be there.
        url: What ``--tier`` says; None: the directory ``tier`` in the home, made where there is none. Another directory
            is never made: it may be the place of a disk that is not mounted.
        config: The broker's settings, for region and endpoint.

    Raises:
        ConfigError: The address is malformed or of a kind that is not supported, names a directory that is not there,
            or is lost with the process.
        OSError: The directory in the home cannot be made.
    """
    if url is None:
        own = home.absolute() / "tier"
        own.mkdir(exist_ok=True)
        return location_of_url(own.as_uri())
    try:
        location = location_of_url(
            url,
            region=driver_setting(config, _KEYS_OF, "Region") or "",
            endpoint=driver_setting(config, _KEYS_OF, "ServiceEndpoint") or "",
        )
    except NotSupported as error:
        raise ConfigError(f"--tier cannot be used: {error}") from error
    if location.driver == MEMORY:
        raise ConfigError(f"--tier {url} would be lost with this process; use file:///path or s3://bucket[/prefix]")
    if location.driver == FILESYSTEM and not Path(location.bucket).is_dir():
        raise ConfigError(f"--tier {url}: there is no directory {location.bucket}; make it, or mount its disk, first")
    return location
