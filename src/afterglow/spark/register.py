"""Registration of the data source in a session that another program made."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from afterglow.spark.jvm import spark_missing
from afterglow.spark.master import is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register_source(spark: SparkSession) -> None:
    """Register the data source; see :func:`afterglow.spark.register`.

    Raises:
        MissingDependency: PySpark is not installed.
    """
    if find_spec("pyspark") is None:
        raise spark_missing()
    from pyspark.sql import SparkSession as ClassicSession  # noqa: PLC0415 - PySpark is optional

    from afterglow.spark.datasource.source import TopicsSource  # noqa: PLC0415 - as above

    if isinstance(spark, ClassicSession):
        context = spark.sparkContext
        if is_local(str(context.master)) and "PYSPARK_PYTHON" not in os.environ:
            context.pythonExec = sys.executable
    spark.dataSource.register(TopicsSource)
