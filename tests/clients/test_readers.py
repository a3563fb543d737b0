"""Readers under names that no stock client lets one choose."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.raw_client import ErrorAnswer, RawClient, encode_send

from afterglow.format.entry import encode_entry
from afterglow.format.proto import pulsar_api_pb2 as wire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.serving import Served

ENTRY = encode_entry(wire.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1), b"payload")


@pytest.fixture
def raw(served: Served) -> Iterator[RawClient]:
    with RawClient(served.service_url) as client:
        yield client


@pytest.mark.parametrize("durable", [True, False])
def test_a_reader_and_a_subscription_do_not_share_a_name(raw: RawClient, topic: str, *, durable: bool) -> None:
    raw.publish([encode_send(raw.open_producer(topic), 0, ENTRY)])
    first = raw.subscribe(topic, "taken", durable=durable)
    with pytest.raises(ErrorAnswer, match="has the name 'taken'") as caught:
        raw.subscribe(topic, "taken", durable=not durable)
    assert caught.value.code == wire.NotAllowedError
    raw.flow(first, 1)
    assert raw.message(first).payload == ENTRY


def test_a_reader_comes_back_from_a_seek_to_where_it_was_moved(raw: RawClient, topic: str) -> None:
    producer = raw.open_producer(topic)
    positions = raw.publish(encode_send(producer, number, ENTRY) for number in range(3))
    reader = raw.subscribe(topic, "reader", durable=False)
    raw.seek_time(reader, 2**62)
    reader = raw.subscribe(topic, "reader", durable=False)
    raw.flow(reader, 1)
    (new,) = raw.publish([encode_send(producer, 3, ENTRY)])
    assert raw.message(reader).position == new
    raw.seek_time(reader, 0)
    reader = raw.subscribe(topic, "reader", durable=False)
    raw.flow(reader, 1)
    assert raw.message(reader).position == positions[0]
