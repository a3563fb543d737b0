"""Statistics of blocks (times, counts, checksums), and their encoding inside the stock index.

The table is one protobuf message per ledger, in columns: base64 in ``LedgerInfo.properties`` of a V2 index, bytes in
``LedgerMetadataFormat.customMetadata`` of a V1 index. Readers that do not know the key pass over it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np
from crc32c import crc32c
from google.protobuf.message import DecodeError

from afterglow.errors import CorruptIndex
from afterglow.format._kernels.calls import measure_entries
from afterglow.format.blocks import decode_header
from afterglow.format.frames import as_bytes_array
from afterglow.format.proto.afterglow_pb2 import BlockStatistics as BlockStatisticsProto

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from typing_extensions import Buffer

KEY = "afterglow/blocks"
"""Name of the property or custom metadata that holds the table."""

STRIPE_BYTES = 1 << 20
"""V1 blocks are too large to fetch for one entry: each such stripe, counted from the block's start, has a CRC too."""

_VERSION = 1
_NONE = -1


@dataclass(frozen=True, slots=True)
class BlockStatistics:
    """What is in one block. Times in epoch milliseconds, both ends inclusive; None where no entry has one."""

    entries: int
    payload_bytes: int
    """Bytes of the entries without frames."""
    crc32c: int
    """Over the whole block, header to padding."""
    min_broker_time: int | None = None
    max_broker_time: int | None = None
    min_publish_time: int | None = None
    max_publish_time: int | None = None
    first_index: int | None = None
    """Index of the first message."""
    last_index: int | None = None
    """Index of the last message."""
    stripes: tuple[int, ...] = ()
    """CRC32C of each ``STRIPE_BYTES`` of the block, the last one shorter; empty in V2."""
    stripe_entries_before: tuple[int, ...] = ()
    """For each stripe, how many entries of the block begin before it. Empty where stripes were not located."""
    stripe_first_frame: tuple[int, ...] = ()
    """For each stripe, where in it the first frame begins that begins in it; its length where none does."""

    @property
    def times(self) -> tuple[int | None, int | None, int | None, int | None]:
        """Least and greatest broker time, least and greatest publish time."""
        return self.min_broker_time, self.max_broker_time, self.min_publish_time, self.max_publish_time


def measure_block(
    block: Buffer, frames: Buffer, offsets: NDArray[np.int64], *, stripes: bool = False
) -> BlockStatistics:
    """Measure one block.

    Args:
        block: The whole block as it will be stored.
        frames: Bytes that hold the block's frames.
        offsets: Offset of each frame in ``frames``, and behind the last.
        stripes: Checksum and locate each stripe as well.
    """
    times = [_known(int(value)) for value in measure_entries(as_bytes_array(frames), offsets)]
    view = memoryview(block).cast("B")
    before, first_frame = locate_stripes(view, offsets) if stripes else ((), ())
    return BlockStatistics(
        entries=offsets.size - 1,
        payload_bytes=int(offsets[-1] - offsets[0]) - 12 * (offsets.size - 1),
        crc32c=crc32c(view),
        min_broker_time=times[0],
        max_broker_time=times[1],
        min_publish_time=times[2],
        max_publish_time=times[3],
        first_index=times[4],
        last_index=times[5],
        stripes=stripe_checksums(view) if stripes else (),
        stripe_entries_before=before,
        stripe_first_frame=first_frame,
    )


def stripe_checksums(block: Buffer) -> tuple[int, ...]:
    """CRC32C of each stripe of a block."""
    view = memoryview(block).cast("B")
    return tuple(crc32c(view[at : at + STRIPE_BYTES]) for at in range(0, view.nbytes, STRIPE_BYTES))


