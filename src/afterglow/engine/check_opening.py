"""From the address of a source to what checks it from outside, beside whoever runs there, and without."""

from __future__ import annotations

import os
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from afterglow.config import load_conf
from afterglow.engine.checking import PlacedStores, TierChecker
from afterglow.engine.home import TIER_DIRECTORY, read_metadata
from afterglow.errors import ConfigError, HotLogError
from afterglow.hot.local.shared import read_instance
from afterglow.metadata.address import open_metadata
from afterglow.read.places import driver_setting, place_of_url, store_options
from afterglow.storage import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from afterglow.config import BrokerConfig
    from afterglow.storage import ObjectStore

_FORMS: Final = "the directory that `afterglow serve --home` runs on, http://HOST:8080 or zk://HOST:2181"


@contextmanager
def open_checker(
    source: str, *, tier: str | None = None, metadata: str | None = None, options: Mapping[str, str] | None = None
) -> Iterator[TierChecker]:
    """Open what is to be checked, for as long.

    Of a cluster everything is checked that its brokers have offloaded. What they still have in BookKeeper nobody can
    tell here, and whatever metadata does not name is somebody else's.

    Args:
        source: The home directory of an engine, or the ZooKeeper of a Pulsar cluster.
        tier: Where all objects are, whatever metadata says.
        metadata: Where the metadata is, if not in the home.
        options: Of that tier, such as its endpoint.

    Raises:
        ConfigError: An address or an option is malformed.
        NotSupported: The tier is of a kind that this release does not check.
        HotLogError: The directory has no hot log.
        MetadataUnavailable: There is no such home, or the metadata cannot be read.
    """
    scheme, separator, _ = source.partition("://")
    if separator and scheme != "zk":
        raise ConfigError(f"source {source!r} is no address; give {_FORMS}")
    if options and tier is None:
        raise ConfigError("--option says how to reach --tier, which is not given")
    config = load_conf(environ=os.environ)
    if separator:
        if metadata is not None:
            raise ConfigError("--metadata is for a home directory: a cluster's own is in its ZooKeeper; leave it out")
        with closing(open_metadata(source)) as cluster:
            own = None if tier is None else _open_tier(tier, config, options or {})
            stores = PlacedStores(own, config, everywhere=own is not None)
            nobody = str(uuid4())  # an instance that no object carries: nothing is ours
            yield TierChecker(None, nobody, cluster, stores, config)
        return
    home = Path(source)
    with closing(read_metadata(home, metadata)) as opened:
        instance = read_instance(home)
        if instance is None:
            raise HotLogError(
                f"source {home} has no hot log, so that nobody knows which objects are its own; give the directory "
                "that `afterglow serve --home` runs on"
            )
        if tier is None:
            own = open_store((home.absolute() / TIER_DIRECTORY).as_uri(), create="true")
        else:
            own = _open_tier(tier, config, options or {})
        yield TierChecker(home, instance, opened, PlacedStores(own, config, everywhere=tier is not None), config)


def _open_tier(tier: str, config: BrokerConfig, options: Mapping[str, str]) -> ObjectStore:
    region, endpoint = (driver_setting(config, "S3", suffix) or "" for suffix in ("Region", "ServiceEndpoint"))
    place = place_of_url(tier, region=region, endpoint=endpoint)
    return open_store(place.url, **{**store_options(place, config), **options})
