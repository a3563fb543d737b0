"""Afterglow beside Apache Pulsar 4.0.8: the same stock clients, messages and S3 server, in alternating rounds.

Needs Maven, Java and Go. In every round the Java client produces topics of 1 KiB messages on each server; their closed
ledgers are offloaded to MinIO by a call of the admin API, and the stock clients read them from there, each a topic of
its own. Before that Afterglow is restarted. Pulsar unloads the topics, which drops their entries from its memory and
keeps its compiled code. Afterglow also gets a topic that streams. Afterglow syncs its journal before a
receipt; Pulsar keeps the default of its standalone server, which does not.

``BENCH_SIDE_MESSAGES`` is the number of messages of a topic, 500,000 by default; ``BENCH_SIDE_ROUNDS`` the number of
rounds, 3 by default.
"""

from __future__ import annotations

import os
import re
import statistics
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from tests.support.client_programs import java_program
from tests.support.commands import run
from tests.support.pulsar_standalone import PulsarStandalone
from tests.support.servers import S3Server, start_minio
from tests.support.serving import serving

from bench.broker_load import PAYLOAD, stock_client, stock_consume
from bench.measure import keep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MESSAGES: Final = int(os.environ.get("BENCH_SIDE_MESSAGES", "500000"))
ROUNDS: Final = int(os.environ.get("BENCH_SIDE_ROUNDS", "3"))
KINDS: Final = ("unbatched", "batched")
READERS: Final = ("Java", "Python")
WARM_SHARE: Final = 0.2
"""Messages that warm up the Java client and the server, as a share of those that count."""
LIMIT_S: Final = 900.0
JAVA_FLAGS: Final = ("-Xmx1g", "-XX:+UseSerialGC", "-Dio.netty.tryReflectionSetAccessible=true")
NAMESPACE: Final = "public/default"
SETTINGS: Final = {
    "managedLedgerMaxEntriesPerLedger": str(1 << 30),
    "managedLedgerMaxSizePerLedgerMbytes": "65536",
    "managedLedgerOffloadDriver": "S3",
    "managedLedgerOffloadRegion": "us-east-1",
    "managedLedgerOffloadMaxBlockSizeInBytes": str(64 << 20),
    "managedLedgerOffloadDeletionLagMs": str(24 * 3_600_000),
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
}
"""Of both servers. The default read priority of both is that of the tier."""
RATIO: Final = "Afterglow / Pulsar"
GOALS: Final = {
    f"unbatched: produce, Java, {RATIO}": 1.5,
    f"batched: produce, Java, {RATIO}": 1.3,
    "unbatched: produce, Java, streaming / not": 0.9,
    "batched: produce, Java, streaming / not": 0.9,
    f"unbatched: offload, {RATIO}": 12.0,
    f"batched: offload, {RATIO}": 1.8,
    f"unbatched: cold read, Java, {RATIO}": 1.5,
    f"batched: cold read, Java, {RATIO}": 1.5,
    f"unbatched: cold read, Python, {RATIO}": 1.2,
    f"batched: cold read, Python, {RATIO}": 1.2,
}


class Broker(Protocol):
    """A running server of either kind."""

    @property
    def service_url(self) -> str:
        """Its address for clients."""
        ...

    def admin(self, method: str, path: str, body: object = None) -> Any:
        """Call the admin API."""
        ...


