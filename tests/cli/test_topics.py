from __future__ import annotations

import base64
import json
import sys
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Cli


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/t{uuid4().hex}"


def test_a_topic_is_created_listed_and_deleted_by_any_spelling_of_its_name(cli: Cli, topic: str) -> None:
    short = topic.rpartition("/")[2]
    assert cli.do("topics", "create", short) == f"created {topic}\n"
    assert topic in cli.do("topics", "list").splitlines()
    assert {"topic": topic} in cli.rows("topics", "list", "public/default")
    assert "exists already" in cli.refused(1, "topics", "create", topic)
    cli.do("topics", "delete", f"public/default/{short}")
    assert topic not in cli.do("topics", "list")
    assert "does not exist" in cli.refused(1, "topics", "stats", topic)


def test_a_name_with_any_character_finds_its_topic(cli: Cli, topic: str) -> None:
    name = f"{topic} +%/ü?#".replace("/ü", "ü")
    cli.do("topics", "create", name)
    assert cli.rows("topics", "stats-internal", name)[0]["numberOfEntries"] == 0
    cli.do("topics", "delete", name)


def test_a_partitioned_topics_name_means_all_its_partitions(cli: Cli, topic: str) -> None:
    cli.do("topics", "create", topic, "--partitions", "2")
    parts = [f"{topic}-partition-0", f"{topic}-partition-1"]
    assert [line for line in cli.do("topics", "list").splitlines() if line.startswith(topic)] == parts
    cli.do("topics", "produce", topic, "-m", "x")
    assert cli.rows("topics", "stats", topic)[0]["msgInCounter"] == 1
    assert set(cli.rows("topics", "stats-internal", topic)[0]["partitions"]) == set(parts)
    assert parts[1] in cli.do("topics", "stats-internal", topic)
    cli.do("topics", "unload", topic)
    cli.do("topics", "truncate", topic)
    assert [row["topic"] for row in cli.rows("topics", "terminate", topic)] == parts
    cli.do("topics", "delete", topic)
    assert topic not in cli.do("topics", "list")


def test_produced_messages_are_consumed(cli: Cli, topic: str) -> None:
    assert f"sent 6 messages to {topic}" in cli.do(
        *("topics", "produce", topic, "-m", "hello", "-m", "wörld", "-n", "3", "-k", "key")
    )
    lines = cli.do("topics", "consume", topic, "-n", "6").splitlines()
    assert [line.split("\t")[1] for line in lines] == ["key=hello", "key=wörld"] * 3
    rows = cli.rows("topics", "consume", topic, "-n", "2")
    assert [base64.b64decode(row["value_base64"]).decode() for row in rows] == ["hello", "wörld"]
    assert {row["topic"] for row in rows} == {topic}
    assert cli.rows("topics", "stats", topic)[0]["subscriptions"] == {}


def test_a_subscription_continues_at_its_position(cli: Cli, topic: str) -> None:
    cli.do("topics", "produce", topic, "-m", "a", "-m", "b")
    assert cli.do("topics", "consume", topic, "-n", "1", "-s", "mine").endswith("\ta\n")
    assert cli.do("topics", "consume", topic, "-n", "1", "-s", "mine").endswith("\tb\n")
    assert "mine" in cli.do("topics", "stats", topic)


def test_too_few_messages_exit_1_and_all_until_the_timeout_exit_0(cli: Cli, topic: str) -> None:
    cli.do("topics", "produce", topic, "-m", "only")
    outcome = cli.run("topics", "consume", topic, "-n", "2", "--timeout", "1")
    assert (outcome.code, outcome.stdout.count("\n")) == (1, 1)
    assert "received 1 of 2 messages" in outcome.stderr
    assert cli.do("topics", "consume", topic, "-n", "0", "--timeout", "1").count("\n") == 1


def test_an_invalid_service_url_exits_2(cli: Cli, topic: str) -> None:
    assert "pulsar://HOST:PORT" in cli.refused(2, "topics", "produce", topic, "-m", "x", "--service-url", "nowhere")


