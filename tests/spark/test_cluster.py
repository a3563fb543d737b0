"""A standalone cluster whose executors share no directory with the driver, and have this package from an archive.

Workers are killed while they offload and while they read; a third one does the rest.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import pytest
from tests.spark.test_standalone import BYTES, CONF, STREAMED, WHOLE, objects, offload, offloading, publish
from tests.support.packed_environment import ROOT, pack, spark_only
from tests.support.servers import start_moto
from tests.support.serving import serving
from tests.support.spark_cluster import can_hide, standalone_cluster

import afterglow

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.spark_cluster import StandaloneCluster

pytest.importorskip("pyspark", reason="the extra pulsar-afterglow[spark] is not installed")
pytest.importorskip("moto", reason="moto is not installed")

COLUMNS: Final = ["ledger_id", "entry_id", "value"]
DIRECTORY: Final = "environment"
PROGRAM: Final = """
import hashlib, json, sys, time
from pathlib import Path
from afterglow.pipeline.tier_verifier import open_verifier
from afterglow.spark.export import ExportDirectory, ExportRecord, TopicExport
from afterglow.spark.session import local_session

master, home, topic, out = sys.argv[1:5]
settings = json.loads(sys.argv[5])
columns = "ledger_id,entry_id,value"
options = {"source": home, "topic": topic, "hot": "skip", "columns": columns, "maxPartitionBytes": "1m"}
sums = {}

def digest(rows):
    made = hashlib.sha256()
    for ledger, entry, value in sorted(rows):
        made.update(b"%d:%d:" % (ledger, entry) + value)
    return made.hexdigest()

def keep(frame, number):
    if number == 1:
        Path(out, "reading").touch()
        while not Path(out, "killed").exists():
            time.sleep(0.1)
    kept.extend((row[0], row[1], bytes(row[2])) for row in frame.collect())

with local_session(master, "cluster", **settings) as spark:
    kept = []
    stream = spark.readStream.format("afterglow").options(**options, maxBytesPerTrigger="4m").load()
    writer = stream.writeStream.foreachBatch(keep).option("checkpointLocation", out + "/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()
    sums["stream"] = digest(kept)
    frame = spark.read.format("afterglow").options(**options).load()
    sums["batch"] = digest((row[0], row[1], bytes(row[2])) for row in frame.collect())
    record = ExportRecord(home, topic, tuple(columns.split(",")), decode=False)
    done = TopicExport(spark, ExportDirectory(spark, out + "/exported"), record, {"hot": "skip"}).run()
    rows = spark.read.parquet(out + "/exported").collect()
    sums["export"] = digest((row[0], row[1], bytes(row[2])) for row in rows)
    sums["exported"] = done.rows
    sums["python"] = spark.sparkContext.range(1).map(lambda _: sys.executable).first()
print(json.dumps(sums))
"""


def digest(home: Path, options: dict[str, Any]) -> tuple[str, int]:
    """The digest of the rows of a scan of the tier, and their number."""
    made = hashlib.sha256()
    with afterglow.connect(home, hot="skip", **options) as source:
        table = source.topic(STREAMED).scan(columns=COLUMNS).read_all()
    rows = sorted(tuple(row.values()) for row in table.to_pylist())
    for ledger, entry, value in rows:
        made.update(b"%d:%d:" % (ledger, entry) + value)
    return made.hexdigest(), len(rows)


def run(program: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    give_up_at = time.monotonic() + 600
    while not path.exists():
        assert process.poll() is None, process.communicate()[1][-3000:]
        assert time.monotonic() < give_up_at
        time.sleep(0.1)


def kill_with_executor(cluster: StandaloneCluster, number: int, directory: Path) -> None:
    """Kill a worker as soon as it has an executor."""
    give_up_at = time.monotonic() + 300
    while not list(directory.glob(f"worker-{number}/app-*/*")) and time.monotonic() < give_up_at:
        time.sleep(0.05)
    cluster.kill_worker(number)


@pytest.mark.pulsar  # needs nothing that pip does not install, but several minutes
@pytest.mark.timeout(1800)
@pytest.mark.skipif(can_hide() is not None, reason=f"directories cannot be hidden from workers: {can_hide()}")
def test_a_cluster_with_a_packed_environment_does_everything_though_workers_are_killed(tmp_path: Path) -> None:
    home, twin = tmp_path / "home", tmp_path / "twin"
    conf = tmp_path / "writing.conf"
    conf.write_text(CONF)
    with serving(home, "--conf", str(conf)) as served:
        publish(served, STREAMED)
        publish(served, WHOLE)
        assert served.stop() == 0
    shutil.copytree(home, twin)
    packed = tmp_path / "packed"
    packed.mkdir()
    archive = pack(packed)
    spark = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.archives": f"{archive}#{DIRECTORY}",
        "spark.pyspark.python": f"./{DIRECTORY}/bin/python",
    }
    with start_moto() as s3:
        credentials = {
            "AWS_ACCESS_KEY_ID": s3.access_key,
            "AWS_SECRET_ACCESS_KEY": s3.secret_key,
            "AFTERGLOW_CONF_s3ManagedLedgerOffloadCredentialId": s3.access_key,
            "AFTERGLOW_CONF_s3ManagedLedgerOffloadCredentialSecret": s3.secret_key,
        }
        workers = tmp_path / "workers"
        workers.mkdir()
        with standalone_cluster(
            workers,
            workers=3,
            hidden=[home, packed, ROOT],
            spark_home=spark_only(),
            environment={**credentials, "PYTHONPATH": ""},
        ) as cluster:
            with offloading(home, s3, "cluster", cluster.url, **spark) as served:
                killer = threading.Thread(target=kill_with_executor, args=(cluster, 0, workers))
                killer.start()
                for topic in BYTES:
                    offload(served, topic)
                killer.join()
                assert served.stop() == 0
            with offloading(twin, s3, "local", "local[2]") as served:
                for topic in BYTES:
                    offload(served, topic)
                assert served.stop() == 0
            for topic in BYTES:
                assert objects(home, s3, "cluster", topic) == objects(twin, s3, "local", topic)
            check_reads(home, cluster, spark, credentials)


def check_reads(home: Path, cluster: StandaloneCluster, spark: dict[str, str], variables: dict[str, str]) -> None:
    """Read, export and verify the topic on the cluster; a worker is killed in the second micro-batch of the stream."""
    out = home.with_name("out")
    out.mkdir()
    environment = {**os.environ, **variables}
    arguments = [cluster.url, str(home), STREAMED, str(out), json.dumps(spark)]
    process = run([sys.executable, "-c", PROGRAM, *arguments], environment)
    wait_for(out / "reading", process)
    cluster.kill_worker(1)
    (out / "killed").touch()
    printed, said = process.communicate(timeout=900)
    assert process.returncode == 0, said[-3000:]
    found = json.loads(printed)
    with pytest.MonkeyPatch.context() as patch:
        for name, text in variables.items():
            patch.setenv(name, text)
        expected, rows = digest(home, {})
    assert found == {
        "stream": expected,
        "batch": expected,
        "export": expected,
        "exported": rows,
        "python": found["python"],
    }
    assert found["python"].endswith(f"/{DIRECTORY}/bin/python")
    assert rows > 100
    conf = {f"AFTERGLOW_CONF_{name}": text for name, text in spark.items()}
    verify = [sys.executable, "-m", "afterglow", "verify", str(home), "--deep", "--master", cluster.url]
    done = subprocess.run(verify, check=False, env={**environment, **conf}, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
