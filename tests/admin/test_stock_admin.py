"""Every command of Pulsar's own ``pulsar-admin``, against ``afterglow serve`` and a real Apache Pulsar side by side.

What is run stands in ``stock/*.txt``, what may differ in ``stock/DIFFERENCES.md``.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.admin_tool import AdminTool
from tests.support.differences import allowed_differences
from tests.support.http_proxy import recorder
from tests.support.pulsar_standalone import PulsarStandalone
from tests.support.scenario import parse_scenario
from tests.support.servers import start_moto
from tests.support.serving import start
from tests.support.side_by_side import Side, SideBySide

from afterglow.errors import MissingDependency

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.differences import Allowed
    from tests.support.serving import Served
    from tests.support.side_by_side import Comparison

pulsar = pytest.importorskip("pulsar", reason="the stock client is not installed: pip install pulsar-client")
# The first run fetches the tools and a Pulsar, which takes minutes.
pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(900)]

STOCK = Path(__file__).parent / "stock"
SCENARIOS = sorted(path.stem for path in STOCK.glob("*.txt"))
ALLOWED = allowed_differences((STOCK / "DIFFERENCES.md").read_text())
BUCKET = "offloaded"

GROUPS = ("clusters", "tenants", "namespaces", "topics", "topicPolicies", "schemas", "brokers")
LEFT_OUT = {
    ("brokers", "shutdown"): "ends the server",
    ("schemas", "extract"): "takes a schema out of a user's jar, then does as `schemas upload`",
    **{
        ("topicPolicies", name): "the tool does not wait for the answer"
        for name in (
            "set-replication-clusters",
            "get-dispatcher-pause-on-ack-state-persistent",
            "set-dispatcher-pause-on-ack-state-persistent",
            "remove-dispatcher-pause-on-ack-state-persistent",
        )
    },
}

# Settings of both servers.
SETTINGS = {
    "clusterName": "standalone",
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
    "brokerDeleteInactiveTopicsEnabled": "false",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "managedLedgerMaxEntriesPerLedger": "50000",
    "forceDeleteTenantAllowed": "true",
    "forceDeleteNamespaceAllowed": "true",
    "exposingBrokerEntryMetadataToClientEnabled": "true",
}
# Settings that make Pulsar behave like Afterglow's defaults.
THEIR_SETTINGS = {
    "brokerEntryMetadataInterceptors": ",".join(
        f"org.apache.pulsar.common.intercept.Append{name}MetadataInterceptor" for name in ("BrokerTimestamp", "Index")
    ),
}


class Reading(pulsar.schema.Record):  # type: ignore[misc,name-defined]
    celsius = pulsar.schema.Double()


_open: dict[int, list[Any]] = {}


def client(side: Side) -> Any:
    """A client that stays until the scenario ends."""
    made = pulsar.Client(
        side.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), operation_timeout_seconds=20
    )
    _open.setdefault(id(side), []).append(made)
    return made


def close_all(side: Side) -> None:
    for one in _open.pop(id(side), []):
        one.close()


def produce(side: Side, topic: str, count: str, start: str = "0") -> None:
    """Messages, each by itself."""
    producer = client(side).create_producer(topic, producer_name="writer", batching_enabled=False)
    for number in range(int(start), int(start) + int(count)):
        producer.send(
            b"message %06d" % number,
            properties={"n": str(number)},
            partition_key=f"k{number % 7}",
            event_timestamp=1_700_000_000_000 + number,
        )
    producer.close()


def produce_each(side: Side, topic: str, partitions: str, count: str) -> None:
    """Messages to each partition."""
    for index in range(int(partitions)):
        produce(side, f"{topic}-partition-{index}", count)


def produce_batch(side: Side, topic: str, count: str) -> None:
    """Messages in one batch."""
    producer = client(side).create_producer(
        topic,
        producer_name="writer",
        batching_enabled=True,
        batching_max_messages=int(count),
        batching_max_publish_delay_ms=60_000,
    )
    for number in range(int(count)):
        producer.send_async(b"message %06d" % number, lambda *_: None)
    producer.flush()
    producer.close()


def produce_typed(side: Side, topic: str, count: str) -> None:
    """Messages with a schema."""
    schema = pulsar.schema.JsonSchema(Reading)
    producer = client(side).create_producer(topic, schema=schema, producer_name="writer", batching_enabled=False)
    for number in range(int(count)):
        producer.send(Reading(celsius=number / 4))
    producer.close()


def cannot_produce(side: Side, topic: str) -> None:
    """Producing is refused."""
    try:
        client(side).create_producer(topic)
    except pulsar.TopicTerminated:
        return
    raise AssertionError(f"{topic} takes messages")


def subscribe(side: Side, topic: str, subscription: str) -> None:
    """A subscription made by a consumer that leaves."""
    client(side).subscribe(topic, subscription, initial_position=pulsar.InitialPosition.Earliest).close()


def connect(side: Side, topic: str, subscription: str) -> None:
    """A producer and a consumer that stay until the scenario ends; nothing is on its way."""
    made = client(side)
    producer = made.create_producer(topic, producer_name="writer", batching_enabled=False, properties={"of": "writer"})
    consumer = made.subscribe(
        topic,
        subscription,
        consumer_type=pulsar.ConsumerType.Shared,
        consumer_name="reader",
        properties={"of": "reader"},
        initial_position=pulsar.InitialPosition.Latest,
    )
    for number in range(5):
        producer.send(b"message %06d" % number)
    for number in range(5):
        message = consumer.receive(20_000)
        if number != 3:
            consumer.acknowledge(message)


def acknowledge(side: Side, topic: str, subscription: str, count: str, omitted: str) -> None:
    """Some messages received, and acknowledged but for one."""
    consumer = client(side).subscribe(topic, subscription, consumer_type=pulsar.ConsumerType.Shared)
    for number in range(int(count) + 1):
        message = consumer.receive(20_000)
        if number != int(omitted):
            consumer.acknowledge(message)
    consumer.close()


DEEDS = {
    function.__name__.replace("_", "-"): function
    for function in (
        produce, produce_each, produce_batch, produce_typed, cannot_produce, subscribe, connect, acknowledge,
    )
}  # fmt: skip


class Servers:
    """Both servers, and the results of the scenarios so far."""

    def __init__(self, sides: tuple[Side, Side], known: dict[str, str]) -> None:
        self.sides = sides
        self.ran: set[str] = set()
        self.used: set[Allowed] = set()
        self._known = known
        self._together = SideBySide(*sides, DEEDS, ALLOWED)

    def run(self, scenario: str) -> Comparison:
        """Run a scenario, in a tenant of its own."""
        for side in self.sides:
            side.known = {**self._known, "tenant": scenario.replace("_", "-")}
        try:
            result = self._together.run(parse_scenario((STOCK / f"{scenario}.txt").read_text()))
        finally:
            for side in self.sides:
                close_all(side)
        self.ran.add(scenario)
        self.used |= result.used
        return result


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with ExitStack() as stack:
        s3 = stack.enter_context(start_moto())
        s3.create_bucket(BUCKET)
        try:
            # With no credentials in the environment an offload to this driver never ends, whatever the policy says.
            credentials = {"ACCESS_KEY_ID": s3.access_key, "ACCESS_KEY_SECRET": s3.secret_key}
            theirs = PulsarStandalone(tmp_path_factory.mktemp("theirs"), {**SETTINGS, **THEIR_SETTINGS}, credentials)
            stack.enter_context(theirs)
            home = tmp_path_factory.mktemp("ours")
            conf = home / "broker.conf"
            conf.write_text("".join(f"{key}={value}\n" for key, value in SETTINGS.items()))
            ours = start(home / "home", "--conf", str(conf))
            stack.callback(ours.kill)
            sides = _side(stack, theirs, home), _side(stack, ours, home / "home")
        except MissingDependency as error:
            pytest.skip(str(error))
        known = {
            "files": str(STOCK),
            "bucket": BUCKET,
            "endpoint": s3.endpoint,
            "id": s3.access_key,
            "secret": s3.secret_key,
        }
        servers = Servers(sides, known)
        yield servers
    if servers.ran == set(SCENARIOS):
        unmet = [row for row in ALLOWED if row not in servers.used]
        assert not unmet, f"differences that are allowed but were not met: {unmet}"


def _side(stack: ExitStack, server: PulsarStandalone | Served, directory: Path) -> Side:
    proxy = stack.enter_context(recorder(server.admin_url))
    tool = stack.enter_context(AdminTool(server.service_url, proxy.url, directory))
    return Side(server.service_url, tool, proxy)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_both_servers_give_the_same_answers(servers: Servers, scenario: str) -> None:
    result = servers.run(scenario)
    assert not result.differences, str(result)


def test_every_command_of_the_tool_is_run(servers: Servers) -> None:
    steps = [step for path in STOCK.glob("*.txt") for step in parse_scenario(path.read_text())]
    run = {tuple(step.text.split()[:2]) for step in steps if not step.deed}
    has = {command for command in servers.sides[0].tool.commands() if command[0] in GROUPS}
    assert has - run == set(LEFT_OUT)
