from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pulsar
import pytest

from afterglow.format.entry import encode_entry
from afterglow.format.proto.pulsar_api_pb2 import MessageMetadata

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.admin.conftest import Admin

NAMESPACE = "persistent/public/default"
TOPIC = f"{NAMESPACE}/t"
SUBSCRIPTION = f"{TOPIC}/subscription/s"
BY_PUBLISH_TIME: dict[str, Any] = {"broker_entry_metadata_interceptors": ()}
"""Messages are then as old as their producer says."""


@pytest.fixture
def client(admin: Admin) -> Iterator[pulsar.Client]:
    client = pulsar.Client(admin.service.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


def produce(client: pulsar.Client, count: int, topic: str = "t") -> list[dict[str, int]]:
    producer = client.create_producer(topic, batching_enabled=False)
    sent = [producer.send(b"%d" % number) for number in range(count)]
    producer.close()
    return [{"ledgerId": at.ledger_id(), "entryId": at.entry_id(), "partitionIndex": at.partition()} for at in sent]


def backlog(admin: Admin, subscription: str = "s", topic: str = TOPIC) -> int:
    return int(admin.get(f"{topic}/stats")["subscriptions"][subscription]["msgBacklog"])


def write(admin: Admin, count: int, time_ms: int, topic: str = "t") -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=time_ms)
    for _ in range(count):
        admin.write(encode_entry(metadata, b"x"), f"public/default/persistent/{topic}")


def test_what_is_old_expires_for_one_subscription_or_for_all(start: Callable[..., Admin]) -> None:
    admin = start(**BY_PUBLISH_TIME)
    for name in "sab":
        admin.do("PUT", f"{TOPIC}/subscription/{name}")
    assert "backlog" in admin.refused(409, "POST", f"{SUBSCRIPTION}/expireMessages/1")
    now_ms = int(time.time() * 1000)
    write(admin, 3, now_ms - 7_200_000)
    write(admin, 1, now_ms + 7_200_000)
    admin.do("POST", f"{SUBSCRIPTION}/expireMessages/10800")
    assert backlog(admin) == 4
    admin.do("POST", f"{SUBSCRIPTION}/expireMessages/3600")
    assert (backlog(admin), backlog(admin, "a")) == (1, 4)
    admin.do("POST", f"{TOPIC}/all_subscription/expireMessages/3600")
    assert (backlog(admin, "a"), backlog(admin, "b")) == (1, 1)
    for wrong, status in (("0", 412), ("-1", 412), ("soon", 400)):
        admin.refused(status, "POST", f"{SUBSCRIPTION}/expireMessages/{wrong}")
        admin.refused(status, "POST", f"{TOPIC}/all_subscription/expireMessages/{wrong}")
    admin.refused(404, "POST", f"{TOPIC}/subscription/nobody/expireMessages/1")
    admin.do("POST", f"{SUBSCRIPTION}/skip_all")
    admin.refused(409, "POST", f"{SUBSCRIPTION}/expireMessages/1")


def test_messages_expire_on_all_partitions(start: Callable[..., Admin]) -> None:
    admin = start(**BY_PUBLISH_TIME)
    admin.do("PUT", f"{NAMESPACE}/p/partitions", 2)
    admin.do("PUT", f"{NAMESPACE}/p/subscription/s")
    for index in range(2):
        write(admin, 2, 1, f"p-partition-{index}")
    admin.do("POST", f"{NAMESPACE}/p/subscription/s/expireMessages/1")
    assert [backlog(admin, topic=f"{NAMESPACE}/p-partition-{index}") for index in range(2)] == [0, 0]
    body = {"ledgerId": 0, "entryId": 0, "partitionIndex": -1}
    admin.refused(405, "POST", f"{NAMESPACE}/p/subscription/s/expireMessages", body)


def test_messages_expire_up_to_one(admin: Admin, client: pulsar.Client) -> None:
    admin.do("PUT", SUBSCRIPTION)
    sent = produce(client, 4)
    admin.do("POST", f"{SUBSCRIPTION}/expireMessages", sent[1])
    assert backlog(admin) == 2
    admin.do("POST", f"{SUBSCRIPTION}/expireMessages", sent[0])
    assert backlog(admin) == 2
    admin.do("POST", f"{SUBSCRIPTION}/expireMessages", {**sent[2], "excluded": True})
    assert backlog(admin) == 1
    behind = {**sent[3], "entryId": 4}
    admin.refused(409, "POST", f"{SUBSCRIPTION}/expireMessages", behind)
    admin.refused(409, "POST", f"{SUBSCRIPTION}/expireMessages", "latest")
    admin.refused(412, "POST", f"{SUBSCRIPTION}/expireMessages", {**sent[3], "partitionIndex": 0})
    admin.refused(400, "POST", f"{SUBSCRIPTION}/expireMessages")
    assert backlog(admin) == 1


