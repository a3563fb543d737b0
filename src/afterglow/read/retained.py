"""Retained range of a topic, and the positions of a requested range that are missing from it.

Ledgers are trimmed from the front of a topic, and no list names those that were trimmed. So every position before the
first remaining ledger counts as missing, even if the topic never had an entry there. Between two remaining ledgers
nothing is missing, whatever their ids: an empty ledger leaves no trace, and other topics take ids too.

Times are not considered: the times of trimmed entries are not known.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeAlias

from afterglow.errors import EntriesMissing
from afterglow.format.position import EARLIEST, LATEST, Position

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.ledger.layout import Layout
    from afterglow.read.scan_range import ScanRange

    OnMissing: TypeAlias = Callable[[EntriesMissing], None]
    """Called with missing positions: logs a warning, or raises the error."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RetainedRange:
    """Positions that a topic retained at one moment."""

    topic: str
    """Full name, with the partition."""
    begin: Position | None
    """First position of the first ledger, which may be empty; None if there is no ledger."""
    end: Position
    """Position after the last entry, in the last ledger, which may be empty."""
    is_open: bool
    """Whether the last ledger is open."""
    readable: Layout
    """The entries that can be read."""

    @classmethod
    def of(cls, topic: str, info: ManagedLedgerInfo, readable: Layout, *, hot: bool) -> Self:
        """The retained range of a topic.

        Args:
            topic: Full name, with the partition.
            info: Its complete ledger list, with entries that are only in the hot log.
            readable: The entries that can be read.
            hot: Whether the hot log is read; if not, ``readable`` lacks entries that are only there, and the end of an
                open ledger is not known.
        """
        ledgers = {ledger.ledgerId: ledger for ledger in info.ledgerInfo}
        if not ledgers:
            return cls(topic, None, EARLIEST, is_open=True, readable=readable)
        last = ledgers[readable.ids[-1] if hot else max(ledgers)]
        is_open = not last.HasField("entries")
        entries = LATEST.entry_id if is_open else last.entries
        end = Position(last.ledgerId, readable.tail_entries if hot else entries)
        return cls(topic, Position(min(ledgers), 0), end, is_open=is_open, readable=readable)

    def missing(self, scan_range: ScanRange) -> EntriesMissing | None:
        """An error that names the missing positions of a range, not yet raised; None: nothing is missing.

        Only explicit positions can be missing: ``earliest`` and ``latest`` mean the first and last retained entry.
        """
        start, end = scan_range.start, scan_range.end_entry
        if start == LATEST or start >= end:
            return None
        gaps: list[str] = []
        fixes: list[str] = []
        if self.begin is not None and (start if start.ledger_id >= 0 else end).ledger_id < self.begin.ledger_id:
            gaps.append(f"{_name_position(start)} to {min(end, self.begin)} was trimmed, or never written")
            fixes.append(f"start at {self.begin} or earliest, and keep data longer (retention)")
        if start > self.end:
            gaps.append(f"{start} to {_name_position(end)} was never written, or is not visible yet")
            fixes.append(f"start at {_name_position(self.end)} or before, and check topic and source")
        elif self.is_open and end.ledger_id == self.end.ledger_id and end > self.end:
            gaps.append(f"{self.end} to {end} is not written yet")
            fixes.append(f"end at {self.end} or latest, or read again later")
        if not gaps:
            return None
        available = (
            f"{self.readable.first} through {self.readable.last} is available"
            if self.readable.total_entries
            else "no entry is available"
        )
        asked_start = _format_position(start, scan_range.start_batch)
        asked_end = _format_position(scan_range.end, scan_range.end_batch)
        return EntriesMissing(
            f"entries of the requested range are missing: {self.topic} from {asked_start} to {asked_end}: "
            f"{', '.join(gaps)}, and {available}; {', '.join(fixes)}"
        )


def on_missing(*, fail: bool) -> OnMissing:
    """A callback for missing positions that raises the error, or logs it as a warning."""

    def report(error: EntriesMissing) -> None:
        if fail:
            raise error
        _log.warning("%s", error)

    return report


def _format_position(position: Position, batch: int) -> str:
    return f"{position}:{batch}" if batch else _name_position(position)


def _name_position(position: Position) -> str:
    if position == LATEST:
        return "latest"
    return "earliest" if position.ledger_id < 0 else str(position)
