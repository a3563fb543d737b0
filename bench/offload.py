"""Offload of closed ledgers by a running server, against a raw multipart upload of the same bytes in the same run.

The raw upload reads the ledger's file and uploads it by the same store, in parts of the same size and by as many
processes as Spark has workers. Both begin with connections and processes warm, and end when the object is there; they
take turns, and the best of each counts. Then the topic is read back whole from the tier.

``BENCH_OFFLOAD_MIB`` says how much is offloaded; 1024 by default.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tests.support.servers import ServerUnavailable, start_moto, start_versitygw

from afterglow.config import BrokerConfig
from afterglow.format.compression import Codec
from afterglow.format.frames import FRAME_BYTES, scan_frames
from afterglow.format.position import LATEST, Position
from afterglow.hot.local.paths import HotLogPaths
from afterglow.offload.task import cached_store
from afterglow.read.hot_readers import SharedHotLog
from afterglow.read.topic_reader import TopicReader, TopicView
from afterglow.server.process import Server
from afterglow.storage.store import Part, Upload
from bench.measure import keep
from bench.process_tree import Peak
from bench.samples import batched, unbatched

if TYPE_CHECKING:
    from tests.support.servers import S3Server

    from afterglow.errors import AfterglowError
    from afterglow.ledger.managed_ledger import ManagedLedger
    from afterglow.storage.store import ObjectStore

TOTAL = int(os.environ.get("BENCH_OFFLOAD_MIB", "1024")) << 20
PART = 64 << 20
WORKERS = 2
ROUNDS = 3
WINDOW_BYTES = 8 << 20  # most appends under way at once
MESSAGE = 1024
BATCH = 100
TIERS = ("local", "s3")
KINDS: dict[str, Callable[[], bytes]] = {
    "unbatched": partial(unbatched, MESSAGE, 16 << 20),
    "batched": partial(batched, MESSAGE, BATCH, 16 << 20, Codec.NONE),
}
GOALS = {
    **{f"{kind}, {tier}: offload / raw": 0.8 for kind in KINDS for tier in TIERS},
    **{f"{kind}, {tier}: fetched / delivered": 1.02 for kind in KINDS for tier in TIERS},
}


@dataclass(frozen=True, slots=True)
class Target:
    """A tier to offload to."""

    url: str
    options: dict[str, str]
    settings: dict[str, str]
    """Of the server, to reach it."""


def targets(stack: ExitStack, directory: Path) -> dict[str, Target]:
    local = directory / "tier"
    local.mkdir()
    try:
        server = stack.enter_context(start_versitygw(directory / "s3"))
    except ServerUnavailable:
        server = stack.enter_context(start_moto())
    server.create_bucket("bench")
    return {"local": Target(local.as_uri(), {}, {}), "s3": Target("s3://bench", server.options(), s3_settings(server))}


def s3_settings(server: S3Server) -> dict[str, str]:
    return {
        "s3_managed_ledger_offload_service_endpoint": server.endpoint,
        "s3_managed_ledger_offload_region": server.region,
        "s3_managed_ledger_offload_credential_id": server.access_key,
        "s3_managed_ledger_offload_credential_secret": server.secret_key,
    }


def settings(target: Target) -> BrokerConfig:
    given: dict[str, Any] = {
        "bind_address": "127.0.0.1",
        "broker_service_port": 0,
        "web_service_port": None,
        "managed_ledger_max_entries_per_ledger": 1 << 30,
        "managed_ledger_max_size_per_ledger_mbytes": 1 << 20,
        "managed_ledger_cache_size_mb": 0,
        "managed_ledger_offload_deletion_lag_in_millis": None,
        "default_retention_time_in_minutes": -1,
        "default_retention_size_in_mb": -1,
        "spark_master": f"local[{WORKERS}]",
    }
    return BrokerConfig(**given, **target.settings)  # type: ignore[arg-type]  # settings by name


# --- a topic ---


def fill(ledger: ManagedLedger, sample: bytes, total: int) -> None:
    """Append the sample's entries over and over, and close the ledger."""
    frames = scan_frames(sample, 0)
    offsets = frames.offsets.tolist()
    entries = [sample[a + FRAME_BYTES : b] for a, b in pairwise(offsets)]
    window = WINDOW_BYTES // max(map(len, entries))
    room = threading.Semaphore(window)
    failures: list[AfterglowError] = []

    def done(outcome: Position | AfterglowError) -> None:
        if not isinstance(outcome, Position):
            failures.append(outcome)
        room.release()

    written = 0
    while written < total:
        for entry in entries:
            room.acquire()
            ledger.append((entry,), 1, done)
        written += len(sample)
    for _ in range(window):
        room.acquire()
    if failures:
        raise failures[0]
    ledger.roll()


