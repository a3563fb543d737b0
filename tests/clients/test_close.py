"""Closing, seen on the wire."""

from __future__ import annotations

import threading
from itertools import count
from typing import TYPE_CHECKING

from tests.support.raw_client import RawClient, encode_send

from afterglow.format.entry import encode_entry
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.wire import encode_command

if TYPE_CHECKING:
    from tests.support.raw_client import Frame
    from tests.support.serving import Served

Kind = wire.BaseCommand
SENT = 50
ENTRY = encode_entry(wire.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1), b"payload")


def test_a_producer_is_closed_after_the_receipts_of_all_that_it_sent(served: Served, topic: str) -> None:
    with RawClient(served.service_url) as client:
        producer = client.open_producer(topic)
        close = wire.CommandCloseProducer(producer_id=producer, request_id=1_000)
        sends = b"".join(encode_send(producer, sequence, ENTRY) for sequence in range(SENT))
        client.write(sends + encode_command(Kind(type=Kind.CLOSE_PRODUCER, close_producer=close)))
        answers = [client.next(lambda _frame: True).command.type for _ in range(SENT + 1)]
    assert answers == [Kind.SEND_RECEIPT] * SENT + [Kind.SUCCESS]
    assert served.admin("GET", f"persistent/{topic.removeprefix('persistent://')}/stats")["msgInCounter"] == SENT


def test_producers_of_a_terminated_topic_are_closed_before_a_message_is_refused(served: Served, topic: str) -> None:
    """Go's client waits until its messages time out where the refusal comes first."""
    ends = (Kind.CLOSE_PRODUCER, Kind.SEND_ERROR)
    seen = []
    with RawClient(served.service_url) as client:
        for number in range(5):
            name = f"{topic}-{number}"
            producer = client.open_producer(name)
            path = f"persistent/{name.removeprefix('persistent://')}/terminate"
            ending = threading.Thread(target=served.admin, args=("POST", path))
            ending.start()
            for sequence in count():  # SENDs arrive at every stage of the end
                client.write(encode_send(producer, sequence, ENTRY))
                answer = client.next(lambda _frame: True).command
                if answer.type in ends:
                    break
            seen.append(answer.type)
            ending.join()
            client.lookup(name)
            refusals = [frame.command.send_error for frame in client._arrived if frame.command.type == Kind.SEND_ERROR]
            assert {refusal.error for refusal in refusals} <= {wire.TopicTerminatedError}
            client._arrived.clear()
    assert seen == [Kind.CLOSE_PRODUCER] * 5


def test_the_end_of_a_terminated_topic_is_reported_when_all_is_acknowledged(served: Served, topic: str) -> None:
    def end(frame: Frame) -> bool:
        return frame.command.type == Kind.REACHED_END_OF_TOPIC

    with RawClient(served.service_url) as client:
        (last,) = client.publish([encode_send(client.open_producer(topic), 0, ENTRY)])
        served.admin("POST", f"persistent/{topic.removeprefix('persistent://')}/terminate")
        consumer = client.subscribe(topic, "s", wire.CommandSubscribe.Shared)
        client.flow(consumer, 10)
        client.message(consumer)
        client.lookup(topic)  # has the dispatcher try to read on meanwhile
        assert not any(map(end, client._arrived))
        ack = wire.CommandAck(consumer_id=consumer, ack_type=wire.CommandAck.Individual)
        ack.message_id.add(ledgerId=last.ledger_id, entryId=last.entry_id)
        client.send(Kind(type=Kind.ACK, ack=ack))
        assert client.next(end).command.reachedEndOfTopic.consumer_id == consumer
