from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterglow.errors import FormatError
from afterglow.format.compression import MAX_EXPANSION, Codec, compress
from afterglow.format.proto.afterglow_pb2 import BlockStatistics, DeleteRecord
from afterglow.format.proto.managed_ledger_pb2 import (
    CompressionType,
    ManagedLedgerInfo,
    ManagedLedgerInfoMetadata,
    OffloadContext,
)
from afterglow.verify.topic_metadata import open_envelope
from afterglow.verify.wire import Message, zigzag

CODECS = [Codec.LZ4, Codec.ZLIB, Codec.ZSTD, Codec.SNAPPY]
INT64 = st.integers(-(2**63), 2**63 - 1)


@given(INT64, INT64, st.booleans())
def test_numbers_come_back_as_protobuf_wrote_them(msb: int, lsb: int, complete: bool) -> None:  # noqa: FBT001 - drawn
    message = Message(OffloadContext(uidMsb=msb, uidLsb=lsb, complete=complete).SerializeToString())
    assert (message.integer(1), message.integer(2), message.flag(3)) == (msb, lsb, complete)
    assert not message.has(5)
    assert message.integer_or_none(5) is None


@given(st.lists(st.integers(0, 2**32 - 1)), st.lists(st.integers(0, 2**64 - 1)), st.lists(INT64))
def test_columns_come_back_as_protobuf_wrote_them(fixed: list[int], plain: list[int], zig: list[int]) -> None:
    proto = BlockStatistics(crc32c=fixed, bytes=plain, min_broker_time=zig)
    message = Message(proto.SerializeToString())
    assert list(message.fixed32_column(10)) == fixed
    assert list(message.column(3)) == plain
    assert [zigzag(value) for value in message.column(4)] == zig


@given(st.text())
def test_texts_and_messages_come_back_as_protobuf_wrote_them(text: str) -> None:
    message = Message(DeleteRecord(reason=text, uuid="u").SerializeToString())
    assert message.text(4) == text
    row = ManagedLedgerInfo.LedgerInfo(ledgerId=7)
    row.properties.add(key="k", value=text)
    info = Message(ManagedLedgerInfo(ledgerInfo=[row, row]).SerializeToString())
    assert [ledger.message(6).text(2) for ledger in info.messages(1)] == [text, text]


def test_an_unpacked_column_is_read_too() -> None:
    assert Message(b"\x10\x05\x10\x06\x12\x01\x07").column(2) == (5, 6, 7)


def test_of_a_field_that_comes_twice_the_last_counts() -> None:
    assert Message(b"\x08\x01\x08\x02").integer(1) == 2


@pytest.mark.parametrize(
    "data", [b"\x08", b"\x0a\x05ab", b"\x00\x01", b"\x0b", b"\x0d\x01\x02", b"\x08" + b"\xff" * 10 + b"\x01"]
)
def test_bytes_that_are_not_a_message_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        Message(data)


def test_a_field_of_another_type_is_refused() -> None:
    with pytest.raises(FormatError, match="field 1 holds bytes"):
        Message(b"\x0a\x01a").integer(1)
    with pytest.raises(FormatError, match="field 1 holds a number"):
        Message(b"\x08\x01").text(1)
    with pytest.raises(FormatError, match="UTF-8"):
        Message(b"\x0a\x01\xff").text(1)
    with pytest.raises(FormatError, match="32-bit"):
        Message(b"\x0a\x01a").fixed32_column(1)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    try:
        Message(data)
        open_envelope(b"\x47\x78" + data)
    except FormatError:
        pass


def test_a_claim_of_too_many_bytes_is_refused_before_it_costs_memory() -> None:
    header = b"\x08\x03\x10" + b"\xff\xff\xff\xff\x07"
    with pytest.raises(FormatError, match="claims"):
        open_envelope(b"\x47\x78" + len(header).to_bytes(4, "big") + header + b"x")


def enveloped(codec: Codec, data: bytes, claim: int) -> bytes:
    header = ManagedLedgerInfoMetadata(
        compressionType=CompressionType.ValueType(int(codec)), uncompressedSize=claim
    ).SerializeToString()
    return b"\x47\x78" + len(header).to_bytes(4, "big") + header + data


@pytest.mark.parametrize("codec", CODECS)
def test_a_claim_that_the_value_cannot_hold_is_refused_before_it_costs_memory(
    codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("zlib.decompressobj", "pa.decompress"):
        monkeypatch.setattr(
            f"afterglow.verify.topic_metadata.{name}", lambda *_args, **_options: pytest.fail("allocated")
        )
    packed = compress(codec, b"x" * 100)
    for claim in (len(packed) * MAX_EXPANSION[codec] + 1, 256 << 20, 2**31 - 1):
        with pytest.raises(FormatError, match="cannot hold"):
            open_envelope(enveloped(codec, packed, claim))


@pytest.mark.parametrize("codec", CODECS)
def test_a_value_that_holds_more_or_less_than_it_claims_is_refused(codec: Codec) -> None:
    plain = b"abcd" * 4_000_000
    bomb = compress(codec, plain)
    assert open_envelope(enveloped(codec, bomb, len(plain))) == plain
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            open_envelope(enveloped(codec, bomb, 1000))
        assert tracemalloc.get_traced_memory()[1] < 4 * len(bomb) + (1 << 16)
    finally:
        tracemalloc.stop()
    for claim in (len(plain) - 1, len(plain) + 1):
        with pytest.raises(FormatError):
            open_envelope(enveloped(codec, bomb, claim))
