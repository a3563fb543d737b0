"""The data source that Spark finds by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from afterglow.metadata.store import wall_clock_ms
from afterglow.spark.datasource.batch import BatchReader, PruningReader
from afterglow.spark.datasource.options import SourceOptions
from afterglow.spark.datasource.schema import Shape, check_asked, schemas_of, spark_schema, typed_schema
from afterglow.spark.datasource.stream import StreamReader
from afterglow.spark.datasource.tasks import PlainErrors

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class TopicsSource(DataSource):
    """Topics as a data source of Spark. Every method raises ``ConfigError`` where an option is wrong."""

    @classmethod
    def name(cls) -> str:
        """What ``format(…)`` calls it."""
        return "afterglow"

    def schema(self) -> StructType:
        """All columns, or those that the option ``columns`` names."""
        with PlainErrors():
            options = self._options()
            return spark_schema(self._typed(options) if options.decode else options.schema)

    def reader(self, schema: StructType) -> BatchReader:
        """Reads once what is there."""
        with PlainErrors():
            options = self._options()
            shape = self._shape(options, schema)
            return PruningReader(options, shape) if options.pushdown else BatchReader(options, shape)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - PySpark's name
        """Reads on and on what comes."""
        with PlainErrors():
            options = self._options()
            return StreamReader(options, self._shape(options, schema))

    def _options(self) -> SourceOptions:
        return SourceOptions.parse(self.options, wall_clock_ms())

    @staticmethod
    def _typed(options: SourceOptions) -> pa.Schema:
        from afterglow.spark.datasource.selected_topics import opened  # noqa: PLC0415 - not for tasks

        with opened(options) as topics:
            return typed_schema(schemas_of(topics), options.columns)
        raise AssertionError("unreachable: the block returns or raises")

    @staticmethod
    def _shape(options: SourceOptions, schema: StructType) -> Shape:
        if not options.decode:  # else the schemas of the topics tell, which are asked for when it is planned
            check_asked(schema, options.schema)
        return Shape(schema)
