"""The engine's own tier: where topics go whose policy names no driver."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from afterglow.errors import ConfigError, NotSupported
from afterglow.read.places import FILESYSTEM, MEMORY, driver_setting, place_of_url

if TYPE_CHECKING:
    from afterglow.config import BrokerConfig
    from afterglow.read.places import TierPlace

_KEYS_OF: Final = "aws-s3"
"""Whose keys for region and endpoint hold for ``--tier``: of all drivers it knows the most spellings of them."""


def own_tier(home: Path, url: str | None, config: BrokerConfig) -> TierPlace:
    """The tier of an engine.

    Args:
        home: The engine's home directory, which must be there.
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
        return place_of_url(own.as_uri())
    try:
        place = place_of_url(
            url,
            region=driver_setting(config, _KEYS_OF, "Region") or "",
            endpoint=driver_setting(config, _KEYS_OF, "ServiceEndpoint") or "",
        )
    except NotSupported as error:
        raise ConfigError(f"--tier cannot be used: {error}") from error
    if place.driver == MEMORY:
        raise ConfigError(f"--tier {url} would be lost with this process; use file:///path or s3://bucket[/prefix]")
    if place.driver == FILESYSTEM and not Path(place.bucket).is_dir():
        raise ConfigError(f"--tier {url}: there is no directory {place.bucket}; make it, or mount its disk, first")
    return place
