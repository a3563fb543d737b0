"""The demo: a server, a stock Pulsar client and Spark run the main use case, and every message is compared.

Entry point: :func:`afterglow.demo.run.run_demo`; :mod:`afterglow.demo.screen` draws the topic while it runs.
"""
