"""How Spark carries the bulk data."""

from __future__ import annotations

from afterglow.config.kinds import integer, text
from afterglow.config.quantities import MIB, size
from afterglow.config.setting import section, setting


@section
class Pipeline:
    """Spark."""

    spark_master: str = setting(
        text(), default="local[*]", doc="Spark master that runs offloads, exports and deep checks."
    )
    spark_max_concurrent_jobs: int = setting(
        integer(1), default=4, doc="Offload jobs that may run at a time, so that a slow topic never holds up another."
    )
    spark_task_buffer_max_bytes: int = setting(
        size(minimum=5 * MIB),
        default=64 * MIB,
        doc="Memory in bytes that one offload task may hold for entries and parts.",
    )
