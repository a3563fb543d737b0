"""The stock Python client against a real ``afterglow serve``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pulsar
import pytest

if TYPE_CHECKING:
    from tests.support.serving import Served

WAIT_MS = 20_000
SHORT_MS = 300


def receive(consumer: Any, count: int) -> list[Any]:
    return [consumer.receive(WAIT_MS) for _ in range(count)]


def nothing_comes(consumer: Any) -> bool:
    try:
        consumer.receive(SHORT_MS)
    except pulsar.Timeout:
        return True
    return False


@pytest.mark.parametrize("batching", [True, False])
@pytest.mark.parametrize("codec", ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"])
def test_messages_come_back_as_they_were_sent(client: Any, topic: str, batching: bool, codec: str) -> None:  # noqa: FBT001
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic, batching_enabled=batching, compression_type=getattr(pulsar.CompressionType, codec)
    )
    for i in range(50):
        producer.send_async(
            f"value {i}".encode() * 20,
            None,
            properties={"n": str(i)},
            partition_key=f"key {i}",
            ordering_key=f"order {i}",
            event_timestamp=1000 + i,
        )
    producer.flush()
    for i, message in enumerate(receive(consumer, 50)):
        assert message.data() == f"value {i}".encode() * 20
        assert message.properties() == {"n": str(i)}
        assert message.partition_key() == f"key {i}"
        assert message.ordering_key() == f"order {i}"
        assert message.event_timestamp() == 1000 + i
        consumer.acknowledge(message)
    assert nothing_comes(consumer)


def test_a_send_returns_where_the_message_stands(client: Any, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(b"x") for _ in range(5)]
    assert [message_id.entry_id() for message_id in ids] == [0, 1, 2, 3, 4]
    assert len({message_id.ledger_id() for message_id in ids}) == 1


def test_what_was_not_acknowledged_comes_again(client: Any, topic: str) -> None:
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    for i in range(10):
        producer.send(str(i).encode())
    for message in receive(consumer, 10)[:4]:
        consumer.acknowledge(message)
    consumer.close()
    consumer = client.subscribe(topic, "s")
    assert [message.data() for message in receive(consumer, 6)] == [str(i).encode() for i in range(4, 10)]


def test_a_cumulative_acknowledgement_covers_all_before(client: Any, topic: str) -> None:
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    for i in range(10):
        producer.send(str(i).encode())
    consumer.acknowledge_cumulative(receive(consumer, 10)[6])
    consumer.close()
    consumer = client.subscribe(topic, "s")
    assert [message.data() for message in receive(consumer, 3)] == [b"7", b"8", b"9"]


def test_messages_of_one_batch_are_acknowledged_one_by_one(client: Any, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=2000)
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared, batch_index_ack_enabled=True)
    for i in range(6):
        producer.send_async(str(i).encode(), None)
    producer.flush()
    messages = receive(consumer, 6)
    assert messages[0].message_id().batch_index() == 0
    for i in (0, 2, 4):
        consumer.acknowledge(messages[i])
    time.sleep(0.5)  # the client groups acknowledgements for 100 ms and offers no flush
    consumer.close()
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared, batch_index_ack_enabled=True)
    assert [message.data() for message in receive(consumer, 3)] == [b"1", b"3", b"5"]
    assert nothing_comes(consumer)


def test_two_shared_consumers_share_and_take_over(client: Any, topic: str) -> None:
    kind = pulsar.ConsumerType.Shared
    first = client.subscribe(topic, "s", consumer_type=kind, receiver_queue_size=1)
    second = client.subscribe(topic, "s", consumer_type=kind, receiver_queue_size=1)
    producer = client.create_producer(topic, batching_enabled=False)
    for i in range(20):
        producer.send(str(i).encode())
    seen = {first.receive(WAIT_MS).data(), second.receive(WAIT_MS).data()}
    assert len(seen) == 2
    second.close()
    rest: set[bytes] = set()
    while len(rest) < 19:
        message = first.receive(WAIT_MS)
        rest.add(message.data())
        first.acknowledge(message)
    assert seen | rest == {str(i).encode() for i in range(20)}


def test_a_second_exclusive_consumer_is_refused(client: Any, topic: str) -> None:
    client.subscribe(topic, "s")
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s")


def test_a_negative_acknowledgement_brings_a_message_again_with_its_count(client: Any, topic: str) -> None:
    consumer = client.subscribe(
        topic, "s", consumer_type=pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=100
    )
    producer = client.create_producer(topic, batching_enabled=False)
    producer.send(b"once more")
    message = consumer.receive(WAIT_MS)
    assert message.redelivery_count() == 0
    consumer.negative_acknowledge(message)
    again = consumer.receive(WAIT_MS)
    assert again.data() == b"once more"
    assert again.redelivery_count() == 1
    consumer.acknowledge(again)
    assert nothing_comes(consumer)


@pytest.mark.parametrize("inclusive", [True, False])
def test_a_reader_starts_at_a_message_or_behind_it(client: Any, topic: str, inclusive: bool) -> None:  # noqa: FBT001
    producer = client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(str(i).encode()) for i in range(10)]
    reader = client.create_reader(topic, ids[4], start_message_id_inclusive=inclusive)
    first = 4 if inclusive else 5
    assert [reader.read_next(WAIT_MS).data() for _ in range(first, 10)] == [str(i).encode() for i in range(first, 10)]
    assert not reader.has_message_available()


def test_a_reader_from_the_earliest_reads_all_and_from_the_latest_only_what_comes(client: Any, topic: str) -> None:
    producer = client.create_producer(topic)
    for i in range(5):
        producer.send(str(i).encode())
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    seen = []
    while reader.has_message_available():
        seen.append(reader.read_next(WAIT_MS).data())
    assert seen == [str(i).encode() for i in range(5)]
    latest = client.create_reader(topic, pulsar.MessageId.latest)
    producer.send(b"new")
    assert latest.read_next(WAIT_MS).data() == b"new"


def test_seek_by_id_and_by_time(client: Any, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    # Otherwise the client itself drops the message that it seeks to.
    consumer = client.subscribe(topic, "s", start_message_id_inclusive=True)
    ids = []
    for i in range(10):
        ids.append(producer.send(str(i).encode()))
        if i == 4:
            time.sleep(0.05)  # so that the times before and after differ
            middle = int(time.time() * 1000)
            time.sleep(0.05)
    receive(consumer, 10)
    consumer.seek(ids[3])
    assert [message.data() for message in receive(consumer, 7)] == [str(i).encode() for i in range(3, 10)]
    consumer.seek(middle)
    assert [message.data() for message in receive(consumer, 5)] == [str(i).encode() for i in range(5, 10)]
    consumer.seek(pulsar.MessageId.earliest)
    assert consumer.receive(WAIT_MS).data() == b"0"


@pytest.mark.parametrize("start", [pulsar.MessageId.earliest, pulsar.MessageId.latest])
def test_a_reader_seeks_by_id_and_by_time(client: Any, topic: str, start: Any) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    ids = []
    for i in range(10):
        ids.append(producer.send(str(i).encode()))
        if i == 4:
            time.sleep(0.05)  # so that the times before and after differ
            middle = int(time.time() * 1000)
            time.sleep(0.05)
    reader = client.create_reader(topic, start, start_message_id_inclusive=True)
    for _ in range(2):
        reader.seek(middle)
        assert [reader.read_next(WAIT_MS).data() for _ in range(3)] == [b"5", b"6", b"7"]
        reader.seek(ids[3])
        assert [reader.read_next(WAIT_MS).data() for _ in range(3)] == [b"3", b"4", b"5"]


def test_the_last_message_id_is_returned(client: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    for _ in range(3):
        last = producer.send(b"x")
    found = consumer.get_last_message_id()
    assert (found.ledger_id(), found.entry_id()) == (last.ledger_id(), last.entry_id())


def test_a_chunked_message_is_put_together(client: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False, chunking_enabled=True)
    value = bytes(range(256)) * 60_000
    producer.send(value)
    message = consumer.receive(WAIT_MS)
    assert message.data() == value
    consumer.acknowledge(message)


def test_a_message_above_the_limit_is_refused_and_the_producer_lives(client: Any, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    with pytest.raises(pulsar.MessageTooBig):
        producer.send(bytes(6 * 1024 * 1024))
    producer.send(b"small")


def test_a_partitioned_topic_spreads_over_its_partitions(client: Any, served: Served, topic: str) -> None:
    local = topic.rpartition("/")[2]
    served.admin("PUT", f"persistent/public/default/{local}/partitions", 3)
    assert len(client.get_topic_partitions(topic)) == 3
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution)
    for i in range(30):
        producer.send(str(i).encode())
    messages = receive(consumer, 30)
    assert {message.data() for message in messages} == {str(i).encode() for i in range(30)}
    assert {message.topic_name() for message in messages} == {f"{topic}-partition-{n}" for n in range(3)}


def test_a_pattern_subscribes_to_what_matches(client: Any, topic: str) -> None:
    for suffix in "ab":
        client.create_producer(f"{topic}-{suffix}").send(suffix.encode())
    import re

    consumer = client.subscribe(re.compile(f"{topic}-.*"), "s", initial_position=pulsar.InitialPosition.Earliest)
    assert {message.data() for message in receive(consumer, 2)} == {b"a", b"b"}


def test_a_json_schema_gets_a_version(client: Any, topic: str) -> None:
    class Order(pulsar.schema.Record):  # type: ignore[misc] # the client carries no types
        item = pulsar.schema.String()
        count = pulsar.schema.Integer()

    schema = pulsar.schema.JsonSchema(Order)
    consumer = client.subscribe(topic, "s", schema=schema)
    producer = client.create_producer(topic, schema=schema)
    producer.send(Order(item="lamp", count=3))
    message = consumer.receive(WAIT_MS)
    assert message.value().item == "lamp"
    assert message.schema_version() == "0" or message.schema_version()


def test_unsubscribing_deletes_the_subscription(client: Any, served: Served, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    local = topic.rpartition("/")[2]
    assert served.admin("GET", f"persistent/public/default/{local}/subscriptions") == ["s"]
    consumer.unsubscribe()
    assert served.admin("GET", f"persistent/public/default/{local}/subscriptions") == []


def test_a_topic_in_a_namespace_that_does_not_exist_is_refused_at_once(client: Any) -> None:
    started = time.monotonic()
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("persistent://public/nowhere/t")
    assert time.monotonic() - started < 15


def test_a_terminated_topic_takes_no_more_and_is_read_to_its_end(client: Any, served: Served, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    producer.send(b"last")
    served.admin("POST", f"persistent/public/default/{topic.rpartition('/')[2]}/terminate")
    with pytest.raises(pulsar.PulsarException):
        producer.send(b"too late")
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert reader.read_next(WAIT_MS).data() == b"last"
