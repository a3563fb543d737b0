"""Handlers of client requests.

With authorization, a request needs the right that Pulsar demands. A request that acts on an open producer or consumer
(SEEK, UNSUBSCRIBE, GET_LAST_MESSAGE_ID, acknowledgements) needs no right beyond that for opening it.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from afterglow.broker import replies
from afterglow.broker.authorization import role_of
from afterglow.broker.commands import Command, request
from afterglow.broker.consumer import Consumer
from afterglow.broker.producer import Producer
from afterglow.broker.replies import set_message_id, signed, to_position
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
    from afterglow.broker.commands import ClientSession, RequestContext
    from afterglow.broker.service import BrokerService
    from afterglow.broker.subscription import Subscription
    from afterglow.broker.topic import Topic
    from afterglow.format.position import Position

log = logging.getLogger(__name__)

SubType = wire.CommandSubscribe

TRANSACTION_COORDINATOR: Final = TopicName.parse("persistent://pulsar/system/transaction_coordinator_assign")
"""The topic by which clients find transaction coordinators. If it has no partitions, the Java and Go clients report at
once that transactions are not enabled; after an ERROR, the Go client retries for 30 s and drops the message."""


@request(Command.PARTITIONED_METADATA, "partitionMetadata")
async def partitioned_metadata(context: RequestContext, ask: wire.CommandPartitionedTopicMetadata) -> wire.BaseCommand:
    """Return the number of partitions of a topic."""
    name = TopicName.parse(ask.topic)
    count = 0
    if name.base != TRANSACTION_COORDINATOR:
        await _check_lookup(context, name, "Get Partition Metadata")
        await _check_namespace(context.service, name.namespace)
        count = await context.service.topic_creator.partitions(name, create=ask.metadata_auto_creation_enabled)
    answer = wire.CommandPartitionedTopicMetadataResponse(
        request_id=ask.request_id, response=wire.CommandPartitionedTopicMetadataResponse.Success, partitions=count
    )
    return wire.BaseCommand(type=Command.PARTITIONED_METADATA_RESPONSE, partitionMetadataResponse=answer)


@request(Command.LOOKUP, "lookupTopic")
async def lookup(context: RequestContext, ask: wire.CommandLookupTopic) -> wire.BaseCommand:
    """Return the broker that serves a topic: always this one."""
    service = context.service
    name = TopicName.parse(ask.topic)
    if name.base == TRANSACTION_COORDINATOR:
        raise replies.transactions_not_supported()
    await _check_lookup(context, name, "Lookup")
    await _check_namespace(service, name.namespace)
    check_listener(ask.advertised_listener_name)
    answer = wire.CommandLookupTopicResponse(
        request_id=ask.request_id,
        response=wire.CommandLookupTopicResponse.Connect,
        authoritative=True,
        proxy_through_service_url=False,
        brokerServiceUrl=service.service_url,
        brokerServiceUrlTls=service.service_url_tls or None,
    )
    return wire.BaseCommand(type=Command.LOOKUP_RESPONSE, lookupTopicResponse=answer)


@request(Command.PRODUCER, "producer")
async def open_producer(context: RequestContext, ask: wire.CommandProducer) -> wire.BaseCommand:
    """Open a producer."""
    if ask.txn_enabled:
        raise replies.transactions_not_supported()
    connection, session = context.connection, context.session
    known = session.producers.get(ask.producer_id)
    if known is not None:
        return replies.producer_success(ask.request_id, known, topic_epoch=known.topic_epoch)
    if ask.producer_id in session.opening:
        raise Refused(
            wire.ServiceNotReady, f"producer {ask.producer_id} is being opened already; wait for the response"
        )
    task = asyncio.current_task()
    assert task is not None
    session.opening[ask.producer_id] = task
    try:
        name, first = TopicName.parse(ask.topic), ask.initial_subscription_name
        changes = await _admit(
            context,
            name.namespace,
            lambda rights: rights.can_produce(name) and (not first or rights.can_consume(name, first)),
            "Produce",
        )
        producer = await _new_producer(context, ask)
        producer.topic_epoch = await producer.topic.add_producer(
            producer, lambda: connection.send(replies.producer_success(ask.request_id, producer, ready=False))
        )
    finally:
        if session.opening.get(ask.producer_id) is task:
            del session.opening[ask.producer_id]
    try:
        _check_unchanged(context.service, name.namespace, changes)
    except Refused:
        producer.topic.remove_producer(producer)
        raise
    session.closed_producers.discard(ask.producer_id)
    session.producers[ask.producer_id] = producer
    return replies.producer_success(ask.request_id, producer, topic_epoch=producer.topic_epoch)


async def _new_producer(context: RequestContext, ask: wire.CommandProducer) -> Producer:
    """Make the producer that a client asks for, without adding it to its topic."""
    service = context.service
    topic = await service.topic(TopicName.parse(ask.topic), create=True)
    if topic.terminated:
        raise Refused(wire.TopicTerminatedError, f"{topic.name} is terminated and accepts no more messages")
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
        context.connection,
        signed(ask.topic_epoch) if ask.HasField("topic_epoch") else None,
        version,
        service.store.clock.now_ms(),
        {pair.key: pair.value for pair in ask.metadata},
    )


async def _producer_schema(
    service: BrokerService, name: TopicName, schema: wire.Schema | None, policies: SchemaPolicies
) -> bytes:
    """The version of a producer's schema; empty without a schema.

    Raises:
        Refused: The topic does not accept the schema, or its absence.
    """
    if schema is not None:
        return await service.blocking(service.schemas.get_or_create, name, schema, policies)
    if policies.validation and await service.blocking(service.schemas.get, name) is not None:
        raise Refused(
            wire.IncompatibleSchema, f"{name} accepts no producer without a schema (schemaValidationEnforced)"
        )
    return NO_VERSION


@request(Command.CLOSE_PRODUCER, "close_producer")
async def close_producer(context: RequestContext, ask: wire.CommandCloseProducer) -> wire.BaseCommand:
    """Close a producer, or cancel its opening; an unknown id counts as closed."""
    session = context.session
    opening = session.opening.pop(ask.producer_id, None)
    if opening is not None:
        opening.cancel()
    producer = session.producers.get(ask.producer_id)
    if producer is not None:
        # The client considers messages lost that have no receipt before this response.
        await producer.wait_answered()
        session.producers.pop(ask.producer_id, None)
        producer.topic.remove_producer(producer)
    return replies.success(ask.request_id)


@request(Command.SUBSCRIBE, "subscribe")
async def subscribe(context: RequestContext, ask: wire.CommandSubscribe) -> wire.BaseCommand:
    """Open a consumer or a reader."""
    service, connection, session = context.service, context.connection, context.session
    if ask.subType not in {SubType.Exclusive, SubType.Shared, SubType.Failover}:
        kind = SubType.SubType.Name(ask.subType)
        raise Refused(wire.NotAllowedError, f"subscriptions of type {kind} are not supported by this broker")
    # Topics are not compacted here: readCompacted gets the plain log, as from Pulsar before the first compaction.
    if ask.read_compacted and ask.subType == SubType.Shared:
        raise Refused(wire.NotAllowedError, "readCompacted only allowed on failover or exclusive subscriptions")
    given = {pair.key: pair.value for pair in ask.metadata}
    wanted = given.get(INSTANCE_PROPERTY)
    if wanted not in {None, service.hot_instance}:
        raise Refused(wire.NotAllowedError, f"this server has the hot log {service.hot_instance}, not {wanted}")
    if ask.consumer_id in session.consumers:
        return replies.success(ask.request_id)
    raw = given.get(RAW_PROPERTY) == "true"
    # A raw reader that names the hot log is one of the server's own. The name is not a secret, so this lifts limits on
    # numbers of consumers only, never authorization.
    internal = raw and not ask.durable and bool(wanted)
    name = TopicName.parse(ask.topic)
    changes = await _admit(
        context, name.namespace, lambda rights: rights.can_consume(name, ask.subscription), "subscribe"
    )
    topic = await service.topic(name, create=ask.force_topic_creation)
    if not internal:
        topic.check_type(ask.subType)
        topic.check_consumer_limits(ask.subscription)
    if ask.HasField("schema"):
        check = partial(service.schemas.check_consumer, is_idle=topic.is_idle)
        await service.blocking(check, topic.name, ask.schema, SchemaPolicies.of(topic.policy))
    subscription = await _subscription(service, topic, ask, given.get(START_PROPERTY) if raw else None)
    _check_unchanged(service, name.namespace, changes)
    consumer = Consumer(
        ask.consumer_id,
        ask.consumer_name,
        ask.priority_level,
        ask.consumer_epoch if ask.HasField("consumer_epoch") else None,
        connection,
        subscription,
        raw=raw,
        internal=internal,
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
        start = to_position(ask.start_message_id)
        if start > topic.ledger.layout.last:
            start = LATEST
    if ask.start_message_rollback_duration_sec:
        since = service.store.clock.now_ms() - 1000 * ask.start_message_rollback_duration_sec
        start = await service.run_in_tier_pool(topic.ledger.reader.find_by_time, since)
    return topic.open_reader(ask.subscription, start)


@request(Command.CLOSE_CONSUMER, "close_consumer")
async def close_consumer(context: RequestContext, ask: wire.CommandCloseConsumer) -> wire.BaseCommand:
    """Close a consumer; an unknown id counts as closed."""
    consumer = context.session.consumers.pop(ask.consumer_id, None)
    if consumer is not None:
        consumer.subscription.remove(consumer)
    return replies.success(ask.request_id)


@request(Command.UNSUBSCRIBE, "unsubscribe")
async def unsubscribe(context: RequestContext, ask: wire.CommandUnsubscribe) -> wire.BaseCommand:
    """Delete a subscription without other consumers."""
    consumer = _consumer(context.session, ask.consumer_id)
    subscription = consumer.subscription
    if len(subscription.consumers) > 1 and not ask.force:
        raise Refused(wire.PersistenceError, f"{subscription} has other consumers; close them first")
    context.session.consumers.pop(ask.consumer_id, None)
    subscription.consumers.remove(consumer)
    subscription.disconnect_consumers()
    await subscription.topic.unsubscribe(subscription)
    return replies.success(ask.request_id)


@request(Command.SEEK, "seek")
async def seek(context: RequestContext, ask: wire.CommandSeek) -> wire.BaseCommand:
    """Move a subscription. Its consumers subscribe again, which also returns the permits of their queued messages."""
    subscription = _consumer(context.session, ask.consumer_id).subscription
    if ask.HasField("message_id"):
        position = to_position(ask.message_id)
        ack_set = tuple(ask.message_id.ack_set) or None
    elif ask.HasField("message_publish_time"):
        position = await context.service.run_in_tier_pool(
            subscription.topic.ledger.reader.find_by_time, ask.message_publish_time
        )
        ack_set = None
    else:
        raise Refused(wire.UnknownError, "SEEK needs a message id or a publish time")
    subscription.disconnect_consumers()
    subscription.reset(position, ack_set)
    return replies.success(ask.request_id)


@request(Command.GET_LAST_MESSAGE_ID, "getLastMessageId")
async def get_last_message_id(context: RequestContext, ask: wire.CommandGetLastMessageId) -> wire.BaseCommand:
    """Return the id of the last message of a consumer's topic."""
    subscription = _consumer(context.session, ask.consumer_id).subscription
    position, batch_index = await subscription.topic.last_message()
    answer = wire.BaseCommand(type=Command.GET_LAST_MESSAGE_ID_RESPONSE)
    response = answer.getLastMessageIdResponse
    response.request_id = ask.request_id
    set_message_id(response.last_message_id, position, subscription.topic.partition)
    response.last_message_id.batch_index = batch_index
    marked: Position = subscription.cursor.mark_delete
    if marked.ledger_id >= 0:
        set_message_id(response.consumer_mark_delete_position, marked)
    return answer


