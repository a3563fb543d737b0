"""Registration of ``format("afterglow")``: Spark imports ``DefaultSource`` from every package named ``pyspark_…``."""

from __future__ import annotations

from afterglow.spark.datasource.source import TopicsSource as DefaultSource

__all__ = ["DefaultSource"]
