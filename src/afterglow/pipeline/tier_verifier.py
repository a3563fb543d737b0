"""Verification of the offloaded data of one server or one Pulsar cluster, over all tiers that its metadata names.

:func:`open_verifier` opens a home directory or a cluster's ZooKeeper from outside; a running server creates its
:class:`TierVerifier` itself. Metadata and ledgers are only read; objects are deleted by a sweep alone. Every request to
a tier or to metadata passes a :class:`VerifyControl`, which counts progress and ends a cancelled verification.
"""

from __future__ import annotations

import logging
import os
import threading
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import uuid4

from afterglow.config import load_conf
from afterglow.errors import AfterglowError, ConfigError, HotLogError, MetadataUnavailable, NotSupported
from afterglow.events import log_event
from afterglow.format.frames import iter_entries
from afterglow.format.proto.managed_ledger_pb2 import KeyValue, OffloadDriverMetadata
from afterglow.hot.local.paths import HotLogPaths
from afterglow.hot.local.shared_ledger import read_instance
from afterglow.ledger.environment import SystemClock
from afterglow.metadata.address import open_metadata
from afterglow.metadata.admin_client import AdminClient
from afterglow.metadata.cluster_credentials import ClusterCredentials
from afterglow.metadata.pulsar_cluster import PulsarCluster
from afterglow.read.driver_copies import open_driver_copy
from afterglow.read.objects import TierObject
from afterglow.source.attached_directory import attached_paths
from afterglow.source.home_directory import TIER_DIRECTORY, read_metadata
from afterglow.storage import open_store
from afterglow.storage.wrapper import StoreWrapper
from afterglow.tier.drivers import driver_factory
from afterglow.tier.locations import (
    TierLocation,
    Tiers,
    driver_metadata,
    driver_setting,
    external_location,
    is_built_in,
    location_of_driver,
    location_of_url,
    store_options,
)
from afterglow.verify import FindingKind, sweep, verify
from afterglow.verify.deep import LocalVerifier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from afterglow.config import BrokerConfig
    from afterglow.metadata.paths import AfterglowPaths
    from afterglow.metadata.pulsar_cluster import MetadataReader
    from afterglow.metadata.store import MetadataStore, Versioned
    from afterglow.spark.verify_jobs import ByteProgress
    from afterglow.storage import ObjectStore
    from afterglow.storage.wrapper import StoreRequest
    from afterglow.verify import CommittedObject, Finding, ObjectVerifier, ParsedLocation
    from afterglow.verify.objects import DriverCopies

T = TypeVar("T")

_log = logging.getLogger(__name__)

_CLOCK: Final = SystemClock()

_SOURCES: Final = "the directory that `afterglow serve --home` runs on, http://HOST:8080 or zk://HOST:2181"


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """Options of a verification."""

    deep: bool = False
    """Read every byte of every object."""
    sweep: bool = False
    """Report orphans and leaked uploads as deletable."""
    delete: bool = False
    """With a sweep: delete them. Otherwise the sweep is a dry run."""
    grace_ms: int = 3_600_000
    """Younger objects may belong to work in progress."""


@dataclass(frozen=True, slots=True)
class ReportedFinding:
    """A finding, with its state after the sweep."""

    finding: Finding
    fault: bool
    """Whether it is a fault that the sweep has not removed."""
    deleted: bool = False
    """Whether the sweep has deleted its object."""


class VerifyCancelled(AfterglowError):
    """The verification was cancelled."""


class VerifyControl:
    """Progress of one verification, and its cancellation.

    Only the verifying thread writes the figures; any thread may read them, and may cancel.
    """

    def __init__(self) -> None:
        self.current = ""
        """The object, listing or metadata node of the last request."""
        self.objects_done = 0
        self.objects_due = 0
        """Number known so far; more may be added."""
        self.bytes_done = 0
        """Bytes that a deep verification has read and verified."""
        self.bytes_due = 0
        self.on_object: Callable[[int, int], None] = lambda _done, _due: None
        """Called after each object with the numbers done and due."""
        self.cancelled = False
        self._interrupts: list[Callable[[], None]] = []

    def step(self, current: str = "") -> None:
        """Record the next request.

        Args:
            current: The requested object or node; empty: unchanged.

        Raises:
            VerifyCancelled: The verification was cancelled.
        """
        self.current = current or self.current
        if self.cancelled:
            raise VerifyCancelled("the verification was cancelled")

    def on_bytes(self, done_bytes: int, due_bytes: int, _objects: int) -> None:
        """Record what a deep verification has read; see :class:`~afterglow.spark.verify_jobs.ByteProgress`.

        Raises:
            VerifyCancelled: The verification was cancelled.
        """
        self.bytes_done, self.bytes_due = done_bytes, due_bytes
        self.step()

    def on_cancel(self, interrupt: Callable[[], None]) -> None:
        """Register a function that interrupts work between two steps, such as a Spark job."""
        self._interrupts.append(interrupt)

    def cancel(self) -> None:
        """End the verification at its next step. Does not wait, since Spark may need time to cancel a job."""
        self.cancelled = True
        for interrupt in tuple(self._interrupts):
            threading.Thread(target=interrupt, name="afterglow-verify-cancel", daemon=True).start()


