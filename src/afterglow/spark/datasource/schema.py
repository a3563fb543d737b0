"""Columns as Spark and Arrow see them, with the typed columns of a topic's schemas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructField, StructType

from afterglow.errors import ConfigError, TopicChanged
from afterglow.read.typed import TypedColumns
from afterglow.spark.datasource.tasks import topic_of_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from afterglow.source.connect import SourceTopic
    from afterglow.spark.datasource.options import SourceOptions
    from afterglow.spark.datasource.tasks import Schemas

SMALL_BYTES: Final = 1 << 20
"""Smaller batches are joined: each costs Spark about as much as some hundreds of kilobytes do."""


def spark_schema(schema: pa.Schema) -> StructType:
    """Columns as Spark sees them. Times of day are nanoseconds: its own type for them is off unless switched on."""
    known = pa.schema([pa.field(field.name, _without_clocks(field.type)) for field in schema])
    return from_arrow_schema(known, prefer_timestamp_ntz=True)


def _without_clocks(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_time(kind):
        return pa.int64()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _without_clocks(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _without_clocks(kind.item_type))
    return pa.list_(_without_clocks(kind.value_type)) if pa.types.is_list(kind) else kind


def check_asked(asked: StructType, offered: pa.Schema) -> None:
    """Check a schema that a user gave by ``.schema(…)``: it chooses columns, and cannot make others of them.

    Raises:
        ConfigError: It names a column that is not there, or one with another type.
    """
    there = {field.name: field.dataType for field in spark_schema(offered)}
    for field in asked:
        if field.name not in there:
            raise ConfigError(f"the schema asks for an unknown column {field.name!r}; there are {', '.join(there)}")
        wanted, given = (_anyhow(kind).simpleString() for kind in (field, StructField(field.name, there[field.name])))
        if wanted != given:
            raise ConfigError(
                f"the schema asks for column {field.name!r} as {wanted}, which is {given}; give that type, and cast "
                "what was read"
            )
    names = asked.fieldNames()
    if len(set(names)) != len(names):
        raise ConfigError(f"the schema names a column twice: {', '.join(names)}")


def _anyhow(field: StructField) -> StructType:
    """A column whatever it says of nulls: a text of it has nothing about them."""
    return StructType([StructField(field.name, field.dataType)])


class Shape:
    """Gives batches the very schema that Spark compares them with.

    Args:
        schema: Of the DataFrame.
    """

    def __init__(self, schema: StructType) -> None:
        self.asked = schema
        """As Spark has it."""
        self.columns = tuple(schema.fieldNames())
        """In the order wanted."""
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def of(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches in Spark's schema, small ones joined."""
        for batch in joined(batches):
            yield batch if batch.schema.equals(self._schema) else batch.cast(self._schema)


def joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order, in batches of at least ``SMALL_BYTES`` but for some, and few."""
    waiting: list[pa.RecordBatch] = []
    waiting_bytes = 0
    for batch in batches:
        size_bytes = batch.nbytes
        if waiting and size_bytes >= SMALL_BYTES:
            yield pa.concat_batches(waiting)
            waiting, waiting_bytes = [], 0
        waiting.append(batch)
        waiting_bytes += size_bytes
        if waiting_bytes >= SMALL_BYTES:
            yield waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)
            waiting, waiting_bytes = [], 0
    if waiting:
        yield pa.concat_batches(waiting)


def schemas_of(topics: Iterable[SourceTopic]) -> Schemas:
    """Every version of the topics' schemas, partitions together.

    Raises:
        AfterglowError: The source cannot tell them.
    """
    named = {topic_of_schema(topic.name): topic for topic in topics}
    return {name: topic.schemas() for name, topic in named.items()}


def typed_schema(schemas: Schemas, columns: tuple[str, ...] | None) -> pa.Schema:
    """The columns that values are decoded into.

    Raises:
        ConfigError: A column is unknown or named twice.
    """
    found: pa.Schema = TypedColumns(schemas, columns).schema
    return found


def schemas_for(options: SourceOptions, topics: Iterable[SourceTopic], shape: Shape) -> Schemas | None:
    """What the values of a DataFrame are decoded by; None where they are not.

    Asked for after the end of what is read is known: a schema is stored before the first message that names it.

    Raises:
        TopicChanged: The columns that the DataFrame has are not those that come of it.
    """
    if not options.decode:
        return None
    schemas = schemas_of(topics)
    try:
        check_asked(shape.asked, typed_schema(schemas, None))
    except ConfigError as error:
        raise TopicChanged(
            f"{error}; where no schema was given, those of the topic have changed since: load it again, or start the "
            "query again, which goes on where it was"
        ) from error
    return schemas