@dataclass
class Side:
    """One of the two servers, and its figures: rates of all rounds."""

    name: str
    broker: Broker
    without_cache: Callable[[Iterable[str]], Broker]
    """Drops what the server holds in memory of topics; returns the server."""
    java: list[str]
    rates: defaultdict[str, list[float]] = field(default_factory=partial(defaultdict, list))

    def measure(self, figure: str, count: float, work: Callable[[], float]) -> None:
        """Note a rate, from the seconds that work took."""
        self.rates[figure].append(count / work())

    def java_seconds(self, what: str, topic: str, kind: str, warm_topic: str) -> float:
        """Seconds of the Java client for all messages of a topic."""
        counts = [str(int(MESSAGES * WARM_SHARE)), str(MESSAGES)]
        command = [*self.java, self.broker.service_url, what, warm_topic, topic, *counts, kind]
        output = run(command, limit_s=LIMIT_S, directory=Path.cwd())
        (seconds,) = re.findall(r"^seconds: (\S+)$", output, re.MULTILINE)
        return float(seconds)

    def offload(self, topic: str) -> float:
        """Close the newest ledger of a topic, and offload all of them; seconds from the call to its success."""
        path = topic.replace("://", "/")
        self.broker.admin("PUT", f"{path}/unload")
        ledgers = self.broker.admin("GET", f"{path}/internalStats")["ledgers"]
        last = max(ledger["ledgerId"] for ledger in ledgers)
        begin = time.perf_counter()
        self.broker.admin("PUT", f"{path}/offload", {"ledgerId": last, "entryId": 0, "partitionIndex": -1})
        deadline = time.monotonic() + LIMIT_S
        while (status := self.broker.admin("GET", f"{path}/offload"))["status"] != "SUCCESS":
            if status["status"] == "ERROR" or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} has not offloaded {topic}: {status}")
            time.sleep(0.02)
        return time.perf_counter() - begin

    def python_seconds(self, topic: str) -> float:
        """Seconds of the Python client for all messages of a topic."""
        with closing(stock_client(self.broker.service_url)) as client:
            return stock_consume(client, topic, MESSAGES)

    def round(self, number: int) -> None:
        """Produce and offload topics, one for each kind and reader; then read them with nothing in memory."""
        megabytes = MESSAGES * len(PAYLOAD) / 1e6
        topics = {
            (kind, reader): f"persistent://{NAMESPACE}/{kind}-{number}-{reader}" for kind in KINDS for reader in READERS
        }
        for (kind, _), topic in topics.items():
            produce = partial(self.java_seconds, "produce", topic, kind, f"{topic}-warm")
            self.measure(f"{kind}: produce, Java, {{}}, msg/s", MESSAGES, produce)
            self.offload(f"{topic}-warm")  # starts Spark, or loads Pulsar's offloader
            self.measure(f"{kind}: offload, {{}}, MB/s", megabytes, partial(self.offload, topic))
        self.broker = self.without_cache([*topics.values(), *(f"{topic}-warm" for topic in topics.values())])
        for (kind, reader), topic in topics.items():
            if reader == "Java":
                read = partial(self.java_seconds, "consume", topic, kind, f"{topic}-warm")
            else:
                read = partial(self.python_seconds, topic)
            self.measure(f"{kind}: cold read, {reader}, {{}}, MB/s", megabytes, read)

    def stream(self, number: int, kind: str) -> None:
        """Produce to a topic that streams."""
        topic, warm = (f"persistent://{NAMESPACE}/{kind}-{number}-streaming{suffix}" for suffix in ("", "-warm"))
        for name in (topic, warm):
            path = name.replace("://", "/")
            self.broker.admin("PUT", path)
            self.broker.admin("POST", f"{path}/offloadPolicies", {"streamingOffloadEnabled": True})
        self.measure(
            f"{kind}: produce, Java, {{}}, streaming, msg/s",
            MESSAGES,
            partial(self.java_seconds, "produce", topic, kind, warm),
        )


def conf_file(path: Path, settings: dict[str, str]) -> Path:
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return path


def start_sides(stack: ExitStack, directory: Path, s3: S3Server) -> tuple[Side, Side]:
    """Start both servers, each with a bucket of its own."""
    java = java_program(Path(__file__).with_name("java"), "Load", JAVA_FLAGS)
    # Both take their credentials from the environment; Afterglow's tasks inherit it.
    os.environ.update({"ACCESS_KEY_ID": s3.access_key, "ACCESS_KEY_SECRET": s3.secret_key})
    settings = {**SETTINGS, "managedLedgerOffloadServiceEndpoint": s3.endpoint}
    for name in ("afterglow", "pulsar"):
        (directory / name).mkdir()
        s3.create_bucket(name)
    conf = conf_file(directory / "broker.conf", {**settings, "managedLedgerOffloadBucket": "afterglow"})
    given = {**settings, "managedLedgerOffloadBucket": "pulsar"}
    theirs = stack.enter_context(PulsarStandalone(directory / "pulsar", given))
    ours = stack.enter_context(ExitStack())

    def restart(_: Iterable[str] = ()) -> Broker:
        ours.close()
        served = ours.enter_context(serving(directory / "afterglow", "--conf", str(conf)))
        ours.callback(served.stop)
        return served

    def unload(topics: Iterable[str]) -> Broker:
        for topic in topics:
            theirs.admin("PUT", f"{topic.replace('://', '/')}/unload")
        return theirs

    return Side("Afterglow", restart(), restart, java), Side("Pulsar", theirs, unload, java)


def summarize(ours: Side, theirs: Side) -> dict[str, Any]:
    """Medians of the rounds, their ratios, and what all rounds found."""
    figures: dict[str, Any] = {"messages": MESSAGES, "rounds": ROUNDS}
    for side in (theirs, ours):
        for name, rates in side.rates.items():
            figures[name.format(side.name)] = round(statistics.median(rates), 1)
    for name, rates in ours.rates.items():
        figure = name.partition(", {}")[0]
        if name in theirs.rates:
            ratios = [one / other for one, other in zip(rates, theirs.rates[name], strict=True)]
            figures[f"{figure}, {RATIO}"] = round(statistics.median(ratios), 2)
            figures[f"{figure}, {RATIO}, rounds"] = [round(ratio, 2) for ratio in ratios]
        else:
            base = statistics.median(ours.rates[name.replace(", streaming", "")])
            figures[f"{figure}, streaming / not"] = round(statistics.median(rates) / base, 2)
    return figures


def main() -> None:
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as name, ExitStack() as stack:
        directory = Path(name)
        (directory / "s3").mkdir()
        s3 = stack.enter_context(start_minio(directory / "s3"))
        sides = start_sides(stack, directory, s3)
        for number in range(ROUNDS):
            for side in sides if number % 2 else reversed(sides):
                side.round(number)
            for kind in KINDS:
                sides[0].stream(number, kind)
        figures = summarize(*sides)
    keep("side_by_side", figures, GOALS)
