"""Tier locations (driver, bucket, endpoint, region, prefix), and the opening of their stores.

Objects of the built-in drivers are read and written through stores that are opened here. The location of an external
driver is opaque: only that driver interprets it, see :mod:`afterglow.tier.drivers`.

A location contains everything about a tier except its credentials. It comes from an address (``--tier``), from a
policy, or from the metadata of an object. Objects are read from the location that their metadata records, so that a
change of bucket leaves old objects readable. Credentials and timeouts always come from the current policy.
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
"""Directory of Hadoop MapFiles, which Pulsar's own ``filesystem`` driver writes. Read only; not a driver name."""

_S3_FAMILY: Final = {"aws-s3": "AWS_S3", "S3": "S3", "aliyun-oss": "ALIYUN_OSS"}
"""Drivers of the S3 protocol, each with its constant in Pulsar's metadata."""
_DRIVERS: Final = {name.lower(): name for name in (FILESYSTEM, MEMORY, *_S3_FAMILY)}

_FORMAT_KEY: Final = "afterglowFormat"
_FORMAT: Final = "blocks"
"""Distinguishes a directory of blocks from the Hadoop MapFiles of Pulsar's own ``filesystem`` driver."""
_PREFIX_KEY: Final = "afterglowPrefix"

_MAX_OPEN: Final = 64
"""Stores kept open. A store holds some sockets; few servers use more than a handful of locations."""


@dataclass(frozen=True, slots=True)
class TierLocation:
    """Location of objects, without credentials."""

    driver: str
    """``filesystem``, ``S3``, ``aws-s3``, ``aliyun-oss``; ``memory`` in tests; MAPFILES; or the name of an external
    driver."""
    bucket: str
    """The bucket; for ``filesystem`` the absolute path of the root directory."""
    region: str = ""
    """Empty: the SDK's own default."""
    endpoint: str = ""
    """URL of the service; empty: the provider's own."""
    prefix: str = ""
    """Prefix of every key, without leading or trailing slashes."""
    properties: tuple[tuple[str, str], ...] = ()
    """Metadata of an external driver, sorted by key: the driver uses it to find its objects again."""

    @property
    def url(self) -> str:
        """The address, as ``--tier`` accepts it."""
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
    """Return the location that an address names.

    Raises:
        ConfigError: The address is malformed.
        NotSupported: Its scheme is reserved.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise ConfigError(f"invalid tier address {url!r}; write file:///path or s3://bucket[/prefix]")
    if scheme == "file":
        return TierLocation(FILESYSTEM, _root(url))
    bucket, _, prefix = rest.partition("/")
    if scheme == "memory":
        return TierLocation(MEMORY, bucket, prefix=prefix.strip("/"))
    if scheme in {"az", "gs"}:
        raise NotSupported(f"tier {url!r}: az:// and gs:// are not available in this release; use s3:// or file://")
    if scheme != "s3" or not bucket:
        raise ConfigError(f"invalid tier address {url!r}; write file:///path or s3://bucket[/prefix]")
    return TierLocation("S3" if endpoint else "aws-s3", bucket, region, endpoint, prefix.strip("/"))


def location_of_policy(policy: BrokerConfig, own: TierLocation | None) -> TierLocation:
    """Return the location of a topic's policy with a built-in driver.

    Args:
        policy: Effective policy of the topic.
        own: The server's own tier, for policies without a driver.

    Raises:
        ConfigError: The policy has an external driver, has none and ``own`` is None, or lacks the driver's bucket.
    """
    if policy.managed_ledger_offload_driver is None:
        if own is None:
            raise ConfigError("no tier configured; set managedLedgerOffloadDriver, or start with --tier")
        return own
    driver = _DRIVERS.get(policy.managed_ledger_offload_driver.lower())
    if driver is None:
        raise ConfigError(
            f"managedLedgerOffloadDriver={policy.managed_ledger_offload_driver} is not a built-in driver, so its "
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
    """Return a setting of a driver: the first of its keys that is set; see :func:`driver_keys`.

    Args:
        policy: Effective policy of the topic.
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
    """Return whether a driver name, case-insensitive, is built in; else the driver is external."""
    return driver.lower() in _DRIVERS


