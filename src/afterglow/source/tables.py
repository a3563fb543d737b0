"""Tables of pandas, Polars and DuckDB from a scan, and batches that are filtered or limited.

The libraries are optional: they are imported when a table of theirs is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, Self, TypedDict

import pyarrow as pa

from afterglow.errors import ConfigError, MissingDependency

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

    import duckdb
    import pandas as pd
    import polars as pl

    from afterglow.config.choices import ReadPriority
    from afterglow.format.schema import SchemaVersion
    from afterglow.read.scan_range import PositionLike, TimeLike
    from afterglow.read.split_reader import Include


class BatchReader(Protocol):
    """The methods of ``pyarrow.RecordBatchReader``, which has no type annotations. It can be read once."""

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""
        ...

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """The batches that were not read yet."""
        ...

    def __next__(self) -> pa.RecordBatch:
        """The next batch."""
        ...

    def __enter__(self) -> Self:
        """The reader."""
        ...

    def __exit__(self, *_: object) -> None:
        """Close the reader."""
        ...

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The stream, for libraries that read Arrow data."""
        ...

    def read_next_batch(self) -> pa.RecordBatch:
        """The next batch; raises ``StopIteration`` after the last one."""
        ...

    def read_all(self) -> pa.Table:
        """All batches that were not read yet, as a table in memory."""
        ...

    def read_pandas(self, **options: object) -> pd.DataFrame:
        """All batches that were not read yet, as a DataFrame of pandas; the options are those of ``to_pandas``."""
        ...

    def close(self) -> None:
        """Release the resources of the reader."""
        ...


class ScanOptions(TypedDict, total=False):
    """Arguments of :meth:`SourceTopic.scan <afterglow.source.topic.SourceTopic.scan>` that select rows and columns."""

    start: PositionLike
    end: PositionLike
    since: TimeLike
    until: TimeLike
    columns: Iterable[str] | str | None
    read_priority: ReadPriority | str | None
    include: Include
    filter: Any
    limit: int | None
    decode: bool | Sequence[SchemaVersion]
    fail_on_data_loss: bool


def select_rows(
    batches: Generator[pa.RecordBatch], schema: pa.Schema, expression: Any, limit: int | None
) -> Iterator[pa.RecordBatch]:
    """The rows that match, up to a number of them; no batch after these is read.

    Args:
        batches: All rows.
        schema: Their schema.
        expression: A ``pyarrow.compute.Expression`` over the columns; None: all rows match.
        limit: Maximum number of rows; None: all.

    Raises:
        ConfigError: The limit is negative, or the expression names an unknown column or cannot be evaluated.
    """
    if limit is not None and limit < 0:
        raise ConfigError(f"limit={limit} is negative; give the number of rows, or None for all")
    if expression is None and limit is None:
        return batches
    if expression is not None:
        _filter(schema.empty_table(), expression, schema)
    return _select(batches, schema, expression, limit)


def _select(
    batches: Generator[pa.RecordBatch], schema: pa.Schema, expression: Any, limit: int | None
) -> Iterator[pa.RecordBatch]:
    left = limit
    if left == 0:
        return
    try:
        for batch in batches:
            table = pa.Table.from_batches([batch])
            matching = table if expression is None else _filter(table, expression, schema)
            for part in matching.to_batches():
                yield part if left is None else part.slice(0, left)
                if left is not None and (left := left - part.num_rows) <= 0:
                    return
    finally:
        batches.close()


def _filter(table: pa.Table, expression: Any, schema: pa.Schema) -> pa.Table:
    try:
        return table.filter(expression)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise ConfigError(
            f"filter={expression!s} cannot be evaluated over the columns {', '.join(schema.names)}: {error}; give a "
            "pyarrow.compute expression, and name its columns in columns="
        ) from error


def to_pandas(batches: BatchReader) -> pd.DataFrame:
    """Read all rows to a DataFrame of pandas.

    Raises:
        MissingDependency: pandas is not installed.
    """
    _require("pandas")
    return batches.read_pandas()


def to_polars(batches: BatchReader) -> pl.DataFrame:
    """Read all rows to a DataFrame of Polars.

    Raises:
        MissingDependency: Polars is not installed.
    """
    found: pl.DataFrame = _require("polars").from_arrow(batches.read_all())
    return found


def to_duckdb(batches: BatchReader) -> duckdb.DuckDBPyRelation:
    """Read all rows to a relation of DuckDB, in memory, which can be queried any number of times.

    Raises:
        MissingDependency: DuckDB is not installed.
    """
    found: duckdb.DuckDBPyRelation = _require("duckdb").from_arrow(batches.read_all())
    return found


def _require(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingDependency(f"{name} cannot be imported: {error}; run pip install {name}") from error
