from __future__ import annotations

import base64
import struct
from bisect import bisect_right
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.assemble import encode_block

from afterglow.errors import CorruptIndex
from afterglow.format.blocks import Format, plan_v1, plan_v2
from afterglow.format.frames import frame_entries, scan_frames
from afterglow.format.index import (
    ClosedLedger,
    IndexBlock,
    LedgerGroup,
    ObjectIndex,
    decode_index,
    encode_index,
    ledger_info,
    ledger_metadata,
    read_metadata,
)
from afterglow.format.proto.bookkeeper_pb2 import LedgerMetadataFormat
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
from afterglow.format.statistics import KEY, BlockStatistics, measure_block

BLOCK = 250
V1_METADATA = bytes.fromhex(
    "08021003181e20022803321d0a0762313a333138310a0762323a333138310a0762333a333138311000380348025080d095ffbc315a150a0b61"
    "70706c69636174696f6e120670756c736172"
)
V1_INDEX = (
    bytes.fromhex("de47de470000007f00000000000000c20000000000000080000000010000004b")
    + V1_METADATA
    + bytes.fromhex("0000000000000000000000010000000000000000")
)
V2_INDEX = bytes.fromhex(
    "3d1fb0bc00000049000000000050000000000000000000800000000000000007000000010000000d08071003181e2080d095ffbc31"
    "0000000000000000000000010000000000000000"
)


@dataclass
class StockIndex:
    """What Pulsar's reader takes from an index: read as it reads it, by position alone, unknown properties ignored."""

    data_bytes: int
    header_bytes: int
    ledgers: dict[int, tuple[int, list[tuple[int, int, int]]]]
    """By ledger (-1 in V1): last entry id, and first entry, part and offset of each block."""

    @classmethod
    def parse(cls, data: bytes) -> StockIndex:
        magic, _ignored, data_bytes, header_bytes = struct.unpack_from(">iiqq", data)
        found = cls(data_bytes, header_bytes, {})
        at = 24
        while at < len(data):
            ledger = -1
            if magic == 0x3D1FB0BC:
                (ledger,) = struct.unpack_from(">q", data, at)
                at += 8
            else:
                assert magic == 0xDE47DE47 - 2**32
            count, size = struct.unpack_from(">ii", data, at)
            metadata = data[at + 8 : at + 8 + size]
            at += 8 + size
            if ledger < 0:
                v1 = LedgerMetadataFormat.FromString(metadata)
                assert v1.IsInitialized()
                assert v1.digestType in {1, 2, 3, 4}
                last = v1.lastEntryId
            else:
                v2 = ManagedLedgerInfo.LedgerInfo.FromString(metadata)
                assert v2.IsInitialized()
                last = v2.entries - 1
            found.ledgers[ledger] = (last, sorted(struct.iter_unpack(">qiq", data[at : at + 20 * count])))
            at += 20 * count
        return found

    def read(self, data: bytes, ledger: int, first: int, last: int) -> list[tuple[int, bytes]]:
        """Entries ``first`` to ``last``: the block by binary search, then frame by frame, each bounded by its block."""
        highest, blocks = self.ledgers[ledger]
        assert 0 <= first <= last <= highest
        found: list[tuple[int, bytes]] = []
        expected = first
        at = end = -1
        while expected <= last:
            if end - at < 12 or struct.unpack_from(">i", data, at)[0] < 0:
                _, _, offset = blocks[bisect_right(blocks, expected, key=lambda block: block[0]) - 1]
                at, end = offset + self.header_bytes, offset + struct.unpack_from(">q", data, offset + 12)[0]
            length, entry_id = struct.unpack_from(">iq", data, at)
            if entry_id == expected:
                found.append((entry_id, data[at + 12 : at + 12 + length]))
                expected += 1
            at += 12 + length
        return found


def write(version: Format, ledgers: dict[int, list[bytes]]) -> tuple[bytes, bytes]:
    """A data object and its index, with statistics."""
    data = bytearray()
    groups = []
    part = 0
    for ledger_id, entries in ledgers.items():
        framed = frame_entries(entries)
        offsets = scan_frames(framed, 0).offsets
        if version is Format.V1:
            plans = plan_v1(offsets, BLOCK)
        else:
            plans = plan_v2(offsets, ledger_id, 0, block_bytes=BLOCK, offset=len(data))
        statistics = []
        blocks = []
        for plan in plans:
            part += 1
            block = encode_block(plan.header, framed[plan.start : plan.end])
            blocks.append(IndexBlock(plan.header.first_entry_id, part, plan.offset))
            inside = offsets[plan.header.first_entry_id : plan.end_entry_id + 1]
            statistics.append(measure_block(block, framed, inside, stripes=version is Format.V1))
            data += block
        size = sum(map(len, entries))
        if version is Format.V1:
            metadata = ledger_metadata(ClosedLedger(len(entries) - 1, size, 1, "ml"), statistics)
        else:
            info = ManagedLedgerInfo.LedgerInfo(ledgerId=ledger_id, entries=len(entries), size=size)
            metadata = ledger_info(info, statistics)
        group_ledger = None if version is Format.V1 else ledger_id
        groups.append(LedgerGroup(group_ledger, metadata, tuple(blocks), len(entries) - 1, tuple(statistics)))
    index = ObjectIndex(version, len(data), tuple(groups))
    encoded = encode_index(index)
    assert decode_index(encoded) == index
    return bytes(data), encoded


