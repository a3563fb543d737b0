"""Reading in a task of a Spark job: what a partition of a DataFrame holds, and the rows that come of it.

Partitions travel to the tasks and hold no secrets: a task takes credentials from the environment of its own process.
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
    from afterglow.spark.datasource.schema import Shape

    Schemas: TypeAlias = Mapping[str, tuple[SchemaVersion, ...]]
    """Versions of schemas, oldest first, by the full name of a topic without its partition."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one task reads."""

    splits: tuple[Split, ...]
    schemas: Schemas | None
    """What values are decoded by; None: they are given as they are."""


def pack(splits: Iterable[Split], partition_bytes: int, schemas: Schemas | None = None) -> list[InputPartition]:
    """Splits as partitions of a DataFrame, in order: each holds splits up to a size, and one at least.

    No splits make one partition that holds none: Spark replaces an empty list by a partition without a value, which is
    also what it makes of a plan that failed with ``NotImplementedError``.
    """
    packed: list[list[Split]] = []
    room = 0
    for split in splits:
        if not packed or split.size_bytes > room:
            packed.append([])
            room = partition_bytes
        packed[-1].append(split)
        room -= split.size_bytes
    return [InputPartition(Share(tuple(together), schemas)) for together in packed or [[]]]


def read_partition(partition: InputPartition, shape: Shape, include: Include) -> Iterator[pa.RecordBatch]:
    """The rows of a partition, in order.

    Args:
        partition: Of :func:`pack`.
        shape: Columns and their form.
        include: Messages or raw entries.

    Raises:
        AfterglowError: They cannot be read; batches before that are good. Or the partition is not one of :func:`pack`.
    """
    with PlainErrors():
        share: object = partition.value
        if not isinstance(share, Share):
            raise AfterglowError(
                f"a partition was not planned: {share!r}; planning the query failed, and its error was lost: "
                "see the log of Spark's driver"
            )
        yield from shape.of(_typed(share, shape) if share.schemas is not None else _plain(share, shape, include))


def _plain(share: Share, shape: Shape, include: Include) -> Iterator[pa.RecordBatch]:
    for split in share.splits:
        yield from _reader().batches(split, shape.columns, include)


def _typed(share: Share, shape: Shape) -> Iterator[pa.RecordBatch]:
    assert share.schemas is not None
    typed = TypedColumns(share.schemas, shape.columns)
    for split in share.splits:
        topic = topic_of_schema(split.topic)
        for batch in _reader().batches(split, typed.needed):
            yield from typed.of(batch, topic)


def topic_of_schema(topic: str) -> str:
    """The name that a topic's schemas are kept under: partitions share them."""
    return str(TopicName.parse(topic).base)


@cache
def _reader() -> SplitReader:
    """One for all tasks of a worker, which is used again: opened objects and connections stay."""
    return SplitReader(load_conf(environ=os.environ))


class PlainErrors:
    """Raises errors of ours without the stacks below them: Spark prints every line, and the message says all.

    A ``NotImplementedError`` of a library becomes one of ours: PySpark takes it for an answer, not for a failure.
    """

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, AfterglowError):
            raise error.with_traceback(None) from None
        if isinstance(error, NotImplementedError):
            raise AfterglowError(f"unexpected {type(error).__name__}: {error}") from error
