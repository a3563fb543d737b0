from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from tests.support import strategies

from afterglow.errors import CorruptEntry
from afterglow.format.entry import (
    decode_entry,
    encode_batch,
    encode_broker_metadata,
    encode_entry,
    iter_batch,
    split_broker_metadata,
)
from afterglow.format.proto.pulsar_api_pb2 import MessageMetadata, SingleMessageMetadata

METADATA = MessageMetadata(producer_name="p", sequence_id=1, publish_time=2)
HEAD = METADATA.SerializeToString()


def test_an_entry_has_the_known_bytes() -> None:
    body = b"\x00\x00\x00\x07" + b"\x0a\x01p\x10\x01\x18\x02" + b"hello"
    assert encode_entry(METADATA, b"hello", checksum=False) == body
    assert encode_entry(METADATA, b"hello") == b"\x0e\x01" + crc32c(body).to_bytes(4, "big") + body
    assert encode_broker_metadata(3, 4) == b"\x0e\x02\x00\x00\x00\x04\x08\x03\x10\x04"


@given(
    st.binary(max_size=30), st.booleans(), st.none() | st.tuples(st.none() | strategies.TIMES, st.none() | st.just(5))
)
def test_an_entry_comes_back(payload: bytes, checksum: bool, broker: tuple[int | None, int | None] | None) -> None:  # noqa: FBT001 (drawn)
    sent = encode_entry(METADATA, payload, checksum=checksum)
    stored = sent if broker is None else encode_broker_metadata(*broker) + sent
    found = decode_entry(stored)
    assert (found.metadata, bytes(found.payload)) == (METADATA, payload)
    assert (found.checksum is not None) == checksum
    metadata, rest = split_broker_metadata(stored)
    assert bytes(rest) == sent
    assert (metadata is None) == (broker is None)
    if broker is not None and found.broker is not None:
        time, index = broker
        assert (found.broker.broker_timestamp if found.broker.HasField("broker_timestamp") else None) == time
        assert (found.broker.index if found.broker.HasField("index") else None) == index


def test_a_flipped_byte_is_detected_if_the_checksum_is_verified() -> None:
    stored = bytearray(encode_broker_metadata(3, 4) + encode_entry(METADATA, b"hello"))
    stored[-1] ^= 1
    with pytest.raises(CorruptEntry, match="CRC32C"):
        decode_entry(stored)
    assert bytes(decode_entry(stored, check=False).payload) == b"helln"


@given(strategies.entries(), st.data())
def test_an_entry_cut_anywhere_is_refused_or_has_a_shorter_payload(entry: bytes, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(entry)))
    whole = decode_entry(entry, check=False)
    try:
        found = decode_entry(entry[:cut], check=False)
    except CorruptEntry:
        assert cut < len(entry) - whole.payload.nbytes
    else:
        assert found.metadata == whole.metadata
        assert whole.payload.tobytes().startswith(found.payload)


@given(st.sampled_from([b"", b"\x0e\x01", b"\x0e\x02"]), st.binary(max_size=60))
def test_random_bytes_are_an_entry_or_a_typed_error(magic: bytes, data: bytes) -> None:
    try:
        decode_entry(magic + data, check=False)
    except CorruptEntry:
        return


@pytest.mark.parametrize("missing", ["producer_name", "sequence_id", "publish_time"])
def test_metadata_without_a_required_field_is_refused(missing: str) -> None:
    metadata = MessageMetadata()
    metadata.CopyFrom(METADATA)
    metadata.ClearField(missing)  # type: ignore[arg-type]  # one of its fields
    with pytest.raises(CorruptEntry, match="required"):
        decode_entry(strategies.envelope(metadata.SerializePartialToString(), b""))


@given(st.lists(st.binary(max_size=20), max_size=5))
def test_a_batch_comes_back(payloads: list[bytes]) -> None:
    batch = encode_batch((SingleMessageMetadata(partition_key=str(i)), payload) for i, payload in enumerate(payloads))
    found = [(metadata.partition_key, bytes(payload)) for metadata, payload in iter_batch(batch, len(payloads))]
    assert found == [(str(i), payload) for i, payload in enumerate(payloads)]


def test_a_batch_that_claims_more_messages_than_it_has_is_refused_where_they_end() -> None:
    found = iter_batch(encode_batch([(SingleMessageMetadata(), b"x")]), 2**31 - 1)
    assert bytes(next(found)[1]) == b"x"
    with pytest.raises(CorruptEntry, match="0 bytes are too few"):
        next(found)


@given(strategies.batches(), st.data())
def test_a_batch_cut_anywhere_before_its_end_is_refused(batch: tuple[int, bytes], data: st.DataObject) -> None:
    count, payload = batch
    assert len(list(iter_batch(payload, count))) == count
    with pytest.raises(CorruptEntry):
        list(iter_batch(payload[: data.draw(st.integers(0, len(payload) - 1))], count))


def test_a_message_without_or_with_a_negative_size_is_refused() -> None:
    for head in (b"", SingleMessageMetadata(payload_size=-1).SerializeToString()):
        with pytest.raises(CorruptEntry):
            list(iter_batch(len(head).to_bytes(4, "big") + head + b"xxxx", 1))
