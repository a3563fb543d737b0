"""Programs in Python, Java, Go and Rust against a real Apache Pulsar and ours: both give the same, expected result.

Each program (``programs/``) prints JSON lines without times and ids. Topics have the same names on both servers:
Pulsar picks the active consumer of a topic without partitions by a hash of its name.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from tests.support.client_programs import go_program_of, java_program, python_program, rust_program
from tests.support.commands import run, started
from tests.support.pulsar_standalone import PulsarStandalone
from tests.support.serving import start

from afterglow.errors import MissingDependency

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.commands import Running
    from tests.support.serving import Served

pulsar = pytest.importorskip("pulsar", reason="the stock client is not installed: pip install pulsar-client")
# The first run fetches a Pulsar and builds the programs, which takes minutes.
pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(2400)]

SOURCES = Path(__file__).parent / "programs"
BUILDS = {"python": python_program, "java": java_program, "go": go_program_of, "rust": rust_program}
LANGUAGES = list(BUILDS)
HAVE_EVENTS = {"java"}
"""Languages whose clients report every time that a consumer became active or inactive; Go's loses early ones."""
HAVE_PRIORITY = {"java", "rust"}
"""Languages whose clients send a consumer's priority."""
ACTIVE = {"python": "a", "java": "b", "go": "a", "rust": "a"}
"""The consumer that Pulsar makes the active one of two, on the topic of each language."""
REFUSED = {
    "python": "ProducerFenced",
    "java": "ProducerFencedException",
    "go": "ProducerFenced",
    "rust": "ProducerFenced",
}
"""The error of a producer that asks for exclusive access which another has."""
COUNT_REDELIVERIES = {"python", "java", "go"}
"""Languages whose clients show how often a message was delivered before."""
LIMIT_S = 120.0
POLL_S = 0.1


class Server(Protocol):
    """What both servers have."""

    @property
    def service_url(self) -> str: ...

    def admin(self, method: str, path: str, body: object = None) -> Any: ...

    def start(self) -> None: ...

    def stop(self) -> object: ...


class Ours:
    """An ``afterglow serve`` that can be started again on its directory."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._served: Served | None = None

    @property
    def served(self) -> Served:
        assert self._served is not None
        return self._served

    @property
    def service_url(self) -> str:
        return self.served.service_url

    def admin(self, method: str, path: str, body: object = None) -> Any:
        return self.served.admin(method, path, body)

    def start(self) -> None:
        self._served = start(self._home)

    def stop(self) -> int:
        return self.served.stop()

    def kill(self) -> None:
        self.served.kill()


@dataclass(frozen=True)
class Program:
    """One language's program."""

    language: str
    command: list[str]

    def run(self, server: Server, command: str, topic: str, *arguments: str) -> list[dict[str, Any]]:
        """Run a command to its end; returns the lines it printed."""
        return lines(run([*self.command, server.service_url, command, topic, *arguments], limit_s=LIMIT_S))

    def words(self, server: Server, command: str, topic: str, *arguments: str) -> list[str]:
        return [*self.command, server.service_url, command, topic, *arguments]


@dataclass
class Servers:
    """An Apache Pulsar and ours."""

    theirs: Server
    ours: Server
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2, "server"))

    def both(self, play: Callable[[Server], Any], expected: Any) -> None:
        """Play a scenario on both servers at once; both must give the expected result."""
        futures = [self.pool.submit(play, server) for server in (self.theirs, self.ours)]
        theirs = futures[0].result()
        assert theirs == expected, "Apache Pulsar"
        assert futures[1].result() == expected, "Afterglow"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    theirs = PulsarStandalone(tmp_path_factory.mktemp("theirs"))
    ours = Ours(tmp_path_factory.mktemp("ours") / "home")
    try:
        theirs.start()
    except MissingDependency as error:
        pytest.skip(str(error))
    with ExitStack() as stack:
        stack.callback(theirs.stop)
        ours.start()
        stack.callback(ours.kill)
        yield Servers(theirs, ours)


@pytest.fixture(params=LANGUAGES)
def program(request: pytest.FixtureRequest) -> Program:
    return built(request.param)


def built(language: str) -> Program:
    try:
        return Program(language, BUILDS[language](SOURCES / language))
    except MissingDependency as error:
        pytest.skip(str(error))


