"""Failover subscriptions: one active consumer, and its successor."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pulsar
import pytest
from tests.support.raw_client import RawClient

from afterglow.format.entry import decode_entry
from afterglow.format.proto import pulsar_api_pb2 as wire

if TYPE_CHECKING:
    from tests.support.raw_client import Frame
    from tests.support.serving import Served

WAIT_MS = 20_000
SHORT_MS = 300
FAILOVER = wire.CommandSubscribe.Failover
KIND = pulsar.ConsumerType.Failover


def payload(frame: Frame) -> bytes:
    return bytes(decode_entry(frame.payload).payload)


def produce(client: Any, topic: str, count: int, first: int = 0) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(first, first + count):
        producer.send(str(number).encode())
    producer.close()


def test_the_active_consumer_gets_all_and_its_successor_goes_on_in_order(
    served: Served, client: Any, topic: str
) -> None:
    with RawClient(served.service_url) as first, RawClient(served.service_url) as second:
        active = first.subscribe(topic, "s", FAILOVER, name="a", priority=0)
        assert first.active_change(active) is True
        standby = second.subscribe(topic, "s", FAILOVER, name="b", priority=1)
        assert second.active_change(standby) is False
        produce(client, topic, 10)
        first.flow(active, 100)
        second.flow(standby, 100)
        got = [first.message(active) for _ in range(10)]
        assert [payload(frame) for frame in got] == [str(number).encode() for number in range(10)]
        for frame in (got[0], got[1], got[4]):
            first.ack(active, frame.position)
        first.close()
        assert second.active_change(standby) is True
        again = [payload(second.message(standby)) for _ in range(7)]
        assert again == [b"2", b"3", b"5", b"6", b"7", b"8", b"9"]
        produce(client, topic, 5, first=10)
        assert [payload(second.message(standby)) for _ in range(5)] == [str(n).encode() for n in range(10, 15)]


def test_a_consumer_of_a_better_priority_takes_over_and_what_was_acknowledged_meanwhile_is_not_repeated(
    served: Served, client: Any, topic: str
) -> None:
    with RawClient(served.service_url) as first, RawClient(served.service_url) as second:
        low = first.subscribe(topic, "s", FAILOVER, name="a", priority=5)
        assert first.active_change(low) is True
        produce(client, topic, 5)
        first.flow(low, 100)
        got = [first.message(low) for _ in range(5)]
        high = second.subscribe(topic, "s", FAILOVER, name="b", priority=1)
        second.flow(high, 100)
        for frame in got[:4]:  # the new consumer waits activeConsumerFailoverDelayTimeMillis for these
            first.ack(low, frame.position)
        assert second.active_change(high) is True
        assert first.active_change(low) is False
        assert payload(second.message(high)) == b"4"
        assert served.admin("GET", f"{topic.replace('://', '/')}/stats")["subscriptions"]["s"][
            "activeConsumerName"
        ] == "b"  # fmt: skip


def test_a_standby_that_leaves_or_asks_for_redelivery_disturbs_nothing(served: Served, client: Any, topic: str) -> None:
    with RawClient(served.service_url) as first, RawClient(served.service_url) as second:
        active = first.subscribe(topic, "s", FAILOVER, name="a")
        assert first.active_change(active) is True
        standby = second.subscribe(topic, "s", FAILOVER, name="b", priority=1)
        produce(client, topic, 3)
        first.flow(active, 100)
        assert [payload(first.message(active)) for _ in range(3)] == [b"0", b"1", b"2"]
        command = wire.BaseCommand(type=wire.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
        command.redeliverUnacknowledgedMessages.consumer_id = standby
        second.send(command)
        second.close()
        produce(client, topic, 1, first=3)
        assert payload(first.message(active)) == b"3"


def test_partitions_are_spread_over_the_consumers_and_taken_over(served: Served, client: Any, topic: str) -> None:
    served.admin("PUT", f"{topic.replace('://', '/')}/partitions", 4)
    got: dict[str, list[tuple[int, int]]] = {"a": [], "b": []}
    enough = threading.Event()

    def take(name: str, consumer: Any, message: Any) -> None:
        partition = int(message.topic_name().rpartition("-")[2])
        got[name].append((partition, int(message.data())))
        consumer.acknowledge(message)
        if len(set(got["a"]) | set(got["b"])) == 80:
            enough.set()

    other = pulsar.Client(served.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    client.subscribe(
        topic, "s", KIND, consumer_name="a", message_listener=lambda found, message: take("a", found, message)
    )
    other.subscribe(
        topic, "s", KIND, consumer_name="b", message_listener=lambda found, message: take("b", found, message)
    )
    producers = [client.create_producer(f"{topic}-partition-{index}") for index in range(4)]
    for number in range(10):
        for producer in producers:
            producer.send(str(number).encode())
    _until(lambda: len(set(got["a"]) | set(got["b"])) == 40)
    assert {partition for partition, _ in got["b"]} & {partition for partition, _ in got["a"]} <= set(range(4))
    path = topic.replace("://", "/")
    names = [
        served.admin("GET", f"{path}-partition-{index}/stats")["subscriptions"]["s"]["activeConsumerName"]
        for index in range(4)
    ]
    assert [name[0] for name in names] == ["a", "b", "a", "b"]
    other.close()
    for number in range(10, 20):
        for producer in producers:
            producer.send(str(number).encode())
    assert enough.wait(20)
    for index in range(4):
        numbers = [number for partition, number in got["a"] if partition == index and number >= 10]
        assert numbers == list(range(10, 20))


def test_a_failover_consumer_acknowledges_cumulatively_and_a_second_type_is_refused(client: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s", KIND)
    produce(client, topic, 5)
    messages = [consumer.receive(WAIT_MS) for _ in range(5)]
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    consumer.acknowledge_cumulative(messages[3])
    consumer.close()
    consumer = client.subscribe(topic, "s", KIND)
    assert consumer.receive(WAIT_MS).data() == b"4"


def test_a_client_that_does_not_know_active_consumers_gets_no_events_of_them(
    served: Served, client: Any, topic: str
) -> None:
    with RawClient(served.service_url, protocol_version=11) as old:
        consumer = old.subscribe(topic, "s", FAILOVER)
        produce(client, topic, 1)
        old.flow(consumer, 1)
        frame = old.next(lambda _frame: True)
        assert frame.command.type == wire.BaseCommand.MESSAGE


def _until(condition: Any) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
