from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from afterglow.broker.policies import SUBSCRIPTION_TYPES, SchemaPolicies, resolve, resolve_namespace
from afterglow.config import BrokerConfig
from afterglow.config.choices import SchemaCompatibilityStrategy, TopicType
from afterglow.ledger.retention import Retention

CONFIG = BrokerConfig(
    default_retention_time_in_minutes=7,
    default_retention_size_in_mb=8,
    ttl_duration_default_in_seconds=9,
    max_producers_per_topic=3,
    allow_auto_subscription_creation=False,
)
NAMESPACE: dict[str, Any] = {
    "retention_policies": {"retentionTimeInMinutes": -1, "retentionSizeInMB": 5},
    "message_ttl_in_seconds": 0,
    "max_producers_per_topic": 4,
    "autoSubscriptionCreationOverride": {"allowAutoSubscriptionCreation": True},
    "subscription_types_enabled": ["Shared"],
}


def test_what_is_not_set_is_the_brokers_default() -> None:
    found = resolve(CONFIG, {}, {})
    assert found.retention == Retention.of(7, 8)
    assert found.ttl_ms == 9_000
    assert found.max_producers == 3
    assert not found.auto_subscription_creation
    assert found.subscription_types == set(SUBSCRIPTION_TYPES)


def test_what_the_namespace_sets_wins() -> None:
    found = resolve(CONFIG, NAMESPACE, {})
    assert found.retention == Retention.of(-1, 5)
    assert found.ttl_ms == 0
    assert found.max_producers == 4
    assert found.auto_subscription_creation
    assert found.subscription_types == {"Shared"}


def test_what_the_topic_sets_wins_over_its_namespace() -> None:
    topic = {
        "retentionPolicies": {"retentionTimeInMinutes": 1, "retentionSizeInMB": 2},
        "global": {
            "retentionPolicies": {"retentionTimeInMinutes": 3, "retentionSizeInMB": 4},
            "messageTTLInSeconds": 6,
        },
        "maxProducerPerTopic": 0,
    }
    found = resolve(CONFIG, NAMESPACE, topic)
    assert found.retention == Retention.of(1, 2)
    assert found.ttl_ms == 6_000
    assert found.max_producers == 0


def test_a_namespace_that_names_no_types_takes_all() -> None:
    assert resolve(CONFIG, {"subscription_types_enabled": []}, {}).subscription_types == set(SUBSCRIPTION_TYPES)


@pytest.mark.parametrize(
    ("override", "allowed", "partitions"),
    [
        (None, True, 5),
        ({"allowAutoTopicCreation": False}, False, 0),
        ({"allowAutoTopicCreation": True, "topicType": "non-partitioned"}, True, 0),
        ({"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 2}, True, 2),
    ],
)
def test_a_namespace_decides_what_is_created_by_naming_it(
    override: dict[str, Any] | None, *, allowed: bool, partitions: int
) -> None:
    config = BrokerConfig(allow_auto_topic_creation_type=TopicType.PARTITIONED, default_num_partitions=5)
    found = resolve_namespace(config, {"autoTopicCreationOverride": override})
    assert (found.auto_topic_creation, found.auto_partitions) == (allowed, partitions)


def test_the_older_word_for_a_strategy_counts_where_the_newer_says_nothing() -> None:
    older = {"schema_auto_update_compatibility_strategy": "BackwardTransitive"}
    assert resolve(CONFIG, older, {}).schemas.strategy == "BACKWARD_TRANSITIVE"
    assert resolve(CONFIG, {**older, "schema_compatibility_strategy": "FORWARD"}, {}).schemas.strategy == "FORWARD"
    topic = {"schemaCompatibilityStrategy": "ALWAYS_COMPATIBLE"}
    assert resolve(CONFIG, older, topic).schemas.strategy == "ALWAYS_COMPATIBLE"


def test_the_brokers_settings_hold_for_schemas_where_no_policy_does() -> None:
    config = replace(
        CONFIG,
        schema_compatibility_strategy=SchemaCompatibilityStrategy.BACKWARD,
        is_allow_auto_update_schema_enabled=False,
        is_schema_validation_enforced=True,
    )
    assert resolve(config, {}, {}).schemas == SchemaPolicies(
        SchemaCompatibilityStrategy.BACKWARD, updates=False, validation=True
    )
    assert resolve(config, {"is_allow_auto_update_schema": True}, {}).schemas.updates
    undefined = replace(CONFIG, schema_compatibility_strategy=SchemaCompatibilityStrategy.UNDEFINED)
    assert resolve(undefined, {}, {}).schemas == SchemaPolicies(SchemaCompatibilityStrategy.FULL)


def test_what_the_broker_validates_no_policy_switches_off() -> None:
    config = replace(CONFIG, is_schema_validation_enforced=True)
    for namespace, topic in (({"schema_validation_enforced": False}, {}), ({}, {"schemaValidationEnforced": False})):
        assert resolve(config, namespace, topic).schemas.validation
