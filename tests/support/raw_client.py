"""A client that speaks the binary protocol itself, for what stock clients hide.

It sets publish times and any other metadata, keeps a given number of SENDs in flight, sees the bytes that a
broker sends, and may claim any protocol version. It blocks, belongs to one thread, retries nothing and queues nothing
on its own: what a test or a benchmark does not ask for does not happen, but for answers to PING.
"""

from __future__ import annotations

import socket
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import urlsplit

from afterglow.errors import AfterglowError
from afterglow.format.position import Position
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.wire import COMMAND_ALLOWANCE_BYTES, FrameBuffer, encode_command, encode_head

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType

Kind = wire.BaseCommand

_MAX_FRAME_BYTES: Final = (5 << 20) + COMMAND_ALLOWANCE_BYTES
_PONG: Final = encode_command(Kind(type=Kind.PONG, pong=wire.CommandPong()))


class ErrorAnswer(AfterglowError):
    """The broker said no."""

    def __init__(self, code: wire.ServerError.ValueType, message: str) -> None:
        super().__init__(f"{wire.ServerError.Name(code)}: {message}")
        self.code = code


class ConnectionEnded(AfterglowError, ConnectionError):
    """The broker has closed the connection."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What a broker sent."""

    command: wire.BaseCommand
    payload: bytes
    """Of a MESSAGE, the entry as it was on the wire; else empty."""

    @property
    def position(self) -> Position:
        """Where a MESSAGE stands."""
        message_id = self.command.message.message_id
        return Position(message_id.ledgerId, message_id.entryId)


def encode_send(producer_id: int, sequence_id: int, entry: bytes, messages: int = 1) -> bytes:
    """A SEND of an entry as ``format.entry.encode_entry`` makes it."""
    send = wire.CommandSend(producer_id=producer_id, sequence_id=sequence_id, num_messages=messages)
    return encode_head(Kind(type=Kind.SEND, send=send).SerializeToString(), len(entry)) + entry


