"""Where entries came from that were read as they are stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from afterglow.ledger.reader import StoredEntry


@dataclass(slots=True)
class RawReads:
    """Bytes of entries read for raw consumers of all topics since the start. Belongs to the event loop's thread."""

    memory_bytes: int = 0
    """From the tail cache."""
    log_bytes: int = 0
    """From the topic's log: the hot log as a rule; the counters of its tiers tell."""

    def count(self, entries: Iterable[StoredEntry], *, from_memory: bool) -> None:
        """Count what one read brought. A read that is not served by memory alone counts as one of the log."""
        size = sum(len(entry.data) for entry in entries)
        if from_memory:
            self.memory_bytes += size
        else:
            self.log_bytes += size
