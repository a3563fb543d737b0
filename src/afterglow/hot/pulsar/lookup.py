"""Lookup of the broker that serves a topic, and of a topic's number of partitions."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from afterglow.errors import ConfigError, HotLogUnavailable
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.hot.pulsar.address import parse_service_url
from afterglow.hot.pulsar.connection import Connection, Deadline, refused
from afterglow.metadata.names import TopicName

if TYPE_CHECKING:
    from afterglow.hot.pulsar.address import Endpoint, PulsarAddress

Kind = wire.BaseCommand
Found = wire.CommandLookupTopicResponse

_MOST_REDIRECTS: Final = 20
_SMALL_BYTES: Final = 1 << 16  # requests and answers alone


@dataclass(frozen=True, slots=True)
class Dialer:
    """Opens connections to one cluster."""

    address: PulsarAddress
    buffer_bytes: int = _SMALL_BYTES
    """Of each connection."""

    def service(self, deadline: Deadline) -> Connection:
        """A connection to any host of the service URL, begun with a different one each time to spread the load.

        Raises:
            HotLogUnavailable: None can be reached.
            AccessDenied: The token is not accepted.
            ConfigError: A host is not trusted.
        """
        endpoints = self.address.endpoints
        for endpoint in random.sample(endpoints, len(endpoints)):
            try:
                return self.dial(endpoint, deadline)
            except HotLogUnavailable as error:
                problem = error
        raise problem

    def dial(self, endpoint: Endpoint, deadline: Deadline, *, broker: Endpoint | None = None) -> Connection:
        """A connection to one host, passed on to ``broker`` where that is given; see :class:`Connection`."""
        return Connection(self.address, endpoint, broker=broker, buffer_bytes=self.buffer_bytes, deadline=deadline)


def find_broker(dialer: Dialer, topic: TopicName, deadline: Deadline) -> Connection:
    """A connection to the broker that serves a topic.

    Raises:
        HotLogUnavailable: No broker serves it now, or it cannot be reached.
        AfterglowError: The broker refuses for good; see :mod:`afterglow.hot.pulsar.connection`.
    """
    line = dialer.service(deadline)
    authoritative = False
    for _ in range(_MOST_REDIRECTS):
        try:
            answer = _look_up(line, topic, dialer.address.listener_name, deadline, authoritative=authoritative)
            broker = _broker(answer, line)
        except BaseException:
            line.close()
            raise
        if answer.response == Found.Connect and answer.proxy_through_service_url:
            line.close()
            return dialer.dial(line.endpoint, deadline, broker=broker)
        if broker != line.endpoint:
            line.close()
            line = dialer.dial(broker, deadline)
        if answer.response == Found.Connect:
            return line
        authoritative = answer.authoritative
    line.close()
    raise HotLogUnavailable(f"{topic}: {_MOST_REDIRECTS} brokers sent us on, the last one to {broker}")


def partitions(address: PulsarAddress, topic: str, *, timeout_s: float = 30.0, deadline_s: float = 120.0) -> int:
    """How many partitions a topic has; 0 where it is not partitioned. Nothing is created by asking.

    Raises:
        InvalidName: The name is not well-formed.
        TopicMissing: There is no such topic or namespace.
        HotLogTimeout: No broker answered in time.
        AfterglowError: The broker refuses for good; see :mod:`afterglow.hot.pulsar.connection`.
    """
    name = TopicName.parse(topic)
    dialer = Dialer(address)
    deadline = Deadline(f"the partitions of {name}", deadline_s, timeout_s)
    while True:
        try:
            line = dialer.service(deadline)
            try:
                return _ask_partitions(line, name, deadline)
            finally:
                line.close()
        except HotLogUnavailable as error:
            deadline.pause(error)


def _ask_partitions(line: Connection, topic: TopicName, deadline: Deadline) -> int:
    ask = wire.CommandPartitionedTopicMetadata(
        topic=str(topic), request_id=line.next_id(), metadata_auto_creation_enabled=False
    )
    command = Kind(type=Kind.PARTITIONED_METADATA, partitionMetadata=ask)
    answer = line.ask(command, ask.request_id, deadline).partitionMetadataResponse
    if answer.response == wire.CommandPartitionedTopicMetadataResponse.Failed:
        raise refused(f"the question for the partitions of {topic} at {line}", answer.error, answer.message)
    return answer.partitions


def _look_up(
    line: Connection, topic: TopicName, listener: str | None, deadline: Deadline, *, authoritative: bool
) -> Found:
    ask = wire.CommandLookupTopic(topic=str(topic), request_id=line.next_id(), authoritative=authoritative)
    if listener is not None:
        ask.advertised_listener_name = listener
    answer = line.ask(Kind(type=Kind.LOOKUP, lookupTopic=ask), ask.request_id, deadline).lookupTopicResponse
    if answer.response == Found.Failed:
        raise refused(f"the lookup of {topic} at {line}", answer.error, answer.message)
    return answer


def _broker(answer: Found, line: Connection) -> Endpoint:
    tls = line.endpoint.tls
    url = answer.brokerServiceUrlTls if tls else answer.brokerServiceUrl
    if not url:
        wanted, setting = ("TLS", "brokerServicePortTls") if tls else ("plain", "brokerServicePort")
        raise ConfigError(f"{line} names a broker without a {wanted} address: it must set {setting}")
    return parse_service_url(url)[0]
