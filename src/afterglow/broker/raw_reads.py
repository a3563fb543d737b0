"""Where entries came from that were read as they are stored."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from afterglow.ledger.reader import StoredEntry


class ReadOrigin(StrEnum):
    """Where a read found its entries."""

    CACHE = "cache"
    """The tail cache."""
    BUFFER = "buffer"
    """The offload buffer."""
    LOG = "log"
    """The topic's log: the hot log as a rule; the counters of its tiers tell."""


@dataclass(slots=True)
class RawReads:
    """Bytes of entries read for raw consumers of all topics since the start. Belongs to the event loop's thread."""

    cache_bytes: int = 0
    buffer_bytes: int = 0
    log_bytes: int = 0

    def count(self, entries: Iterable[StoredEntry], origin: ReadOrigin) -> None:
        """Count what one read brought. One that begins in the log counts there, also where memory has the rest."""
        size = sum(len(entry.data) for entry in entries)
        if origin is ReadOrigin.CACHE:
            self.cache_bytes += size
        elif origin is ReadOrigin.BUFFER:
            self.buffer_bytes += size
        else:
            self.log_bytes += size
