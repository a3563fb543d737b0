from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterglow.catalog.catalog import Catalog
from afterglow.config import BrokerConfig, OriginKind, ReadPriority, parse_conf
from afterglow.errors import ConfigError
from afterglow.metadata.memory import MemoryMetadataStore
from afterglow.metadata.names import NamespaceName, TopicName
from afterglow.policy.offload_json import POLICY_SETTINGS
from afterglow.policy.resolver import Policies, resolve

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMESPACE = NamespaceName("acme", "orders")
TOPIC = TopicName.parse("acme/orders/new")
NAME = TOPIC.managed_ledger_name

SAMPLES: Mapping[str, st.SearchStrategy[Any]] = {
    "managedLedgerOffloadDriver": st.sampled_from(["S3", "filesystem", "aws-s3"]),
    "managedLedgerOffloadBucket": st.sampled_from(["one", "two", "three"]),
    "managedLedgerOffloadThresholdInBytes": st.integers(-1, 2**40),
    "managedLedgerOffloadThresholdInSeconds": st.integers(-1, 2**40),
    "managedLedgerOffloadDeletionLagInMillis": st.integers(0, 2**40),
    "managedLedgerOffloadMaxThreads": st.integers(1, 9),
    "s3ManagedLedgerOffloadMaxBlockSizeInBytes": st.integers(5 << 20, 2**31 - 1),
    "offloadThrottlingRatePerTopicInBytes": st.integers(0, 2**40),
    "streamingOffloadEnabled": st.booleans(),
    "maxOffloadSegmentSizeInBytes": st.integers(1, 2**40),
}
LEVELS = st.fixed_dictionaries({}, optional=SAMPLES)


def offload(namespace: Mapping[str, Any], topic: Mapping[str, Any] | None = None) -> BrokerConfig:
    return resolve(BrokerConfig(), {"offload_policies": dict(namespace)}, {"offloadPolicies": dict(topic or {})})


def value(policy: BrokerConfig, key: str) -> Any:
    return getattr(policy, POLICY_SETTINGS[key].attribute)


@given(broker=LEVELS, namespace=LEVELS, topic=LEVELS)
def test_field_by_field_the_narrowest_level_that_sets_it_wins(
    broker: dict[str, Any], namespace: dict[str, Any], topic: dict[str, Any]
) -> None:
    config = parse_conf(
        "\n".join(f"{key}={POLICY_SETTINGS[key].value_type.render(item)}" for key, item in broker.items())
    )
    policy = resolve(config, {"offload_policies": namespace}, {"offloadPolicies": topic})
    for key, row in POLICY_SETTINGS.items():
        levels = (("topic", topic), ("namespace", namespace), ("broker", broker), ("default", {key: row.default}))
        level, expected = next((name, fields[key]) for name, fields in levels if key in fields)
        assert (value(policy, key), policy.origin(key).kind.level) == (expected, level)


def test_without_overrides_the_effective_policy_is_the_brokers_own_object() -> None:
    config = BrokerConfig(managed_ledger_offload_bucket="b")
    assert resolve(config, {}, {}) is config


@pytest.mark.parametrize("word", ["bookkeeper-first", "BOOKKEEPER_FIRST"])
def test_the_broker_sets_the_read_priority_by_the_name_of_the_proposal(word: str) -> None:
    policy = resolve(parse_conf(f"managedLedgerDataReadPriority={word}"), {}, {})
    assert policy.managed_ledger_offloaded_read_priority is ReadPriority.BOOKKEEPER_FIRST
    assert policy.origin("managedLedgerOffloadedReadPriority").kind.level == "broker"


def test_null_is_unset_and_an_empty_string_sets_none() -> None:
    assert offload({"managedLedgerOffloadDeletionLagInMillis": None}).managed_ledger_offload_deletion_lag_in_millis
    never = offload({"managedLedgerOffloadDeletionLagInMillis": ""})
    assert never.managed_ledger_offload_deletion_lag_in_millis is None
    assert never.origin("managedLedgerOffloadDeletionLagInMillis").kind is OriginKind.NAMESPACE


