"""What answers each request of a client.

With authorization, a request needs the right that Pulsar asks for. What acts on an open producer or consumer (SEEK,
UNSUBSCRIBE, GET_LAST_MESSAGE_ID, acknowledgements) needs no more than it took to open that one.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from afterglow.broker import replies
from afterglow.broker.authorization import role_of
from afterglow.broker.commands import Kind, request
from afterglow.broker.consumers import Consumer
from afterglow.broker.producers import Producer
from afterglow.broker.replies import set_message_id, signed
from afterglow.broker.subscription import position_of
from afterglow.broker.topic_list import choose_topics
from afterglow.catalog.schema_compatibility import is_any
from afterglow.catalog.schema_registry import NO_VERSION, SchemaPolicies
from afterglow.errors import NotFound
from afterglow.format.position import EARLIEST, LATEST, parse_position
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.wire import INSTANCE_PROPERTY, OFFLOAD_PROPERTY, RAW_PROPERTY, START_PROPERTY, Refused
from afterglow.metadata.names import NamespaceName, TopicName

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.broker.authorization import RoleRights
    from afterglow.broker.commands import Session
    from afterglow.broker.connection import Connection
    from afterglow.broker.service import BrokerService
    from afterglow.broker.subscription import Subscription
    from afterglow.broker.topic import Topic
    from afterglow.format.position import Position

log = logging.getLogger(__name__)

SubType = wire.CommandSubscribe

TRANSACTION_COORDINATOR: Final = TopicName.parse("persistent://pulsar/system/transaction_coordinator_assign")
"""The topic by which clients find the coordinators of transactions. Where it has no partitions, Java's and Go's clients
say at once that transactions are not enabled; Go's retries an ERROR for 30 s, and drops a failed answer's message."""


@request(Kind.PARTITIONED_METADATA, "partitionMetadata")
async def partitioned_metadata(
    service: BrokerService, connection: Connection, _session: Session, ask: wire.CommandPartitionedTopicMetadata
) -> wire.BaseCommand:
    """How many partitions a topic has."""
    name = TopicName.parse(ask.topic)
    count = 0
    if name.base != TRANSACTION_COORDINATOR:
        await _may_lookup(service, connection, name, "Get Partition Metadata")
        await _namespace_exists(service, name.namespace)
        count = await service.partitions(name, create=ask.metadata_auto_creation_enabled)
    answer = wire.BaseCommand(type=Kind.PARTITIONED_METADATA_RESPONSE)
    answer.partitionMetadataResponse.request_id = ask.request_id
    answer.partitionMetadataResponse.response = wire.CommandPartitionedTopicMetadataResponse.Success
    answer.partitionMetadataResponse.partitions = count
    return answer


@request(Kind.LOOKUP, "lookupTopic")
async def lookup(
    service: BrokerService, connection: Connection, _session: Session, ask: wire.CommandLookupTopic
) -> wire.BaseCommand:
    """Which broker serves a topic: this one."""
    name = TopicName.parse(ask.topic)
    if name.base == TRANSACTION_COORDINATOR:
        raise replies.no_transactions()
    await _may_lookup(service, connection, name, "Lookup")
    await _namespace_exists(service, name.namespace)
    check_listener(ask.advertised_listener_name)
    answer = wire.BaseCommand(type=Kind.LOOKUP_RESPONSE)
    response = answer.lookupTopicResponse
    response.request_id = ask.request_id
    response.response = wire.CommandLookupTopicResponse.Connect
    response.authoritative = True
    response.proxy_through_service_url = False
    response.brokerServiceUrl = service.service_url
    if service.service_url_tls:
        response.brokerServiceUrlTls = service.service_url_tls
    return answer


@request(Kind.PRODUCER, "producer")
async def open_producer(
    service: BrokerService, connection: Connection, session: Session, ask: wire.CommandProducer
) -> wire.BaseCommand:
    """Open a producer."""
    if ask.txn_enabled:
        raise replies.no_transactions()
    known = session.producers.get(ask.producer_id)
    if known is not None:
        return replies.producer_success(ask.request_id, known, topic_epoch=known.topic_epoch)
    if ask.producer_id in session.opening:
        raise Refused(wire.ServiceNotReady, f"producer {ask.producer_id} is being opened already; wait for the answer")
    task = asyncio.current_task()
    assert task is not None
    session.opening[ask.producer_id] = task
    try:
        admission = await _admit_producer(service, connection, ask)
        producer = await _new_producer(service, connection, ask)
        producer.topic_epoch = await producer.topic.add_producer(
            producer, lambda: connection.send(replies.producer_success(ask.request_id, producer, ready=False))
        )
    finally:
        if session.opening.get(ask.producer_id) is task:
            del session.opening[ask.producer_id]
    if admission.is_outdated():
        producer.topic.remove_producer(producer)
        raise admission.outdated()
    session.closed_producers.discard(ask.producer_id)
    session.producers[ask.producer_id] = producer
    return replies.producer_success(ask.request_id, producer, topic_epoch=producer.topic_epoch)


async def _admit_producer(service: BrokerService, connection: Connection, ask: wire.CommandProducer) -> Admission:
    name = TopicName.parse(ask.topic)
    first = ask.initial_subscription_name
    return await _admit(
        service,
        connection,
        name.namespace,
        lambda rights: rights.can_produce(name) and (not first or rights.can_consume(name, first)),
        "Produce",
    )


async def _new_producer(service: BrokerService, connection: Connection, ask: wire.CommandProducer) -> Producer:
    """A producer as a client wants it, not added to its topic yet."""
    topic = await service.topic(TopicName.parse(ask.topic), create=True)
    if topic.terminated:
        raise Refused(wire.TopicTerminatedError, f"{topic.name} was terminated and takes no more messages")
    schema = ask.schema if ask.HasField("schema") else None
    version = await _producer_schema(service, topic.name, schema, SchemaPolicies.of(topic.policy))
    if ask.initial_subscription_name:
        await topic.subscribe(ask.initial_subscription_name, SubType.Exclusive, earliest=True)
    return Producer(
        ask.producer_id,
        ask.producer_name or topic.next_producer_name(),
        ask.epoch,
        ask.producer_access_mode,
        topic,
        connection,
        signed(ask.topic_epoch) if ask.HasField("topic_epoch") else None,
        version,
        service.store.clock.now_ms(),
        {pair.key: pair.value for pair in ask.metadata},
    )


async def _producer_schema(
    service: BrokerService, name: TopicName, schema: wire.Schema | None, policies: SchemaPolicies
) -> bytes:
    """The version of what a producer brings; nothing where it brings no schema.

    Raises:
        Refused: The topic does not take it.
    """
    if schema is not None:
        return await service.blocking(service.schemas.get_or_create, name, schema, policies)
    if policies.validation and await service.blocking(service.schemas.get, name) is not None:
        raise Refused(
            wire.IncompatibleSchema, f"{name} has a schema and takes no producer without (schemaValidationEnforced)"
        )
    return NO_VERSION


@request(Kind.CLOSE_PRODUCER, "close_producer")
async def close_producer(
    _service: BrokerService, _connection: Connection, session: Session, ask: wire.CommandCloseProducer
) -> wire.BaseCommand:
    """Close a producer; one that is not open is closed already, and one that waits for its topic leaves the queue."""
    opening = session.opening.pop(ask.producer_id, None)
    if opening is not None:
        opening.cancel()
    producer = session.producers.get(ask.producer_id)
    if producer is not None:
        # The client takes what has no receipt by the time of our answer for lost.
        await producer.answered()
        session.producers.pop(ask.producer_id, None)
        producer.topic.remove_producer(producer)
    return replies.success(ask.request_id)


@request(Kind.SUBSCRIBE, "subscribe")
async def subscribe(
    service: BrokerService, connection: Connection, session: Session, ask: wire.CommandSubscribe
) -> wire.BaseCommand:
    """Open a consumer or a reader."""
    if ask.subType not in {SubType.Exclusive, SubType.Shared, SubType.Failover}:
        kind = SubType.SubType.Name(ask.subType)
        raise Refused(wire.NotAllowedError, f"subscriptions of type {kind} are not supported by this broker")
    # Nothing is compacted here: who reads compacted gets the plain log, as from Pulsar before the first compaction.
    if ask.read_compacted and ask.subType == SubType.Shared:
        raise Refused(wire.NotAllowedError, "readCompacted only allowed on failover or exclusive subscriptions")
    given = {pair.key: pair.value for pair in ask.metadata}
    wanted = given.get(INSTANCE_PROPERTY)
    if wanted not in {None, service.hot_instance}:
        raise Refused(wire.NotAllowedError, f"this is the hot log {service.hot_instance}, not {wanted}")
    if ask.consumer_id in session.consumers:
        return replies.success(ask.request_id)
    raw = given.get(RAW_PROPERTY) == "true"
    # Who knows the hot log by name reads for the server. That is no secret: limits keep order, they keep nobody out.
    own = raw and not ask.durable and bool(wanted)
    name = TopicName.parse(ask.topic)
    admission = await _admit(
        service, connection, name.namespace, lambda rights: rights.can_consume(name, ask.subscription), "subscribe"
    )
    topic = await service.topic(name, create=ask.force_topic_creation)
    if not own:
        topic.check_type(ask.subType)
        topic.check_room(ask.subscription)
    if ask.HasField("schema"):
        check = partial(service.schemas.check_consumer, is_idle=topic.is_idle)
        await service.blocking(check, topic.name, ask.schema, SchemaPolicies.of(topic.policy))
    subscription = await _subscription(service, topic, ask, given.get(START_PROPERTY) if raw else None)
    if admission.is_outdated():
        raise admission.outdated()
    consumer = Consumer(
        ask.consumer_id,
        ask.consumer_name,
        ask.priority_level,
        ask.consumer_epoch if ask.HasField("consumer_epoch") else None,
        connection,
        subscription,
        raw=raw,
        own=own,
        any_schema=ask.HasField("schema") and is_any(ask.schema),
        offloads=raw and given.get(OFFLOAD_PROPERTY) == "true",
        since_ms=service.store.clock.now_ms(),
        properties=given,
    )
    subscription.add(consumer, ask.subType)
    session.consumers[ask.consumer_id] = consumer
    if connection.closing:
        subscription.remove(consumer)
    return replies.success(ask.request_id)


async def _subscription(
    service: BrokerService, topic: Topic, ask: wire.CommandSubscribe, first: str | None
) -> Subscription:
    if ask.durable:
        return await topic.subscribe(
            ask.subscription,
            ask.subType,
            earliest=ask.initialPosition == SubType.Earliest,
            create=topic.policy.allow_auto_subscription_creation,
        )
    start = EARLIEST if ask.initialPosition == SubType.Earliest else LATEST
    if first is not None:
        start, _ = parse_position(first)
    elif ask.HasField("start_message_id"):
        start = position_of(ask.start_message_id)
        if start > topic.ledger.layout.last:
            start = LATEST
    if ask.start_message_rollback_duration_sec:
        since = service.store.clock.now_ms() - 1000 * ask.start_message_rollback_duration_sec
        start = await service.run_in_tier_pool(topic.ledger.reader.find_by_time, since)
    return topic.read_from(ask.subscription, start)


@request(Kind.CLOSE_CONSUMER, "close_consumer")
async def close_consumer(
    _service: BrokerService, _connection: Connection, session: Session, ask: wire.CommandCloseConsumer
) -> wire.BaseCommand:
    """Close a consumer; one that is not open is closed already."""
    consumer = session.consumers.pop(ask.consumer_id, None)
    if consumer is not None:
        consumer.subscription.remove(consumer)
    return replies.success(ask.request_id)


@request(Kind.UNSUBSCRIBE, "unsubscribe")
async def unsubscribe(
    _service: BrokerService, _connection: Connection, session: Session, ask: wire.CommandUnsubscribe
) -> wire.BaseCommand:
    """Delete a subscription that nobody else uses."""
    consumer = _consumer(session, ask.consumer_id)
    subscription = consumer.subscription
    if len(subscription.consumers) > 1 and not ask.force:
        raise Refused(wire.PersistenceError, f"{subscription} has other consumers")
    session.consumers.pop(ask.consumer_id, None)
    subscription.consumers.remove(consumer)
    subscription.disconnect_consumers()
    await subscription.topic.unsubscribe(subscription)
    return replies.success(ask.request_id)


@request(Kind.SEEK, "seek")
async def seek(
    service: BrokerService, _connection: Connection, session: Session, ask: wire.CommandSeek
) -> wire.BaseCommand:
    """Move a subscription. Its consumers subscribe again, which also returns the permits of what they had queued."""
    subscription = _consumer(session, ask.consumer_id).subscription
    if ask.HasField("message_id"):
        position = position_of(ask.message_id)
        ack_set = tuple(ask.message_id.ack_set) or None
    elif ask.HasField("message_publish_time"):
        reader = subscription.topic.ledger.reader
        position = await service.run_in_tier_pool(reader.find_by_time, ask.message_publish_time)
        ack_set = None
    else:
        raise Refused(wire.UnknownError, "a SEEK names a message or a time")
    subscription.disconnect_consumers()
    subscription.reset(position, ack_set)
    return replies.success(ask.request_id)


@request(Kind.GET_LAST_MESSAGE_ID, "getLastMessageId")
async def get_last_message_id(
    _service: BrokerService, _connection: Connection, session: Session, ask: wire.CommandGetLastMessageId
) -> wire.BaseCommand:
    """The last message of a consumer's topic."""
    subscription = _consumer(session, ask.consumer_id).subscription
    position, batch_index = await subscription.topic.last_message()
    answer = wire.BaseCommand(type=Kind.GET_LAST_MESSAGE_ID_RESPONSE)
    response = answer.getLastMessageIdResponse
    response.request_id = ask.request_id
    set_message_id(response.last_message_id, position, subscription.topic.partition)
    response.last_message_id.batch_index = batch_index
    marked: Position = subscription.cursor.mark_delete
    if marked.ledger_id >= 0:
        set_message_id(response.consumer_mark_delete_position, marked)
    return answer