def test_without_the_stock_client_the_pip_command_is_named(
    cli: Cli, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pulsar", None)
    assert "pip install pulsar-client" in cli.refused(1, "topics", "produce", topic, "-m", "x")


def test_a_message_to_a_terminated_topic_is_refused_in_one_line(cli: Cli, topic: str) -> None:
    cli.do("topics", "produce", topic, "-m", "x")
    cli.do("topics", "terminate", topic)
    assert "refused" in cli.refused(1, "topics", "produce", topic, "-m", "y")


def test_topic_policies_are_set_shown_with_their_origin_and_removed(cli: Cli, topic: str) -> None:
    cli.do("topics", "create", topic)
    cli.do("topics", "set-offload-policies", topic, "--offloadThresholdInBytes", "1M", "-ts", "-1", "-dl", "10")
    cli.do("topics", "set-data-read-priority", topic, "bookkeeper-first")
    assert cli.rows("topics", "get-offload-policies", topic) == [
        {
            "managedLedgerOffloadThresholdInBytes": 1 << 20,
            "managedLedgerOffloadThresholdInSeconds": -1,
            "managedLedgerOffloadDeletionLagInMillis": 10_000,
            "managedLedgerOffloadedReadPriority": "BOOKKEEPER_FIRST",
        }
    ]
    [applied] = cli.rows("topics", "get-offload-policies", topic, "--applied")
    assert applied["managedLedgerOffloadThresholdInBytes"] == 1 << 20
    assert applied["managedLedgerOffloadMaxBlockSizeInBytes"] == 64 << 20
    origins = {row["name"]: row["origin"] for row in cli.rows("topics", "policy", topic)}
    assert origins["managedLedgerOffloadThresholdInBytes"] == "topic"
    assert origins["managedLedgerOffloadMaxBlockSizeInBytes"] == "default"
    assert "topic" in cli.do("topics", "policy", topic)
    cli.do("topics", "remove-data-read-priority", topic)
    assert cli.rows("topics", "get-data-read-priority", topic) == [{"dataReadPriority": None}]
    cli.do("topics", "remove-offload-policies", topic)
    assert cli.rows("topics", "get-offload-policies", topic) == [None]


def test_a_value_by_driver_follows_the_driver_of_the_namespace(cli: Cli) -> None:
    namespace = f"public/n{uuid4().hex}"
    cli.do("namespaces", "create", namespace)
    cli.do("namespaces", "set-offload-policies", namespace, "-d", "aws-s3", "-b", "b", "-r", "eu-west-1")
    topic = f"{namespace}/t"
    cli.do("topics", "create", topic)
    cli.do("topics", "set-offload-policies", topic, "-m", "16M")
    assert cli.rows("topics", "get-offload-policies", topic) == [
        dict.fromkeys(
            ("managedLedgerOffloadMaxBlockSizeInBytes", "s3ManagedLedgerOffloadMaxBlockSizeInBytes"), 16 << 20
        )
    ]


def test_a_topic_without_segments_is_reported(cli: Cli, topic: str) -> None:
    cli.do("topics", "create", topic)
    assert cli.do("topics", "segments", topic) == f"{topic} has no segments\n"
    assert cli.rows("topics", "segments", topic) == []


def test_an_empty_topic_has_nothing_to_offload(cli: Cli, topic: str) -> None:
    cli.do("topics", "create", topic)
    assert cli.do("topics", "offload", topic, "-s", "0") == "Nothing to offload\n"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("stats", "a/b"), "TENANT/NAMESPACE/NAME"),
        (("stats", "file://a/b/c"), "persistent://"),
        (("create", "t", "-p", "0"), "--partitions"),
        (("offload", "t"), "--size-threshold"),
        (("offload", "t", "-s", "-1"), "as in 64M"),
        (("produce", "t"), "--message"),
        (("consume", "t", "--timeout", "never"), "as in 10m"),
        (("frobnicate",), "frobnicate"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(cli: Cli, args: tuple[str, ...], words: str) -> None:
    assert words in cli.refused(2, "topics", *args)


def test_statistics_as_tables_and_as_json_agree(cli: Cli, topic: str) -> None:
    cli.do("topics", "produce", topic, "-m", "x")
    shown = cli.do("topics", "stats-internal", topic)
    [row] = cli.rows("topics", "stats-internal", topic)
    assert row["lastConfirmedEntry"] in shown
    assert str(row["ledgers"][0]["ledgerId"]) in shown
    assert json.dumps(row["ledgers"][0]["offloaded"]) in shown
