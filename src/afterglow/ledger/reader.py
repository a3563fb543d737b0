"""Reads of a topic by position or time, across ledgers, from the tail cache, the offload buffer or an entry source."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from afterglow.errors import LedgerMissing
from afterglow.format.position import LedgerRange, Position
from afterglow.ledger.entry_source import EntrySlice
from afterglow.ledger.time_search import TimeSearch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.ledger.entry_source import EntryData, EntrySource
    from afterglow.ledger.environment import Environment
    from afterglow.ledger.layout import Layout
    from afterglow.ledger.managed_ledger_state import ManagedLedgerState
    from afterglow.ledger.time_search import TimeSearchResult

    _ReadLedger: TypeAlias = Callable[[ManagedLedgerInfo.LedgerInfo, int, int, int], EntrySlice]
    """Reads entries of one ledger; see :meth:`EntrySource.read`."""


class ReadOrigin(StrEnum):
    """The copy that served entries."""

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
    """An entry with its position."""

    position: Position
    data: EntryData


@dataclass(frozen=True, slots=True)
class LedgerEntries:
    """Consecutive entries of one ledger."""

    ledger_id: int
    first: int
    """Id of the first entry."""
    entries: Sequence[EntryData]

    @property
    def end(self) -> Position:
        """The position after the last one."""
        return Position(self.ledger_id, self.first + len(self.entries))


@dataclass(frozen=True, slots=True)
class ReadResult:
    """Result of a read."""

    found: list[LedgerEntries]
    """Entries in order; empty if no more entries can be read yet."""
    skipped: list[LedgerRange]
    """Entries between and after them that are damaged for good in every copy, in order."""
    origins: list[tuple[ReadOrigin, int]] = field(default_factory=list)
    """The copies that served them, with numbers of entries, in order."""

    @property
    def entries(self) -> list[StoredEntry]:
        """The entries one by one."""
        return [
            StoredEntry(Position(part.ledger_id, entry_id), data)
            for part in self.found
            for entry_id, data in enumerate(part.entries, part.first)
        ]

    @property
    def end(self) -> Position | None:
        """The position after the last entry that was read or skipped; None if there was none."""
        ends = [part.end for part in self.found[-1:]]
        ends += [Position(skipped.ledger_id, skipped.last + 1) for skipped in self.skipped[-1:]]
        return max(ends, default=None)


class EntryReader:
    """Reads one topic. Thread-safe."""

    def __init__(self, source: EntrySource, environment: Environment, state: ManagedLedgerState) -> None:
        self._source = source
        self._state = state
        self._cache = environment.cache
        self._buffer = environment.cache.buffer

    @property
    def layout(self) -> Layout:
        """The entries that readers may see, as of now."""
        return self._state.layout

    def read(self, position: Position, max_entries: int, max_bytes: int) -> list[StoredEntry]:
        """Confirmed entries from ``position`` on, in order, across ledgers. May wait for a disk or a tier.

        The first entry is always returned, however large; further ones while within ``max_entries`` and ``max_bytes``.

        Raises:
            LedgerMissing: No copy of a ledger can be read.
            CorruptBlock: A stored entry is damaged.
        """
        return self._read(position, max_entries, max_bytes, self._source.read, may_enter_tier=True).entries

    def probe(self, position: Position, max_entries: int, max_bytes: int) -> list[StoredEntry]:
        """As :meth:`read`, for a search by time; see :meth:`EntrySource.probe`.

        Raises:
            LedgerMissing: No copy of a ledger can be read.
            CorruptBlock: A stored entry is damaged.
        """
        return self._read(position, max_entries, max_bytes, self._source.probe, may_enter_tier=True).entries

    def narrow(self, ledger_id: int, entries: range, time_ms: int, *, stamped: bool) -> range:
        """Entries of one ledger to which a search by time can be confined; see :meth:`EntrySource.narrow`.

        Empty if the ledger is not in the list any more.

        Raises:
            StoreUnavailable: The tier has the only copy and cannot be reached.
        """
        info = self._state.ledger_info(ledger_id)
        return entries[:0] if info is None else self._source.narrow(info, entries, time_ms, stamped=stamped)

    def read_with_gaps(self, position: Position, max_entries: int, max_bytes: int) -> ReadResult:
        """As :meth:`read`, with the ranges that were skipped because they are damaged in every copy.

        A read that does not begin in a tier, by :meth:`is_in_tier`, ends before the first entry that is in one, so that
        the caller can run reads of tiers elsewhere.

        Raises:
            LedgerMissing: No copy of a ledger can be read.
            CorruptBlock: A stored entry is damaged.
        """
        return self._read(position, max_entries, max_bytes, self._source.read, may_enter_tier=self.is_in_tier(position))

    def first_at_or_after(self, time_ms: int) -> TimeSearchResult:
        """The first entry written at or after a time; see :mod:`afterglow.ledger.time_search`.

        May wait for a disk or a tier.

        Raises:
            LedgerMissing: No copy of a ledger can be read.
            AfterglowError: An entry that the search needs cannot be read.
        """
        with self._state.lock:
            layout = self._state.layout
            times = {record.ledger_id: record.last_broker_time_ms for record in self._state.records}
            times.update({end.ledger_id: end.last_broker_time_ms for end in self._state.ended()})
        recorded = {ledger_id: time for ledger_id, time in times.items() if time is not None}
        return TimeSearch(self, layout, recorded).first_at_or_after(time_ms)

    def find_by_time(self, time_ms: int) -> Position:
        """The position to read from after a seek by time; behind the last entry if every entry is older.

        Raises:
            AfterglowError: As :meth:`first_at_or_after`.
        """
        found = self.first_at_or_after(time_ms).position
        return self.layout.last.next() if found is None else found

    def last_before(self, time_ms: int) -> Position | None:
        """The last entry before the first one written at or after a time: everything up to it has outlived a TTL.

        Raises:
            AfterglowError: As :meth:`first_at_or_after`.
        """
        layout = self.layout
        found = self.first_at_or_after(time_ms).position
        older = layout.total_entries if found is None else layout.rank(found.previous())
        return layout.at_rank(older - 1) if older > 0 else None

    def _read(
        self, position: Position, max_entries: int, max_bytes: int, read: _ReadLedger, *, may_enter_tier: bool
    ) -> ReadResult:
        result = ReadResult([], [])
        entries_left, bytes_left = max_entries, max_bytes
        for entries in self._state.layout.ranges(position):
            if result.found and not may_enter_tier and self._is_offloaded(entries):
                break
            ledger_id, first = entries.ledger_id, entries.first
            while first <= entries.last:
                if entries_left <= 0 or (result.found and bytes_left <= 0):
                    return result
                served = self._read_ledger(
                    ledger_id, first, min(entries.last, first + entries_left - 1), bytes_left, read
                )
                if served is None:  # trimmed meanwhile
                    break
                origin, part = served
                if part.first > first:
                    result.skipped.append(LedgerRange(ledger_id, first, part.first - 1))
                first = part.first
                fitting = _fitting(part.entries, bytes_left, is_first=not result.found)
                if fitting:
                    result.found.append(LedgerEntries(ledger_id, first, fitting))
                    bytes_left -= sum(map(len, fitting))
                    entries_left -= len(fitting)
                    first += len(fitting)
                result.origins.append((origin, len(fitting)))
                if len(fitting) < len(part.entries):
                    return result
        return result

    def read_memory(self, position: Position, max_entries: int, max_bytes: int) -> ReadResult | None:
        """The beginning of what :meth:`read` would return, if it is in memory; else None. Never waits."""
        wanted = next(self._state.layout.ranges(position), None)
        if wanted is None:
            return ReadResult([], [])
        last = min(wanted.last, wanted.first + max_entries - 1)
        found = self._held(wanted.ledger_id, wanted.first, last, max_bytes)
        if found is None:
            return None
        origin, held = found
        return ReadResult([LedgerEntries(wanted.ledger_id, wanted.first, held)], [], [(origin, len(held))])

    def is_in_tier(self, position: Position) -> bool:
        """Whether the first entry that :meth:`read` would return has a copy in a tier. Never waits."""
        entries = next(self._state.layout.ranges(position), None)
        return entries is not None and self._is_offloaded(entries)

    def _is_offloaded(self, entries: LedgerRange) -> bool:
        """Whether the first entry of a range is in a tier: of a ledger that is streamed, the newest are not yet."""
        info = self._state.ledger_info(entries.ledger_id)
        if info is None:
            return False
        context = info.offloadContext
        return context.complete or any(
            segment.complete and segment.endEntryId >= entries.first for segment in context.offloadSegment
        )

    def _read_ledger(
        self, ledger_id: int, first: int, last: int, max_bytes: int, read: _ReadLedger
    ) -> tuple[ReadOrigin, EntrySlice] | None:
        """At least one entry of one ledger, with its origin; None if the ledger is not in the list any more."""
        if (held := self._held(ledger_id, first, last, max_bytes)) is not None:
            return held[0], EntrySlice(first, held[1])
        info = self._state.ledger_info(ledger_id)
        if info is None:
            return None
        for memory in (self._cache, self._buffer):
            # Entries that are in memory are not read from a disk or a tier.
            if memory is not None and (held_from := memory.first_after(ledger_id, first)) is not None:
                last = min(last, held_from - 1)
        try:
            found = read(info, first, last, max_bytes)
        except LedgerMissing:
            newer = self._state.ledger_info(ledger_id)
            if newer is None:
                return None
            if newer == info:
                raise
            found = read(newer, first, last, max_bytes)  # the hot copy was freed meanwhile
        return ReadOrigin.TIER if found.tiered else ReadOrigin.HOT, found

    def _held(
        self, ledger_id: int, first: int, last: int, max_bytes: int
    ) -> tuple[ReadOrigin, list[memoryview]] | None:
        """Entries of one ledger that are in memory, with their origin; None if the first is not."""
        if cached := self._cache.get_range(ledger_id, first, last, max_bytes):
            return ReadOrigin.CACHE, cached
        if self._buffer is not None and (held := self._buffer.get_range(ledger_id, first, last, max_bytes)):
            return ReadOrigin.BUFFER, held
        return None


def _fitting(entries: Sequence[EntryData], max_bytes: int, *, is_first: bool) -> Sequence[EntryData]:
    """The first of these entries that fit; the very first one of a read regardless of its size."""
    size = 0
    for number, data in enumerate(entries):
        size += len(data)
        if size > max_bytes and not (is_first and not number):
            return entries[:number]
    return entries
