"""Disconnects producers and consumers whose role has lost its right, as Pulsar does after a change of policies."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from afterglow.broker import replies

if TYPE_CHECKING:
    from collections.abc import Iterable

    from afterglow.broker.connection import Connection
    from afterglow.broker.service import BrokerService
    from afterglow.broker.topic import Topic
    from afterglow.metadata.names import NamespaceName

log = logging.getLogger(__name__)


def role_of(connection: Connection) -> str | None:
    """The role that a client proved."""
    return None if connection.peer is None else connection.peer.role


async def disconnect_unauthorized(service: BrokerService, namespace: NamespaceName) -> None:
    """Disconnect open producers and consumers of a namespace that would not be admitted any more.

    Their clients come back and are refused with an AuthorizationError.
    """
    topics = [topic for name, topic in service.open_topics.items() if name.namespace == namespace]
    roles = {role_of(connection) for topic in topics for connection in _connections(topic)}
    # A client that opens something meanwhile is judged by the new policies, see `requests.Admission`.
    rights = {role: await service.blocking(service.authorizer.rights, role, namespace) for role in roles}
    for topic in topics:
        for producer in list(topic.producers.values()):
            found = rights.get(role_of(producer.connection))
            if found is not None and not found.can_produce(topic.name):
                log.info("the role %r may not produce to %s any more: disconnected", found.role, topic.name)
                topic.disconnect_producer(producer)
        for subscription in list(topic.subscriptions.values()):
            for consumer in list(subscription.consumers):
                found = rights.get(role_of(consumer.connection))
                if found is not None and not found.can_consume(topic.name, subscription.name):
                    log.info("the role %r may not consume %s any more: disconnected", found.role, subscription)
                    consumer.connection.send(replies.close_consumer(consumer.consumer_id))
                    consumer.connection.session.consumers.pop(consumer.consumer_id, None)
                    subscription.remove(consumer)


def _connections(topic: Topic) -> Iterable[Connection]:
    yield from (producer.connection for producer in topic.producers.values())
    for subscription in topic.subscriptions.values():
        yield from (consumer.connection for consumer in subscription.consumers)
