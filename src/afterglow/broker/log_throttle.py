"""Lines that clients can cause at will, logged at a bounded rate: a client that is refused connects again at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

_INTERVAL_S: Final = 60.0
_MOST_KEYS: Final = 1024
"""Keys that are remembered; beyond them the oldest is dropped, and may be logged again early."""


class LogThrottle:
    """Admits one line per key and minute. Belongs to the event loop's thread.

    Args:
        now_s: The clock, in seconds.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._logged: dict[Hashable, tuple[float, int]] = {}
        """When each key was last logged, and how many lines were dropped since."""

    def admit(self, key: Hashable) -> str | None:
        """Return what to put behind the line of a key, which counts those dropped; None: drop this one too."""
        now_s = self._now_s()
        last_s, since = self._logged.get(key, (float("-inf"), 0))
        if now_s - last_s < _INTERVAL_S:
            self._logged[key] = last_s, since + 1
            return None
        self._logged.pop(key, None)
        if len(self._logged) >= _MOST_KEYS:
            del self._logged[next(iter(self._logged))]
        self._logged[key] = now_s, 0
        return f" ({since} more since it was last logged)" if since else ""
