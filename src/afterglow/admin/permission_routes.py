"""Routes of permissions of roles on namespaces, topics and subscriptions: grant, revoke, list.

Permissions are stored with the namespace's policies, as in Pulsar. Without authorization they can be read and not
changed: a caller that grants a permission relies on its enforcement. A namespace may still be created with permissions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from afterglow.admin import namespace_policies, targets, values
from afterglow.admin.access import Access
from afterglow.admin.errors import not_found, precondition_failed
from afterglow.admin.resource import Resources
from afterglow.admin.values import with_field
from afterglow.broker.authorization import AUTH, NAMESPACE_AUTH, SUBSCRIPTION_AUTH, TOPIC_AUTH

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.admin.call import BrokerCall

NAMESPACES = Resources("/admin/v2/namespaces/{tenant}/{namespace}")
TOPICS = Resources("/admin/v2/persistent/{tenant}/{namespace}/{topic}")


# --- namespaces ---


@NAMESPACES.on("GET", "/permissions", Access.READ_TENANT)
async def get_namespace_permissions(call: BrokerCall) -> dict[str, Any]:
    """Actions by role, on all topics of the namespace."""
    return namespace_policies.auth(await call.namespace_policies(), NAMESPACE_AUTH)


@NAMESPACES.on("POST", "/permissions/{role}", Access.TENANT)
@NAMESPACES.on("DELETE", "/permissions/{role}", Access.TENANT)
async def change_namespace_permissions(call: BrokerCall) -> None:
    """Replace or revoke the actions of a role on all topics of the namespace; those on single topics stay."""
    actions, role = await _actions(call), call.segment("role")
    await _change(call, NAMESPACE_AUTH, lambda old: with_field(old, role, actions))


# --- subscriptions ---


@NAMESPACES.on("GET", "/permissions/subscription", Access.READ_TENANT)
async def get_subscription_permissions(call: BrokerCall) -> dict[str, Any]:
    """Roles by subscription; a subscription without roles is open to every role that may consume."""
    return namespace_policies.auth(await call.namespace_policies(), SUBSCRIPTION_AUTH)


@NAMESPACES.on("POST", "/permissions/subscription/{subscription}", Access.TENANT)
async def grant_on_subscription(call: BrokerCall) -> None:
    """Replace the roles that may use a subscription."""
    roles = values.texts(await call.body(), "the list of roles")
    name = call.segment("subscription")
    await _change(call, SUBSCRIPTION_AUTH, lambda old: with_field(old, name, roles))


@NAMESPACES.on("DELETE", "/permissions/{subscription}/{role}", Access.TENANT)
async def revoke_on_subscription(call: BrokerCall) -> None:
    """Remove a role from a subscription; without roles it is open again."""
    name, role = call.segment("subscription"), call.segment("role")

    def change(old: dict[str, Any]) -> dict[str, Any]:
        if name not in old:
            raise not_found(f"no role has permission on the subscription {name} in {call.namespace}")
        return with_field(old, name, [other for other in old[name] if other != role] or None)

    await _change(call, SUBSCRIPTION_AUTH, change)


# --- topics ---


@TOPICS.on("GET", "/permissions", Access.READ_TENANT)
async def get_topic_permissions(call: BrokerCall) -> dict[str, list[str]]:
    """Actions by role, on the topic, its partitioned topic, and its namespace."""
    await targets.find(call.service, call.topic)
    stored = await call.namespace_policies()
    found: dict[str, list[str]] = dict(namespace_policies.auth(stored, NAMESPACE_AUTH))
    by_topic = namespace_policies.auth(stored, TOPIC_AUTH)
    for name in dict.fromkeys((call.topic.base, call.topic)):
        for role, actions in (by_topic.get(str(name)) or {}).items():
            found[role] = list(dict.fromkeys([*found.get(role, []), *actions]))
    return found


@TOPICS.on("POST", "/permissions/{role}", Access.TENANT)
@TOPICS.on("DELETE", "/permissions/{role}", Access.TENANT)
async def change_topic_permissions(call: BrokerCall) -> None:
    """Replace or revoke the actions of a role on a topic; those on its namespace stay.

    A grant on a partitioned topic applies to all partitions. Revoking it also revokes grants on single partitions.
    """
    actions, role = await _actions(call), call.segment("role")
    _check_enabled(call)
    target = await targets.find(call.service, call.topic)
    names = {call.topic, *target.topics} if actions is None else {call.topic}

    def change(old: dict[str, Any]) -> dict[str, Any]:
        new = old
        for name in map(str, names):
            new = with_field(new, name, with_field(new.get(name) or {}, role, actions) or None)
        return new

    await _change(call, TOPIC_AUTH, change)


# --- shared ---


async def _actions(call: BrokerCall) -> list[str] | None:
    """The granted actions; None: all are revoked."""
    return None if call.method == "DELETE" else namespace_policies.actions(await call.body(), "the list of actions")


async def _change(call: BrokerCall, part: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change one kind of permissions. Producers and consumers whose role loses its right are disconnected."""
    _check_enabled(call)

    def changed(old: dict[str, Any]) -> dict[str, Any]:
        auth = {name: namespace_policies.auth(old, name) for name in (NAMESPACE_AUTH, TOPIC_AUTH, SUBSCRIPTION_AUTH)}
        return {**old, AUTH: {**(old.get(AUTH) or {}), **auth, part: change(auth[part])}}

    await call.update_policies(call.namespace, changed)


def _check_enabled(call: BrokerCall) -> None:
    if not call.service.authorizer.enabled:
        raise precondition_failed(
            "permissions are not enforced by this broker and cannot be changed: set authorizationEnabled=true"
        )
