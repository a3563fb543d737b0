"""The choice of the active consumer of a Failover subscription."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from afterglow.broker.subscription import choose_active, murmur3

TOPIC = "persistent://public/default/t"


def consumer(name: str, priority: int = 0) -> Any:
    return SimpleNamespace(name=name, priority=priority)


def chosen(consumers: list[Any], topic: str = TOPIC, partition: int = -1, *, consistent_hashing: bool = False) -> str:
    name: str = choose_active(consumers, topic, partition, consistent_hashing=consistent_hashing).name
    return name


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"hello", 0x248BFA47),
        (b"hello, world", 0x149BBB7F),
        (b"The quick brown fox jumps over the lazy dog", 0x2E4FF723),
        (b"abc", 0xB3DD93FA & 0x7FFFFFFF),
    ],
)
def test_the_hash_is_murmur3_without_its_sign_bit(data: bytes, expected: int) -> None:
    assert murmur3(data) == expected


def test_partitions_are_assigned_in_the_order_of_consumer_names() -> None:
    consumers = [consumer("c"), consumer("a"), consumer("b")]
    assert [chosen(consumers, partition=index) for index in range(5)] == ["a", "b", "c", "a", "b"]


def test_only_consumers_of_the_best_priority_level_become_active() -> None:
    consumers = [consumer("a", 2), consumer("b", 1), consumer("c", 1)]
    assert [chosen(consumers, partition=index) for index in range(3)] == ["b", "c", "b"]
    assert {chosen(consumers, f"{TOPIC}-{number}") for number in range(50)} == {"b", "c"}


def test_topics_without_partitions_spread_over_the_consumers() -> None:
    consumers = [consumer(name) for name in ("a", "b", "c", "d")]
    counted = Counter(chosen(consumers, f"{TOPIC}-{number}") for number in range(1000))
    assert set(counted) == {"a", "b", "c", "d"}
    assert min(counted.values()) > 100


@pytest.mark.parametrize("partition", [-1, 3])
def test_a_consumer_that_leaves_moves_only_its_own_topics_on_the_hash_ring(partition: int) -> None:
    consumers = [consumer(name) for name in ("a", "b", "c", "d")]
    for number in range(200):
        topic = f"{TOPIC}-{number}"
        before = chosen(consumers, topic, partition, consistent_hashing=True)
        after = chosen([found for found in consumers if found.name != "b"], topic, partition, consistent_hashing=True)
        assert before in {after, "b"}


def test_the_order_of_consumers_does_not_matter() -> None:
    consumers = [consumer(name) for name in ("a", "b", "c")]
    for number in range(50):
        assert chosen(consumers, f"{TOPIC}-{number}") == chosen(consumers[::-1], f"{TOPIC}-{number}")