class RawClient:
    """One connection, past its handshake.

    Args:
        service_url: ``pulsar://host:port``, or ``pulsar+ssl://`` with a context.
        protocol_version: What to claim.
        broker_metadata: Whether to claim that broker entry metadata is understood.
        token: Proves who this is; none where nothing is to be proved.
        tls: Protects the wire.
        timeout_s: Longest wait for the broker.

    Raises:
        ErrorAnswer: The broker refused the handshake.
        ConnectionEnded: The broker closed the connection.
        TimeoutError: It does not answer.
    """

    def __init__(
        self,
        service_url: str,
        *,
        protocol_version: int = 19,
        broker_metadata: bool = False,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        url = urlsplit(service_url)
        assert url.hostname is not None
        assert url.port is not None
        self.socket: socket.socket = socket.create_connection((url.hostname, url.port), timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=url.hostname)
        self._buffer = FrameBuffer(_MAX_FRAME_BYTES)
        self._arrived: deque[Frame] = deque()
        self._last_id = 0
        connect = wire.CommandConnect(client_version="afterglow raw client", protocol_version=protocol_version)
        connect.feature_flags.supports_broker_entry_metadata = broker_metadata
        if token is not None:
            connect.auth_method_name = "token"
            connect.auth_data = token.encode()
        self.send(Kind(type=Kind.CONNECT, connect=connect))
        try:
            self.connected = self.next(lambda frame: frame.command.type == Kind.CONNECTED).command.connected
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection without a word."""
        self.socket.close()

    # --- frames ---

    def send(self, command: wire.BaseCommand) -> None:
        """Send a command without payload."""
        self.write(encode_command(command))

    def write(self, data: bytes) -> None:
        """Send bytes as they are: frames, or what is none."""
        self.socket.sendall(data)

    def next(self, wanted: Callable[[Frame], bool]) -> Frame:
        """The next frame that is wanted; others stay for later calls.

        Raises:
            ErrorAnswer: An ERROR without a request came: it concerns the connection.
            ConnectionEnded: The broker closed the connection.
            TimeoutError: Nothing came in time.
        """
        for at, frame in enumerate(self._arrived):
            if wanted(frame):
                del self._arrived[at]
                return frame
        while True:
            seen = len(self._arrived)
            self._receive()
            for at in range(seen, len(self._arrived)):
                if wanted(self._arrived[at]):
                    frame = self._arrived[at]
                    del self._arrived[at]
                    return frame

    def _receive(self) -> None:
        """Take what one read from the socket brings."""
        count = self.socket.recv_into(self._buffer.space())
        if not count:
            raise ConnectionEnded("the broker closed the connection")
        for data, payload in self._buffer.received(count):
            command = Kind.FromString(bytes(data))
            if command.type == Kind.PING:
                self.write(_PONG)
            elif command.type == Kind.ERROR and command.error.request_id == 2**64 - 1:
                raise ErrorAnswer(command.error.error, command.error.message)
            elif command.type != Kind.PONG:
                self._arrived.append(Frame(command, bytes(payload)))

    def _ask(self, command: wire.BaseCommand, request_id: int) -> wire.BaseCommand:
        self.send(command)
        answer = self.next(lambda frame: _request_id(frame.command) == request_id).command
        if answer.type == Kind.ERROR:
            raise ErrorAnswer(answer.error.error, answer.error.message)
        return answer

    def _id(self) -> int:
        self._last_id += 1
        return self._last_id

    # --- what clients do ---

    def lookup(self, topic: str) -> wire.CommandLookupTopicResponse:
        """Ask which broker serves a topic."""
        lookup = wire.CommandLookupTopic(topic=topic, request_id=self._id())
        return self._ask(Kind(type=Kind.LOOKUP, lookupTopic=lookup), lookup.request_id).lookupTopicResponse

    def open_producer(self, topic: str) -> int:
        """Open a producer; returns its id, for :func:`encode_send`."""
        request_id = self._id()
        producer = wire.CommandProducer(topic=topic, producer_id=request_id, request_id=request_id)
        self._ask(Kind(type=Kind.PRODUCER, producer=producer), request_id)
        return request_id

    def schema_version(self, topic: str, schema: wire.Schema | None) -> bytes:
        """Open a producer with a schema, and close it; returns the version that the broker gives the schema.

        Raises:
            ErrorAnswer: The broker refuses the producer.
        """
        request_id = self._id()
        producer = wire.CommandProducer(topic=topic, producer_id=request_id, request_id=request_id, schema=schema)
        answer = self._ask(Kind(type=Kind.PRODUCER, producer=producer), request_id)
        close = wire.CommandCloseProducer(producer_id=request_id, request_id=self._id())
        self._ask(Kind(type=Kind.CLOSE_PRODUCER, close_producer=close), close.request_id)
        return answer.producer_success.schema_version

    def get_or_create_schema(self, topic: str, schema: wire.Schema) -> bytes:
        """Ask for the version of a schema without opening a producer.

        Raises:
            ErrorAnswer: The broker refuses the schema.
        """
        ask = wire.CommandGetOrCreateSchema(request_id=self._id(), topic=topic, schema=schema)
        command = Kind(type=Kind.GET_OR_CREATE_SCHEMA, getOrCreateSchema=ask)
        answer = self._ask(command, ask.request_id)
        response = answer.getOrCreateSchemaResponse
        if response.HasField("error_code"):
            raise ErrorAnswer(response.error_code, response.error_message)
        return response.schema_version

    def publish(self, frames: Iterable[bytes], window: int = 1_000) -> list[Position]:
        """Send SENDs with at most ``window`` of them under way; returns where they stand, in the order of the receipts.

        Raises:
            ErrorAnswer: One was refused; the answers to those behind it are left to be read.
        """
        found: list[Position] = []
        under_way = 0
        for frame in frames:
            if under_way == window:
                found.append(self.receipt())
                under_way -= 1
            self.write(frame)
            under_way += 1
        return found + [self.receipt() for _ in range(under_way)]

    def receipt(self) -> Position:
        """The next answer to a SEND.

        Raises:
            ErrorAnswer: It was refused.
        """
        answer = self.next(lambda frame: frame.command.type in {Kind.SEND_RECEIPT, Kind.SEND_ERROR}).command
        if answer.type == Kind.SEND_ERROR:
            raise ErrorAnswer(answer.send_error.error, answer.send_error.message)
        return Position(answer.send_receipt.message_id.ledgerId, answer.send_receipt.message_id.entryId)

    def subscribe(
        self,
        topic: str,
        subscription: str,
        kind: wire.CommandSubscribe.SubType.ValueType = wire.CommandSubscribe.Exclusive,
        *,
        durable: bool = True,
        name: str = "",
        priority: int = 0,
        read_compacted: bool = False,
        properties: Mapping[str, str] | None = None,
        schema: wire.Schema | None = None,
    ) -> int:
        """Open a consumer, or a reader, of a subscription that begins with the topic where it is new; returns its id.

        Raises:
            ErrorAnswer: The broker refuses it.
        """
        request_id = self._id()
        subscribe = wire.CommandSubscribe(
            topic=topic,
            subscription=subscription,
            subType=kind,
            consumer_id=request_id,
            request_id=request_id,
            initialPosition=wire.CommandSubscribe.Earliest,
            durable=durable,
            schema=schema,
            consumer_name=name,
            priority_level=priority,
            read_compacted=read_compacted,
        )
        for key, value in (properties or {}).items():
            subscribe.metadata.add(key=key, value=value)
        self._ask(Kind(type=Kind.SUBSCRIBE, subscribe=subscribe), request_id)
        return request_id

    def close_consumer(self, consumer_id: int) -> None:
        """Close a consumer; its subscription stays."""
        close = wire.CommandCloseConsumer(consumer_id=consumer_id, request_id=self._id())
        self._ask(Kind(type=Kind.CLOSE_CONSUMER, close_consumer=close), close.request_id)

    def flow(self, consumer_id: int, permits: int) -> None:
        """Let the broker send more messages."""
        self.send(Kind(type=Kind.FLOW, flow=wire.CommandFlow(consumer_id=consumer_id, messagePermits=permits)))

    def message(self, consumer_id: int) -> Frame:
        """The next message for a consumer."""
        return self.next(
            lambda frame: frame.command.type == Kind.MESSAGE and frame.command.message.consumer_id == consumer_id
        )

    def ack(self, consumer_id: int, position: Position) -> None:
        """Acknowledge an entry and wait until that is durable.

        Raises:
            ErrorAnswer: The broker refuses it.
        """
        ack = wire.CommandAck(consumer_id=consumer_id, ack_type=wire.CommandAck.Individual, request_id=self._id())
        ack.message_id.add(ledgerId=position.ledger_id, entryId=position.entry_id)
        answer = self._ask(Kind(type=Kind.ACK, ack=ack), ack.request_id).ackResponse
        if answer.HasField("error"):
            raise ErrorAnswer(answer.error, answer.message)

    def active_change(self, consumer_id: int) -> bool:
        """The next word of the broker on whether a consumer of a Failover subscription is the active one."""
        change = Kind.ACTIVE_CONSUMER_CHANGE
        frame = self.next(
            lambda frame: (
                frame.command.type == change and frame.command.active_consumer_change.consumer_id == consumer_id
            )
        )
        return frame.command.active_consumer_change.is_active

    def seek_time(self, consumer_id: int, time_ms: int) -> None:
        """Move the subscription of a consumer, which the broker then closes."""
        seek = wire.CommandSeek(consumer_id=consumer_id, request_id=self._id(), message_publish_time=time_ms)
        self._ask(Kind(type=Kind.SEEK, seek=seek), seek.request_id)


def _request_id(command: wire.BaseCommand) -> int | None:
    """The request that a command answers."""
    for _, value in command.ListFields():
        found: int | None = getattr(value, "request_id", None)
        if found is not None:
            return found
    return None