def test_extra_configurations_are_merged_and_the_narrower_level_wins() -> None:
    config = parse_conf("managedLedgerOffloadExtraConfiga=1\nmanagedLedgerOffloadExtraConfigb=1")
    policy = resolve(
        config,
        {"offload_policies": {"managedLedgerExtraConfigurations": {"b": "2", "c": "2"}}},
        {"offloadPolicies": {"managedLedgerExtraConfigurations": {"c": 3}}},
    )
    assert policy.managed_ledger_extra_configurations == (("a", "1"), ("b", "2"), ("c", "3"))


def test_streaming_settings_are_taken_from_extra_configurations_and_a_field_wins_over_them() -> None:
    extra = {"streamingOffloadEnabled": "true", "maxSizePerOffloadSegmentMbytes": "64", "other": "1"}
    policy = offload({"managedLedgerExtraConfigurations": extra})
    assert policy.streaming_offload_enabled
    assert policy.max_offload_segment_size_in_bytes == 64 << 20
    assert policy.managed_ledger_extra_configurations == (("other", "1"),)
    assert not offload(
        {"managedLedgerExtraConfigurations": extra, "streamingOffloadEnabled": False}
    ).streaming_offload_enabled
    assert not offload(
        {"managedLedgerExtraConfigurations": extra}, {"streamingOffloadEnabled": False}
    ).streaming_offload_enabled


def test_legacy_offload_fields_apply_where_offload_policies_are_unset() -> None:
    old = {"offload_threshold": 7, "offload_threshold_in_seconds": 8, "offload_deletion_lag_ms": 9}
    policy = resolve(BrokerConfig(), old, {})
    assert policy.managed_ledger_offload_threshold_in_bytes == 7
    assert policy.managed_ledger_offload_threshold_in_seconds == 8
    assert policy.managed_ledger_offload_deletion_lag_in_millis == 9
    newer = {**old, "offload_policies": {"managedLedgerOffloadThresholdInBytes": 1}}
    assert resolve(BrokerConfig(), newer, {}).managed_ledger_offload_threshold_in_bytes == 1
    unset = {"offload_threshold": -1, "offload_threshold_in_seconds": -1, "offload_deletion_lag_ms": None}
    broker = BrokerConfig(managed_ledger_offload_threshold_in_bytes=5)
    assert resolve(broker, unset, {}) is broker


def test_retention_and_ttl_of_a_namespace_are_part_of_the_effective_policy() -> None:
    policy = resolve(
        BrokerConfig(),
        {"retention_policies": {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1}, "message_ttl_in_seconds": 5},
        {},
    )
    assert (policy.default_retention_time_in_minutes, policy.default_retention_size_in_mb) == (60, -1)
    assert policy.ttl_duration_default_in_seconds == 5
    assert policy.origin("defaultRetentionSizeInMB").kind.level == "namespace"


def test_levels_that_contradict_each_other_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"streamingOffloadBlockSizeInBytes \(topic policies\)"):
        offload(
            {"streamingOffloadPartSizeInBytes": 5 << 20},
            {"streamingOffloadBlockSizeInBytes": 6 << 20},
        )


@pytest.fixture
def catalog() -> Catalog:
    catalog = Catalog(MemoryMetadataStore(), "standalone")
    catalog.create_tenant("acme")
    catalog.create_namespace(NAMESPACE)
    return catalog


def set_topic(catalog: Catalog, fields: Mapping[str, Any], topic: TopicName = TOPIC) -> None:
    catalog.update_topic_policies(topic, lambda old: {**old, "offloadPolicies": dict(fields)})


