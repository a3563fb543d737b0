"""Entry frames: the common framing of hot ledgers and offloaded blocks.

A frame is ``length:int32 · id:int64 · length bytes``, big-endian; ids are consecutive. A sequence of frames may end in
padding (``FE DC DE AD`` repeated), which reads as a negative length.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from afterglow.errors import CorruptBlock
from afterglow.format._kernels import calls, layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray
    from typing_extensions import Buffer

FRAME = struct.Struct(">iq")
"""Length of the entry, its id."""

FRAME_BYTES = FRAME.size

PADDING = b"\xfe\xdc\xde\xad"
"""Repeated after the last entry of a block, starting with its first byte."""

_DAMAGE = {
    layout.TORN_FRAME: "the frame of entry {id} is truncated",
    layout.WRONG_ID: "the frame of entry {id} has another id",
    layout.INVALID_PADDING: "neither a frame nor padding follows entry {last}",
}


@dataclass(frozen=True, slots=True)
class Frames:
    """Offsets of consecutive frames in a buffer."""

    first_entry_id: int
    """Id of the first entry."""

    offsets: NDArray[np.int64]
    """Offset of each frame in the buffer, and the end of the last: one more than the number of entries."""

    damage: str | None
    """Damage that ends the frames before the end of the buffer, or None. Entries before it are complete."""

    gaps: tuple[tuple[int, int], ...] = ()
    """Block boundaries: the number of a frame, from 0, and the number of other bytes directly before it."""

    def __len__(self) -> int:
        return self.offsets.size - 1

    @property
    def end_entry_id(self) -> int:
        """Id after the last entry."""
        return self.first_entry_id + len(self)

    @property
    def end(self) -> int:
        """End offset of the last frame."""
        return int(self.offsets[-1])

    @property
    def payload_bytes(self) -> int:
        """Bytes of all entries, without frame headers."""
        gaps = sum(gap for _, gap in self.gaps)
        return self.end - int(self.offsets[0]) - gaps - FRAME_BYTES * len(self)

    @property
    def ends(self) -> NDArray[np.int64]:
        """End offset of each entry."""
        if not self.gaps:
            return self.offsets[1:]
        ends = self.offsets[1:].copy()
        for number, gap in self.gaps:
            ends[number - 1] -= gap
        return ends

    def slice(self, low: int, high: int) -> Frames:
        """Return the frames number ``low`` to ``high``, exclusive."""
        gaps = tuple((number - low, gap) for number, gap in self.gaps if low < number < high)
        offsets = self.offsets[low : high + 1]
        cut = next((gap for number, gap in self.gaps if number == high), 0)
        if cut:
            offsets = offsets.copy()
            offsets[-1] -= cut
        return Frames(self.first_entry_id + low, offsets, None, gaps)


@dataclass(slots=True, eq=False)  # not frozen, which would triple the time to create one
class FramedEntries:
    """Consecutive entries of a ledger as frames in one buffer, with nothing before, between or after them.

    Caches keep very many of them. Python's garbage collector visits views, and does not visit bytes: a single entry has
    only these.
    """

    first: int
    """Id of the first entry."""

    data: bytes | memoryview
    """The frames."""

    offsets: memoryview | None = None
    """Offset of each frame as an int64, and the end of the last: one more than the number of entries. None for one."""

    @classmethod
    def one(cls, entry_id: int, *parts: bytes | bytearray | memoryview) -> FramedEntries:
        """Frame an entry, given as buffers to be joined."""
        return cls(entry_id, b"".join((FRAME.pack(sum(map(len, parts)), entry_id), *parts)))

    def __len__(self) -> int:
        return 1 if self.offsets is None else len(self.offsets) - 1

    @property
    def end(self) -> int:
        """Id after the last entry."""
        return self.first + (1 if self.offsets is None else len(self.offsets) - 1)

    @property
    def sizes(self) -> list[int]:
        """Bytes of each frame."""
        return [len(self.data)] if self.offsets is None else np.diff(self.offsets).tolist()

    @property
    def payload_bytes(self) -> int:
        """Bytes of all entries, without frame headers."""
        return len(self.data) - FRAME_BYTES * len(self)

    def entries(self, first: int, end: int) -> list[memoryview]:
        """The entries from ``first`` to ``end``, exclusive, of those that are here. One object per entry."""
        view = memoryview(self.data)
        if self.offsets is None:
            return [view[FRAME_BYTES:]] if first <= self.first < end else []
        bounds = self.offsets[max(first - self.first, 0) : max(end - self.first + 1, 0)].tolist()
        return [view[at + FRAME_BYTES : to] for at, to in pairwise(bounds)]


def as_bytes_array(data: Buffer) -> NDArray[np.uint8]:
    """View any contiguous buffer as an array of bytes, without a copy."""
    return np.frombuffer(memoryview(data), np.uint8)


def scan_frames(data: Buffer, first_entry_id: int, start: int = 0, end: int | None = None) -> Frames:
    """Find the frames in ``data[start:end]``; damage ends the scan and is reported in the result.

    Raises:
        ValueError: ``start`` lies outside the data; negative offsets are not supported.
    """
    array = as_bytes_array(data)
    if not 0 <= start <= array.size:
        raise ValueError(f"frames cannot start at {start} in {array.size} bytes")
    stop = array.size if end is None else max(min(end, array.size), start)
    offsets, code = calls.find_frames(array, start, stop, first_entry_id)
    damage = None
    if code != layout.WHOLE:
        end_id = first_entry_id + offsets.size - 1
        damage = _DAMAGE[code].format(id=end_id, last=end_id - 1)
    return Frames(first_entry_id, offsets, damage)


def frame_entries(entries: Iterable[Buffer], first_entry_id: int = 0) -> bytes:
    """Encode entries as consecutive frames with ids from ``first_entry_id``."""
    out = bytearray()
    for entry_id, entry in enumerate(entries, first_entry_id):
        view = memoryview(entry)
        out += FRAME.pack(view.nbytes, entry_id)
        out += view
    return bytes(out)


def iter_entries(data: Buffer, frames: Frames) -> Iterator[tuple[int, memoryview]]:
    """Yield each entry's id and bytes, without a copy. One Python object per entry: not for bulk."""
    view = memoryview(data).cast("B")
    for i, (start, end) in enumerate(zip(frames.offsets.tolist(), frames.ends.tolist(), strict=False)):
        yield frames.first_entry_id + i, view[start + FRAME_BYTES : end]


def check_whole(frames: Frames, what: str) -> None:
    """Check that the frames reach the end of the buffer.

    Raises:
        CorruptBlock: They do not; the message names ``what`` and the entry.
    """
    if frames.damage:
        raise CorruptBlock(f"{what}: {frames.damage}")
