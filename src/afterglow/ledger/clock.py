"""Time, exchangeable so that a simulation can give its own."""

from __future__ import annotations

import time
from typing import Protocol

from afterglow.metadata.clock import wall_clock_ms


class Clock(Protocol):
    """The time of day, and time that only passes."""

    def now_ms(self) -> int:
        """The time of day in epoch milliseconds; may jump either way."""
        ...

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back. For waiting and for rates."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        """The time of day in epoch milliseconds."""
        return wall_clock_ms()

    def monotonic(self) -> float:
        """Seconds since some moment."""
        return time.monotonic()
