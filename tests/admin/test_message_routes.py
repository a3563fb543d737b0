from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pulsar
import pytest

from afterglow.format.compression import Codec, compress
from afterglow.format.entry import encode_entry, iter_batch
from afterglow.format.proto.pulsar_api_pb2 import MessageMetadata

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.admin.conftest import Admin

NAMESPACE = "persistent/public/default"
TOPIC = f"{NAMESPACE}/t"
SUBSCRIPTION = f"{TOPIC}/subscription/s"


@pytest.fixture
def client(admin: Admin) -> Iterator[pulsar.Client]:
    client = pulsar.Client(admin.service.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


def message(**fields: Any) -> MessageMetadata:
    return MessageMetadata(**{"producer_name": "p", "sequence_id": 0, "publish_time": 1_700_000_000_123, **fields})


def test_what_a_producer_sent_is_shown_with_its_properties(admin: Admin, client: pulsar.Client) -> None:
    producer = client.create_producer("t", producer_name="p", batching_enabled=False)
    sent = producer.send(
        b"hello",
        properties={"a": "b", "grüße": "日本\r\nX-Evil: 1"},
        partition_key="k",
        event_timestamp=1_600_000_000_001,
    )
    answer = admin.call("GET", f"{TOPIC}/ledger/{sent.ledger_id()}/entry/{sent.entry_id()}")
    assert (answer.status, answer.body) == (200, b"hello")
    shown = answer.headers
    assert shown["x-pulsar-message-id"] == f"{sent.ledger_id()}:{sent.entry_id()}"
    assert json.loads(shown["x-pulsar-property"]) == {"a": "b", "grüße": "日本\r\nX-Evil: 1"}
    assert "x-evil" not in shown
    assert shown["x-pulsar-producer-name"] == "p"
    assert shown["x-pulsar-partition-key"] == "k"
    assert shown["x-pulsar-event-time"] == "2020-09-13T12:26:40.001Z"
    assert shown["x-pulsar-broker-entry-metadata-index"] == "0"
    assert shown["x-pulsar-is-encrypted"] == shown["x-pulsar-txn-uncommitted"] == "false"
    assert "x-pulsar-num-batch-message" not in shown


def test_headers_have_the_case_that_the_java_client_expects(admin: Admin) -> None:
    admin.call("PUT", TOPIC)
    hostile = "p\r\nX-Evil: 1\r\n\r\n\x00日本"
    admin.write(encode_entry(message(producer_name=hostile, partition_key=hostile, uuid=hostile), b"hello"))
    head, _, body = admin.raw("GET", f"/admin/v2/{TOPIC}/examinemessage").partition(b"\r\n\r\n")
    assert body == b"hello"
    assert b"\r\nX-Pulsar-PROPERTY: {}\r\n" in head
    assert b"\r\nX-Evil" not in head


def test_a_batch_is_shown_whole_and_decompressed(admin: Admin, client: pulsar.Client) -> None:
    producer = client.create_producer(
        "t", compression_type=pulsar.CompressionType.LZ4, batching_enabled=True, batching_max_publish_delay_ms=10_000
    )
    for number in range(3):
        producer.send_async(b"%d" % number * 100, None)
    producer.flush()
    answer = admin.call("GET", f"{TOPIC}/examinemessage?initialPosition=earliest&messagePosition=1")
    assert answer.headers["x-pulsar-compression"] == "LZ4"
    count = int(answer.headers["x-pulsar-num-batch-message"])
    assert [bytes(data[:1]) for _, data in iter_batch(answer.body, count)] == [b"0", b"1", b"2"]


def test_an_entry_that_cannot_be_shown_is_refused_with_the_reason(admin: Admin) -> None:
    admin.call("PUT", TOPIC)
    admin.do("PUT", SUBSCRIPTION)
    admin.write_entries(1)
    assert "not a valid message" in admin.refused(412, "GET", f"{TOPIC}/examinemessage")
    admin.write(encode_entry(message(compression=1, uncompressed_size=400), b"torn"))
    assert "LZ4" in admin.refused(412, "GET", f"{TOPIC}/examinemessage")
    large = message()
    large.properties.add(key="k", value="v" * 8000)
    admin.write(encode_entry(large, b""))
    assert "headers" in admin.refused(412, "GET", f"{TOPIC}/examinemessage")
    assert "headers" in admin.refused(412, "GET", f"{SUBSCRIPTION}/position/3")


def test_a_subscription_is_peeked_at_past_what_is_acknowledged(admin: Admin, client: pulsar.Client) -> None:
    consumer = client.subscribe("t", "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer("t", batching_enabled=False)
    for number in range(4):
        producer.send(b"%d" % number)
    consumer.acknowledge([consumer.receive(10_000) for _ in range(2)][1])
    while admin.get(f"{TOPIC}/stats")["subscriptions"]["s"]["msgBacklog"] != 3:
        pass
    peeked = [admin.call("GET", f"{SUBSCRIPTION}/position/{number}") for number in range(1, 5)]
    assert [answer.body for answer in peeked[:3]] == [b"0", b"2", b"3"]
    assert peeked[3].status == 404
    assert admin.get(f"{TOPIC}/stats")["subscriptions"]["s"]["msgBacklog"] == 3
    for wrong, status in (("0", 412), ("-1", 412), ("one", 400), ("99999999999", 412)):
        admin.refused(status, "GET", f"{SUBSCRIPTION}/position/{wrong}")
    admin.refused(404, "GET", f"{TOPIC}/subscription/absent/position/1")


def test_a_topic_is_examined_from_either_end(admin: Admin, client: pulsar.Client) -> None:
    admin.do("PUT", TOPIC)
    admin.refused(412, "GET", f"{TOPIC}/examinemessage")
    producer = client.create_producer("t", batching_enabled=False)
    for number in range(3):
        producer.send(b"%d" % number)
    for query, body in (
        ("", b"2"),
        ("?initialPosition=latest&messagePosition=3", b"0"),
        ("?initialPosition=earliest", b"0"),
        ("?initialPosition=earliest&messagePosition=2", b"1"),
        ("?messagePosition=-5", b"2"),
    ):
        assert admin.call("GET", f"{TOPIC}/examinemessage{query}").body == body
    admin.refused(404, "GET", f"{TOPIC}/examinemessage?messagePosition=4")
    admin.refused(400, "GET", f"{TOPIC}/examinemessage?messagePosition=x")
    admin.refused(400, "GET", f"{TOPIC}/examinemessage?initialPosition=middle")


def test_a_message_is_found_by_its_id_or_not(admin: Admin, client: pulsar.Client) -> None:
    sent = client.create_producer("t").send(b"x")
    ledger = sent.ledger_id()
    assert admin.call("GET", f"{TOPIC}/ledger/{ledger}/entry/0").status == 200
    for location in (
        f"ledger/{ledger}/entry/1",
        f"ledger/{ledger + 1}/entry/0",
        f"ledger/{2**63 - 1}/entry/{2**63 - 1}",
    ):
        admin.refused(404, "GET", f"{TOPIC}/{location}")
    admin.refused(412, "GET", f"{TOPIC}/ledger/-1/entry/-1")
    admin.refused(404, "GET", f"{NAMESPACE}/nothing/ledger/0/entry/0")


def test_a_message_id_is_found_by_time(admin: Admin, client: pulsar.Client) -> None:
    admin.do("PUT", TOPIC)
    assert admin.call("GET", f"{TOPIC}/messageid/0").status == 204
    producer = client.create_producer("t", batching_enabled=False)
    sent = [producer.send(b"x") for _ in range(2)]
    first = {"ledgerId": sent[0].ledger_id(), "entryId": 0, "partitionIndex": -1}
    assert admin.get(f"{TOPIC}/messageid/0") == first
    assert admin.get(f"{TOPIC}/messageid/{int(time.time() * 1000) + 60_000}") == {**first, "entryId": 2}


def test_messages_of_a_partitioned_topic_are_those_of_its_partitions(admin: Admin) -> None:
    admin.do("PUT", f"{NAMESPACE}/p/partitions", 2)
    admin.do("PUT", f"{NAMESPACE}/p/subscription/s")
    for what in ("subscription/s/position/1", "examinemessage", "ledger/0/entry/0", "messageid/0"):
        assert "partition" in admin.refused(405, "GET", f"{NAMESPACE}/p/{what}")
    assert admin.refused(404, "GET", f"{NAMESPACE}/p-partition-1/subscription/s/position/1")


def test_messages_in_the_tier_are_shown(start: Callable[..., Admin]) -> None:
    admin = start(
        offload=True,
        managed_ledger_offload_threshold_in_bytes=0,
        managed_ledger_cache_size_mb=0,
        default_retention_time_in_minutes=-1,
        default_retention_size_in_mb=-1,
    )
    admin.do("PUT", TOPIC)
    admin.do("PUT", SUBSCRIPTION)
    admin.write(encode_entry(message(), b"cold"))
    admin.service.store.open("public/default/persistent/t", create=False).roll()
    admin.offloading.begin()
    admin.offloading.finish()
    admin.write(encode_entry(message(), b"hot"))
    assert admin.call("GET", f"{SUBSCRIPTION}/position/1").body == b"cold"
    assert admin.call("GET", f"{SUBSCRIPTION}/position/2").body == b"hot"
    reads = admin.get(f"{TOPIC}/stats")["afterglowReads"]
    assert reads["tiered"]["entries"] >= 1


@pytest.mark.parametrize("path", [f"{TOPIC}/examinemessage", f"{SUBSCRIPTION}/position/1"])
def test_a_compressed_payload_larger_than_a_message_is_refused(start: Callable[..., Admin], path: str) -> None:
    admin = start(max_message_size=1 << 20)
    admin.call("PUT", TOPIC)
    admin.call("PUT", SUBSCRIPTION)
    for size, status in (((1 << 20) + 1, 412), (2**32 - 1, 412), (1 << 20, 200)):
        payload = compress(Codec.ZSTD, bytes(min(size, 2 << 20)))
        admin.write(encode_entry(message(compression=3, uncompressed_size=size), payload))
        answer = admin.call("GET", path)
        assert answer.status == status
        if status == 412:
            assert "maxMessageSize" in answer.reason
            admin.do("POST", f"{SUBSCRIPTION}/skip_all")
        else:
            assert answer.body == bytes(size)
