from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from afterglow.errors import CorruptMetadata
from afterglow.format.compression import Codec, compress
from afterglow.format.metadata_envelope import (
    parse_managed_cursor,
    parse_managed_ledger,
    serialize_managed_cursor,
    serialize_managed_ledger,
    unwrap,
    wrap,
)
from afterglow.format.proto.managed_ledger_pb2 import (
    CompressionType,
    ManagedCursorInfo,
    ManagedLedgerInfo,
    ManagedLedgerInfoMetadata,
)

GOLDEN = Path(os.environ.get("AFTERGLOW_GOLDEN", Path(__file__).resolve().parents[3] / "shared/golden"))
COMPRESSING = [Codec.LZ4, Codec.ZLIB, Codec.ZSTD, Codec.SNAPPY]

codecs = st.sampled_from(Codec)
plain_values = st.binary(max_size=500).map(lambda tail: b"\x0a" + tail)


def ledgers(*ids: int) -> ManagedLedgerInfo:
    info = ManagedLedgerInfo()
    for ledger_id in ids:
        info.ledgerInfo.add(ledgerId=ledger_id, entries=10, size=1000, timestamp=1_700_000_000_000)
    return info


# --- the envelope --------------------------------------------------------------------------------------------------


@given(plain_values, codecs, st.integers(0, 600))
def test_what_was_wrapped_comes_back(value: bytes, codec: Codec, threshold: int) -> None:
    assert unwrap(wrap(value, codec, threshold)) == value


@pytest.mark.parametrize("codec", COMPRESSING)
def test_only_a_value_above_the_threshold_is_wrapped(codec: Codec) -> None:
    value = b"\x0a" * 100
    assert wrap(value, codec, threshold_bytes=100) is value
    wrapped = wrap(value, codec, threshold_bytes=99)
    assert wrapped[:10].hex() == f"477800000004080{int(codec)}1064"


def test_without_a_codec_nothing_is_wrapped() -> None:
    value = b"\x0a" * 100
    assert wrap(value, Codec.NONE, threshold_bytes=0) is value


@given(plain_values, st.sampled_from(COMPRESSING), st.data())
def test_a_truncated_envelope_does_not_pass_for_another_value(value: bytes, codec: Codec, draw: st.DataObject) -> None:
    wrapped = wrap(value, codec, 0)
    cut = draw.draw(st.integers(2, len(wrapped) - 1))
    try:
        assert unwrap(wrapped[:cut]) == value  # zlib streams may lack their end
    except CorruptMetadata:
        return
    assert codec is Codec.ZLIB


@given(st.binary(max_size=60))
def test_random_bytes_behind_the_magic_are_refused(tail: bytes) -> None:
    with pytest.raises(CorruptMetadata, match="compressed metadata"):
        unwrap(b"\x47\x78" + tail)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("4778", "truncated after 2 bytes"),
        ("4778 ffffffff", "claims a header of -1 bytes"),
        ("4778 00000005 0801", "claims a header of 5 bytes"),
        ("4778 00000002 0801", "lacks uncompressedSize"),
        ("4778 00000004 08091005", "lacks compressionType"),
        ("4778 00000004 08011005 ffff", "metadata is corrupt"),
        ("4778 00000001 0f", "does not parse"),
    ],
)
def test_a_damaged_envelope_says_what_is_wrong(value: str, reason: str) -> None:
    with pytest.raises(CorruptMetadata, match=reason):
        unwrap(bytes.fromhex(value))


@pytest.mark.parametrize("codec", COMPRESSING)
@pytest.mark.parametrize("claim", [1_000, 2**31 - 1])
def test_a_value_that_does_not_hold_what_it_claims_costs_no_memory(codec: Codec, claim: int) -> None:
    header = ManagedLedgerInfoMetadata(compressionType=CompressionType.ValueType(codec), uncompressedSize=claim)
    data = header.SerializeToString()
    bomb = b"\x47\x78" + len(data).to_bytes(4, "big") + data + compress(codec, bytes(32 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptMetadata):
            unwrap(bomb)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(bomb) + (1 << 16)
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=60), st.sampled_from([ManagedLedgerInfo, ManagedCursorInfo]))
def test_no_plain_value_begins_with_the_magic(
    tail: bytes, message: type[ManagedLedgerInfo | ManagedCursorInfo]
) -> None:
    with pytest.raises(DecodeError):
        message.FromString(b"\x47\x78" + tail)


# --- managed ledgers -----------------------------------------------------------------------------------------------


def test_an_empty_value_is_a_managed_ledger_without_ledgers() -> None:
    assert parse_managed_ledger(b"") == ManagedLedgerInfo()


@given(st.lists(st.integers(0, 2**63 - 1), unique=True, max_size=8), codecs, st.integers(0, 200))
def test_a_managed_ledger_comes_back_with_its_ledgers_in_order(ids: list[int], codec: Codec, threshold: int) -> None:
    value = serialize_managed_ledger(ledgers(*ids), codec, threshold)
    assert parse_managed_ledger(value) == ledgers(*sorted(ids))


def test_a_ledger_that_is_named_twice_is_refused() -> None:
    with pytest.raises(CorruptMetadata, match="contains ledger 7 twice"):
        parse_managed_ledger(ledgers(7, 3, 7).SerializeToString())


def test_a_ledger_without_an_id_is_refused_when_read_and_when_written() -> None:
    with pytest.raises(CorruptMetadata, match=r"lacks ledgerInfo\[0\].ledgerId"):
        parse_managed_ledger(bytes.fromhex("0a021005"))
    info = ManagedLedgerInfo()
    info.ledgerInfo.add(entries=5)
    with pytest.raises(CorruptMetadata, match="cannot be stored"):
        serialize_managed_ledger(info)


@given(st.binary(max_size=100))
def test_random_bytes_parse_or_are_refused(value: bytes) -> None:
    for parse in (parse_managed_ledger, parse_managed_cursor):
        try:
            parse(value)
        except CorruptMetadata:
            continue


def test_every_managed_ledger_that_pulsar_wrote_is_read() -> None:
    values = {path.parent.name: path.read_bytes() for path in sorted(GOLDEN.glob("*/mlinfo.bin"))}
    if not values:
        pytest.skip(f"no {GOLDEN}/*/mlinfo.bin: set AFTERGLOW_GOLDEN to the directory of golden cases")
    assert any(value.startswith(b"\x47\x78") for value in values.values())
    for name, value in values.items():
        info = parse_managed_ledger(value)
        assert info.ledgerInfo, name
        assert any(ledger.offloadContext.complete for ledger in info.ledgerInfo), name
        assert parse_managed_ledger(serialize_managed_ledger(info, Codec.SNAPPY, 0)) == info, name


# --- cursors -------------------------------------------------------------------------------------------------------


@given(codecs, st.integers(-1, 2**63 - 1), st.integers(0, 40))
def test_a_cursor_comes_back(codec: Codec, entry_id: int, threshold: int) -> None:
    cursor = ManagedCursorInfo(cursorsLedgerId=-1, markDeleteLedgerId=5, markDeleteEntryId=entry_id)
    assert parse_managed_cursor(serialize_managed_cursor(cursor, codec, threshold)) == cursor


def test_a_cursor_without_its_ledger_is_refused() -> None:
    with pytest.raises(CorruptMetadata, match="lacks cursorsLedgerId"):
        parse_managed_cursor(b"")
