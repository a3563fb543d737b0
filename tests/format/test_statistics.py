from __future__ import annotations

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from tests.support import strategies
from tests.support.assemble import encode_block

from afterglow.errors import CorruptIndex
from afterglow.format.blocks import HEADER_BYTES, BlockHeader, Format
from afterglow.format.entry import decode_entry, encode_broker_metadata
from afterglow.format.frames import frame_entries, scan_frames
from afterglow.format.proto.afterglow_pb2 import BlockStatistics as Proto
from afterglow.format.statistics import (
    STRIPE_BYTES,
    BlockStatistics,
    decode_statistics,
    encode_statistics,
    locate_stripes,
    measure_block,
    stripe_checksums,
)

TIMES = st.none() | st.integers(0, 2**62)
U32 = st.integers(0, 2**32 - 1)


@st.composite
def blocks_with_sizes(draw: st.DrawFn) -> list[tuple[int, BlockStatistics]]:
    """Statistics of some blocks, and how long each block is."""
    striped, located = draw(st.booleans()), draw(st.booleans())
    found = []
    for size in draw(st.lists(st.integers(1, 4 * STRIPE_BYTES), max_size=4)):
        count = -(-size // STRIPE_BYTES) if striped else 0
        stripes, before, first_frame = (
            tuple(draw(st.lists(U32, min_size=n, max_size=n))) for n in (count, count * located, count * located)
        )
        block = BlockStatistics(
            entries=draw(U32),
            payload_bytes=draw(st.integers(0, 2**40)),
            crc32c=draw(U32),
            min_broker_time=draw(TIMES),
            max_broker_time=draw(TIMES),
            min_publish_time=draw(TIMES),
            max_publish_time=draw(TIMES),
            first_index=draw(TIMES),
            last_index=draw(TIMES),
            undelivered=draw(st.just(0) | U32),
            stripes=stripes,
            stripe_entries_before=before,
            stripe_first_frame=first_frame,
        )
        found.append((size, block))
    return found


@given(blocks_with_sizes())
def test_a_table_comes_back(blocks: list[tuple[int, BlockStatistics]]) -> None:
    sizes = [size for size, _ in blocks]
    table = tuple(block for _, block in blocks)
    encoded = encode_statistics(table)
    assert decode_statistics(encoded, sizes) == table
    assert encode_statistics(table) == encoded


@given(blocks_with_sizes(), st.lists(st.integers(1, 2**62), max_size=5))
def test_a_table_that_does_not_fit_the_blocks_is_refused(
    blocks: list[tuple[int, BlockStatistics]], sizes: list[int]
) -> None:
    table = [block for _, block in blocks]
    fits = len(sizes) == len(table) and all(
        not block.stripes or len(block.stripes) == -(-size // STRIPE_BYTES)
        for size, block in zip(sizes, table, strict=True)
    )
    if fits:
        assert len(decode_statistics(encode_statistics(table), sizes)) == len(sizes)
    elif len(sizes) != len(table) or sum(len(block.stripes) for block in table) != sum(
        -(-size // STRIPE_BYTES) for size in sizes
    ):
        with pytest.raises(CorruptIndex):
            decode_statistics(encode_statistics(table), sizes)


def test_another_version_or_another_stripe_is_refused() -> None:
    table = Proto.FromString(encode_statistics([BlockStatistics(1, 2, 3, stripes=(4,))]))
    table.stripe_bytes = 1 << 19
    with pytest.raises(CorruptIndex, match="unsupported stripe size 524288"):
        decode_statistics(table.SerializeToString(), [10])
    table.version = 2
    with pytest.raises(CorruptIndex, match="version 2"):
        decode_statistics(table.SerializeToString(), [10])


@given(st.binary(max_size=60), st.integers(0, 3))
def test_any_bytes_are_a_table_or_an_error(data: bytes, count: int) -> None:
    try:
        table = decode_statistics(data, [100] * count)
    except CorruptIndex:
        return
    assert len(table) == count


@given(strategies.ledgers())
def test_a_block_is_measured_as_its_entries_say(ledger: strategies.LedgerEntries) -> None:
    first = ledger.first_entry_id
    framed = frame_entries(ledger.entries, first)
    frames = scan_frames(framed, first)
    block = encode_block(BlockHeader(Format.V2, HEADER_BYTES + len(framed) + 3, first, 1), framed)
    found = measure_block(block, framed, frames.offsets)

    parts = [decode_entry(entry) for entry in ledger.entries]
    brokers = [part.broker for part in parts if part.broker is not None]
    broker_times = [broker.broker_timestamp for broker in brokers if broker.HasField("broker_timestamp")]
    publish_times = [part.metadata.publish_time for part in parts]
    indexes = [
        (part.broker.index, part.metadata.num_messages_in_batch)
        for part in parts
        if part.broker is not None and part.broker.HasField("index")
    ]
    assert found == BlockStatistics(
        entries=len(parts),
        payload_bytes=sum(map(len, ledger.entries)),
        crc32c=crc32c(bytes(block)),
        min_broker_time=min(broker_times, default=None),
        max_broker_time=max(broker_times, default=None),
        min_publish_time=min(publish_times, default=None),
        max_publish_time=max(publish_times, default=None),
        first_index=max(indexes[0][0] - indexes[0][1] + 1, 0) if indexes else None,
        last_index=max((index for index, _ in indexes), default=None),
    )


def test_entries_that_are_no_messages_count_as_entries_and_for_nothing_else() -> None:
    framed = frame_entries([b"", b"no message", b"\x0e\x02", encode_broker_metadata(5, 6)])
    found = measure_block(b"", framed, scan_frames(framed, 0).offsets)
    assert found == BlockStatistics(entries=4, payload_bytes=len(framed) - 48, crc32c=0, undelivered=1)


def v1_block(entries: list[bytes], padding: int = 0) -> tuple[bytearray, bytes]:
    """A V1 block of these entries, and its frames."""
    framed = frame_entries(entries, 7)
    return encode_block(BlockHeader(Format.V1, HEADER_BYTES + len(framed) + padding, 7), framed), framed


@pytest.mark.parametrize("extra", [-1, 0, 1, STRIPE_BYTES, 2 * STRIPE_BYTES + 5])
def test_every_stripe_of_a_block_has_a_checksum(extra: int) -> None:
    entry = np.random.default_rng(0).bytes(STRIPE_BYTES - HEADER_BYTES - 12 + extra)
    block, framed = v1_block([entry])
    found = measure_block(block, framed, scan_frames(framed, 7).offsets, stripes=True)
    stripes = [bytes(block[at : at + (1 << 20)]) for at in range(0, len(block), 1 << 20)]
    assert found.stripes == stripe_checksums(block) == tuple(map(crc32c, stripes))


@given(
    st.lists(st.sampled_from([0, 1, 100, 500_000, STRIPE_BYTES - 12, STRIPE_BYTES, 3 * STRIPE_BYTES]), max_size=6),
    st.sampled_from([0, 1, 2 * STRIPE_BYTES]),
)
def test_every_stripe_has_the_offset_of_its_first_frame(sizes: list[int], padding: int) -> None:
    block, framed = v1_block([bytes(size) for size in sizes], padding)
    offsets = scan_frames(framed, 7).offsets
    before, first_frame = locate_stripes(block, offsets)
    starts = (offsets[:-1] + HEADER_BYTES).tolist()
    for number, at in enumerate(range(0, len(block), STRIPE_BYTES)):
        end = min(at + STRIPE_BYTES, len(block))
        assert before[number] == sum(start < at for start in starts)
        assert first_frame[number] == min((start for start in starts if at <= start < end), default=end) - at
    assert len(before) == len(first_frame) == -(-len(block) // STRIPE_BYTES)


def test_a_table_with_only_one_column_of_stripe_offsets_is_rejected() -> None:
    table = Proto.FromString(
        encode_statistics([BlockStatistics(1, 2, 3, stripes=(4,), stripe_entries_before=(0,), stripe_first_frame=(9,))])
    )
    del table.stripe_first_frame[:]
    with pytest.raises(CorruptIndex, match="only one of stripe_entries_before"):
        decode_statistics(table.SerializeToString(), [10])
    table.stripe_first_frame.extend([1, 2])
    with pytest.raises(CorruptIndex, match="column of 2"):
        decode_statistics(table.SerializeToString(), [10])
