"""What streaming costs beside moving bytes: looks at many quiet topics, requests to the store, writes of metadata."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tests.support.fault_proxy import fault_proxy
from tests.support.servers import start_moto

from afterglow.metadata.sqlite import SqliteMetadataStore
from afterglow.server.process import Server
from afterglow.spark.offload_jobs import SparkRunner
from bench import offload
from bench.offload import Target, fill, s3_settings
from bench.samples import unbatched

if TYPE_CHECKING:
    from afterglow.ledger.managed_ledger import ManagedLedger

MANY = 1_000
TICKS = 200
COSTED = 256 << 20
SEGMENT = 64 << 20


def many_topics(directory: Path) -> dict[str, Any]:
    """Cost of a tick over topics that stream, a few of which get an entry in between."""
    target = Target((directory / "tier").as_uri(), {}, {})
    (directory / "tier").mkdir()
    return asyncio.run(_many(directory / "home", target))


async def _many(home: Path, target: Target) -> dict[str, Any]:
    config = replace(offload.settings(target), streaming_offload_enabled=True, offload_tick_interval_millis=3_600_000)
    server = await Server.start(home, config, tier=target.url)
    try:
        return await asyncio.to_thread(_ticks, server)
    finally:
        await server.stop()


def _ticks(server: Server) -> dict[str, Any]:
    store, service = server.service.store, server.tiering.offload
    ledgers = [store.open(f"public/default/persistent/quiet-{number}") for number in range(MANY)]
    for ledger in ledgers:
        append(ledger)
    jobs: Counter[str] = Counter()
    with counted(jobs, SparkRunner, "submit"):
        start = time.perf_counter()
        while not all(map(has_segment, ledgers)):
            service.tick()
            time.sleep(0.05)
        first_s = time.perf_counter() - start
        spent: list[float] = []
        for number in range(TICKS):
            for ledger in ledgers[number % 100 :: 100]:
                append(ledger)
            start = time.perf_counter()
            service.tick()
            spent.append(1000 * (time.perf_counter() - start))
    return {
        f"{MANY} topics, tick p50, ms": round(float(np.percentile(spent, 50)), 1),
        f"{MANY} topics, tick p99, ms": round(float(np.percentile(spent, 99)), 1),
        f"{MANY} topics, first segments of all, s": round(first_s, 2),
        f"{MANY} topics, jobs without due work": jobs.total(),
    }


def has_segment(ledger: ManagedLedger) -> bool:
    return any(row.offloadContext.offloadSegment for row in ledger.info.ledgerInfo)


def append(ledger: ManagedLedger) -> None:
    """Append an entry, and wait until it is durable."""
    done = threading.Event()
    ledger.append((b"x" * 1024,), 1, lambda _: done.set())
    done.wait()


def costs(directory: Path) -> dict[str, Any]:
    """Requests, objects and writes of metadata for a range of a topic."""
    from bench.streaming import NAME, let_stream, stream  # noqa: PLC0415 - it imports this

    async def run(endpoint: str, settings: dict[str, str]) -> None:
        given = {**settings, "s3_managed_ledger_offload_service_endpoint": endpoint}
        config = offload.settings(Target("s3://bench", {}, given))
        server = await Server.start(directory / "home", config, tier="s3://bench")
        try:
            await asyncio.to_thread(fill, server.service.store.open(NAME), unbatched(offload.MESSAGE, 16 << 20), COSTED)
            let_stream(server, NAME)
            with counted(writes, SqliteMetadataStore, "put", "delete"):
                await asyncio.to_thread(stream, server, NAME)
        finally:
            await server.stop()

    writes: Counter[str] = Counter()
    with start_moto() as server, fault_proxy(server.endpoint, share=0) as proxy:
        server.create_bucket("bench")
        asyncio.run(run(proxy.endpoint, s3_settings(server)))
        segments = proxy.requests["put_index"]
    gigabytes = COSTED / 1e9
    return {
        "segments of 64 MiB, objects per GB": round(2 * segments / gigabytes),
        "segments of 64 MiB, requests per GB": round(proxy.requests.total() / gigabytes),
        "segments of 64 MiB, writes of metadata per segment": round(writes.total() / segments, 1),
    }


@contextmanager
def counted(counts: Counter[str], kind: type[Any], *names: str) -> Iterator[None]:
    """Count calls of methods in this process while the block runs."""
    originals = {name: getattr(kind, name) for name in names}

    def counting(name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return originals[name](*args, **kwargs)

        return call

    for name in names:
        setattr(kind, name, counting(name))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(kind, name, original)