@request(Command.GET_TOPICS_OF_NAMESPACE, "getTopicsOfNamespace")
async def get_topics(context: RequestContext, ask: wire.CommandGetTopicsOfNamespace) -> wire.BaseCommand:
    """Return the topics of a namespace, for subscriptions by pattern."""
    namespace = NamespaceName.parse(ask.namespace)
    await _admit(context, namespace, lambda rights: rights.can_list(), "GetTopicsOfNamespace")
    # A missing namespace has no topics, as in Pulsar: after an error, clients would retry for half a minute.
    topics = await context.service.blocking(context.service.catalog.topics, namespace)
    chosen = choose_topics([str(topic) for topic in topics], ask)
    return wire.BaseCommand(type=Command.GET_TOPICS_OF_NAMESPACE_RESPONSE, getTopicsOfNamespaceResponse=chosen)


@request(Command.GET_SCHEMA, "getSchema")
async def get_schema(context: RequestContext, ask: wire.CommandGetSchema) -> wire.BaseCommand:
    """Return a schema of a topic. Pulsar 4.0 shows it to every client; here it needs the right of the REST call."""
    name = TopicName.parse(ask.topic)
    await _check_lookup(context, name, "GetSchema")
    version = ask.schema_version if ask.HasField("schema_version") else None
    found = await context.service.blocking(context.service.schemas.get, name, version)
    if found is None:
        raise Refused(wire.TopicNotFound, f"schema not found: {ask.topic}")
    answer = wire.CommandGetSchemaResponse(request_id=ask.request_id, schema=found.schema, schema_version=found.version)
    return wire.BaseCommand(type=Command.GET_SCHEMA_RESPONSE, getSchemaResponse=answer)


