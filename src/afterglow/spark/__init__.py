"""Spark: sessions, offload and verify jobs, the data source, export.

Entry points: :mod:`~afterglow.spark.session`, :mod:`~afterglow.spark.offload_jobs`, :mod:`~afterglow.spark.datasource`,
:mod:`~afterglow.spark.export`.
"""
