"""Table views and compacted readers of the stock client: they get the plain log, since nothing is compacted."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.raw_client import ErrorAnswer, RawClient

from afterglow.format.proto import pulsar_api_pb2 as wire

if TYPE_CHECKING:
    from tests.support.serving import Served


def test_a_table_view_has_the_last_value_of_each_key(client: Any, topic: str) -> None:
    producer = client.create_producer(topic)
    for number in range(20):
        producer.send(str(number).encode(), partition_key=f"key-{number % 3}")
    view = client.create_table_view(topic)
    assert len(view) == 3
    assert {view.get(f"key-{key}") for key in range(3)} == {b"18", b"19", b"17"}
    producer.send(b"new", partition_key="key-0")
    deadline = time.monotonic() + 20
    while view.get("key-0") != b"new":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    view.close()


def test_a_compacted_consumer_gets_every_message(client: Any, topic: str) -> None:
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s", is_read_compacted=True)
    for number in range(3):
        producer.send(str(number).encode(), partition_key="same")
    assert [consumer.receive(20_000).data() for _ in range(3)] == [b"0", b"1", b"2"]


def test_a_shared_subscription_cannot_read_compacted(served: Served, topic: str) -> None:
    with RawClient(served.service_url) as client:
        with pytest.raises(ErrorAnswer, match="readCompacted") as refused:
            client.subscribe(topic, "s", wire.CommandSubscribe.Shared, read_compacted=True)
        assert refused.value.code == wire.NotAllowedError
