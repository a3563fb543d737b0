"""Permissions of roles on namespaces, topics and subscriptions: granted, revoked and listed.

They are stored with the namespace's policies, as by Pulsar. Where authorization is off, they are shown and cannot be
changed: whoever grants a permission relies on it, while a namespace may be created with some from a template.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from afterglow.admin import policies, targets, values
from afterglow.admin.access import Access
from afterglow.admin.errors import bad_request, not_found, precondition_failed
from afterglow.admin.policy_levels import namespace_policies
from afterglow.admin.resource import Resources
from afterglow.broker.authorization import AUTH, NAMESPACE_AUTH, SUBSCRIPTION_AUTH, TOPIC_AUTH
from afterglow.metadata.names import TopicName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from afterglow.admin.call import Call
    from afterglow.metadata.names import NamespaceName

NAMESPACES = Resources("/admin/v2/namespaces")
TOPICS = Resources("/admin/v2/persistent/{tenant}/{namespace}/{topic}")

_NAMESPACE = "/{tenant}/{namespace}"


# --- namespaces ---


@NAMESPACES.on("GET", f"{_NAMESPACE}/permissions", Access.READ_TENANT)
async def get_namespace_permissions(call: Call) -> dict[str, Any]:
    """Actions on all topics of the namespace, by role."""
    return policies.auth(await namespace_policies(call), NAMESPACE_AUTH)


@NAMESPACES.on("POST", f"{_NAMESPACE}/permissions/{{role}}", Access.TENANT)
async def grant_on_namespace(call: Call) -> None:
    """Replace the actions that a role may do on all topics of the namespace."""
    actions = policies.actions(await call.body(), "the list of actions")
    role = call.segment("role")
    await _change(call, call.namespace, NAMESPACE_AUTH, lambda old: {**old, role: actions})


@NAMESPACES.on("DELETE", f"{_NAMESPACE}/permissions/{{role}}", Access.TENANT)
async def revoke_on_namespace(call: Call) -> None:
    """Take all of a role's actions on the namespace away; those on single topics stay."""
    role = call.segment("role")
    await _change(call, call.namespace, NAMESPACE_AUTH, lambda old: _without(old, role))


# --- subscriptions ---


@NAMESPACES.on("GET", f"{_NAMESPACE}/permissions/subscription", Access.READ_TENANT)
async def get_subscription_permissions(call: Call) -> dict[str, Any]:
    """The roles that may use a subscription, by its name; one that is not named is open to all who may consume."""
    return policies.auth(await namespace_policies(call), SUBSCRIPTION_AUTH)


@NAMESPACES.on("POST", f"{_NAMESPACE}/permissions/subscription/{{subscription}}", Access.TENANT)
async def grant_on_subscription(call: Call) -> None:
    """Replace the roles that may use a subscription."""
    roles = values.texts(await call.body(), "the list of roles")
    name = call.segment("subscription")
    await _change(call, call.namespace, SUBSCRIPTION_AUTH, lambda old: {**old, name: roles})


@NAMESPACES.on("DELETE", f"{_NAMESPACE}/permissions/{{subscription}}/{{role}}", Access.TENANT)
async def revoke_on_subscription(call: Call) -> None:
    """Take a role from those of a subscription; with the last one the subscription is open again."""
    name, role = call.segment("subscription"), call.segment("role")

    def change(old: dict[str, Any]) -> dict[str, Any]:
        if name not in old:
            raise not_found(f"no role has permission on the subscription {name} in {call.namespace}")
        left = [other for other in old[name] if other != role]
        return {**old, name: left} if left else _without(old, name)

    await _change(call, call.namespace, SUBSCRIPTION_AUTH, change)


# --- topics ---


@TOPICS.on("GET", "/permissions", Access.READ_TENANT)
async def get_topic_permissions(call: Call) -> dict[str, list[str]]:
    """Actions on the topic, by role; those on its namespace and on its partitioned topic included."""
    await targets.find(call.service, call.topic)
    stored = await namespace_policies(call)
    found: dict[str, list[str]] = dict(policies.auth(stored, NAMESPACE_AUTH))
    by_topic = policies.auth(stored, TOPIC_AUTH)
    for name in dict.fromkeys((call.topic.base, call.topic)):
        for role, actions in (by_topic.get(str(name)) or {}).items():
            found[role] = list(dict.fromkeys([*found.get(role, []), *actions]))
    return found


