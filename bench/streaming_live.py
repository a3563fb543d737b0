"""Producers of a topic that streams, on a real ``afterglow serve``: their receipts, and how soon segments are there."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from tests.support.raw_client import RawClient
from tests.support.serving import Served, serving

from afterglow.format.proto.afterglow_pb2 import SegmentRecord
from afterglow.metadata.address import open_metadata
from afterglow.metadata.names import TopicName
from afterglow.metadata.paths import AfterglowPaths
from bench.broker_load import BATCH, Receipts, pace, sends

ROUNDS = 6
PACED_RATE = 2_000
PACED_SENDS = 12_000
TOPICS = 2
BYTES_PER_S = 10_000_000
SECONDS = 60
CONF = """
defaultRetentionTimeInMinutes=-1
defaultRetentionSizeInMB=-1
"""


def topic_name(name: str) -> str:
    return f"persistent://public/default/{name}"


def serve(directory: Path, *, segment: str) -> Any:
    conf = directory / "broker.conf"
    conf.write_text(f"{CONF}maxOffloadSegmentSizeInBytes={segment}\n")
    return serving(directory / "home", "--streaming", "--conf", str(conf), "--master", "local[2]")


def latencies(directory: Path) -> dict[str, Any]:
    """Receipts of a topic that streams and of one that does not, in one server, in turns."""
    with serve(directory, segment="8M") as served:
        found: dict[bool, list[list[float]]] = {True: [], False: []}
        producers = {streaming: _paced(served, streaming=streaming) for streaming in found}
        _wait_for_segments(directory, topic_name("paced-True"), 1)  # Spark has started
        for _ in range(ROUNDS):
            for streaming, (client, producer) in producers.items():
                found[streaming].append(pace(client, sends([producer], PACED_SENDS, 1), PACED_RATE))
        for client, _ in producers.values():
            client.close()
    p99 = {
        streaming: float(np.median([np.percentile(each, 99) for each in rounds])) for streaming, rounds in found.items()
    }
    return {
        f"receipt p99 at {PACED_RATE} msg/s, streaming, ms": round(1000 * p99[True], 2),
        f"receipt p99 at {PACED_RATE} msg/s, not streaming, ms": round(1000 * p99[False], 2),
        "receipt p99, streaming / not": round(p99[True] / p99[False], 3),
    }


def _paced(served: Served, *, streaming: bool) -> tuple[RawClient, int]:
    """A client with a producer that has written a segment's worth."""
    name = f"paced-{streaming}"
    path = f"persistent/public/default/{name}"
    client = RawClient(served.service_url)
    producer = client.open_producer(topic_name(name))
    served.admin("POST", f"{path}/offloadPolicies", {"streamingOffloadEnabled": streaming})
    pace(client, sends([producer], PACED_SENDS, 1), PACED_RATE)
    return client, producer


def availability(directory: Path) -> dict[str, Any]:
    """Seconds from the last entry of each segment to its commit, as their records tell."""
    with serve(directory, segment="16M") as served:
        names = [topic_name(f"flow-{number}") for number in range(TOPICS)]
        threads = [threading.Thread(target=_flow, args=(served.service_url, name)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        expected = SECONDS * BYTES_PER_S // (16 << 20) - 1
        for name in names:
            _wait_for_segments(directory, name, expected)
    waits: list[float] = []
    for name in names:
        # Those of the first seconds waited for Spark to start, which a server does once.
        records = sorted(_records(directory, name), key=lambda record: record.offloaded_ms)
        waits += [(record.offloaded_ms - record.max_broker_time) / 1000 for record in records[len(records) // 3 :]]
    return {
        f"in the tier after the last entry, p50, s, {TOPICS} topics at 10 MB/s": round(
            float(np.percentile(waits, 50)), 2
        ),
        "in the tier after the last entry, p99, s": round(float(np.percentile(waits, 99)), 2),
        "segments measured": len(waits),
    }


def _flow(service_url: str, name: str) -> None:
    """Batches of 100 KiB at a steady rate."""
    with RawClient(service_url) as client:
        producer = client.open_producer(name)
        (frame,) = sends([producer], 1, BATCH)
        receipts = Receipts(client)
        begin, sent = time.monotonic(), 0
        while (passed := time.monotonic() - begin) < SECONDS:
            due = int(passed * BYTES_PER_S / len(frame)) - sent
            for _ in range(due):
                client.write(frame)
            sent += due
            answered = 0
            while answered < due:
                answered += len(receipts.take())
            time.sleep(0.01)


def _records(directory: Path, name: str) -> list[SegmentRecord]:
    """The committed segments of a topic."""
    node = AfterglowPaths().segments(TopicName.parse(name).managed_ledger_name)
    with closing(open_metadata(f"sqlite:{directory / 'home/metadata.db'}")) as metadata:
        values = [metadata.get(f"{node}/{child}") for child in metadata.children(node)]
    return [SegmentRecord.FromString(value.value) for value in values if value is not None]


def _wait_for_segments(directory: Path, name: str, count: int) -> None:
    deadline = time.monotonic() + 120
    while len(_records(directory, name)) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{name}: {len(_records(directory, name))} of {count} segments after 120 s")
        time.sleep(0.1)
