"""Seek by time (PIP-70): the first entry whose broker time, else publish time, is at or after a given time.

Broker times never decrease within a topic. The ledger is found by the broker time of its last entry, which the list
records, and the entry by bisection. A probe parses the few bytes in front of an entry and nothing of the message.

Entries without a broker time (written before it was enabled, or while it was disabled) have only the client's publish
time, which is not ordered. For these the answer is that of a plain scan, the first entry whose time is at or after the
given one, and a scan finds it, in blocks.

Either way the source of the entries first narrows the range: a tier has the times of its objects and blocks
(``afterglow.read.time_index``), so that most of them need not be read. The result is the same. The source also chooses
the copy that is probed (``afterglow.read.entry_source``).

Whether a ledger is stamped is judged by its first and last entry: broker times are enabled or disabled when a topic is
opened, which begins a new ledger. If both are stamped, all are (Pulsar leaves markers unstamped; a probe that meets one
continues with the next stamped entry). If only the last is, the first stamped entry is found by bisection. Otherwise
the ledger is scanned.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from google.protobuf.message import DecodeError

from afterglow.errors import CorruptEntry
from afterglow.format.entry import BROKER_MAGIC, CHECKSUM_MAGIC
from afterglow.format.position import EARLIEST, Position
from afterglow.format.proto.pulsar_api_pb2 import BrokerEntryMetadata, MessageMetadata

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Buffer

    from afterglow.format.position import LedgerRange
    from afterglow.ledger.entry_source import EntryData
    from afterglow.ledger.layout import Layout
    from afterglow.ledger.reader import StoredEntry

M = TypeVar("M", BrokerEntryMetadata, MessageMetadata)

_U32: Final = struct.Struct(">I")
_MAGIC_BYTES: Final = 2
_CHECKSUM_BYTES: Final = 6  # magic and checksum


@dataclass(frozen=True, slots=True)
class EntryTime:
    """Time at which an entry was written."""

    time_ms: int
    """Epoch milliseconds."""
    by_broker: bool
    """Whether it is a broker time: only these are ordered."""
    parsed_bytes: int
    """Bytes of the entry that were parsed."""


def entry_time(entry: Buffer) -> EntryTime:
    """Time at which an entry was written.

    With a broker time only the broker entry metadata is parsed; without, also the message metadata; never the payload.

    Raises:
        CorruptEntry: The metadata is torn, or does not parse.
    """
    view = memoryview(entry).cast("B")
    at = 0
    if view[:_MAGIC_BYTES] == BROKER_MAGIC:
        metadata, at = _sized(view, _MAGIC_BYTES, "broker metadata")
        broker = _parse(BrokerEntryMetadata(), metadata, "broker metadata")
        if broker.HasField("broker_timestamp"):
            return EntryTime(broker.broker_timestamp, by_broker=True, parsed_bytes=at)
    if view[at : at + _MAGIC_BYTES] == CHECKSUM_MAGIC:
        at += _CHECKSUM_BYTES
    metadata, at = _sized(view, at, "message metadata")
    message = _parse(MessageMetadata(), metadata, "message metadata")
    return EntryTime(message.publish_time, by_broker=False, parsed_bytes=at)


def _sized(view: memoryview, at: int, what: str) -> tuple[memoryview, int]:
    begin = at + _U32.size
    if begin > view.nbytes:
        raise CorruptEntry(f"entry of {view.nbytes} bytes ends inside its {what}")
    end = begin + _U32.unpack_from(view, at)[0]
    if end > view.nbytes:
        raise CorruptEntry(f"{what} extends to byte {end} of an entry of {view.nbytes} bytes")
    return view[begin:end], end


def _parse(message: M, view: memoryview, what: str) -> M:
    try:
        message.ParseFromString(bytes(view))
    except DecodeError as error:
        raise CorruptEntry(f"{what} of {view.nbytes} bytes does not parse: {error}") from error
    return message


_SCAN_ENTRIES: Final = 256
_SCAN_BYTES: Final = 4 * 1024 * 1024
_BLOCK_ENTRIES: Final = 16_384
"""A narrowed range of at most this size is scanned before the ledger's ends are probed. Most blocks are smaller."""


class SearchableEntries(Protocol):
    """The entries of a topic, as the search needs them."""

    def probe(self, position: Position, max_entries: int, max_bytes: int) -> list[StoredEntry]:
        """Entries from ``position`` on."""
        ...

    def narrow(self, ledger_id: int, entries: range, time_ms: int, *, stamped: bool) -> range:
        """A part of the entries of a ledger; see :meth:`afterglow.ledger.entry_source.EntrySource.narrow`."""
        ...


@dataclass(slots=True)
class SearchCost:
    """Cost of a search."""

    entries: int = 0
    """Entries that probes and scans have read."""
    parsed_bytes: int = 0
    """Bytes that were parsed."""


@dataclass(frozen=True, slots=True)
class TimeSearchResult:
    """Result of a search."""

    position: Position | None
    """The first entry written at or after the time; None if all are older."""
    cost: SearchCost


@dataclass(frozen=True, slots=True)
class _StampRange:
    """Entries of one ledger that are all stamped, or all unstamped."""

    ledger_id: int
    first: int
    """First entry id, inclusive."""
    last: int
    """Last entry id, inclusive."""
    last_time_ms: int | None
    """Broker time of the last entry; None: the entries are unstamped."""


@dataclass(frozen=True, slots=True)
class _ScanMatch:
    """Result of a scan."""

    position: Position
    by_broker: bool
    """Whether its time is a broker time."""


