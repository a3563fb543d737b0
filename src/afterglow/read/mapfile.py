"""Ledgers that Pulsar's ``filesystem`` driver has offloaded: each a Hadoop MapFile, entries by their ids.

A MapFile is a directory of two SequenceFiles: ``data``, and ``index`` with every so many keys and the offset of the
record, or of the block of records, from which on they are found. Under the key -1 stands the ledger's metadata, which
a reader does not need.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Final

import numpy as np

from afterglow.errors import CorruptBlock, DamagedPiece, NotSupported, ObjectMissing, StorageError
from afterglow.format.frames import Frames, scan_frames
from afterglow.format.sequence_file import BYTES, LONG, decode_header, frame_records, read_records
from afterglow.read.copies import FrameRun

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from afterglow.format.sequence_file import Header, Records
    from afterglow.read.counters import ReadCounters
    from afterglow.read.objects import Located
    from afterglow.storage import ObjectStore

_DATA: Final = "data"
_INDEX: Final = "index"
_METADATA: Final = -1
"""Key of the ledger's metadata."""
_BASE_BYTES: Final = 2_000
_MARK_BYTES: Final = 100
"""Of memory, for what an opened MapFile holds, and for each place that is known in it."""


def mapfile_key(name: str, ledger_id: int, uuid: UUID) -> str:
    """Where a ledger's MapFile is below the driver's base path.

    Args:
        name: The topic's managed-ledger name.
        ledger_id: The ledger.
        uuid: Of the offload.
    """
    return f"{name}/{ledger_id}-{uuid}"


class OpenMapFile:
    """What readers know of a MapFile, more with every block that one of them has met. Thread-safe."""

    def __init__(self, located: Located, size_bytes: int, header: Header) -> None:
        """See :func:`open_mapfile`."""
        self.located = located
        self.size_bytes = size_bytes
        """Of its data."""
        self.header = header
        self._lock = Lock()
        self._entries = [_METADATA]
        self._offsets = [header.end]

    @property
    def memory_bytes(self) -> int:
        """Roughly, of memory."""
        return _BASE_BYTES + _MARK_BYTES * len(self._entries)

    def nearest(self, entry_id: int) -> int:
        """The last known offset from which on an entry is found."""
        with self._lock:
            return self._offsets[bisect_right(self._entries, entry_id) - 1]

    def learn(self, entry_id: int, offset: int) -> None:
        """Note an offset from which on an entry is found."""
        with self._lock:
            at = bisect_right(self._entries, entry_id)
            if self._entries[at - 1] != entry_id:
                self._entries.insert(at, entry_id)
                self._offsets.insert(at, offset)


def open_mapfile(store: ObjectStore, located: Located, counters: ReadCounters) -> OpenMapFile:
    """Open a MapFile.

    Args:
        store: The store of its tier location.
        located: The directory, as if it were an object.
        counters: Count every request.

    Raises:
        ObjectMissing: There is no such MapFile.
        CorruptBlock: It is not a MapFile, or its index is damaged.
        NotSupported: It holds something else, or is compressed by a codec that is not read.
        StorageError: The store does not give it.
    """
    try:
        size_bytes = store.head(f"{located.key}/{_DATA}").size_bytes
    except ObjectMissing as error:
        raise ObjectMissing(f"MapFile {located.key} in {located.location}: {error}") from error
    data = _BufferedFile(store, f"{located.key}/{_DATA}", size_bytes, 1 << 16, counters)
    try:
        opened = OpenMapFile(located, size_bytes, decode_header(data, BYTES))
        _read_index(store, opened, counters)
    except CorruptBlock as error:
        raise CorruptBlock(f"MapFile {located.key} in {located.location}: {error}") from error
    except NotSupported as error:
        raise NotSupported(f"MapFile {located.key} in {located.location}: {error}") from error
    return opened


def _read_index(store: ObjectStore, opened: OpenMapFile, counters: ReadCounters) -> None:
    """Learn the offsets of the index; without one, entries are searched from the beginning."""
    key = f"{opened.located.key}/{_INDEX}"
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
            opened.learn(entry_id, offset)
        at = found.end


@dataclass(frozen=True, slots=True)
class MapFileCopy:
    """A :class:`~afterglow.read.copies.LedgerCopy` in a MapFile."""

    store: ObjectStore
    opened: OpenMapFile
    ledger_id: int
    buffer_bytes: int
    """What is fetched by one request."""
    counters: ReadCounters

    def read(self, first: int, last: int, max_bytes: int) -> FrameRun:
        """Some entries; see the protocol.

        Raises:
            DamagedPiece: The block that holds ``first`` is damaged.
            ObjectMissing: The MapFile is gone.
            StorageError: The store does not give it.
        """
        run = next(self.scan(first, last))
        offsets = run.frames.offsets
        fitting = int(np.searchsorted(offsets[1:], offsets[0] + max_bytes, side="right"))
        return FrameRun(self.ledger_id, run.data, Frames(first, offsets[: max(fitting, 1) + 1], None))

    def scan(self, first: int, last: int) -> Iterator[FrameRun]:
        """All entries; see the protocol."""
        source = _BufferedFile(
            self.store, f"{self.opened.located.key}/{_DATA}", self.opened.size_bytes, self.buffer_bytes, self.counters
        )
        at = self.opened.nearest(first)
        while first <= last:
            try:
                records = read_records(source, self.opened.header, at)
                begin, frames = (0, None) if records is None else _frame(records)
            except CorruptBlock as error:
                raise DamagedPiece(f"{self._describe()}: {error}", last + 1) from error
            if records is None:
                raise DamagedPiece(f"{self._describe()}: it ends before entry {first}", last + 1)
            if frames is not None:
                self.opened.learn(begin, at)
                whole = scan_frames(frames, begin)
                if begin > first:
                    raise DamagedPiece(f"{self._describe()}: entry {begin} follows where {first} should", begin)
                if whole.end_entry_id > first:
                    offsets = whole.offsets[first - begin : last - begin + 2]
                    yield FrameRun(self.ledger_id, frames, Frames(first, offsets, None))
                    first += offsets.size - 1
            at = records.end

    def _describe(self) -> str:
        return f"MapFile {self.opened.located.key} in {self.opened.located.location}, of ledger {self.ledger_id}"


class _BufferedFile:
    """A :class:`~afterglow.format.sequence_file.ByteSource` over a store, which keeps the last fetched range."""

    def __init__(self, store: ObjectStore, key: str, size_bytes: int, least: int, counters: ReadCounters) -> None:
        self.size_bytes = size_bytes
        self._store = store
        self._key = key
        self._least = least
        self._counters = counters
        self._start = 0
        self._data = memoryview(b"")

    def read(self, start: int, count: int) -> memoryview:
        end = min(start + count, self.size_bytes)
        if start >= end:
            return memoryview(b"")
        if not self._start <= start or end > self._start + self._data.nbytes:
            wanted = min(max(end, start + self._least), self.size_bytes)
            began_s = perf_counter()
            try:
                self._start, self._data = start, self._store.get(self._key, start, wanted)
            except StorageError:
                self._counters.failed()
                raise
            self._counters.fetched(self._data.nbytes, perf_counter() - began_s)
        return self._data[start - self._start : end - self._start]


def _frame(records: Records) -> tuple[int, memoryview | None]:
    """Records as frames, and the id of the first; None where the ledger's metadata stands there alone."""
    skipped = int(records.keys[0] == _METADATA)
    if records.keys.size == skipped:
        return 0, None
    return int(records.keys[skipped]), frame_records(records, skipped)
