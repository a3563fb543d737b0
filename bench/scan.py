"""A topic of 1 KiB messages, all of it offloaded, scanned to Arrow.

From a local tier with a warm page cache, against memcpy of as many bytes into fresh pages by as many threads as there
are cores: both have all cores, so that the ratio is that per core. From an S3 server, against raw ranged gets of the
same objects by the same store, with as many threads and as many bytes in a request. Bytes are those of the
messages' values, decompressed; the pieces of work take turns, and the best time of each counts.

Then readers beside each other over one segment, each in a thread of its own and without any threads below it but those
that read ahead.

The goals of S3 are what a trial reached that read the bytes of an entry once: client and server share the cores, so
that decoding takes processor time away from the gets, and a ratio of 1 would be decoding for nothing.

``BENCH_SCAN_MIB`` says how much is scanned, 1024 by default; ``BENCH_SCAN_ROUNDS`` how often, 3 by default.
"""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import afterglow
from afterglow.config import load_conf
from afterglow.format.compression import Codec
from afterglow.format.frames import FRAME_BYTES
from afterglow.format.position import Position
from afterglow.read.copies import StorageTier
from afterglow.read.parallel import available_cores
from afterglow.read.split_reader import SplitReader
from bench.measure import best_seconds, keep
from bench.offload import targets
from bench.process_tree import Peak
from bench.topics import MESSAGE, let_in, record_topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from afterglow.source.connect import Source
    from bench.topics import Topic

TOTAL = int(os.environ.get("BENCH_SCAN_MIB", "1024")) << 20
ROUNDS = int(os.environ.get("BENCH_SCAN_ROUNDS", "3"))
CORES = available_cores()
REQUEST = load_conf().offload_scan_read_buffer_size_in_bytes
COPY = 64 << 20  # above what the allocator keeps: every copy gets fresh pages
TWO = ("publish_time", "entry_id")
READERS = (1, 2, 4)
BATCH = 64
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Kind:
    """What a topic is made of."""

    batch: int
    codec: Codec


KINDS = {
    "unbatched": Kind(1, Codec.NONE),
    "unbatched LZ4": Kind(1, Codec.LZ4),
    "batched": Kind(BATCH, Codec.NONE),
    "batched LZ4": Kind(BATCH, Codec.LZ4),
}
TIERS = ("local", "s3")
PLAIN = ("unbatched", "batched")
GOALS = {
    **{f"{kind}, local: scan / memcpy": 0.4 for kind in PLAIN},
    "unbatched, s3: scan / raw gets": 0.65,
    "batched, s3: scan / raw gets": 0.75,
    **{f"{kind}, local: two columns / all": 2.0 for kind in PLAIN},
    **{f"{kind} LZ4, local: LZ4 / uncompressed": 0.5 for kind in PLAIN},
    **{f"{kind}, {tier}: fetched / delivered": 1.02 for kind in KINDS for tier in TIERS},
}


def scan(source: Source, topic: Topic, columns: Sequence[str] | None = None) -> None:
    """Take every batch of a topic, and drop it."""
    rows = sum(batch.num_rows for batch in source.topic(topic.name).scan(columns=columns))
    if rows != topic.messages:
        raise RuntimeError(f"{rows} of {topic.messages} messages came")


# --- yardsticks ---