def offload(server: Server, name: str) -> float:
    """Seconds from the request until everything up to the last entry is committed."""
    service = server.tiering.offload
    start = time.perf_counter()
    service.offload_prefix(name, LATEST)
    service.tick()  # the server would do so within a second, which does not count as work
    while (status := service.status(name)).state == "RUNNING":
        time.sleep(0.005)
    seconds = time.perf_counter() - start
    if status.state != "SUCCESS":
        raise RuntimeError(status.last_error)
    return seconds


def drop_topic(server: Server, name: str) -> None:
    """Take back that the topic was offloaded, so that it can be offloaded again."""

    def edit(info: Any) -> None:
        for row in info.ledgerInfo:
            row.ClearField("offloadContext")

    server.service.store.open(name).update(edit)


def read_back(server: Server, home: Path, name: str) -> tuple[float, float]:
    """Fetched by delivered bytes, and seconds, of a full read from the tier."""
    ledger = server.service.store.open(name)
    source = server.tiering.sources(name)
    before = server.tiering.sources.counts(name)
    assert before is not None
    reader = TopicReader(TopicView.pin(name, ledger.info, SharedHotLog(home)), source)
    start = time.perf_counter()
    delivered = sum(served.run.frame_bytes for served in reader.read())
    seconds = time.perf_counter() - start
    after = server.tiering.sources.counts(name)
    assert after is not None
    return (after.fetched_bytes - before.fetched_bytes) / delivered, seconds


# --- the yardstick ---


def warm(target: Target) -> None:
    """Import what a worker needs and connect."""
    list(store_of(target).list("none"))


def raw_part(target: Target, upload: Upload, number: int, path: str, extent: range) -> Part:
    with Path(path).open("rb", buffering=0) as file:
        file.seek(extent.start)
        data = file.read(len(extent))
    return store_of(target).upload_part(upload, number, data)


def store_of(target: Target) -> ObjectStore:
    return cached_store(target.url, tuple(target.options.items()))


def raw_upload(pool: ProcessPoolExecutor, target: Target, path: Path, part: int = PART) -> float:
    """Seconds of the least that an upload of a file in parts takes."""
    store = store_of(target)
    size = path.stat().st_size
    start = time.perf_counter()
    upload = store.create_upload(f"raw-{uuid4()}")
    pieces = [
        pool.submit(raw_part, target, upload, number, str(path), range(at, at + part))
        for number, at in enumerate(range(0, size, part), 1)
    ]
    store.complete_upload(upload, [piece.result() for piece in pieces])
    seconds = time.perf_counter() - start
    store.delete(upload.key)
    return seconds


# --- all of it ---


async def measure(home: Path, title: str, target: Target, sample: bytes) -> dict[str, Any]:
    server = await Server.start(home, settings(target), tier=target.url)
    try:
        return {
            f"{title}: {name}": figure
            for name, figure in (await asyncio.to_thread(rounds, server, home, target, sample)).items()
        }
    finally:
        await server.stop()


def rounds(server: Server, home: Path, target: Target, sample: bytes) -> dict[str, Any]:
    store = server.service.store
    small, name = "public/default/persistent/small", "public/default/persistent/bench"
    fill(store.open(small), sample, 1)
    first_s = offload(server, small)
    drop_topic(server, small)
    second_s = offload(server, small)
    fill(store.open(name), sample, TOTAL)
    path = HotLogPaths(home).frames(min(row.ledgerId for row in store.open(name).info.ledgerInfo))
    mebibytes = path.stat().st_size / (1 << 20)
    ours: list[float] = []
    raws: list[float] = []
    peak = Peak()
    for _ in range(ROUNDS):
        with ProcessPoolExecutor(WORKERS, get_context("spawn"), warm, (target,)) as pool:
            wait([pool.submit(warm, target) for _ in range(WORKERS)])
            raws.append(raw_upload(pool, target, path))
        drop_topic(server, name)
        with peak.watched():
            ours.append(offload(server, name))
    fetched, read_s = read_back(server, home, name)
    our_s, raw_s = min(ours), min(raws)
    return {
        "offload, MiB/s": round(mebibytes / our_s),
        "raw, MiB/s": round(mebibytes / raw_s),
        "offload / raw": round(raw_s / our_s, 3),
        "full read, MiB/s": round(mebibytes / read_s),
        "fetched / delivered": round(fetched, 4),
        "peak memory of all processes, MiB": round(peak.bytes / (1 << 20)),
        "first small offload with the start of Spark, s": round(first_s, 2),
        "second small offload, s": round(second_s, 2),
    }


def main() -> None:
    figures: dict[str, Any] = {"MiB": TOTAL >> 20}
    for kind, make_sample in KINDS.items():
        sample = make_sample()
        for tier in TIERS:
            # Homes and tiers are of their own, so that no run finds the disk in the state that another left it in.
            with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as name, ExitStack() as stack:
                directory = Path(name)
                target = targets(stack, directory)[tier]
                figures |= asyncio.run(measure(directory / "home", f"{kind}, {tier}", target, sample))
    keep("offload", figures, GOALS)
