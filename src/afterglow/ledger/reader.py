"""Reading a topic by position, across ledgers, from the nearest copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from afterglow.errors import LedgerMissing
from afterglow.format.position import Position

if TYPE_CHECKING:
    from collections.abc import Sequence

    from afterglow.ledger.environment import Environment
    from afterglow.ledger.state import TopicState

EntryData: TypeAlias = bytes | memoryview
"""An entry as stored, with the broker's metadata in front."""


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry and where it stands."""

    position: Position
    data: EntryData


class FallbackReader(Protocol):
    """Reads ledgers whose hot copy is gone."""

    def read(self, ledger_id: int, first: int, last: int, max_bytes: int) -> Sequence[EntryData]:
        """Entries from ``first`` to ``last``, both inclusive: at least one, further ones while within ``max_bytes``.

        Raises:
            AfterglowError: They cannot be read.
        """
        ...


class EntryReader:
    """Reads one topic. Thread-safe."""

    def __init__(self, name: str, environment: Environment, state: TopicState) -> None:
        self._name = name
        self._state = state
        self._hot = environment.hot
        self._cache = environment.cache
        self._fallback = environment.fallback

    def read(self, position: Position, max_entries: int, max_bytes: int) -> list[StoredEntry]:
        """Entries from ``position`` on, in order, as far as readers may see.

        The first is always among them, however large; further ones while within ``max_entries`` and ``max_bytes``.

        Raises:
            LedgerMissing: No copy of a ledger can be read.
            CorruptBlock: What is stored is damaged.
        """
        found: list[StoredEntry] = []
        left = max_bytes
        for span in self._state.layout.spans(position):
            first = span.first
            while first <= span.last:
                room = max_entries - len(found)
                if room <= 0 or (found and left <= 0):
                    return found
                run = self._run(span.ledger_id, first, min(span.last, first + room - 1), left)
                if run is None:  # trimmed meanwhile
                    break
                for data in run:
                    left -= len(data)
                    if found and left < 0:
                        return found
                    found.append(StoredEntry(Position(span.ledger_id, first), data))
                    first += 1
        return found

    def read_cached(self, position: Position, max_entries: int, max_bytes: int) -> list[StoredEntry] | None:
        """What :meth:`read` would begin with as far as it is in memory; None where only a disk has it."""
        span = next(self._state.layout.spans(position), None)
        if span is None:
            return []
        run = self._cache.get_run(span.ledger_id, span.first, min(span.last, span.first + max_entries - 1), max_bytes)
        if not run:
            return None
        return [StoredEntry(Position(span.ledger_id, span.first + at), data) for at, data in enumerate(run)]

    def read_one(self, position: Position) -> EntryData | None:
        """The entry at ``position``; None where there is none."""
        found = self.read(position, 1, 1)
        return found[0].data if found and found[0].position == position else None

    def _run(self, ledger_id: int, first: int, last: int, max_bytes: int) -> Sequence[EntryData] | None:
        """At least one entry of one ledger; None where the ledger has left the list."""
        if cached := self._cache.get_run(ledger_id, first, last, max_bytes):
            return cached
        hot_deleted = any(row.hot_deleted for row in self._state.records if row.ledger_id == ledger_id)
        if not hot_deleted:
            try:
                ledger = self._hot.open(ledger_id)
                # Of frames, which are a few bytes longer than the entries that are asked for.
                ends = ledger.offsets(first, last)
                fitting = int((ends[1:] - ends[0]).searchsorted(max_bytes, side="right"))
                if run := ledger.read(first, min(last, first + max(fitting, 1) - 1)):
                    return run
            except LedgerMissing:
                pass
        if self._state.layout.entries_of(ledger_id) is None:
            return None
        if self._fallback is None:
            raise LedgerMissing(
                f"{self._name} cannot read {ledger_id}:{first}: the hot copy of the ledger is gone and no tier is "
                "configured to read it from; set managedLedgerOffloadDriver"
            )
        return self._fallback.read(ledger_id, first, last, max_bytes)