@request(Command.GET_OR_CREATE_SCHEMA, "getOrCreateSchema")
async def get_or_create_schema(context: RequestContext, ask: wire.CommandGetOrCreateSchema) -> wire.BaseCommand:
    """Return the version of a schema, which is registered if it is new; raw bytes have no version."""
    service = context.service
    is_raw = ask.schema.type == wire.Schema.Type.Value("None")
    name = TopicName.parse(ask.topic)
    await _admit(context, name.namespace, lambda rights: rights.can_produce(name), "GetOrCreateSchema")
    policy = await service.blocking(service.policies.of, name.managed_ledger_name)
    version = await _producer_schema(service, name, None if is_raw else ask.schema, SchemaPolicies.of(policy))
    answer = wire.CommandGetOrCreateSchemaResponse(request_id=ask.request_id, schema_version=version)
    return wire.BaseCommand(type=Command.GET_OR_CREATE_SCHEMA_RESPONSE, getOrCreateSchemaResponse=answer)


@request(Command.CONSUMER_STATS, "consumerStats")
async def consumer_stats(context: RequestContext, ask: wire.CommandConsumerStats) -> wire.BaseCommand:
    """Return statistics of a consumer."""
    consumer = _consumer(context.session, ask.consumer_id)
    answer = wire.CommandConsumerStatsResponse(
        request_id=ask.request_id,
        consumerName=consumer.name,
        availablePermits=max(consumer.permits, 0),
        unackedMessages=consumer.unacknowledged,
        type=SubType.SubType.Name(consumer.subscription.kind),
        msgBacklog=consumer.subscription.cursor.backlog,
    )
    return wire.BaseCommand(type=Command.CONSUMER_STATS_RESPONSE, consumerStatsResponse=answer)