def location_of_driver(driver: OffloadDriverMetadata) -> TierLocation:
    """Return the location that metadata records for an object. An external driver need not be installed.

    Raises:
        NotSupported: The objects are MapFiles, which :func:`mapfiles_of_driver` locates.
        CorruptMetadata: The properties of a built-in driver have no location.
    """
    properties = {pair.key: pair.value for pair in driver.properties}
    name = _DRIVERS.get(driver.name.lower())
    if name is None:
        return external_location(driver.name, properties)
    if name == FILESYSTEM:
        root = properties.get("storageBasePath", "")
        if properties.get(_FORMAT_KEY) != _FORMAT:
            raise NotSupported(
                f"{root or 'a directory'} has Hadoop MapFiles of Pulsar's filesystem driver, which are read only as "
                f"whole ledgers; this operation needs a directory of blocks, with {_FORMAT_KEY}={_FORMAT}"
            )
        if not root.startswith("/"):
            raise CorruptMetadata(f"storageBasePath in the metadata of driver {name} is not an absolute path: {root!r}")
        return TierLocation(FILESYSTEM, root, prefix=properties.get(_PREFIX_KEY, ""))
    if not properties.get("bucket"):
        raise CorruptMetadata(f"bucket is missing in the metadata of driver {name}: {properties}")
    return TierLocation(
        name,
        properties["bucket"],
        properties.get("region", ""),
        properties.get("serviceEndpoint", ""),
        properties.get(_PREFIX_KEY, ""),
    )


def external_location(driver: str, properties: Mapping[str, str]) -> TierLocation:
    """Return the location of an external driver with the metadata that it returned."""
    bucket, region, endpoint = (properties.get(name, "") for name in ("bucket", "region", "serviceEndpoint"))
    return TierLocation(driver, bucket, region, endpoint, properties=tuple(sorted(properties.items())))


def mapfiles_of_driver(driver: OffloadDriverMetadata) -> TierLocation | None:
    """Return the location of MapFiles that Pulsar's ``filesystem`` driver wrote; None for any other driver metadata.

    Raises:
        NotSupported: They are not on a local file system.
        CorruptMetadata: The driver's properties have no location.
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
            f"storageBasePath in the metadata of driver {driver.name} is not an absolute path: {error}"
        ) from error


def driver_metadata(location: TierLocation) -> dict[str, str]:
    """Return the properties of a location for ``OffloadDriverMetadata``, in Pulsar's order."""
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
    """Return the location in an ``ObjectLocation`` record."""
    properties = tuple(sorted(location.driver_metadata.items()))
    return TierLocation(
        location.driver, location.bucket, location.region, location.endpoint, location.prefix, properties
    )


def location_record(location: TierLocation, key: str) -> afterglow_pb2.ObjectLocation:
    """Return the ``ObjectLocation`` record of a location and an object's key."""
    return afterglow_pb2.ObjectLocation(
        driver=location.driver,
        bucket=location.bucket,
        region=location.region,
        endpoint=location.endpoint,
        key=key,
        prefix=location.prefix,
        driver_metadata=dict(location.properties),
    )


def store_options(location: TierLocation, policy: BrokerConfig, deadline_s: float | None = None) -> dict[str, str]:
    """Return the options of :func:`~afterglow.storage.open_store` for a location. They contain secrets: never log them.

    ``deadline_s`` takes precedence over ``offloadRequestTimeoutSeconds``.

    Raises:
        NotSupported: The policy has a role to assume.
    """
    if location.driver not in _S3_FAMILY:
        return {}
    deadline_s = policy.offload_request_timeout_seconds if deadline_s is None else deadline_s
    options = {
        "retry_deadline_s": str(deadline_s),
        "timeout_s": str(deadline_s),
        # Half the deadline leaves time to retry a request whose connection is dead.
        "read_timeout_s": str(max(deadline_s / 2, 1)),
    }
    if location.endpoint:
        options["endpoint"] = location.endpoint
    if location.region:
        options["region"] = location.region
    if location.driver == "aliyun-oss":
        options["path_style"] = "false"  # the service rejects buckets in the path
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
            "s3ManagedLedgerOffloadRole is not supported in this release; configure role_arn in an AWS profile, or set "
            "s3ManagedLedgerOffloadCredentialId and s3ManagedLedgerOffloadCredentialSecret"
        )
    return {}


