"""The checker over an engine's home: its metadata, its own tier and every other that metadata names, its hot ledgers.

Works beside a running engine and without one. Metadata and ledgers are only read; objects are deleted by a sweep alone.
"""

from __future__ import annotations

import os
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from afterglow.config import load_conf
from afterglow.engine.check_watch import Watch, WatchedChecker, WatchedMetadata, WatchedStore
from afterglow.engine.home import TIER_DIRECTORY, read_metadata
from afterglow.errors import ConfigError, HotLogError, NotSupported
from afterglow.format.proto.managed_ledger_pb2 import KeyValue, OffloadDriverMetadata
from afterglow.hot.local.layout import Layout
from afterglow.hot.local.shared import read_instance
from afterglow.read.places import (
    TierPlace,
    Tiers,
    driver_metadata,
    driver_setting,
    place_of_driver,
    place_of_url,
    store_options,
)
from afterglow.storage import open_store
from afterglow.verify import Kind, sweep, verify
from afterglow.verify.deep import CheckHere

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from afterglow.config import BrokerConfig
    from afterglow.metadata.pulsar_cluster import MetadataReader
    from afterglow.spark.verify_jobs import Progress as ByteProgress
    from afterglow.storage import ObjectStore
    from afterglow.verify import Finding, ObjectChecker, Place, Swept


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """What is wanted of a check."""

    deep: bool = False
    """Read every byte of every object."""
    sweep: bool = False
    """Treat orphans and leaked uploads as what is to be deleted."""
    delete: bool = False
    """With a sweep: delete them. Without, the sweep is a dry run."""
    grace_ms: int = 3_600_000
    """What is not older may be on its way."""


@dataclass(frozen=True, slots=True)
class Told:
    """A finding, and what is to be thought of it."""

    finding: Finding
    fault: bool
    """Whether something is wrong that is still there."""
    deleted: bool = False
    """Whether the sweep has deleted what it is about."""


class HomeChecker:
    """Checks a home. Made by :func:`open_checker`, and by an engine for its own.

    Args:
        home: Where the hot ledgers are.
        instance: Of the hot log, as objects carry it.
        metadata: Only read.
        stores: Of objects; their watch is told of every step.
        config: The settings.
        quiet: Whether Spark is started for this alone, and tells nothing besides; else the session is shared with the
            pipeline of an engine in this process.
    """

    def __init__(
        self,
        home: Path,
        instance: str,
        metadata: MetadataReader,
        stores: PlacedStores,
        config: BrokerConfig,
        *,
        quiet: bool = True,
    ) -> None:
        self._instance = instance
        self._layout = Layout(home)
        self._watch = stores.watch
        self._metadata = WatchedMetadata(metadata, self._watch)
        self._stores = stores
        self._config = config
        self._quiet = quiet

    def run(self, request: CheckRequest, objects: ObjectChecker | None = None) -> Iterator[Told]:
        """Check, and sweep where that is wanted. Findings come as they are made; what is swept comes last.

        Args:
            request: What is wanted.
            objects: Checks the objects; this process, which does not read their bytes, for None.

        Raises:
            AfterglowError: See :func:`afterglow.verify.verify` and :func:`afterglow.verify.sweep`.
        """
        swept = {Kind.ORPHAN_OBJECT, Kind.LEAKED_UPLOAD} if request.sweep else set()
        for finding in self._findings(request.grace_ms, objects):
            if finding.kind not in swept:
                yield Told(finding, fault=finding.kind.is_fault)
            elif not request.delete:
                yield Told(replace(finding, detail=f"{finding.detail}; the sweep would delete it"), fault=True)
        if request.sweep and request.delete:
            for item in self._sweep(request.grace_ms):
                detail = f"{item.finding.detail}; deleted"
                yield Told(replace(item.finding, detail=detail), fault=False, deleted=True)

    def _findings(self, grace_ms: int, objects: ObjectChecker | None) -> Iterator[Finding]:
        return verify(
            self._metadata,
            self._stores,
            tiers=self._stores,
            instance=self._instance,
            cluster=self._config.cluster_name,
            now_ms=_now_ms(),
            grace_ms=grace_ms,
            hot=lambda ledger_id: self._layout.frames(ledger_id).exists(),
            checker=WatchedChecker(objects or CheckHere(self._stores, self._instance, deep=False), self._watch),
        )

    @contextmanager
    def deep(self, master: str | None = None, progress: ByteProgress | None = None) -> Iterator[ObjectChecker]:
        """What reads every byte of objects, on Spark, which runs for as long.

        Args:
            master: Where tasks run; else as ``sparkMaster`` says.
            progress: Is told when a task ends.

        Raises:
            MissingDependency: PySpark or a Java is missing.
            ConfigError: The master is malformed.
        """
        from afterglow.engine.tiering import spark_properties  # noqa: PLC0415 - with much that a short check needs not
        from afterglow.spark.session import QUIET, local_session  # noqa: PLC0415
        from afterglow.spark.verify_jobs import SparkChecker  # noqa: PLC0415

        self._watch.step("Spark, which is being started")
        properties = {**(QUIET if self._quiet else {}), **spark_properties(self._config)}
        with local_session(master or self._config.spark_master, **properties) as session:
            checker = SparkChecker(session, self._stores, self._instance, progress)
            self._watch.on_cancel(checker.cancel)
            yield checker

    def _sweep(self, grace_ms: int) -> Iterator[Swept]:
        """Delete orphans and abort leaked uploads in every tier that the findings came to know."""
        return sweep(
            self._metadata,
            tiers=self._stores,
            instance=self._instance,
            cluster=self._config.cluster_name,
            now_ms=_now_ms(),
            grace_ms=grace_ms,
            dry_run=False,
        )