ENTRIES = st.lists(st.binary(max_size=100), min_size=1, max_size=8)


def test_the_known_indexes_are_read_and_written() -> None:
    v1, v2 = decode_index(V1_INDEX), decode_index(V2_INDEX)
    assert v1 == ObjectIndex(Format.V1, 194, (LedgerGroup(None, V1_METADATA, (IndexBlock(0, 1, 0),), 2),))
    assert v2.groups[0].ledger_id == 7
    assert (v2.data_bytes, v2.groups[0].last_entry_id, v2.groups[0].blocks) == (5 << 20, 2, (IndexBlock(0, 1, 0),))
    assert (encode_index(v1), encode_index(v2)) == (V1_INDEX, V2_INDEX)


@given(ENTRIES)
def test_a_stock_reader_reads_our_v1_objects(entries: list[bytes]) -> None:
    data, encoded = write(Format.V1, {-1: entries})
    stock = StockIndex.parse(encoded)
    assert stock.data_bytes == len(data)
    for first in range(len(entries)):
        assert stock.read(data, -1, first, len(entries) - 1) == list(enumerate(entries))[first:]


@given(st.dictionaries(st.integers(0, 2**40), ENTRIES, min_size=1, max_size=3))
def test_a_stock_reader_reads_our_v2_objects(ledgers: dict[int, list[bytes]]) -> None:
    data, encoded = write(Format.V2, ledgers)
    stock = StockIndex.parse(encoded)
    assert stock.data_bytes == len(data)
    for ledger_id, entries in ledgers.items():
        assert stock.read(data, ledger_id, 0, len(entries) - 1) == list(enumerate(entries))


def test_extents_cover_the_object_in_its_order() -> None:
    data, encoded = write(Format.V2, {9: [b"a" * 90] * 3, 2: [b"b" * 300], 5: [b""]})
    index = decode_index(encoded)
    extents = [(group.ledger_id, number, start, end) for group, number, start, end in index.extents()]
    assert [extent[:2] for extent in extents] == [(9, 0), (9, 1), (9, 2), (2, 0), (5, 0)]
    assert [extent[2] for extent in extents] == [0] + [extent[3] for extent in extents[:-1]]
    assert extents[-1][3] == len(data)


def test_groups_are_put_in_the_order_of_their_blocks() -> None:
    index = decode_index(write(Format.V2, {9: [b"a"], 2: [b"b"]})[1])
    reversed_groups = ObjectIndex(index.format, index.data_bytes, index.groups[::-1])
    assert decode_index(encode_index(reversed_groups)) == index
    assert index.group(2) is index.groups[1]
    assert index.group(3) is None


def test_a_v1_index_has_one_group_whatever_the_ledger() -> None:
    index = decode_index(V1_INDEX)
    assert index.group(77) is index.group(None) is index.groups[0]


@pytest.mark.parametrize("encoded", [V1_INDEX, V2_INDEX])
def test_an_index_cut_anywhere_is_refused(encoded: bytes) -> None:
    for size in range(len(encoded)):
        with pytest.raises(CorruptIndex):
            decode_index(encoded[:size])
        # Also where the length is made to agree with the cut.
        if size >= 8:
            cut = encoded[:4] + size.to_bytes(4, "big") + encoded[8:size]
            if encoded is V2_INDEX and size == 24:
                assert decode_index(cut).groups == ()  # an index of no ledger: for index_problems to tell
                continue
            with pytest.raises(CorruptIndex):
                decode_index(cut)


@pytest.mark.parametrize("encoded", [V1_INDEX, V2_INDEX, write(Format.V2, {1: [b"x" * 200] * 2, 2: [b"y"]})[1]])
def test_every_flipped_bit_gives_an_index_or_a_typed_error(encoded: bytes) -> None:
    refused = 0
    for bit in range(8 * len(encoded)):
        flipped = bytearray(encoded)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            assert decode_index(flipped) != decode_index(encoded)
        except CorruptIndex:
            refused += 1
    assert refused > 8 * 8  # magic and length at the least


@given(st.sampled_from([V1_INDEX[:24], V2_INDEX[:24]]), st.binary(max_size=120))
def test_random_bytes_behind_a_true_head_give_an_index_or_a_typed_error(head: bytes, tail: bytes) -> None:
    data = head[:4] + (24 + len(tail)).to_bytes(4, "big") + head[8:] + tail
    try:
        index = decode_index(data)
    except CorruptIndex:
        return
    list(index.extents())


