"""Throttled log lines about clients: one line per key and minute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

_INTERVAL_S: Final = 60.0
_MAX_KEYS: Final = 1000
"""Keys that have lines of their own within a minute; further keys share one line."""


class LogThrottle:
    """Admits one line per key and minute, in bounded memory. Not thread-safe.

    Args:
        now_s: The clock, in seconds.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._logged: dict[Hashable, tuple[float, int]] = {}
        """Time of the last line of each key, oldest first, and the number of lines dropped since."""

    def admit(self, key: Hashable) -> str | None:
        """Return a suffix for the line, with the number of dropped lines, or None if this line is to be dropped too."""
        now_s = self._now_s()
        if key not in self._logged and len(self._logged) >= _MAX_KEYS:
            oldest = next(iter(self._logged))
            if now_s - self._logged[oldest][0] < _INTERVAL_S:
                key = None
            else:
                del self._logged[oldest]
        last_s, dropped = self._logged.get(key, (float("-inf"), 0))
        if now_s - last_s < _INTERVAL_S:
            self._logged[key] = last_s, dropped + 1
            return None
        self._logged.pop(key, None)  # so that the key moves to the end
        self._logged[key] = now_s, 0
        return f" ({dropped} more since it was last logged)" if dropped else ""
