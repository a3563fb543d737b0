"""Columns of a DataFrame in Spark's and Arrow's types, with the typed columns of a topic's schemas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from afterglow.errors import ConfigError, TopicChanged
from afterglow.read.typed import TypedColumns
from afterglow.spark.datasource.releases import utc_arrow_schema
from afterglow.spark.datasource.tasks import topic_of_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from afterglow.source.connect import SourceTopic
    from afterglow.spark.datasource.options import SourceOptions
    from afterglow.spark.datasource.tasks import Schemas

SMALL_BYTES: Final = 1 << 20
"""Smaller batches are joined: each costs Spark as much as some hundreds of kilobytes of rows."""


def spark_schema(schema: pa.Schema) -> StructType:
    """Columns in Spark's types. Times of day are nanoseconds: Spark's own type for them is disabled by default."""
    known = pa.schema([pa.field(field.name, _without_times_of_day(field.type)) for field in schema])
    return from_arrow_schema(known, prefer_timestamp_ntz=True)


def _without_times_of_day(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_time(kind):
        return pa.int64()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _without_times_of_day(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _without_times_of_day(kind.item_type))
    return pa.list_(_without_times_of_day(kind.value_type)) if pa.types.is_list(kind) else kind


def require_columns(asked: StructType, offered: pa.Schema) -> None:
    """Verify a schema that a user gave by ``.schema(…)``: it selects columns, and cannot change their types.

    Raises:
        ConfigError: It names an unknown column, one with another type, or one twice.
    """
    known = {field.name: field.dataType for field in spark_schema(offered)}
    for field in asked:
        if field.name not in known:
            raise ConfigError(
                f"the schema asks for an unknown column {field.name!r}; the columns are {', '.join(known)}"
            )
        # As text, which leaves out nullability.
        wanted, given = (
            StructType([StructField(field.name, kind)]).simpleString() for kind in (field.dataType, known[field.name])
        )
        if wanted != given:
            raise ConfigError(
                f"the schema asks for column {field.name!r} as {wanted}, which is {given}; give that type, and cast "
                "the column afterwards"
            )
    names = asked.fieldNames()
    if len(set(names)) != len(names):
        raise ConfigError(f"the schema names a column twice: {', '.join(names)}")


class OutputSchema:
    """Converts batches to the Arrow schema that Spark expects for a DataFrame."""

    def __init__(self, schema: StructType) -> None:
        self.asked = schema
        """The schema of the DataFrame."""
        self.columns = tuple(schema.fieldNames())
        self._schema = utc_arrow_schema(schema)

    def convert(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches in Spark's schema, small ones joined."""
        for batch in join_batches(batches):
            yield batch if batch.schema.equals(self._schema) else _cast(batch, self._schema)


def join_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order, with small batches joined to batches of at least ``SMALL_BYTES``."""
    waiting: list[pa.RecordBatch] = []
    waiting_bytes = 0
    for batch in batches:
        size_bytes = batch.nbytes
        if waiting and size_bytes >= SMALL_BYTES:
            yield _joined(waiting)
            waiting, waiting_bytes = [], 0
        waiting.append(batch)
        waiting_bytes += size_bytes
        if waiting_bytes >= SMALL_BYTES:
            yield _joined(waiting)
            waiting, waiting_bytes = [], 0
    if waiting:
        yield _joined(waiting)


# Arrow has functions for both since releases 16 and 19; platforms preinstall older ones.


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    first = batches[0]
    if len(batches) == 1:
        return first
    columns = [pa.concat_arrays([batch.column(at) for batch in batches]) for at in range(first.num_columns)]
    return pa.RecordBatch.from_arrays(columns, schema=first.schema)


def schemas_of(topics: Iterable[SourceTopic]) -> Schemas:
    """Every version of the topics' schemas, which all partitions of a topic share.

    Raises:
        AfterglowError: The source cannot be read.
    """
    named = {topic_of_schema(topic.name): topic for topic in topics}
    return {name: topic.schemas() for name, topic in named.items()}


def schemas_for(options: SourceOptions, topics: Iterable[SourceTopic], output: OutputSchema) -> Schemas | None:
    """The schemas by which the values of a DataFrame are decoded; None without the option ``decode``.

    Call it when the end of the read is known: a schema is stored before the first message that names it.

    Raises:
        TopicChanged: The schemas give other columns than the DataFrame has.
    """
    if not options.decode:
        return None
    schemas = schemas_of(topics)
    try:
        require_columns(output.asked, TypedColumns(schemas, None).schema)
    except ConfigError as error:
        raise TopicChanged(
            f"{error}; if no schema was given, those of the topic have changed: load the DataFrame again, or restart "
            "the query, which continues at its offset"
        ) from error
    return schemas