class PlacedStores:
    """The store of each place that metadata names; iterated, all stores met so far, each once.

    Args:
        own: Where objects are of which metadata does not say where.
        config: For credentials.
        everywhere: Whether all objects are in ``own``, whatever metadata says.
        tiers: Opens the other stores.
        watch: Is told of every request.
    """

    def __init__(
        self,
        own: ObjectStore,
        config: BrokerConfig,
        *,
        everywhere: bool = False,
        tiers: Tiers | None = None,
        watch: Watch | None = None,
    ) -> None:
        self.watch = watch or Watch()
        """Is told of every request."""
        self._own = WatchedStore(own, self.watch)
        self._config = config
        self._everywhere = everywhere
        self._tiers = tiers or Tiers()
        self._met: dict[str, ObjectStore] = {own.url: self._own}

    def __call__(self, place: Place) -> ObjectStore:
        """The store of a place.

        Raises:
            NotSupported: No store of this release reaches it.
            CorruptMetadata: The place is none.
        """
        if self._everywhere or not place.driver:
            return self._own
        told = driver_metadata(TierPlace(place.driver, place.bucket, place.region, place.endpoint, place.prefix))
        properties = [KeyValue(key=key, value=value) for key, value in told.items()]
        known = place_of_driver(OffloadDriverMetadata(name=place.driver, properties=properties))
        if known.url == self._own.url:
            return self._own
        store = self._tiers.store(known, self._config)
        return self._met.setdefault(store.url, WatchedStore(store, self.watch))

    def __iter__(self) -> Iterator[ObjectStore]:
        return iter(tuple(self._met.values()))


@contextmanager
def open_checker(
    source: str, *, tier: str | None = None, metadata: str | None = None, options: Mapping[str, str] | None = None
) -> Iterator[HomeChecker]:
    """Open what is to be checked, for as long.

    Args:
        source: The home directory of an engine.
        tier: Where all objects are, whatever metadata says.
        metadata: Where the metadata is, if not in the home.
        options: Of that tier, such as its endpoint.

    Raises:
        ConfigError: An address or an option is malformed.
        NotSupported: The source or the tier is of a kind that this release does not check.
        HotLogError: The directory has no hot log.
        MetadataUnavailable: There is no such home, or its metadata cannot be read.
    """
    scheme, separator, _ = source.partition("://")
    if separator and scheme == "zk":
        raise NotSupported(
            f"source {source!r}: what a cluster has offloaded is not checked by way of its ZooKeeper in this release; "
            "give the home directory of an engine, or http://host:8080 of one that runs"
        )
    if separator:
        raise ConfigError(f"source {source!r} is no address; give the directory that `afterglow serve --home` runs on")
    if options and tier is None:
        raise ConfigError("--option says how to reach --tier, which is not given")
    home = Path(source)
    config = load_conf(environ=os.environ)
    opened = read_metadata(home, metadata)
    with closing(opened):
        instance = read_instance(home)
        if instance is None:
            raise HotLogError(
                f"source {home} has no hot log, so that nobody knows which objects are its own; give the directory "
                "that `afterglow serve --home` runs on"
            )
        if tier is None:
            own = open_store((home.absolute() / TIER_DIRECTORY).as_uri(), create="true")
        else:
            region, endpoint = (driver_setting(config, "S3", suffix) or "" for suffix in ("Region", "ServiceEndpoint"))
            place = place_of_url(tier, region=region, endpoint=endpoint)
            own = open_store(place.url, **{**store_options(place, config), **(options or {})})
        yield HomeChecker(home, instance, opened, PlacedStores(own, config, everywhere=tier is not None), config)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
