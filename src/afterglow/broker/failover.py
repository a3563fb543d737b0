"""The active consumer of a Failover subscription, chosen as Pulsar chooses it.

Only consumers of the best priority level take part. The partitions of a topic are dealt out to them in the order of
their names; a topic without partitions goes to the consumer that follows the topic's name on a hash ring, so that the
topics of an application spread over its consumers.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from afterglow.broker.consumers import Consumer

RING_POINTS: Final = 100
"""Places of one consumer on the hash ring."""

_MASK: Final = 0xFFFFFFFF


def choose_active(
    consumers: Sequence[Consumer], topic: str, partition: int, *, consistent_hashing: bool = False
) -> Consumer:
    """Return the consumer that gets the messages.

    Args:
        consumers: All that are connected; at least one.
        topic: The topic's full name.
        partition: The index of the partition, -1 if the topic is not partitioned.
        consistent_hashing: Whether partitions are placed by the hash ring too.
    """
    best = min(consumer.priority for consumer in consumers)
    rivals = sorted((found for found in consumers if found.priority == best), key=lambda found: found.name)
    if partition >= 0 and not consistent_hashing:
        return rivals[partition % len(rivals)]
    wanted = murmur3(topic.encode())
    chosen, least = rivals[0], -1
    for consumer in rivals:
        points = _ring_points(consumer.name)
        at = bisect_left(points, wanted)
        # Behind the last point the ring begins again.
        distance = points[at] - wanted if at < len(points) else points[0] - wanted + (1 << 31)
        if least < 0 or distance <= least:
            chosen, least = consumer, distance
    return chosen


@lru_cache(maxsize=4096)
def _ring_points(name: str) -> tuple[int, ...]:
    return tuple(sorted(murmur3(f"{name}{number}".encode()) for number in range(RING_POINTS)))


def murmur3(data: bytes) -> int:
    """Return the MurmurHash3 (x86, 32 bits, seed 0) of the data without its sign bit, as Pulsar uses it."""
    value = 0
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        value ^= _mixed(int.from_bytes(data[at : at + 4], "little"))
        value = ((value << 13 | value >> 19) * 5 + 0xE6546B64) & _MASK
    if whole < len(data):
        value ^= _mixed(int.from_bytes(data[whole:], "little"))
    value ^= len(data)
    value = (value ^ value >> 16) * 0x85EBCA6B & _MASK
    value = (value ^ value >> 13) * 0xC2B2AE35 & _MASK
    return (value ^ value >> 16) & 0x7FFFFFFF


def _mixed(word: int) -> int:
    word = word * 0xCC9E2D51 & _MASK
    word = (word << 15 | word >> 17) & _MASK
    return word * 0x1B873593 & _MASK
