from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from afterglow.format.entry import encode_batch
from afterglow.format.proto.pulsar_api_pb2 import SingleMessageMetadata

if TYPE_CHECKING:
    from tests.cli.conftest import Canned, Cli

PEEK = "persistent/public/default/t/subscription/s/position"


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/t{uuid4().hex}"


def next_of(cli: Cli, topic: str, count: int = 1) -> list[str]:
    return [
        line.split("\t")[1] for line in cli.do("topics", "consume", topic, "-s", "s", "-n", f"{count}").splitlines()
    ]


def test_a_subscription_is_created_listed_moved_skipped_cleared_and_deleted(cli: Cli, topic: str) -> None:
    for text in "abc":  # an entry each
        cli.do("topics", "produce", topic, "-m", text)
    cli.do("topics", "create-subscription", topic, "-s", "s", "--message-id", "earliest")
    assert cli.rows("topics", "subscriptions", topic) == [{"subscription": "s"}]
    assert "already" in cli.refused(1, "topics", "create-subscription", topic, "-s", "s")
    cli.do("topics", "skip", topic, "-s", "s", "-n", "1")
    assert next_of(cli, topic) == ["b"]
    cli.do("topics", "reset-cursor", topic, "-s", "s", "--time", "1h")
    assert next_of(cli, topic) == ["a"]
    [last] = cli.rows("topics", "last-message-id", topic)
    second = f"{last['ledger_id']}:{last['entry_id'] - 1}"
    cli.do("topics", "reset-cursor", topic, "-s", "s", "--messageId", second)
    assert next_of(cli, topic) == ["b"]
    cli.do("topics", "reset-cursor", topic, "-s", "s", "-m", second, "-e")
    assert next_of(cli, topic) == ["c"]
    cli.do("topics", "reset-cursor", topic, "-s", "s", "-m", "earliest")
    cli.do("topics", "clear-backlog", topic, "-s", "s")
    assert cli.rows("topics", "stats", topic)[0]["subscriptions"]["s"]["msgBacklog"] == 0
    cli.do("topics", "unsubscribe", topic, "-s", "s")
    assert cli.rows("topics", "subscriptions", topic) == []


def test_the_ends_of_a_partitioned_topic_are_those_of_all_partitions_and_a_message_is_in_one(
    cli: Cli, topic: str
) -> None:
    cli.do("topics", "create-partitioned-topic", topic, "-p", "2")
    cli.do("topics", "update-partitioned-topic", topic, "-p", "3")
    assert cli.rows("topics", "get-partitioned-topic-metadata", topic) == [{"partitions": 3}]
    assert topic in cli.do("topics", "list-partitioned-topics").splitlines()
    assert [row["topic"] for row in cli.rows("topics", "last-message-id", topic)] == [
        f"{topic}-partition-{index}" for index in range(3)
    ]
    cli.do("topics", "create-subscription", topic, "-s", "s")
    cli.do("topics", "reset-cursor", topic, "-s", "s", "-m", "earliest")
    assert "partitions" in cli.refused(1, "topics", "reset-cursor", topic, "-s", "s", "-m", "1:0")
    cli.do("topics", "delete-partitioned-topic", topic)
    assert topic not in cli.do("topics", "list-partitioned-topics")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "either --time TIME or --message-id POS"),
        (("-t", "1h", "-m", "latest"), "either --time TIME or --message-id POS"),
        (("-t", "10"), "10s, 10m or 10h"),
        (("-t", "yesterday"), "RFC 3339"),
        (("-m", "here"), "LEDGER:ENTRY"),
        (("-m", "latest", "-e"), "--message-id LEDGER:ENTRY"),
    ],
)
def test_an_ambiguous_reset_is_one_line_and_exit_2(
    canned: Canned, canned_cli: Cli, args: tuple[str, ...], words: str
) -> None:
    assert words in canned_cli.refused(2, "topics", "reset-cursor", "t", "-s", "s", *args)
    assert canned.calls == []


def test_peeked_messages_are_not_acknowledged(cli: Cli, topic: str) -> None:
    cli.do("topics", "produce", topic, "-m", "a", "-m", "b", "-k", "key")
    cli.do("topics", "produce", topic, "-m", "c")
    cli.do("topics", "create-subscription", topic, "-s", "s", "-m", "earliest")
    for _ in range(2):
        lines = cli.do("topics", "peek-messages", topic, "-s", "s", "-n", "9").splitlines()
        assert [line.split("\t")[1] for line in lines] == ["key=a", "key=b", "c"]
    peeked, read = (cli.rows("topics", *ask, topic, "-n", "3") for ask in (("peek-messages", "-s", "s"), ("consume",)))
    assert peeked == read
    cli.do("topics", "trim-topic", topic)


def test_messages_are_peeked_from_plain_entries_and_from_batches(canned: Canned, canned_cli: Cli) -> None:
    batch = encode_batch(
        [(SingleMessageMetadata(partition_key="k"), b"two"), (SingleMessageMetadata(event_time=7), b"three")]
    )
    canned.on("GET", "persistent/public/default/t/partitions", (200, {"partitions": 0}))
    canned.on("GET", f"{PEEK}/1", (200, b"one"))
    canned.on("GET", f"{PEEK}/2", (200, batch))
    canned.headers = {
        f"/admin/v2/{PEEK}/1": {
            "X-Pulsar-Message-ID": "4:0",
            "X-Pulsar-publish-time": "2026-11-16T17:00:00.5Z",
            "X-Pulsar-PROPERTY": json.dumps({"a": "b"}),
        },
        f"/admin/v2/{PEEK}/2": {"X-Pulsar-Message-ID": "4:1", "X-Pulsar-num-batch-message": "2"},
    }
    peek = ("topics", "peek-messages", "t", "-s", "s", "-n")
    assert canned_cli.do(*peek, "9").splitlines() == ["4:0\tone", "4:1:0\tk=two", "4:1:1\tthree"]
    assert canned_cli.do(*peek, "2").splitlines() == ["4:0\tone", "4:1:0\tk=two"]
    first, _, last = canned_cli.rows(*peek, "3")
    assert (first["publish_time"], first["properties"]) == (1_794_848_400_500, {"a": "b"})
    assert (base64.b64decode(last["value_base64"]), last["event_time"]) == (b"three", 7)


def test_an_answer_that_is_not_a_message_is_one_line(canned: Canned, canned_cli: Cli) -> None:
    canned.on("GET", "persistent/public/default/t/partitions", (200, {"partitions": 0}))
    canned.on("GET", f"{PEEK}/1", (200, b"<html>"))
    assert "did not return a Pulsar message" in canned_cli.refused(1, "topics", "peek-messages", "t", "-s", "s")
    canned.on("GET", f"{PEEK}/1", (404, {"reason": "Message not found"}))
    assert "Message not found" in canned_cli.refused(1, "topics", "peek-messages", "t", "-s", "s")
