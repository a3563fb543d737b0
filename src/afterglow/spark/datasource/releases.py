"""Differences between the releases of Spark, 4.0 and later, with a table of what each supports.

No other module depends on the release. Capabilities are detected in the installed PySpark rather than derived from its
version, because managed platforms add features of later releases to theirs.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from inspect import signature
from typing import TYPE_CHECKING, Any, Final

import pyspark
from pyspark.sql import datasource
from pyspark.sql.pandas.types import to_arrow_schema

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    from pyspark.sql.types import StructType
elif find_spec("pyspark.sql.streaming.datasource") is not None:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
else:

    class SupportsTriggerAvailableNow:
        """Has no meaning for a release without it."""


__all__ = [
    "ADMISSION_CONTROL",
    "AVAILABLE_NOW",
    "CAPABILITIES",
    "FILTER_PUSHDOWN",
    "OLDEST",
    "Capability",
    "SupportsTriggerAvailableNow",
    "is_available",
    "log_missing_pushdown",
    "log_missing_stream_features",
    "release",
    "utc_arrow_schema",
]

OLDEST: Final = "4.0"
"""The oldest release with streams of Python data sources that is supported."""

_log = logging.getLogger(__name__)


def _has_stream_limits() -> bool:
    return find_spec("pyspark.sql.streaming.datasource") is not None


def _has_filters() -> bool:
    return hasattr(datasource, "EqualNullSafe")


@dataclass(frozen=True, slots=True)
class Capability:
    """Something that users do with Spark."""

    name: str
    """Used by tests that need it."""
    title: str
    """In the table of releases."""
    since: str
    """The first release of Apache Spark that supports it."""
    is_present: Callable[[], bool] = lambda: True
    """Whether the installed release supports it."""
    without: str = "no"
    """In the table of releases, for those that do not."""


FILTER_PUSHDOWN: Final = Capability(
    "filter-pushdown",
    "filter push-down (`pushdown`)",
    "4.1",
    _has_filters,
    "no; filters are applied to the rows, with the same result",
)
ADMISSION_CONTROL: Final = Capability(
    "admission-control",
    "`maxBytesPerTrigger`, `maxEntriesPerTrigger`",
    "4.2",
    _has_stream_limits,
    "from the second micro-batch of a run on",
)
AVAILABLE_NOW: Final = Capability(
    "available-now",
    "`Trigger.AvailableNow` in several micro-batches",
    "4.2",
    _has_stream_limits,
    "as one micro-batch; after a crash, the first run only finishes the interrupted one",
)

CAPABILITIES: Final = (
    Capability("batch", "batch reads, typed values", OLDEST),
    FILTER_PUSHDOWN,
    Capability("stream", "streams from a checkpoint", OLDEST),
    ADMISSION_CONTROL,
    AVAILABLE_NOW,
    Capability("export", "`afterglow export`", OLDEST),
    Capability("offload", "offload by Spark (`--master`)", OLDEST),
    Capability("verify", "`afterglow verify --deep`", OLDEST),
    Capability("connect-batch", "batch reads over Spark Connect", OLDEST),
    Capability("connect-stream", "streams over Spark Connect", OLDEST),
)
"""Rows of the table of releases. Tests name them by the mark ``spark``."""

_BY_NAME: Final = {capability.name: capability for capability in CAPABILITIES}


def release() -> str:
    """The version of the installed PySpark."""
    version: str = pyspark.__version__
    return version


def is_available(capability: Capability | str) -> bool:
    """Whether the installed release supports a capability, given itself or by name."""
    return (_BY_NAME[capability] if isinstance(capability, str) else capability).is_present()


def log_missing_stream_features() -> None:
    """Log once, when a stream starts, which features of streams the release lacks."""
    if not is_available(ADMISSION_CONTROL):
        _log.warning(
            "Spark %s cannot limit the micro-batches of a Python data source, as Spark %s can: the first one of a run "
            "has everything that was not read yet, and maxBytesPerTrigger and maxEntriesPerTrigger limit those after "
            "it; with Trigger.AvailableNow there is only one",
            release(),
            ADMISSION_CONTROL.since,
        )


def log_missing_pushdown() -> None:
    """Log that the option ``pushdown`` has no effect."""
    _log.warning(
        "Spark %s does not push filters down to a Python data source, as Spark %s does: pushdown=true has no effect, "
        "and the query reads more than it needs; start, end, since and until prune on every release",
        release(),
        FILTER_PUSHDOWN.since,
    )


@cache
def _has_time_zone() -> bool:
    return "timezone" in signature(to_arrow_schema).parameters


def utc_arrow_schema(schema: StructType) -> pa.Schema:
    """Spark's Arrow schema for columns, with times in UTC."""
    convert: Any = to_arrow_schema
    return convert(schema, timezone="UTC") if _has_time_zone() else convert(schema)  # before 4.2, UTC is the default
