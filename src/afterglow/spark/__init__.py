"""Spark: sessions, offload and verify jobs, the data source, export.

Entry points: :func:`register`, :mod:`~afterglow.spark.session`, :mod:`~afterglow.spark.offload_jobs`,
:mod:`~afterglow.spark.datasource`, :mod:`~afterglow.spark.export`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Register the data source ``afterglow`` in a session, for programs whose environment is not activated.

    Spark finds the data source by itself if the ``python3`` on the path has this package. After this call, a classic
    session with a local master runs its Python workers with this interpreter, unless ``PYSPARK_PYTHON`` is set. On a
    cluster, and over Spark Connect, the package must be installed where workers run.

    Raises:
        MissingDependency: PySpark is not installed.
    """
    from afterglow.spark.register import register_source  # noqa: PLC0415 - PySpark is slow to import

    register_source(spark)
