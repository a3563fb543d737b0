"""Ledgers that Pulsar's ``filesystem`` driver offloaded: each a Hadoop MapFile of entries by id.

A MapFile is a directory of two SequenceFiles: ``data``, and ``index`` with some of the keys and the offsets of their
records, or blocks of records. The key -1 holds the ledger's metadata, which a reader does not need.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Final

import numpy as np

from afterglow.errors import CorruptBlock, DamagedStripe, NotSupported, ObjectMissing, StorageError
from afterglow.format.frames import Frames, scan_frames
from afterglow.format.sequence_file import BYTES, LONG, decode_header, frame_records, read_records
from afterglow.read.copies import FrameRun

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from afterglow.format.sequence_file import Header, Records
    from afterglow.read.counters import ReadCounters
    from afterglow.read.objects import TierObject
    from afterglow.storage import ObjectStore

_DATA: Final = "data"
_INDEX: Final = "index"
_METADATA: Final = -1
"""Key of the ledger's metadata."""
_BASE_BYTES: Final = 2_000
_OFFSET_BYTES: Final = 100
"""Memory of an opened MapFile, and of each known offset, estimated."""


def mapfile_key(name: str, ledger_id: int, uuid: UUID) -> str:
    """Path of a ledger's MapFile below the driver's base path.

    Args:
        name: The topic's managed-ledger name.
        ledger_id: The ledger.
        uuid: Id of the offload.
    """
    return f"{name}/{ledger_id}-{uuid}"


class OpenMapFile:
    """A MapFile with its known offsets; readers add the offset of every block that they read. Thread-safe."""

    def __init__(self, tier_object: TierObject, size_bytes: int, header: Header) -> None:
        """See :func:`open_mapfile`."""
        self.tier_object = tier_object
        self.size_bytes = size_bytes
        """Length of its ``data`` file."""
        self.header = header
        self._lock = Lock()
        self._entries = [_METADATA]
        self._offsets = [header.end]

    @property
    def memory_bytes(self) -> int:
        """Memory, estimated."""
        return _BASE_BYTES + _OFFSET_BYTES * len(self._entries)

    def nearest(self, entry_id: int) -> int:
        """The last known offset at or before an entry."""
        with self._lock:
            return self._offsets[bisect_right(self._entries, entry_id) - 1]

    def add_offset(self, entry_id: int, offset: int) -> None:
        """Record the offset of an entry, or of its block."""
        with self._lock:
            at = bisect_right(self._entries, entry_id)
            if self._entries[at - 1] != entry_id:
                self._entries.insert(at, entry_id)
                self._offsets.insert(at, offset)


def open_mapfile(store: ObjectStore, tier_object: TierObject, counters: ReadCounters) -> OpenMapFile:
    """Open a MapFile.

    Args:
        store: The store of its tier location.
        tier_object: The directory, as if it were an object.
        counters: Count every request.

    Raises:
        ObjectMissing: It does not exist.
        CorruptBlock: It is not a MapFile, or its index is damaged.
        NotSupported: It does not hold ledger entries, or its codec is not supported.
        StorageError: A request failed.
    """
    try:
        size_bytes = store.head(f"{tier_object.key}/{_DATA}").size_bytes
    except ObjectMissing as error:
        raise ObjectMissing(f"MapFile {tier_object.key} in {tier_object.location}: {error}") from error
    data = _BufferedFile(store, f"{tier_object.key}/{_DATA}", size_bytes, 1 << 16, counters)
    try:
        opened = OpenMapFile(tier_object, size_bytes, decode_header(data, BYTES))
        _read_index(store, opened, counters)
    except CorruptBlock as error:
        raise CorruptBlock(f"MapFile {tier_object.key} in {tier_object.location}: {error}") from error
    except NotSupported as error:
        raise NotSupported(f"MapFile {tier_object.key} in {tier_object.location}: {error}") from error
    return opened