@TOPICS.on("POST", "/permissions/{role}", Access.TENANT)
async def grant_on_topic(call: Call) -> None:
    """Replace the actions that a role may do on a topic; on a partitioned one they count for all partitions."""
    actions = policies.actions(await call.body(), "the list of actions")
    _check_enabled(call)
    await targets.find(call.service, call.topic)
    await _grant(call, call.namespace, [(call.topic, call.segment("role"), actions)])


@TOPICS.on("DELETE", "/permissions/{role}", Access.TENANT)
async def revoke_on_topic(call: Call) -> None:
    """Take all of a role's actions on a topic and its partitions away; those on its namespace stay."""
    _check_enabled(call)
    target = await targets.find(call.service, call.topic)
    role = call.segment("role")
    await _revoke(call, call.namespace, [(name, role) for name in {call.topic, *target.topics}])


@NAMESPACES.on("POST", "/grantPermissionsOnTopics", Access.SUPER_USER)
async def grant_on_topics(call: Call) -> None:
    """Replace the actions of roles on several topics of one namespace, all or none."""
    _check_enabled(call)
    given = [
        (topic, role, policies.actions(item.get("actions"), "actions"))
        for topic, role, item in _options(await call.body())
    ]
    await _grant(call, await _namespace_of(call, [topic for topic, *_ in given]), given)


@NAMESPACES.on("POST", "/revokePermissionsOnTopics", Access.SUPER_USER)
async def revoke_on_topics(call: Call) -> None:
    """Take all actions of roles on several topics of one namespace away, all or none."""
    _check_enabled(call)
    given = [(topic, role) for topic, role, _ in _options(await call.body())]
    await _revoke(call, await _namespace_of(call, [topic for topic, _ in given]), given)


# --- inside ---


def _options(body: object) -> list[tuple[TopicName, str, dict[str, Any]]]:
    if not isinstance(body, list) or not body:
        raise bad_request("the body must be a list of objects with topic and role")
    found = []
    for item in body:
        given = values.fields(item, "every item", ("topic", "role", "actions"))
        topic = TopicName.parse(values.text(given.get("topic"), "topic"))
        found.append((topic, values.text(given.get("role"), "role"), given))
    return found


async def _namespace_of(call: Call, topics: list[TopicName]) -> NamespaceName:
    """The one namespace of topics that exist."""
    namespaces = {topic.namespace for topic in topics}
    if len(namespaces) != 1:
        raise bad_request("the topics must be of one namespace; call once for each")
    for topic in topics:
        await targets.find(call.service, topic)
    return namespaces.pop()


async def _grant(call: Call, namespace: NamespaceName, given: Iterable[tuple[TopicName, str, list[str]]]) -> None:
    def change(old: dict[str, Any]) -> dict[str, Any]:
        new = dict(old)
        for topic, role, actions in given:
            new[str(topic)] = {**(new.get(str(topic)) or {}), role: actions}
        return new

    await _change(call, namespace, TOPIC_AUTH, change)


async def _revoke(call: Call, namespace: NamespaceName, given: Iterable[tuple[TopicName, str]]) -> None:
    def change(old: dict[str, Any]) -> dict[str, Any]:
        new = dict(old)
        for topic, role in given:
            left = _without(new.pop(str(topic), None) or {}, role)
            if left:
                new[str(topic)] = left
        return new

    await _change(call, namespace, TOPIC_AUTH, change)


async def _change(
    call: Call, namespace: NamespaceName, part: str, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    """Change one part of the permissions. Open producers and consumers that lose their right are disconnected."""
    _check_enabled(call)

    def changed(old: dict[str, Any]) -> dict[str, Any]:
        auth = {name: policies.auth(old, name) for name in (NAMESPACE_AUTH, TOPIC_AUTH, SUBSCRIPTION_AUTH)}
        return {**old, AUTH: {**(old.get(AUTH) or {}), **auth, part: change(auth[part])}}

    await call.update_policies(namespace, changed)


def _check_enabled(call: Call) -> None:
    if not call.service.authorizer.enabled:
        raise precondition_failed(
            "permissions are not enforced by this broker, and are not granted without: set authorizationEnabled=true"
        )


def _without(values_by_name: dict[str, Any], name: str) -> dict[str, Any]:
    return {other: value for other, value in values_by_name.items() if other != name}
