"""Events of a process's life as log records: a short text, and fields for programs.

Packages report through the ``logging`` of the standard library, each module with its own logger, so that levels can be
set per package. ``cli.logs`` formats the records of ``serve`` and ``attach`` as text or JSON. Without it they are text:

    segment committed topic=persistent://public/default/orders uuid=… entries=1000
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Event:
    """The message of a log record with fields."""

    text: str
    """Constant text, by which records are found, such as "segment committed"."""
    fields: Mapping[str, Any]
    """Values that JSON can express, or that are logged as their text."""

    def __str__(self) -> str:
        return " ".join([self.text, *(f"{name}={_shown(value)}" for name, value in self.fields.items())])


def log_event(logger: logging.Logger, text: str, /, **fields: object) -> None:
    """Log an event at INFO. For state changes only, never for each message or entry.

    Args:
        logger: The logger of the calling module.
        text: Constant text that names the event.
        **fields: What the event is about. Fields that are None are left out.
    """
    _log(logging.INFO, logger, text, fields)


def log_warning(logger: logging.Logger, text: str, /, **fields: object) -> None:
    """Log an event at WARNING; see :func:`log_event`."""
    _log(logging.WARNING, logger, text, fields)


def _log(level: int, logger: logging.Logger, text: str, fields: Mapping[str, object]) -> None:
    if logger.isEnabledFor(level):
        given = {name: value for name, value in fields.items() if value is not None}
        logger.log(level, Event(text, given), extra={"fields": given}, stacklevel=3)


def _shown(value: object) -> str:
    if isinstance(value, str | int | float | dict | list | tuple):
        text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    else:
        text = str(value)
    is_plain = text and not any(character.isspace() or character in "\"'=" for character in text)
    return text if is_plain or not isinstance(value, str) else json.dumps(text, ensure_ascii=False)
