"""Data blocks: a header of 128 bytes, then entry frames, then padding where the block must have a fixed size.

| offset | size | field          |                                                              |
|--------|------|----------------|--------------------------------------------------------------|
| 0      | 4    | magic          | ``FBDBABCB`` (V1, one ledger) or ``26A66D32`` (V2, streaming) |
| 4      | 8    | header_len     | 128; readers honour the value                                |
| 12     | 8    | block_len      | the whole block: header, frames, padding                     |
| 20     | 8    | first_entry_id |                                                              |
| 28     | 8    | ledger_id      | V2 only                                                      |

The rest of the header is zero. All integers are big-endian.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from crc32c import crc32c

from afterglow.errors import CorruptBlock
from afterglow.format.frames import PADDING

if TYPE_CHECKING:
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
    """The block's ledger; None in V1, where only the object's key tells it."""
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


def encode_block(header: BlockHeader, frames: Buffer) -> bytearray:
    """A whole block: header, the given frames as they are, padding up to the block's length.

    Raises:
        CorruptBlock: The frames do not fit the block's length.
    """
    out = bytearray(header.block_bytes)
    encode_block_into(out, 0, header, frames)
    return out


def encode_block_into(out: bytearray | memoryview, offset: int, header: BlockHeader, frames: Buffer) -> int:
    """Write a whole block at ``offset`` of ``out``; returns the offset behind it.

    Entries are copied once, as one stretch: this is what makes offloading a copy and not an encoding.

    Raises:
        CorruptBlock: The frames do not fit the block's length.
    """
    source = memoryview(frames).cast("B")
    end = enclose_frames(out, offset, header, source.nbytes)
    body = offset + header.header_bytes
    memoryview(out)[body : body + source.nbytes] = source
    return end


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
