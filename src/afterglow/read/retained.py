"""The range of positions that a topic retains, and the part of a requested range that is missing from it.

Ledgers are trimmed from the front of a topic, and no list names those that were trimmed. So every position before the
first remaining ledger counts as missing, also where the topic never had an entry there. Between two remaining ledgers
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
    from afterglow.read.window import Window

    OnMissing: TypeAlias = Callable[[EntriesMissing], None]
    """Takes what is missing: warns, or raises it."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RetainedRange:
    """What one topic retained at one moment."""

    topic: str
    """Full name, with the partition."""
    begin: Position | None
    """Where the first entry of the first ledger stands, or would; None where there is no ledger."""
    end: Position
    """Behind the last entry, in the last ledger, which may be empty."""
    grows: bool
    """Whether more entries may come to that ledger."""
    shown: Layout
    """The entries that can be read."""

    @classmethod
    def of(cls, topic: str, info: ManagedLedgerInfo, shown: Layout, *, hot: bool) -> Self:
        """What a topic retains.

        Args:
            topic: Full name, with the partition.
            info: Its ledger list, with what is in the hot log alone.
            shown: The entries that can be read.
            hot: Whether these are all of them; else what is in the hot log alone is left out on purpose, and where a
                ledger ends that is still written is not known.
        """
        rows = {row.ledgerId: row for row in info.ledgerInfo}
        if not rows:
            return cls(topic, None, EARLIEST, grows=True, shown=shown)
        last = rows[shown.ids[-1] if hot else max(rows)]
        grows = not last.HasField("entries")
        unshown = LATEST.entry_id if grows else last.entries
        end = Position(last.ledgerId, shown.tail_entries if hot else unshown)
        return cls(topic, Position(min(rows), 0), end, grows=grows, shown=shown)

    def missing(self, window: Window) -> EntriesMissing | None:
        """What of the positions of a window is not there, as an error that nobody has raised yet; None: nothing.

        Only what was asked for explicitly can be missing: ``earliest`` and ``latest`` mean whatever is there.
        """
        start, end = window.start, window.end_entry
        if start == LATEST or start >= end:
            return None
        gaps: list[str] = []
        cures: list[str] = []
        if self.begin is not None and (start if start.ledger_id >= 0 else end).ledger_id < self.begin.ledger_id:
            gaps.append(f"{_word(start)} to {min(end, self.begin)} was trimmed, or never written")
            cures.append(f"start at {self.begin} or earliest, and keep data longer (retention)")
        if start > self.end:
            gaps.append(f"{start} to {_word(end)} was never written, or is not visible yet")
            cures.append(f"start at {_word(self.end)} or before, and check that topic and source are the ones meant")
        elif self.grows and end.ledger_id == self.end.ledger_id and end > self.end:
            gaps.append(f"{self.end} to {end} is not written yet")
            cures.append(f"end at {self.end} or latest, or read again later")
        if not gaps:
            return None
        there = (
            f"{self.shown.first} through {self.shown.last} is there"
            if self.shown.total_entries
            else "no entry is there"
        )
        return EntriesMissing(
            f"entries of the range asked for are missing: {self.topic} from {_asked(start, window.start_batch)} to "
            f"{_asked(window.end, window.end_batch)}: {', '.join(gaps)}, and {there}; {', '.join(cures)}"
        )


def on_missing(*, fail: bool) -> OnMissing:
    """What takes missing ranges: raises them, or else logs them as warnings."""
    return _raise if fail else _warn


def _raise(error: EntriesMissing) -> None:
    raise error


def _warn(error: EntriesMissing) -> None:
    _log.warning("%s", error)


def _asked(position: Position, batch: int) -> str:
    return f"{position}:{batch}" if batch else _word(position)


def _word(position: Position) -> str:
    if position == LATEST:
        return "latest"
    return "earliest" if position.ledger_id < 0 else str(position)
