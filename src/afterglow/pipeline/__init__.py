"""The offload pipeline of a process: tiering, upkeep, metrics, and verification of the tiers.

Entry points: :class:`~afterglow.pipeline.tiering.Tiering`, :class:`~afterglow.pipeline.verify_runs.VerifyRuns`,
:class:`~afterglow.pipeline.metrics.collector.MetricsCollector`. Users of a running server get a
:class:`~afterglow.pipeline.server_handle.ServerHandle`.
"""
