"""Handling of client commands.

Commands that need the disk or the metadata store run as tasks of their connection, so that none delays another; a
client that wants an order waits for each response, as the protocol demands. SEND, ACK and FLOW are handled at once.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from afterglow.broker import replies
from afterglow.errors import AfterglowError
from afterglow.format.new_entries import by_producer
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.wire import Refused

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    import numpy as np
    from google.protobuf.message import Message
    from numpy.typing import NDArray

    from afterglow.broker.auth import Principal
    from afterglow.broker.connection import Connection
    from afterglow.broker.consumer import Consumer
    from afterglow.broker.producer import Producer
    from afterglow.broker.service import BrokerService

log = logging.getLogger(__name__)

Command = wire.BaseCommand


@dataclass(slots=True)
class ClientSession:
    """Open producers and consumers of one connection, by the ids that the client chose."""

    producers: dict[int, Producer] = field(default_factory=dict)
    consumers: dict[int, Consumer] = field(default_factory=dict)
    opening: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    """Unanswered requests to open a producer, by producer id."""
    closed_producers: set[int] = field(default_factory=set)
    """Producers that the broker has closed: messages that the client sent meanwhile are ignored."""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The broker and the connection of one request."""

    service: BrokerService
    connection: Connection
    session: ClientSession


M = TypeVar("M", bound="Message")


def copied(message: M) -> M:
    """A copy that outlives the command: the connection parses the next command into the same object."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


class Commands:
    """Handles the commands of all connections; see :class:`~afterglow.broker.connection.Handler`."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service

    def authenticate(self, method: str, data: bytes) -> Principal:
        """Return the principal that the client has proved to be.

        Raises:
            Refused: The credentials are missing or not valid.
        """
        return self._service.authenticator.authenticate(method, data)

    def can_act_for(self, role: str | None, original: str) -> bool:
        """Whether a client may name another role: never with authorization, since proxy roles are not supported."""
        return not self._service.authorizer.enabled or role == original

    def closed(self, connection: Connection) -> None:
        """Close all producers and consumers of a lost connection."""
        session: ClientSession | None = connection.session
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
        """Resume dispatch to the consumers of a connection whose client reads again."""
        if connection.session is not None:
            for consumer in connection.session.consumers.values():
                consumer.subscription.wake()

    def command(self, connection: Connection, command: wire.BaseCommand, payload: memoryview) -> None:
        """Handle one command."""
        if connection.session is None:
            connection.session = ClientSession()
        session: ClientSession = connection.session
        kind = command.type
        if kind == Command.SEND:
            self._send(connection, session, command.send, payload)
        elif kind == Command.FLOW:
            consumer = session.consumers.get(command.flow.consumer_id)
            if consumer is not None:
                consumer.subscription.flow(consumer, command.flow.messagePermits)
        elif kind == Command.ACK:
            self._ack(connection, session, copied(command.ack))
        elif kind == Command.REDELIVER_UNACKNOWLEDGED_MESSAGES:
            request = copied(command.redeliverUnacknowledgedMessages)
            consumer = session.consumers.get(request.consumer_id)
            if consumer is not None:
                consumer.subscription.redeliver(consumer, request)
        elif (entry := _REQUESTS.get(kind)) is not None:
            field_name, handle = entry
            context = RequestContext(self._service, connection, session)
            connection.run(self._answer(context, copied(getattr(command, field_name)), handle))
        else:
            self._refuse_unknown(connection, command)

    def _send(
        self, connection: Connection, session: ClientSession, send: wire.CommandSend, payload: memoryview
    ) -> None:
        producer = session.producers.get(send.producer_id)
        if producer is not None:
            producer.send(send, payload)
        elif send.producer_id not in session.closed_producers:
            connection.fail(f"sent a message for producer {send.producer_id}, which it has not opened")

    def sends(self, connection: Connection, data: NDArray[np.uint8], rows: NDArray[np.int64]) -> None:
        """Store the messages of many SENDs, those of each producer together."""
        session: ClientSession = connection.session
        for producer_id, entries in by_producer(data, rows):
            producer = session.producers.get(producer_id)
            if producer is not None:
                producer.send_all(entries)
            elif producer_id not in session.closed_producers:
                connection.fail(f"sent a message for producer {producer_id}, which it has not opened")
                return

    def _ack(self, connection: Connection, session: ClientSession, ack: wire.CommandAck) -> None:
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
        answer = wire.BaseCommand(type=Command.ACK_RESPONSE)
        answer.ackResponse.consumer_id = ack.consumer_id
        answer.ackResponse.request_id = ack.request_id
        if problem is None:
            # A client that asks for a response wants to know that the acknowledgement is durable.
            consumer.subscription.persist(lambda error: connection.send(_with_problem(answer, error)))
        else:
            connection.send(_with_problem(answer, problem))

    async def _answer(
        self, context: RequestContext, request: Any, handle: Callable[..., Awaitable[wire.BaseCommand]]
    ) -> None:
        try:
            answer = await handle(context, request)
        except AfterglowError as error:
            answer = _failure(request, replies.refusal(error))
        except Exception:
            log.exception("%s: a %s failed", context.connection, type(request).__name__)
            answer = _failure(request, replies.refusal(RuntimeError()))
        context.connection.send(answer)

    @staticmethod
    def _refuse_unknown(connection: Connection, command: wire.BaseCommand) -> None:
        name = Command.Type.Name(command.type)
        refused = Refused(wire.NotAllowedError, f"{name} is not supported by this broker")
        if "TXN" in name or name.startswith(("TC_", "WATCH_TC_")):
            refused = replies.transactions_not_supported()
        request_id = _request_id(command)
        if request_id is None:
            log.info("%s: ignored an unsupported %s", connection, name)
        else:
            connection.send(replies.error(request_id, refused))


