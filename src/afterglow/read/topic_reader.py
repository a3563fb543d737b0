"""Reader of a pinned view of a topic, in order across ledgers, object formats, hot log and tiers."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from afterglow.errors import AccessDenied, DataLost, HotLogUnavailable, LedgerMissing, MetadataError
from afterglow.format.position import EARLIEST, LATEST, Position
from afterglow.ledger.layout import Layout
from afterglow.ledger.properties import BROKER_TIME, get_number
from afterglow.ledger.reader import StoredEntry
from afterglow.ledger.time_search import TimeSearch
from afterglow.read.ranges import tiered_entries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from afterglow.config.choices import ReadPriority
    from afterglow.errors import AfterglowError
    from afterglow.format.position import LedgerRange
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.read.copies import HotReader, ServedRun
    from afterglow.read.entry_source import TieredEntrySource

_log = logging.getLogger(__name__)

T = TypeVar("T")

READ_BYTES: Final = 4 << 20
"""Bytes per run of a read that is not a scan."""


@dataclass(frozen=True, slots=True)
class TopicView:
    """The ledgers and entries of a topic at one moment."""

    name: str
    """Its managed-ledger name."""
    ledgers: Mapping[int, ManagedLedgerInfo.LedgerInfo]
    """Its ledgers by id. Not to be changed."""
    layout: Layout
    """Positions of its entries."""

    @classmethod
    def pin(cls, name: str, info: ManagedLedgerInfo, hot: HotReader) -> TopicView:
        """Pin the current state: of an open ledger, the confirmed entries.

        The ledger list gets the end of a ledger only after the next ledger is in use, and other processes see it later
        still. Where the end of a ledger is not known, the view ends with it: more would leave a hole.

        Raises:
            HotLogError: The open ledger cannot be read.
        """
        ledgers = sorted(info.ledgerInfo, key=lambda ledger: ledger.ledgerId)
        extents: list[tuple[int, int]] = []
        for ledger in ledgers:
            entries, ended = _extent(ledger, hot)
            extents.append((ledger.ledgerId, entries))
            if not ended:
                break
        return cls(name, {ledger.ledgerId: ledger for ledger in ledgers}, Layout.of(extents))

    def ranges(self, start: Position, end: Position) -> Iterator[LedgerRange]:
        """The ranges of entries in [start, end), one per ledger, in order."""
        for ledger_range in self.layout.ranges(start):
            if Position(ledger_range.ledger_id, ledger_range.first) >= end:
                return
            yield (
                replace(ledger_range, last=min(ledger_range.last, end.entry_id - 1))
                if ledger_range.ledger_id == end.ledger_id
                else ledger_range
            )


class TopicReader:
    """Reads a pinned view. Thread-safe.

    Args:
        view: The view to read.
        source: Reads its entries.
        refresh: Returns the current ledger list, for ledgers that were freed from the hot log since the view was
            pinned.
            None: reading such a ledger raises ``LedgerMissing``.
    """

    def __init__(
        self, view: TopicView, source: TieredEntrySource, refresh: Callable[[], ManagedLedgerInfo] | None = None
    ) -> None:
        self.view = view
        self._source = source
        self._refresh = refresh

    def read(
        self,
        start: Position = EARLIEST,
        end: Position = LATEST,
        *,
        priority: ReadPriority | None = None,
        scan: bool = True,
    ) -> Iterator[ServedRun]:
        """The entries in [start, end), in order, in runs.

        Where the damage policy is to skip, entries that are damaged in every copy are skipped: the ids have gaps.

        Args:
            start: First position, inclusive; it need not be an entry.
            end: End position, exclusive.
            priority: Read priority; None: that of the topic's policy at each run.
            scan: Read in bulk, prefetched, without the cache. Pass False for a few entries.

        Raises:
            AfterglowError: No copy of an entry can be read; the runs before it are valid.
        """
        for ledger_range in self.view.ranges(start, end):
            yield from self._ledger(ledger_range.ledger_id, ledger_range.first, ledger_range.last, priority, scan=scan)

    def find_by_time(self, time_ms: int) -> Position:
        """Position of the first entry written at or after a time, else the position after the last entry.

        Raises:
            AfterglowError: An entry that the search needs cannot be read.
        """
        known = {ledger_id: get_number(ledger, BROKER_TIME) for ledger_id, ledger in self.view.ledgers.items()}
        last_times = {ledger_id: last_ms for ledger_id, last_ms in known.items() if last_ms is not None}
        layout = self.view.layout
        found = TimeSearch(self, layout, last_times).first_at_or_after(time_ms)
        return layout.last.next() if found.position is None else found.position

    def probe(self, position: Position, max_entries: int, max_bytes: int) -> list[StoredEntry]:
        """Read a few entries of a ledger; see :class:`~afterglow.ledger.time_search.Entries`.

        Raises:
            AfterglowError: They cannot be read.
        """
        found: list[StoredEntry] = []
        for ledger_range in self.view.ranges(position, Position(position.ledger_id, position.entry_id + max_entries)):
            first = ledger_range.first
            while first <= ledger_range.last and max_bytes > 0:
                probe = partial(self._source.probe, first=first, last=ledger_range.last, max_bytes=max_bytes)
                run = self._with_ledger(ledger_range.ledger_id, probe)
                positions = (Position(ledger_range.ledger_id, run.first + at) for at in range(len(run.entries)))
                found += map(StoredEntry, positions, run.entries)
                max_bytes -= sum(map(len, run.entries))
                first = run.first + len(run.entries)
        return found

    def narrow(self, ledger_id: int, entries: range, time_ms: int, *, stamped: bool) -> range:
        """Narrow a search by time in a ledger; see :class:`~afterglow.ledger.time_search.Entries`.

        Raises:
            StoreUnavailable: The tier has the only copy and cannot be reached.
        """
        return self._source.narrow(self.view.ledgers[ledger_id], entries, time_ms, stamped=stamped)

    def _with_ledger(self, ledger_id: int, read: Callable[[ManagedLedgerInfo.LedgerInfo], T]) -> T:
        ledger = self.view.ledgers[ledger_id]
        try:
            return read(ledger)
        except (LedgerMissing, DataLost) as error:
            return read(self._newer(ledger, error))  # freed from the hot log since the view was pinned

    def _ledger(
        self, ledger_id: int, first: int, last: int, priority: ReadPriority | None, *, scan: bool
    ) -> Iterator[ServedRun]:
        ledger = self.view.ledgers[ledger_id]
        while True:
            runs = (
                self._source.scan(ledger, first, last, priority)
                if scan
                else self._source.walk(ledger, first, last, READ_BYTES, priority)
            )
            try:
                for served in runs:
                    yield served
                    first = served.run.frames.end_entry_id
            except (LedgerMissing, DataLost) as error:
                ledger = self._newer(ledger, error)  # freed from the hot log since the view was pinned
            else:
                return

    def _newer(self, ledger: ManagedLedgerInfo.LedgerInfo, error: AfterglowError) -> ManagedLedgerInfo.LedgerInfo:
        """A ledger whose hot copy is gone, by the current ledger list.

        Raises:
            LedgerMissing: The list does not name it any more.
            AfterglowError: The list names no other copy either: the error.
        """
        if self._refresh is None:
            raise error
        newer = next((each for each in self._refresh().ledgerInfo if each.ledgerId == ledger.ledgerId), None)
        if newer is None and isinstance(error, DataLost):
            raise LedgerMissing(
                f"ledger {ledger.ledgerId} of {self.view.name} was trimmed since this read began; start the read again"
            ) from error
        if newer is None or newer == ledger:
            raise error
        return newer


def _extent(ledger: ManagedLedgerInfo.LedgerInfo, hot: HotReader) -> tuple[int, bool]:
    """Number of readable entries of a ledger, and whether the ledger ends with them.

    Entries in segments can be read even if the hot log does not know, or not any more, that they are confirmed.
    """
    if ledger.HasField("entries"):
        return ledger.entries, True
    try:
        copy = hot.open(ledger.ledgerId)
        ended = copy.closed  # read before ``confirmed``: only of a closed ledger is that the end
        return max(copy.confirmed + 1, tiered_entries(ledger.offloadContext)), ended
    except LedgerMissing:
        pass
    except (AccessDenied, HotLogUnavailable, MetadataError) as error:
        _log.warning(
            "ledger %s is read as far as a tier has it, since its end is not known: %s", ledger.ledgerId, error
        )
    return tiered_entries(ledger.offloadContext), False
