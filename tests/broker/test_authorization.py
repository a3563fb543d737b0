"""Rules of authorization, each with the rights that it grants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from afterglow.broker.authorization import Authorizer
from afterglow.catalog.catalog import Catalog
from afterglow.config import AuthenticationProvider, BrokerConfig
from afterglow.metadata.memory import MemoryMetadataStore
from afterglow.metadata.names import NamespaceName

if TYPE_CHECKING:
    from collections.abc import Iterable

    from afterglow.broker.authorization import RoleRights
    from afterglow.metadata.names import TopicName

NAMESPACE = NamespaceName("acme", "orders")
TOPIC = NAMESPACE.topic("t")
OTHER = NAMESPACE.topic("other")
PARTITION = NAMESPACE.topic("t-partition-3")
RIGHTS = ("produce", "consume", "lookup", "list")


def authorizer(auth: dict[str, Any] | None = None, *, mode: str | None = None, **settings: Any) -> Authorizer:
    """An authorizer over a catalog in which ``admin`` administers the tenant ``acme``."""
    config = BrokerConfig(
        authentication_enabled=True,
        authentication_providers=(AuthenticationProvider.TOKEN,),
        token_secret_key="a" * 64,
        authorization_enabled=True,
        super_user_roles=("root",),
        **settings,
    )
    catalog = Catalog(MemoryMetadataStore(), config.cluster_name)
    catalog.create_tenant("acme", {"adminRoles": ["admin"]})
    catalog.create_tenant("globex", {"adminRoles": ["rival"]})
    policies = {"auth_policies": auth} if auth is not None else {}
    catalog.create_namespace(NAMESPACE, {**policies, **({"subscription_auth_mode": mode} if mode else {})})
    return Authorizer(config, catalog)


def held(rights: RoleRights, topic: TopicName = TOPIC) -> set[str]:
    allowed = (
        rights.can_produce(topic),
        rights.can_consume(topic),
        rights.can_lookup(topic),
        rights.can_list(),
    )
    return {right for right, given in zip(RIGHTS, allowed, strict=True) if given}


def on_namespace(*actions: str, role: str = "dev") -> dict[str, Any]:
    return {"namespace_auth": {role: list(actions)}}


def on_topic(*actions: str, role: str = "dev", topic: TopicName = TOPIC) -> dict[str, Any]:
    return {"destination_auth": {str(topic): {role: list(actions)}}}


@pytest.mark.parametrize(
    ("role", "auth", "topic", "expected"),
    [
        ("root", None, TOPIC, RIGHTS),
        ("admin", None, TOPIC, RIGHTS),
        ("rival", None, TOPIC, ()),
        ("dev", None, TOPIC, ()),
        ("dev", {}, TOPIC, ()),
        (None, on_namespace("produce", "consume", role=""), TOPIC, ()),
        ("dev", on_namespace("produce"), TOPIC, ("produce", "lookup", "list")),
        ("dev", on_namespace("consume"), TOPIC, ("consume", "lookup", "list")),
        ("dev", on_namespace("produce", "consume"), TOPIC, RIGHTS),
        ("dev", on_namespace("functions", "sources", "sinks", "packages"), TOPIC, ()),
        ("dev", on_namespace("produce", role="de"), TOPIC, ()),
        ("dev", on_namespace("produce", role="dev*"), TOPIC, ()),
        ("dev", on_topic("produce"), TOPIC, ("produce", "lookup")),
        ("dev", on_topic("consume"), TOPIC, ("consume", "lookup")),
        ("dev", on_topic("consume"), OTHER, ()),
        ("dev", on_topic("consume"), PARTITION, ("consume", "lookup")),
        ("dev", on_topic("consume", topic=PARTITION), PARTITION, ("consume", "lookup")),
        ("dev", on_topic("consume", topic=PARTITION), TOPIC, ()),
        ("other", on_topic("consume"), TOPIC, ()),
    ],
)
def test_a_role_has_the_rights_that_pulsars_rules_give(
    role: str | None, auth: dict[str, Any] | None, topic: TopicName, expected: Iterable[str]
) -> None:
    assert held(authorizer(auth).rights(role, NAMESPACE), topic) == set(expected)


@pytest.mark.parametrize(
    ("pattern", "role", "matches"),
    [
        ("dev-*", "dev-1", True),
        ("dev-*", "ops-1", False),
        ("*-dev", "one-dev", True),
        ("*-dev", "one-ops", False),
        ("*", "anyone", True),
        ("d*v", "dev", False),
    ],
)
def test_a_wildcard_matches_only_if_enabled(pattern: str, role: str, *, matches: bool) -> None:
    for auth in (on_namespace("consume", role=pattern), on_topic("consume", role=pattern)):
        assert not authorizer(auth).rights(role, NAMESPACE).can_consume(TOPIC)
        enabled = authorizer(auth, authorization_allow_wildcards_matching=True)
        assert enabled.rights(role, NAMESPACE).can_consume(TOPIC) == matches
        assert not enabled.rights(role, NAMESPACE).can_produce(TOPIC)


def test_a_subscription_that_names_roles_admits_these_only_and_they_need_consume_too() -> None:
    grants = {
        "namespace_auth": {"dev": ["consume"], "ops": ["consume"]},
        "subscription_auth_roles": {"s": ["ops", "x"]},
    }
    found = authorizer(grants)
    assert not found.rights("dev", NAMESPACE).can_consume(TOPIC, "s")
    assert found.rights("dev", NAMESPACE).can_consume(TOPIC, "another")
    assert found.rights("ops", NAMESPACE).can_consume(TOPIC, "s")
    assert not found.rights("x", NAMESPACE).can_consume(TOPIC, "s")
    assert found.rights("admin", NAMESPACE).can_consume(TOPIC, "s")
    emptied = authorizer({**on_namespace("consume"), "subscription_auth_roles": {"s": []}})
    assert emptied.rights("dev", NAMESPACE).can_consume(TOPIC, "s")


def test_prefix_mode_requires_subscriptions_that_start_with_the_role() -> None:
    rights = authorizer(on_namespace("consume"), mode="Prefix").rights("dev", NAMESPACE)
    assert rights.can_consume(TOPIC, "dev-1")
    assert not rights.can_consume(TOPIC, "ops-1")


def test_a_missing_namespace_or_tenant_grants_rights_to_superusers_and_tenant_admins_only() -> None:
    found = authorizer(on_namespace("produce", "consume"))
    for namespace in (NamespaceName("acme", "missing"), NamespaceName("missing", "orders")):
        topic = namespace.topic("t")
        assert held(found.rights("dev", namespace), topic) == set()
        assert held(found.rights("root", namespace), topic) == set(RIGHTS)
    assert found.rights("admin", NamespaceName("acme", "missing")).is_admin
    assert not found.rights("admin", NamespaceName("missing", "orders")).is_admin


def test_a_namespace_without_grants_in_its_stored_policies_is_closed() -> None:
    for auth in ({"namespace_auth": None, "destination_auth": None}, {"destination_auth": {str(TOPIC): None}}):
        assert held(authorizer(auth).rights("dev", NAMESPACE)) == set()