def copy_on_all_cores(pool: ThreadPoolExecutor, chunk: np.ndarray[Any, Any], total: int) -> None:
    """Memcpy of so many bytes into fresh pages."""
    list(pool.map(lambda _: chunk.copy()[0], range(total // chunk.nbytes)))


def get_all(pool: ThreadPoolExecutor, topic: Topic, request: int) -> None:
    """Every byte of a topic's objects by ranged gets, and nothing done with them."""
    extents = [
        (segment.key, at, min(at + request, segment.size_bytes))
        for segment in topic.segments
        for at in range(0, segment.size_bytes, request)
    ]
    list(pool.map(lambda extent: topic.store.get(*extent).nbytes, extents))


# --- a topic ---


def measure(topic: Topic, tier: str) -> dict[str, Any]:
    """Figures of one topic in one tier."""
    peak = Peak()
    with (
        afterglow.connect(topic.home) as source,
        ThreadPoolExecutor(CORES) as pool,
    ):
        chunk = np.ones(min(COPY, topic.value_bytes), np.uint8)
        raw = (
            partial(copy_on_all_cores, pool, chunk, topic.value_bytes)
            if tier == "local"
            else partial(get_all, pool, topic, REQUEST)
        )
        seconds = best_seconds(
            {"all": partial(scan, source, topic), "two": partial(scan, source, topic, TWO), "raw": raw}, ROUNDS
        )
        del chunk
        before = source.counters.counts()
        with peak.watched():
            scan(source, topic)
        after = source.counters.counts()
    delivered = after.bytes[StorageTier.TIERED] - before.bytes[StorageTier.TIERED] + FRAME_BYTES * topic.entries
    speed = topic.value_bytes / MIB / seconds["all"]
    found = {
        "scan, MiB/s": round(speed),
        "scan, MiB/s per core": round(speed / CORES),
        "two columns / all": round(seconds["all"] / seconds["two"], 2),
        "fetched / delivered": round((after.fetched_bytes - before.fetched_bytes) / delivered, 4),
        "stored / decoded": round(topic.stored_bytes / topic.value_bytes, 3),
        "peak memory, MiB": round(peak.bytes / MIB),
    }
    ratio = round(seconds["raw"] / seconds["all"], 3)
    raw_speed = round(topic.value_bytes / MIB / seconds["raw"])
    if tier == "local":
        return {"scan / memcpy": ratio, "memcpy on all cores, MiB/s": raw_speed, **found}
    return {"scan / raw gets": ratio, "raw gets, MiB/s": raw_speed, **found}


def readers(topic: Topic) -> dict[str, Any]:
    """MiB/s of readers beside each other, all over the same segment."""
    segment = topic.segments[0]
    with afterglow.connect(topic.home) as source:
        splits = list(source.topic(topic.name).splits(end=Position(segment.ledger_id, segment.last + 1)))
    reader = SplitReader(load_conf())
    times = -(-TOTAL // (512 << 20))

    def read(_: int) -> int:
        return sum(batch.num_rows for _ in range(times) for split in splits for batch in reader.batches(split))

    def together(count: int) -> None:
        with ThreadPoolExecutor(count) as pool:
            if sum(pool.map(read, range(count))) != rows * count:
                raise RuntimeError("readers of the same segment see different messages")

    rows = read(0)
    seconds = best_seconds({str(count): partial(together, count) for count in READERS}, ROUNDS)
    reader.close()
    return {
        f"{count} readers of one segment, MiB/s": round(rows * count * MESSAGE / MIB / seconds[str(count)])
        for count in READERS
    }


def main() -> None:
    figures: dict[str, Any] = {"MiB": TOTAL >> 20}
    speeds: dict[str, float] = {}
    for name, kind in KINDS.items():
        for tier in TIERS:
            # Homes and tiers are of their own, so that no run finds the disk in the state that another left it in.
            with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as directory, ExitStack() as stack:
                target = targets(stack, Path(directory))[tier]
                let_in(target)
                topic = record_topic(Path(directory) / "home", target, TOTAL, kind.batch, kind.codec)
                found = measure(topic, tier)
                if kind.codec is not Codec.NONE:
                    plain = speeds[f"{name.removesuffix(' LZ4')}, {tier}"]
                    found["LZ4 / uncompressed"] = round(found["scan, MiB/s"] / plain, 3)
                speeds[f"{name}, {tier}"] = found["scan, MiB/s"]
                if tier == "local" and kind.codec is Codec.NONE:
                    found |= readers(topic)
                figures |= {f"{name}, {tier}: {figure}": value for figure, value in found.items()}
    keep("scan", figures, GOALS)
