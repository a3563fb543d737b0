"""The time that stamps nodes, exchangeable so that a simulation can give its own."""

from __future__ import annotations

import time
from collections.abc import Callable

NowMs = Callable[[], int]
"""A clock: epoch milliseconds."""


def wall_clock_ms() -> int:
    """Return the time of day in epoch milliseconds."""
    return time.time_ns() // 1_000_000
