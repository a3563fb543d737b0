"""Origins of entries that tasks read over the protocol from a running server, and their metrics."""

from __future__ import annotations

import asyncio
import random
import threading
import urllib.request
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import pulsar
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.broker_topics import append
from tests.support.fault_proxy import fault_proxy
from tests.support.served_topics import eventually, offload_all
from tests.support.servers import start_moto
from tests.support.serving import serving

import afterglow
from afterglow.cli import main
from afterglow.config import BrokerConfig
from afterglow.format.position import LATEST
from afterglow.ledger.reader import ReadOrigin
from afterglow.metadata.names import TopicName
from afterglow.offload.status import OffloadState
from afterglow.server.process import Server

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.fault_proxy import Moment
    from tests.support.serving import Served


pytest.importorskip("pyspark", reason="the extra pulsar-afterglow[spark] is not installed")

TOPIC: Final = TopicName.parse("public/default/t")
MIB: Final = 1 << 20
COUNT: Final = 240
SIZE: Final = 100_000
TIMEOUT_S: Final = 240.0
"""A loaded machine needs long to start Spark."""


async def stream_out(home: Path) -> tuple[Server, int, int]:
    """Stream entries to a tier while they are written, many more than the tail cache holds, in several segments.

    Returns the server, which has ended, the bytes of all entries, and of those that came before the stream began.
    """
    server = await Server.start(
        home,
        BrokerConfig(
            broker_service_port=0,
            spark_master="local[2]",
            offload_tasks_read_files=False,
            streaming_offload_enabled=True,
            max_offload_segment_size_in_bytes=12 * MIB,
            streaming_offload_part_size_in_bytes=5 * MIB,
            managed_ledger_cache_size_mb=1,
            offload_tick_interval_millis=50,
        ),
    )
    offload, buffer = server.tiering.offload, server.tiering.buffer
    name = TOPIC.managed_ledger_name
    assert buffer is not None
    try:
        topic = await server.service.topic(TOPIC, create=True)
        early = 0
        while not buffer.statistics.entries:
            early += len(await append(topic, 1, SIZE))
            await asyncio.sleep(0.05)
        early_bytes = early * topic.ledger.size_bytes // topic.ledger.layout.total_entries
        assert len(await append(topic, COUNT, SIZE)) == COUNT
        await server.service.blocking(offload.offload_prefix, name, LATEST)
        await asyncio.to_thread(
            eventually,
            lambda: offload.status(name).state is not OffloadState.RUNNING,
            lambda: offload.segments(name),
        )
        assert offload.status(name).state is OffloadState.SUCCESS
        assert len(offload.segments(name)) > 1
        return server, topic.ledger.size_bytes, early_bytes
    finally:
        await server.stop()


@pytest.mark.usefixtures("spark")
def test_tasks_over_the_protocol_are_served_from_memory_before_the_log(tmp_path: Path) -> None:
    server, total_bytes, early_bytes = asyncio.run(asyncio.wait_for(stream_out(tmp_path), TIMEOUT_S))
    read = server.service.offload_reads
    assert sum(read[origin] for origin in ReadOrigin) == total_bytes, "each entry once, and none besides"
    assert read[ReadOrigin.HOT] <= early_bytes
    assert read[ReadOrigin.TIER] == 0, "not even the entry before the first of a segment"
    assert read[ReadOrigin.BUFFER] > 0.8 * total_bytes
    assert server.tiering.offload.read_bytes.files == server.tiering.offload.file_bytes == 0
    assert server.tiering.offload.read_bytes.protocol >= total_bytes
    assert server.tiering.buffer is not None
    assert server.tiering.buffer.statistics.bytes_held == 0
    assert server.tiering.buffer.statistics.refused == 0
    jobs, requests = server.tiering.jobs(), server.tiering.requests()
    assert jobs.succeeded
    assert jobs.seconds > 0
    assert requests["create_upload"].requests


# --- a tier that is blocked -------------------------------------------------------------------------------------------