class TierVerifier:
    """Verifies the offloaded data of one server or one cluster.

    Args:
        home: Home directory with the hot ledgers; None if these are unknown.
        instance: Id of the hot log, as recorded in objects.
        metadata: The metadata, read only.
        stores: Stores of objects, with the control of this verification.
        config: The settings.
        quiet: Whether Spark is started for this run only, without its log; otherwise the session is shared with the
            pipeline of a server in this process.
        cluster: Name of the cluster whose records are verified; None: that of the settings.
    """

    def __init__(
        self,
        home: Path | None,
        instance: str,
        metadata: MetadataReader,
        stores: TierStores,
        config: BrokerConfig,
        *,
        quiet: bool = True,
        cluster: str | None = None,
    ) -> None:
        self._cluster = cluster or config.cluster_name
        self._instance = instance
        self._layout = None if home is None else HotLogPaths(home)
        self._control = stores.control
        self._metadata = _ControlledMetadata(metadata, self._control)
        self._stores = stores
        self._config = config
        self._quiet = quiet
        self._home = home

    def report_objects(self, on_object: Callable[[int, int], None]) -> None:
        """Call ``on_object`` after each object with the numbers of objects done and due so far."""
        self._control.on_object = on_object

    def run(self, request: VerifyRequest, objects: ObjectVerifier | None = None) -> Iterator[ReportedFinding]:
        """Verify, and sweep if requested. Findings are returned as they are made; swept ones come last.

        Args:
            request: The options.
            objects: Verifies the objects; None: they are verified here, without reading their bytes.

        Raises:
            AfterglowError: See :func:`afterglow.verify.verify` and :func:`afterglow.verify.sweep`.
        """
        swept = {FindingKind.ORPHAN_OBJECT, FindingKind.LEAKED_UPLOAD} if request.sweep else set()
        for finding in self._findings(request.grace_ms, objects):
            if finding.kind not in swept:
                yield ReportedFinding(finding, fault=finding.kind.is_fault)
            elif not request.delete:
                detail = f"{finding.detail}; the sweep would delete it"
                yield ReportedFinding(replace(finding, detail=detail), fault=True)
        if request.sweep and request.delete:
            # The sweep covers every tier that the verification above has opened.
            for item in sweep(
                self._metadata,
                tiers=self._stores,
                instance=self._instance,
                cluster=self._cluster,
                now_ms=_CLOCK.now_ms(),
                grace_ms=request.grace_ms,
                dry_run=False,
            ):
                finding = item.finding
                log_event(_log, "object deleted", **finding.as_json(), reason="sweep of a verification")
                detail = f"{finding.detail}; deleted"
                yield ReportedFinding(replace(finding, detail=detail), fault=False, deleted=True)

    def _findings(self, grace_ms: int, objects: ObjectVerifier | None) -> Iterator[Finding]:
        layout = self._layout
        return verify(
            self._metadata,
            self._stores,
            tiers=self._stores,
            instance=self._instance,
            cluster=self._cluster,
            now_ms=_CLOCK.now_ms(),
            grace_ms=grace_ms,
            hot=None if layout is None else lambda ledger_id: layout.frames(ledger_id).exists(),
            object_verifier=_CountedObjects(
                objects or LocalVerifier(self._stores, self._instance, deep=False), self._control
            ),
        )

    @contextmanager
    def deep(self, master: str | None = None, progress: ByteProgress | None = None) -> Iterator[ObjectVerifier]:
        """Start a Spark session, for the duration of the context, whose tasks read every byte of objects.

        Args:
            master: The Spark master; None: that of ``sparkMaster``.
            progress: Called at the end of each task.

        Raises:
            MissingDependency: PySpark or Java is missing.
            ConfigError: The master is malformed.
        """
        # Imported here, since these imports are slow and rarely needed.
        from afterglow.spark.session import QUIET, local_session, spark_log, spark_properties  # noqa: PLC0415
        from afterglow.spark.verify_jobs import SparkVerifier  # noqa: PLC0415

        self._control.step("start of Spark")
        properties = {**(QUIET if self._quiet else {}), **spark_properties(self._config)}
        log_file = None if self._quiet or self._home is None else spark_log(self._home)
        with local_session(master or self._config.spark_master, log_file=log_file, **properties) as session:
            verifier = SparkVerifier(session, self._stores, self._instance, progress)
            self._control.on_cancel(verifier.cancel)
            yield verifier


