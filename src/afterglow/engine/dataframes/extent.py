"""How far a topic reaches, and whether a stream can go on in it where it stopped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from afterglow.errors import EntriesMissing
from afterglow.format.position import Position
from afterglow.spark.source_points import START, Point

if TYPE_CHECKING:
    from collections.abc import Iterable

    from afterglow.engine.source_records import SourceLedger

LENIENT: Final = "set failOnDataLoss=false (export: --no-fail-on-data-loss)"
"""How to go on without data that is gone."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Where one topic began and ended at one moment."""

    topic: str
    """Full name, with the partition."""
    ledgers: tuple[tuple[int, int], ...]
    """Ids, ascending, each with the number of entries that can be read."""

    @classmethod
    def of(cls, topic: str, ledgers: Iterable[SourceLedger]) -> Extent:
        """The extent of a topic whose ledgers those are, ascending."""
        seen: list[tuple[int, int]] = []
        known = True  # whether the ledger before has come to an end that is known
        for ledger in ledgers:
            if known or ledger.entries:  # entries are in view only where all before them are
                seen.append((ledger.ledger_id, ledger.entries))
                known = ledger.closed_ms is not None
        return cls(topic, tuple(seen))

    @property
    def end(self) -> Point:
        """Behind the last entry: in the last ledger, though it may be empty."""
        return Point(Position(*self.ledgers[-1])) if self.ledgers else START

    def entries(self, begin: Point, end: Point) -> int:
        """How many stand from one point to another; one of which a part does counts."""
        count = 0
        for ledger_id, entries in self.ledgers:
            first = max(begin.position.entry_id, 0) if ledger_id == begin.position.ledger_id else 0
            last = (
                min(end.position.entry_id + bool(end.batch), entries)
                if ledger_id == end.position.ledger_id
                else entries
            )
            if begin.position.ledger_id <= ledger_id <= end.position.ledger_id:
                count += max(last - first, 0)
        return count

    def check(self, begin: Point) -> None:
        """Check that nothing is gone from ``begin`` on.

        Ledgers leave a topic from its front. Where the ledger of ``begin`` has left, entries behind ``begin`` may have
        left with it, and nothing tells any more whether it had some.

        Raises:
            EntriesMissing: Entries may be gone, or the topic has never reached so far.
        """
        if begin == START:
            return
        if begin > self.end:
            raise EntriesMissing(
                f"{self.topic} was read up to {begin} and ends at {self.end} now: it was made anew, or the source is "
                f"another one; begin anew with another checkpointLocation, or {LENIENT} to wait until it comes so far"
            )
        first = self.ledgers[0][0]
        if begin.position.ledger_id < first:
            raise EntriesMissing(
                f"{self.topic} was read up to {begin} and begins at ledger {first} now: what stood between was trimmed "
                f"before it was read; keep data longer (retention), and {LENIENT} to go on with what is left"
            )
