"""Pulsar's own Java tools, unmodified, against a real process."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pulsar
import pytest
from tests.support.commands import CommandFailed
from tests.support.java_tools import VERSION, JavaTools

from afterglow.errors import MissingDependency

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.serving import Served

# The first run fetches the tools, which takes minutes.
pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(900)]

WAIT_MS = 20_000
PERF_MESSAGES = 3000
COMPRESSIONS = [
    pulsar.CompressionType.NONE,
    pulsar.CompressionType.LZ4,
    pulsar.CompressionType.ZLib,
    pulsar.CompressionType.ZSTD,
    pulsar.CompressionType.SNAPPY,
]


@pytest.fixture(scope="module")
def tools(served: Served, tmp_path_factory: pytest.TempPathFactory) -> JavaTools:
    try:
        return JavaTools(served.service_url, served.admin_url, tmp_path_factory.mktemp("tools"))
    except MissingDependency as error:
        pytest.skip(str(error))


def stored(client: Any, topic: str) -> list[Any]:
    """All messages of a topic, as a reader gets them."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(WAIT_MS))
    reader.close()
    return found


def contents(output: str) -> list[str]:
    """What ``pulsar-client`` shows of the messages it gets."""
    return re.findall(r", content:(.*)$", output, re.MULTILINE)


def count(output: str, pattern: str) -> int:
    """The number that a tool reports."""
    found = re.search(pattern, output)
    assert found is not None, output[-2000:]
    return int(found[1])


def stats(served: Served, topic: str, kind: str = "stats") -> Any:
    return served.admin("GET", f"persistent/{topic.removeprefix('persistent://')}/{kind}")


@pytest.mark.parametrize("batching", [True, False], ids=["batched", "unbatched"])
def test_what_pulsar_client_produces_is_stored_whole_and_in_order(
    tools: JavaTools, client: Any, topic: str, *, batching: bool
) -> None:
    options = [] if batching else ["--disable-batching"]
    values = ["-m", "first", "-m", "second", "-n", "10", "-k", "a key", "-p", "one=1", "-p", "two=2"]
    output = tools.client("produce", *options, *values, topic)
    assert count(output, r"(\d+) messages successfully produced") == 20
    messages = stored(client, topic)
    assert [message.data() for message in messages] == [b"first", b"second"] * 10
    assert {message.partition_key() for message in messages} == {"a key"}
    assert all(message.properties() == {"one": "1", "two": "2"} for message in messages)


def test_a_message_larger_than_a_frame_is_stored_in_chunks(
    tools: JavaTools, served: Served, client: Any, topic: str, tmp_path: Path
) -> None:
    large = bytes(range(256)) * (6 << 12)  # 6 MiB, where the largest message has 5
    (tmp_path / "large").write_bytes(large)
    tools.client("produce", "--chunking", "--disable-batching", "-f", str(tmp_path / "large"), topic)
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    assert consumer.receive(WAIT_MS).data() == large
    assert stats(served, topic, "internalStats")["numberOfEntries"] == 2


@pytest.mark.parametrize("kind", ["Exclusive", "Shared"])
def test_pulsar_client_consumes_batches_of_every_compression(
    tools: JavaTools, served: Served, client: Any, topic: str, kind: str
) -> None:
    sent = []
    for compression in COMPRESSIONS:
        producer = client.create_producer(
            topic, compression_type=compression, batching_enabled=True, batching_max_publish_delay_ms=1000
        )
        sent += [f"{compression.name} {number}" + "." * 100 for number in range(10)]
        for value in sent[-10:]:
            producer.send_async(value.encode(), None)
        producer.flush()
        producer.close()
    assert stats(served, topic, "internalStats")["numberOfEntries"] == len(COMPRESSIONS)
    output = tools.client("consume", topic, "-s", "s", "-t", kind, "-p", "Earliest", "--num-messages", str(len(sent)))
    assert contents(output) == sent
    assert count(output, r"(\d+) messages successfully consumed") == len(sent)
    subscription = stats(served, topic)["subscriptions"]["s"]
    assert (subscription["msgBacklog"], subscription["consumers"]) == (0, [])


