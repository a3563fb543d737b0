"""A topic that streams through an external driver, the example one, installed as its README says.

It is killed in the middle of a segment, resumes, is read back by a stock consumer, by ``afterglow read`` and by Spark,
verified, and deleted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

import pytest
from tests.support.served_topics import eventually, on_record, rows_of
from tests.support.serving import start

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.serving import Served

pulsar = pytest.importorskip("pulsar", reason="the stock client is not installed: pip install pulsar-client")
pytest.importorskip("pyspark", reason="the extra pulsar-afterglow[spark] is not installed")

TOPIC = "persistent://public/default/zipped"
PATH = "persistent/public/default/zipped"
CONF = """
managedLedgerMaxEntriesPerLedger=300
managedLedgerMinLedgerRolloverTimeMinutes=0
managedLedgerOffloadDeletionLagInMillis=0
managedLedgerCacheSizeMB=0
maxOffloadSegmentSizeInBytes=4M
maxOffloadSegmentRolloverTimeInSeconds=2
defaultRetentionTimeInMinutes=-1
defaultRetentionSizeInMB=-1
offloadTickIntervalMillis=100
offloadRetryMinBackoffMillis=50
offloadRetryMaxBackoffMillis=500
retentionCheckIntervalInSeconds=1
"""
COUNT = 1_000
SPARK = """
import json, sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
frame = spark.read.format("afterglow").option("source", sys.argv[1]).option("topic", sys.argv[2]).load()
rows = frame.select("ledger_id", "entry_id", "value", "tier").orderBy("ledger_id", "entry_id").collect()
print(json.dumps([[row.ledger_id, row.entry_id, bytes(row.value).hex(), row.tier] for row in rows]))
"""


def produce(served: Served, sent: dict[tuple[int, int], bytes], count: int) -> None:
    client = pulsar.Client(served.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(TOPIC, batching_enabled=False, block_if_queue_full=True)
    for _ in range(count):
        value = os.urandom(10_000)
        message_id = producer.send(value)
        sent[message_id.ledger_id(), message_id.entry_id()] = value
    client.close()


def consume(served: Served, count: int) -> list[bytes]:
    client = pulsar.Client(served.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    values = [reader.read_next(timeout_millis=30_000).data() for _ in range(count)]
    assert not reader.has_message_available()
    client.close()
    return values


def run(command: list[str], environ: dict[str, str]) -> str:
    environ = {**environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run([sys.executable, *command], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def segments(served: Served) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = served.admin("GET", f"{PATH}/segments")
    return found


def offloaded(served: Served) -> int:
    """Entries in committed segments."""
    return sum(segment["entries"] for segment in segments(served) if segment["status"] == "Offloaded")


def check_without_the_driver(home: Path) -> None:
    """Where it is not installed, its objects are one unchecked finding, and a read names the driver."""
    missing = "offload driver 'zip' is not installed"
    output = run(["-m", "afterglow", "verify", str(home), "--json"], dict(os.environ))
    (finding,) = [found for line in output.splitlines() if (found := json.loads(line))["topic"] == TOPIC]
    assert finding["kind"] == "unchecked"
    assert missing in finding["detail"]
    command = [sys.executable, "-m", "afterglow", "read", str(home), TOPIC]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert missing in done.stderr


@pytest.mark.pulsar  # for its time: three Sparks are started, one behind the other
def test_a_topic_streams_through_an_installed_driver_and_survives_a_kill(
    tmp_path: Path, zip_driver: dict[str, str]
) -> None:
    home, zips = tmp_path / "home", tmp_path / "zips"
    conf = tmp_path / "broker.conf"
    conf.write_text(CONF)
    sent: dict[tuple[int, int], bytes] = {}

    served = start(home, "--conf", str(conf), environ=zip_driver)
    try:
        served.admin("PUT", PATH)
        policy = {
            "managedLedgerOffloadDriver": "zip",
            "managedLedgerExtraConfigurations": {"directory": str(zips)},
            "streamingOffloadEnabled": True,
        }
        served.admin("POST", f"{PATH}/offloadPolicies", policy)
        produce(served, sent, COUNT)
        # In the middle of a segment: an attempt has begun its file, and the file has no name yet.
        eventually(lambda: any(zips.glob(".*.part")), lambda: list(zips.glob("*")))
    finally:
        served.kill()

    served = start(home, "--conf", str(conf), environ=zip_driver)
    try:
        produce(served, sent, COUNT // 4)
        wanted = [sent[position] for position in sorted(sent)]
        eventually(lambda: offloaded(served) == len(sent), lambda: served.admin("GET", f"{PATH}/explain"))
        assert {segment["status"] for segment in segments(served)} == {"Offloaded"}
        closed = [row for row in rows_of(home, TOPIC) if row.HasField("entries") and row.entries]
        assert len(closed) > 3
        eventually(
            lambda: all(
                row.offloadContext.bookkeeperDeleted for row in rows_of(home, TOPIC) if row.HasField("entries")
            ),
            lambda: rows_of(home, TOPIC),
        )
        assert not any(zips.glob(".*.part"))  # the attempt that was killed has left nothing
        assert all(ZipFile(path).testzip() is None for path in zips.glob("*.zip"))

        assert consume(served, len(sent)) == wanted

        lines = run(["-m", "afterglow", "read", str(home), TOPIC, "--format", "jsonl"], zip_driver).splitlines()
        rows = [json.loads(line) for line in lines]
        assert [(row["ledger_id"], row["entry_id"]) for row in rows] == sorted(sent)
        assert {row["tier"] for row in rows} == {"tiered"}

        frame = json.loads(run(["-c", SPARK, str(home), TOPIC], zip_driver).splitlines()[-1])
        assert [(ledger, entry) for ledger, entry, _, _ in frame] == sorted(sent)
        assert [bytes.fromhex(value) for _, _, value, _ in frame] == wanted
        assert {tier for *_, tier in frame} == {"tiered"}

        output = run(["-m", "afterglow", "verify", str(home), "--deep", "--json", "--grace", "0s"], zip_driver)
        assert {json.loads(line)["kind"] for line in output.splitlines()} <= {"unchecked"}  # no fault

        check_without_the_driver(home)

        served.admin("DELETE", PATH)
        eventually(lambda: not any(zips.iterdir()) and not on_record(home, TOPIC), lambda: list(zips.iterdir()))
        assert served.stop() == 0
    finally:
        if served.process.poll() is None:
            served.kill()
