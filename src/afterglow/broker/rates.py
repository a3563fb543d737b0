"""Rates of what passes, from counts that are kept anyway: nothing is done when a message passes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.broker.traffic import Traffic


@dataclass(frozen=True, slots=True)
class Rate:
    """What passed in a second, on average over the last one to two periods."""

    messages: float = 0.0
    size_bytes: float = 0.0
    message_bytes: float = 0.0
    """Of one message, on average; 0 where none has passed."""


@dataclass(frozen=True, slots=True)
class _Sample:
    at_s: float
    messages: int
    size_bytes: int


class Meter:
    """The rate of one count, which begins at 0 now.

    Args:
        monotonic: Seconds from any origin.
    """

    __slots__ = ("_monotonic", "_newer", "_older")

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._older = self._newer = _Sample(monotonic(), 0, 0)

    def sample(self, count: Traffic) -> None:
        """Remember the count as of now; to be called once in a period."""
        self._older, self._newer = self._newer, _Sample(self._monotonic(), count.messages, count.size_bytes)

    def rate(self, count: Traffic) -> Rate:
        """The rate up to now, given the count as of now."""
        since = self._older
        messages, size_bytes = count.messages - since.messages, count.size_bytes - since.size_bytes
        passed_s = self._monotonic() - since.at_s
        if passed_s <= 0:
            return Rate()
        return Rate(messages / passed_s, size_bytes / passed_s, size_bytes / messages if messages else 0.0)