@request(Kind.GET_TOPICS_OF_NAMESPACE, "getTopicsOfNamespace")
async def get_topics(
    service: BrokerService, connection: Connection, _session: Session, ask: wire.CommandGetTopicsOfNamespace
) -> wire.BaseCommand:
    """The topics of a namespace, for subscriptions by pattern."""
    namespace = NamespaceName.parse(ask.namespace)
    await _admit(service, connection, namespace, lambda rights: rights.can_list(), "GetTopicsOfNamespace")
    # A namespace that does not exist has no topics, as on Pulsar: clients retry for half a minute after an error.
    topics = await service.blocking(service.catalog.topics, namespace)
    chosen = choose_topics([str(topic) for topic in topics], ask)
    answer = wire.BaseCommand(type=Kind.GET_TOPICS_OF_NAMESPACE_RESPONSE)
    answer.getTopicsOfNamespaceResponse.CopyFrom(chosen)
    return answer


@request(Kind.GET_SCHEMA, "getSchema")
async def get_schema(
    service: BrokerService, connection: Connection, _session: Session, ask: wire.CommandGetSchema
) -> wire.BaseCommand:
    """A topic's schema. Pulsar 4.0 shows it to every client; here it needs the right that its REST API asks for."""
    name = TopicName.parse(ask.topic)
    await _may_lookup(service, connection, name, "GetSchema")
    version = ask.schema_version if ask.HasField("schema_version") else None
    found = await service.blocking(service.schemas.get, name, version)
    if found is None:
        raise Refused(wire.TopicNotFound, f"{ask.topic} has no such schema")
    answer = wire.BaseCommand(type=Kind.GET_SCHEMA_RESPONSE)
    answer.getSchemaResponse.request_id = ask.request_id
    answer.getSchemaResponse.schema.CopyFrom(found.schema)
    answer.getSchemaResponse.schema_version = found.version
    return answer


