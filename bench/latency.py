"""Receipts of a topic that streams against those of one that does not, in one server, in alternating rounds.

Batches of 100 KiB at steady rates, segments of 16 MiB, the default tier and master. A latency counts from when the
batch was due. Of the slowest 1 % of receipts the result has the causes, by probes in the
server; see ``bench.traced_server``.

``BENCH_LATENCY_SECONDS`` is the length of a round, 20 by default; ``BENCH_LATENCY_ROUNDS`` the number of rounds of each
kind, 5 by default.
"""

from __future__ import annotations

import json
import os
import re
import select
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from tests.support.raw_client import RawClient
from tests.support.serving import Served, serving

from bench.broker_load import BATCH, Receipts, sends
from bench.measure import keep

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Times = NDArray[np.float64]
    """Two columns: begin and end, in seconds of the monotonic clock."""

SECONDS: Final = float(os.environ.get("BENCH_LATENCY_SECONDS", "20"))
ROUNDS: Final = int(os.environ.get("BENCH_LATENCY_ROUNDS", "5"))
RATES_MB: Final = (2, 10, 30)
PERCENTILES: Final = (50, 99, 99.9)
SLOWEST: Final = 0.01
QUIET_S: Final = 120.0
GOALS: Final = {f"{rate} MB/s: receipt p99, streaming / not": 1.1 for rate in RATES_MB}
CONF: Final = """
defaultRetentionTimeInMinutes=-1
defaultRetentionSizeInMB=-1
maxOffloadSegmentSizeInBytes=16M
"""


@dataclass(frozen=True)
class Topic:
    """A topic with an open producer."""

    client: RawClient
    producer: int

    @classmethod
    def open(cls, served: Served, *, streaming: bool) -> Topic:
        """Create the topic and its producer."""
        name = "streaming" if streaming else "not-streaming"
        client = RawClient(served.service_url)
        producer = client.open_producer(f"persistent://public/default/{name}")
        path = f"persistent/public/default/{name}/offloadPolicies"
        served.admin("POST", path, {"streamingOffloadEnabled": streaming})
        return cls(client, producer)

    def pace(self, megabytes_per_s: int, seconds: float) -> Times:
        """When each batch was due, and when its receipt came."""
        (frame,) = sends([self.producer], 1, BATCH)
        rate = megabytes_per_s * 1e6 / len(frame)
        count = int(rate * seconds)
        receipts = Receipts(self.client)
        ends: list[float] = []
        sent = 0
        begin = time.monotonic()
        while len(ends) < count:
            due = min(int((time.monotonic() - begin) * rate) + 1, count)
            while sent < due:
                self.client.write(frame)
                sent += 1
            wait_s = max(begin + sent / rate - time.monotonic(), 0) if sent < count else 30.0
            if select.select([self.client.socket], [], [], wait_s)[0]:
                found = len(receipts.take())  # receipts come in the order of the sends
                ends += [time.monotonic()] * found
        return np.column_stack((begin + np.arange(count) / rate, ends))


def wait_until_quiet(served: Served) -> None:
    """Wait until no offload job runs and the last one has ended for a second."""
    deadline = time.monotonic() + QUIET_S
    quiet_since: float | None = None
    while quiet_since is None or time.monotonic() - quiet_since < 1:
        if time.monotonic() > deadline:
            raise TimeoutError(f"offload jobs still run after {QUIET_S:g} s")
        with urllib.request.urlopen(f"{served.admin_url}/metrics", timeout=60) as answer:
            running = re.search(r"^afterglow_spark_jobs_running\S* (\S+)", answer.read().decode(), re.MULTILINE)
        if running is None or float(running[1]):
            quiet_since = None
        elif quiet_since is None:
            quiet_since = time.monotonic()
        time.sleep(0.1)


