from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote_plus

import pulsar
import pytest

from afterglow.config import TopicType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.admin.conftest import Admin

NAMESPACE = "persistent/public/default"


@pytest.fixture
def client(admin: Admin) -> Iterator[pulsar.Client]:
    client = pulsar.Client(admin.service.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


def test_a_topic_is_created_listed_and_deleted(admin: Admin) -> None:
    admin.do("PUT", f"{NAMESPACE}/t")
    assert admin.get(NAMESPACE) == admin.get("namespaces/public/default/topics") == ["persistent://public/default/t"]
    assert admin.get(f"{NAMESPACE}/t/partitions")["partitions"] == 0
    assert "exists" in admin.refused(409, "PUT", f"{NAMESPACE}/t")
    admin.refused(409, "DELETE", "namespaces/public/default")
    admin.do("PUT", f"{NAMESPACE}/t/unload")
    admin.do("DELETE", f"{NAMESPACE}/t")
    assert admin.get(NAMESPACE) == []
    admin.refused(404, "DELETE", f"{NAMESPACE}/t")


def test_an_admin_creates_topics_where_clients_may_not(start: Callable[..., Admin]) -> None:
    admin = start(allow_auto_topic_creation=False)
    admin.refused(404, "GET", f"{NAMESPACE}/t/partitions?checkAllowAutoCreation=true")
    admin.refused(412, "PUT", f"{NAMESPACE}/t/subscription/s")
    admin.do("PUT", f"{NAMESPACE}/t")
    admin.do("PUT", f"{NAMESPACE}/t/subscription/s")


@pytest.mark.parametrize("name", ["ä b", "100%", "a+b", "~*", "%2F"])
def test_names_are_decoded_once(admin: Admin, name: str) -> None:
    encoded = quote_plus(name)
    admin.do("PUT", f"{NAMESPACE}/{encoded}")
    assert admin.get(NAMESPACE) == [f"persistent://public/default/{name}"]
    admin.do("PUT", f"{NAMESPACE}/{encoded}/subscription/{encoded}")
    assert admin.get(f"{NAMESPACE}/{encoded}/subscriptions") == [name]
    admin.do("DELETE", f"{NAMESPACE}/{encoded}?force=true")


def test_invalid_names_are_refused(admin: Admin) -> None:
    before = admin.state()
    assert "must not contain '/'" in admin.refused(412, "PUT", f"{NAMESPACE}/a%2Fb")
    admin.refused(412, "PUT", f"{NAMESPACE}/100%")
    admin.refused(412, "PUT", f"{NAMESPACE}/%FF")
    admin.refused(412, "PUT", "persistent/public/a*b/t")
    admin.refused(404, "PUT", "persistent/public/nowhere/t")
    assert "TENANT/NAMESPACE/TOPIC" in admin.refused(404, "GET", "persistent/acme/cluster/ns/t/stats")
    assert "/admin/v2/" in admin.refused(404, "GET", "/admin/persistent/acme/cluster/ns/t/stats")
    assert admin.state() == before


def test_a_topic_keeps_its_properties(admin: Admin) -> None:
    admin.do("PUT", f"{NAMESPACE}/t", {"owner": "ops"})
    assert admin.get(f"{NAMESPACE}/t/internalStats")["properties"]["owner"] == "ops"
    for key in ("index", "afterglow.owner-epoch"):
        assert key in admin.refused(412, "PUT", f"{NAMESPACE}/u", {key: "1"})
    admin.refused(400, "PUT", f"{NAMESPACE}/u", {"owner": 1})
    assert admin.get(NAMESPACE) == ["persistent://public/default/t"]


def test_a_partitioned_topic_is_created_extended_and_deleted(admin: Admin) -> None:
    path = f"{NAMESPACE}/p"
    admin.do("PUT", f"{path}/partitions", 2)
    assert admin.get(f"{NAMESPACE}/partitioned") == ["persistent://public/default/p"]
    assert admin.get(NAMESPACE) == [f"persistent://public/default/p-partition-{index}" for index in range(2)]
    assert admin.get(f"{path}/partitions") == {"partitions": 2, "deleted": False}
    for conflicting in (path, f"{path}/partitions"):
        admin.refused(409, "PUT", conflicting, 3 if conflicting.endswith("s") else None)
    admin.do("POST", f"{path}/partitions", 3)
    admin.refused(422, "POST", f"{path}/partitions", 2)
    assert len(admin.get(NAMESPACE)) == 3
    assert "partitioned topic" in admin.refused(409, "DELETE", path)
    assert "one of its partitions" in admin.refused(404, "GET", f"{path}/stats")
    admin.do("PUT", f"{path}/unload")
    admin.do("DELETE", f"{path}/partitions")
    assert admin.get(NAMESPACE) == admin.get(f"{NAMESPACE}/partitioned") == []
    admin.refused(404, "DELETE", f"{path}/partitions")


def test_partitions_come_as_an_object_too(admin: Admin) -> None:
    headers = {"Content-Type": "application/vnd.partitioned-topic-metadata+json"}
    body = {"partitions": 2, "properties": {}, "deleted": False}
    assert admin.call("PUT", f"{NAMESPACE}/p/partitions", body, headers).status == 204
    assert admin.get(f"{NAMESPACE}/p/partitions")["partitions"] == 2
    admin.do("PUT", f"{NAMESPACE}/q/partitions", {**body, "properties": {"a": "b"}})
    admin.refused(412, "PUT", f"{NAMESPACE}/r/partitions", {**body, "properties": {"index": "b"}})


@pytest.mark.parametrize(
    ("status", "count"), [(406, 0), (406, -1), (406, 5), (400, "three"), (406, "0"), (400, None), (412, 2**40)]
)
def test_an_invalid_number_of_partitions_is_refused(start: Callable[..., Admin], status: int, count: object) -> None:
    admin = start(max_num_partitions_per_partitioned_topic=4)
    before = admin.state()
    admin.refused(status, "PUT", f"{NAMESPACE}/p/partitions", count)
    assert admin.state() == before


def test_a_huge_number_of_partitions_is_refused(admin: Admin) -> None:
    assert "10000" in admin.refused(406, "PUT", f"{NAMESPACE}/p/partitions", 1_000_000)
    assert admin.get(NAMESPACE) == []


def test_a_partition_that_is_missing_is_created_and_one_too_many_is_not(admin: Admin) -> None:
    admin.do("PUT", f"{NAMESPACE}/p/partitions", 2)
    admin.do("DELETE", f"{NAMESPACE}/p-partition-1")
    admin.do("PUT", f"{NAMESPACE}/p-partition-1")
    assert "2 partitions" in admin.refused(412, "PUT", f"{NAMESPACE}/p-partition-2")
    admin.refused(412, "PUT", f"{NAMESPACE}/p-partition-0/partitions", 2)
    admin.refused(409, "POST", f"{NAMESPACE}/t/partitions", 2)
    admin.do("PUT", f"{NAMESPACE}/t")
    admin.refused(409, "PUT", f"{NAMESPACE}/t/partitions", 2)
    admin.refused(409, "DELETE", f"{NAMESPACE}/t/partitions")


def test_a_lookup_of_partitions_creates_a_partitioned_topic(start: Callable[..., Admin]) -> None:
    admin = start(allow_auto_topic_creation_type=TopicType.PARTITIONED, default_num_partitions=3)
    admin.refused(404, "GET", f"{NAMESPACE}/p/partitions")
    admin.refused(404, "GET", f"{NAMESPACE}/p/partitions?checkAllowAutoCreation=false")
    assert admin.get(f"{NAMESPACE}/p/partitions?checkAllowAutoCreation=true&authoritative=false")["partitions"] == 3
    assert admin.get(f"{NAMESPACE}/p/partitions")["partitions"] == 3


def test_a_topic_in_use_is_deleted_by_force_only(admin: Admin, client: pulsar.Client) -> None:
    producer = client.create_producer("t")
    producer.send(b"x")
    assert "producers" in admin.refused(412, "DELETE", f"{NAMESPACE}/t")
    producer.close()
    consumer = client.subscribe("t", "s")
    assert "consumers" in admin.refused(412, "DELETE", f"{NAMESPACE}/t")
    admin.do("DELETE", f"{NAMESPACE}/t?force=true")
    # The consumer comes back, to a topic of the same name with nothing in it.
    assert not client.create_reader("t", pulsar.MessageId.earliest).has_message_available()
    consumer.close()


def test_subscriptions_without_consumers_go_with_their_topic(admin: Admin, client: pulsar.Client) -> None:
    client.subscribe("t", "s").close()
    admin.do("PUT", f"{NAMESPACE}/t/subscription/other")
    admin.do("DELETE", f"{NAMESPACE}/t")
    assert admin.get(NAMESPACE) == []


def test_a_partitioned_topic_in_use_is_not_deleted_in_part(admin: Admin, client: pulsar.Client) -> None:
    admin.do("PUT", f"{NAMESPACE}/p/partitions", 3)
    consumer = client.subscribe("p-partition-2", "s")
    before = admin.state()
    admin.refused(412, "DELETE", f"{NAMESPACE}/p/partitions")
    assert admin.state() == before
    consumer.close()
    admin.do("DELETE", f"{NAMESPACE}/p/partitions")
    assert admin.get(NAMESPACE) == []


def test_the_last_message_is_named(admin: Admin, client: pulsar.Client) -> None:
    admin.do("PUT", f"{NAMESPACE}/t")
    assert admin.get(f"{NAMESPACE}/t/lastMessageId") == {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
    sent = client.create_producer("t").send(b"x")
    assert admin.get(f"{NAMESPACE}/t/lastMessageId") == {
        "ledgerId": sent.ledger_id(),
        "entryId": sent.entry_id(),
        "partitionIndex": -1,
    }


def test_a_terminated_topic_refuses_producers(admin: Admin, client: pulsar.Client) -> None:
    producer = client.create_producer("t")
    sent = producer.send(b"x")
    answer = admin.call("POST", f"{NAMESPACE}/t/terminate")
    assert answer.status == 200
    assert answer.json == {"ledgerId": sent.ledger_id(), "entryId": sent.entry_id(), "partitionIndex": -1}
    with pytest.raises(pulsar.TopicTerminated):
        client.create_producer("t")
    assert admin.call("POST", f"{NAMESPACE}/t/terminate").json == answer.json
    admin.do("PUT", f"{NAMESPACE}/p/partitions", 1)
    admin.refused(405, "POST", f"{NAMESPACE}/p/terminate")
    admin.refused(404, "POST", f"{NAMESPACE}/nothing/terminate")


def test_consumed_ledgers_are_trimmed_on_request(start: Callable[..., Admin]) -> None:
    admin = start()
    admin.do("PUT", f"{NAMESPACE}/t")
    admin.do("PUT", f"{NAMESPACE}/t/subscription/s")
    first, second = admin.write_ledgers(2)
    admin.do("POST", f"{NAMESPACE}/t/trim")
    assert {first, second} <= {row["ledgerId"] for row in admin.get(f"{NAMESPACE}/t/internalStats")["ledgers"]}
    admin.do("POST", f"{NAMESPACE}/t/subscription/s/skip/1")
    admin.do("POST", f"{NAMESPACE}/t/trim")
    kept = {row["ledgerId"] for row in admin.get(f"{NAMESPACE}/t/internalStats")["ledgers"]}
    assert first not in kept
    assert second in kept
    admin.do("PUT", f"{NAMESPACE}/p/partitions", 2)
    admin.do("POST", f"{NAMESPACE}/p/trim")
    admin.refused(404, "POST", f"{NAMESPACE}/nothing/trim")


def test_a_truncated_topic_is_empty_and_usable(admin: Admin, client: pulsar.Client) -> None:
    consumer = client.subscribe("t", "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer("t")
    producer.send(b"old")
    assert consumer.receive(10_000).data() == b"old"
    admin.do("DELETE", f"{NAMESPACE}/t/truncate")
    stats = admin.get(f"{NAMESPACE}/t/stats")
    assert stats["storageSize"] == 0
    assert stats["subscriptions"]["s"]["msgBacklog"] == 0
    assert stats["subscriptions"]["s"]["unackedMessages"] == 0
    producer.send(b"new")
    assert consumer.receive(10_000).data() == b"new"


def test_non_persistent_topics_are_listed_as_empty(admin: Admin) -> None:
    assert admin.get("non-persistent/public/default") == []
    assert admin.get("non-persistent/public/default/partitioned") == []
    admin.refused(404, "GET", "non-persistent/public/nowhere")
    assert "persistent://" in admin.refused(405, "PUT", "non-persistent/public/default/t")
    assert admin.get("namespaces/public/default/topics?mode=NON_PERSISTENT") == []
    admin.refused(400, "GET", "namespaces/public/default/topics?mode=SOME")


def test_a_lookup_returns_the_addresses_of_the_broker(admin: Admin) -> None:
    found = admin.get("/lookup/v2/topic/persistent/public/default/t?authoritative=false")
    assert found["brokerUrl"] == found["nativeUrl"] == admin.service.service_url
    assert found["httpUrl"] == f"http://127.0.0.1:{admin.port}"
    admin.refused(404, "GET", "/lookup/v2/topic/persistent/public/nowhere/t")
    assert admin.get(NAMESPACE) == []


def test_a_client_finds_the_broker_over_http(admin: Admin) -> None:
    client = pulsar.Client(f"http://127.0.0.1:{admin.port}", logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    client.create_producer("t").send(b"x")
    assert admin.get(f"{NAMESPACE}/t/internalStats")["numberOfEntries"] == 1
    client.close()


def test_a_number_of_partitions_may_be_in_quotes(admin: Admin) -> None:
    admin.do("PUT", "persistent/public/default/quoted/partitions", "3")
    assert admin.get("persistent/public/default/quoted/partitions")["partitions"] == 3
    admin.do("POST", "persistent/public/default/quoted/partitions", "4")
    assert admin.get("persistent/public/default/quoted/partitions")["partitions"] == 4


def test_a_listener_that_the_broker_does_not_have_is_refused(admin: Admin) -> None:
    path = "/lookup/v2/topic/persistent/public/default/t"
    assert "listener not found: 'external'" in admin.refused(503, "GET", f"{path}?listenerName=external")


def test_the_transaction_coordinator_has_no_partitions(admin: Admin) -> None:
    assert admin.get("persistent/pulsar/system/transaction_coordinator_assign/partitions")["partitions"] == 0
