"""What Spark takes from a Python data source at best: Arrow batches that are there before they are asked for.

Workers get these classes by value, since they do not know where benches are.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql.types import StructType

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


def prebuild(path: Path, batches: Sequence[pa.RecordBatch]) -> None:
    """Write the batches that every partition is to give."""
    with pa.ipc.new_file(str(path), batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


@cache
def prebuilt(path: str) -> list[pa.RecordBatch]:
    """The batches in memory; read once by a worker, which is used again."""
    with pa.OSFile(path) as file, pa.ipc.open_file(file) as reader:
        return [reader.get_batch(number) for number in range(reader.num_record_batches)]


class PrebuiltSource(DataSource):
    """Options: ``path`` of the batches, ``partitions``."""

    @classmethod
    def name(cls) -> str:
        """What ``format(…)`` calls it."""
        return "prebuilt"

    def reader(self, schema: StructType) -> PrebuiltReader:
        """Reads nothing."""
        del schema
        return PrebuiltReader(self.options["path"], int(self.options["partitions"]))


class PrebuiltReader(DataSourceReader):
    """Gives the same batches for each partition."""

    def __init__(self, path: str, count: int) -> None:
        self._path = path
        self._count = count

    def partitions(self) -> list[InputPartition]:
        """As many as asked for."""
        return [InputPartition(number) for number in range(self._count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches as they are."""
        del partition
        return iter(prebuilt(self._path))
