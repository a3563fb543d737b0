"""Produce and consume through a real ``afterglow serve``, 1 KiB messages, everything on.

Rates are of messages. The yardstick, ``bench.bare_broker``, takes the same load of the same raw client in the same run,
in turns with the broker. Latencies of receipts are taken at a fixed rate that the broker can bear, from when each
message was due.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tests.support.raw_client import RawClient
from tests.support.serving import serving, start

from bench.broker_load import BATCH, WINDOW, pace, pull, push, sends, stock_client, stock_consume, stock_produce
from bench.measure import keep

if TYPE_CHECKING:
    from collections.abc import Iterator

ROUNDS = 3
SINGLE_SENDS = 20_000
BATCH_SENDS = 1_500
BATCH_WINDOW = 64
TOPICS = (1, 100, 1_000)
PACED_RATE = 2_000
PACED_SENDS = 12_000
STOCK_SINGLE = 20_000
STOCK_BATCHED = 100_000
GOALS = {
    "unbatched, broker / bare loop": 1.0,
    "batched, broker / bare loop": 0.7,
    "1000 topics / 1 topic": 0.8,
    "start to ready, s": 1.0,
}
CONF = "defaultRetentionTimeInMinutes=-1\ndefaultRetentionSizeInMB=-1\n"


def topic_name(name: str) -> str:
    return f"persistent://public/default/{name}"


@contextlib.contextmanager
def bare_broker(path: Path) -> Iterator[str]:
    process = subprocess.Popen([sys.executable, "-m", "bench.bare_broker", path], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


class Pushing:
    """A raw client with producers that are open and warm, on as many topics."""

    def __init__(self, service_url: str, topics: list[str]) -> None:
        self._client = RawClient(service_url)
        self._producers = [self._client.open_producer(topic) for topic in topics]
        push(self._client, sends(self._producers, max(len(topics), 500), 1), WINDOW)

    def rate(self, count: int, messages: int, window: int) -> float:
        """Messages per second."""
        return count * messages / push(self._client, sends(self._producers, count, messages), window)

    def latencies(self) -> list[float]:
        """Seconds from due to receipt at the fixed rate."""
        return pace(self._client, sends(self._producers, PACED_SENDS, 1), PACED_RATE)

    def close(self) -> None:
        """End the connection."""
        self._client.close()


def start_seconds(conf: Path) -> float:
    """Of a process whose modules were compiled by an earlier one, as after an installation."""
    found = []
    for _ in range(1 + ROUNDS):
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as home:
            begin = time.perf_counter()
            served = start(Path(home), "--conf", str(conf), environ={"PYTHONDONTWRITEBYTECODE": ""})
            found.append(time.perf_counter() - begin)
            served.kill()
    return statistics.median(found[1:])


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has taken, its own and the system's for it."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_per_message(service_url: str, pid: int) -> dict[str, float]:
    """Processor time of the broker for each unbatched message, microseconds."""
    found = {}
    for count in TOPICS:
        pushing = Pushing(service_url, [topic_name(f"cpu-{count}-{number}") for number in range(count)])
        before = cpu_seconds(pid)
        for _ in range(ROUNDS):
            pushing.rate(SINGLE_SENDS, 1, WINDOW)
        found[f"{count} topics, broker CPU per message, us"] = (cpu_seconds(pid) - before) / ROUNDS / SINGLE_SENDS * 1e6
        pushing.close()
    return found


def raw_rates(service_url: str, bare_url: str) -> dict[str, float]:
    """Median rates, the broker's and the yardstick's in turns."""
    pushing = {count: Pushing(service_url, [topic_name(f"of-{count}-{n}") for n in range(count)]) for count in TOPICS}
    bare = Pushing(bare_url, ["bare"])
    rates: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        rates.setdefault("bare loop, unbatched", []).append(bare.rate(SINGLE_SENDS, 1, WINDOW))
        for count in TOPICS:
            rates.setdefault(f"raw client, {count} topics, unbatched", []).append(
                pushing[count].rate(SINGLE_SENDS, 1, WINDOW)
            )
        rates.setdefault("bare loop, batched", []).append(bare.rate(BATCH_SENDS, BATCH, BATCH_WINDOW))
        rates.setdefault("raw client, 1 topics, batched", []).append(pushing[1].rate(BATCH_SENDS, BATCH, BATCH_WINDOW))
    for each in (bare, *pushing.values()):
        each.close()
    return {name: statistics.median(found) for name, found in rates.items()}


def consume_rates(service_url: str) -> dict[str, float]:
    """Rates at which a raw consumer gets what was just produced."""
    found = {}
    for name, count, messages, window in (
        ("unbatched", SINGLE_SENDS, 1, WINDOW),
        ("batched", BATCH_SENDS, BATCH, BATCH_WINDOW),
    ):
        topic = topic_name(f"consumed-{name}")
        pushing = Pushing(service_url, [topic])
        pushing.rate(count, messages, window)
        pushing.close()
        found[f"raw client, consume, {name}"] = count * messages / pull(service_url, topic, count * messages)
    return found


def stock_rates(service_url: str) -> dict[str, float]:
    client = stock_client(service_url)
    found = {}
    for name, count, batching in (("unbatched", STOCK_SINGLE, False), ("batched", STOCK_BATCHED, True)):
        topic = topic_name(f"stock-{name}")
        found[f"stock client, produce, {name}"] = count / stock_produce(client, topic, count, batching=batching)
        found[f"stock client, consume, {name}"] = count / stock_consume(client, topic, count)
    client.close()
    return found


def main() -> None:
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as directory:
        conf = Path(directory) / "broker.conf"
        conf.write_text(CONF)
        figures: dict[str, Any] = {"start to ready, s": round(start_seconds(conf), 3)}
        with (
            serving(Path(directory) / "home", "--conf", str(conf)) as served,
            bare_broker(Path(directory) / "bare") as bare_url,
        ):
            paced = {"broker": Pushing(served.service_url, [topic_name("paced")]), "bare": Pushing(bare_url, ["paced"])}
            latencies = {name: pushing.latencies() for name, pushing in paced.items()}
            rates = raw_rates(served.service_url, bare_url)
            rates |= consume_rates(served.service_url)
            rates |= stock_rates(served.service_url)
            cpu = cpu_per_message(served.service_url, served.process.pid)
    figures |= {f"{name}, msg/s": round(rate) for name, rate in rates.items()}
    figures |= {name: round(microseconds, 1) for name, microseconds in cpu.items()}
    for name, found in latencies.items():
        for share in (50, 99, 99.9):
            figures[f"{name}, receipt p{share} at {PACED_RATE} msg/s, ms"] = round(
                1000 * float(np.percentile(found, share)), 2
            )
    one = rates["raw client, 1 topics, unbatched"]
    figures["unbatched, broker / bare loop"] = round(one / rates["bare loop, unbatched"], 3)
    figures["batched, broker / bare loop"] = round(
        rates["raw client, 1 topics, batched"] / rates["bare loop, batched"], 3
    )
    for count in TOPICS[1:]:
        figures[f"{count} topics / 1 topic"] = round(rates[f"raw client, {count} topics, unbatched"] / one, 3)
    keep("broker", figures, GOALS)
