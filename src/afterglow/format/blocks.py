"""Data blocks: a header of 128 bytes, entry frames, and padding if the block has a fixed size.

| offset | size | field          |                                                              |
|--------|------|----------------|--------------------------------------------------------------|
| 0      | 4    | magic          | ``FBDBABCB`` (V1, one ledger) or ``26A66D32`` (V2, streaming) |
| 4      | 8    | header_len     | 128; readers honour the value                                |
| 12     | 8    | block_len      | the whole block: header, frames, padding                     |
| 20     | 8    | first_entry_id |                                                              |
| 28     | 8    | ledger_id      | V2 only                                                      |

The rest of the header is zero. All integers are big-endian.

The file of a hot ledger contains the same frames as blocks do, so a block is a header and a range of that file:
:func:`plan_v1` and :func:`plan_v2` compute the boundaries of all blocks from the offsets of frames, before any byte is
read.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
from crc32c import crc32c

from afterglow.errors import CorruptBlock, EntryTooLarge
from afterglow.format.frames import FRAME_BYTES, PADDING

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer


HEADER_BYTES = 128

_HEADER = struct.Struct(">Iqqq")
_LEDGER = struct.Struct(">q")


class Format(IntEnum):
    """The two layouts of offloaded objects."""

    V1 = 1
    """One closed ledger per object (PIP-17)."""
    V2 = 2
    """A segment of a topic, over any number of ledgers (PIP-76)."""


_MAGICS = {Format.V1: 0xFBDBABCB, Format.V2: 0x26A66D32}
_FORMATS = {magic: version for version, magic in _MAGICS.items()}


@dataclass(frozen=True, slots=True)
class BlockHeader:
    """The header of a block."""

    format: Format
    block_bytes: int
    """Length of the whole block, header and padding included."""
    first_entry_id: int
    ledger_id: int | None = None
    """The block's ledger; None in V1, where only the object's key names it."""
    header_bytes: int = HEADER_BYTES
    """Offset of the frames from the start of the block."""

    def encode(self) -> bytes:
        """Encode the header."""
        fixed = _HEADER.pack(_MAGICS[self.format], self.header_bytes, self.block_bytes, self.first_entry_id)
        if self.format is Format.V2:
            if self.ledger_id is None:
                raise ValueError("a V2 block header needs a ledger id")
            fixed += _LEDGER.pack(self.ledger_id)
        return fixed.ljust(self.header_bytes, b"\0")


def decode_header(data: Buffer, offset: int = 0) -> BlockHeader:
    """Decode the block header at ``offset``.

    Raises:
        CorruptBlock: The header is truncated, the magic is unknown, or the lengths contradict each other.
    """
    view = memoryview(data).cast("B")
    if not 0 <= offset <= view.nbytes - HEADER_BYTES:
        raise CorruptBlock(f"offset {offset}: {max(view.nbytes - offset, 0)} bytes are too few for a block header")
    magic, header_bytes, block_bytes, first_entry_id = _HEADER.unpack_from(view, offset)
    version = _FORMATS.get(magic)
    if version is None:
        raise CorruptBlock(f"offset {offset}: {magic:08x} is not the magic of a block")
    least = _HEADER.size + (_LEDGER.size if version is Format.V2 else 0)
    if not least <= header_bytes <= block_bytes or first_entry_id < 0:
        raise CorruptBlock(
            f"offset {offset}: invalid block header: {block_bytes} bytes, of them {header_bytes} of header, "
            f"first entry {first_entry_id}"
        )
    ledger_id = _LEDGER.unpack_from(view, offset + _HEADER.size)[0] if version is Format.V2 else None
    return BlockHeader(version, block_bytes, first_entry_id, ledger_id, header_bytes)


def enclose_frames(out: bytearray | memoryview, offset: int, header: BlockHeader, frame_bytes: int) -> int:
    """Write header and padding of a block around its frames, which the caller writes.

    Returns:
        The end offset of the block.

    Raises:
        CorruptBlock: The frames do not fit the block's length.
    """
    target = memoryview(out)
    body = offset + header.header_bytes
    end = offset + header.block_bytes
    missing = end - body - frame_bytes
    if missing < 0:
        raise CorruptBlock(
            f"{frame_bytes} bytes of entries do not fit a block of {header.block_bytes} "
            f"that begins with entry {header.first_entry_id}"
        )
    target[offset:body] = header.encode()
    if missing:
        target[end - missing : end] = (PADDING * (missing // len(PADDING) + 1))[:missing]
    return end


def block_checksum(block: Buffer) -> int:
    """Return the CRC32C of a whole block, including header and padding."""
    return crc32c(block)


V1_BLOCK_BYTES = 64 << 20
"""Pulsar's default."""

