"""Lookup of the broker that serves a topic, and of a topic's number of partitions."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from afterglow.errors import ConfigError, HotLogUnavailable
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.hot.pulsar.address import parse_service_url
from afterglow.hot.pulsar.broker_connection import BrokerConnection, Deadline, refused
from afterglow.metadata.names import TopicName

if TYPE_CHECKING:
    from afterglow.hot.pulsar.address import Endpoint, PulsarAddress

Command = wire.BaseCommand
LookupResponse = wire.CommandLookupTopicResponse

_MAX_REDIRECTS: Final = 20
_SMALL_BYTES: Final = 1 << 16  # requests and responses only


@dataclass(frozen=True, slots=True)
class Dialer:
    """Opens connections to one cluster."""

    address: PulsarAddress
    buffer_bytes: int = _SMALL_BYTES
    """Receive buffer of each connection."""

    def service(self, deadline: Deadline) -> BrokerConnection:
        """A connection to a host of the service URL, tried in random order to spread the load.

        Raises:
            HotLogUnavailable: No host can be reached.
            AccessDenied: The token is not accepted.
            ConfigError: A host's certificate is not trusted.
        """
        endpoints = self.address.endpoints
        for endpoint in random.sample(endpoints, len(endpoints)):
            try:
                return self.dial(endpoint, deadline)
            except HotLogUnavailable as error:
                problem = error
        raise problem

    def dial(self, endpoint: Endpoint, deadline: Deadline, *, broker: Endpoint | None = None) -> BrokerConnection:
        """A connection to one host, or through it to ``broker``; see :class:`BrokerConnection`."""
        return BrokerConnection(
            self.address, endpoint, broker=broker, buffer_bytes=self.buffer_bytes, deadline=deadline
        )


def find_broker(dialer: Dialer, topic: TopicName, deadline: Deadline) -> BrokerConnection:
    """A connection to the broker that serves a topic.

    Raises:
        HotLogUnavailable: No broker serves it now, or it cannot be reached.
        AfterglowError: The broker refused permanently; see :mod:`afterglow.hot.pulsar.broker_connection`.
    """
    connection = dialer.service(deadline)
    authoritative = False
    for _ in range(_MAX_REDIRECTS):
        try:
            answer = _find_broker(
                connection, topic, dialer.address.listener_name, deadline, authoritative=authoritative
            )
            broker = _broker(answer, connection)
        except BaseException:
            connection.close()
            raise
        if answer.response == LookupResponse.Connect and answer.proxy_through_service_url:
            connection.close()
            return dialer.dial(connection.endpoint, deadline, broker=broker)
        if broker != connection.endpoint:
            connection.close()
            connection = dialer.dial(broker, deadline)
        if answer.response == LookupResponse.Connect:
            return connection
        authoritative = answer.authoritative
    connection.close()
    raise HotLogUnavailable(f"lookup of {topic} failed: {_MAX_REDIRECTS} redirects, the last one to {broker}")


@dataclass(frozen=True, slots=True)
class Route:
    """Way to the broker that serves a topic."""

    endpoint: Endpoint
    """The host to connect to: the broker, or a proxy."""
    broker: Endpoint | None = None
    """The broker behind the proxy; None without a proxy."""

    def __str__(self) -> str:
        return str(self.endpoint) if self.broker is None else f"{self.broker} through {self.endpoint}"


class BrokerLookup:
    """Lookups of many topics over the same connections. Belongs to one thread.

    Brokers close connections that do not respond to their PINGs: close it after the last of a series of lookups.
    """

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer
        self._service: BrokerConnection | None = None
        self._redirected: dict[Endpoint, BrokerConnection] = {}
        self.is_reachable = True
        """Whether the last attempt to connect to the service URL succeeded."""

    def find_route(self, topic: TopicName, deadline: Deadline) -> Route:
        """The way to the broker that serves a topic.

        Raises:
            HotLogUnavailable: No broker serves it now, or a broker cannot be reached.
            AfterglowError: The broker refused permanently; see :mod:`afterglow.hot.pulsar.broker_connection`.
        """
        try:
            return self._find_route(topic, deadline)
        except HotLogUnavailable:
            self.close()  # one of the connections may be lost
            raise

    def close(self) -> None:
        """Close every connection; the next lookup opens others."""
        for connection in (self._service, *self._redirected.values()):
            if connection is not None:
                connection.close()
        self._service = None
        self._redirected.clear()

    def _find_route(self, topic: TopicName, deadline: Deadline) -> Route:
        if self._service is None:
            self.is_reachable = False
            self._service = self._dialer.service(deadline)
            self.is_reachable = True
        connection = self._service
        authoritative = False
        for _ in range(_MAX_REDIRECTS):
            listener = self._dialer.address.listener_name
            answer = _find_broker(connection, topic, listener, deadline, authoritative=authoritative)
            broker = _broker(answer, connection)
            if answer.response == LookupResponse.Connect:
                return Route(connection.endpoint, broker) if answer.proxy_through_service_url else Route(broker)
            authoritative = answer.authoritative
            if broker == self._service.endpoint:
                connection = self._service
            elif (known := self._redirected.get(broker)) is not None:
                connection = known
            else:
                connection = self._redirected[broker] = self._dialer.dial(broker, deadline)
        raise HotLogUnavailable(f"lookup of {topic} failed: {_MAX_REDIRECTS} redirects, the last one to {broker}")


def partitions(address: PulsarAddress, topic: str, *, timeout_s: float = 30.0, deadline_s: float = 120.0) -> int:
    """The number of partitions of a topic; 0 if it is not partitioned. Does not create the topic.

    Raises:
        InvalidName: The name is not well-formed.
        TopicMissing: The topic or namespace does not exist.
        HotLogTimeout: No broker responded in time.
        AfterglowError: The broker refused permanently; see :mod:`afterglow.hot.pulsar.broker_connection`.
    """
    name = TopicName.parse(topic)
    dialer = Dialer(address)
    deadline = Deadline(f"the partitions of {name}", deadline_s, timeout_s)
    while True:
        try:
            connection = dialer.service(deadline)
            try:
                return _request_partitions(connection, name, deadline)
            finally:
                connection.close()
        except HotLogUnavailable as error:
            deadline.pause(error)


def _request_partitions(connection: BrokerConnection, topic: TopicName, deadline: Deadline) -> int:
    request = wire.CommandPartitionedTopicMetadata(
        topic=str(topic), request_id=connection.next_id(), metadata_auto_creation_enabled=False
    )
    command = Command(type=Command.PARTITIONED_METADATA, partitionMetadata=request)
    answer = connection.request(command, request.request_id, deadline).partitionMetadataResponse
    if answer.response == wire.CommandPartitionedTopicMetadataResponse.Failed:
        raise refused(f"partition lookup of {topic} at {connection}", answer.error, answer.message)
    return answer.partitions


def _find_broker(
    connection: BrokerConnection, topic: TopicName, listener: str | None, deadline: Deadline, *, authoritative: bool
) -> LookupResponse:
    request = wire.CommandLookupTopic(topic=str(topic), request_id=connection.next_id(), authoritative=authoritative)
    if listener is not None:
        request.advertised_listener_name = listener
    answer = connection.request(
        Command(type=Command.LOOKUP, lookupTopic=request), request.request_id, deadline
    ).lookupTopicResponse
    if answer.response == LookupResponse.Failed:
        raise refused(f"lookup of {topic} at {connection}", answer.error, answer.message)
    return answer


def _broker(answer: LookupResponse, connection: BrokerConnection) -> Endpoint:
    tls = connection.endpoint.tls
    url = answer.brokerServiceUrlTls if tls else answer.brokerServiceUrl
    if not url:
        wanted, setting = ("TLS", "brokerServicePortTls") if tls else ("plain", "brokerServicePort")
        raise ConfigError(f"{connection} returned a broker without a {wanted} address; set {setting} on the broker")
    return parse_service_url(url)[0]
