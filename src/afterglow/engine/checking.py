"""The checker over an engine's home: its metadata, its own tier and every other that metadata names, its hot ledgers.

Works beside a running engine and without one. Metadata and ledgers are only read; objects are deleted by a sweep alone.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from afterglow.config import load_conf
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
from afterglow.verify import sweep, verify

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from afterglow.config import BrokerConfig
    from afterglow.metadata.store import MetadataStore
    from afterglow.spark.verify_jobs import Progress
    from afterglow.storage import ObjectStore
    from afterglow.verify import Finding, ObjectChecker, Place, Swept


class HomeChecker:
    """Checks a home. Made by :func:`open_checker`; a context manager."""

    def __init__(self, home: Path, metadata: MetadataStore, stores: PlacedStores, config: BrokerConfig) -> None:
        instance = read_instance(home)
        if instance is None:
            raise HotLogError(
                f"source {home} has no hot log, so that nobody knows which objects are its own; give the directory "
                "that `afterglow serve --home` runs on"
            )
        self._instance = instance
        self._layout = Layout(home)
        self._metadata = metadata
        self._stores = stores
        self._config = config
        self._held = ExitStack()
        self._held.callback(metadata.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def findings(self, *, grace_ms: int, checker: ObjectChecker | None = None) -> Iterator[Finding]:
        """What the checker finds; see :func:`afterglow.verify.verify`, which also says what is raised.

        Args:
            grace_ms: What is not older may be on its way.
            checker: Checks the objects; this process, which does not read their bytes, for None.
        """
        return verify(
            self._metadata,
            self._stores,
            tiers=self._stores,
            instance=self._instance,
            cluster=self._config.cluster_name,
            now_ms=_now_ms(),
            grace_ms=grace_ms,
            hot=lambda ledger_id: self._layout.frames(ledger_id).exists(),
            checker=checker,
        )

    @contextmanager
    def deep(self, master: str | None = None, progress: Progress | None = None) -> Iterator[ObjectChecker]:
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

        properties = {**QUIET, **spark_properties(self._config)}
        with local_session(master or self._config.spark_master, **properties) as session:
            yield SparkChecker(session, self._stores, self._instance, progress)

    def sweep(self, *, grace_ms: int) -> Iterator[Swept]:
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
    """

    def __init__(self, own: ObjectStore, config: BrokerConfig, *, everywhere: bool) -> None:
        self._own = own
        self._config = config
        self._everywhere = everywhere
        self._tiers = Tiers()
        self._met = {own.url: own}

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
        self._met.setdefault(store.url, store)
        return store

    def __iter__(self) -> Iterator[ObjectStore]:
        return iter(tuple(self._met.values()))


def open_checker(
    source: str, *, tier: str | None = None, metadata: str | None = None, options: Mapping[str, str] | None = None
) -> HomeChecker:
    """Open what is to be checked.

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
    if separator and scheme in {"http", "https", "zk"}:
        raise NotSupported(
            f"source {source!r}: this release checks the home directory of an engine; checking by way of its admin API "
            "or of ZooKeeper is to come"
        )
    if separator:
        raise ConfigError(f"source {source!r} is no address; give the directory that `afterglow serve --home` runs on")
    if options and tier is None:
        raise ConfigError("--option says how to reach --tier, which is not given")
    home = Path(source)
    config = load_conf(environ=os.environ)
    with ExitStack() as stack:
        opened = read_metadata(home, metadata)
        stack.callback(opened.close)
        if tier is None:
            own = open_store((home.absolute() / TIER_DIRECTORY).as_uri(), create="true")
        else:
            region, endpoint = (driver_setting(config, "S3", suffix) or "" for suffix in ("Region", "ServiceEndpoint"))
            place = place_of_url(tier, region=region, endpoint=endpoint)
            own = open_store(place.url, **{**store_options(place, config), **(options or {})})
        checker = HomeChecker(home, opened, PlacedStores(own, config, everywhere=tier is not None), config)
        stack.pop_all()
        return checker
    raise AssertionError("unreachable: the block returns or raises")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
