from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

import pulsar
import pytest
from pulsar.schema import Double, JsonSchema, Record, StringSchema

from afterglow.ledger.retention import Retention
from afterglow.metadata.names import TopicName
from afterglow.policy.resolver import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.admin.conftest import Admin

    from afterglow.config import BrokerConfig

TOPIC = "persistent/public/default/t"
NAMESPACE = "namespaces/public/default"
NAME = "persistent://public/default/t"
RETENTION = {"retentionTimeInMinutes": 10, "retentionSizeInMB": -1}
PERSISTENCE = {
    "bookkeeperEnsemble": 3,
    "bookkeeperWriteQuorum": 2,
    "bookkeeperAckQuorum": 1,
    "managedLedgerMaxMarkDeleteRate": 0.5,
}


class Reading(Record):  # type: ignore[misc]
    celsius = Double()


@pytest.fixture
def client(admin: Admin) -> Iterator[pulsar.Client]:
    client = pulsar.Client(admin.service.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


@pytest.fixture(autouse=True)
def _topic(request: pytest.FixtureRequest) -> None:
    if "admin" in request.fixturenames:
        request.getfixturevalue("admin").do("PUT", TOPIC)


def policy(admin: Admin) -> BrokerConfig:
    """The policy of the open topic."""
    (topic,) = admin.service.open_topics.values()
    return topic.policy


def stored(admin: Admin) -> dict[str, bytes]:
    """All metadata but the parents that are left when their last child has gone."""
    return {path: value for path, value in admin.state().items() if value}


@pytest.mark.parametrize(
    ("path", "value", "applied"),
    [
        ("retention", RETENTION, {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}),
        ("persistence", PERSISTENCE, None),
        ("maxProducers", 3, 0),
        ("maxConsumers", 3, 0),
        ("maxConsumersPerSubscription", 3, 0),
        ("maxSubscriptionsPerTopic", 3, 0),
        ("maxUnackedMessagesOnConsumer", 3, 50_000),
        ("autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False}, None),
        ("subscriptionTypesEnabled", ["Shared"], ["Exclusive", "Shared", "Failover"]),
        (
            "delayedDelivery",
            {"tickTime": 2000, "active": False, "maxDeliveryDelayInMillis": 10},
            {"tickTime": 1000, "active": True, "maxDeliveryDelayInMillis": 0},
        ),
    ],
)
def test_a_policy_is_set_shown_and_removed(admin: Admin, path: str, value: object, applied: object) -> None:
    unset = b"[]" if path == "subscriptionTypesEnabled" else b""
    path = f"{TOPIC}/{path}"
    assert admin.call("GET", path).body == unset
    if applied is not None:
        assert admin.get(f"{path}?applied=true") == applied
    admin.do("POST", path, value)
    assert admin.get(path) == admin.get(f"{path}?applied=true") == value
    assert admin.call("GET", f"{path}?isGlobal=true").body == unset
    admin.do("DELETE", path)
    assert admin.call("GET", path).body == unset
    admin.refused(404, "POST", path.replace("/t/", "/nowhere/"), value)
    admin.refused(404, "GET", path.replace("/t/", "/nowhere/"))


def test_the_time_to_live_of_a_topic_comes_in_the_query(admin: Admin) -> None:
    admin.do("POST", f"{TOPIC}/messageTTL?messageTTL=7")
    assert admin.get(f"{TOPIC}/messageTTL") == 7
    before = admin.state()
    for wrong in ("?messageTTL=-1", "?messageTTL=1d", ""):
        assert admin.call("POST", f"{TOPIC}/messageTTL{wrong}").status in {400, 412}
    assert admin.state() == before
    admin.do("DELETE", f"{TOPIC}/messageTTL?messageTTL=0")
    admin.do("GET", f"{TOPIC}/messageTTL")


def test_the_topic_wins_over_its_namespace_and_that_over_the_broker(admin: Admin) -> None:
    path = f"{TOPIC}/retention?applied=true"
    assert admin.get(path) == {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    wide = {"retentionTimeInMinutes": 1, "retentionSizeInMB": 2}
    admin.do("POST", f"{NAMESPACE}/retention", wide)
    assert admin.get(path) == wide
    admin.do("POST", f"{TOPIC}/retention", RETENTION)
    assert admin.get(path) == RETENTION
    shown = {row["name"]: row for row in admin.get(f"{TOPIC}/policy")}
    assert shown["defaultRetentionTimeInMinutes"] == {
        "name": "defaultRetentionTimeInMinutes",
        "value": 10,
        "origin": "topic",
    }
    admin.do("DELETE", f"{TOPIC}/retention")
    assert admin.get(path) == wide


def test_a_global_policy_applies_unless_this_cluster_overrides_it(admin: Admin) -> None:
    everywhere = {"retentionTimeInMinutes": 1, "retentionSizeInMB": 2}
    admin.do("POST", f"{TOPIC}/retention?isGlobal=true", everywhere)
    admin.do("GET", f"{TOPIC}/retention")
    assert admin.get(f"{TOPIC}/retention?isGlobal=true") == everywhere
    assert admin.get(f"{TOPIC}/retention?applied=true") == everywhere
    admin.do("POST", f"{TOPIC}/retention", RETENTION)
    assert admin.get(f"{TOPIC}/retention?applied=true") == RETENTION
    assert admin.get(f"{TOPIC}/retention?isGlobal=true") == everywhere
    admin.do("DELETE", f"{TOPIC}/retention?isGlobal=true")
    admin.do("GET", f"{TOPIC}/retention?isGlobal=true")
    assert admin.get(f"{TOPIC}/retention") == RETENTION


def test_offload_policies_have_both_scopes_too(admin: Admin) -> None:
    threshold = {"managedLedgerOffloadThresholdInBytes": 5}
    admin.do("POST", f"{TOPIC}/offloadPolicies?isGlobal=true", threshold)
    admin.do("GET", f"{TOPIC}/offloadPolicies")
    key = "managedLedgerOffloadThresholdInBytes"
    assert admin.get(f"{TOPIC}/offloadPolicies?isGlobal=true")[key] == 5
    assert admin.get(f"{TOPIC}/offloadPolicies?applied=true")[key] == 5
    admin.do("POST", f"{TOPIC}/offloadPolicies", {key: 6})
    assert admin.get(f"{TOPIC}/offloadPolicies?applied=true")[key] == 6


def test_all_policies_of_a_topic_are_removed_at_once(admin: Admin) -> None:
    before = stored(admin)
    admin.do("POST", f"{TOPIC}/retention?isGlobal=true", RETENTION)
    admin.do("POST", f"{TOPIC}/maxProducers", 3)
    admin.do("POST", f"{TOPIC}/offloadPolicies", {"managedLedgerOffloadThresholdInBytes": 5})
    admin.do("DELETE", f"{TOPIC}/policies")
    assert stored(admin) == before


def test_a_partition_has_the_policies_of_its_topic(admin: Admin) -> None:
    admin.do("PUT", "persistent/public/default/p/partitions", 2)
    before = admin.state()
    partition = "persistent/public/default/p-partition-0/retention"
    assert "persistent://public/default/p" in admin.refused(412, "POST", partition, RETENTION)
    admin.refused(412, "DELETE", partition)
    assert admin.state() == before
    admin.do("POST", "persistent/public/default/p/retention", RETENTION)
    assert admin.get(partition) == RETENTION


def test_open_topics_apply_a_change_at_once(admin: Admin, client: pulsar.Client) -> None:
    client.create_producer(NAME)
    assert policy(admin) == resolve(admin.service.config, {}, {})
    admin.do("POST", f"{TOPIC}/retention", RETENTION)
    admin.do("POST", f"{TOPIC}/persistence", PERSISTENCE)
    assert Retention.from_config(policy(admin)) == Retention.of(10, -1)
    assert policy(admin).managed_ledger_default_mark_delete_rate_limit == 0.5
    admin.do("DELETE", f"{TOPIC}/policies")
    assert policy(admin) == resolve(admin.service.config, {}, {})


@pytest.mark.parametrize(
    ("status", "path", "value"),
    [
        (400, "retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 1}),
        (400, "retention", None),
        (412, "maxProducers", -1),
        (400, "maxProducers", "3"),
        (400, "autoSubscriptionCreation", {}),
        (400, "subscriptionTypesEnabled", ["Exclusive", "Sideways"]),
        (412, "subscriptionTypesEnabled", ["Key_Shared"]),
        (400, "delayedDelivery", {"active": "perhaps"}),
        (412, "delayedDelivery", {"active": True, "maxDeliveryDelayInMillis": -1}),
        (412, "retention?isGlobal=true", {"retentionTimeInMinutes": -2, "retentionSizeInMB": 1}),
    ],
)
def test_an_invalid_policy_is_refused(admin: Admin, status: int, path: str, value: object) -> None:
    before = admin.state()
    admin.refused(status, "POST", f"{TOPIC}/{path}", value)
    assert admin.state() == before


def test_the_strategy_of_schemas_is_the_topics_or_the_namespaces_or_the_brokers(admin: Admin) -> None:
    mine, of_all = f"{TOPIC}/schemaCompatibilityStrategy", f"{NAMESPACE}/schemaCompatibilityStrategy"
    older = f"{NAMESPACE}/schemaAutoUpdateCompatibilityStrategy"

    def held() -> object:
        return admin.get(f"{mine}?applied=true")

    admin.do("GET", mine)
    assert (admin.get(of_all), held()) == ("UNDEFINED", "FULL")
    for word, strategy in (("Forward", "FORWARD"), ("AutoUpdateDisabled", "ALWAYS_INCOMPATIBLE")):
        admin.do("PUT", older, word)
        assert (admin.get(older), held()) == (word, strategy)
    admin.do("PUT", of_all, "BACKWARD_TRANSITIVE")
    assert held() == "BACKWARD_TRANSITIVE"
    admin.do("PUT", mine, "FORWARD_TRANSITIVE")
    assert (admin.get(mine), held()) == ("FORWARD_TRANSITIVE", "FORWARD_TRANSITIVE")
    admin.do("PUT", mine, "UNDEFINED")
    admin.do("PUT", of_all, "UNDEFINED")
    assert (admin.get(of_all), held()) == ("UNDEFINED", "ALWAYS_INCOMPATIBLE")
    for path in (mine, of_all, older):
        assert "unknown s" in admin.refused(400, "PUT", path, "SIDEWAYS")


def test_an_open_topic_applies_another_strategy_at_once(admin: Admin, client: pulsar.Client) -> None:
    client.create_producer(NAME, schema=StringSchema())
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(NAME, schema=JsonSchema(Reading))
    admin.do("PUT", f"{TOPIC}/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")
    client.create_producer(NAME, schema=JsonSchema(Reading))


@pytest.mark.parametrize("path", [TOPIC, NAMESPACE])
def test_a_topic_with_a_schema_can_refuse_producers_without(admin: Admin, client: pulsar.Client, path: str) -> None:
    assert admin.get(f"{path}/schemaValidationEnforced") is False
    admin.do("POST", f"{path}/schemaValidationEnforced", body=True)
    assert admin.get(f"{path}/schemaValidationEnforced") is True
    assert admin.get(f"{TOPIC}/schemaValidationEnforced?applied=true") is True
    client.create_producer(NAME)
    client.create_producer(NAME, schema=JsonSchema(Reading))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(NAME)
    admin.do("POST", f"{path}/schemaValidationEnforced", body=False)
    client.create_producer(NAME)


# --- limits, at each level ---


@pytest.mark.parametrize("path", [f"{TOPIC}/maxProducers", f"{NAMESPACE}/maxProducersPerTopic"])
def test_the_limit_of_producers_is_enforced(admin: Admin, client: pulsar.Client, path: str) -> None:
    admin.do("POST", path, 1)
    client.create_producer(NAME)
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(NAME)
    admin.do("DELETE", path)
    client.create_producer(NAME)


@pytest.mark.parametrize("limit", ["maxConsumers", "maxConsumersPerSubscription"])
def test_the_limit_of_consumers_is_enforced(admin: Admin, client: pulsar.Client, limit: str) -> None:
    admin.do("POST", f"{TOPIC}/{limit}", 1)
    client.subscribe(NAME, "s", pulsar.ConsumerType.Shared)
    before = admin.state()
    with pytest.raises(pulsar.PulsarException):
        client.subscribe(NAME, "s" if "Per" in limit else "other", pulsar.ConsumerType.Shared)
    assert admin.state() == before
    assert admin.get(f"{TOPIC}/subscriptions") == ["s"]


def test_the_limit_of_subscriptions_is_enforced(admin: Admin, client: pulsar.Client) -> None:
    admin.do("POST", f"{TOPIC}/maxSubscriptionsPerTopic", 1)
    admin.do("PUT", f"{TOPIC}/subscription/s")
    client.subscribe(NAME, "s")
    before = admin.state()
    with pytest.raises(pulsar.PulsarException):
        client.subscribe(NAME, "other")
    assert "maxSubscriptionsPerTopic" in admin.refused(412, "PUT", f"{TOPIC}/subscription/other")
    assert admin.state() == before


def test_creating_a_subscription_does_not_block_others(admin: Admin) -> None:
    admin.do("POST", f"{TOPIC}/maxSubscriptionsPerTopic", 3)
    admin.do("PUT", f"{TOPIC}/subscription/first")
    with admin.held("/t/slow") as hold, ThreadPoolExecutor(2) as pool:
        making = pool.submit(admin.call, "PUT", f"{TOPIC}/subscription/slow")
        hold.reached()
        # Both read the topic's subscriptions in the event loop.
        asked = pool.submit(admin.call, "POST", f"{TOPIC}/maxSubscriptionsPerTopic", 1)
        done, _ = wait([asked], 5)
        hold.end()
        assert done
        assert making.result().status == 204
    assert "maxSubscriptionsPerTopic" in admin.refused(412, "PUT", f"{TOPIC}/subscription/other")
    assert admin.get(f"{TOPIC}/subscriptions") == ["first", "slow"]


def test_only_the_types_that_are_enabled_subscribe(admin: Admin, client: pulsar.Client) -> None:
    admin.do("POST", f"{NAMESPACE}/subscriptionTypesEnabled", ["Shared"])
    with pytest.raises(pulsar.PulsarException):
        client.subscribe(NAME, "s", pulsar.ConsumerType.Exclusive)
    assert admin.get(f"{TOPIC}/subscriptions") == []
    client.subscribe(NAME, "s", pulsar.ConsumerType.Shared)


def test_a_topic_can_disable_automatic_subscription_creation(admin: Admin, client: pulsar.Client) -> None:
    admin.do("POST", f"{TOPIC}/autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False})
    # It tries again until its time is over, since the subscription might come.
    hasty = pulsar.Client(admin.service.service_url, operation_timeout_seconds=1)
    with pytest.raises(pulsar.PulsarException):
        hasty.subscribe(NAME, "s")
    hasty.close()
    admin.do("PUT", f"{TOPIC}/subscription/s")
    client.subscribe(NAME, "s")


def test_the_limit_of_unacknowledged_messages_is_enforced(admin: Admin, client: pulsar.Client) -> None:
    admin.do("POST", f"{TOPIC}/maxUnackedMessagesOnConsumer", 2)
    consumer = client.subscribe(NAME, "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer(NAME, batching_enabled=False)
    for number in range(4):
        producer.send(bytes([number]))
    held = [consumer.receive(5_000) for _ in range(2)]
    with pytest.raises(pulsar.Timeout):
        consumer.receive(100)
    admin.do("DELETE", f"{TOPIC}/maxUnackedMessagesOnConsumer")
    assert [message.data() for message in (*held, consumer.receive(5_000), consumer.receive(5_000))] == [
        b"\0",
        b"\1",
        b"\2",
        b"\3",
    ]


def test_a_namespace_controls_automatic_topic_creation(admin: Admin, client: pulsar.Client) -> None:
    path = f"{NAMESPACE}/autoTopicCreation"
    admin.do("GET", path)
    admin.do("POST", path, {"allowAutoTopicCreation": False})
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("new")
    override = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 2}
    admin.do("POST", path, override)
    assert admin.get(path) == override
    client.create_producer("new")
    assert admin.get("persistent/public/default/new/partitions")["partitions"] == 2
    before = admin.state()
    for wrong in (
        {},
        {"allowAutoTopicCreation": True, "topicType": "round"},
        {"allowAutoTopicCreation": True, "topicType": "partitioned"},
        {"allowAutoTopicCreation": True, "topicType": "non-partitioned", "defaultNumPartitions": 2},
    ):
        assert admin.call("POST", path, wrong).status in {400, 412}
    assert admin.state() == before


def test_the_limit_of_topics_is_enforced(admin: Admin, client: pulsar.Client) -> None:
    path = f"{NAMESPACE}/maxTopicsPerNamespace"
    assert admin.get(path) == 0
    admin.do("POST", path, 2)
    before = stored(admin)
    assert "maxTopicsPerNamespace" in admin.refused(412, "PUT", "persistent/public/default/p/partitions", 2)
    admin.do("PUT", "persistent/public/default/p/partitions", 1)
    for call in (("PUT", "persistent/public/default/u"), ("POST", "persistent/public/default/p/partitions", 2)):
        assert "maxTopicsPerNamespace" in admin.refused(412, *call)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("new")
    admin.do("DELETE", "persistent/public/default/p/partitions")
    assert admin.get("persistent/public/default") == [NAME]
    assert stored(admin) == before
    admin.do("DELETE", path)
    admin.do("PUT", "persistent/public/default/p/partitions", 3)


def test_limits_of_the_broker_apply_without_policies(start: Callable[..., Admin]) -> None:
    admin = start(max_topics_per_namespace=1, max_subscriptions_per_topic=1)
    admin.do("PUT", TOPIC)
    admin.refused(412, "PUT", "persistent/public/default/u")
    admin.do("PUT", f"{TOPIC}/subscription/s")
    admin.refused(412, "PUT", f"{TOPIC}/subscription/other")


@pytest.mark.parametrize(("limit", "most"), [(0, 10_000), (4, 4)])
def test_the_limit_of_partitions_applies_to_automatic_creation(
    start: Callable[..., Admin], limit: int, most: int
) -> None:
    admin = start(max_num_partitions_per_partitioned_topic=limit)
    creation = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": most + 1}
    before = admin.state()
    reason = admin.refused(412, "POST", f"{NAMESPACE}/autoTopicCreation", creation)
    assert f"from 1 to {most}, not {most + 1}" in reason
    whole = {"autoTopicCreationOverride": creation}
    assert admin.refused(412, "PUT", "namespaces/public/other", whole) == reason
    assert admin.state() == before
    # Stored by a release without the limit, or while the setting was higher.
    name = TopicName.parse(NAME)
    admin.service.catalog.update_policies(name.namespace, lambda _old: whole)
    before = admin.state()
    reason = admin.refused(412, "GET", f"{TOPIC}/partitions?checkAllowAutoCreation=true")
    assert "defaultNumPartitions" in reason
    assert admin.state() == before
    admin.do("POST", f"{NAMESPACE}/autoTopicCreation", {**creation, "defaultNumPartitions": 2})
    assert admin.get(f"{TOPIC}/partitions?checkAllowAutoCreation=true")["partitions"] == 2
