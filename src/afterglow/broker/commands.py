"""What each command of a client does.

Commands that need the disk or the metadata store run as tasks of their connection, so that none holds up another; a
client that wants an order waits for the answer, as the protocol has it. SEND, ACK and FLOW are done at once.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from afterglow.broker import replies
from afterglow.errors import AfterglowError
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.wire import Refused

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from google.protobuf.message import Message

    from afterglow.broker.auth import Principal
    from afterglow.broker.connection import Connection
    from afterglow.broker.consumers import Consumer
    from afterglow.broker.producers import Producer
    from afterglow.broker.service import BrokerService

log = logging.getLogger(__name__)

Kind = wire.BaseCommand


@dataclass(slots=True)
class Session:
    """What a client has open on one connection, by the ids it chose."""

    producers: dict[int, Producer] = field(default_factory=dict)
    consumers: dict[int, Consumer] = field(default_factory=dict)
    opening: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    """The requests that open producers, by the producers' ids, until they are answered for good."""
    closed_producers: set[int] = field(default_factory=set)
    """Closed by the broker: what the client had sent meanwhile is passed over."""


C = TypeVar("C", bound="Message")


def copied(message: C) -> C:
    """A message that outlives the command it came in: the connection reads the next one into the same object."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


class Commands:
    """Takes the commands of all connections."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service

    def authenticate(self, method: str, data: bytes) -> Principal:
        """Who the client has proved to be.

        Raises:
            Refused: It has proved nothing that counts.
        """
        return self._service.authenticator.authenticate(method, data)

    def can_act_for(self, role: str | None, original: str) -> bool:
        """Whether a client may name another role: with authorization, nobody may, since there are no proxy roles."""
        return not self._service.authorizer.enabled or role == original

    def closed(self, connection: Connection) -> None:
        """The connection is gone: so is everything that was open on it."""
        session: Session | None = connection.session
        self._service.connections.discard(connection)
        if session is None:
            return
        for producer in session.producers.values():
            producer.topic.remove_producer(producer)
        for consumer in session.consumers.values():
            consumer.subscription.remove(consumer)
        session.producers.clear()
        session.consumers.clear()

    def writable(self, connection: Connection) -> None:
        """The client reads again."""
        if connection.session is not None:
            for consumer in connection.session.consumers.values():
                consumer.subscription.wake()

    def command(self, connection: Connection, command: wire.BaseCommand, payload: memoryview) -> None:
        """Take one command."""
        if connection.session is None:
            connection.session = Session()
        session: Session = connection.session
        kind = command.type
        if kind == Kind.SEND:
            self._send(connection, session, command.send, payload)
        elif kind == Kind.FLOW:
            consumer = session.consumers.get(command.flow.consumer_id)
            if consumer is not None:
                consumer.subscription.flow(consumer, command.flow.messagePermits)
        elif kind == Kind.ACK:
            self._ack(connection, session, copied(command.ack))
        elif kind == Kind.REDELIVER_UNACKNOWLEDGED_MESSAGES:
            request = copied(command.redeliverUnacknowledgedMessages)
            consumer = session.consumers.get(request.consumer_id)
            if consumer is not None:
                consumer.subscription.redeliver(consumer, request)
        else:
            self._ask(connection, session, command)

    def _send(self, connection: Connection, session: Session, send: wire.CommandSend, payload: memoryview) -> None:
        producer = session.producers.get(send.producer_id)
        if producer is not None:
            producer.send(send, payload)
        elif send.producer_id not in session.closed_producers:
            connection.fail(f"sent a message for producer {send.producer_id}, which it has not opened")

    def _ack(self, connection: Connection, session: Session, ack: wire.CommandAck) -> None:
        consumer = session.consumers.get(ack.consumer_id)
        if consumer is None:
            return
        problem: Refused | None = None
        try:
            consumer.subscription.acknowledge(consumer, ack)
        except AfterglowError as error:
            problem = replies.refusal(error)
        if not ack.HasField("request_id"):
            return
        answer = wire.BaseCommand(type=Kind.ACK_RESPONSE)
        answer.ackResponse.consumer_id = ack.consumer_id
        answer.ackResponse.request_id = ack.request_id
        if problem is None:
            # Who asks for an answer wants to know that the acknowledgement would survive.
            consumer.subscription.persist(lambda error: connection.send(_with_problem(answer, error)))
        else:
            connection.send(_with_problem(answer, problem))

    def _ask(self, connection: Connection, session: Session, command: wire.BaseCommand) -> None:
        """A command that carries a request id and is answered."""
        entry = _REQUESTS.get(command.type)
        if entry is None:
            self._unknown(connection, command)
            return
        field_name, handle = entry
        request = copied(getattr(command, field_name))
        connection.run(self._answer(connection, session, request, handle))

    async def _answer(
        self, connection: Connection, session: Session, request: Any, handle: Callable[..., Awaitable[wire.BaseCommand]]
    ) -> None:
        try:
            answer = await handle(self._service, connection, session, request)
        except AfterglowError as error:
            answer = _failure(request, replies.refusal(error))
        except Exception:
            log.exception("%s: a %s failed", connection, type(request).__name__)
            answer = _failure(request, replies.refusal(RuntimeError()))
        connection.send(answer)

    @staticmethod
    def _unknown(connection: Connection, command: wire.BaseCommand) -> None:
        name = Kind.Type.Name(command.type)
        refused = Refused(wire.NotAllowedError, f"{name} is not supported by this broker")
        if "TXN" in name or name.startswith(("TC_", "WATCH_TC_")):
            refused = replies.no_transactions()
        request_id = _request_id(command)
        if request_id is None:
            log.info("%s: %s was passed over", connection, name)
        else:
            connection.send(replies.error(request_id, refused))


