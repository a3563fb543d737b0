"""The data source ``afterglow``. Spark finds it by the name of the module ``pyspark_afterglow``, which exports it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from afterglow.metadata.store import wall_clock_ms
from afterglow.read.typed import TypedColumns
from afterglow.spark.datasource.batch import BatchReader
from afterglow.spark.datasource.options import SourceOptions
from afterglow.spark.datasource.releases import FILTER_PUSHDOWN, is_available, log_missing_pushdown
from afterglow.spark.datasource.schema import OutputSchema, require_columns, schemas_of, spark_schema
from afterglow.spark.datasource.stream import StreamReader
from afterglow.spark.datasource.tasks import PlainErrors

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class TopicsSource(DataSource):
    """Topics as a data source of Spark. Every method raises ``ConfigError`` if an option is not valid."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format(…)``."""
        return "afterglow"

    def schema(self) -> StructType:
        """All columns, or those that the option ``columns`` names."""
        with PlainErrors():
            options = self._options()
            return spark_schema(self._typed(options) if options.decode else options.schema)

    def reader(self, schema: StructType) -> BatchReader:
        """A reader for ``spark.read``."""
        with PlainErrors():
            options = self._options()
            output = self._output_schema(options, schema)
            if not options.pushdown:
                return BatchReader(options, output)
            if not is_available(FILTER_PUSHDOWN):
                log_missing_pushdown()
                return BatchReader(options, output)
            from afterglow.spark.datasource.pruning import PruningReader  # noqa: PLC0415 - missing in some releases

            return PruningReader(options, output)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - PySpark's name
        """A reader for ``spark.readStream``."""
        with PlainErrors():
            options = self._options()
            return StreamReader(options, self._output_schema(options, schema))

    def _options(self) -> SourceOptions:
        return SourceOptions.parse(self.options, wall_clock_ms())

    @staticmethod
    def _typed(options: SourceOptions) -> pa.Schema:
        from afterglow.spark.datasource.selected_topics import open_topics  # noqa: PLC0415 - not needed by tasks

        with open_topics(options) as topics:
            found: pa.Schema = TypedColumns(schemas_of(topics), options.columns).schema
        return found

    @staticmethod
    def _output_schema(options: SourceOptions, schema: StructType) -> OutputSchema:
        if not options.decode:  # with decode, the columns depend on the topics' schemas, which planning reads
            require_columns(schema, options.schema)
        return OutputSchema(schema)
