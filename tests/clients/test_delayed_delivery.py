"""Delayed delivery with the stock Python client."""

from __future__ import annotations

import time
import urllib.request
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pulsar
import pytest
from tests.support.raw_client import ErrorAnswer, RawClient, encode_send
from tests.support.serving import serving, start

from afterglow.format.entry import encode_entry
from afterglow.format.proto import pulsar_api_pb2 as wire

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.serving import Served

WAIT_MS = 20_000
SHORT_MS = 300
SHARED = pulsar.ConsumerType.Shared


def connect(served: Served) -> Any:
    return pulsar.Client(served.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


def received(consumer: Any) -> tuple[bytes, float]:
    message = consumer.receive(WAIT_MS)
    at = time.time()
    consumer.acknowledge(message)
    return message.data(), at


def stats(served: Served, topic: str) -> Any:
    return served.admin("GET", f"{topic.replace('://', '/')}/stats")["subscriptions"]["s"]


def test_a_shared_subscription_delivers_at_the_time_that_the_producer_set(client: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=SHARED)
    producer = client.create_producer(topic)
    begun_ms = int(time.time() * 1000)  # clients truncate times to milliseconds
    producer.send(b"third", deliver_after=timedelta(milliseconds=1600))
    producer.send(b"second", deliver_at=begun_ms + 900)
    producer.send(b"first")
    arrived = [received(consumer) for _ in range(3)]
    assert [data for data, _ in arrived] == [b"first", b"second", b"third"]
    assert arrived[0][1] < (begun_ms + 900) / 1000
    assert arrived[1][1] >= (begun_ms + 900) / 1000
    assert arrived[2][1] >= (begun_ms + 1600) / 1000


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Failover])
def test_a_subscription_that_keeps_the_order_delivers_at_once(client: Any, topic: str, kind: Any) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=kind)
    producer = client.create_producer(topic)
    producer.send(b"delayed", deliver_after=timedelta(hours=1))
    producer.send(b"plain")
    assert [received(consumer)[0] for _ in range(2)] == [b"delayed", b"plain"]


def test_a_reader_gets_delayed_messages_at_once(client: Any, topic: str) -> None:
    client.create_producer(topic).send(b"delayed", deliver_after=timedelta(hours=1))
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert reader.read_next(WAIT_MS).data() == b"delayed"


def test_delayed_messages_are_counted_and_not_offered_to_other_consumers(
    served: Served, client: Any, topic: str
) -> None:
    first = client.subscribe(topic, "s", consumer_type=SHARED)
    producer = client.create_producer(topic)
    producer.send(b"delayed", deliver_after=timedelta(hours=1))
    producer.send(b"plain")
    assert received(first)[0] == b"plain"
    found = stats(served, topic)
    assert (found["msgDelayed"], found["msgBacklogNoDelayed"]) == (1, found["msgBacklog"] - 1)
    with urllib.request.urlopen(f"{served.admin_url}/metrics", timeout=60) as answer:
        exposed = [line for line in answer.read().decode().splitlines() if topic in line]
    assert any(line.startswith("pulsar_subscription_delayed") and line.endswith(" 1.0") for line in exposed)
    first.close()
    second = client.subscribe(topic, "s", consumer_type=SHARED)
    with pytest.raises(pulsar.Timeout):
        second.receive(SHORT_MS)


def test_clearing_the_backlog_drops_delayed_messages(served: Served, client: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=SHARED)
    producer = client.create_producer(topic)
    producer.send(b"delayed", deliver_after=timedelta(seconds=1))
    producer.send(b"plain")
    assert received(consumer)[0] == b"plain"
    served.admin("POST", f"{topic.replace('://', '/')}/subscription/s/skip_all")
    producer.send(b"after", deliver_after=timedelta(seconds=1.2))
    assert received(consumer)[0] == b"after"


def test_a_policy_switches_delayed_delivery_off_and_bounds_the_delay(served: Served, client: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=SHARED)
    producer = client.create_producer(topic)
    path = f"{topic.replace('://', '/')}/delayedDelivery"
    served.admin("POST", path, {"active": False, "tickTime": 1000, "maxDeliveryDelayInMillis": 0})
    producer.send(b"at once", deliver_after=timedelta(hours=1))
    assert received(consumer)[0] == b"at once"
    served.admin("POST", path, {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 60_000})
    with RawClient(served.service_url) as raw:  # the stock client would try for 30 s
        opened = raw.open_producer(topic)
        delayed = wire.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1000)
        delayed.deliver_at_time = 61_000
        assert raw.publish([encode_send(opened, 0, encode_entry(delayed, b"as late as may be"))])
        delayed.deliver_at_time = 61_001
        with pytest.raises(ErrorAnswer, match="max allowed delivery delay of 60000") as refused:
            raw.publish([encode_send(opened, 1, encode_entry(delayed, b"too late"))])
        assert refused.value.code == wire.NotAllowedError


def test_delayed_messages_survive_a_crash_of_the_broker(tmp_path: Path, topic: str) -> None:
    served = start(tmp_path)
    client = connect(served)
    consumer = client.subscribe(topic, "s", consumer_type=SHARED)
    producer = client.create_producer(topic)
    due_ms = int(time.time() * 1000) + 4000
    producer.send(b"delayed", deliver_at=due_ms)
    producer.send(b"plain")
    assert received(consumer)[0] == b"plain"
    served.kill()
    client.close()
    with serving(tmp_path) as again:
        client = connect(again)
        consumer = client.subscribe(topic, "s", consumer_type=SHARED)
        data = b"plain"  # its acknowledgement may have been lost with the process
        while data == b"plain":
            data, at = received(consumer)
        assert data == b"delayed"
        assert at >= due_ms / 1000
        client.close()


def test_a_subscription_that_holds_as_many_as_it_may_reads_on_when_some_are_due(tmp_path: Path, topic: str) -> None:
    with serving(tmp_path, "--set", "maxDelayedMessagesPerSubscription=2") as served:
        client = connect(served)
        producer = client.create_producer(topic)
        consumer = client.subscribe(topic, "s", consumer_type=SHARED, receiver_queue_size=1)
        due_ms = int(time.time() * 1000) + 2000
        for number in range(4):
            producer.send(str(number).encode(), deliver_at=due_ms)
        producer.send(b"plain")
        arrived = [received(consumer) for _ in range(5)]
        assert {data for data, _ in arrived} == {b"0", b"1", b"2", b"3", b"plain"}
        assert min(at for data, at in arrived if data != b"plain") >= due_ms / 1000
        client.close()
