"""Moments as people and programs write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from afterglow.config.quantities import duration
from afterglow.errors import ConfigError

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_RFC_3339: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_AGE: Final = duration(1)


def parse_time(given: str | int | datetime, now_ms: int) -> int:
    """A moment in epoch milliseconds; fractions of one are dropped.

    Args:
        given: RFC 3339, epoch milliseconds, an age such as ``15m``, or a datetime with a time zone.
        now_ms: What ages count from.

    Raises:
        ConfigError: It is none of these.
    """
    if isinstance(given, int):
        return given
    try:
        if isinstance(given, datetime):
            return (given - _EPOCH) // _MILLISECOND
        text = given.strip()
        if text.isascii() and text.isdigit():
            return int(text)
        if _RFC_3339.fullmatch(text):
            return (datetime.fromisoformat(text.upper()) - _EPOCH) // _MILLISECOND
        age_ms = _AGE.parse(text)
        if age_ms >= 0:
            return now_ms - age_ms
    except (TypeError, ValueError):  # a datetime without a zone cannot be compared
        pass
    raise ConfigError(
        f"{str(given)!r} is no time; write RFC 3339 with a zone (2026-11-15T20:00:00Z), epoch milliseconds, or an age "
        "(15m, 4h, 2d)"
    )