class TimeSearch:
    """A search over one topic, as of the begin of the search.

    Args:
        entries: Reads the topic.
        layout: Its ledgers and entries.
        last_times: Broker time of the last entry, by id, of ledgers for which it is recorded. All their entries are
            stamped; of other ledgers the first and the last entry are probed.
    """

    def __init__(self, entries: SearchableEntries, layout: Layout, last_times: Mapping[int, int]) -> None:
        self._entries = entries
        self._layout = layout
        self._recorded = last_times
        self._known: dict[Position, int | None] = {}
        self._cost = SearchCost()

    def first_at_or_after(self, time_ms: int) -> TimeSearchResult:
        """The first entry whose time is at or after ``time_ms``.

        Raises:
            LedgerMissing: No copy of a ledger can be read.
            AfterglowError: An entry that the search needs cannot be read.
        """
        for entries in self._layout.ranges(EARLIEST):
            if (position := self._in_ledger(entries, time_ms)) is not None:
                return TimeSearchResult(position, self._cost)
        return TimeSearchResult(None, self._cost)

    def _in_ledger(self, ledger: LedgerRange, time_ms: int) -> Position | None:
        """The first entry of a ledger at or after the time."""
        ledger_id, first, last = ledger.ledger_id, ledger.first, ledger.last
        last_time = self._recorded.get(ledger_id)
        if last_time is not None:
            return self._bisect(_StampRange(ledger_id, first, last, last_time), time_ms)
        entries = range(first, last + 1)
        narrowed = self._entries.narrow(ledger_id, entries, time_ms, stamped=False)
        if not narrowed:
            return None
        if narrowed != entries and len(narrowed) <= _BLOCK_ENTRIES:
            # An entry with a broker time is the answer however the ledger is stamped: its ends need not be probed.
            found = self._scan_range(ledger_id, narrowed, time_ms)
            if found is not None and found.by_broker:
                return found.position
        for part in self._classify(ledger):
            position = self._scan(part, time_ms) if part.last_time_ms is None else self._bisect(part, time_ms)
            if position is not None:
                return position
        return None

    def _classify(self, ledger: LedgerRange) -> list[_StampRange]:
        """The unstamped and stamped ranges of a ledger for which the list has no broker time."""
        ledger_id, first, last = ledger.ledger_id, ledger.first, ledger.last
        last_time = self._broker_time(ledger_id, last)
        if last_time is not None and self._broker_time(ledger_id, first) is None:
            switched = bisect_left(
                range(first, last), x=True, key=lambda entry: self._broker_time(ledger_id, entry) is not None
            )
            begin = first + switched
            return [_StampRange(ledger_id, first, begin - 1, None), _StampRange(ledger_id, begin, last, last_time)]
        return [_StampRange(ledger_id, first, last, last_time)]

    def _bisect(self, part: _StampRange, time_ms: int) -> Position | None:
        """The first stamped entry at or after the time in a stamped range."""
        if part.last_time_ms is None or part.last_time_ms < time_ms:
            return None
        narrowed = self._entries.narrow(part.ledger_id, range(part.first, part.last + 1), time_ms, stamped=True)
        if not narrowed:  # trimmed meanwhile
            return None
        low, high = narrowed[0], narrowed[-1]
        if low == high:
            return Position(part.ledger_id, low)
        while low < high:
            middle = (low + high) // 2
            entry_id, found_ms = self._stamped_from(part, middle)
            if found_ms < time_ms:
                low = entry_id + 1
            else:
                high = middle
        return Position(part.ledger_id, self._stamped_from(part, low)[0])

    def _stamped_from(self, part: _StampRange, entry_id: int) -> tuple[int, int]:
        """The first stamped entry from ``entry_id`` on, with its time; the last of the range at the latest."""
        while entry_id < part.last:
            found_ms = self._broker_time(part.ledger_id, entry_id)
            if found_ms is not None:
                return entry_id, found_ms
            entry_id += 1
        return part.last, part.last_time_ms or 0

    def _scan(self, part: _StampRange, time_ms: int) -> Position | None:
        """The first entry of an unstamped range at or after the time."""
        left = range(part.first, part.last + 1)
        while left:
            narrowed = self._entries.narrow(part.ledger_id, left, time_ms, stamped=False)
            if not narrowed:
                return None
            found = self._scan_range(part.ledger_id, narrowed, time_ms)
            if found is not None:
                return found.position
            left = range(narrowed.stop, left.stop)
        return None

    def _scan_range(self, ledger_id: int, entries: range, time_ms: int) -> _ScanMatch | None:
        while entries:
            wanted = entries[:_SCAN_ENTRIES]
            probed = self._entries.probe(Position(ledger_id, wanted.start), len(wanted), _SCAN_BYTES)
            # If damaged entries were skipped, later ones may be returned instead, also of the next ledger.
            block = [entry for entry in probed if entry.position.ledger_id == ledger_id]
            if probed and not block:  # trimmed meanwhile, or damaged up to the ledger's end
                return None
            for entry in block:
                found = self._time(entry.data)
                if found is not None and found.time_ms >= time_ms:
                    return _ScanMatch(entry.position, found.by_broker)
            entries = range(block[-1].position.entry_id + 1 if block else wanted.stop, entries.stop)
        return None

    def _broker_time(self, ledger_id: int, entry_id: int) -> int | None:
        position = Position(ledger_id, entry_id)
        if position not in self._known:
            entries = self._entries.probe(position, 1, 1)
            there = bool(entries) and entries[0].position == position
            found = self._time(entries[0].data) if there else None
            self._known[position] = found.time_ms if found is not None and found.by_broker else None
        return self._known[position]

    def _time(self, data: EntryData) -> EntryTime | None:
        """The time of an entry; None if it is not a message."""
        self._cost.entries += 1
        try:
            found = entry_time(data)
        except CorruptEntry:
            return None
        self._cost.parsed_bytes += found.parsed_bytes
        return found
