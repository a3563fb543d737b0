"""Messages, backlogs and properties of topics through Pulsar's own ``pulsar-admin``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pulsar
import pytest
from tests.support.commands import CommandFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.admin.conftest import Admin
    from tests.support.java_tools import JavaTools

# The first run fetches the tools, which takes minutes.
pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(900)]

TOPIC = "persistent://public/default/t"
PARTITIONED = "persistent://public/default/p"


@pytest.fixture
def client(admin: Admin) -> Iterator[pulsar.Client]:
    client = pulsar.Client(admin.service.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


def refusal(tools: JavaTools, *arguments: str) -> str:
    with pytest.raises(CommandFailed) as failed:
        tools.admin("topics", *arguments)
    return str(failed.value)


def payloads(output: str) -> str:
    """The right column of every dump."""
    rows = [line.split("|") for line in output.splitlines() if line.startswith("|0")]
    return "".join(row[3].rstrip() for row in rows)


def test_pulsar_admin_shows_messages(tools: JavaTools, admin: Admin, client: pulsar.Client) -> None:
    client.subscribe("t", "s").close()
    plain = client.create_producer("t", batching_enabled=False)
    first = plain.send(b"plain", properties={"a": "b", "grüße": "日本\r\n"}, event_timestamp=1_600_000_000_001)
    batched = client.create_producer(
        "t", batching_enabled=True, batching_max_publish_delay_ms=10_000, compression_type=pulsar.CompressionType.ZSTD
    )
    for number in range(3):
        batched.send_async(b"in-batch-%d" % number, None, properties={"number": str(number)})
    batched.flush()
    zipped = client.create_producer("t", batching_enabled=False, compression_type=pulsar.CompressionType.LZ4)
    zipped.send(b"zipped" * 4, partition_key="日本\r\nX-Evil: 1")
    peeked = tools.admin("topics", "peek-messages", TOPIC, "-s", "s", "-n", "10")
    assert payloads(peeked) == "plain" + "in-batch-0" + "in-batch-1" + "in-batch-2" + "zipped" * 4
    assert f"Batch Message ID: {first.ledger_id()}:1:2" in peeked
    examined = tools.admin("topics", "examine-messages", TOPIC, "-i", "earliest", "-m", "1")
    assert "Event time: 1600000000001" in examined
    assert "Broker entry metadata index: 0" in examined
    assert "日本" in examined
    assert payloads(examined) == "plain"
    ledger = str(first.ledger_id())
    assert payloads(tools.admin("topics", "get-message-by-id", TOPIC, "-l", ledger, "-e", "0")) == "plain"
    assert "Message id not found" in refusal(tools, "get-message-by-id", TOPIC, "-l", ledger, "-e", "9")
    found = json.loads(tools.admin("topics", "get-message-id", TOPIC, "-d", "2020-01-01T00:00:00Z"))
    assert (found["ledgerId"], found["entryId"]) == (first.ledger_id(), 0)
    analyzed = json.loads(tools.admin("topics", "analyze-backlog", TOPIC, "-s", "s"))
    assert (analyzed["entries"], analyzed["messages"]) == (3, 5)


def test_pulsar_admin_keeps_properties_and_partitions(tools: JavaTools, admin: Admin) -> None:
    tools.admin("topics", "create-partitioned-topic", PARTITIONED, "-p", "2", "-m", "a=b")
    tools.admin("topics", "update-properties", PARTITIONED, "-p", "c=d")
    assert tools.admin("topics", "get-properties", PARTITIONED).split() == ["a", "b", "c", "d"]
    tools.admin("topics", "create-subscription", PARTITIONED, "-s", "s", "-m", "earliest", "-p", "k=v")
    assert json.loads(tools.admin("topics", "get-subscription-properties", PARTITIONED, "-s", "s")) == {"k": "v"}
    assert "replicated" in refusal(tools, "create-subscription", PARTITIONED, "-s", "r", "-r")
    tools.admin("topics", "trim-topic", PARTITIONED)
    assert "use the call for a single topic" in refusal(tools, "partitioned-terminate", PARTITIONED)
    assert "topics are not compacted" in refusal(tools, "compact", f"{PARTITIONED}-partition-0")
    assert admin.get("persistent/public/default/p/partitioned-stats")["metadata"]["partitions"] == 2
