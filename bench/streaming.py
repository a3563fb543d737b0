"""Streaming offload by a running server: how fast, at what cost to producers, how soon in the tier, at what overhead.

* A backlog of 1 KiB entries is streamed at full speed, against a raw multipart upload of the same bytes by the same
  store, in parts of the same size and by as many processes as Spark has workers; in turns, the best of each counts.
  Then as many entries are streamed while they are appended at full speed.
* Latency of receipts at a moderate rate, of a topic that streams against one that does not, in turns.
* Seconds from the last entry of a segment to its commit, at 10 MB/s per topic, by the segments' own records.
* A thousand topics with little traffic: the cost of a tick, and whether any job is started.
* Requests to an S3 server and writes of metadata, counted over all processes.

``BENCH_STREAMING_MIB`` says how much is streamed; 1024 by default.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, wait
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from afterglow.hot.local.paths import HotLogPaths
from afterglow.metadata.names import TopicName
from afterglow.server.process import Server
from bench import offload
from bench.measure import keep
from bench.offload import Target, drop_topic, fill, raw_upload, targets, warm
from bench.process_tree import Peak
from bench.samples import unbatched
from bench.streaming_cost import costs, many_topics
from bench.streaming_live import availability, latencies

TOTAL = int(os.environ.get("BENCH_STREAMING_MIB", "1024")) << 20
SEGMENT = 64 << 20  # as `serve --streaming` sets it
PART = 8 << 20
ROUNDS = 3
TIERS = ("local", "s3")
NAME = "public/default/persistent/bench"
LIVE = "public/default/persistent/live"
GOALS = {
    **{f"{tier}: streaming / raw": 0.8 for tier in TIERS},
    "receipt p99, streaming / not": 1.1,
    "in the tier after the last entry, p99, s": 2.0,
    "1000 topics, tick p99, ms": 50.0,
    "1000 topics, jobs without due work": 0,
}


def let_stream(server: Server, name: str) -> None:
    """Switch streaming on for a topic."""
    topic = TopicName.from_managed_ledger_name(name)
    policies = {"offloadPolicies": {"streamingOffloadEnabled": True, "maxOffloadSegmentSizeInBytes": SEGMENT}}
    server.service.catalog.update_topic_policies(topic, lambda _: policies)
    server.tiering.policies.changed(topic.namespace)


def stream(server: Server, name: str) -> float:
    """Seconds until all entries of a topic are committed in segments."""
    return offload.offload(server, name)


async def throughput(home: Path, target: Target, sample: bytes) -> dict[str, Any]:
    server = await Server.start(home, offload.settings(target), tier=target.url)
    try:
        return await asyncio.to_thread(rounds, server, home, target, sample)
    finally:
        await server.stop()


def rounds(server: Server, home: Path, target: Target, sample: bytes) -> dict[str, Any]:
    ledger = server.service.store.open(NAME)
    fill(ledger, sample, TOTAL)
    path = HotLogPaths(home).frames(min(row.ledgerId for row in ledger.info.ledgerInfo))
    mebibytes = path.stat().st_size / (1 << 20)
    let_stream(server, NAME)
    stream(server, NAME)  # starts Spark
    ours: list[float] = []
    raws: list[float] = []
    peak = Peak()
    for _ in range(ROUNDS):
        with ProcessPoolExecutor(offload.WORKERS, get_context("spawn"), warm, (target,)) as pool:
            wait([pool.submit(warm, target) for _ in range(offload.WORKERS)])
            raws.append(raw_upload(pool, target, path, PART))
        drop_topic(server, NAME)
        with peak.watched():
            ours.append(stream(server, NAME))
    live = server.service.store.open(LIVE)
    let_stream(server, LIVE)
    start = time.perf_counter()
    fill(live, sample, TOTAL)
    append_s = time.perf_counter() - start
    live_s = append_s + stream(server, LIVE)
    return {
        "streaming, MiB/s": round(mebibytes / min(ours)),
        "raw, MiB/s": round(mebibytes / min(raws)),
        "streaming / raw": round(min(raws) / min(ours), 3),
        "while appended at full speed, MiB/s": round(mebibytes / live_s),
        "of that after the last append, s": round(live_s - append_s, 2),
        "peak memory of all processes, MiB": round(peak.bytes / (1 << 20)),
    }


def main() -> None:
    figures: dict[str, Any] = {"MiB": TOTAL >> 20}
    sample = unbatched(offload.MESSAGE, 16 << 20)
    for tier in TIERS:
        # Homes and tiers are of their own, so that no run finds the disk in the state that another left it in.
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as name, ExitStack() as stack:
            target = targets(stack, Path(name))[tier]
            found = asyncio.run(throughput(Path(name) / "home", target, sample))
            figures |= {f"{tier}: {what}": figure for what, figure in found.items()}
    for workload in (latencies, availability, many_topics, costs):
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as name:
            figures |= workload(Path(name))
    keep("streaming", figures, GOALS)
