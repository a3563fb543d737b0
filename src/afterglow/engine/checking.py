"""The checker over metadata and every tier that metadata names, for an engine and for whoever looks from outside.

Metadata and ledgers are only read; objects are deleted by a sweep alone.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from afterglow.engine.check_watch import Watch, WatchedChecker, WatchedMetadata, WatchedStore
from afterglow.errors import NotSupported
from afterglow.format.frames import iter_entries
from afterglow.format.proto.managed_ledger_pb2 import KeyValue, OffloadDriverMetadata
from afterglow.hot.local.layout import Layout
from afterglow.read.drivers import driver_factory, open_driver_copy
from afterglow.read.objects import Located
from afterglow.read.places import (
    TierPlace,
    Tiers,
    driver_metadata,
    external_place,
    is_built_in,
    place_of_driver,
)
from afterglow.verify import Kind, sweep, verify
from afterglow.verify.deep import CheckHere

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from afterglow.config import BrokerConfig
    from afterglow.metadata.pulsar_cluster import MetadataReader
    from afterglow.spark.verify_jobs import Progress as ByteProgress
    from afterglow.storage import ObjectStore
    from afterglow.verify import Finding, ObjectChecker, Place, Swept
    from afterglow.verify.driver_copies import DriverCopies


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


class TierChecker:
    """Checks what one engine, or one cluster, has offloaded.

    Args:
        home: Where the hot ledgers are; None where nobody can tell which there are.
        instance: Of the hot log, as objects carry it.
        metadata: Only read.
        stores: Of objects; their watch is told of every step.
        config: The settings.
        quiet: Whether Spark is started for this alone, and tells nothing besides; else the session is shared with the
            pipeline of an engine in this process.
    """

    def __init__(
        self,
        home: Path | None,
        instance: str,
        metadata: MetadataReader,
        stores: PlacedStores,
        config: BrokerConfig,
        *,
        quiet: bool = True,
    ) -> None:
        self._instance = instance
        self._layout = None if home is None else Layout(home)
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
        layout = self._layout
        return verify(
            self._metadata,
            self._stores,
            tiers=self._stores,
            instance=self._instance,
            cluster=self._config.cluster_name,
            now_ms=_now_ms(),
            grace_ms=grace_ms,
            hot=None if layout is None else lambda ledger_id: layout.frames(ledger_id).exists(),
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
        own: Where objects are of which metadata does not say where; None: nobody knows.
        config: For credentials.
        everywhere: Whether all objects are in ``own``, whatever metadata says.
        tiers: Opens the other stores.
        watch: Is told of every request.
    """

    def __init__(
        self,
        own: ObjectStore | None,
        config: BrokerConfig,
        *,
        everywhere: bool = False,
        tiers: Tiers | None = None,
        watch: Watch | None = None,
    ) -> None:
        self.watch = watch or Watch()
        """Is told of every request."""
        self._own = None if own is None else WatchedStore(own, self.watch)
        self._config = config
        self._everywhere = everywhere
        self._tiers = tiers or Tiers()
        self._met: dict[str, ObjectStore] = {} if self._own is None else {self._own.url: self._own}

    def __call__(self, place: Place) -> ObjectStore | DriverCopies:
        """The store of a place, or the external driver that has its objects.

        Raises:
            NotSupported: No store of this release reaches it, or nobody knows where it is.
            ConfigError: Its driver is not installed.
            MissingDependency: The package of its driver, or the SDK of its store, cannot be imported.
            CorruptMetadata: The place is none.
        """
        if self._everywhere or not place.driver:
            if self._own is None:
                raise NotSupported("metadata does not say where an object is: give --tier")
            return self._own
        if not is_built_in(place.driver):
            driver_factory(place.driver)  # so that a driver that is not installed is told now
            return ExternalCopies(external_place(place.driver, dict(place.properties)), self._config)
        told = driver_metadata(TierPlace(place.driver, place.bucket, place.region, place.endpoint, place.prefix))
        properties = [KeyValue(key=key, value=value) for key, value in told.items()]
        known = place_of_driver(OffloadDriverMetadata(name=place.driver, properties=properties))
        if self._own is not None and known.url == self._own.url:
            return self._own
        store = self._tiers.store(known, self._config)
        return self._met.setdefault(store.url, WatchedStore(store, self.watch))

    def __iter__(self) -> Iterator[ObjectStore]:
        return iter(tuple(self._met.values()))


@dataclass(frozen=True, slots=True)
class ExternalCopies:
    """What an external driver has stored in one place; a :class:`~afterglow.verify.driver_copies.DriverCopies`."""

    place: TierPlace
    config: BrokerConfig
    """Configuration and credentials for the driver."""

    @property
    def url(self) -> str:
        """The place, for messages."""
        return str(self.place)

    def entries(self, key: str, ledger_id: int, first: int, last: int) -> Iterator[tuple[int, memoryview]]:
        """Entries as the driver gives them; see the protocol."""
        copy = open_driver_copy(Located(self.place, key), ledger_id, self.config, Tiers())
        for run in copy.scan(first, last):
            yield from iter_entries(run.data, run.frames)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
