"""Bundles: the pieces of a namespace's hash range, by which Pulsar spreads topics over brokers. Pure functions.

One broker serves them all here; they are told apart for tools that name them.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from afterglow.admin import policies
from afterglow.admin.errors import precondition_failed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from afterglow.metadata.names import TopicName

_END: Final = 0xFFFFFFFF
"""The last hash, which belongs to the last bundle."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """One piece."""

    name: str
    """As ``0x00000000_0x40000000``."""
    low: int
    high: int

    def holds(self, topic: TopicName) -> bool:
        """Whether a topic is in it."""
        position = hash_of(topic)
        return self.low <= position < self.high or position == self.high == _END


def hash_of(topic: TopicName) -> int:
    """Where a topic stands in the range."""
    return zlib.crc32(str(topic).encode())


def data(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The bundles of a namespace, by its stored policies."""
    found: dict[str, Any] = stored.get(policies.BUNDLES) or policies.bundles(policies.DEFAULT_BUNDLES)
    return found


def all_of(stored: Mapping[str, Any]) -> list[Bundle]:
    """The bundles of a namespace, ascending."""
    boundaries = data(stored)["boundaries"]
    return [Bundle(f"{low}_{high}", int(low, 16), int(high, 16)) for low, high in pairwise(boundaries)]


def holder(known: Sequence[Bundle], topic: TopicName) -> Bundle:
    """The one that holds a topic, of all bundles of its namespace."""
    return known[bisect_right(known, hash_of(topic), key=lambda bundle: bundle.low) - 1]


def find(stored: Mapping[str, Any], name: str) -> Bundle:
    """The bundle of that name.

    Raises:
        AdminError: The namespace has none such.
    """
    known = all_of(stored)
    for bundle in known:
        if bundle.name == name.lower():
            return bundle
    raise precondition_failed(
        f"there is no bundle {name!r}: there are {', '.join(bundle.name for bundle in known[:8])}"
    )