def _request_id(command: wire.BaseCommand) -> int | None:
    """The request id of a command that nobody here takes; None where it has none."""
    for _, value in command.ListFields():
        found: int | None = getattr(value, "request_id", None)
        if found is not None:
            return found
    others: Any = UnknownFieldSet(command)
    for other in others:
        # Every request of the protocol has its id as field 1, as SUCCESS has: also those that we have no message for.
        if isinstance(other.data, bytes):
            with suppress(DecodeError):
                return wire.CommandSuccess.FromString(other.data).request_id
    return None


def _with_problem(answer: wire.BaseCommand, error: AfterglowError | None) -> wire.BaseCommand:
    if error is not None:
        refused = replies.refusal(error)
        answer.ackResponse.error = refused.code
        answer.ackResponse.message = str(refused)
    return answer


def _failure(request: Any, refused: Refused) -> wire.BaseCommand:
    """The answer that says no, in the form that the client waits for."""
    answer = wire.BaseCommand()
    if isinstance(request, wire.CommandLookupTopic):
        answer.type = Kind.LOOKUP_RESPONSE
        answer.lookupTopicResponse.request_id = request.request_id
        answer.lookupTopicResponse.response = wire.CommandLookupTopicResponse.Failed
        answer.lookupTopicResponse.error = refused.code
        answer.lookupTopicResponse.message = str(refused)
    elif isinstance(request, wire.CommandPartitionedTopicMetadata):
        answer.type = Kind.PARTITIONED_METADATA_RESPONSE
        answer.partitionMetadataResponse.request_id = request.request_id
        answer.partitionMetadataResponse.response = wire.CommandPartitionedTopicMetadataResponse.Failed
        answer.partitionMetadataResponse.error = refused.code
        answer.partitionMetadataResponse.message = str(refused)
    elif isinstance(request, wire.CommandGetSchema):
        answer.type = Kind.GET_SCHEMA_RESPONSE
        answer.getSchemaResponse.request_id = request.request_id
        answer.getSchemaResponse.error_code = refused.code
        answer.getSchemaResponse.error_message = str(refused)
    elif isinstance(request, wire.CommandGetOrCreateSchema):
        answer.type = Kind.GET_OR_CREATE_SCHEMA_RESPONSE
        answer.getOrCreateSchemaResponse.request_id = request.request_id
        answer.getOrCreateSchemaResponse.error_code = refused.code
        answer.getOrCreateSchemaResponse.error_message = str(refused)
    elif isinstance(request, wire.CommandConsumerStats):
        answer.type = Kind.CONSUMER_STATS_RESPONSE
        answer.consumerStatsResponse.request_id = request.request_id
        answer.consumerStatsResponse.error_code = refused.code
        answer.consumerStatsResponse.error_message = str(refused)
    else:
        return replies.error(request.request_id, refused)
    return answer


def request(kind: Kind.Type.ValueType, field_name: str) -> Callable[[Any], Any]:
    """Register the function that answers a command."""

    def mark(function: Any) -> Any:
        _REQUESTS[kind] = (field_name, function)
        return function

    return mark


_REQUESTS: dict[int, tuple[str, Callable[..., Awaitable[wire.BaseCommand]]]] = {}
