"""The Spark data source: ``spark.read.format("afterglow")`` and ``spark.readStream``.

Spark's planner makes a :class:`~afterglow.spark.datasource.source.TopicsSource` and asks it for a reader: ``batch`` and
``stream`` plan in the driver, ``tasks`` reads in the workers.
"""