@contextmanager
def open_verifier(
    source: str,
    *,
    tier: str | None = None,
    metadata: str | None = None,
    options: Mapping[str, str] | None = None,
    credentials: ClusterCredentials | None = None,
) -> Iterator[TierVerifier]:
    """Open a source for verification from outside, whether or not a server runs on it.

    In a cluster, all offloaded data of its brokers is verified. The content of BookKeeper is unknown here, and objects
    that metadata does not name are foreign. With ``metadata``, the segments of the Afterglow that is attached to the
    cluster are verified instead.

    Args:
        source: The home directory of a server, or the ZooKeeper of a Pulsar cluster; with ``metadata`` also its admin
            API.
        tier: Location of all objects, instead of the locations in metadata.
        metadata: Location of the metadata, if not in the home; for a cluster, that of ``afterglow attach``.
        options: Options of that tier, such as its endpoint.
        credentials: For the admin API of a cluster.

    Raises:
        ConfigError: An address or an option is malformed, or the metadata has no records of the cluster.
        AccessDenied: The credentials are not accepted.
        NotSupported: This release cannot verify a tier of this kind.
        HotLogError: The directory has no hot log.
        MetadataUnavailable: The home does not exist, or the metadata cannot be read.
    """
    scheme, separator, _ = source.partition("://")
    if separator and scheme != "zk" and not (metadata and scheme in {"http", "https"}):
        raise ConfigError(f"invalid source address {source!r}; expected {_SOURCES}")
    if options and tier is None:
        raise ConfigError("--option is for --tier, which is not set; add --tier")
    config = load_conf(environ=os.environ)
    if separator and metadata is not None:
        with _open_attached(source, metadata, config, credentials) as (records, paths, attachment):
            own = None if tier is None else _open_tier(tier, config, options or {})
            stores = TierStores(own, config, everywhere=own is not None)
            yield TierVerifier(None, attachment, records, stores, config, cluster=paths.cluster)
        return
    if separator:
        with closing(open_metadata(source, config)) as cluster:
            own = None if tier is None else _open_tier(tier, config, options or {})
            stores = TierStores(own, config, everywhere=own is not None)
            unused = str(uuid4())  # an instance of no object: all unnamed objects are foreign
            yield TierVerifier(None, unused, cluster, stores, config)
        return
    home = Path(source)
    with closing(read_metadata(home, metadata)) as opened:
        instance = read_instance(home)
        if instance is None:
            raise HotLogError(
                f"source {home} has no hot log, which identifies its objects; use the directory of "
                "`afterglow serve --home`"
            )
        if tier is None:
            own = open_store((home.absolute() / TIER_DIRECTORY).as_uri(), create="true")
        else:
            own = _open_tier(tier, config, options or {})
        yield TierVerifier(home, instance, opened, TierStores(own, config, everywhere=tier is not None), config)


@contextmanager
def _open_attached(
    source: str, metadata: str, config: BrokerConfig, credentials: ClusterCredentials | None
) -> Iterator[tuple[MetadataStore, AfterglowPaths, str]]:
    """Open the metadata of an attached Afterglow; yields it with its paths, and the instance of its objects."""
    with ExitStack() as stack:
        if source.startswith("zk://"):
            store = open_metadata(source, config)
            stack.callback(store.close)
            clusters = PulsarCluster(store).clusters()
        else:
            clusters = AdminClient(source, credentials or ClusterCredentials()).clusters()
        options: dict[str, Any] = {"read_only": True} if metadata.startswith("sqlite:") else {}
        opened = open_metadata(metadata, config, **options)
        stack.callback(opened.close)
        paths = attached_paths(opened, metadata, clusters)
        stored = opened.get(paths.instance)
        if stored is None:
            raise MetadataUnavailable(
                f"metadata {metadata!r} has no instance of its objects; give that of `afterglow attach --metadata`"
            )
        yield opened, paths, stored.value.decode()