def lines(output: str) -> list[dict[str, Any]]:
    """The JSON lines of an output; the Java client's logger writes there, too."""
    whole = output[: output.rfind("\n") + 1]
    return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]


def named(program: Program, what: str) -> str:
    return f"persistent://public/default/{program.language}-{what}"


def admin_path(topic: str) -> str:
    return topic.replace("://", "/")


def until(condition: Callable[[], Any], *running: Running) -> None:
    """Wait until something holds; the programs that should bring it about are in the message where it does not."""
    give_up_at = time.monotonic() + LIMIT_S
    while not condition():
        ended = bool(running) and all(program.process.poll() is not None for program in running)
        if (ended and not condition()) or time.monotonic() > give_up_at:
            raise AssertionError("\n".join(str(program.failure("did not get so far")) for program in running))
        time.sleep(POLL_S)


# -- Delayed delivery

DELAYS = ("12", "8", "4", "0")
"""Seconds. Those of messages on a Shared subscription are the reverse of their order in the topic."""


def received(language: str, subscription: str, *values: str) -> list[dict[str, Any]]:
    """The lines about messages of a subscription; an exclusive consumer gets delayed ones before their time."""
    redeliveries = {"redeliveries": 0} if language in COUNT_REDELIVERIES else {}
    early = {value: subscription == "exclusive" and value != "0" for value in values}
    return [{"subscription": subscription, "value": value, "early": early[value], **redeliveries} for value in values]


def test_a_shared_consumer_gets_delayed_messages_when_they_are_due(servers: Servers, program: Program) -> None:
    topic = named(program, "delayed")
    expected = [
        *({"sent": delay} for delay in DELAYS),
        *received(program.language, "exclusive", *DELAYS),
        *received(program.language, "shared", *reversed(DELAYS)),
        {"reader": list(DELAYS)},
    ]
    servers.both(lambda server: program.run(server, "delayed", topic, *DELAYS), expected)


def test_delayed_messages_stay_delayed_when_the_server_restarts(servers: Servers) -> None:
    # In the order of their times, which is also that of messages whose time is over when a slow server is back.
    delays = ("0", "60", "63")
    programs = [built(language) for language in LANGUAGES]
    topics = {program.language: named(program, "restart") for program in programs}

    def play(server: Server) -> dict[str, list[dict[str, Any]]]:
        with ThreadPoolExecutor(len(programs)) as pool:
            list(pool.map(lambda p: p.run(server, "delayed-send", topics[p.language], *delays), programs))
            server.stop()
            server.start()
            outputs = pool.map(lambda p: p.run(server, "delayed-receive", topics[p.language], "3"), programs)
            return dict(zip(topics, outputs, strict=True))

    last = {"reader": list(delays)}
    servers.both(play, {language: [*received(language, "shared", *delays), last] for language in LANGUAGES})


# -- Table views


@pytest.mark.parametrize("partitions", [0, 3], ids=["plain", "partitioned"])
def test_a_table_view_has_the_last_value_of_each_key(servers: Servers, program: Program, partitions: int) -> None:
    if partitions and program.language == "rust":
        pytest.skip("the Rust client has no table view, and its readers read one partition")
    topic = named(program, f"table-{partitions}")

    def play(server: Server) -> list[dict[str, Any]]:
        if partitions:
            server.admin("PUT", f"{admin_path(topic)}/partitions", partitions)
        return program.run(server, "table-view", topic)

    first: dict[str, Any] = {"entries": {"a": "3", "b": "2"}}
    last = {"entries": {"b": "5", "d": "6", "e": "7"}}
    if program.language == "rust":  # a compacted reader
        servers.both(play, [first, last])
    else:
        updates = {"updates": [["b", "5"], ["d", "6"], ["e", "7"]]}
        servers.both(play, [{**first, "get": "3", "missing": None}, updates, last])


# -- Failover subscriptions


