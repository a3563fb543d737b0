"""``format("afterglow")`` over a topic of 1 KiB messages in a local tier, page cache warm, by two cores.

All columns, against the transport alone: a data source that gives as many partitions of batches of the same rows, which
are in the workers' memory before the job begins. Then ``sum(length(value))``, against Spark's own reader of Parquet
files of the same rows, as Spark writes them. The pieces of work take turns, and the best time of each counts.

Workers share the cores with the JVM. A read of everything spends a fifth of the time on fetching and decoding at the
goal of 0.8; the rest is the transport's.

``BENCH_SCAN_MIB`` and ``BENCH_SCAN_ROUNDS`` as of the workload ``scan``.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import afterglow
from afterglow.config import load_conf
from afterglow.read.split_reader import SplitReader
from afterglow.spark.datasource.schema import OutputSchema
from afterglow.spark.session import local_session
from bench.measure import best_seconds, keep
from bench.offload import Target
from bench.process_tree import Peak
from bench.scan import KINDS, MIB, PLAIN, ROUNDS, TOTAL
from bench.topics import MESSAGE, record_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from bench.topics import Topic

GOALS = {
    **{f"{kind}: all columns / transport": 0.8 for kind in PLAIN},
    **{f"{kind}: sum(length(value)) / Parquet": 0.75 for kind in PLAIN},
}


def take(rows: DataFrame) -> None:
    """Have every column of every row come into Spark."""
    rows.write.format("noop").mode("overwrite").save()


def lengths(rows: DataFrame, total: int) -> None:
    """Sum up the lengths of all values."""
    (found,) = rows.selectExpr("sum(length(value))").first() or (0,)
    if found != total:
        raise RuntimeError(f"the values have {found} bytes, and should have {total}")


def prebuilt(session: SparkSession, topic: Topic, rows: DataFrame, path: Path) -> tuple[DataFrame, int]:
    """A DataFrame of batches like those of the first partition, in as many partitions; and how many rows it has."""
    from bench.transport import PrebuiltSource, prebuild  # noqa: PLC0415 - needs PySpark

    partitions = rows.rdd.getNumPartitions()
    with afterglow.connect(topic.home) as source:
        split = next(source.topic(topic.name).splits())
    reader = SplitReader(load_conf())
    batches = list(OutputSchema(rows.schema).convert(reader.batches(split)))
    reader.close()
    prebuild(path, batches)
    session.dataSource.register(PrebuiltSource)
    made = session.read.format("prebuilt").schema(rows.schema).option("path", str(path))
    count = partitions * sum(batch.num_rows for batch in batches)
    return made.option("partitions", str(partitions)).load(), count


def measure(session: SparkSession, topic: Topic, directory: Path) -> dict[str, Any]:
    """Figures of one topic."""
    read = session.read.format("afterglow").option("source", str(topic.home)).option("topic", topic.name)
    rows = read.load()
    transport, transported = prebuilt(session, topic, rows, directory / "batches.arrow")
    files = str(directory / "parquet")
    rows.write.parquet(files)
    peak = Peak()
    with peak.watched():
        seconds = best_seconds(
            {
                "all": partial(take, rows),
                "transport": partial(take, transport),
                "lengths": partial(lengths, read.option("columns", "value").load(), topic.value_bytes),
                "parquet": partial(lengths, session.read.parquet(files), topic.value_bytes),
            },
            ROUNDS,
        )
    speeds = {name: topic.value_bytes / MIB / taken for name, taken in seconds.items()}
    speeds["transport"] = transported * MESSAGE / MIB / seconds["transport"]
    return {
        "all columns / transport": round(speeds["all"] / speeds["transport"], 3),
        "all columns, MiB/s": round(speeds["all"]),
        "transport, MiB/s": round(speeds["transport"]),
        "sum(length(value)) / Parquet": round(speeds["lengths"] / speeds["parquet"], 3),
        "sum(length(value)), MiB/s": round(speeds["lengths"]),
        "Parquet, MiB/s": round(speeds["parquet"]),
        "partitions": rows.rdd.getNumPartitions(),
        "peak memory of all processes, MiB": round(peak.bytes / MIB),
    }


def main() -> None:
    figures: dict[str, Any] = {"MiB": TOTAL >> 20}
    with local_session("local[2]") as session:
        for name in PLAIN:
            kind = KINDS[name]
            with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as path:
                directory = Path(path)
                tier = Target((directory / "tier").as_uri(), {}, {})
                (directory / "tier").mkdir()
                topic = record_topic(directory / "home", tier, TOTAL, kind.batch, kind.codec)
                found = measure(session, topic, directory)
            figures |= {f"{name}: {figure}": value for figure, value in found.items()}
    keep("scan_spark", figures, GOALS)
