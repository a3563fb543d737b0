"""Consumers of one broker that never receive a message, on one connection and one thread.

The thread sleeps until the broker sends something or a caller submits a request; an idle connection costs one PING in
30 seconds, whatever the number of its topics. Requests are pipelined, and no wait for one delays another.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock, Thread
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from afterglow.errors import (
    AccessDenied,
    AfterglowError,
    HotLogTimeout,
    HotLogUnavailable,
    NotSupported,
    SubscriptionBusy,
    TopicMissing,
)
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.hot.pulsar.broker_connection import Deadline, refused, request_id_of
from afterglow.hot.pulsar.hold_state import LastMessage
from afterglow.hot.pulsar.raw_subscription import message_position

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from afterglow.format.position import Position
    from afterglow.hot.pulsar.broker_connection import BrokerConnection
    from afterglow.hot.pulsar.lookup import Dialer, Route
    from afterglow.metadata.names import TopicName

Command = wire.BaseCommand
Response: TypeAlias = "wire.BaseCommand | AfterglowError"

_KEEP_ALIVE_S: Final = 30.0
"""Silence after which the broker is sent a PING; after twice as long the connection counts as lost."""
_RECEIVE_S: Final = 0.05
"""Longest wait for the rest of a TLS record whose first bytes have arrived."""
_WAKE_BYTES: Final = 4096


class HoldListener(Protocol):
    """Callbacks of a connection; they are called in its thread, and must not wait."""

    def on_held(self, connection: HoldConnection, topic: TopicName, found: LastMessage) -> None:
        """A consumer is connected; ``found`` has the mark-delete position of its subscription."""
        ...

    def on_acknowledged(self, topic: TopicName, position: Position) -> None:
        """The broker has confirmed an acknowledgement."""
        ...

    def on_acknowledge_refused(self, topic: TopicName, position: Position, error: AfterglowError) -> None:
        """The broker has refused an acknowledgement."""
        ...

    def on_probe(self, topic: TopicName, found: LastMessage) -> None:
        """The broker has reported the last message and the mark-delete position."""
        ...

    def on_unsubscribed(self, topic: TopicName) -> None:
        """The subscription is deleted, and its consumer with it."""
        ...

    def on_lost(self, connection: HoldConnection, topic: TopicName, error: AfterglowError) -> None:
        """A consumer is not connected any more, or could not be connected."""
        ...

    def on_end(self, connection: HoldConnection) -> None:
        """The connection has ended, after ``on_lost`` of each of its topics."""
        ...


@dataclass(slots=True)
class _Consumer:
    topic: TopicName
    consumer_id: int
    held: bool = False


@dataclass(frozen=True, slots=True)
class _Request:
    name: str
    consumer: _Consumer
    sent_at: float
    on_response: Callable[[Response], None]


class HoldConnection:
    """One connection to a broker, with its thread. Every method may be called from any thread, and returns at once.

    Args:
        dialer: Opens the connection, in the thread.
        route: The way to the broker.
        subscription: Name of the subscription of every topic.
        listener: Receives the results.
        timeout_s: Longest wait for a response.
    """

    def __init__(
        self, dialer: Dialer, route: Route, subscription: str, listener: HoldListener, *, timeout_s: float
    ) -> None:
        self.route = route
        self._dialer = dialer
        self._subscription = subscription
        self._listener = listener
        self._timeout_s = timeout_s
        self._lock = Lock()
        self._inbox: deque[Callable[[], None]] = deque()
        self._ended_by: AfterglowError | None = None
        self._closing = False
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.settimeout(0.0)
        self._wake_sender.settimeout(0.0)
        self._connection: BrokerConnection
        self._consumers: dict[int, _Consumer] = {}
        self._topics: dict[TopicName, _Consumer] = {}
        self._requests: dict[int, _Request] = {}
        self._thread = Thread(target=self._run, name=f"afterglow-hold {route}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait until the thread has ended."""
        self._thread.join(timeout_s)

    # --- requests of other threads ---

    def subscribe(self, topic: TopicName) -> bool:
        """Connect a consumer; reports ``on_held`` or ``on_lost``. False if the connection has ended."""
        return self._submit(lambda: self._subscribe(topic))

    def acknowledge(self, topic: TopicName, position: Position) -> bool:
        """Acknowledge all entries up to a position; reports ``on_acknowledged``, or nothing if the consumer is lost."""
        return self._submit(lambda: self._acknowledge(topic, position))

    def request_last_message(self, topic: TopicName, result: Future[LastMessage]) -> bool:
        """Request the last message of a topic; reports ``on_probe`` as well."""
        return self._submit(lambda: self._request_last_message(topic, result))

    def close_consumer(self, topic: TopicName, result: Future[None]) -> bool:
        """Close the consumer and keep its subscription; a lost connection has the same effect."""
        return self._submit(lambda: self._close_consumer(topic, result))

    def unsubscribe(self, topic: TopicName) -> bool:
        """Delete the subscription; reports ``on_unsubscribed``, or ``on_lost``."""
        return self._submit(lambda: self._unsubscribe(topic))

    def close(self) -> None:
        """End the connection and the thread; subscriptions remain."""
        self._submit(self._end)

    def _submit(self, action: Callable[[], None]) -> bool:
        with self._lock:
            if self._ended_by is not None:
                return False
            self._inbox.append(action)
            with suppress(BlockingIOError):  # full: the thread is going to wake anyway
                self._wake_sender.send(b"\0")
        return True

    # --- the thread ---

    def _run(self) -> None:
        error: AfterglowError = HotLogUnavailable(f"the connection to {self.route} ended")
        try:
            deadline = Deadline(f"connecting to {self.route}", self._timeout_s, self._timeout_s)
            self._connection = self._dialer.dial(self.route.endpoint, deadline, broker=self.route.broker)
            try:
                self._serve()
            finally:
                self._connection.close()
        except AfterglowError as failure:
            error = failure
        finally:
            self._finish(error)

    def _finish(self, error: AfterglowError) -> None:
        with self._lock:
            self._ended_by = error
            remaining = list(self._inbox)
        for action in remaining:
            action()
        for consumer in list(self._consumers.values()):
            self._drop(consumer, connection_error(consumer.topic, self._subscription, error))
        self._fail_requests(error, lambda _: True)  # those of consumers that were closed before
        self._wake_sender.close()
        self._wake_receiver.close()
        self._listener.on_end(self)

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection, selectors.EVENT_READ)
            selector.register(self._wake_receiver, selectors.EVENT_READ)
            received_at = pinged_at = used_at = time.monotonic()
            while True:
                self._run_inbox()
                while (found := self._connection.command()) is not None:
                    self._handle_command(found[0])
                if self._closing:
                    return
                now = time.monotonic()
                self._expire(now)
                if self._consumers or self._requests:
                    used_at = now
                elif now - used_at >= _KEEP_ALIVE_S:
                    return
                if now - received_at >= 2 * _KEEP_ALIVE_S:
                    raise HotLogUnavailable(f"{self.route} has sent nothing for {now - received_at:.0f} s")
                if now - max(received_at, pinged_at) >= _KEEP_ALIVE_S:
                    self._connection.send(Command(type=Command.PING, ping=wire.CommandPing()))
                    pinged_at = now
                for key, _ in selector.select(self._wait_s(now, max(received_at, pinged_at))):
                    if key.fileobj is self._wake_receiver:
                        self._wake_receiver.recv(_WAKE_BYTES)
                    elif self._connection.receive(self._connection.buffer.space(), _RECEIVE_S):
                        received_at = time.monotonic()
                        while self._connection.has_decrypted:
                            self._connection.receive(self._connection.buffer.space(), _RECEIVE_S)

    def _wait_s(self, now: float, alive_at: float) -> float:
        next_at = alive_at + _KEEP_ALIVE_S
        oldest = next(iter(self._requests.values()), None)
        if oldest is not None:
            next_at = min(next_at, oldest.sent_at + self._timeout_s)
        return max(0.0, next_at - now)

    def _run_inbox(self) -> None:
        while True:
            with self._lock:
                if not self._inbox:
                    return
                action = self._inbox.popleft()
            action()

    def _expire(self, now: float) -> None:
        while self._requests:
            request_id, request = next(iter(self._requests.items()))
            if now - request.sent_at < self._timeout_s:
                return
            del self._requests[request_id]
            request.on_response(
                HotLogTimeout(f"{request.name} of {request.consumer.topic}: no response from {self.route} in time")
            )

    def _handle_command(self, command: wire.BaseCommand) -> None:
        if command.type == Command.CLOSE_CONSUMER:
            consumer = self._consumers.get(command.close_consumer.consumer_id)
            if consumer is not None:
                self._drop(
                    consumer, HotLogUnavailable(f"{self.route} closed the consumer of {consumer.topic}: it is unloaded")
                )
            return
        request_id = request_id_of(command)
        request = None if request_id is None else self._requests.pop(request_id, None)
        if request is None:
            return  # also the response to a request that has timed out
        if command.type == Command.ERROR:
            request.on_response(self._error(request, command.error.error, command.error.message))
        elif command.type == Command.ACK_RESPONSE and command.ackResponse.HasField("error"):
            request.on_response(self._error(request, command.ackResponse.error, command.ackResponse.message))
        else:
            request.on_response(command)

    def _error(self, request: _Request, code: wire.ServerError.ValueType, message: str) -> AfterglowError:
        topic = request.consumer.topic
        return subscription_error(request.name, topic, self._subscription, code, message)

    # --- in the thread: requests ---

    def _request(
        self, name: str, consumer: _Consumer, command: wire.BaseCommand, request_id: int, respond: Callable[..., None]
    ) -> None:
        self._requests[request_id] = _Request(name, consumer, time.monotonic(), respond)
        self._connection.send(command)

    def _subscribe(self, topic: TopicName) -> None:
        if self._ended_by is not None:
            self._listener.on_lost(self, topic, connection_error(topic, self._subscription, self._ended_by))
            return
        if topic in self._topics:
            return
        consumer = _Consumer(topic, self._connection.next_id())
        self._consumers[consumer.consumer_id] = self._topics[topic] = consumer
        request = wire.CommandSubscribe(
            topic=str(topic),
            subscription=self._subscription,
            subType=wire.CommandSubscribe.Exclusive,
            consumer_id=consumer.consumer_id,
            request_id=self._connection.next_id(),
            consumer_name="afterglow",
            durable=True,
            initialPosition=wire.CommandSubscribe.Earliest,
            force_topic_creation=False,
        )

        def on_response(response: Response) -> None:
            if isinstance(response, HotLogTimeout):
                self._send_close(consumer)  # the broker may still connect it
            if isinstance(response, AfterglowError):
                self._drop(consumer, response)
            else:
                self._ask_last_message(consumer, on_found)

        def on_found(found: LastMessage | AfterglowError) -> None:
            if isinstance(found, AfterglowError):
                if not isinstance(found, HotLogUnavailable) or self._is_connected(consumer):
                    self._send_close(consumer)
                self._drop(consumer, found)
            elif self._is_connected(consumer):
                consumer.held = True
                self._listener.on_held(self, topic, found)

        self._request(
            "SUBSCRIBE", consumer, Command(type=Command.SUBSCRIBE, subscribe=request), request.request_id, on_response
        )

    def _acknowledge(self, topic: TopicName, position: Position) -> None:
        consumer = self._held_consumer(topic)
        if consumer is None:
            return  # it is sent again when the topic is held
        ack = wire.CommandAck(
            consumer_id=consumer.consumer_id,
            ack_type=wire.CommandAck.Cumulative,
            request_id=self._connection.next_id(),
        )
        ack.message_id.add(ledgerId=position.ledger_id, entryId=position.entry_id & 0xFFFFFFFFFFFFFFFF)

        def on_response(response: Response) -> None:
            if not isinstance(response, AfterglowError):
                self._listener.on_acknowledged(topic, position)
            elif isinstance(response, HotLogTimeout) and self._is_connected(consumer):
                self._send_close(consumer)  # subscribing again shows what the broker has taken
                self._drop(consumer, response)
            elif self._is_connected(consumer):
                self._listener.on_acknowledge_refused(topic, position, response)

        self._request("ACK", consumer, Command(type=Command.ACK, ack=ack), ack.request_id, on_response)

    def _request_last_message(self, topic: TopicName, result: Future[LastMessage]) -> None:
        consumer = self._held_consumer(topic)
        if consumer is None:
            result.set_exception(HotLogUnavailable(f"the subscription of {topic} is not held now; retry"))
            return

        def on_found(found: LastMessage | AfterglowError) -> None:
            if isinstance(found, AfterglowError):
                result.set_exception(found)
            else:
                self._listener.on_probe(topic, found)
                result.set_result(found)

        self._ask_last_message(consumer, on_found)

    def _ask_last_message(self, consumer: _Consumer, on_found: Callable[[LastMessage | AfterglowError], None]) -> None:
        request = wire.CommandGetLastMessageId(consumer_id=consumer.consumer_id, request_id=self._connection.next_id())

        def on_response(response: Response) -> None:
            if isinstance(response, AfterglowError):
                on_found(response)
                return
            answer = response.getLastMessageIdResponse
            last = message_position(answer.last_message_id)
            mark_delete = (
                message_position(answer.consumer_mark_delete_position)
                if answer.HasField("consumer_mark_delete_position")
                else None
            )
            on_found(LastMessage(last if last.entry_id >= 0 else None, mark_delete))

        command = Command(type=Command.GET_LAST_MESSAGE_ID, getLastMessageId=request)
        self._request("GET_LAST_MESSAGE_ID", consumer, command, request.request_id, on_response)

    def _close_consumer(self, topic: TopicName, result: Future[None]) -> None:
        consumer = self._topics.get(topic)
        if consumer is None or self._ended_by is not None:
            result.set_result(None)
            return
        self._remove(consumer)
        request = wire.CommandCloseConsumer(consumer_id=consumer.consumer_id, request_id=self._connection.next_id())
        self._request(
            "CLOSE_CONSUMER",
            consumer,
            Command(type=Command.CLOSE_CONSUMER, close_consumer=request),
            request.request_id,
            lambda _: result.set_result(None),
        )

    def _unsubscribe(self, topic: TopicName) -> None:
        consumer = self._held_consumer(topic)
        if consumer is None:
            return  # requested again when the topic is held
        request = wire.CommandUnsubscribe(consumer_id=consumer.consumer_id, request_id=self._connection.next_id())

        def on_response(response: Response) -> None:
            if isinstance(response, AfterglowError):
                self._drop(consumer, response)
            elif self._is_connected(consumer):
                self._remove(consumer)
                self._listener.on_unsubscribed(topic)

        self._request(
            "UNSUBSCRIBE",
            consumer,
            Command(type=Command.UNSUBSCRIBE, unsubscribe=request),
            request.request_id,
            on_response,
        )

    def _end(self) -> None:
        self._closing = True

    # --- in the thread: consumers ---

    def _held_consumer(self, topic: TopicName) -> _Consumer | None:
        consumer = self._topics.get(topic)
        return consumer if consumer is not None and consumer.held and self._ended_by is None else None

    def _is_connected(self, consumer: _Consumer) -> bool:
        return self._consumers.get(consumer.consumer_id) is consumer

    def _send_close(self, consumer: _Consumer) -> None:
        if self._ended_by is None:
            request = wire.CommandCloseConsumer(consumer_id=consumer.consumer_id, request_id=self._connection.next_id())
            self._connection.send(Command(type=Command.CLOSE_CONSUMER, close_consumer=request))

    def _remove(self, consumer: _Consumer) -> None:
        self._consumers.pop(consumer.consumer_id, None)
        if self._topics.get(consumer.topic) is consumer:
            del self._topics[consumer.topic]

    def _drop(self, consumer: _Consumer, error: AfterglowError) -> None:
        if self._is_connected(consumer):
            self._remove(consumer)
            self._fail_requests(error, lambda request: request.consumer is consumer)
            self._listener.on_lost(self, consumer.topic, error)

    def _fail_requests(self, error: AfterglowError, is_affected: Callable[[_Request], bool]) -> None:
        affected = [request_id for request_id, request in self._requests.items() if is_affected(request)]
        for request in [self._requests.pop(request_id) for request_id in affected]:
            request.on_response(error)


