from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from afterglow.catalog.schema_registry import SchemaPolicies
from afterglow.config import BrokerConfig
from afterglow.config.choices import SchemaCompatibilityStrategy, TopicType
from afterglow.ledger.retention import Retention
from afterglow.policy.fields import FIELDS, SERVED_TYPES, TYPES_ENABLED, merged_scopes, of_scope, with_scope
from afterglow.policy.resolver import resolve, resolve_stored

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


def strategy(*levels: Any) -> SchemaCompatibilityStrategy:
    return SchemaPolicies.of(resolve(*levels)).strategy


def test_an_unset_policy_has_the_brokers_value() -> None:
    found = resolve(CONFIG, {}, {})
    assert Retention.from_config(found) == Retention.of(7, 8)
    assert found.ttl_duration_default_in_seconds == 9
    assert found.max_producers_per_topic == 3
    assert not found.allow_auto_subscription_creation
    assert TYPES_ENABLED.show(found) == list(SERVED_TYPES)


def test_what_the_namespace_sets_wins() -> None:
    found = resolve(CONFIG, NAMESPACE, {})
    assert Retention.from_config(found) == Retention.of(-1, 5)
    assert found.ttl_duration_default_in_seconds == 0
    assert found.max_producers_per_topic == 4
    assert found.allow_auto_subscription_creation
    assert found.subscription_types_enabled == ("Shared",)


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
    assert Retention.from_config(found) == Retention.of(1, 2)
    assert found.ttl_duration_default_in_seconds == 6
    assert found.max_producers_per_topic == 0


def test_a_namespace_without_types_allows_all() -> None:
    found = resolve(CONFIG, {"subscription_types_enabled": []}, {})
    assert found.subscription_types_enabled == CONFIG.subscription_types_enabled


@pytest.mark.parametrize(
    ("override", "allowed", "partitions"),
    [
        (None, True, 5),
        ({"allowAutoTopicCreation": False}, False, 0),
        ({"allowAutoTopicCreation": True, "topicType": "non-partitioned"}, True, 0),
        ({"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 2}, True, 2),
    ],
)
def test_a_namespace_controls_automatic_creation(
    override: dict[str, Any] | None, *, allowed: bool, partitions: int
) -> None:
    config = BrokerConfig(allow_auto_topic_creation_type=TopicType.PARTITIONED, default_num_partitions=5)
    found = resolve(config, {"autoTopicCreationOverride": override}, {})
    count = found.default_num_partitions if found.allow_auto_topic_creation_type is TopicType.PARTITIONED else 0
    assert (found.allow_auto_topic_creation, count) == (allowed, partitions)


def test_the_older_name_of_a_strategy_applies_where_the_newer_is_unset() -> None:
    older = {"schema_auto_update_compatibility_strategy": "BackwardTransitive"}
    assert strategy(CONFIG, older, {}) == "BACKWARD_TRANSITIVE"
    assert strategy(CONFIG, {**older, "schema_compatibility_strategy": "FORWARD"}, {}) == "FORWARD"
    topic = {"schemaCompatibilityStrategy": "ALWAYS_COMPATIBLE"}
    assert strategy(CONFIG, older, topic) == "ALWAYS_COMPATIBLE"


def test_settings_of_the_broker_apply_to_schemas_without_policies() -> None:
    config = replace(
        CONFIG,
        schema_compatibility_strategy=SchemaCompatibilityStrategy.BACKWARD,
        is_allow_auto_update_schema_enabled=False,
        is_schema_validation_enforced=True,
    )
    assert SchemaPolicies.of(resolve(config, {}, {})) == SchemaPolicies(
        SchemaCompatibilityStrategy.BACKWARD, updates=False, validation=True
    )
    assert SchemaPolicies.of(resolve(config, {"is_allow_auto_update_schema": True}, {})).updates
    undefined = replace(CONFIG, schema_compatibility_strategy=SchemaCompatibilityStrategy.UNDEFINED)
    assert SchemaPolicies.of(resolve(undefined, {}, {})) == SchemaPolicies(SchemaCompatibilityStrategy.FULL)


def test_a_policy_cannot_disable_schema_validation_of_the_broker() -> None:
    config = replace(CONFIG, is_schema_validation_enforced=True)
    for namespace, topic in (({"schema_validation_enforced": False}, {}), ({}, {"schemaValidationEnforced": False})):
        assert SchemaPolicies.of(resolve(config, namespace, topic)).validation


def test_retention_of_a_topic_applies_though_its_offload_policies_contradict_those_of_its_namespace() -> None:
    """Promise 1: a retention that is ignored deletes entries that the topic must keep."""
    namespace = {
        "retention_policies": {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1},
        "offload_policies": {"streamingOffloadPartSizeInBytes": 5 << 20},
    }
    topic = {
        "retentionPolicies": {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
        "messageTTLInSeconds": 7,
        "offloadPolicies": {"streamingOffloadBlockSizeInBytes": 6 << 20, "managedLedgerOffloadMaxThreads": 9},
    }
    policy, problems = resolve_stored(BrokerConfig(), namespace, topic)
    assert Retention.from_config(policy) == Retention(-1, -1)
    assert policy.ttl_duration_default_in_seconds == 7
    assert policy.origin("defaultRetentionTimeInMinutes").kind.level == "topic"
    assert policy.managed_ledger_offload_max_threads == BrokerConfig().managed_ledger_offload_max_threads
    assert ["streamingOffloadBlockSizeInBytes" in problem for problem in problems] == [True]


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.namespace)
@pytest.mark.parametrize("value", ["?", [1], {"x": []}, -5, 1.5, True])
def test_a_stored_value_that_cannot_be_read_is_ignored_by_name(field: Any, value: object) -> None:
    policy, problems = resolve_stored(CONFIG, {field.namespace: value}, {})
    read = [row.key for row, _, origin in policy.rows() if origin.kind.level == "namespace"]
    assert bool(read) or all(problem.startswith(f"namespace: {field.namespace}: ") for problem in problems)


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.namespace)
def test_what_a_field_shows_of_settings_it_reads_back(field: Any) -> None:
    config = replace(CONFIG, subscription_types_enabled=SERVED_TYPES)
    shown = field.show(config)
    assert shown is None or resolve(config, {field.namespace: shown}, {}) == config


def test_a_policy_of_the_cluster_wins_over_one_for_all_clusters() -> None:
    stored = with_scope({"a": 1}, {"a": 2, "b": 3}, is_global=True)
    assert merged_scopes(stored) == {"a": 1, "b": 3}
    assert of_scope(stored, is_global=False) == {"a": 1}
    assert of_scope(stored, is_global=True) == {"a": 2, "b": 3}


def test_a_scope_is_changed_alone() -> None:
    stored = with_scope(with_scope({}, {"a": 1}, is_global=True), {"a": 2}, is_global=False)
    assert of_scope(with_scope(stored, {}, is_global=False), is_global=True) == {"a": 1}
    assert with_scope(with_scope(stored, {}, is_global=False), {}, is_global=True) == {}