BUFFER_BYTES: Final = 12 * MIB
CONF: Final = f"""
offloadTasksReadFiles=false
offloadBufferMaxBytes={BUFFER_BYTES}
offloadTickIntervalMillis=50
managedLedgerCacheSizeMB=2
streamingOffloadPartSizeInBytes=5M
maxOffloadSegmentSizeInBytes=12M
managedLedgerMaxEntriesPerLedger=150
managedLedgerMinLedgerRolloverTimeMinutes=0
managedLedgerOffloadDeletionLagInMillis=0
defaultRetentionTimeInMinutes=-1
defaultRetentionSizeInMB=-1
managedLedgerOffloadRegion={{region}}
managedLedgerOffloadServiceEndpoint={{endpoint}}
"""


def metric(served: Served, name: str) -> dict[str, float]:
    """Values of a metric, by its label ``from`` if it has one."""
    with urllib.request.urlopen(f"{served.admin_url}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return {
        sample.labels.get("from", ""): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }


def test_entries_that_the_full_buffer_refused_are_read_from_the_hot_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Producers continue while the tier is down; then everything is offloaded, and nothing is read twice."""
    rng = random.Random(14)
    sent: list[bytes] = []
    topic = str(TOPIC)
    open_tier = threading.Event()
    open_tier.set()

    def wait_for_tier(_operation: str, _moment: Moment) -> None:
        open_tier.wait(TIMEOUT_S)

    with ExitStack() as stack:
        s3 = stack.enter_context(start_moto())
        s3.create_bucket("tier")
        proxy = stack.enter_context(fault_proxy(s3.endpoint, share=0.0))
        proxy.watch = wait_for_tier
        stack.callback(open_tier.set)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret_key)
        conf = tmp_path / "broker.conf"
        conf.write_text(CONF.format(region=s3.region, endpoint=proxy.endpoint))
        options = ("--conf", str(conf), "--master", "local[2]", "--tier", "s3://tier")
        served = stack.enter_context(serving(tmp_path / "home", *options))
        served.admin("PUT", "persistent/public/default/t")
        served.admin("POST", "persistent/public/default/t/offloadPolicies", {"streamingOffloadEnabled": True})
        client = pulsar.Client(served.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        stack.callback(client.close)
        producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)

        def produce(count: int) -> None:
            for _ in range(count):
                sent.append(rng.randbytes(rng.randint(50_000, 150_000)))
                producer.send_async(sent[-1], lambda _result, _id: None)
            producer.flush()

        open_tier.clear()
        # The first one or two entries precede the stream; from then on all entries that the cache evicts are offered.
        while not metric(served, "afterglow_offload_buffer_entries")[""]:
            produce(1)
        while not metric(served, "afterglow_offload_buffer_refused_bytes_total")[""]:
            produce(20)
        full = metric(served, "afterglow_offload_buffer_bytes")[""]
        produce(80)
        assert 0.8 * BUFFER_BYTES / 2 < full <= BUFFER_BYTES / 2
        assert metric(served, "afterglow_offload_buffer_bytes")[""] == full, "it holds what it held: the oldest"
        assert metric(served, "afterglow_offload_buffer_budget_bytes")[""] == BUFFER_BYTES
        assert metric(served, "afterglow_offload_buffer_refused_entries_total")[""] > 60  # of 80, of any sizes
        assert sum(metric(served, "afterglow_offload_read_bytes_total").values()) == 0

        open_tier.set()
        produce(30)
        offload_all(served, topic)
        total_bytes = served.admin("GET", "persistent/public/default/t/internalStats")["totalSize"]
        read = metric(served, "afterglow_offload_read_bytes_total")
        assert set(read) == {"buffer", "cache", "hot", "file"}
        assert sum(read.values()) == total_bytes > sum(map(len, sent))
        assert read["file"] == 0
        assert read["buffer"] >= 0.99 * full, "all that was held, and its overhead was counted"
        assert read["hot"] > 80 * 50_000
        assert read["cache"] > 0
        assert metric(served, "afterglow_offload_buffer_bytes")[""] == 0
        assert metric(served, "afterglow_offload_buffer_dropped_entries_total")[""] == 0

        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        assert [reader.read_next(10_000).data() for _ in sent] == sent
        with afterglow.connect(served.admin_url) as source:
            scanned = source.topic(topic).scan(columns=["value", "tier"], read_priority="tiered-first").read_all()
        assert scanned["value"].to_pylist() == sent
        assert set(scanned["tier"].to_pylist()) == {"tiered"}
        with pytest.raises(SystemExit) as ended:
            main(["verify", served.admin_url])
        assert ended.value.code == 0
