"""Where metadata says that objects are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from afterglow.verify.wire import Message

_FILESYSTEM: Final = "filesystem"


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
    properties: tuple[tuple[str, str], ...] = ()
    """What the driver gave as its metadata, sorted by key; an external driver finds its objects by these."""


def place_of_driver(driver: Message) -> Place:
    """The place that an ``OffloadDriverMetadata`` {1: name, 2: properties {1: key, 2: value}} tells."""
    name = driver.text(1)
    properties = {pair.text(1): pair.text(2) for pair in driver.messages(2)}
    root = "storageBasePath" if name == _FILESYSTEM else "bucket"
    return Place(
        name,
        properties.get(root, ""),
        properties.get("region", ""),
        properties.get("serviceEndpoint", ""),
        properties.get("afterglowPrefix", ""),
        blocks=name != _FILESYSTEM or properties.get("afterglowFormat") == "blocks",
        properties=tuple(sorted(properties.items())),
    )


def place_of_record(place: Message) -> tuple[Place, str]:
    """The place and the key that a ``Place`` record of ours {1: driver … 6: prefix, 7: driver metadata} tells."""
    driver, bucket, region, endpoint, key, prefix = (place.text(number) for number in range(1, 7))
    properties = tuple(sorted((pair.text(1), pair.text(2)) for pair in place.messages(7)))
    return Place(driver, bucket, region, endpoint, prefix, properties=properties), key