@request(Kind.GET_OR_CREATE_SCHEMA, "getOrCreateSchema")
async def get_or_create_schema(
    service: BrokerService, connection: Connection, _session: Session, ask: wire.CommandGetOrCreateSchema
) -> wire.BaseCommand:
    """The version of a schema, which is new if the schema is; raw bytes have none."""
    is_raw = ask.schema.type == wire.Schema.Type.Value("None")
    name = TopicName.parse(ask.topic)
    await _admit(service, connection, name.namespace, lambda rights: rights.can_produce(name), "GetOrCreateSchema")
    policy = await service.blocking(service.policies.of, name.managed_ledger_name)
    version = await _producer_schema(service, name, None if is_raw else ask.schema, SchemaPolicies.of(policy))
    answer = wire.BaseCommand(type=Kind.GET_OR_CREATE_SCHEMA_RESPONSE)
    answer.getOrCreateSchemaResponse.request_id = ask.request_id
    answer.getOrCreateSchemaResponse.schema_version = version
    return answer


@request(Kind.CONSUMER_STATS, "consumerStats")
async def consumer_stats(
    _service: BrokerService, _connection: Connection, session: Session, ask: wire.CommandConsumerStats
) -> wire.BaseCommand:
    """What a client may ask about its consumer."""
    consumer = _consumer(session, ask.consumer_id)
    answer = wire.BaseCommand(type=Kind.CONSUMER_STATS_RESPONSE)
    response = answer.consumerStatsResponse
    response.request_id = ask.request_id
    response.consumerName = consumer.name
    response.availablePermits = max(consumer.permits, 0)
    response.unackedMessages = consumer.unacknowledged
    response.type = SubType.SubType.Name(consumer.subscription.kind)
    response.msgBacklog = consumer.subscription.cursor.backlog
    return answer


