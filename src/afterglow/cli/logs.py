"""Logging of the commands that run until they are stopped: levels and format by the settings, records on stderr."""

from __future__ import annotations

import json
import logging
from contextlib import contextmanager
from datetime import UTC, datetime
from logging.handlers import MemoryHandler
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from afterglow.cli.output import PrintableFormatter
from afterglow.events import Event, log_event
from afterglow.spark.log_filter import is_not_py4j_chatter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afterglow.config import BrokerConfig

_log = logging.getLogger(__name__)

LogLevelOption = Annotated[
    str | None, typer.Option(metavar="LEVEL", help="debug, info, warning or error: setting logLevel.")
]
LogFormatOption = Annotated[str | None, typer.Option(metavar="FORMAT", help="text or json: setting logFormat.")]

_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_HELD: Final = 1_000
_NEVER: Final = logging.CRITICAL + 1


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object: time, level, logger, message, and the fields of an event beside them.

    ``error`` has the traceback of a record, if it has one.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        event = record.msg if isinstance(record.msg, Event) else None
        row: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage() if event is None else event.text,
        }
        row = {**row, **(event.fields if event else {}), **row}  # no field replaces these, and they come first
        if record.exc_info:
            row["error"] = self.formatException(record.exc_info)
        return json.dumps(row, ensure_ascii=False, default=str)


class LogSetup:
    """Records of the start, which wait until the settings that decide about their form are known."""

    def __init__(self) -> None:
        self._held = MemoryHandler(_HELD, flushLevel=_NEVER, flushOnClose=False)

    def begin(self, config: BrokerConfig) -> None:
        """Log to stderr as the settings say, first the records that wait."""
        handler = logging.StreamHandler()
        handler.setFormatter(JsonFormatter() if config.log_format == "json" else PrintableFormatter(_TEXT))
        handler.addFilter(is_not_py4j_chatter)
        root = logging.getLogger()
        root.addHandler(handler)
        root.setLevel(config.log_level.upper())
        for name, level in config.log_levels:
            logging.getLogger(name).setLevel(level.upper())
        root.removeHandler(self._held)
        for record in self._held.buffer:
            if logging.getLogger(record.name).isEnabledFor(record.levelno):
                handler.handle(record)
        self._held.close()


def log_settings(config: BrokerConfig) -> None:
    """Log the settings whose values differ from their defaults, with secrets masked."""
    changed = {row.key: row.show(value) for row, value, _ in config.rows() if value != row.default}
    log_event(_log, "settings that differ from their defaults", **changed)


@contextmanager
def log_setup() -> Iterator[LogSetup]:
    """Hold records back until :meth:`LogSetup.begin`, which the block calls once it has the settings."""
    setup = LogSetup()
    root = logging.getLogger()
    root.addHandler(setup._held)  # noqa: SLF001 - its own
    try:
        yield setup
    finally:
        root.removeHandler(setup._held)  # noqa: SLF001
