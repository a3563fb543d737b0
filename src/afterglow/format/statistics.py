"""Statistics of blocks (times, counts, checksums), and their encoding in the index.

The table is one columnar protobuf message per ledger: base64 in ``LedgerInfo.properties`` of a V2 index, bytes in
``LedgerMetadataFormat.customMetadata`` of a V1 index. Stock readers ignore the key.
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
from afterglow.format.frames import FRAME_BYTES, as_bytes_array
from afterglow.format.proto.afterglow_pb2 import BlockStatistics as BlockStatisticsProto

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from typing_extensions import Buffer

KEY = "afterglow/blocks"
"""Key of the table in properties or custom metadata."""

STRIPE_BYTES = 1 << 20
"""V1 blocks are too large to fetch for one entry, so each stripe of a block has a CRC as well."""

_VERSION = 1
_NONE = -1


@dataclass(frozen=True, slots=True)
class BlockStatistics:
    """Statistics of one block. Times in epoch milliseconds, bounds inclusive; None if no entry has one."""

    entries: int
    payload_bytes: int
    """Bytes of the entries, without frame headers."""
    crc32c: int
    """CRC32C of the whole block, including header and padding."""
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
    """For each stripe, the number of entries that begin before it. Empty if the index does not contain it."""
    stripe_first_frame: tuple[int, ...] = ()
    """For each stripe, the offset in it of the first frame that begins in it; its length if none does."""
    undelivered: int = 0
    """Entries without any byte, each in place of one that a broker of Pulsar did not deliver."""

    @property
    def times(self) -> tuple[int | None, int | None, int | None, int | None]:
        """Least and greatest broker time, least and greatest publish time."""
        return self.min_broker_time, self.max_broker_time, self.min_publish_time, self.max_publish_time


def measure_block(
    block: Buffer, frames: Buffer, offsets: NDArray[np.int64], *, stripes: bool = False
) -> BlockStatistics:
    """Measure one block.

    Args:
        block: The whole block as stored.
        frames: Bytes that contain the block's frames.
        offsets: Offset of each frame in ``frames``, and the end of the last.
        stripes: Include checksums and frame offsets of stripes.
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
        undelivered=int(np.count_nonzero(np.diff(offsets) == FRAME_BYTES)),
        stripes=stripe_checksums(view) if stripes else (),
        stripe_entries_before=before,
        stripe_first_frame=first_frame,
    )


def stripe_checksums(block: Buffer) -> tuple[int, ...]:
    """Return the CRC32C of each stripe of a block."""
    view = memoryview(block).cast("B")
    return tuple(crc32c(view[at : at + STRIPE_BYTES]) for at in range(0, view.nbytes, STRIPE_BYTES))


def locate_stripes(block: Buffer, offsets: NDArray[np.int64]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return for each stripe the number of entries that begin before it, and the offset in it of the next frame.

    A frame belongs to the stripe that contains its first byte.

    Args:
        block: The whole block.
        offsets: Offset of each frame from any origin, and the end of the last.
    """
    view = memoryview(block).cast("B")
    starts = offsets[:-1] - offsets[0] + decode_header(view).header_bytes
    stripes = np.arange(0, view.nbytes, STRIPE_BYTES)
    before = np.searchsorted(starts, stripes)
    # If no further frame begins in a stripe, its offset is the end of the stripe.
    following = np.append(starts, view.nbytes)[before]
    first_frame = np.minimum(following, np.minimum(stripes + STRIPE_BYTES, view.nbytes)) - stripes
    return tuple(before.tolist()), tuple(first_frame.tolist())


def encode_statistics(blocks: Sequence[BlockStatistics]) -> bytes:
    """Encode the table of a ledger's blocks, in order."""
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
    if any(block.undelivered for block in blocks):
        proto.hidden.extend(block.undelivered for block in blocks)
    if proto.stripe_crc32c:
        proto.stripe_bytes = STRIPE_BYTES
    return proto.SerializeToString(deterministic=True)


def decode_statistics(data: bytes, block_bytes: Sequence[int]) -> tuple[BlockStatistics, ...]:
    """Decode the table of a ledger's blocks.

    Args:
        data: The encoded table.
        block_bytes: Length of each block, which determines the number of stripes.

    Raises:
        CorruptIndex: The table does not parse or does not match the blocks.
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
    undelivered = proto.hidden or [0] * len(block_bytes)
    if len(undelivered) != len(block_bytes):
        raise CorruptIndex(f"a column of {len(undelivered)} counts does not describe {len(block_bytes)} blocks")
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
            undelivered=undelivered[i],
            stripes=stripes[i],
            stripe_entries_before=before[i],
            stripe_first_frame=first_frame[i],
        )
        for i in range(len(block_bytes))
    )


def _split_stripes(proto: BlockStatisticsProto, block_bytes: Sequence[int]) -> list[list[tuple[int, ...]]]:
    """Return the three columns of stripes, each with one tuple per block; empty tuples if a column is missing."""
    columns = (proto.stripe_crc32c, proto.stripe_entries_before, proto.stripe_first_frame)
    if any(columns) and proto.stripe_bytes != STRIPE_BYTES:
        raise CorruptIndex(f"unsupported stripe size {proto.stripe_bytes}; supported is {STRIPE_BYTES}")
    counts = [-(-size // STRIPE_BYTES) for size in block_bytes]
    ends = list(accumulate(counts, initial=0))
    found: list[list[tuple[int, ...]]] = []
    for column in columns:
        if column and len(column) != ends[-1]:
            raise CorruptIndex(f"a column of {len(column)} stripes does not cover {ends[-1]} stripes")
        found.append([tuple(column[start:end]) for start, end in pairwise(ends)])
    if len(found[1]) and bool(found[1][0]) != bool(found[2][0]):
        raise CorruptIndex("the index has only one of stripe_entries_before and stripe_first_frame")
    return found


def _or_none(value: int | None) -> int:
    return _NONE if value is None else value


def _known(value: int) -> int | None:
    return None if value == _NONE else value
