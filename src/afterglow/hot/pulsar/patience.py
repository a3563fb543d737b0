"""How long to wait, and how often to try."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Final

from afterglow.errors import HotLogTimeout

if TYPE_CHECKING:
    from afterglow.errors import HotLogError

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0


class Patience:
    """A deadline that progress renews, and pauses that grow until then.

    Args:
        what: What is waited for, for messages.
        deadline_s: Longest time without progress.
        timeout_s: Longest wait for one answer.
    """

    def __init__(self, what: str, deadline_s: float, timeout_s: float) -> None:
        self._what = what
        self._deadline_s = deadline_s
        self.timeout_s = timeout_s
        self.renew()

    def renew(self) -> None:
        """There was progress."""
        self._end = time.monotonic() + self._deadline_s
        self._failures = 0

    @property
    def wait_s(self) -> float:
        """How long to wait for the next answer; above zero.

        Raises:
            HotLogTimeout: The deadline has passed.
        """
        left = self._end - time.monotonic()
        if left <= 0:
            raise HotLogTimeout(f"{self._what}: no progress within deadline_s={self._deadline_s:g}")
        return min(left, self.timeout_s)

    def pause(self, error: HotLogError) -> None:
        """Let some time pass after a failure: none after the first, then twice as much each time, with full jitter.

        Raises:
            HotLogTimeout: The deadline has passed, or would during the pause.
        """
        longest = min(_FIRST_PAUSE_S * 2 ** (self._failures - 1), _LONGEST_PAUSE_S) if self._failures else 0.0
        self._failures += 1
        pause = random.uniform(0, longest)  # noqa: S311 - spreads load, guards nothing
        if time.monotonic() + pause >= self._end:
            raise HotLogTimeout(
                f"{self._what}: no progress within deadline_s={self._deadline_s:g}; the last of {self._failures} "
                f"failures: {error}"
            ) from error
        time.sleep(pause)