def test_bytes_behind_an_index_are_refused() -> None:
    with pytest.raises(CorruptIndex, match="its header says"):
        decode_index(V1_INDEX + bytes(4))
    with pytest.raises(CorruptIndex, match="4 bytes follow the end of the index"):
        decode_index(V1_INDEX[:4] + (len(V1_INDEX) + 4).to_bytes(4, "big") + V1_INDEX[8:] + bytes(4))


def test_counts_that_pass_the_end_are_refused_before_anything_is_allocated() -> None:
    for count, size in ((2**31 - 1, 0), (0, 2**31 - 1), (-1, 0), (0, -1)):
        head = V1_INDEX[:4] + (32).to_bytes(4, "big") + V1_INDEX[8:24]
        with pytest.raises(CorruptIndex):
            decode_index(head + struct.pack(">ii", count, size))
    torn = V1_INDEX[:4] + (35).to_bytes(4, "big") + V1_INDEX[8:24] + struct.pack(">ii", 1, 0) + b"..."
    with pytest.raises(CorruptIndex, match="exceed the index"):
        decode_index(torn)


LEDGER = ClosedLedger(2, 30, 1_700_000_000_000, "public/default/persistent/t", ("b1:3181", "b2:3181"), {"more": b"x"})
INFO = ManagedLedgerInfo.LedgerInfo(ledgerId=7, entries=3, size=30, timestamp=1_700_000_000_000)
BLOCKS = (IndexBlock(0, 1, 0), IndexBlock(2, 2, 300))
TABLE = (BlockStatistics(2, 20, 1, 5, 6, 7, 8, 0, 1, (11,)), BlockStatistics(1, 10, 2, stripes=(12,)))

KNOWN = (
    "08021003181e20022803321d0a0762313a333138310a0762323a333138310a0762333a333138311000380348025080d095ffbc315a150a0b61"
    "70706c69636174696f6e120670756c736172"
)


def test_the_known_metadata_is_understood() -> None:
    assert read_metadata(Format.V1, bytes.fromhex(KNOWN), BLOCKS[:1], 194) == (2, None)


def test_v1_metadata_has_every_field_that_a_stock_reader_wants() -> None:
    proto = LedgerMetadataFormat.FromString(ledger_metadata(LEDGER))
    assert proto.IsInitialized()
    assert (proto.length, proto.lastEntryId, proto.state, proto.ctime) == (30, 2, 3, 1_700_000_000_000)
    assert (proto.quorumSize, proto.ensembleSize, proto.ackQuorumSize, proto.digestType) == (2, 2, 2, 3)
    assert [list(segment.ensembleMember) for segment in proto.segment] == [["b1:3181", "b2:3181"]]
    assert not proto.HasField("password")
    assert {pair.key: pair.value for pair in proto.customMetadata} == {
        "application": b"pulsar",
        "component": b"managed-ledger",
        "pulsar/managed-ledger": b"public/default/persistent/t",
        "more": b"x",
    }


def test_v2_metadata_without_statistics_is_the_ledgers_own_record() -> None:
    assert ledger_info(INFO).hex() == "08071003181e2080d095ffbc31"
    assert read_metadata(Format.V2, ledger_info(INFO), BLOCKS, 600) == (2, None)


@pytest.mark.parametrize("version", Format)
def test_statistics_ride_in_the_metadata_and_change_nothing_else(version: Format) -> None:
    if version is Format.V1:
        plain, full = ledger_metadata(LEDGER), ledger_metadata(LEDGER, TABLE)
        v1 = LedgerMetadataFormat.FromString(full)
        del v1.customMetadata[-1]
        assert v1 == LedgerMetadataFormat.FromString(plain)
    else:
        before = INFO.SerializeToString()
        plain, full = ledger_info(INFO), ledger_info(INFO, TABLE)
        assert INFO.SerializeToString() == before
        v2 = ManagedLedgerInfo.LedgerInfo.FromString(full)
        del v2.properties[-1]
        assert v2 == INFO
    assert read_metadata(version, plain, BLOCKS, 600) == (2, None)
    assert read_metadata(version, full, BLOCKS, 600) == (2, TABLE)
    with pytest.raises(CorruptIndex, match="1 blocks"):
        read_metadata(version, full, BLOCKS[:1], 600)


@pytest.mark.parametrize("text", ["*", "AAA", "żółć", base64.b64encode(b"\xff").decode()])
def test_invalid_statistics_are_a_corrupt_index(text: str) -> None:
    info = ManagedLedgerInfo.LedgerInfo()
    info.CopyFrom(INFO)
    info.properties.add(key=KEY, value=text)
    with pytest.raises(CorruptIndex):
        read_metadata(Format.V2, info.SerializeToString(), BLOCKS, 600)


@pytest.mark.parametrize("version", Format)
@pytest.mark.parametrize("metadata", [b"", b"\xff", b"\x20\x02"])
def test_metadata_that_does_not_parse_or_lacks_what_is_required_is_a_corrupt_index(
    version: Format, metadata: bytes
) -> None:
    with pytest.raises(CorruptIndex, match="metadata"):
        read_metadata(version, metadata, BLOCKS, 600)
