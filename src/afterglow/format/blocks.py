"""Data blocks: a header of 128 bytes, then entry frames, then padding where the block must have a fixed size.

| offset | size | field          |                                                              |
|--------|------|----------------|--------------------------------------------------------------|
| 0      | 4    | magic          | ``FBDBABCB`` (V1, one ledger) or ``26A66D32`` (V2, streaming) |
| 4      | 8    | header_len     | 128; readers honour the value                                |
| 12     | 8    | block_len      | the whole block: header, frames, padding                     |
| 20     | 8    | first_entry_id |                                                              |
| 28     | 8    | ledger_id      | V2 only                                                      |

The rest of the header is zero. All integers are big-endian.

A hot ledger's file holds exactly the frames that blocks hold, so a block is a header and a range of that file:
:func:`plan_v1` and :func:`plan_v2` compute the borders of all blocks from the offsets of frames, before any byte is
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
    """What stands in front of a block's entries."""

    format: Format
    block_bytes: int
    """Length of the whole block, header and padding included."""
    first_entry_id: int
    ledger_id: int | None = None
    """The block's ledger; None in V1, where only the object's key names it."""
    header_bytes: int = HEADER_BYTES
    """Where the frames begin, from the start of the block."""

    def encode(self) -> bytes:
        """The header's bytes."""
        fixed = _HEADER.pack(_MAGICS[self.format], self.header_bytes, self.block_bytes, self.first_entry_id)
        if self.format is Format.V2:
            if self.ledger_id is None:
                raise ValueError("a V2 block header names its ledger")
            fixed += _LEDGER.pack(self.ledger_id)
        return fixed.ljust(self.header_bytes, b"\0")


def decode_header(data: Buffer, offset: int = 0) -> BlockHeader:
    """Read the block header at ``offset``.

    Raises:
        CorruptBlock: The bytes are too few, the magic is unknown, or the lengths contradict each other.
    """
    view = memoryview(data).cast("B")
    if not 0 <= offset <= view.nbytes - HEADER_BYTES:
        raise CorruptBlock(f"offset {offset}: {max(view.nbytes - offset, 0)} bytes are too few for a block header")
    magic, header_bytes, block_bytes, first_entry_id = _HEADER.unpack_from(view, offset)
    version = _FORMATS.get(magic)
    if version is None:
        raise CorruptBlock(f"offset {offset}: no block begins with {magic:08x}")
    least = _HEADER.size + (_LEDGER.size if version is Format.V2 else 0)
    if not least <= header_bytes <= block_bytes or first_entry_id < 0:
        raise CorruptBlock(
            f"offset {offset}: a block of {block_bytes} bytes with a header of {header_bytes} "
            f"and first entry {first_entry_id} cannot be"
        )
    ledger_id = _LEDGER.unpack_from(view, offset + _HEADER.size)[0] if version is Format.V2 else None
    return BlockHeader(version, block_bytes, first_entry_id, ledger_id, header_bytes)


def enclose_frames(out: bytearray | memoryview, offset: int, header: BlockHeader, frame_bytes: int) -> int:
    """Write what stands around a block's frames, which are in their place already, or will be: header and padding.

    Returns:
        The offset behind the block.

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
    """CRC32C of a whole block, from its header to its padding."""
    return crc32c(block)


V1_BLOCK_BYTES = 64 << 20
"""Pulsar's default."""

V2_BLOCK_BYTES = 1 << 20
"""Small enough for a fine index, narrow Spark splits, and a checksum over a piece one is willing to fetch."""


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """One block: which entries, which bytes of the ledger's frames, how long."""

    header: BlockHeader
    end_entry_id: int
    """Id behind the block's last entry."""
    start: int
    """Offset of the first frame among the ledger's frames."""
    end: int
    """Offset behind the last frame."""
    offset: int
    """Where the block begins in its object."""

    @property
    def entries(self) -> int:
        """Number of entries."""
        return self.end_entry_id - self.header.first_entry_id

    @property
    def payload_bytes(self) -> int:
        """Bytes of the entries without their frames."""
        return self.end - self.start - FRAME_BYTES * self.entries


def plan_v1(offsets: NDArray[np.int64], max_block_bytes: int = V1_BLOCK_BYTES) -> tuple[BlockPlan, ...]:
    """Blocks of a whole ledger, as Pulsar cuts them: all of ``max_block_bytes`` exactly, padded, but for the last.

    Args:
        offsets: Offset of each frame from entry 0 on, and behind the last.
        max_block_bytes: Size of every block but the last, which is as long as it needs to be.

    Raises:
        EntryTooLarge: An entry does not fit an empty block. Found before anything is written; Pulsar would drop it and
            all entries behind it, and report success.
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
                f"entry {first} has {size} bytes and does not fit a block of {max_block_bytes}; raise "
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
    """Blocks of a range of one ledger in a segment: at most ``block_bytes`` each, without padding.

    An entry that does not fit gets a block of its own size.

    Args:
        offsets: Offset of each frame of the range, and behind the last.
        ledger_id: The ledger.
        first_entry_id: Id of the range's first entry.
        block_bytes: Size that no block passes unless a single entry does.
        offset: Where the first block begins in the object.
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
    """Index behind the last entry that fits a block which begins with entry ``first``."""
    return int(np.searchsorted(offsets, offsets[first] + (block_bytes - HEADER_BYTES), side="right")) - 1
