"""What is not supported gets a clear answer at once, never a hang."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.testing.raw_client import ErrorAnswer, RawClient
from afterglow.testing.strategies import sized, varint

if TYPE_CHECKING:
    from afterglow.testing.serving import Served

Kind = wire.BaseCommand


@pytest.mark.parametrize("kind", [wire.CommandSubscribe.Failover, wire.CommandSubscribe.Key_Shared])
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
        assert "NEW_TXN" in answer.error.message


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
