"""Reading in a task of a Spark job: what a partition of a DataFrame holds, and the rows that come of it.

Partitions travel to the tasks and hold no secrets: a task takes credentials from the environment of its own process.
"""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from afterglow.config import load_conf
from afterglow.errors import AfterglowError
from afterglow.read.split_reader import SplitReader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from afterglow.read.split_reader import Include
    from afterglow.read.splits import Split
    from afterglow.spark.source_schema import Shape


def pack(splits: Iterable[Split], partition_bytes: int) -> list[InputPartition]:
    """Splits as partitions of a DataFrame, in order: each holds splits up to a size, and one at least."""
    packed: list[list[Split]] = []
    room = 0
    for split in splits:
        if not packed or split.size_bytes > room:
            packed.append([])
            room = partition_bytes
        packed[-1].append(split)
        room -= split.size_bytes
    return [InputPartition(tuple(together)) for together in packed]


def read_partition(partition: InputPartition, shape: Shape, include: Include) -> Iterator[pa.RecordBatch]:
    """The rows of a partition, in order.

    Args:
        partition: Of :func:`pack`, or the one without a value that Spark makes where there are none.
        shape: Columns and their form.
        include: Messages or raw entries.

    Raises:
        AfterglowError: They cannot be read; batches before that are good.
    """
    with PlainErrors():
        yield from shape.of(
            batch for split in partition.value or () for batch in _reader().batches(split, shape.columns, include)
        )


@cache
def _reader() -> SplitReader:
    """One for all tasks of a worker, which is used again: opened objects and connections stay."""
    return SplitReader(load_conf(environ=os.environ))


class PlainErrors:
    """Raises errors of ours without the stacks below them: Spark prints every line, and the message says all."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, AfterglowError):
            raise error.with_traceback(None) from None
