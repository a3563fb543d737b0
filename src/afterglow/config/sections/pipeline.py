"""How Spark carries the bulk data."""

from __future__ import annotations

from afterglow.config.kinds import flag, integer, pairs, text
from afterglow.config.quantities import MIB, size
from afterglow.config.setting import section, setting


@section
class Pipeline:
    """Spark."""

    spark_master: str = setting(
        text(), default="local[*]", doc="Spark master that runs offloads, exports and deep checks."
    )
    spark_properties: tuple[tuple[str, str], ...] = setting(
        pairs(),
        default=(),
        doc="Further properties of Spark, which win over ours. In the file one key each, under Spark's own name, such "
        "as `spark.driver.host` or `spark.pyspark.python`.",
        prefix="spark.",
        secret=True,
    )
    spark_max_concurrent_jobs: int = setting(
        integer(1), default=4, doc="Offload jobs that may run at a time, so that a slow topic never holds up another."
    )
    spark_task_buffer_max_bytes: int = setting(
        size(minimum=5 * MIB),
        default=64 * MIB,
        doc="Memory in bytes that one offload task may hold for entries and parts.",
    )
    offload_tasks_read_files: bool = setting(
        flag(),
        default=True,
        doc="Whether offload tasks read the ledgers' files where they find them. False: they read over the Pulsar "
        "protocol even there.",
    )
