"""Where metadata says that objects are, and how their stores are opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from afterglow.errors import NotSupported
from afterglow.storage.address import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from afterglow.storage.store import ObjectStore
    from afterglow.verify.wire import Message

_FILESYSTEM: Final = "filesystem"
_SPEAKS_S3: Final = frozenset({"s3", "aws-s3", "aliyun-oss"})


@dataclass(frozen=True, slots=True)
class Place:
    """Where an object is, but for its key."""

    driver: str = ""
    """As in the offload policy; empty: metadata does not say, so it is the engine's own tier."""
    bucket: str = ""
    """The bucket, the container, or the root directory."""
    region: str = ""
    endpoint: str = ""
    prefix: str = ""
    """What stands before every key, without slashes at its ends."""
    blocks: bool = True
    """Whether objects there have the format of blocks; False: Hadoop's MapFile, by Pulsar's own file-system driver."""

    @property
    def url(self) -> str:
        """The address to open.

        Raises:
            NotSupported: No store of ours reaches it.
        """
        if self.driver == _FILESYSTEM:
            return f"file://{quote(self.bucket)}"
        if self.driver.lower() in _SPEAKS_S3:
            return f"s3://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")
        raise NotSupported(f"the driver {self.driver!r} of bucket {self.bucket!r} is not available; give --tier")


def place_of_driver(driver: Message) -> Place:
    """The place that an ``OffloadDriverMetadata`` {1: name, 2: properties {1: key, 2: value}} tells."""
    name = driver.text(1)
    properties = {pair.text(1): pair.text(2) for pair in driver.messages(2)}
    if name == _FILESYSTEM:
        root = properties.get("storageBasePath", "")
        return Place(name, root.removeprefix("file://"), blocks=properties.get("afterglowFormat") == "blocks")
    return Place(
        name,
        properties.get("bucket", ""),
        properties.get("region", ""),
        properties.get("serviceEndpoint", ""),
        properties.get("afterglowPrefix", ""),
    )


def place_of_record(place: Message) -> tuple[Place, str]:
    """The place and the key that a ``Place`` record of ours tells."""
    driver, bucket, region, endpoint, key, prefix = (place.text(number) for number in range(1, 7))
    return Place(driver, bucket, region, endpoint, prefix), key


def open_places(own: ObjectStore, options: Mapping[str, str] | None = None) -> Callable[[Place], ObjectStore]:
    """Opens the store of each place once.

    Args:
        own: The engine's own tier, where metadata does not say another.
        options: Of every store behind a network, such as credentials; a place's own endpoint and region come first.
    """
    opened: dict[Place, ObjectStore] = {Place(): own}

    def store(place: Place) -> ObjectStore:
        if place not in opened:
            if place.driver == _FILESYSTEM:
                # Nothing is made by this: a root that is gone reads as empty, and its objects as missing.
                opened[place] = open_store(place.url, create="true")
            else:
                told = {"endpoint": place.endpoint, "region": place.region}
                told = {name: value for name, value in told.items() if value}
                opened[place] = open_store(place.url, **{**(options or {}), **told})
        return opened[place]

    return store
