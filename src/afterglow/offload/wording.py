"""Times and counts in sentences for people."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def at(ms: int) -> str:
    """A moment, from epoch milliseconds."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def span(ms: int) -> str:
    """A length of time; one that is over is none."""
    return f"{max(ms, 0) / 1000:.0f} s"


def times(count: int) -> str:
    """How often."""
    return "once" if count == 1 else f"{count} times"


def joined(words: Sequence[object]) -> str:
    """A list of things."""
    *first, last = map(str, words)
    return f"{', '.join(first)} and {last}" if first else last