@dataclass(frozen=True, slots=True)
class Admission:
    """The state of the policies by which a request was admitted."""

    service: BrokerService
    namespace: NamespaceName
    changes: int

    def is_outdated(self) -> bool:
        """Whether policies have changed since, so that a right may have been revoked while the request was served."""
        return self.service.authorizer.enabled and self.service.policy_changes_of(self.namespace) != self.changes

    def outdated(self) -> Refused:
        """The answer after which the client asks again."""
        return Refused(wire.ServiceNotReady, f"policies of {self.namespace} changed while this was opened; try again")


async def _admit(
    service: BrokerService,
    connection: Connection,
    namespace: NamespaceName,
    is_allowed: Callable[[RoleRights], bool],
    what: str,
) -> Admission:
    """Admit a request whose role has the right, in the words of Pulsar's broker otherwise.

    Raises:
        Refused: It has not.
    """
    changes = service.policy_changes_of(namespace)
    if service.authorizer.enabled:
        rights = await service.blocking(service.authorizer.rights, role_of(connection), namespace)
        if not is_allowed(rights):
            log.info("%s: the role %r is not authorized to %s in %s", connection, rights.role, what, namespace)
            raise Refused(wire.AuthorizationError, f"Client is not authorized to {what}")
    return Admission(service, namespace, changes)


async def _may_lookup(service: BrokerService, connection: Connection, name: TopicName, what: str) -> None:
    await _admit(service, connection, name.namespace, lambda rights: rights.can_lookup(name), what)


def check_listener(name: str) -> None:
    """Check a listener that a client wants to be sent to: there are none beside the broker's own address.

    Raises:
        Refused: It names one.
    """
    if name.strip():
        raise Refused(
            wire.ServiceNotReady,
            f"the broker does not have the listener {name!r}: its one address is advertisedAddress; name no listener",
        )


def _consumer(session: Session, consumer_id: int) -> Consumer:
    consumer = session.consumers.get(consumer_id)
    if consumer is None:
        raise Refused(wire.ConsumerNotFound, f"consumer {consumer_id} is not open on this connection")
    return consumer


async def _namespace_exists(service: BrokerService, namespace: NamespaceName) -> None:
    try:
        await service.blocking(service.catalog.policies, namespace)
    except NotFound as error:
        raise Refused(wire.TopicNotFound, f"{error}; create it first") from error