def subscription_error(
    request: str, topic: TopicName, subscription: str, code: wire.ServerError.ValueType, message: str
) -> AfterglowError:
    """Return the error for a broker's negative response, with the setting concerned and how to fix it."""
    what = (
        f"{request} of subscription {subscription!r} on {topic} was refused: {message or wire.ServerError.Name(code)}"
    )
    if code == wire.AuthenticationError:
        return AccessDenied(f"{what}; set --token (AFTERGLOW_TOKEN) to a token that the brokers accept")
    if code == wire.AuthorizationError:
        return AccessDenied(
            f"{what}; grant the role the action 'consume': pulsar-admin namespaces grant-permission {topic.namespace} "
            "--role ROLE --actions consume; with subscription_auth_mode=Prefix the subscription name must begin with "
            "the role"
        )
    if code == wire.TopicNotFound:
        return TopicMissing(f"{what}; the topic was deleted: leave it out, or create it again")
    if code == wire.ConsumerBusy:
        return SubscriptionBusy(f"{what}; stop the other consumer, or choose another subscription name")
    if code == wire.SubscriptionNotFound:
        return NotSupported(
            f"{what}; allowAutoSubscriptionCreation is false: create it with pulsar-admin topics create-subscription "
            f"-s {subscription} -m earliest {topic}"
        )
    if code == wire.NotAllowedError:
        return NotSupported(f"{what}; raise maxSubscriptionsPerTopic, or permit Exclusive in subscriptionTypesEnabled")
    return refused(f"{request} of subscription {subscription!r} on {topic}", code, message)


def connection_error(topic: TopicName, subscription: str, error: AfterglowError) -> AfterglowError:
    """Return the error of one topic for a failed lookup, or for a connection that has failed."""
    if not isinstance(error, AccessDenied):
        return error
    return AccessDenied(
        f"subscription {subscription!r} on {topic}: {error}; set --token (AFTERGLOW_TOKEN) to a token that the brokers "
        "accept, of a role with the action 'consume'"
    )