class Tiers:
    """Open stores by location. Thread-safe; evicts the least recently used ones.

    Args:
        wrap: Wraps every opened store, to count, throttle or fail its requests.
        health: Observes every attempt of a request; by default one without probes.
        deadline_s: Deadline of a request with its retries; None: ``offloadRequestTimeoutSeconds``.
    """

    def __init__(
        self,
        wrap: Callable[[ObjectStore], ObjectStore] = lambda store: store,
        health: TierHealth | None = None,
        deadline_s: float | None = None,
    ) -> None:
        self.health = TierHealth() if health is None else health
        """Availability of the locations."""
        self._wrap = wrap
        self._deadline_s = deadline_s
        self._lock = Lock()
        self._open: OrderedDict[tuple[TierLocation, frozenset[tuple[str, str]]], ObjectStore] = OrderedDict()

    def store(self, location: TierLocation, policy: BrokerConfig) -> ObjectStore:
        """Return the store of a location, with the policy's credentials. No request is sent yet.

        Raises:
            ConfigError: Location or policy is invalid for a store, or the driver is external.
            MissingDependency: The store's SDK is not installed.
            NotSupported: The policy has a setting that stores do not support.
        """
        if location.driver != MAPFILES and not is_built_in(location.driver):
            raise ConfigError(f"{location} belongs to the external driver {location.driver}, which has no object store")
        options = store_options(location, policy, self._deadline_s)
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
    """Return the absolute directory of a ``file`` URL; Hadoop writes ``file:/path``, other tools ``file:///path``."""
    scheme, _, rest = url.partition(":")
    path = unquote(rest.removeprefix("//"))
    if scheme != "file":
        raise NotSupported(f"directory {url!r} is not on a local file system; use file:///path")
    if not path.startswith("/"):
        raise ConfigError(f"{url!r} is not an absolute path; write file:///path")
    return str(PurePosixPath(path))


_REGION_AND_ENDPOINT_DRIVER: Final = "aws-s3"
"""Driver whose settings for region and endpoint apply to ``--tier``: it has the most alternative keys for them."""


def configured_location(url: str, config: BrokerConfig) -> TierLocation:
    """Return the location that an address names, with region and endpoint of the settings.

    Raises:
        ConfigError: The address is malformed.
        NotSupported: Its scheme is reserved.
    """
    return location_of_url(
        url,
        region=driver_setting(config, _REGION_AND_ENDPOINT_DRIVER, "Region") or "",
        endpoint=driver_setting(config, _REGION_AND_ENDPOINT_DRIVER, "ServiceEndpoint") or "",
    )


def own_tier(home: Path, url: str | None, config: BrokerConfig) -> TierLocation:
    """Return the location of a server's own tier.

    Args:
        home: The server's home directory, which must exist.
        url: The value of ``--tier``; None: the directory ``tier`` in the home, created if missing. Other directories
            are not created: a missing one may be the mount point of a disk that is not mounted.
        config: The broker's settings, for region and endpoint.

    Raises:
        ConfigError: The address is malformed or not supported, names a missing directory, or would not outlive the
            process.
        OSError: The directory in the home cannot be created.
    """
    if url is None:
        own = home.absolute() / "tier"
        own.mkdir(exist_ok=True)
        return location_of_url(own.as_uri())
    try:
        location = configured_location(url, config)
    except NotSupported as error:
        raise ConfigError(f"--tier cannot be used: {error}") from error
    if location.driver == MEMORY:
        raise ConfigError(f"--tier {url} would be lost with this process; use file:///path or s3://bucket[/prefix]")
    if location.driver == FILESYSTEM and not Path(location.bucket).is_dir():
        raise ConfigError(f"--tier {url}: directory {location.bucket} is missing; create it, or mount its disk")
    return location