V2_BLOCK_BYTES = 1 << 20
"""Small enough for a fine index, small Spark splits, and a checksum over a range that is cheap to fetch."""


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """One planned block: its entries, its range of the ledger's frames, and its offset."""

    header: BlockHeader
    end_entry_id: int
    """Id after the block's last entry."""
    start: int
    """Offset of the first frame among the ledger's frames."""
    end: int
    """End offset of the last frame."""
    offset: int
    """Offset of the block in its object."""

    @property
    def entries(self) -> int:
        """Number of entries."""
        return self.end_entry_id - self.header.first_entry_id

    @property
    def payload_bytes(self) -> int:
        """Bytes of the entries, without frame headers."""
        return self.end - self.start - FRAME_BYTES * self.entries


def plan_v1(offsets: NDArray[np.int64], max_block_bytes: int = V1_BLOCK_BYTES) -> tuple[BlockPlan, ...]:
    """Plan the blocks of a whole ledger as Pulsar does: each padded to exactly ``max_block_bytes``, except the last.

    Args:
        offsets: Offset of each frame from entry 0, and the end of the last.
        max_block_bytes: Size of every block except the last, which is as short as possible.

    Raises:
        EntryTooLarge: An entry does not fit in an empty block. Raised before anything is written; Pulsar would drop it
            and all later entries, and report success.
    """
    plans: list[BlockPlan] = []
    count = offsets.size - 1
    first = 0
    while first < count:
        start = int(offsets[first])
        left = int(offsets[-1]) - start + HEADER_BYTES
        end = count if left <= max_block_bytes else _fitting(offsets, first, max_block_bytes)
        if end <= first:
            size = int(offsets[first + 1]) - start - FRAME_BYTES
            raise EntryTooLarge(
                f"entry {first} has {size} bytes and does not fit in a block of {max_block_bytes}; raise "
                f"managedLedgerOffloadMaxBlockSizeInBytes to at least {size + FRAME_BYTES + HEADER_BYTES}"
            )
        header = BlockHeader(Format.V1, min(left, max_block_bytes), first)
        plans.append(BlockPlan(header, end, start, int(offsets[end]), max_block_bytes * len(plans)))
        first = end
    return tuple(plans)


def plan_v2(
    offsets: NDArray[np.int64],
    ledger_id: int,
    first_entry_id: int,
    *,
    block_bytes: int = V2_BLOCK_BYTES,
    offset: int = 0,
) -> tuple[BlockPlan, ...]:
    """Plan the blocks of a range of one ledger in a segment: at most ``block_bytes`` each, without padding.

    An entry that does not fit gets a block of its own.

    Args:
        offsets: Offset of each frame of the range, and the end of the last.
        ledger_id: The ledger.
        first_entry_id: Id of the range's first entry.
        block_bytes: Maximum size of blocks with more than one entry.
        offset: Offset of the first block in the object.
    """
    plans: list[BlockPlan] = []
    count = offsets.size - 1
    first = 0
    while first < count:
        end = max(_fitting(offsets, first, block_bytes), first + 1)
        start, stop = int(offsets[first]), int(offsets[end])
        header = BlockHeader(Format.V2, HEADER_BYTES + stop - start, first_entry_id + first, ledger_id)
        plans.append(BlockPlan(header, first_entry_id + end, start, stop, offset))
        offset += header.block_bytes
        first = end
    return tuple(plans)


def _fitting(offsets: NDArray[np.int64], first: int, block_bytes: int) -> int:
    """Return the index after the last entry that fits in a block that begins with entry ``first``."""
    return int(np.searchsorted(offsets, offsets[first] + (block_bytes - HEADER_BYTES), side="right")) - 1
