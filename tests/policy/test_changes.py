"""Every way by which an effective threshold or retention changes, and siblings of that pair."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from afterglow.catalog.catalog import Catalog
from afterglow.config import BrokerConfig, Origin, OriginKind
from afterglow.errors import ConfigError
from afterglow.metadata.memory import MemoryMetadataStore
from afterglow.metadata.names import NamespaceName, TopicName
from afterglow.policy.changes import PolicyChanges

if TYPE_CHECKING:
    from collections.abc import Callable

NAMESPACE = NamespaceName("public", "default")
TOPIC = TopicName.parse("public/default/t")
BYTES, SECONDS = "managedLedgerOffloadThresholdInBytes", "managedLedgerOffloadThresholdInSeconds"
MIB = 1 << 20


def retention(megabytes: int = -1, minutes: int = -1) -> dict[str, int]:
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}


class World:
    """A catalog with one namespace, and its policies; ``retained`` and ``offload`` are those of broker settings."""

    def __init__(self, **settings: Any) -> None:
        self.metadata = MemoryMetadataStore()
        self.catalog = Catalog(self.metadata, "standalone")
        self.catalog.ensure_defaults()
        self.changes = PolicyChanges(BrokerConfig(**settings), self.catalog)

    def set_namespace(self, **fields: Any) -> tuple[str, ...]:
        return self.changes.change_namespace(NAMESPACE, lambda old: _set(old, fields))

    def set_topic(self, topic: TopicName = TOPIC, **fields: Any) -> tuple[str, ...]:
        return self.changes.change_topic(topic, lambda old: _set(old, fields))

    def store(self, namespace: dict[str, Any] | None = None, topic: dict[str, Any] | None = None) -> None:
        """Store policies unchecked, as another release may have."""
        self.catalog.update_policies(NAMESPACE, lambda _old: namespace or {})
        self.catalog.update_topic_policies(TOPIC, lambda _old: topic or {})

    def state(self) -> tuple[Any, ...]:
        return self.catalog.policies(NAMESPACE), self.catalog.topic_policies(TOPIC)

    def refused(self, change: Callable[[], object]) -> str:
        before = self.state()
        with pytest.raises(ConfigError) as error:
            change()
        assert self.state() == before
        return str(error.value)


def _set(old: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Fields set; None removes one."""
    return {name: value for name, value in {**old, **fields}.items() if value is not None}


def test_a_namespaces_retention_is_not_lowered_to_its_threshold() -> None:
    world = World()
    world.set_namespace(retention_policies=retention(10, 60), offload_policies={BYTES: 5 * MIB, SECONDS: 600})
    text = world.refused(lambda: world.set_namespace(retention_policies=retention(5, 60)))
    assert f"{BYTES}={5 * MIB} (namespace policies)" in text
    assert "retentionSizeInMB=5 (namespace policies)" in text
    text = world.refused(lambda: world.set_namespace(retention_policies=retention(10, 10)))
    assert f"{SECONDS}=600 (namespace policies)" in text
    assert "retentionTimeInMinutes=10 (namespace policies)" in text
    world.set_namespace(retention_policies=retention(6, 11))


def test_a_namespaces_threshold_is_not_raised_to_its_retention() -> None:
    world = World()
    world.set_namespace(retention_policies=retention(10, 60))
    assert "retentionSizeInMB=10" in world.refused(lambda: world.set_namespace(offload_policies={BYTES: 10 * MIB}))
    assert "retentionTimeInMinutes=60" in world.refused(lambda: world.set_namespace(offload_threshold_in_seconds=3600))
    world.set_namespace(offload_policies={BYTES: 10 * MIB - 1, SECONDS: 3599})


def test_a_topics_retention_is_not_lowered_to_the_threshold_of_any_level() -> None:
    settings = {"managed_ledger_offload_threshold_in_bytes": 5 * MIB, "default_retention_size_in_mb": 100}
    origins = {BYTES: Origin(OriginKind.FILE, "broker.conf:7")}
    world = World(**settings, origins=origins)
    text = world.refused(lambda: world.set_topic(retentionPolicies=retention(5)))
    assert f"{BYTES}={5 * MIB} (broker, broker.conf:7)" in text
    assert "retentionSizeInMB=5 (topic policies)" in text
    world.set_namespace(offload_policies={BYTES: 7 * MIB})
    assert f"{BYTES}={7 * MIB} (namespace" in world.refused(lambda: world.set_topic(retentionPolicies=retention(7)))
    world.set_topic(offloadPolicies={BYTES: 9 * MIB})
    assert f"{BYTES}={9 * MIB} (topic" in world.refused(lambda: world.set_topic(retentionPolicies=retention(9)))
    world.set_topic(retentionPolicies=retention(10))