async def _admit(
    context: RequestContext, namespace: NamespaceName, is_allowed: Callable[[RoleRights], bool], action: str
) -> int:
    """Check that the client's role has a right; the error has the words of Pulsar's broker.

    Returns:
        The number of policy changes by which the request was admitted, for :func:`_check_unchanged`.

    Raises:
        Refused: The role does not have the right.
    """
    service = context.service
    changes = service.policy_refresher.changes[namespace]
    if service.authorizer.enabled:
        rights = await service.blocking(service.authorizer.rights, role_of(context.connection), namespace)
        if not is_allowed(rights):
            log.info(
                "%s: the role %r is not authorized to %s in %s", context.connection, rights.role, action, namespace
            )
            raise Refused(wire.AuthorizationError, f"Client is not authorized to {action}")
    return changes


def _check_unchanged(service: BrokerService, namespace: NamespaceName, changes: int) -> None:
    """Check that no right can have been revoked since a request was admitted.

    Raises:
        Refused: Policies have changed since; the client repeats its request.
    """
    if service.authorizer.enabled and service.policy_refresher.changes[namespace] != changes:
        raise Refused(wire.ServiceNotReady, f"policies of {namespace} changed during the request; retry")


async def _check_lookup(context: RequestContext, name: TopicName, action: str) -> None:
    await _admit(context, name.namespace, lambda rights: rights.can_lookup(name), action)


def check_listener(name: str) -> None:
    """Check the listener that a client asks for: the broker has its advertised address only.

    Raises:
        Refused: The client names a listener.
    """
    if name.strip():
        raise Refused(
            wire.ServiceNotReady,
            f"listener not found: {name!r}; leave the listener name empty, the broker has advertisedAddress only",
        )


def _consumer(session: ClientSession, consumer_id: int) -> Consumer:
    consumer = session.consumers.get(consumer_id)
    if consumer is None:
        raise Refused(wire.ConsumerNotFound, f"consumer {consumer_id} is not open on this connection")
    return consumer


async def _check_namespace(service: BrokerService, namespace: NamespaceName) -> None:
    try:
        await service.blocking(service.catalog.policies, namespace)
    except NotFound as error:
        raise Refused(wire.TopicNotFound, f"{error}; create it first") from error
