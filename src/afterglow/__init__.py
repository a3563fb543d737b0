"""Afterglow: streaming tiered storage for Apache Pulsar topics.

Read topics of a server, a Pulsar cluster, or a bucket of offloaded objects::

    import afterglow

    with afterglow.connect("./home") as source:
        orders = source.topic("orders")
        print(orders.count(since="4h"), "messages in the last four hours")
        print(orders.to_pandas(columns=["publish_time", "value"], limit=10))

In Spark, topics are ``spark.read.format("afterglow")``; call :func:`prepare_spark` before the first session is made, or
``afterglow.spark.register(spark)`` with a session that was made otherwise.

All errors are subclasses of :class:`AfterglowError`; ``afterglow.errors`` has the complete tree.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from afterglow import errors
from afterglow.errors import (
    AccessDenied,
    AfterglowError,
    ConfigError,
    CorruptEntry,
    EntriesMissing,
    FormatError,
    HotLogError,
    InvalidName,
    MetadataError,
    MissingDependency,
    NotSupported,
    StorageError,
    TopicMissing,
)

if TYPE_CHECKING:
    from afterglow import spark
    from afterglow.format.position import Position
    from afterglow.format.schema import SchemaVersion
    from afterglow.source.connect import Source, connect
    from afterglow.source.directory import SourceLedger, SourceSegment
    from afterglow.source.tables import BatchReader, ScanOptions
    from afterglow.source.topic import SourceTopic
    from afterglow.spark.session import prepare_spark

__all__ = [
    "AccessDenied",
    "AfterglowError",
    "BatchReader",
    "ConfigError",
    "CorruptEntry",
    "EntriesMissing",
    "FormatError",
    "HotLogError",
    "InvalidName",
    "MetadataError",
    "MissingDependency",
    "NotSupported",
    "Position",
    "ScanOptions",
    "SchemaVersion",
    "Source",
    "SourceLedger",
    "SourceSegment",
    "SourceTopic",
    "StorageError",
    "TopicMissing",
    "__version__",
    "connect",
    "errors",
    "prepare_spark",
    "spark",
]

__version__ = "0.1.0"

_MODULES: Final = {
    "BatchReader": "afterglow.source.tables",
    "Position": "afterglow.format.position",
    "ScanOptions": "afterglow.source.tables",
    "SchemaVersion": "afterglow.format.schema",
    "Source": "afterglow.source.connect",
    "SourceLedger": "afterglow.source.directory",
    "SourceSegment": "afterglow.source.directory",
    "SourceTopic": "afterglow.source.topic",
    "connect": "afterglow.source.connect",
    "prepare_spark": "afterglow.spark.session",
}
"""Modules of names that need more than the standard library, imported when they are first asked for."""


def __dir__() -> list[str]:
    """All public names, also those that are not imported yet."""
    return sorted({*globals(), *__all__})


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a name when it is first asked for, so that importing the package stays cheap."""
        if name == "spark":
            return import_module("afterglow.spark")
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return found
