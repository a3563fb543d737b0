from __future__ import annotations

import base64

import pytest

from afterglow.errors import CorruptIndex
from afterglow.format.blocks import Format
from afterglow.format.index import IndexBlock
from afterglow.format.ledger_metadata import ClosedLedger, ledger_info, ledger_metadata, read_metadata
from afterglow.format.proto.bookkeeper_pb2 import LedgerMetadataFormat
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
from afterglow.format.statistics import KEY, BlockStatistics

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
def test_a_table_that_is_no_base64_or_no_table_is_a_corrupt_index(text: str) -> None:
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
