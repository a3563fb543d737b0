"""Reads in Spark tasks: partitions of a DataFrame, and their rows.

Partitions are pickled for the tasks and hold no secrets: a task takes credentials from the environment of its process.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

from pyspark.sql.datasource import InputPartition

from afterglow.config import load_conf
from afterglow.errors import AfterglowError
from afterglow.metadata.names import TopicName
from afterglow.read.split_reader import SplitReader
from afterglow.read.typed import TypedColumns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa

    from afterglow.format.schema import SchemaVersion
    from afterglow.read.split_reader import Include
    from afterglow.read.splits import Split
    from afterglow.spark.datasource.schema import OutputSchema

    Schemas: TypeAlias = Mapping[str, tuple[SchemaVersion, ...]]
    """Versions of schemas, oldest first, by the full name of a topic without its partition."""


@dataclass(frozen=True, slots=True)
class PartitionSplits:
    """The splits that one task reads."""

    splits: tuple[Split, ...]
    schemas: Schemas | None
    """Schemas by which values are decoded; None: they are not decoded."""


def pack_splits(splits: Iterable[Split], partition_bytes: int, schemas: Schemas | None = None) -> list[InputPartition]:
    """Pack splits into partitions of a DataFrame, in order: each holds splits up to a size, and at least one.

    Without splits the result is one empty partition: Spark replaces an empty list by a partition without a value, as it
    does for a plan that failed with ``NotImplementedError``.
    """
    packed: list[list[Split]] = []
    left_bytes = 0
    for split in splits:
        if not packed or split.size_bytes > left_bytes:
            packed.append([])
            left_bytes = partition_bytes
        packed[-1].append(split)
        left_bytes -= split.size_bytes
    return [InputPartition(PartitionSplits(tuple(group), schemas)) for group in packed or [[]]]


def read_partition(partition: InputPartition, output: OutputSchema, include: Include) -> Iterator[pa.RecordBatch]:
    """The rows of a partition, in order.

    Raises:
        AfterglowError: They cannot be read, though batches before the error are valid; or the partition is not one of
            :func:`pack_splits`.
    """
    with PlainErrors():
        planned: object = partition.value
        if not isinstance(planned, PartitionSplits):
            raise AfterglowError(
                f"a partition was not planned: {planned!r}; planning the query failed, and its error was lost: "
                "see the log of Spark's driver"
            )
        yield from output.convert(_batches(planned, output, include))


def _batches(planned: PartitionSplits, output: OutputSchema, include: Include) -> Iterator[pa.RecordBatch]:
    if planned.schemas is None:
        for split in planned.splits:
            yield from _reader().batches(split, output.columns, include)
        return
    typed = TypedColumns(planned.schemas, output.columns)
    for split in planned.splits:
        topic = topic_of_schema(split.topic)
        for batch in _reader().batches(split, typed.needed):
            yield from typed.of(batch, topic)


def topic_of_schema(topic: str) -> str:
    """The name under which a topic's schemas are stored: all partitions share them."""
    return str(TopicName.parse(topic).base)


@cache
def _reader() -> SplitReader:
    """One reader for all tasks of a worker, which Spark reuses: objects and connections stay open."""
    return SplitReader(load_conf(environ=os.environ))


class PlainErrors:
    """Raises errors of ours without their stacks: Spark prints every line, and the message is sufficient.

    A ``NotImplementedError`` of a library becomes one of ours: PySpark does not treat it as a failure.
    """

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, AfterglowError):
            raise error.with_traceback(None) from None
        if isinstance(error, NotImplementedError):
            raise AfterglowError(f"unexpected {type(error).__name__}: {error}") from error
