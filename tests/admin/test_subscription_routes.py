from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pulsar
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.admin.conftest import Admin

TOPIC = "persistent/public/default/t"
SUBSCRIPTION = f"{TOPIC}/subscription/s"


@pytest.fixture
def client(admin: Admin) -> Iterator[pulsar.Client]:
    client = pulsar.Client(admin.service.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


def produce(client: pulsar.Client, count: int, **options: object) -> list[pulsar.MessageId]:
    producer = client.create_producer("t", **options)
    sent = [producer.send(b"%d" % number) for number in range(count)]
    producer.close()
    return sent


def rest(client: pulsar.Client, name: str = "s") -> list[bytes]:
    """What a subscription still has, which stays there."""
    consumer = client.subscribe("t", name, consumer_type=pulsar.ConsumerType.Shared)
    found = []
    while True:
        try:
            found.append(consumer.receive(500).data())
        except pulsar.Timeout:
            break
    consumer.close()
    return found


def backlog(admin: Admin) -> int:
    return int(admin.get(f"{TOPIC}/stats")["subscriptions"]["s"]["msgBacklog"])


def test_a_subscription_is_created_listed_and_deleted(admin: Admin) -> None:
    admin.do("PUT", SUBSCRIPTION)
    assert admin.get(f"{TOPIC}/subscriptions") == ["s"]
    admin.refused(409, "PUT", SUBSCRIPTION)
    admin.do("PUT", f"{TOPIC}/unload")
    assert admin.get(f"{TOPIC}/subscriptions") == ["s"]
    admin.do("DELETE", SUBSCRIPTION)
    assert admin.get(f"{TOPIC}/subscriptions") == []
    admin.refused(404, "DELETE", SUBSCRIPTION)
    admin.refused(404, "GET", "persistent/public/default/nothing/subscriptions")


def test_a_subscription_starts_at_the_given_message(admin: Admin, client: pulsar.Client) -> None:
    sent = produce(client, 4)
    third = {"ledgerId": sent[2].ledger_id(), "entryId": sent[2].entry_id(), "partitionIndex": -1}
    for name, body, begins in (
        ("default", None, []),
        ("latest", "latest", []),
        ("latest-id", {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1, "partitionIndex": -1}, []),
        ("earliest", "earliest", [b"0", b"1", b"2", b"3"]),
        ("earliest-id", {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}, [b"0", b"1", b"2", b"3"]),
        ("third", third, [b"2", b"3"]),
        ("text", f"{sent[2].ledger_id()}:{sent[2].entry_id()}", [b"2", b"3"]),
        ("behind", {**third, "excluded": True}, [b"3"]),
    ):
        admin.do("PUT", f"{TOPIC}/subscription/{name}?replicated=false", body)
        stats = admin.get(f"{TOPIC}/stats")["subscriptions"][name]
        assert stats["msgBacklog"] == len(begins), name
    assert rest(client, "third") == [b"2", b"3"]


def test_a_subscription_keeps_its_properties(admin: Admin) -> None:
    admin.do("PUT", SUBSCRIPTION, {"ledgerId": -1, "entryId": -1, "properties": {"team": "ops"}})
    admin.do("PUT", f"{TOPIC}/unload")
    assert admin.get(f"{TOPIC}/stats")["subscriptions"]["s"]["subscriptionProperties"] == {"team": "ops"}


def test_a_subscription_is_refused(admin: Admin) -> None:
    before = admin.state()
    admin.refused(404, "PUT", "persistent/public/nowhere/t/subscription/s")
    admin.refused(412, "PUT", f"{TOPIC}/subscription/..")
    admin.refused(412, "PUT", SUBSCRIPTION, "somewhere")
    admin.refused(400, "PUT", SUBSCRIPTION, [1, 2])
    admin.refused(400, "PUT", SUBSCRIPTION, {"ledgerId": 1})
    admin.refused(400, "PUT", SUBSCRIPTION, {"ledgerId": 1, "entryId": 1, "properties": {"a": 1}})
    assert admin.state() == before


def test_a_subscription_in_use_is_deleted_by_force_only(admin: Admin, client: pulsar.Client) -> None:
    client.subscribe("t", "s")
    assert "consumers" in admin.refused(412, "DELETE", SUBSCRIPTION)
    admin.refused(400, "DELETE", f"{SUBSCRIPTION}?force=yes")
    assert admin.get(f"{TOPIC}/subscriptions") == ["s"]
    admin.do("DELETE", f"{SUBSCRIPTION}?force=true")


def test_all_partitions_have_the_subscription(admin: Admin) -> None:
    path = "persistent/public/default/p"
    admin.do("PUT", f"{path}/partitions", 2)
    admin.do("PUT", f"{path}-partition-1/subscription/s")
    admin.refused(404, "DELETE", f"{path}/subscription/s")
    admin.do("PUT", f"{path}/subscription/s")
    admin.refused(409, "PUT", f"{path}/subscription/s")
    for index in range(2):
        assert admin.get(f"{path}-partition-{index}/subscriptions") == ["s"]
    assert admin.get(f"{path}/subscriptions") == ["s"]
    admin.do("POST", f"{path}/subscription/s/skip_all")
    admin.do("POST", f"{path}/subscription/s/resetcursor/0")
    admin.refused(405, "POST", f"{path}/subscription/s/skip/1")
    admin.refused(405, "POST", f"{path}/subscription/s/resetcursor", {"ledgerId": 1, "entryId": 1})
    admin.do("DELETE", f"{path}/subscription/s")
    assert admin.get(f"{path}/subscriptions") == []


def test_a_subscription_is_reset_to_a_time(admin: Admin, client: pulsar.Client) -> None:
    admin.do("PUT", SUBSCRIPTION)
    produce(client, 2)
    while (between := int(time.time() * 1000)) <= admin.run(last_broker_time(admin)):
        pass  # the clock has a millisecond's grain
    produce(client, 2)
    admin.do("POST", f"{SUBSCRIPTION}/skip_all")
    assert backlog(admin) == 0
    admin.do("POST", f"{SUBSCRIPTION}/resetcursor/{between}")
    assert rest(client) == [b"0", b"1"]
    admin.do("POST", f"{SUBSCRIPTION}/resetcursor/0")
    assert backlog(admin) == 4
    for wrong, status in (("soon", 400), ("-1", 412), ("1e3", 400), ("9" * 30, 400)):
        admin.refused(status, "POST", f"{SUBSCRIPTION}/resetcursor/{wrong}")
    admin.refused(404, "POST", f"{TOPIC}/subscription/absent/resetcursor/0")
    assert backlog(admin) == 4


async def last_broker_time(admin: Admin) -> int:
    (topic,) = admin.service.open_topics.values()
    return topic.ledger.last_stamp.broker_time_ms or 0


def test_a_subscription_is_reset_to_a_message(admin: Admin, client: pulsar.Client) -> None:
    admin.do("PUT", SUBSCRIPTION)
    sent = produce(client, 3)
    location = {"ledgerId": sent[1].ledger_id(), "entryId": sent[1].entry_id(), "partitionIndex": -1}
    admin.do("POST", f"{SUBSCRIPTION}/resetcursor", location)
    assert rest(client) == [b"1", b"2"]
    admin.do("POST", f"{SUBSCRIPTION}/resetcursor", {**location, "excluded": True})
    assert rest(client) == [b"2"]
    admin.do("POST", f"{SUBSCRIPTION}/resetcursor", {**location, "batchIndex": 0, "excluded": True})
    assert rest(client) == [b"2"]
    admin.do("POST", f"{SUBSCRIPTION}/resetcursor", "earliest")
    assert backlog(admin) == 3


def test_a_subscription_is_reset_into_a_batch(admin: Admin, client: pulsar.Client) -> None:
    admin.do("PUT", SUBSCRIPTION)
    producer = client.create_producer("t", batching_enabled=True, batching_max_publish_delay_ms=10_000)
    for number in range(5):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    last = admin.get(f"{TOPIC}/lastMessageId")
    assert last["batchIndex"] == 4
    admin.do("POST", f"{SUBSCRIPTION}/resetcursor", {**last, "batchIndex": 3})
    assert rest(client) == [b"3", b"4"]
    admin.do("POST", f"{SUBSCRIPTION}/resetcursor", {**last, "batchIndex": 3, "excluded": True})
    assert rest(client) == [b"4"]
    admin.do("POST", f"{SUBSCRIPTION}/resetcursor", {**last, "excluded": True})
    assert rest(client) == []


def test_messages_are_skipped(admin: Admin, client: pulsar.Client) -> None:
    admin.do("PUT", SUBSCRIPTION)
    produce(client, 5)
    admin.do("POST", f"{SUBSCRIPTION}/skip/0")
    assert backlog(admin) == 5
    admin.do("POST", f"{SUBSCRIPTION}/skip/2")
    assert rest(client) == [b"2", b"3", b"4"]
    admin.do("POST", f"{SUBSCRIPTION}/skip/100")
    assert backlog(admin) == 0
    admin.refused(412, "POST", f"{SUBSCRIPTION}/skip/-1")
    admin.refused(400, "POST", f"{SUBSCRIPTION}/skip/two")


def test_skipping_ignores_acknowledged_entries_and_consumers_continue(admin: Admin, client: pulsar.Client) -> None:
    consumer = client.subscribe("t", "s", consumer_type=pulsar.ConsumerType.Shared)
    produce(client, 4)
    messages = [consumer.receive(10_000) for _ in range(4)]
    consumer.acknowledge(messages[1])
    while backlog(admin) != 3:
        time.sleep(0.01)
    admin.do("POST", f"{SUBSCRIPTION}/skip/2")
    stats = admin.get(f"{TOPIC}/stats")["subscriptions"]["s"]
    assert stats["msgBacklog"] == 1
    assert stats["unackedMessages"] == 1
    produce(client, 1)
    assert consumer.receive(10_000).data() == b"0"
