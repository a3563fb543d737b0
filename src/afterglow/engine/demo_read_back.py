"""The second half of the demo, when nothing runs any more: Spark reads the tier, and all is compared."""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from afterglow.engine.demo_check import EntryTimes, differences
from afterglow.engine.demo_messages import COLUMNS, DIGESTS, digest_batches
from afterglow.engine.demo_watch import watching
from afterglow.engine.source import connect
from afterglow.errors import AfterglowError
from afterglow.read.copies import Tier
from afterglow.spark.reasons import reason
from afterglow.spark.session import local_session

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from afterglow.engine.demo_stream import Streamed
    from afterglow.engine.demo_watch import Show
    from afterglow.engine.source import SourceTopic
    from afterglow.metadata.names import TopicName

_PARTITION_BYTES: Final = 4 << 20
"""Small, so that a demo's few megabytes make tasks for several workers."""


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What came of it."""

    topic: str
    """Full name."""
    messages: int
    """That were sent."""
    differences: tuple[str, ...]
    """Empty if every message came back as it was sent, from the tier, and every seek found its entry."""


def read_back(home: Path, topic: TopicName, streamed: Streamed, show: Show) -> DemoResult:
    """Read a topic from the tier with Spark, seek in it, and compare.

    Raises:
        AfterglowError: It cannot be read.
    """
    with ExitStack() as stack:
        source = stack.enter_context(connect(home))
        look = stack.enter_context(watching(home, topic)).look()
        found = source.topic(str(topic))
        show.last_picture(look)
        show.say("The engine is stopped. What follows reads the tier alone.")
        began = time.monotonic()
        session = stack.enter_context(local_session())
        show.say(f"Spark {session.version} is up after {time.monotonic() - began:.1f} s.")
        back = _scan(session, home, found, show)
        wrong = differences(streamed.sent, back)
        hot = back.num_rows - back["tier"].to_pylist().count(Tier.TIERED)
        if hot:
            wrong.append(f"{hot:,} messages came from the hot log, not from the tier")
        if back.num_rows:
            times = EntryTimes.of(back)
            wrong += _seek(found, times, streamed, show)
            if looked := source.counters.counts().entries.get(Tier.HOT, 0):
                wrong.append(f"the search by time has read {looked} entries from the hot log, not from the tier")
            if later := times.to_tier_s(look.segments)[1:]:
                show.say(
                    f"Segments behind the first were complete in the tier {statistics.median(later):.1f} s (median) "
                    f"after their last entry was written, {max(later):.1f} s at most."
                )
        return DemoResult(str(topic), streamed.sent.num_rows, tuple(wrong))
    raise AssertionError("unreachable: the block returns or raises")


def _scan(session: SparkSession, home: Path, topic: SourceTopic, show: Show) -> pa.Table:
    """All messages, digested in the tasks that read them."""
    from afterglow.spark.source_schema import spark_schema  # noqa: PLC0415 - needs Spark, which the demo may lack so far

    began = time.monotonic()
    frame = (
        session.read.format("afterglow")
        .option("source", str(home))
        .option("topic", topic.name)
        .option("readPriority", "tiered-first")
        .option("columns", ",".join(COLUMNS))
        .option("maxPartitionBytes", _PARTITION_BYTES)
        .load()
    )
    back = _collect(session, frame.mapInArrow(digest_batches, spark_schema(DIGESTS)), topic.name)
    took = time.monotonic() - began
    size_mb = sum(back["value_bytes"].to_pylist()) / 1e6
    show.say(
        f'spark.read.format("afterglow") read {back.num_rows:,} messages, {size_mb:.1f} MB, from '
        f"{len(topic.segments())} segments in {took:.1f} s ({back.num_rows / took:,.0f} messages/s, "
        f"{size_mb / took:.1f} MB/s)."
    )
    return back


def _collect(session: SparkSession, frame: DataFrame, topic: str) -> pa.Table:
    """Run the job on a thread of its own, so that Ctrl-C ends the job and not the talk with the JVM amid a word."""
    context, group = session.sparkContext, f"read-{uuid4()}"

    def run() -> pa.Table:
        context.setJobGroup(group, f"read {topic}")
        return frame.toArrow()

    with ThreadPoolExecutor(1, thread_name_prefix="read-job") as thread:
        future = thread.submit(run)
        try:
            return future.result()
        except Exception as error:
            raise AfterglowError(f"the Spark job that reads {topic} failed: {reason(error)}") from error
        finally:
            if not future.done():
                context.cancelJobGroup(group)


def _seek(topic: SourceTopic, times: EntryTimes, streamed: Streamed, show: Show) -> list[str]:
    """Seek by time in the tier, and judge this and what the stock client found while the engine ran."""
    first, last = int(times.times_ms[0]), int(times.times_ms[-1])
    middle = int(times.times_ms[times.times_ms.size // 2])
    moments = [first - 1, first, *streamed.moments, middle, middle + 1, last, last + 1]
    wrong = [
        *times.wrong_seeks("the stock client", streamed.moments, streamed.sought),
        *times.wrong_seeks("the reader of the tier", moments, [topic.seek(moment) for moment in moments]),
    ]
    if not wrong:
        show.say(
            f"Seek by time found the very entry that looking at each one finds: {len(streamed.moments)} times through "
            f"the stock client, {len(moments)} times in the tier."
        )
    return wrong
