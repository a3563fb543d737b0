"""Policies that endanger unread entries: what is read with which origin, and what is a risk."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from afterglow.attach import (
    Consequence,
    SettingsReader,
    TopicSettings,
    WhenBehind,
    check,
    exclusion_rule,
    is_attachable,
    release_bytes,
)
from afterglow.attach.cluster_checks import spares_expiration, spares_ttl
from afterglow.attach.cluster_settings import (
    BacklogQuota,
    BrokerSettings,
    QuotaPolicy,
    QuotaType,
    Retention,
    Setting,
    Unknown,
)
from afterglow.errors import AccessDenied, CorruptMetadata
from afterglow.metadata.names import TopicName
from afterglow.offload.planner import is_system_topic

if TYPE_CHECKING:
    from afterglow.metadata.names import NamespaceName

TOPIC = "persistent://public/default/t"
SUBSCRIPTION = "afterglow"
FORBIDDEN = Unknown("GET … failed with status 403")


def broker(version: str | None = "4.0.8", **runtime: str) -> BrokerSettings:
    return BrokerSettings(version, runtime)


HARMLESS = TopicSettings(
    TOPIC,
    broker(),
    ttl_s=Setting(0, "broker"),
    backlog_quotas=(),
    subscription_expiration_minutes=Setting(0, "broker"),
    retention=Setting(Retention(0, 0), "broker"),
    max_subscriptions=Setting(0, "broker"),
    subscriptions=(),
    auth_mode=Setting("None", "namespace public/default"),
    auto_creation=Setting(value=True, origin="broker"),
)
SPARED = {"additionalSystemCursorNames": "[audit, afterglow]"}


def quota(kind: QuotaType, limit: int, policy: QuotaPolicy) -> tuple[Setting[BacklogQuota], ...]:
    return (Setting(BacklogQuota(kind, limit, policy), "namespace public/default"),)


SIZE, AGE = QuotaType.SIZE, QuotaType.AGE
HOLD, REFUSE, EVICT = QuotaPolicy.HOLD_PRODUCERS, QuotaPolicy.REFUSE_PRODUCERS, QuotaPolicy.EVICT
NO_CHECK = {"backlogQuotaCheckEnabled": "false"}
TTL = Setting(600, "topic")
EXPIRY = Setting(1440, "namespace public/default")
PREFIX = Setting("Prefix", "namespace public/default")
LIMITED = Setting(2, "broker")
DROPS, BLOCKS = Consequence.DROPS_ENTRIES, Consequence.BLOCKS_PRODUCERS
DELETES, REFUSES = Consequence.DELETES_SUBSCRIPTION, Consequence.REFUSES_SUBSCRIPTION
UNKNOWN = Consequence.UNKNOWN


@pytest.mark.parametrize(
    ("changes", "options", "expected"),
    [
        ({}, {}, []),
        # message TTL
        ({"ttl_s": TTL}, {}, [("messageTTL", "600 s", "topic", DROPS)]),
        ({"ttl_s": TTL, "broker": broker("4.0.8", **SPARED)}, {}, []),
        ({"ttl_s": TTL, "broker": broker("3.0.9", **SPARED)}, {}, [("messageTTL", "600 s", "topic", DROPS)]),
        ({"ttl_s": TTL, "broker": broker(None, **SPARED)}, {}, [("messageTTL", "600 s", "topic", DROPS)]),
        (
            {"ttl_s": TTL, "broker": broker("4.0.8", additionalSystemCursorNames="[afterglow-2]")},
            {},
            [("messageTTL", "600 s", "topic", DROPS)],
        ),
        (
            {"ttl_s": TTL, "broker": BrokerSettings("4.0.8", FORBIDDEN)},
            {},
            [("messageTTL", "600 s", "topic", DROPS)],
        ),
        ({"ttl_s": FORBIDDEN}, {}, [("messageTTL", "unknown", FORBIDDEN.reason, UNKNOWN)]),
        # inactivity expiry
        (
            {"subscription_expiration_minutes": EXPIRY},
            {},
            [("subscriptionExpirationTimeMinutes", "1440", "namespace public/default", DELETES)],
        ),
        (
            {"subscription_expiration_minutes": EXPIRY, "broker": broker("4.0.8", **SPARED)},
            {},
            [("subscriptionExpirationTimeMinutes", "1440", "namespace public/default", DELETES)],
        ),
        ({"subscription_expiration_minutes": EXPIRY, "broker": broker("4.0.13", **SPARED)}, {}, []),
        (
            {"subscription_expiration_minutes": EXPIRY, "broker": broker("4.0.13")},
            {},
            [("subscriptionExpirationTimeMinutes", "1440", "namespace public/default", DELETES)],
        ),
        (
            {"subscription_expiration_minutes": FORBIDDEN},
            {},
            [("subscriptionExpirationTimeMinutes", "unknown", FORBIDDEN.reason, UNKNOWN)],
        ),
        # backlog quotas
        (
            {"backlog_quotas": quota(SIZE, 100, HOLD)},
            {},
            [
                (
                    "backlogQuota[destination_storage]",
                    "100 bytes producer_request_hold",
                    "namespace public/default",
                    BLOCKS,
                )
            ],
        ),
        (
            {"backlog_quotas": quota(SIZE, 100, REFUSE)},
            {},
            [("backlogQuota[destination_storage]", "100 bytes producer_exception", "namespace public/default", BLOCKS)],
        ),
        ({"backlog_quotas": quota(SIZE, 100, HOLD)}, {"when_behind": WhenBehind.RELEASE}, []),
        (
            {"backlog_quotas": quota(AGE, 60, HOLD)},
            {"when_behind": WhenBehind.RELEASE},
            [("backlogQuota[message_age]", "60 s producer_request_hold", "namespace public/default", BLOCKS)],
        ),
        (
            {"backlog_quotas": quota(SIZE, 100, EVICT)},
            {"when_behind": WhenBehind.RELEASE},
            [
                (
                    "backlogQuota[destination_storage]",
                    "100 bytes consumer_backlog_eviction",
                    "namespace public/default",
                    DROPS,
                )
            ],
        ),
        (
            {"backlog_quotas": quota(AGE, 60, EVICT), "broker": broker("4.2.4", **SPARED)},
            {},
            [("backlogQuota[message_age]", "60 s consumer_backlog_eviction", "namespace public/default", DROPS)],
        ),
        ({"backlog_quotas": quota(SIZE, 100, EVICT), "broker": broker(**NO_CHECK)}, {}, []),
        (
            {"backlog_quotas": quota(AGE, 60, HOLD), "broker": broker(**NO_CHECK)},
            {},
            [("backlogQuota[message_age]", "60 s producer_request_hold", "namespace public/default", BLOCKS)],
        ),
        ({"backlog_quotas": FORBIDDEN}, {}, [("backlogQuota", "unknown", FORBIDDEN.reason, UNKNOWN)]),
        # limits of subscriptions
        (
            {"max_subscriptions": LIMITED, "subscriptions": ("a", "b")},
            {},
            [("maxSubscriptionsPerTopic", "2", "broker", REFUSES)],
        ),
        ({"max_subscriptions": LIMITED, "subscriptions": ("a",)}, {}, []),
        ({"max_subscriptions": LIMITED, "subscriptions": ("a", "b", SUBSCRIPTION)}, {}, []),
        (
            {"max_subscriptions": LIMITED, "subscriptions": FORBIDDEN},
            {},
            [("maxSubscriptionsPerTopic", "2", "broker", UNKNOWN)],
        ),
        (
            {"max_subscriptions": FORBIDDEN},
            {},
            [("maxSubscriptionsPerTopic", "unknown", FORBIDDEN.reason, UNKNOWN)],
        ),
        # names of subscriptions
        (
            {"auth_mode": PREFIX},
            {"role": "tier"},
            [("subscription_auth_mode", "Prefix", "namespace public/default", REFUSES)],
        ),
        ({"auth_mode": PREFIX}, {"role": "after"}, []),
        ({"auth_mode": PREFIX}, {}, [("subscription_auth_mode", "Prefix", "namespace public/default", UNKNOWN)]),
        ({"auth_mode": PREFIX, "broker": broker(authorizationEnabled="false")}, {"role": "tier"}, []),
        ({"auth_mode": FORBIDDEN}, {}, [("subscription_auth_mode", "unknown", FORBIDDEN.reason, UNKNOWN)]),
        # subscriptions that a consumer may not create
        (
            {"auto_creation": Setting(value=False, origin="broker")},
            {},
            [("allowAutoSubscriptionCreation", "false", "broker", REFUSES)],
        ),
        ({"auto_creation": Setting(value=False, origin="broker"), "subscriptions": (SUBSCRIPTION,)}, {}, []),
        # retention neither holds back nor endangers unread entries
        ({"retention": FORBIDDEN}, {}, []),
    ],
)
def test_a_risk_names_policy_value_origin_and_consequence(
    changes: dict[str, Any], options: dict[str, Any], expected: list[tuple[str, str, str, Consequence]]
) -> None:
    risks = check(replace(HARMLESS, **changes), SUBSCRIPTION, **options)
    assert [(risk.policy, risk.value, risk.origin, risk.consequence) for risk in risks] == expected
    for risk in risks:
        assert risk.topic == TOPIC
        assert risk.detail
        assert risk.fix
        assert str(risk).endswith(f"{risk.fix}, or accept it with --accept-risk")


@pytest.mark.parametrize(
    ("changes", "options", "texts"),
    [
        ({"ttl_s": TTL}, {}, ["older than 600 s", "'afterglow'", "add afterglow to additionalSystemCursorNames"]),
        ({"ttl_s": TTL, "broker": BrokerSettings("4.0.8", FORBIDDEN)}, {}, ["cannot be read: GET … failed"]),
        (
            {"subscription_expiration_minutes": EXPIRY, "broker": broker("4.0.8", **SPARED)},
            {},
            ["is stopped for 1440 minutes", "release 4.0.8", "apache/pulsar#26149", "upgrade to 4.0.13"],
        ),
        (
            {"subscription_expiration_minutes": EXPIRY, "broker": broker("4.2.4")},
            {},
            ["add afterglow to additionalSystemCursorNames", "set-subscription-expiration-time --time 0"],
        ),
        ({"backlog_quotas": quota(SIZE, 100, HOLD)}, {}, ["disconnected", "100 bytes behind", "--when-behind release"]),
        (
            {"backlog_quotas": quota(AGE, 9, REFUSE), "broker": broker(**NO_CHECK)},
            {},
            ["new producers are refused", "9 s behind", "remove-backlog-quota --type message_age"],
        ),
        ({"auth_mode": PREFIX}, {"role": "tier"}, ["the role 'tier'", "--subscription tier-afterglow"]),
        ({"max_subscriptions": LIMITED, "subscriptions": ("a", "b")}, {}, ["has 2 subscriptions", "at least 3"]),
        ({"ttl_s": FORBIDDEN}, {}, ["administers tenant 'public'", "superuser"]),
    ],
)
def test_a_risk_says_what_may_happen_and_how_to_fix_it(
    changes: dict[str, Any], options: dict[str, Any], texts: list[str]
) -> None:
    (risk,) = check(replace(HARMLESS, **changes), SUBSCRIPTION, **options)
    for text in texts:
        assert text in str(risk)


def test_every_policy_of_a_topic_is_checked() -> None:
    everything = replace(
        HARMLESS,
        ttl_s=TTL,
        subscription_expiration_minutes=EXPIRY,
        backlog_quotas=quota(SIZE, 5, HOLD) + quota(AGE, 5, EVICT),
        auth_mode=PREFIX,
    )
    assert {risk.consequence for risk in check(everything, SUBSCRIPTION)} == {DROPS, BLOCKS, DELETES, UNKNOWN}
    assert len(check(everything, SUBSCRIPTION)) == 5


@pytest.mark.parametrize(
    ("version", "ttl", "expiration"),
    [
        ("3.3.9", False, False),
        ("4.0.0", True, False),
        ("4.0.8", True, False),
        ("4.0.12", True, False),
        ("4.0.13", True, True),
        ("4.1.3", True, False),
        ("4.2.3", True, False),
        ("4.2.4", True, True),
        ("4.0.13.2-vendor", True, True),
        ("5.0.0-M1", True, False),
        ("5.0.0", True, True),
        ("5.1.0-SNAPSHOT", True, True),
        ("unknown", False, False),
        (None, False, False),
    ],
)
def test_releases_are_known_that_spare_system_cursors(version: str | None, ttl: bool, expiration: bool) -> None:  # noqa: FBT001
    assert (spares_ttl(version), spares_expiration(version)) == (ttl, expiration)


@pytest.mark.parametrize(
    ("quotas", "expected"),
    [
        ((), None),
        (quota(SIZE, 1000, HOLD), 700),
        (quota(SIZE, 1000, EVICT), 700),
        (quota(AGE, 1000, HOLD), None),
        (quota(SIZE, 1000, HOLD) + quota(AGE, 10, HOLD), 700),
        (quota(SIZE, 0, HOLD), 0),
        (FORBIDDEN, None),
    ],
)
def test_the_hold_is_given_up_at_seventy_percent_of_a_size_quota(quotas: Any, expected: int | None) -> None:
    assert release_bytes(quotas) == expected


# --- topics that are left out ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "rule"),
    [
        ("persistent://public/default/t", None),
        ("persistent://public/default/t-partition-3", None),
        ("persistent://public/default/mine__", None),
        ("persistent://public/__kafka/__consumer_offsets-partition-0", "names that begin with __"),
        ("non-persistent://public/default/t", "non-persistent"),
        ("persistent://public/default/__change_events", "__change_events"),
        ("persistent://public/default/__change_events-partition-0", "__change_events"),
        ("persistent://public/default/__transaction_buffer_snapshot", "transaction buffer"),
        ("persistent://public/default/__transaction_buffer_snapshot_segments", "transaction buffer"),
        ("persistent://public/default/__transaction_buffer_snapshot_indexes-partition-1", "transaction buffer"),
        ("persistent://public/default/t-sub__transaction_pending_ack", "log of transactions"),
        ("persistent://public/default/__transaction_log_7", "log of transactions"),
        ("persistent://pulsar/system/transaction_coordinator_assign-partition-0", "tenant pulsar"),
        ("persistent://pulsar/127.0.0.1:8080/healthcheck", "tenant pulsar"),
        ("persistent://sla-monitor/standalone/127.0.0.1:8080/t", "tenant sla-monitor"),
    ],
)
def test_topics_of_the_system_are_left_out_by_a_named_rule(topic: str, rule: str | None) -> None:
    name = TopicName.parse(topic)
    found = exclusion_rule(name)
    assert is_attachable(name) == (found is None) == (rule is None)
    if rule is not None:
        assert rule in str(found)
    else:
        assert not is_system_topic(name), "it would be held, and never streamed"


# --- reading --------------------------------------------------------------------------------------------------------


class Api:
    """An admin API with given policies; what is None is forbidden."""

    def __init__(
        self,
        runtime: dict[str, Any] | None = None,
        namespace: dict[str, Any] | None = None,
        topic: dict[tuple[str, bool], Any] | None = None,
    ) -> None:
        self.runtime, self.namespace, self.topic = runtime, namespace, topic
        self.requests: list[str] = []

    def version(self) -> str | None:
        return "4.0.8"

    def runtime_configuration(self) -> dict[str, Any] | None:
        return self._permitted("runtime", self.runtime)

    def namespace_policies(self, namespace: NamespaceName) -> dict[str, Any] | None:
        return self._permitted(str(namespace), self.namespace)

    def topic_policy(self, topic: TopicName, policy: str, *, is_global: bool = False) -> Any:
        return self._permitted(f"{topic} {policy}", self.topic).get((policy, is_global))

    def subscriptions(self, topic: TopicName) -> tuple[str, ...]:
        self._permitted("subscriptions", self.topic)
        return ("a",)

    def _permitted(self, request: str, value: dict[Any, Any] | None) -> dict[Any, Any]:
        self.requests.append(request)
        if value is None:
            raise AccessDenied(f"{request} failed with status 403")
        return value


def read(api: Api) -> TopicSettings:
    (settings,) = SettingsReader(api).read([TopicName.parse(TOPIC)])
    return settings


RUNTIME = {
    "ttlDurationDefaultInSeconds": "7",
    "subscriptionExpirationTimeMinutes": "8",
    "maxSubscriptionsPerTopic": "9",
    "defaultRetentionTimeInMinutes": "10",
    "defaultRetentionSizeInMB": "-1",
    "backlogQuotaDefaultLimitBytes": "-1",
    "backlogQuotaDefaultLimitGB": "2.0",
    "backlogQuotaDefaultLimitSecond": "60",
    "backlogQuotaDefaultRetentionPolicy": "consumer_backlog_eviction",
    "additionalSystemCursorNames": "[]",
    "allowAutoSubscriptionCreation": "false",
}
OF_NAMESPACE = {
    "message_ttl_in_seconds": 17,
    "subscription_expiration_time_minutes": 0,
    "max_subscriptions_per_topic": 19,
    "retention_policies": {"retentionTimeInMinutes": 20, "retentionSizeInMB": 21},
    "backlog_quota_map": {"destination_storage": {"limitSize": 100, "limitTime": -1, "policy": "producer_exception"}},
    "subscription_auth_mode": "Prefix",
    "autoSubscriptionCreationOverride": {"allowAutoSubscriptionCreation": True},
}


def test_settings_of_the_brokers_apply_where_nothing_else_is_set() -> None:
    settings = read(Api(RUNTIME, {}, {}))
    assert settings.ttl_s == Setting(7, "broker")
    assert settings.subscription_expiration_minutes == Setting(8, "broker")
    assert settings.max_subscriptions == Setting(9, "broker")
    assert settings.retention == Setting(Retention(10, -1), "broker")
    assert settings.backlog_quotas == (
        Setting(BacklogQuota(SIZE, 2 << 30, EVICT), "broker"),
        Setting(BacklogQuota(AGE, 60, EVICT), "broker"),
    )
    assert settings.auth_mode == Setting("None", "default of Pulsar")
    assert settings.auto_creation == Setting(value=False, origin="broker")
    assert settings.subscriptions == ("a",)
    assert settings.broker.system_cursors == frozenset()


def test_policies_of_the_namespace_precede_settings_of_the_brokers() -> None:
    settings = read(Api(RUNTIME, OF_NAMESPACE, {}))
    origin = "namespace public/default"
    assert settings.ttl_s == Setting(17, origin)
    assert settings.subscription_expiration_minutes == Setting(0, origin), "0 is a value"
    assert settings.max_subscriptions == Setting(19, origin)
    assert settings.retention == Setting(Retention(20, 21), origin)
    assert settings.backlog_quotas == (
        Setting(BacklogQuota(SIZE, 100, REFUSE), origin),
        Setting(BacklogQuota(AGE, 60, EVICT), "broker"),
    ), "each type by itself"
    assert settings.auth_mode == Setting("Prefix", origin)
    assert settings.auto_creation == Setting(value=True, origin=origin)


def test_policies_of_the_topic_precede_those_of_the_namespace() -> None:
    of_topic = {
        ("messageTTL", False): 27,
        ("maxSubscriptionsPerTopic", False): 0,
        ("retention", False): {"retentionTimeInMinutes": 30, "retentionSizeInMB": 31},
        ("backlogQuotaMap", False): {"destination_storage": {"limitSize": 5, "policy": "producer_request_hold"}},
    }
    settings = read(Api(RUNTIME, OF_NAMESPACE, of_topic))
    assert settings.ttl_s == Setting(27, "topic")
    assert settings.max_subscriptions == Setting(0, "topic")
    assert settings.retention == Setting(Retention(30, 31), "topic")
    assert settings.backlog_quotas == (
        Setting(BacklogQuota(SIZE, 5, HOLD), "topic"),
        Setting(BacklogQuota(AGE, 60, EVICT), "broker"),
    )


def test_global_topic_policies_are_read_where_a_namespace_is_replicated() -> None:
    of_topic = {("messageTTL", True): 5}
    assert read(Api(RUNTIME, {"replication_clusters": ["a", "b"]}, of_topic)).ttl_s == Setting(5, "topic (global)")
    assert read(Api(RUNTIME, {"replication_clusters": ["a"]}, of_topic)).ttl_s == Setting(7, "broker")


def test_a_token_that_may_not_read_the_brokers_settings_still_shows_the_policies() -> None:
    settings = read(Api(None, OF_NAMESPACE, {}))
    assert settings.ttl_s == Setting(17, "namespace public/default")
    assert isinstance(settings.broker.runtime, Unknown)
    risks = {risk.policy: risk for risk in check(settings, SUBSCRIPTION, role="afterglow")}
    assert set(risks) == {"messageTTL", "backlogQuota"}, "the quota by age is that of the brokers, which is not known"
    assert risks["backlogQuota"].origin == "runtime failed with status 403"


def test_a_token_that_may_read_nothing_leaves_every_risk_open() -> None:
    risks = check(read(Api()), SUBSCRIPTION)
    assert {risk.consequence for risk in risks} == {UNKNOWN}
    assert len(risks) == 5


def test_partitions_of_a_topic_are_read_once_and_a_namespace_once() -> None:
    api = Api(RUNTIME, {}, {})
    topics = [TopicName.parse(f"t-partition-{number}") for number in range(4)] + [TopicName.parse("u")]
    settings = SettingsReader(api).read(topics)
    assert [each.topic for each in settings] == [TOPIC, "persistent://public/default/u"]
    assert api.requests.count("runtime") == 1
    assert api.requests.count("public/default") == 1
    assert api.requests.count(f"{TOPIC} messageTTL") == 1


@pytest.mark.parametrize(
    "namespace",
    [
        {"message_ttl_in_seconds": "soon"},
        {"retention_policies": 5},
        {"backlog_quota_map": {"message_age": {"limitTime": 5, "policy": "unheard_of"}}},
    ],
)
def test_a_policy_that_cannot_be_understood_is_an_error(namespace: dict[str, Any]) -> None:
    with pytest.raises(CorruptMetadata, match="namespace public/default"):
        read(Api(RUNTIME, namespace, {}))