def _request_id(command: wire.BaseCommand) -> int | None:
    """The request id of an unsupported command; None if it has none."""
    for _, value in command.ListFields():
        found: int | None = getattr(value, "request_id", None)
        if found is not None:
            return found
    others: Any = UnknownFieldSet(command)
    for other in others:
        # Every request of the protocol has its id in field 1, like SUCCESS, also those without a message type here.
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


_RESPONSES_WITH_STATUS: Final = {
    wire.CommandLookupTopic: (Command.LOOKUP_RESPONSE, "lookupTopicResponse"),
    wire.CommandPartitionedTopicMetadata: (Command.PARTITIONED_METADATA_RESPONSE, "partitionMetadataResponse"),
}
"""Type and field of responses that report a failure by ``response=Failed``."""
_RESPONSES_WITH_CODE: Final = {
    wire.CommandGetSchema: (Command.GET_SCHEMA_RESPONSE, "getSchemaResponse"),
    wire.CommandGetOrCreateSchema: (Command.GET_OR_CREATE_SCHEMA_RESPONSE, "getOrCreateSchemaResponse"),
    wire.CommandConsumerStats: (Command.CONSUMER_STATS_RESPONSE, "consumerStatsResponse"),
}
"""Type and field of responses that report a failure by ``error_code``."""


def _failure(request: Any, refused: Refused) -> wire.BaseCommand:
    """The error response in the form that the client expects for its request."""
    if (found := _RESPONSES_WITH_STATUS.get(type(request))) is not None:
        answer = wire.BaseCommand(type=found[0])
        response = getattr(answer, found[1])
        response.response = response.Failed
        response.error, response.message = refused.code, str(refused)
    elif (found := _RESPONSES_WITH_CODE.get(type(request))) is not None:
        answer = wire.BaseCommand(type=found[0])
        response = getattr(answer, found[1])
        response.error_code, response.error_message = refused.code, str(refused)
    else:
        return replies.error(request.request_id, refused)
    response.request_id = request.request_id
    return answer


def request(kind: Command.Type.ValueType, field_name: str) -> Callable[[Any], Any]:
    """Register the function that answers a command."""

    def register(function: Any) -> Any:
        _REQUESTS[kind] = (field_name, function)
        return function

    return register


_REQUESTS: dict[int, tuple[str, Callable[..., Awaitable[wire.BaseCommand]]]] = {}
