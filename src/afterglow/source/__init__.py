"""Sources of topics, read without Spark and without a broker: the Python API.

Entry points: :func:`~afterglow.source.connect.connect`, and what it returns.
"""
