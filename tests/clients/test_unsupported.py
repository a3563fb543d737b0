"""What is not supported gets a clear answer at once, never a hang."""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Any

import pulsar
import pytest
from tests.support.raw_client import ErrorAnswer, RawClient
from tests.support.strategies import sized, varint

from afterglow.format.proto import pulsar_api_pb2 as wire

if TYPE_CHECKING:
    from tests.support.serving import Served

Kind = wire.BaseCommand
NO_TRANSACTIONS = "transactions are not supported by this broker"


@pytest.mark.parametrize("kind", [wire.CommandSubscribe.Key_Shared])
def test_subscription_types_that_are_not_served_are_refused_by_name(
    served: Served, topic: str, kind: wire.CommandSubscribe.SubType.ValueType
) -> None:
    with RawClient(served.service_url) as client:
        with pytest.raises(ErrorAnswer) as refused:
            client.subscribe(topic, "s", kind)
        assert refused.value.code == wire.NotAllowedError
        assert wire.CommandSubscribe.SubType.Name(kind) in str(refused.value)


def test_a_request_that_we_have_no_message_for_is_answered(served: Served) -> None:
    with RawClient(served.service_url) as client:
        # NEW_TXN: type 50, and in field 50 a message whose field 1 is the request id.
        command = b"\x08" + varint(50) + varint(50 << 3 | 2) + sized(b"\x08" + varint(4711))
        client.write(struct.pack(">II", len(command) + 4, len(command)) + command)
        answer = client.next(lambda frame: frame.command.type == Kind.ERROR).command
        assert answer.error.request_id == 4711
        assert answer.error.error == wire.NotAllowedError
        assert answer.error.message == NO_TRANSACTIONS


def test_there_is_no_coordinator_of_transactions(served: Served) -> None:
    """From which Java's and Go's clients conclude that transactions are not enabled."""
    topic = "persistent://pulsar/system/transaction_coordinator_assign"
    metadata = wire.CommandPartitionedTopicMetadata(topic=topic, request_id=7)
    lookup = wire.CommandLookupTopic(topic=f"{topic}-partition-3", request_id=8)
    with RawClient(served.service_url) as client:
        command = Kind(type=Kind.PARTITIONED_METADATA, partitionMetadata=metadata)
        partitions = client._ask(command, 7).partitionMetadataResponse
        found = client._ask(Kind(type=Kind.LOOKUP, lookupTopic=lookup), 8).lookupTopicResponse
    assert (partitions.response, partitions.partitions) == (wire.CommandPartitionedTopicMetadataResponse.Success, 0)
    assert (found.error, found.message) == (wire.NotAllowedError, NO_TRANSACTIONS)


def test_the_stock_client_learns_that_key_shared_is_not_served(client: Any, topic: str) -> None:
    with pytest.raises(pulsar.NotAllowedError):
        client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.KeyShared)


def test_a_listener_that_the_broker_does_not_have_is_refused(served: Served, topic: str) -> None:
    with RawClient(served.service_url) as client:
        command = wire.CommandLookupTopic(topic=topic, request_id=5, advertised_listener_name="external")
        answer = client._ask(Kind(type=Kind.LOOKUP, lookupTopic=command), 5).lookupTopicResponse
    assert answer.response == wire.CommandLookupTopicResponse.Failed
    assert answer.error == wire.ServiceNotReady
    assert "listener not found: 'external'" in answer.message


def test_the_stock_client_gets_no_producer_through_an_unknown_listener(served: Served, topic: str) -> None:
    client = pulsar.Client(
        served.service_url,
        listener_name="external",
        operation_timeout_seconds=2,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(topic)
    client.close()


def test_a_namespace_that_does_not_exist_has_no_topics(served: Served) -> None:
    with RawClient(served.service_url) as client:
        command = wire.CommandGetTopicsOfNamespace(namespace="public/absent", request_id=6)
        answer = client._ask(Kind(type=Kind.GET_TOPICS_OF_NAMESPACE, getTopicsOfNamespace=command), 6)
    assert list(answer.getTopicsOfNamespaceResponse.topics) == []


def test_the_stock_client_subscribes_by_a_pattern_in_a_namespace_to_come(client: Any) -> None:
    consumer = client.subscribe(re.compile("persistent://public/absent/.*"), "s")
    with pytest.raises(pulsar.Timeout):
        consumer.receive(100)


def test_a_watch_of_topics_is_answered(served: Served) -> None:
    with RawClient(served.service_url) as client:
        command = Kind(type=Kind.WATCH_TOPIC_LIST)
        command.watchTopicList.request_id = 5
        command.watchTopicList.watcher_id = 1
        command.watchTopicList.namespace = "public/default"
        command.watchTopicList.topics_pattern = ".*"
        client.send(command)
        answer = client.next(lambda frame: frame.command.type == Kind.ERROR).command
        assert answer.error.request_id == 5


def test_a_topic_that_is_not_persistent_is_refused(served: Served) -> None:
    with RawClient(served.service_url) as client, pytest.raises(ErrorAnswer, match="persistent"):
        client.open_producer("non-persistent://public/default/t")
