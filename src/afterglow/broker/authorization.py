"""Authorization: rights of roles, and disconnection of clients whose role has lost its right.

The rules are those of Pulsar's ``PulsarAuthorizationProvider``. They are checked when a client looks a topic up, opens
a producer or a consumer, or calls the admin API; never per message.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from afterglow.broker import replies
from afterglow.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from afterglow.broker.connection import Connection
    from afterglow.broker.service import BrokerService
    from afterglow.broker.topic import Topic
    from afterglow.catalog.catalog import Catalog
    from afterglow.config import BrokerConfig
    from afterglow.metadata.names import NamespaceName, TopicName

log = logging.getLogger(__name__)

AUTH: Final = "auth_policies"
NAMESPACE_AUTH: Final = "namespace_auth"
TOPIC_AUTH: Final = "destination_auth"
SUBSCRIPTION_AUTH: Final = "subscription_auth_roles"
SUBSCRIPTION_AUTH_MODE: Final = "subscription_auth_mode"

PRODUCE: Final = "produce"
CONSUME: Final = "consume"
ACTIONS: Final = (PRODUCE, CONSUME, "functions", "sources", "sinks", "packages")
"""The actions that can be granted. Functions, connectors and packages are not served: their grants have no effect."""


@dataclass(frozen=True, slots=True)
class RoleRights:
    """Rights of one role in one namespace."""

    role: str | None
    is_admin: bool
    """Whether the role is a superuser or an admin of the tenant, who may do everything below it."""
    policies: Mapping[str, Any]
    """Stored policies of the namespace; empty if it does not exist."""
    wildcards: bool = False
    """Whether grants to ``prefix*`` and ``*suffix`` count for every role that matches."""

    def can_produce(self, topic: TopicName) -> bool:
        """Whether the role may publish to a topic."""
        return self.is_admin or self._has(topic, PRODUCE)

    def can_consume(self, topic: TopicName, subscription: str | None = None) -> bool:
        """Whether the role may read a topic, with a subscription if one is given.

        A subscription that names roles admits these only, and they also need the right to consume.
        """
        if self.is_admin:
            return True
        if subscription and not self._can_subscribe(subscription):
            return False
        return self._has(topic, CONSUME)

    def can_lookup(self, topic: TopicName) -> bool:
        """Whether the role may look up a topic, its partitions, schema and statistics."""
        return self.can_produce(topic) or self.can_consume(topic)

    def can_list(self) -> bool:
        """Whether the role may list the topics of the namespace; a grant on a single topic does not suffice."""
        return self.is_admin or self._has_namespace(PRODUCE) or self._has_namespace(CONSUME)

    def _can_subscribe(self, subscription: str) -> bool:
        roles = _auth_field(self.policies, SUBSCRIPTION_AUTH).get(subscription)
        if roles and self.role not in roles:
            return False
        prefixed = self.policies.get(SUBSCRIPTION_AUTH_MODE) == "Prefix"
        return not prefixed or (self.role is not None and subscription.startswith(self.role))

    def _has_namespace(self, action: str) -> bool:
        return self._granted(_auth_field(self.policies, NAMESPACE_AUTH), action)

    def _has(self, topic: TopicName, action: str) -> bool:
        if self._has_namespace(action):
            return True
        by_topic = _auth_field(self.policies, TOPIC_AUTH)
        # A grant on a partitioned topic counts for its partitions, also for those added later.
        return any(self._granted(by_topic.get(str(name)) or {}, action) for name in {topic, topic.base})

    def _granted(self, grants: Mapping[str, Any], action: str) -> bool:
        role = self.role
        if role is None:
            return False
        if action in (grants.get(role) or ()):
            return True
        return self.wildcards and any(action in actions and _matches(role, given) for given, actions in grants.items())


class RoleGrants(Protocol):
    """Stored tenants and namespaces, with the roles that they name. Thread-safe."""

    def tenant(self, tenant: str) -> dict[str, Any]:
        """Settings of a tenant.

        Raises:
            NotFound: The tenant does not exist.
        """
        ...

    def policies(self, namespace: NamespaceName) -> dict[str, Any]:
        """Stored policies of a namespace.

        Raises:
            NotFound: The namespace does not exist.
        """
        ...


class Authorizer:
    """Finds the rights of roles in the stored tenants and policies. Thread-safe.

    Nothing is cached: a grant or a revocation takes effect at the next request.
    """

    def __init__(self, config: BrokerConfig, catalog: RoleGrants) -> None:
        self.enabled = config.authorization_enabled
        """Whether rights are checked."""
        self._catalog = catalog
        self._super_users = frozenset(config.super_user_roles)
        self._wildcards = config.authorization_allow_wildcards_matching

    def is_super_user(self, role: str | None) -> bool:
        """Whether the role may do everything."""
        return role in self._super_users

    def is_tenant_admin(self, role: str | None, tenant: str) -> bool:
        """Whether the role may do everything below a tenant; for a missing tenant only superusers may.

        Raises:
            InvalidName: The tenant's name is not well-formed.
        """
        if self.is_super_user(role):
            return True
        try:
            return role in (self._catalog.tenant(tenant).get("adminRoles") or ())
        except NotFound:
            return False

    def rights(self, role: str | None, namespace: NamespaceName) -> RoleRights:
        """Return the rights of a role in a namespace; reads metadata unless the role is a superuser."""
        if self.is_tenant_admin(role, namespace.tenant):
            return RoleRights(role, is_admin=True, policies={})
        try:
            policies = self._catalog.policies(namespace)
        except NotFound:
            policies = {}
        return RoleRights(role, is_admin=False, policies=policies, wildcards=self._wildcards)


def remove_topic_grants(catalog: Catalog, topic: TopicName) -> None:
    """Remove the grants on a deleted topic, so that they do not apply to a new topic of the same name."""
    with suppress(NotFound):
        if str(topic) in _auth_field(catalog.policies(topic.namespace), TOPIC_AUTH):
            catalog.update_policies(topic.namespace, lambda old: _without_topic(old, topic))


def _auth_field(policies: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (policies.get(AUTH) or {}).get(name) or {}
    return found


def _without_topic(policies: Mapping[str, Any], topic: TopicName) -> dict[str, Any]:
    grants = {name: roles for name, roles in _auth_field(policies, TOPIC_AUTH).items() if name != str(topic)}
    return {**policies, AUTH: {**(policies.get(AUTH) or {}), TOPIC_AUTH: grants}}


def _matches(role: str, pattern: str) -> bool:
    if pattern.endswith("*") and role.startswith(pattern[:-1]):
        return True
    return pattern.startswith("*") and role.endswith(pattern[1:])


def role_of(connection: Connection) -> str | None:
    """The authenticated role of a client."""
    return None if connection.peer is None else connection.peer.role


async def disconnect_unauthorized(service: BrokerService, namespace: NamespaceName) -> None:
    """Disconnect producers and consumers of a namespace whose role has lost its right.

    Their clients reconnect and are refused with an AuthorizationError.
    """
    topics = [topic for name, topic in service.open_topics.items() if name.namespace == namespace]
    roles = {role_of(connection) for topic in topics for connection in _connections(topic)}
    # Requests that are under way notice the change of policies themselves, see `requests._check_unchanged`.
    rights = {role: await service.blocking(service.authorizer.rights, role, namespace) for role in roles}
    for topic in topics:
        for producer in list(topic.producers.values()):
            found = rights.get(role_of(producer.connection))
            if found is not None and not found.can_produce(topic.name):
                log.info("disconnected a producer: the role %r may no longer produce to %s", found.role, topic.name)
                topic.disconnect_producer(producer)
        for subscription in list(topic.subscriptions.values()):
            for consumer in list(subscription.consumers):
                found = rights.get(role_of(consumer.connection))
                if found is not None and not found.can_consume(topic.name, subscription.name):
                    log.info("disconnected a consumer: the role %r may no longer consume %s", found.role, subscription)
                    consumer.connection.send(replies.close_consumer(consumer.consumer_id))
                    consumer.connection.session.consumers.pop(consumer.consumer_id, None)
                    subscription.remove(consumer)


def _connections(topic: Topic) -> Iterable[Connection]:
    yield from (producer.connection for producer in topic.producers.values())
    for subscription in topic.subscriptions.values():
        yield from (consumer.connection for consumer in subscription.consumers)