class Consumers:
    """Processes that consume a topic by one Failover subscription."""

    def __init__(self, server: Server, program: Program, topic: str, stack: ExitStack) -> None:
        self._server, self._program, self._topic, self._stack = server, program, topic, stack
        self._running: dict[str, Running] = {}
        client = pulsar.Client(server.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        stack.callback(client.close)
        self._client = client

    def start(self, name: str, priority: int = 0) -> None:
        words = self._program.words(self._server, "failover", self._topic, name, str(priority))
        running = self._stack.enter_context(started(words))
        self._running[name] = running
        until(lambda: {"state": "subscribed"} in lines(running.output), running)

    def kill(self, name: str) -> None:
        """End one as a crash does."""
        self._running[name].process.kill()
        self._running[name].process.wait()

    def send(self, *values: str, partition: int = -1) -> None:
        topic = self._topic if partition < 0 else f"{self._topic}-partition-{partition}"
        producer = self._client.create_producer(topic)
        for value in values:
            producer.send(value.encode())
        producer.close()

    def backlog(self) -> int:
        partitioned = self._server.admin("GET", f"{admin_path(self._topic)}/partitions")["partitions"]
        kind = "partitioned-stats" if partitioned else "stats"
        stats = self._server.admin("GET", f"{admin_path(self._topic)}/{kind}")
        return int(stats["subscriptions"]["s"]["msgBacklog"])

    def until_received(self, expected: dict[str, dict[int, list[str]]], backlog: int) -> None:
        """Wait until consumers have all that is expected and their acknowledgements have arrived."""
        running = list(self._running.values())
        until(lambda: self.received() == expected, *running)
        until(lambda: self.backlog() == backlog, *running)

    def received(self) -> dict[str, dict[int, list[str]]]:
        """The values that each consumer got from each partition, in order."""
        found: dict[str, dict[int, list[str]]] = {}
        for name, running in self._running.items():
            for line in lines(running.output):
                if "value" in line:
                    found.setdefault(name, {}).setdefault(line["partition"], []).append(line["value"])
        return found

    def events(self) -> dict[str, dict[int, list[bool]]]:
        """The active-consumer events of each consumer, by partition, in order."""
        found: dict[str, dict[int, list[bool]]] = {}
        for name, running in self._running.items():
            for line in lines(running.output):
                if "active" in line:
                    found.setdefault(name, {}).setdefault(line["partition"], []).append(line["active"])
        return found

    def result(self, expected: dict[str, Any]) -> dict[str, Any]:
        """Messages and events of the consumers, as soon as they are as expected; otherwise those at the time-out."""
        give_up_at = time.monotonic() + LIMIT_S / 4
        while True:
            events = self.events() if self._program.language in HAVE_EVENTS else expected["events"]
            result = {"received": self.received(), "events": events}
            if result == expected or time.monotonic() > give_up_at:
                return result
            time.sleep(POLL_S)


def test_another_failover_consumer_takes_over_from_one_that_was_killed(servers: Servers, program: Program) -> None:
    topic = named(program, "failover")
    active = ACTIVE[program.language]
    other = "b" if active == "a" else "a"
    expected = {
        "received": {active: {-1: ["0", "hold-1", "2"]}, other: {-1: ["hold-1", "3"]}},
        "events": (
            {"a": {-1: [True]}, "b": {-1: [False, True]}}
            if active == "a"
            else {"a": {-1: [True, False, True]}, "b": {-1: [True]}}
        ),
    }

    def play(server: Server) -> dict[str, Any]:
        with ExitStack() as stack:
            consumers = Consumers(server, program, topic, stack)
            consumers.start("a")
            consumers.start("b")
            consumers.send("0", "hold-1", "2")
            consumers.until_received({active: {-1: ["0", "hold-1", "2"]}}, backlog=1)
            consumers.kill(active)
            consumers.send("3")
            if program.language == "go":
                until(lambda: consumers.events().get(other, {}).get(-1, [False])[-1])
            return consumers.result(expected)

    servers.both(play, expected)


def test_a_failover_consumer_of_higher_priority_is_active(servers: Servers, program: Program) -> None:
    if program.language not in HAVE_PRIORITY:
        pytest.skip(f"the {program.language} client has no priority of consumers")
    topic = named(program, "priority")
    expected = {
        "received": {
            "a": {-1: ["hold-1", "3"]},
            "b": {-1: ["0", "hold-1", "2"]},
            "c": {-1: ["hold-1", "4"]},
        },
        "events": {"a": {-1: [True, False, True, False]}, "b": {-1: [True]}, "c": {-1: [True]}},
    }

    def play(server: Server) -> dict[str, Any]:
        with ExitStack() as stack:
            consumers = Consumers(server, program, topic, stack)
            consumers.start("a", priority=1)
            consumers.start("b", priority=0)
            consumers.send("0", "hold-1", "2")
            consumers.until_received({"b": {-1: ["0", "hold-1", "2"]}}, backlog=1)
            consumers.kill("b")
            consumers.send("3")
            consumers.until_received({"a": {-1: ["hold-1", "3"]}, "b": {-1: ["0", "hold-1", "2"]}}, backlog=1)
            consumers.start("c", priority=0)
            consumers.send("4")
            return consumers.result(expected)

    servers.both(play, expected)


def test_failover_consumers_share_partitions_and_keep_their_order(servers: Servers, program: Program) -> None:
    topic = named(program, "failover-parts")
    # By the order of their names, each is active for every second partition.
    shared = {"a": {0: ["0", "hold-1", "2"]}, "b": {1: ["0", "hold-1", "2"]}}
    alone = {"a": shared["a"], "b": {0: ["hold-1", "3"], 1: [*shared["b"][1], "3"]}}
    expected = {
        "received": {
            "a": alone["a"],
            "b": {0: [*alone["b"][0], "4"], 1: alone["b"][1]},
            "c": {1: ["hold-1", "4"]},
        },
        "events": {
            "a": {0: [True], 1: [True, False]},
            "b": {0: [False, True], 1: [True, False]},
            "c": {0: [False], 1: [True]},
        },
    }

    def play(server: Server) -> dict[str, Any]:
        server.admin("PUT", f"{admin_path(topic)}/partitions", 2)
        with ExitStack() as stack:
            consumers = Consumers(server, program, topic, stack)
            consumers.start("a")
            consumers.start("b")
            for partition in range(2):
                consumers.send("0", "hold-1", "2", partition=partition)
            consumers.until_received(shared, backlog=2)
            consumers.kill("a")
            for partition in range(2):
                consumers.send("3", partition=partition)
            consumers.until_received(alone, backlog=2)
            consumers.start("c")
            for partition in range(2):
                consumers.send("4", partition=partition)
            return consumers.result(expected)

    servers.both(play, expected)


# -- Producers with exclusive access


def test_a_waiting_producer_follows_one_that_was_killed_or_closed(servers: Servers, program: Program) -> None:
    topic = named(program, "exclusive")
    opened = [{"state": state} for state in ("opening", "open", "sent")]
    expected = {
        "first": opened,
        "second": [*opened, {"state": "closed"}],
        "refused": [{"state": "opening"}, {"state": "refused", "error": REFUSED[program.language]}],
        "third": opened,
        "topic": ["first", "second", "third"],
    }

    def play(server: Server) -> dict[str, Any]:
        with ExitStack() as stack:
            running: dict[str, Running] = {}

            def open_one(name: str) -> Running:
                words = program.words(server, "exclusive-producer", topic, name, "wait")
                running[name] = stack.enter_context(started(words))
                until(lambda: lines(running[name].output), running[name])
                return running[name]

            def until_sent(one: Running) -> None:
                until(lambda: {"state": "sent"} in lines(one.output), one)

            first = open_one("first")
            until_sent(first)
            second = open_one("second")
            refused = program.run(server, "exclusive-producer", topic, "refused", "exclusive")
            assert lines(second.output) == [{"state": "opening"}]
            first.process.kill()
            until_sent(second)
            third = open_one("third")
            second.interrupt()
            until_sent(third)
            second.wait(LIMIT_S)
            transcripts = {name: lines(one.output) for name, one in running.items()}
            return {**transcripts, "refused": refused, "topic": stored(server, topic)}

    servers.both(play, expected)


def stored(server: Server, topic: str) -> list[str]:
    """The values of all messages of a topic."""
    client = pulsar.Client(server.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    values = []
    while reader.has_message_available():
        values.append(reader.read_next(20_000).data().decode())
    client.close()
    return values


# -- Schemas


def test_a_go_producer_with_the_schema_of_bytes_sends(servers: Servers) -> None:
    program = built("go")
    topic = named(program, "bytes")
    line = {"value": "of bytes", "schema version": "0000000000000000"}
    servers.both(lambda server: program.run(server, "bytes-schema", topic), [line, line])