def _read_index(store: ObjectStore, opened: OpenMapFile, counters: ReadCounters) -> None:
    """Add the offsets of the index; without an index, entries are searched from the beginning."""
    key = f"{opened.tier_object.key}/{_INDEX}"
    try:
        source = _BufferedFile(store, key, store.head(key).size_bytes, 1 << 20, counters)
    except ObjectMissing:
        return
    header = decode_header(source, LONG)
    at = header.end
    while (found := read_records(source, header, at)) is not None:
        offsets = np.frombuffer(found.values, ">i8")
        if offsets.size != found.keys.size:
            raise CorruptBlock(f"its index has {found.keys.size} keys and {offsets.size} offsets")
        for entry_id, offset in zip(found.keys.tolist(), offsets.tolist(), strict=True):
            opened.add_offset(entry_id, offset)
        at = found.end


@dataclass(frozen=True, slots=True)
class MapFileCopy:
    """A :class:`~afterglow.read.copies.LedgerCopy` in a MapFile."""

    store: ObjectStore
    opened: OpenMapFile
    ledger_id: int
    buffer_bytes: int
    """Bytes per request."""
    counters: ReadCounters

    def read(self, first: int, last: int, max_bytes: int) -> FrameRun:
        """Read a few entries; see :class:`~afterglow.read.copies.LedgerCopy`.

        Raises:
            DamagedStripe: The block of records that holds ``first`` is damaged.
            ObjectMissing: The MapFile does not exist any more.
            StorageError: A request failed.
        """
        run = next(self.scan(first, last))
        offsets = run.frames.offsets
        fitting = int(np.searchsorted(offsets[1:], offsets[0] + max_bytes, side="right"))
        return FrameRun(self.ledger_id, run.data, Frames(first, offsets[: max(fitting, 1) + 1], None))

    def scan(self, first: int, last: int) -> Iterator[FrameRun]:
        """Scan entries; see :class:`~afterglow.read.copies.LedgerCopy`."""
        source = _BufferedFile(
            self.store,
            f"{self.opened.tier_object.key}/{_DATA}",
            self.opened.size_bytes,
            self.buffer_bytes,
            self.counters,
        )
        at = self.opened.nearest(first)
        while first <= last:
            try:
                records = read_records(source, self.opened.header, at)
                begin, frames = (0, None) if records is None else _frame(records)
            except CorruptBlock as error:
                raise DamagedStripe(f"{self._describe()}: {error}", last + 1) from error
            if records is None:
                raise DamagedStripe(f"{self._describe()}: it ends before entry {first}", last + 1)
            if frames is not None:
                self.opened.add_offset(begin, at)
                whole = scan_frames(frames, begin)
                if begin > first:
                    raise DamagedStripe(f"{self._describe()}: entry {begin} found where {first} is expected", begin)
                if whole.end_entry_id > first:
                    offsets = whole.offsets[first - begin : last - begin + 2]
                    yield FrameRun(self.ledger_id, frames, Frames(first, offsets, None))
                    first += offsets.size - 1
            at = records.end

    def _describe(self) -> str:
        return (
            f"MapFile {self.opened.tier_object.key} in {self.opened.tier_object.location}, of ledger {self.ledger_id}"
        )


class _BufferedFile:
    """A :class:`~afterglow.format.sequence_file.ByteSource` over a store, which buffers the last fetched range."""

    def __init__(self, store: ObjectStore, key: str, size_bytes: int, min_bytes: int, counters: ReadCounters) -> None:
        self.size_bytes = size_bytes
        self._store = store
        self._key = key
        self._min_bytes = min_bytes
        self._counters = counters
        self._start = 0
        self._data = memoryview(b"")

    def read(self, start: int, count: int) -> memoryview:
        end = min(start + count, self.size_bytes)
        if start >= end:
            return memoryview(b"")
        if not self._start <= start or end > self._start + self._data.nbytes:
            wanted = min(max(end, start + self._min_bytes), self.size_bytes)
            began_s = perf_counter()
            try:
                self._start, self._data = start, self._store.get(self._key, start, wanted)
            except StorageError:
                self._counters.failed()
                raise
            self._counters.fetched(self._data.nbytes, perf_counter() - began_s)
        return self._data[start - self._start : end - self._start]


def _frame(records: Records) -> tuple[int, memoryview | None]:
    """Records as frames, and the id of the first; None if they hold only the ledger's metadata."""
    skipped = int(records.keys[0] == _METADATA)
    if records.keys.size == skipped:
        return 0, None
    return int(records.keys[skipped]), frame_records(records, skipped)