class TierStores:
    """The stores of all tier locations that metadata names; iteration returns those opened so far.

    Args:
        own: Store of objects without a location in metadata; None: it is unknown.
        config: The settings, for credentials.
        everywhere: Whether all objects are in ``own``, regardless of metadata.
        tiers: Opens the other stores.
        control: Notified of every request.
    """

    def __init__(
        self,
        own: ObjectStore | None,
        config: BrokerConfig,
        *,
        everywhere: bool = False,
        tiers: Tiers | None = None,
        control: VerifyControl | None = None,
    ) -> None:
        self.control = control or VerifyControl()
        """Notified of every request."""
        self._own = None if own is None else _ControlledStore(own, self.control)
        self._config = config
        self._everywhere = everywhere
        self._tiers = tiers or Tiers()
        self._opened: dict[str, ObjectStore] = {} if self._own is None else {self._own.url: self._own}

    def __call__(self, location: ParsedLocation) -> ObjectStore | DriverCopies:
        """The store of a location, or the external driver that has its objects.

        Raises:
            NotSupported: This release has no store for the location, or the location is unknown.
            ConfigError: The driver is not installed.
            MissingDependency: The package of the driver, or the SDK of the store, cannot be imported.
            CorruptMetadata: The location is not valid.
        """
        if self._everywhere or not location.driver:
            if self._own is None:
                raise NotSupported("the location of an object is missing in metadata; set --tier")
            return self._own
        if not is_built_in(location.driver):
            driver_factory(location.driver)  # reports a driver that is not installed
            return ExternalCopies(external_location(location.driver, dict(location.properties)), self._config)
        recorded = driver_metadata(
            TierLocation(location.driver, location.bucket, location.region, location.endpoint, location.prefix)
        )
        properties = [KeyValue(key=key, value=value) for key, value in recorded.items()]
        known = location_of_driver(OffloadDriverMetadata(name=location.driver, properties=properties))
        if self._own is not None and known.url == self._own.url:
            return self._own
        store = self._tiers.store(known, self._config)
        return self._opened.setdefault(store.url, _ControlledStore(store, self.control))

    def __iter__(self) -> Iterator[ObjectStore]:
        return iter(tuple(self._opened.values()))


@dataclass(frozen=True, slots=True)
class ExternalCopies:
    """Objects of an external driver in one location; a :class:`~afterglow.verify.objects.DriverCopies`."""

    location: TierLocation
    config: BrokerConfig
    """Configuration and credentials for the driver."""

    @property
    def url(self) -> str:
        """The location, for messages."""
        return str(self.location)

    def entries(self, key: str, ledger_id: int, first: int, last: int) -> Iterator[tuple[int, memoryview]]:
        """Entries as the driver returns them; see the protocol."""
        copy = open_driver_copy(TierObject(self.location, key), ledger_id, self.config, Tiers())
        for run in copy.scan(first, last):
            yield from iter_entries(run.data, run.frames)


class _ControlledStore(StoreWrapper):
    """A store whose requests are steps of a control. Pickling yields the inner store: tasks have no control."""

    def __init__(self, inner: ObjectStore, control: VerifyControl) -> None:
        super().__init__(inner)
        self._control = control

    def __reduce__(self) -> tuple[object, ...]:
        return _identity, (self.inner,)

    def _call(self, request: StoreRequest, perform: Callable[[], T]) -> T:
        self._control.step(request.key or f"{request.operation} of {self.url}")
        return perform()


class _ControlledMetadata:
    """A metadata reader whose requests are steps of a control."""

    def __init__(self, inner: MetadataReader, control: VerifyControl) -> None:
        self._inner = inner
        self._control = control

    def get(self, path: str) -> Versioned | None:
        """A node; None if it is missing."""
        self._control.step(path)
        return self._inner.get(path)

    def children(self, path: str) -> tuple[str, ...]:
        """Names of the nodes below a node."""
        self._control.step(path)
        return self._inner.children(path)


class _CountedObjects:
    """An :class:`~afterglow.verify.ObjectVerifier` that counts the objects that its inner one has verified."""

    def __init__(self, inner: ObjectVerifier, control: VerifyControl) -> None:
        self._inner = inner
        self._control = control

    def __call__(self, objects: Sequence[CommittedObject]) -> Iterator[tuple[CommittedObject, tuple[Finding, ...]]]:
        """See the protocol.

        Raises:
            VerifyCancelled: The verification was cancelled.
        """
        self._control.objects_due += len(objects)
        self._control.step(f"{len(objects)} objects")
        for verified in self._inner(objects):
            self._control.objects_done += 1
            self._control.on_object(self._control.objects_done, self._control.objects_due)
            self._control.step()
            yield verified


def _identity(store: ObjectStore) -> ObjectStore:
    return store


def _open_tier(tier: str, config: BrokerConfig, options: Mapping[str, str]) -> ObjectStore:
    region, endpoint = (driver_setting(config, "S3", suffix) or "" for suffix in ("Region", "ServiceEndpoint"))
    location = location_of_url(tier, region=region, endpoint=endpoint)
    return open_store(location.url, **{**store_options(location, config), **options})
