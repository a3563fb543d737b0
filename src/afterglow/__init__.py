"""Afterglow: streaming tiered storage for Apache Pulsar topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from afterglow.source.connect import connect
    from afterglow.spark.session import prepare_spark

__all__ = ["__version__", "connect", "prepare_spark"]

__version__ = "0.1.0"

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Bring what needs more than the standard library when it is first asked for: importing this stays cheap."""
        if name == "connect":
            from afterglow.source.connect import connect  # noqa: PLC0415

            return connect
        if name == "prepare_spark":
            from afterglow.spark.session import prepare_spark  # noqa: PLC0415

            return prepare_spark
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
