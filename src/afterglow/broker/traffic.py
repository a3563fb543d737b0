"""What has passed, kept when those who sent or received it are gone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(slots=True)
class Traffic:
    """Messages and their bytes that went one way since the topic was opened."""

    messages: int = 0
    size_bytes: int = 0

    def add(self, messages: int, size_bytes: int) -> None:
        """Count more."""
        self.messages += messages
        self.size_bytes += size_bytes


def total(parts: Iterable[Traffic]) -> Traffic:
    """All together."""
    whole = Traffic()
    for part in parts:
        whole.add(part.messages, part.size_bytes)
    return whole
