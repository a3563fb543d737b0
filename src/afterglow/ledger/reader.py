"""Reading a topic by position, across ledgers, from the nearest copy."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from afterglow.errors import LedgerMissing
from afterglow.format.position import Position
from afterglow.ledger.layout import Span
from afterglow.ledger.source import EntryRun

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.ledger.environment import Environment
    from afterglow.ledger.source import EntryData, EntrySource
    from afterglow.ledger.state import TopicState

    _ReadRun: TypeAlias = Callable[[ManagedLedgerInfo.LedgerInfo, int, int, int], EntryRun]
    """Reads entries of one ledger; see :meth:`EntrySource.read`."""


class ReadOrigin(StrEnum):
    """Where a read found entries."""

    CACHE = "cache"
    """The tail cache."""
    BUFFER = "buffer"
    """The offload buffer."""
    HOT = "hot"
    """The hot log."""
    TIER = "tier"
    """An offloaded object."""


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry and where it stands."""

    position: Position
    data: EntryData


@dataclass(frozen=True, slots=True)
class Reading:
    """What a read has found."""

    entries: list[StoredEntry]
    """In order; empty where nothing more can be read yet."""
    left_out: list[Span]
    """What stands between and behind them and is damaged for good in every copy, in order."""
    origins: list[tuple[ReadOrigin, int]] = field(default_factory=list)
    """Where how many of them came from, in their order."""

    @property
    def end(self) -> Position | None:
        """Behind all that was looked at; None where there was nothing."""
        ends = [entry.position.next() for entry in self.entries[-1:]]
        ends += [Position(span.ledger_id, span.last + 1) for span in self.left_out[-1:]]
        return max(ends, default=None)


class EntryReader:
    """Reads one topic. Thread-safe."""

    def __init__(self, source: EntrySource, environment: Environment, state: TopicState) -> None:
        self._source = source
        self._state = state
        self._cache = environment.cache
        self._buffer = environment.cache.buffer

    def read(self, position: Position, max_entries: int, max_bytes: int) -> list[StoredEntry]:
        """Entries from ``position`` on, in order, as far as readers may see.

        The first is always among them, however large; further ones while within ``max_entries`` and ``max_bytes``.

        Raises:
            LedgerMissing: No copy of a ledger can be read.
            CorruptBlock: What is stored is damaged.
        """
        return self._read(position, max_entries, max_bytes, self._source.read, into_far=True).entries

    def probe(self, position: Position, max_entries: int, max_bytes: int) -> list[StoredEntry]:
        """The same for a search by time; see :meth:`EntrySource.probe`.

        Raises:
            LedgerMissing: No copy of a ledger can be read.
            CorruptBlock: What is stored is damaged.
        """
        return self._read(position, max_entries, max_bytes, self._source.probe, into_far=True).entries

    def narrow(self, ledger_id: int, entries: range, time_ms: int, *, stamped: bool) -> range:
        """Entries of one ledger to which a search by time can be confined; see :meth:`EntrySource.narrow`.

        Empty where the ledger has left the list.

        Raises:
            StoreUnavailable: The tier has the only copy and cannot be reached.
        """
        row = self._state.row(ledger_id)
        return entries[:0] if row is None else self._source.narrow(row, entries, time_ms, stamped=stamped)

    def read_over(self, position: Position, max_entries: int, max_bytes: int) -> Reading:
        """The same, and what was left out on the way because no copy can give it.

        One that does not begin in a tier, by :meth:`is_far`, does not go on into one: it ends before.

        Raises:
            LedgerMissing: No copy of a ledger can be read.
            CorruptBlock: What is stored is damaged.
        """
        return self._read(position, max_entries, max_bytes, self._source.read, into_far=self.is_far(position))

    def _read(self, position: Position, max_entries: int, max_bytes: int, read: _ReadRun, *, into_far: bool) -> Reading:
        reading = Reading([], [])
        found = reading.entries
        left = max_bytes
        for span in self._state.layout.spans(position):
            if found and not into_far and self._has_far_copy(span):
                break
            first = span.first
            while first <= span.last:
                room = max_entries - len(found)
                if room <= 0 or (found and left <= 0):
                    return reading
                served = self._run(span.ledger_id, first, min(span.last, first + room - 1), left, read)
                if served is None:  # trimmed meanwhile
                    break
                origin, run = served
                if run.first > first:
                    reading.left_out.append(Span(span.ledger_id, first, run.first - 1))
                first = run.first
                count = 0
                for data in run.entries:
                    left -= len(data)
                    if found and left < 0:
                        break
                    found.append(StoredEntry(Position(span.ledger_id, first), data))
                    first += 1
                    count += 1
                reading.origins.append((origin, count))
                if count < len(run.entries):
                    return reading
        return reading

    def read_memory(self, position: Position, max_entries: int, max_bytes: int) -> Reading | None:
        """What :meth:`read` would begin with as far as it is in memory; None where only a disk or a tier has it."""
        span = next(self._state.layout.spans(position), None)
        if span is None:
            return Reading([], [])
        found = self._held(span.ledger_id, span.first, min(span.last, span.first + max_entries - 1), max_bytes)
        if found is None:
            return None
        origin, run = found
        entries = [StoredEntry(Position(span.ledger_id, span.first + at), data) for at, data in enumerate(run)]
        return Reading(entries, [], [(origin, len(entries))])

    def is_far(self, position: Position) -> bool:
        """Whether the entry that :meth:`read` would begin with has a copy outside the hot log."""
        span = next(self._state.layout.spans(position), None)
        return span is not None and self._has_far_copy(span)

    def _has_far_copy(self, span: Span) -> bool:
        """Whether the first entry of a stretch is in a tier: a ledger that is streamed has its newest ones not yet."""
        row = self._state.row(span.ledger_id)
        if row is None:
            return False
        segments = row.offloadContext.offloadSegment
        return row.offloadContext.complete or any(part.complete and part.endEntryId >= span.first for part in segments)

    def _run(
        self, ledger_id: int, first: int, last: int, max_bytes: int, read: _ReadRun
    ) -> tuple[ReadOrigin, EntryRun] | None:
        """At least one entry of one ledger, and where it was; None where the ledger has left the list."""
        if (held := self._held(ledger_id, first, last, max_bytes)) is not None:
            return held[0], EntryRun(first, held[1])
        row = self._state.row(ledger_id)
        if row is None:
            return None
        for memory in (self._cache, self._buffer):
            # A disk or a tier is not to be read for what is in memory.
            if memory is not None and (behind := memory.first_behind(ledger_id, first)) is not None:
                last = min(last, behind - 1)
        try:
            run = read(row, first, last, max_bytes)
        except LedgerMissing:
            newer = self._state.row(ledger_id)
            if newer is None:
                return None
            if newer == row:
                raise
            run = read(newer, first, last, max_bytes)  # freed from the hot log meanwhile
        return ReadOrigin.TIER if run.tiered else ReadOrigin.HOT, run

    def _held(self, ledger_id: int, first: int, last: int, max_bytes: int) -> tuple[ReadOrigin, list[bytes]] | None:
        """Entries of one ledger that are in memory, and where; None where the first is not."""
        if cached := self._cache.get_run(ledger_id, first, last, max_bytes):
            return ReadOrigin.CACHE, cached
        if self._buffer is not None and (held := self._buffer.get_run(ledger_id, first, last, max_bytes)):
            return ReadOrigin.BUFFER, held
        return None
