from __future__ import annotations

import pytest

from afterglow.catalog.catalog import Catalog
from afterglow.errors import AlreadyExists, NotEmpty, NotFound, WouldLoseData
from afterglow.metadata.memory import MemoryMetadataStore
from afterglow.metadata.names import NamespaceName, TopicName
from afterglow.metadata.paths import managed_ledger_path
from afterglow.metadata.store import MUST_NOT_EXIST

NAMESPACE = NamespaceName("acme", "orders")
TOPIC = TopicName.parse("acme/orders/new")


@pytest.fixture
def metadata() -> MemoryMetadataStore:
    return MemoryMetadataStore()


@pytest.fixture
def catalog(metadata: MemoryMetadataStore) -> Catalog:
    catalog = Catalog(metadata, "standalone")
    catalog.create_tenant("acme")
    catalog.create_namespace(NAMESPACE, {"retention_policies": {"retentionSizeInMB": 5}})
    return catalog


def test_created_objects_are_found(catalog: Catalog) -> None:
    assert catalog.tenants() == ("acme",)
    assert catalog.tenant("acme") == {"adminRoles": [], "allowedClusters": ["standalone"]}
    assert catalog.namespaces("acme") == (NAMESPACE,)
    assert catalog.policies(NAMESPACE) == {"retention_policies": {"retentionSizeInMB": 5}}


def test_creating_twice_is_refused(catalog: Catalog) -> None:
    with pytest.raises(AlreadyExists, match="tenant acme"):
        catalog.create_tenant("acme")
    with pytest.raises(AlreadyExists, match="acme/orders"):
        catalog.create_namespace(NAMESPACE)


def test_a_namespace_needs_its_tenant(catalog: Catalog) -> None:
    with pytest.raises(NotFound, match="tenant nobody"):
        catalog.create_namespace(NamespaceName("nobody", "orders"))


def test_a_change_preserves_unknown_fields(catalog: Catalog) -> None:
    catalog.update_policies(NAMESPACE, lambda old: {**old, "message_ttl_in_seconds": 3})
    assert catalog.policies(NAMESPACE) == {
        "retention_policies": {"retentionSizeInMB": 5},
        "message_ttl_in_seconds": 3,
    }


def test_a_conflicting_change_is_applied_to_the_newer_value(catalog: Catalog, metadata: MemoryMetadataStore) -> None:
    other = Catalog(metadata, "standalone")
    calls = 0

    def change(old: dict[str, object]) -> dict[str, object]:
        nonlocal calls
        calls += 1
        if calls == 1:
            other.update_policies(NAMESPACE, lambda value: {**value, "theirs": 1})
        return {**old, "ours": 2}

    catalog.update_policies(NAMESPACE, change)
    assert calls == 2
    assert {"theirs": 1, "ours": 2}.items() <= catalog.policies(NAMESPACE).items()


def test_tenants_and_namespaces_in_use_are_not_deleted(catalog: Catalog, metadata: MemoryMetadataStore) -> None:
    with pytest.raises(NotEmpty):
        catalog.delete_tenant("acme")
    metadata.put(managed_ledger_path(TOPIC.managed_ledger_name), b"", MUST_NOT_EXIST)
    with pytest.raises(NotEmpty):
        catalog.delete_namespace(NAMESPACE)


def test_empty_tenants_and_namespaces_are_deleted(catalog: Catalog) -> None:
    catalog.delete_namespace(NAMESPACE)
    catalog.delete_tenant("acme")
    assert catalog.tenants() == ()


def test_topics_are_those_with_a_managed_ledger(catalog: Catalog, metadata: MemoryMetadataStore) -> None:
    name = TopicName.parse("acme/orders/ä b~*")
    metadata.put(managed_ledger_path(name.managed_ledger_name), b"", MUST_NOT_EXIST)
    assert catalog.topics(NAMESPACE) == (name,)


def test_partitions_are_counted(catalog: Catalog) -> None:
    assert catalog.partitions(TOPIC) == 0
    catalog.create_partitioned(TOPIC, 3)
    assert catalog.partitions(TOPIC) == 3
    catalog.update_partitions(TOPIC, 5)
    catalog.update_partitions(TOPIC, 5)
    with pytest.raises(WouldLoseData, match="5 partitions"):
        catalog.update_partitions(TOPIC, 4)
    assert catalog.partitioned_topics(NAMESPACE) == (TOPIC,)
    assert catalog.partitions(TOPIC) == 5
    catalog.delete_partitioned(TOPIC)
    assert catalog.partitions(TOPIC) == 0


def test_the_defaults_are_created_once(metadata: MemoryMetadataStore) -> None:
    catalog = Catalog(metadata, "standalone")
    catalog.ensure_defaults()
    catalog.ensure_defaults()
    assert catalog.namespaces("public") == (NamespaceName("public", "default"),)


def test_a_topics_own_policies_are_stored_until_none_are_left(catalog: Catalog, metadata: MemoryMetadataStore) -> None:
    path = f"/afterglow/standalone/topic-policies/{TOPIC.managed_ledger_name}"
    assert catalog.topic_policies(TOPIC) == {}
    catalog.update_topic_policies(TOPIC, lambda old: {**old, "a": 1})
    catalog.update_topic_policies(TOPIC, lambda old: {**old, "b": 2})
    assert catalog.topic_policies(TOPIC) == {"a": 1, "b": 2}
    assert metadata.get(path) is not None
    catalog.update_topic_policies(TOPIC, lambda _old: {})
    assert catalog.topic_policies(TOPIC) == {}
    assert metadata.get(path) is None


def test_partitions_share_the_policies_of_their_topic(catalog: Catalog) -> None:
    catalog.update_topic_policies(TOPIC.partition(1), lambda _old: {"a": 1})
    assert catalog.topic_policies(TOPIC.partition(0)) == catalog.topic_policies(TOPIC) == {"a": 1}
    catalog.delete_topic_policies(TOPIC.partition(0))
    assert catalog.topic_policies(TOPIC) == {"a": 1}
    catalog.delete_topic_policies(TOPIC)
    assert catalog.topic_policies(TOPIC) == {}
    catalog.delete_topic_policies(TOPIC)


def test_policies_that_another_changes_meanwhile_are_changed_on_top(
    catalog: Catalog, metadata: MemoryMetadataStore
) -> None:
    other = Catalog(metadata, "standalone")
    calls = 0

    def change(old: dict[str, object]) -> dict[str, object]:
        nonlocal calls
        calls += 1
        if calls == 1:
            other.update_topic_policies(TOPIC, lambda theirs: {**theirs, "theirs": 1})
        return {**old, "ours": 2}

    catalog.update_topic_policies(TOPIC, change)
    assert calls == 2
    assert catalog.topic_policies(TOPIC) == {"theirs": 1, "ours": 2}


def test_a_change_that_is_refused_leaves_policies_as_they_are(catalog: Catalog) -> None:
    def refuse(_old: dict[str, object]) -> dict[str, object]:
        raise ValueError("no")

    catalog.update_topic_policies(TOPIC, lambda _old: {"a": 1})
    with pytest.raises(ValueError, match="no"):
        catalog.update_topic_policies(TOPIC, refuse)
    assert catalog.topic_policies(TOPIC) == {"a": 1}
