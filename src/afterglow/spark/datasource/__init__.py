"""The Spark data source: ``spark.read.format("afterglow")`` and ``spark.readStream``.

Entry point: :class:`~afterglow.spark.datasource.source.TopicsSource`, from which Spark's planner gets a reader.
``batch`` and ``stream`` plan in the driver, ``tasks`` reads in the workers.
"""
