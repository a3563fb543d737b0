"""Acknowledgements that ask for an answer. The stock Python client offers none, so a raw client asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.raw_client import RawClient, encode_send
from tests.support.serving import start

from afterglow.format.entry import encode_entry
from afterglow.format.proto import pulsar_api_pb2 as wire

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.raw_client import Frame

Kind = wire.BaseCommand
TOPIC = "persistent://public/default/acks"


def acknowledge(client: RawClient, consumer: int, frame: Frame, kind: wire.CommandAck.AckType.ValueType) -> Kind:
    """Acknowledge a message and wait for the answer."""
    ack = wire.CommandAck(consumer_id=consumer, ack_type=kind, request_id=77)
    ack.message_id.add(ledgerId=frame.position.ledger_id, entryId=frame.position.entry_id)
    client.send(Kind(type=Kind.ACK, ack=ack))
    return client.next(lambda answer: answer.command.type == Kind.ACK_RESPONSE).command


def test_what_was_answered_survives_kill_9(tmp_path: Path) -> None:
    served = start(tmp_path)
    with RawClient(served.service_url) as client:
        producer = client.open_producer(TOPIC)
        metadata = wire.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
        client.publish(encode_send(producer, i, encode_entry(metadata, str(i).encode())) for i in range(10))
        consumer = client.subscribe(TOPIC, "s")
        client.flow(consumer, 100)
        frames = [client.message(consumer) for _ in range(10)]
        for i in (0, 1, 2, 5):
            answer = acknowledge(client, consumer, frames[i], wire.CommandAck.Individual)
            assert answer.ackResponse.request_id == 77
            assert not answer.ackResponse.HasField("error")
    served.kill()

    served = start(tmp_path)
    with RawClient(served.service_url) as client:
        consumer = client.subscribe(TOPIC, "s")
        client.flow(consumer, 100)
        left = [client.message(consumer).position for _ in range(6)]
    served.kill()
    assert left == [frames[i].position for i in (3, 4, 6, 7, 8, 9)]


def test_a_cumulative_acknowledgement_of_a_shared_subscription_is_answered_with_an_error(tmp_path: Path) -> None:
    served = start(tmp_path)
    with RawClient(served.service_url) as client:
        producer = client.open_producer(TOPIC)
        metadata = wire.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
        client.publish([encode_send(producer, 0, encode_entry(metadata, b"x"))])
        consumer = client.subscribe(TOPIC, "s", wire.CommandSubscribe.Shared)
        client.flow(consumer, 1)
        answer = acknowledge(client, consumer, client.message(consumer), wire.CommandAck.Cumulative)
    served.kill()
    assert answer.ackResponse.error == wire.NotAllowedError
    assert "cumulative" in answer.ackResponse.message
