"""The two files of a ledger: their format, and reads of entries.

``ID.ledger`` holds the frames and nothing else, so that a range of it is the body of a block. ``ID.offsets`` holds a
head of 64 bytes and then, for each entry, the end offset of its frame (int64, little-endian): the first frame starts at
0, every other at the end of the one before. So one number, the count of confirmed entries, says what may be read. The
head says whether the ledger is closed, and its end; while it is open, its end is in the table of published ends.

Callers request confirmed entries only; nothing here checks that.
"""

from __future__ import annotations

import struct
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from crc32c import crc32c

from afterglow.errors import CorruptBlock, LedgerMissing
from afterglow.format.frames import FRAME, FRAME_BYTES
from afterglow.hot.local.paths import disk_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from afterglow.hot.local.disk import Disk

_MAGIC = b"AGLOWO1\n"
_HEAD = struct.Struct(">8sqqqqqI12x")
HEAD_BYTES = _HEAD.size
_OPEN, _CLOSED = 0, 1
_OFFSETS_PER_READ = 1024  # read at once to find the frames that fit


@dataclass(frozen=True, slots=True)
class LedgerHead:
    """Head of a file of offsets."""

    ledger_id: int
    """The ledger."""

    slot: int
    """Slot of its published end while it is open."""

    closed: bool
    """Whether it takes no more entries."""

    entries: int
    """Number of its entries; 0 while it is open."""

    frame_bytes: int
    """Bytes of their frames; 0 while it is open."""

    def encode(self) -> bytes:
        """The head's bytes."""
        state = _CLOSED if self.closed else _OPEN
        fields = (_MAGIC, self.ledger_id, self.slot, state, self.entries, self.frame_bytes)
        return _HEAD.pack(*fields, crc32c(_HEAD.pack(*fields, 0)))

    @classmethod
    def decode(cls, data: bytes) -> LedgerHead | None:
        """The head in a file's first bytes; None if it is torn."""
        if len(data) < HEAD_BYTES:
            return None
        *fields, crc = _HEAD.unpack(data[:HEAD_BYTES])
        magic, ledger_id, slot, state, entries, frame_bytes = fields
        if magic != _MAGIC or crc != crc32c(_HEAD.pack(*fields, 0)):
            return None
        return cls(ledger_id, slot, state == _CLOSED, entries, frame_bytes)


@contextmanager
def translated_errors(ledger_id: int) -> Iterator[None]:
    """Translate errors of reading a ledger's files.

    Raises:
        LedgerMissing: A file is missing.
        CorruptBlock: The ledger is damaged.
        HotLogError: The disk failed.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise LedgerMissing(f"ledger {ledger_id} not found: {error}") from error
    except CorruptBlock as error:
        raise CorruptBlock(f"ledger {ledger_id} is damaged: {error}") from error
    except OSError as error:
        raise disk_error(error, f"cannot read ledger {ledger_id}") from error


def end_offset(entries: int) -> int:
    """Offset, in the file of offsets, of the end offset of entry ``entries``."""
    return HEAD_BYTES + 8 * entries


def read_offsets(disk: Disk, file: int, first: int, last: int) -> NDArray[np.int64]:
    """Offset of each frame from entry ``first`` to ``last``, and the end of the last one.

    Raises:
        CorruptBlock: The file ends before them, or they do not ascend.
    """
    out = np.zeros(last - first + 2, np.int64)
    known = out if first else out[1:]
    data = disk.read(file, 8 * known.size, end_offset(max(first - 1, 0)))
    if len(data) < 8 * known.size:
        raise CorruptBlock(f"the file of offsets ends before entry {last}")
    known[:] = np.frombuffer(data, "<i8")
    if out[0] < 0 or not (np.diff(out) >= FRAME_BYTES).all():
        raise CorruptBlock(f"the offsets of entries {first} to {last} do not ascend by whole frames")
    return out


def read_frame_range(disk: Disk, file: int, first: int, offsets: NDArray[np.int64]) -> memoryview:
    """The frames between the first and the last of the offsets; the first one is that of entry ``first``.

    Raises:
        CorruptBlock: The file ends before them, or has other frames there.
    """
    start, end = int(offsets[0]), int(offsets[-1])
    data = disk.read(file, end - start, start)
    if len(data) < end - start:
        raise CorruptBlock(f"the file of frames ends at {start + len(data)}, within entries that were confirmed")
    for i in {0, offsets.size - 2}:
        at = int(offsets[i]) - start
        _check(data, at, int(offsets[i + 1]) - start, first + i)
    return memoryview(data)


def read_fitting(
    disk: Disk, frames_file: int, offsets_file: int, first: int, *, end: int, max_bytes: int
) -> tuple[memoryview, int]:
    """The frames from entry ``first`` on, before ``end``, that fit into ``max_bytes``, and their number; at least one.

    Raises:
        CorruptBlock: A stored entry is damaged.
    """
    offsets = read_offsets(disk, offsets_file, first, min(end, first + _OFFSETS_PER_READ) - 1)
    while (next_id := first + offsets.size - 1) < end and offsets[-1] - offsets[0] <= max_bytes:
        more = read_offsets(disk, offsets_file, next_id, min(end, next_id + _OFFSETS_PER_READ) - 1)
        offsets = np.concatenate((offsets[:-1], more))
    count = max(1, int(np.searchsorted(offsets, offsets[0] + max_bytes, "right")) - 1)
    return read_frame_range(disk, frames_file, first, offsets[: count + 1]), count


def read_entries(disk: Disk, frames_file: int, offsets_file: int, first: int, last: int) -> list[bytes | memoryview]:
    """The entries from ``first`` to ``last``.

    Raises:
        CorruptBlock: A stored entry is damaged.
    """
    offsets = read_offsets(disk, offsets_file, first, last)
    return entries_in(read_frame_range(disk, frames_file, first, offsets), first, np.diff(offsets).tolist())


def entries_in(frames: memoryview, first: int, sizes: Iterable[int]) -> list[bytes | memoryview]:
    """The entries in a range of frames, given the bytes of each frame.

    Raises:
        CorruptBlock: A frame has another id or length than expected.
    """
    entries: list[bytes | memoryview] = []
    at = 0
    for entry_id, size in enumerate(sizes, first):
        _check(frames, at, at + size, entry_id)
        entries.append(frames[at + FRAME_BYTES : at + size])
        at += size
    return entries


def _check(data: bytes | memoryview, at: int, end: int, entry_id: int) -> None:
    length, found = FRAME.unpack_from(data, at)
    if found != entry_id or length != end - at - FRAME_BYTES:
        raise CorruptBlock(
            f"expected a frame of entry {entry_id} with {end - at - FRAME_BYTES} bytes, found entry {found} with "
            f"{length} bytes"
        )
