"""Consistency checks of an index, and of blocks against their index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from afterglow.errors import CorruptBlock
from afterglow.format.blocks import Format, block_checksum, decode_header
from afterglow.format.frames import scan_frames

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

    from afterglow.format.blocks import BlockHeader
    from afterglow.format.frames import Frames
    from afterglow.format.index import LedgerGroup, ObjectIndex


@dataclass(frozen=True, slots=True)
class Damage:
    """A contradiction or corruption in an object."""

    ledger_id: int | None
    entry_id: int | None
    """First affected entry; None if the damage concerns the whole object."""
    detail: str

    def __str__(self) -> str:
        if self.entry_id is None:
            return f"object: {self.detail}"
        return f"entry {'?' if self.ledger_id is None else self.ledger_id}:{self.entry_id}: {self.detail}"


@dataclass(frozen=True, slots=True)
class ParsedBlock:
    """A block with the offsets of its frames."""

    header: BlockHeader
    frames: Frames
    """Offsets relative to the block's first byte."""


def index_problems(index: ObjectIndex, data_bytes: int | None = None, ledger_id: int | None = None) -> Iterator[Damage]:
    """Yield contradictions within an index, and with the data object's length if given.

    Args:
        index: The index.
        data_bytes: Length of the data object.
        ledger_id: The ledger of a V1 object.
    """
    if data_bytes is not None and data_bytes != index.data_bytes:
        yield Damage(None, None, f"the index says {index.data_bytes} bytes, the data object has {data_bytes}")
    if not index.groups or not all(group.blocks for group in index.groups):
        yield Damage(None, None, "the index has no blocks for a ledger")
        return
    seen: set[int | None] = set()
    for group in index.groups:
        if group.ledger_id in seen:
            yield Damage(group.ledger_id, group.blocks[0].first_entry_id, "the index has two groups for its ledger")
        seen.add(group.ledger_id)
    before = 0
    for group, number, offset, end in index.extents():
        ledger = ledger_id if group.ledger_id is None else group.ledger_id
        block = group.blocks[number]
        if number and block.first_entry_id <= group.blocks[number - 1].first_entry_id:
            yield Damage(ledger, block.first_entry_id, "its block does not follow the previous one")
        if offset < before or offset >= index.data_bytes or end - offset < index.header_bytes:
            yield Damage(
                ledger,
                block.first_entry_id,
                f"its block begins at {offset} and does not fit in an object of {index.data_bytes} bytes",
            )
        before = offset
    first = next(index.extents())
    if first[2] != 0:
        yield Damage(None, None, f"the first block begins at {first[2]}, not at 0")
    if index.format is Format.V1 and index.groups[0].blocks[0].first_entry_id != 0:
        yield Damage(ledger_id, index.groups[0].blocks[0].first_entry_id, "entry 0 is missing in the first block")


def open_block(data: Buffer, first_entry_id: int | None = None, ledger_id: int | None = None) -> ParsedBlock:
    """Decode a block's header and find its frames.

    Args:
        data: Exactly the block's bytes.
        first_entry_id: The block's first entry in the index.
        ledger_id: The block's ledger in the index.

    Raises:
        CorruptBlock: The header is corrupt, or contradicts the index or the length.
    """
    view = memoryview(data).cast("B")
    header = decode_header(view)
    if header.block_bytes != view.nbytes:
        raise CorruptBlock(f"its block has {view.nbytes} bytes, its header says {header.block_bytes}")
    if first_entry_id is not None and header.first_entry_id != first_entry_id:
        raise CorruptBlock(f"its block begins with entry {header.first_entry_id}")
    if ledger_id is not None and header.ledger_id not in {None, ledger_id}:
        raise CorruptBlock(f"its block belongs to ledger {header.ledger_id}")
    return ParsedBlock(header, scan_frames(view, header.first_entry_id, header.header_bytes))


def block_problems(
    data: Buffer, block: ParsedBlock, group: LedgerGroup, number: int, *, whole_ledger: bool
) -> Iterator[Damage]:
    """Yield the damage of a block, compared with its group of the index.

    Args:
        data: The block's bytes.
        block: The parsed block.
        group: The group of the index.
        number: The block's number in the group.
        whole_ledger: Whether the object must contain the ledger up to its last entry, as in V1.
    """
    frames = block.frames
    ledger = group.ledger_id if group.ledger_id is not None else block.header.ledger_id
    if frames.damage:
        yield Damage(ledger, frames.end_entry_id, frames.damage)
    last = number + 1 == len(group.blocks)
    expected = None if last else group.blocks[number + 1].first_entry_id
    if last and whole_ledger:
        expected = group.last_entry_id + 1
    if expected is not None and frames.end_entry_id < expected and not frames.damage:
        yield Damage(ledger, frames.end_entry_id, f"entries {frames.end_entry_id}..{expected - 1} are missing")
    if expected is not None and frames.end_entry_id > expected:
        yield Damage(ledger, expected, f"entries {expected}..{frames.end_entry_id - 1} follow the block's last entry")
    if last and not len(frames) and not frames.damage and expected is None:
        yield Damage(ledger, frames.end_entry_id, "its block is empty")
    if group.statistics is not None:
        known = group.statistics[number]
        found = block_checksum(data)
        if found != known.crc32c:
            yield Damage(
                ledger,
                block.header.first_entry_id,
                f"its block has CRC32C {found:08x}, the index says {known.crc32c:08x}",
            )
        elif known.entries != len(frames):
            yield Damage(
                ledger,
                block.header.first_entry_id,
                f"its block has {len(frames)} entries, the index says {known.entries}",
            )