def test_messages_expire_up_to_one_within_a_batch(admin: Admin, client: pulsar.Client) -> None:
    consumer = client.subscribe("t", "s")
    producer = client.create_producer("t", batching_enabled=True, batching_max_publish_delay_ms=10_000)
    for number in range(4):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    consumer.close()
    last = admin.get(f"{TOPIC}/lastMessageId")
    admin.do("POST", f"{SUBSCRIPTION}/expireMessages", {**last, "batchIndex": 0})
    admin.do("POST", f"{SUBSCRIPTION}/expireMessages", {**last, "batchIndex": 1, "excluded": True})
    consumer = client.subscribe("t", "s")
    assert consumer.receive(10_000).data() == b"2"
    consumer.close()
    admin.do("POST", f"{SUBSCRIPTION}/expireMessages", {**last, "batchIndex": 3, "excluded": True})
    assert backlog(admin) == 0


def test_the_size_behind_a_message_is_told(start: Callable[..., Admin]) -> None:
    admin = start(default_retention_time_in_minutes=-1, default_retention_size_in_mb=-1)
    admin.do("PUT", TOPIC)
    ledgers = admin.write_ledgers(2)
    admin.write_entries(2)
    entry = admin.get(f"{TOPIC}/internalStats")["totalSize"] // 4
    current = admin.get(f"{TOPIC}/internalStats")["ledgers"][-1]["ledgerId"]
    for location, entries in (
        ((-1, -1), 4),
        ((ledgers[0], -1), 4),
        ((ledgers[0], 0), 3),
        ((ledgers[1], 0), 2),
        ((ledgers[1], 9), 2),
        ((current, 0), 1),
        ((current, 1), 0),
        ((2**63 - 1, 2**63 - 1), 0),
    ):
        answer = admin.call("PUT", f"{TOPIC}/backlogSize", {"ledgerId": location[0], "entryId": location[1]})
        assert (answer.status, answer.json) == (200, entries * entry), location
    admin.refused(400, "PUT", f"{TOPIC}/backlogSize")
    admin.do("PUT", f"{NAMESPACE}/p/partitions", 1)
    admin.refused(405, "PUT", f"{NAMESPACE}/p/backlogSize", {"ledgerId": 0, "entryId": 0})


def analyzed(admin: Admin, body: object = None) -> dict[str, Any]:
    answer = admin.call("POST", f"{SUBSCRIPTION}/analyzeBacklog", body)
    assert answer.status == 200, answer
    found: dict[str, Any] = answer.json
    return found


def test_a_backlog_is_analyzed_and_stays(start: Callable[..., Admin]) -> None:
    admin = start(subscription_backlog_scan_max_entries=3)
    admin.do("PUT", SUBSCRIPTION)
    empty = analyzed(admin)
    assert (empty["entries"], empty["messages"], empty["aborted"]) == (0, 0, False)
    assert "firstMessageId" not in empty
    client = pulsar.Client(admin.service.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer("t", batching_enabled=True, batching_max_publish_delay_ms=10_000)
    for number in range(4):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    single = client.create_producer("t", batching_enabled=False)
    sent = [single.send(b"x") for _ in range(2)]
    client.close()
    whole = analyzed(admin)
    ledger = sent[0].ledger_id()
    assert (whole["entries"], whole["messages"], whole["aborted"]) == (3, 6, False)
    assert (whole["firstMessageId"], whole["lastMessageId"]) == (f"{ledger}:0", f"{ledger}:2")
    assert whole["filterAcceptedMessages"] == 6
    assert analyzed(admin, {"ledgerId": ledger, "entryId": 1})["messages"] == 2
    admin.write_entries(1)
    cut_short = analyzed(admin)
    assert (cut_short["entries"], cut_short["aborted"]) == (3, True)
    assert backlog(admin) == 4
    admin.do("PUT", f"{NAMESPACE}/p/partitions", 1)
    admin.do("PUT", f"{NAMESPACE}/p/subscription/s")
    admin.refused(405, "POST", f"{NAMESPACE}/p/subscription/s/analyzeBacklog")