def test_a_subscription_goes_on_where_pulsar_client_left_it(tools: JavaTools, client: Any, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(8):
        producer.send(str(number).encode())
    first = tools.client("consume", topic, "-s", "s", "-t", "Shared", "-p", "Earliest", "-n", "5")
    second = tools.client("consume", topic, "-s", "s", "-t", "Exclusive", "-n", "3")
    assert (contents(first), contents(second)) == (list("01234"), list("567"))


def test_pulsar_client_reads_from_the_beginning_and_from_a_message(tools: JavaTools, client: Any, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(str(number).encode()) for number in range(6)]
    assert contents(tools.client("read", topic, "-m", "earliest", "-n", "6")) == list("012345")
    start = f"{ids[2].ledger_id()}:{ids[2].entry_id()}"
    assert contents(tools.client("read", topic, "-m", start, "-n", "3")) == list("345")
    assert contents(tools.client("read", topic, "-m", start, "-i", "-n", "4")) == list("2345")


def test_pulsar_client_uses_all_partitions_of_a_topic(
    tools: JavaTools, served: Served, client: Any, topic: str
) -> None:
    served.admin("PUT", f"persistent/{topic.removeprefix('persistent://')}/partitions", 3)
    tools.client("produce", topic, "--disable-batching", "-m", "x", "-n", "30")
    assert [len(stored(client, f"{topic}-partition-{number}")) for number in range(3)] == [10, 10, 10]
    output = tools.client("consume", topic, "-s", "s", "-p", "Earliest", "-n", "30")
    assert contents(output) == ["x"] * 30
    assert stats(served, topic, "partitioned-stats")["subscriptions"]["s"]["msgBacklog"] == 0


def test_pulsar_client_consumes_topics_by_pattern(tools: JavaTools, client: Any, topic: str) -> None:
    for suffix in ("a", "b"):
        client.create_producer(f"{topic}-{suffix}").send(suffix.encode())
    output = tools.client("consume", f"{topic}-.*", "--regex", "-s", "s", "-p", "Earliest", "-n", "2")
    assert sorted(contents(output)) == ["a", "b"]


@pytest.mark.parametrize("options", [["-z", "LZ4"], ["--disable-batching"]], ids=["batched", "unbatched"])
def test_pulsar_perf_produces_consumes_and_reads(
    tools: JavaTools, served: Served, client: Any, topic: str, options: list[str]
) -> None:
    bounds = ["-r", "2000", "-m", str(PERF_MESSAGES), "-time", "30"]
    output = tools.perf("produce", "-u", served.service_url, *bounds, "-s", "1024", *options, topic)
    # It stops once so many have their receipts; a few more are on their way by then.
    sent = count(output, r"(\d+) records sent")
    assert sent >= PERF_MESSAGES
    assert stats(served, topic)["msgInCounter"] == sent
    sizes = [len(message.data()) for message in stored(client, topic)]
    assert sizes == [1024] * sent
    entries = stats(served, topic, "internalStats")["numberOfEntries"]
    assert (entries < sent) if options[0] == "-z" else (entries == sent)

    output = tools.perf("consume", "-u", served.service_url, "-ss", "perf", "-sp", "Earliest", "-m", str(sent), topic)
    assert count(output, r"(\d+) records received") == sent
    assert stats(served, topic)["subscriptions"]["perf"]["msgOutCounter"] >= sent
    output = tools.perf("read", "-u", served.service_url, "-n", str(sent), topic)
    assert count(output, r"(\d+) records received") == sent


def test_pulsar_admin_sets_a_tenant_up_and_takes_it_down(tools: JavaTools, served: Served, client: Any) -> None:
    assert tools.admin("brokers", "healthcheck").strip() == "ok"
    assert tools.admin("brokers", "version").strip() == VERSION
    tools.admin("tenants", "create", "acme", "--allowed-clusters", "standalone")
    tools.admin("namespaces", "create", "acme/live", "--bundles", "8", "--clusters", "standalone")
    tools.admin("topics", "create", "acme/live/plain")
    tools.admin("topics", "create-partitioned-topic", "acme/live/parts", "-p", "3")
    listed = tools.admin("topics", "list", "acme/live").split()
    parts = [f"persistent://acme/live/parts-partition-{number}" for number in range(3)]
    assert sorted(listed) == [*parts, "persistent://acme/live/plain"]
    assert tools.admin("topics", "list-partitioned-topics", "acme/live").split() == ["persistent://acme/live/parts"]

    tools.admin("topics", "create-subscription", "acme/live/plain", "-s", "s", "-m", "earliest")
    producer = client.create_producer("acme/live/plain")
    producer.send(b"x" * 100)
    shown = json.loads(tools.admin("topics", "stats", "acme/live/plain"))
    assert (shown["msgInCounter"], shown["subscriptions"]["s"]["msgBacklog"]) == (1, 1)
    inside = json.loads(tools.admin("topics", "stats-internal", "acme/live/plain"))
    assert (inside["numberOfEntries"], inside["totalSize"]) == (1, shown["storageSize"])
    assert list(json.loads(tools.admin("topics", "info-internal", "acme/live/plain"))["cursors"]) == ["s"]

    with pytest.raises(CommandFailed, match="acme/live has topics"):
        tools.admin("namespaces", "delete", "acme/live")
    # Of a topic that it could not delete it only speaks.
    assert "has producers connected" in tools.admin("topics", "delete", "acme/live/plain")
    producer.close()
    assert "Failed" not in tools.admin("topics", "delete", "acme/live/plain")
    tools.admin("topics", "delete-partitioned-topic", "acme/live/parts")
    tools.admin("namespaces", "delete", "acme/live")
    tools.admin("tenants", "delete", "acme")
    assert "acme" not in served.admin("GET", "tenants")
