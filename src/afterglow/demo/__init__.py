"""The demo: a server, a stock Pulsar client and Spark do the main job, and every message is checked.

Entry point: :func:`afterglow.demo.run.run_demo`; :mod:`afterglow.demo.screen` draws the topic while it runs.
"""
