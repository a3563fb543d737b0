"""Marks: the entries that are not complete messages by themselves (chunks, markers, messages of transactions).

Each mark is one row of integers; there is no Python object per entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import numpy as np

from afterglow.format._kernels import calls, layout
from afterglow.format.frames import as_bytes_array

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from afterglow.format.frames import Frames

_STEP: Final = 1 << 14
"""Entries parsed at a time: their rows take 28 * 8 * 2**14 bytes, four megabytes."""


class Marker(IntEnum):
    """A type of marker that ends a transaction."""

    COMMIT = 21
    ABORT = 22


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk of a chunked message."""

    entry_id: int
    uuid: bytes
    """UUID of the message: the same in all its chunks, also in resent ones."""
    transaction: int | None
    """Transaction of the message, if any."""
    number: int
    """From 0."""
    count: int
    """Number of chunks of the message."""
    total_bytes: int
    """Size of all chunks, before encryption."""
    payload_at: int
    """Offset of its payload in the data."""
    payload_bytes: int
    codec: int
    uncompressed_bytes: int
    """Uncompressed size of the whole message."""
    encrypted: bool


@dataclass(frozen=True, slots=True)
class Marks:
    """The chunks, markers and messages of transactions among some consecutive entries, in order."""

    data: NDArray[np.uint8]
    """Bytes that the offsets refer to."""
    table: NDArray[np.int64]
    """One row per mark; ``_kernels.layout`` defines its columns."""

    def chunks(self) -> Iterator[Chunk]:
        """Yield the chunks. They are large and therefore few, so one Python object each is affordable."""
        chosen = self.table[self.table[:, layout.MARK_FLAGS] & layout.CHUNK != 0]
        for mark in chosen.tolist():
            flags, at = mark[layout.MARK_FLAGS], mark[layout.MARK_UUID_AT]
            yield Chunk(
                mark[layout.MARK_ENTRY_ID],
                self.data[at : at + mark[layout.MARK_UUID_LEN]].tobytes(),
                _transaction(mark) if flags & layout.TRANSACTION else None,
                mark[layout.MARK_CHUNK],
                mark[layout.MARK_CHUNKS],
                mark[layout.MARK_TOTAL],
                mark[layout.MARK_PAYLOAD_AT],
                mark[layout.MARK_PAYLOAD_LEN],
                mark[layout.MARK_CODEC],
                mark[layout.MARK_UNCOMPRESSED],
                bool(flags & layout.ENCRYPTED),
            )

    def chunk_entries(self) -> NDArray[np.int64]:
        """Return the ids of entries that are chunks."""
        return np.extract(self.table[:, layout.MARK_FLAGS] & layout.CHUNK, self.table[:, layout.MARK_ENTRY_ID])

    def endings(self) -> Iterator[tuple[int, int, bool]]:
        """Yield the transactions that end here: entry of the marker, transaction, whether it was committed."""
        marker = self.table[:, layout.MARK_MARKER]
        ends = (marker == Marker.COMMIT) | (marker == Marker.ABORT)
        chosen = self.table[ends & (self.table[:, layout.MARK_FLAGS] & layout.TRANSACTION != 0)]
        for mark in chosen.tolist():
            yield mark[layout.MARK_ENTRY_ID], _transaction(mark), mark[layout.MARK_MARKER] == Marker.COMMIT

    def transactions(self) -> tuple[list[int], NDArray[np.int64], NDArray[np.int64]]:
        """Return the transactions that have messages here.

        Returns:
            Each transaction once; the ids of their entries; for each entry the index of its transaction in the list.
        """
        flags = self.table[:, layout.MARK_FLAGS]
        chosen = self.table[flags & (layout.TRANSACTION | layout.MARKER) == layout.TRANSACTION]
        if not len(chosen):
            return [], chosen[:, 0], chosen[:, 0]
        ids = chosen[:, layout.MARK_TXN_MOST : layout.MARK_TXN_LEAST + 1]
        changes = np.flatnonzero((ids[1:] != ids[:-1]).any(axis=1)) + 1
        starts = np.concatenate(([0], changes))
        # Messages of a transaction are mostly adjacent, so only the first of each run is compared.
        first = ids[starts]
        order = np.lexsort((first[:, 1], first[:, 0]))
        differs = (np.diff(first[order], axis=0) != 0).any(axis=1)
        number = np.empty(len(order), np.int64)
        number[order] = np.concatenate(([0], np.cumsum(differs)))
        distinct = first[order][np.concatenate(([True], differs))]
        which = np.repeat(number, np.diff(np.append(starts, len(ids))))
        return [_joined(most, least) for most, least in distinct.tolist()], chosen[:, layout.MARK_ENTRY_ID], which


def marks_of(data: NDArray[np.uint8], rows: NDArray[np.int64], first_entry_id: int) -> Marks:
    """Return the marks of entries parsed into ``rows``; unreadable ones have none."""
    flags = rows[:, layout.FLAGS]
    count = int(np.count_nonzero((rows[:, layout.STATUS] == layout.GOOD) & (flags & layout.MARKED != 0)))
    table = np.empty((count, layout.MARK_COLUMNS), np.int64)
    calls.read_marks(data, rows, first_entry_id, table)
    return Marks(data, table)


def find_marks(data: Buffer, frames: Frames, start: int | None = None) -> Marks:
    """Return the marks of the readable entries in ``frames``; each entry's own checksum is verified.

    Args:
        data: The bytes that ``frames`` refers to.
        frames: Frames of the entries.
        start: First entry id, inclusive; the first of ``frames`` for None.
    """
    array = as_bytes_array(data)
    found = [np.empty((0, layout.MARK_COLUMNS), np.int64)]
    low = max((frames.first_entry_id if start is None else start) - frames.first_entry_id, 0)
    rows = np.empty((min(_STEP, max(len(frames) - low, 0)), layout.COLUMNS), np.int64)
    while low < len(frames):
        high = min(low + _STEP, len(frames))
        mine = rows[: high - low]
        if calls.parse_entries(array, frames.offsets[low : high + 1], mine, check=layout.CHECK_NOW) & layout.MARKED:
            found.append(marks_of(array, mine, frames.first_entry_id + low).table)
        low = high
    return Marks(array, np.concatenate(found))


def _transaction(mark: list[int]) -> int:
    return _joined(mark[layout.MARK_TXN_MOST], mark[layout.MARK_TXN_LEAST])


def _joined(most: int, least: int) -> int:
    """The 128 bits of a transaction's id."""
    return (most & 0xFFFFFFFFFFFFFFFF) << 64 | least & 0xFFFFFFFFFFFFFFFF