def locate_stripes(block: Buffer, offsets: NDArray[np.int64]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """For each stripe of a block, how many entries begin before it, and where in it the next one begins.

    A frame belongs to the stripe that holds its first byte.

    Args:
        block: The whole block.
        offsets: Offset of each frame from any origin, and behind the last.
    """
    view = memoryview(block).cast("B")
    starts = offsets[:-1] - offsets[0] + decode_header(view).header_bytes
    stripes = np.arange(0, view.nbytes, STRIPE_BYTES)
    before = np.searchsorted(starts, stripes)
    # Behind the last entry, as in a stripe in which none begins, stands the stripe's end.
    following = np.append(starts, view.nbytes)[before]
    first_frame = np.minimum(following, np.minimum(stripes + STRIPE_BYTES, view.nbytes)) - stripes
    return tuple(before.tolist()), tuple(first_frame.tolist())


def encode_statistics(blocks: Sequence[BlockStatistics]) -> bytes:
    """The table of a ledger's blocks, in their order."""
    proto = BlockStatisticsProto(version=_VERSION)
    for block in blocks:
        proto.entries.append(block.entries)
        proto.bytes.append(block.payload_bytes)
        proto.min_broker_time.append(_or_none(block.min_broker_time))
        proto.max_broker_time.append(_or_none(block.max_broker_time))
        proto.min_publish_time.append(_or_none(block.min_publish_time))
        proto.max_publish_time.append(_or_none(block.max_publish_time))
        proto.first_index.append(_or_none(block.first_index))
        proto.last_index.append(_or_none(block.last_index))
        proto.crc32c.append(block.crc32c)
        proto.stripe_crc32c.extend(block.stripes)
        proto.stripe_entries_before.extend(block.stripe_entries_before)
        proto.stripe_first_frame.extend(block.stripe_first_frame)
    if proto.stripe_crc32c:
        proto.stripe_bytes = STRIPE_BYTES
    return proto.SerializeToString(deterministic=True)


def decode_statistics(data: bytes, block_bytes: Sequence[int]) -> tuple[BlockStatistics, ...]:
    """Read the table of a ledger's blocks.

    Args:
        data: What ``encode_statistics`` gave.
        block_bytes: Length of each block, from which the number of stripes follows.

    Raises:
        CorruptIndex: The table does not parse or does not fit the blocks.
    """
    try:
        proto = BlockStatisticsProto.FromString(data)
    except DecodeError as error:
        raise CorruptIndex(f"the block statistics of {len(data)} bytes do not parse: {error}") from error
    columns = (
        proto.entries, proto.bytes, proto.crc32c, proto.min_broker_time, proto.max_broker_time, proto.min_publish_time,
        proto.max_publish_time, proto.first_index, proto.last_index,
    )  # fmt: skip
    if proto.version != _VERSION or any(len(column) != len(block_bytes) for column in columns):
        raise CorruptIndex(f"block statistics of version {proto.version} do not describe {len(block_bytes)} blocks")
    stripes, before, first_frame = _split_stripes(proto, block_bytes)
    return tuple(
        BlockStatistics(
            entries=proto.entries[i],
            payload_bytes=proto.bytes[i],
            crc32c=proto.crc32c[i],
            min_broker_time=_known(proto.min_broker_time[i]),
            max_broker_time=_known(proto.max_broker_time[i]),
            min_publish_time=_known(proto.min_publish_time[i]),
            max_publish_time=_known(proto.max_publish_time[i]),
            first_index=_known(proto.first_index[i]),
            last_index=_known(proto.last_index[i]),
            stripes=stripes[i],
            stripe_entries_before=before[i],
            stripe_first_frame=first_frame[i],
        )
        for i in range(len(block_bytes))
    )


def _split_stripes(proto: BlockStatisticsProto, block_bytes: Sequence[int]) -> list[list[tuple[int, ...]]]:
    """The three columns of stripes, each as one tuple per block; empty ones where a column is absent."""
    columns = (proto.stripe_crc32c, proto.stripe_entries_before, proto.stripe_first_frame)
    if any(columns) and proto.stripe_bytes != STRIPE_BYTES:
        raise CorruptIndex(f"stripes of {proto.stripe_bytes} bytes are unknown; they have {STRIPE_BYTES}")
    counts = [-(-size // STRIPE_BYTES) for size in block_bytes]
    ends = list(accumulate(counts, initial=0))
    found: list[list[tuple[int, ...]]] = []
    for column in columns:
        if column and len(column) != ends[-1]:
            raise CorruptIndex(f"a column of {len(column)} stripes does not cover {ends[-1]} stripes")
        found.append([tuple(column[start:end]) for start, end in pairwise(ends)])
    if len(found[1]) and bool(found[1][0]) != bool(found[2][0]):
        raise CorruptIndex("the index tells of its stripes either the entries before them or their first frames")
    return found


def _or_none(value: int | None) -> int:
    return _NONE if value is None else value


def _known(value: int) -> int | None:
    return None if value == _NONE else value