def test_policies_are_cached_until_they_change(catalog: Catalog) -> None:
    policies = Policies(BrokerConfig(), catalog)
    before = policies.of(NAME)
    assert policies.of(NAME) is before
    set_topic(catalog, {"managedLedgerOffloadedReadPriority": "BOOKKEEPER_FIRST"})
    assert policies.of(NAME) is before
    policies.changed(NAMESPACE)
    assert policies.of(NAME).managed_ledger_offloaded_read_priority is ReadPriority.BOOKKEEPER_FIRST
    set_topic(catalog, {})
    policies.changed(None)
    assert policies.of(NAME).managed_ledger_offloaded_read_priority is ReadPriority.TIERED_STORAGE_FIRST


@pytest.mark.parametrize(
    "other", ["other/place/persistent/t", "acme/orders2/persistent/t", "acme/orders/x/persistent/t"]
)
def test_a_change_of_one_namespace_keeps_others_cached(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    policies = Policies(BrokerConfig(), catalog)
    policies.of(NAME)
    policies.of(other)
    policies.changed(NAMESPACE)
    monkeypatch.setattr(Catalog, "topic_policies", lambda *_: pytest.fail("it was known"))
    policies.of(other)


def test_callbacks_are_notified_of_changes(catalog: Catalog) -> None:
    policies = Policies(BrokerConfig(), catalog)
    notified: list[NamespaceName | None] = []
    policies.on_change(notified.append)
    policies.changed(NAMESPACE)
    policies.changed(None)
    assert notified == [NAMESPACE, None]


def test_a_policy_read_before_a_change_is_not_cached(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    policies = Policies(BrokerConfig(), catalog)
    read = Catalog.topic_policies

    def change_meanwhile(self: Catalog, topic: TopicName) -> dict[str, Any]:
        found = read(self, topic)
        monkeypatch.undo()
        set_topic(catalog, {"managedLedgerOffloadMaxThreads": 9})
        policies.changed(NAMESPACE)
        return found

    monkeypatch.setattr(Catalog, "topic_policies", change_meanwhile)
    assert policies.of(NAME).managed_ledger_offload_max_threads == 2
    assert policies.of(NAME).managed_ledger_offload_max_threads == 9


def test_a_partition_has_the_policies_of_its_topic(catalog: Catalog) -> None:
    set_topic(catalog, {"managedLedgerOffloadMaxThreads": 9})
    policies = Policies(BrokerConfig(), catalog)
    assert policies.of(TOPIC.partition(3).managed_ledger_name).managed_ledger_offload_max_threads == 9


def test_a_topic_of_a_deleted_namespace_has_the_brokers_settings(catalog: Catalog) -> None:
    config = BrokerConfig()
    assert Policies(config, catalog).of("gone/gone/persistent/t") is config


def test_stored_fields_that_cannot_be_read_are_ignored_with_a_warning(
    catalog: Catalog, caplog: pytest.LogCaptureFixture
) -> None:
    stored = {"someNewField": 1, "managedLedgerOffloadedReadPriority": "NEAREST", "managedLedgerOffloadMaxThreads": 5}
    catalog.update_policies(NAMESPACE, lambda old: {**old, "offload_policies": stored})
    with caplog.at_level(logging.WARNING):
        policy = Policies(BrokerConfig(), catalog).of(NAME)
    assert policy.managed_ledger_offload_max_threads == 5
    assert "someNewField" in caplog.text
    assert "NEAREST" in caplog.text
    assert str(TOPIC) in caplog.text


def test_offload_policies_of_a_contradicting_topic_are_ignored_with_a_warning(
    catalog: Catalog, caplog: pytest.LogCaptureFixture
) -> None:
    set_topic(catalog, {"streamingOffloadBlockSizeInBytes": 6 << 20, "managedLedgerOffloadMaxThreads": 9})
    narrow = {"streamingOffloadPartSizeInBytes": 5 << 20}
    catalog.update_policies(NAMESPACE, lambda old: {**old, "offload_policies": narrow})
    with caplog.at_level(logging.WARNING):
        policy = Policies(BrokerConfig(), catalog).of(NAME)
    assert policy.streaming_offload_part_size_in_bytes == 5 << 20
    assert policy.managed_ledger_offload_max_threads == 2
    assert "streamingOffloadBlockSizeInBytes" in caplog.text