def overlap_s(receipt: Sequence[float], spans: Times) -> float:
    """Seconds of a receipt's wait that spans cover, which do not overlap each other."""
    begin, end = receipt
    first = int(np.searchsorted(spans[:, 1], begin))
    last = int(np.searchsorted(spans[:, 0], end))
    return float((np.minimum(spans[first:last, 1], end) - np.maximum(spans[first:last, 0], begin)).sum())


def causes(receipts: Times, spans: Mapping[str, Times]) -> dict[str, float]:
    """For what the slowest receipts waited: shares of their latency. A commit and a late loop may coincide."""
    waits = receipts[:, 1] - receipts[:, 0]
    slowest = receipts[np.argsort(waits)[-max(1, int(len(waits) * SLOWEST)) :]]
    total = float((slowest[:, 1] - slowest[:, 0]).sum())
    shares = {kind: sum(overlap_s(row, found) for row in slowest) / total for kind, found in spans.items()}
    return {
        "sync of the journal": shares["sync"],
        "rest of the journal's commit": shares["commit"] - shares["sync"],
        "event loop without a processor": shares["processor"],
        "event loop at other work, or without the interpreter": shares["late"] - shares["processor"],
    }


def measure(served: Served) -> dict[tuple[int, bool], list[Times]]:
    """Receipts of all rounds, by rate and whether the topic streams."""
    topics = {streaming: Topic.open(served, streaming=streaming) for streaming in (True, False)}
    found: dict[tuple[int, bool], list[Times]] = {}
    for streaming, topic in topics.items():
        topic.pace(RATES_MB[-1], 2 if streaming else 1)  # starts Spark
    for rate in RATES_MB:
        for number in range(ROUNDS):
            for streaming in (True, False) if number % 2 else (False, True):
                wait_until_quiet(served)
                found.setdefault((rate, streaming), []).append(topics[streaming].pace(rate, SECONDS))
    for topic in topics.values():
        topic.client.close()
    return found


def summarize(found: Mapping[tuple[int, bool], Sequence[Times]], spans: Mapping[str, Times]) -> dict[str, Any]:
    """Medians of the rounds, of the ratios of paired rounds, and the causes."""
    figures: dict[str, Any] = {"seconds of a round": SECONDS, "rounds": ROUNDS}
    for rate in RATES_MB:
        by_kind: dict[bool, NDArray[np.float64]] = {}
        for streaming in (True, False):
            kind = "streaming" if streaming else "not"
            rounds = found[rate, streaming]
            by_kind[streaming] = np.array([np.percentile(each[:, 1] - each[:, 0], PERCENTILES) for each in rounds])
            for percentile, value in zip(PERCENTILES, np.median(by_kind[streaming], axis=0), strict=True):
                figures[f"{rate} MB/s: receipt p{percentile:g}, {kind}, ms"] = round(1000 * float(value), 2)
            for cause, share in causes(np.concatenate(rounds), spans).items():
                figures[f"{rate} MB/s: slowest 1 %, {kind}: {cause}"] = round(share, 3)
        ratios = by_kind[True] / by_kind[False]
        for at, percentile in enumerate(PERCENTILES):
            figures[f"{rate} MB/s: receipt p{percentile:g}, streaming / not"] = round(
                float(np.median(ratios[:, at])), 3
            )
        noise = float(by_kind[False][:, 1].max() / by_kind[False][:, 1].min())
        figures[f"{rate} MB/s: receipt p99, not streaming, highest / lowest round"] = round(noise, 2)
    return figures


def main() -> None:
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as name:
        directory = Path(name)
        conf, trace = directory / "broker.conf", directory / "trace.json"
        conf.write_text(CONF)
        os.environ["BENCH_TRACE"] = str(trace)  # the server inherits it
        options = ("--streaming", "--conf", str(conf))
        with serving(directory / "home", *options, program="bench.traced_server") as served:
            found = measure(served)
            served.stop()
        spans = {kind: np.array(rows).reshape(-1, 2) for kind, rows in json.loads(trace.read_text()).items()}
    keep("latency", summarize(found, spans), GOALS)