def test_a_topics_own_retention_is_not_removed_from_under_its_threshold() -> None:
    world = World()
    world.set_namespace(retention_policies=retention(5))
    world.set_topic(retentionPolicies=retention(50))
    world.set_topic(offloadPolicies={BYTES: 20 * MIB})
    text = world.refused(lambda: world.set_topic(retentionPolicies=None))
    assert f"{BYTES}={20 * MIB} (topic policies)" in text
    assert "retentionSizeInMB=5 (namespace policies)" in text
    world.changes.change_topic(TOPIC, lambda _old: {})


def test_a_topics_own_threshold_is_not_removed_where_the_wider_one_does_not_fit() -> None:
    world = World(default_retention_size_in_mb=100)
    world.set_namespace(offload_policies={BYTES: 20 * MIB})
    world.set_topic(offloadPolicies={BYTES: MIB})
    world.set_topic(retentionPolicies=retention(10))
    text = world.refused(lambda: world.set_topic(offloadPolicies=None))
    assert f"{BYTES}={20 * MIB} (namespace policies)" in text
    assert "retentionSizeInMB=10 (topic policies)" in text


def test_a_namespaces_retention_is_not_removed_where_the_brokers_does_not_fit() -> None:
    world = World(default_retention_size_in_mb=5)
    world.set_namespace(retention_policies=retention(50))
    world.set_namespace(offload_policies={BYTES: 20 * MIB})
    text = world.refused(lambda: world.set_namespace(retention_policies=None))
    assert "defaultRetentionSizeInMB=5 (default)" in text
    world.set_namespace(offload_policies=None)
    world.set_namespace(retention_policies=None)


@pytest.mark.parametrize("megabytes", [5, 4])
def test_a_namespaces_change_is_refused_for_a_topic_with_policies_of_its_own(megabytes: int) -> None:
    world = World()
    world.set_namespace(retention_policies=retention(50))
    world.set_topic(offloadPolicies={BYTES: 5 * MIB})
    text = world.refused(lambda: world.set_namespace(retention_policies=retention(megabytes)))
    assert text.startswith(f"{TOPIC} sets policies of its own: ")
    assert f"{BYTES}={5 * MIB} (topic policies)" in text
    assert f"retentionSizeInMB={megabytes} (namespace policies)" in text
    world.set_namespace(retention_policies=retention(6))


def test_a_refusal_names_some_topics_and_counts_the_others() -> None:
    world = World()
    world.set_namespace(retention_policies=retention(50))
    for number in range(9):
        topic = NAMESPACE.topic(f"t{number}")
        world.catalog.update_topic_policies(topic, lambda _old: {"offloadPolicies": {BYTES: 5 * MIB}})
    world.catalog.update_topic_policies(NAMESPACE.topic("else"), lambda _old: {"maxProducerPerTopic": 1})
    text = world.refused(lambda: world.set_namespace(retention_policies=retention(1)))
    assert text.startswith("persistent://public/default/t0 sets")
    assert text.endswith("persistent://public/default/t5 and 3 more")
    assert "else" not in text


