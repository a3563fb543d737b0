"""From counts to rates: the average since one to two periods ago."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Rates:
    """Rates of counts that are looked at now and then. One look at a time.

    A key that was not there one period ago has counted from 0 since; a count that is lower than it was has begun anew.

    Args:
        period_s: Looks that are closer together than this are measured against the same one before them.
        monotonic: Seconds from any origin.
    """

    def __init__(self, period_s: float, monotonic: Callable[[], float]) -> None:
        self._period_s = period_s
        self._monotonic = monotonic
        self._older: tuple[float, Mapping[object, int]] = (monotonic(), {})
        self._newer: tuple[float, Mapping[object, int]] = self._older

    def look(self, counts: Mapping[object, int]) -> dict[object, float]:
        """The rates per second, given all counts as of now; they are kept and not to be changed."""
        now_s = self._monotonic()
        if now_s - self._newer[0] >= self._period_s:
            self._older, self._newer = self._newer, (now_s, counts)
        since_s, before = self._older
        passed_s = now_s - since_s
        return {key: _grown(count, before.get(key, 0)) / passed_s if passed_s else 0.0 for key, count in counts.items()}


def _grown(count: int, before: int) -> int:
    return count - before if count >= before else count
