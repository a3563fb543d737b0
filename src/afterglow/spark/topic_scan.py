"""Reading a topic in a Spark job: a task per split, each with its own connection to the tier.

Descriptions of splits travel to the tasks, and columns travel back: entries never pass the driver. What comes back is
held by the driver whole; for more than it can hold, say what is to be left of each batch.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa

from afterglow.config import load_conf
from afterglow.errors import AfterglowError
from afterglow.format.schema import MESSAGES, choose
from afterglow.read.split_reader import SplitReader
from afterglow.spark.reasons import reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyspark.sql import SparkSession

    from afterglow.read.splits import Split


@dataclass(frozen=True, slots=True)
class Distillation:
    """What a task makes of each batch before it goes to the driver. Travels to the tasks."""

    of: Callable[[pa.RecordBatch], pa.RecordBatch]
    """A function of a module: tasks import it."""
    schema: pa.Schema
    """Of what it gives."""


def read_splits(
    session: SparkSession,
    splits: Sequence[Split],
    columns: Iterable[str] | None = None,
    distillation: Distillation | None = None,
) -> pa.Table:
    """Read the messages of splits, in the order of the splits.

    Args:
        session: Runs the job.
        splits: What to read. Tasks of those in the hot log must run on the engine's machine.
        columns: Names of columns in the order wanted; all of them for None. No other is decoded.
        distillation: Makes batches of these columns smaller.

    Raises:
        ConfigError: A column is unknown or named twice.
        AfterglowError: A split cannot be read, or Spark failed.
    """
    schema = choose(MESSAGES, columns)
    work = _Work(tuple(schema.names), distillation)
    topics = ", ".join(dict.fromkeys(split.topic for split in splits))
    try:
        results = _collect(session.sparkContext, splits, work, f"read {topics} in {len(splits)} splits")
    except Exception as error:
        # A worker that died, a fault in a task, the end of the JVM: Spark has no one error for them.
        raise AfterglowError(f"the Spark job that reads {topics} failed: {reason(error)}") from error
    for result in results:
        if isinstance(result, AfterglowError):
            raise result
    batches = [batch for result in results for batch in pa.ipc.open_stream(result)]
    return pa.Table.from_batches(batches, schema if distillation is None else distillation.schema)


def _collect(context: Any, splits: Sequence[Split], work: _Work, description: str) -> list[bytes | AfterglowError]:
    """Run the job on a thread of its own, so that Ctrl-C ends the job and not the talk with the JVM amid a word."""
    group = f"read-{uuid4()}"

    def run() -> list[bytes | AfterglowError]:
        context.setJobGroup(group, description)
        found: list[bytes | AfterglowError] = context.parallelize(splits, max(len(splits), 1)).map(work).collect()
        return found

    with ThreadPoolExecutor(1, thread_name_prefix="read-job") as thread:
        future = thread.submit(run)
        try:
            return future.result()
        finally:
            if not future.done():
                context.cancelJobGroup(group)


@dataclass(frozen=True, slots=True)
class _Work:
    """What a task does with its split."""

    columns: tuple[str, ...]
    distillation: Distillation | None

    def __call__(self, split: Split) -> bytes | AfterglowError:
        """The messages of a split as an Arrow stream.

        An error is returned: one that is raised, Spark would try four times in vain and then print with its stack.
        """
        try:
            return self._read(split)
        except AfterglowError as error:
            return error

    def _read(self, split: Split) -> bytes:
        distil = self.distillation
        schema = choose(MESSAGES, self.columns) if distil is None else distil.schema
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            for batch in _reader().batches(split, self.columns):
                writer.write_batch(batch if distil is None else distil.of(batch))
        return bytes(sink.getvalue())


@cache
def _reader() -> SplitReader:
    """One for all tasks of a worker, which is used again: opened objects and connections stay."""
    return SplitReader(load_conf(environ=os.environ))