def test_topics_are_only_read_for_changes_that_concern_offload(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.set_topic(offloadPolicies={BYTES: 5 * MIB})

    def fail(_topic: TopicName) -> dict[str, Any]:
        raise AssertionError("read for nothing")

    monkeypatch.setattr(world.catalog, "topic_policies", fail)
    world.set_namespace(max_producers_per_topic=5)


def test_an_existing_problem_does_not_refuse_other_changes() -> None:
    wrong = {"retention_policies": retention(1), "offload_policies": {BYTES: 5 * MIB}}
    world = World()
    world.store(namespace=wrong)
    world.set_namespace(max_producers_per_topic=5)
    world.set_namespace(offload_policies={BYTES: 5 * MIB, "managedLedgerOffloadMaxThreads": 3})
    assert "retentionSizeInMB=2" in world.refused(lambda: world.set_namespace(retention_policies=retention(2)))
    world.set_namespace(retention_policies=retention(6))


def test_an_existing_problem_of_a_topic_does_not_refuse_changes_of_its_namespace() -> None:
    world = World()
    world.store(namespace={"retention_policies": retention(4)}, topic={"offloadPolicies": {BYTES: 5 * MIB}})
    world.set_namespace(retention_policies=retention(3))
    other = TopicName.parse("public/default/other")
    world.set_topic(other, offloadPolicies={BYTES: 2 * MIB})
    assert world.refused(lambda: world.set_namespace(retention_policies=retention(2))).startswith(f"{other} sets")


def test_an_override_with_the_same_value_may_be_removed() -> None:
    world = World()
    same = retention(1)
    world.store(
        namespace={"retention_policies": same, "offload_policies": {BYTES: 5 * MIB}},
        topic={"retentionPolicies": same},
    )
    world.set_topic(retentionPolicies=None)


def test_a_driver_keeps_its_bucket_whichever_level_has_it() -> None:
    world = World()
    world.set_namespace(offload_policies={"managedLedgerOffloadBucket": "b"})
    world.set_topic(offloadPolicies={"managedLedgerOffloadDriver": "S3"})
    text = world.refused(lambda: world.set_namespace(offload_policies=None))
    assert f"{TOPIC} sets policies of its own: The bucket must be specified" in text
    world.set_topic(offloadPolicies=None)
    world.set_namespace(offload_policies=None)


def test_a_namespace_cannot_contradict_policies_of_a_topic() -> None:
    world = World()
    world.set_topic(offloadPolicies={"streamingOffloadBlockSizeInBytes": 6 * MIB})
    text = world.refused(lambda: world.set_namespace(offload_policies={"streamingOffloadPartSizeInBytes": 5 * MIB}))
    assert str(TOPIC) in text
    assert "streamingOffloadBlockSizeInBytes (topic policies)" in text


@pytest.mark.parametrize("driver", ["azureblob", "google-cloud-storage"])
def test_a_stored_unsupported_driver_does_not_refuse_other_changes_and_can_be_removed(driver: str) -> None:
    stored = {"managedLedgerOffloadDriver": driver, "managedLedgerOffloadBucket": "b"}
    world = World()
    world.store(topic={"offloadPolicies": stored})
    world.set_topic(maxProducerPerTopic=3)
    world.set_topic(offloadPolicies={**stored, "managedLedgerOffloadMaxThreads": 3})
    world.set_namespace(offload_policies={"managedLedgerOffloadMaxThreads": 3})
    world.set_topic(offloadPolicies=None)
    assert "The driver is not supported" in world.refused(lambda: world.set_topic(offloadPolicies=stored))


def test_corrupt_topic_policies_do_not_refuse_changes_of_the_namespace() -> None:
    world = World()
    world.metadata.put("/afterglow/standalone/topic-policies/public/default/persistent/t", b"{", -1)
    world.set_namespace(retention_policies=retention(5))


def test_warnings_of_a_change_are_given_once() -> None:
    world = World()
    (warning,) = world.set_namespace(offload_policies={BYTES: 5 * MIB})
    assert "defaultRetentionSizeInMB=0 (default)" in warning
    assert world.set_namespace(max_producers_per_topic=5) == ()
    assert world.set_topic(maxProducerPerTopic=5) == ()


def test_a_change_is_logged_with_role_and_differing_fields_and_without_secrets(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    old = {"managedLedgerOffloadMaxThreads": 3, "s3ManagedLedgerOffloadCredentialSecret": "swordfish"}
    world.store(topic={"maxProducerPerTopic": 1, "offloadPolicies": old})
    new = {**old, "s3ManagedLedgerOffloadCredentialSecret": "marlin"}
    with caplog.at_level(logging.INFO):
        world.changes.change_topic(TOPIC, lambda stored: {**stored, "offloadPolicies": new}, role="alice")
        world.changes.change_topic(TOPIC, lambda stored: stored, role="alice")
        world.refused(lambda: world.set_topic(offloadPolicies={"managedLedgerOffloadDriver": "azureblob"}))
    (record,) = caplog.records
    masked = {"offloadPolicies": {**old, "s3ManagedLedgerOffloadCredentialSecret": "********"}}
    assert record.__dict__["fields"] == {"topic": str(TOPIC), "role": "alice", "old": masked, "new": masked}
    assert "swordfish" not in caplog.text
    assert "marlin" not in caplog.text


def test_a_removed_policy_is_logged_with_its_old_value_alone(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.store(namespace={"max_producers_per_topic": 1})
    with caplog.at_level(logging.INFO):
        world.changes.change_namespace(NAMESPACE, lambda _old: {})
    (record,) = caplog.records
    fields = {"namespace": "public/default", "old": {"max_producers_per_topic": 1}, "new": {}}
    assert record.__dict__["fields"] == fields
