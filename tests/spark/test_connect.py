"""The data source over Spark Connect, and operations that need a driver in their own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.homes import ServerHome, batch
from tests.support.ledgers import message
from tests.support.servers import ServerUnavailable
from tests.support.spark_connect import connect_server

import afterglow
from afterglow.errors import ConfigError
from afterglow.spark.session import local_session

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("pyspark", reason="the extra pulsar-afterglow[spark] is not installed")
pytest.importorskip("grpc_status", reason="pyspark[connect] is not installed")

_SLOW_START = "connect back"
COLUMNS = "ledger_id,entry_id,batch_index,value"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    try:
        with connect_server(tmp_path_factory.mktemp("server")) as address:
            yield address
    except ServerUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A topic with a ledger in the tier alone, and one in the hot log."""
    path = tmp_path / "home"
    path.mkdir()
    with ServerHome(path) as writer:
        first, _ = writer.write("t", *([batch([b"a%d" % i, b"b%d" % i]) for i in range(9)] for _ in range(2)))
        writer.offload("t", first)
        writer.free("t", first)
    return path


def run_client(program: str, *arguments: str) -> Any:
    """Run a program with a session of its own; returns the JSON that it prints."""
    start = "import json, sys\nfrom pyspark.sql import SparkSession\nspark = SparkSession.builder.remote(sys.argv[1])"
    text = f"{start}.getOrCreate()\nhome = sys.argv[2]\n{program}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    command = [sys.executable, "-W", "ignore", "-c", text, *arguments]
    for attempts_left in reversed(range(4)):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode == 0:
            return json.loads(done.stdout)
        # Spark gives the process of a source ten seconds to start: on a busy machine that may be too short.
        if not attempts_left or _SLOW_START not in done.stderr:
            break
    raise AssertionError(done.stderr[-3000:])


def scanned(home: Path) -> list[list[Any]]:
    with afterglow.connect(home) as source:
        found = source.topic("t").scan(columns=COLUMNS.split(",")).read_all().to_pylist()
    return [[*list(row.values())[:3], row["value"].decode()] for row in found]


BATCH = f"""
frame = spark.read.format("afterglow").options(source=home, topic="t", columns="{COLUMNS}").load()
print(json.dumps([[*row[:3], bytes(row[3]).decode()] for row in frame.collect()]))
"""


@pytest.mark.spark("connect-batch")
def test_a_batch_has_all_rows_in_order(server: str, home: Path) -> None:
    assert run_client(BATCH, server, str(home)) == scanned(home)


STREAM = f"""
def keep(frame, number):
    frame.write.mode("append").parquet(sys_argv[1])

sys_argv = sys.argv[2:]
stream = spark.readStream.format("afterglow").options(source=home, topic="t", columns="{COLUMNS}").load()
for sink in (stream.writeStream.format("parquet").option("path", sys_argv[2]), stream.writeStream.foreachBatch(keep)):
    checkpoint = sys_argv[3] + ("-each" if "foreach" in repr(sink._write_proto) else "")
    sink.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
found = []
for path in (sys_argv[2], sys_argv[1]):
    rows = spark.read.parquet(path).orderBy("ledger_id", "entry_id", "batch_index").collect()
    found.append([[*row[:3], bytes(row[3]).decode()] for row in rows])
print(json.dumps(found))
"""


@pytest.mark.spark("connect-stream")
def test_a_stream_reads_every_message_once_and_continues_at_its_checkpoint(
    server: str, home: Path, tmp_path: Path
) -> None:
    outputs = [str(tmp_path / name) for name in ("each", "files", "checkpoint")]
    assert run_client(STREAM, server, str(home), *outputs) == [scanned(home)] * 2
    with ServerHome(home) as writer:
        writer.write("t", [message(b"later")])
    assert run_client(STREAM, server, str(home), *outputs) == [scanned(home)] * 2


REFUSED = """
from afterglow.errors import AfterglowError
from afterglow.spark.export import ExportDirectory, ExportRequest, export_topic
from afterglow.spark.offload_jobs import SparkRunner
from afterglow.spark.verify_jobs import SparkVerifier

calls = [
    lambda: ExportDirectory(spark, home + "/out"),
    lambda: export_topic(ExportRequest(home, "t", f"parquet:{home}-out")),
    lambda: SparkVerifier(spark, lambda _: None, "instance"),
    lambda: SparkRunner(sys.argv[1]),
    lambda: SparkRunner("local[1]")._spark(),
]
said = []
for call in calls:
    try:
        call()
        said.append("no error")
    except AfterglowError as error:
        said.append(f"{type(error).__name__}: {error}")
print(json.dumps(said))
"""


def test_export_verification_and_offload_are_refused_in_a_session_of_spark_connect(server: str, home: Path) -> None:
    said = run_client(REFUSED, server, str(home))
    assert said[0].startswith("NotSupported: an export needs a Spark driver in its own process")
    assert said[1].startswith("ConfigError: this process uses Spark Connect")
    assert said[2].startswith("NotSupported: a verification needs a Spark driver in its own process")
    assert said[3].startswith(f"ConfigError: --master {server} (sparkMaster) is a server of Spark Connect")
    assert said[4] == said[1]


def test_a_session_is_refused_where_the_environment_selects_spark_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://h:15002/;token=Kw63")
    words = r"this process uses Spark Connect \(SPARK_REMOTE=sc://h:15002\)"
    with pytest.raises(ConfigError, match=words) as refused, local_session():
        pass
    assert "Kw63" not in str(refused.value)
