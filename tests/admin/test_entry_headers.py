from __future__ import annotations

import base64
import json
import tracemalloc
from typing import Any

import pytest

from afterglow.admin.entry_headers import headers_of, payload_of
from afterglow.admin.errors import AdminError
from afterglow.errors import CorruptEntry
from afterglow.format.compression import Codec, compress
from afterglow.format.entry import Entry, decode_entry, encode_entry
from afterglow.format.position import Position
from afterglow.format.proto.pulsar_api_pb2 import BrokerEntryMetadata, MessageMetadata

LIMIT = 5 << 20


def message(**fields: Any) -> MessageMetadata:
    return MessageMetadata(**{"producer_name": "p", "sequence_id": 0, "publish_time": 1_700_000_000_123, **fields})


def entry(metadata: MessageMetadata, payload: bytes = b"", broker: BrokerEntryMetadata | None = None) -> Entry:
    return Entry(broker, None, metadata, memoryview(payload))


def shown(metadata: MessageMetadata, broker: BrokerEntryMetadata | None = None) -> dict[str, str]:
    found = headers_of(Position(3, 4), entry(metadata, broker=broker), 1000)
    for name, value in found:
        assert name.isascii()
        assert value == value.strip()
        assert not any(char < " " or "\x7f" <= char < "\xa0" or char > "\xff" for char in value), name
    return {name.removeprefix("X-Pulsar-"): value for name, value in found}


def test_every_field_has_its_header() -> None:
    metadata = message(
        partition_key="a2V5",
        partition_key_b64_encoded=True,
        replicated_from="c",
        encryption_algo="AES",
        encryption_param=b"\x00\xff",
        schema_version=b"\x01",
        ordering_key=b"o",
        event_time=1_600_000_000_001,
        deliver_at_time=0,
        null_value=True,
        null_partition_key=False,
        highest_sequence_id=2**64 - 1,
        txnid_least_bits=1,
        txnid_most_bits=2**64 - 1,
        uuid="u",
        compression=3,
        uncompressed_size=500,
        marker_type=10,
        num_messages_in_batch=2,
    )
    metadata.encryption_keys.add(key="k", value=b"v")
    metadata.properties.add(key="a", value="1")
    metadata.properties.add(key="a", value="2")
    found = shown(metadata, BrokerEntryMetadata(broker_timestamp=1, index=7))
    assert base64.b64decode(found.pop("Base64-encryption-keys")) == metadata.encryption_keys[0].SerializeToString()
    assert found == {
        "Message-ID": "3:4",
        "PROPERTY": '{"a": "2"}',
        "Broker-Entry-METADATA-timestamp": "1970-01-01T00:00:00.001Z",
        "Broker-Entry-METADATA-index": "7",
        "publish-time": "2023-11-14T22:13:20.123Z",
        "event-time": "2020-09-13T12:26:40.001Z",
        "deliver-at-time": "1970-01-01T00:00:00.000Z",
        "num-batch-message": "2",
        "batch-size": str(1000 - metadata.ByteSize()),
        "Is-Encrypted": "true",
        "producer-name": "p",
        "sequence-id": "0",
        "replicated-from": "c",
        "partition-key": "a2V5",
        "partition-key-b64-encoded": "true",
        "compression": "ZSTD",
        "uncompressed-size": "500",
        "encryption-algo": "AES",
        "Base64-encryption-param": "AP8=",
        "Base64-schema-version": "AQ==",
        "Base64-ordering-key": "bw==",
        "null-value": "true",
        "null-partition-key": "false",
        "marker-type": "10",
        "highest-sequence-id": "-1",
        "txnid-least-bits": "1",
        "txnid-most-bits": "-1",
        "txn-aborted": "false",
        "txn-uncommitted": "false",
        "uuid": "u",
    }


def test_an_unset_field_has_no_header() -> None:
    assert set(shown(message())) == {
        "Message-ID", "PROPERTY", "publish-time", "Is-Encrypted", "producer-name", "sequence-id", "txn-uncommitted",
    }  # fmt: skip


def test_some_headers_repeat() -> None:
    found = headers_of(Position(0, 0), entry(message(replicate_to=["a", "b"])), 0)
    assert [value for name, value in found if name == "X-Pulsar-replicated-to"] == ["a", "b"]


def test_properties_keep_every_character() -> None:
    metadata = message()
    metadata.properties.add(key="grüße", value="日本\r\nX-Evil: 1")
    assert json.loads(shown(metadata)["PROPERTY"]) == {"grüße": "日本\r\nX-Evil: 1"}


@pytest.mark.parametrize("key", ["line\r\nX-Evil: 1", "日本", " padded ", "nul\x00", "\x7f"])
def test_a_key_that_no_header_can_carry_is_encoded(key: str) -> None:
    found = shown(message(partition_key=key))
    assert base64.b64decode(found["partition-key"]).decode() == key
    assert found["partition-key-b64-encoded"] == "true"


@pytest.mark.parametrize("text", ["p\r\nX-Evil: 1", "日本", "\x00\x7f\x85", " p "])
def test_text_of_a_producer_cannot_end_a_header_line(text: str) -> None:
    found = shown(message(producer_name=text, uuid=text, replicate_to=[text], encryption_algo=text))
    assert found["producer-name"] == found["uuid"] == found["replicated-to"] == found["encryption-algo"]


def test_text_that_is_not_unicode_is_shown_with_replacements() -> None:
    data = message(uuid="good").SerializeToString().replace(b"good", b"\xff\xfeod")
    torn = decode_entry(len(data).to_bytes(4, "big") + data)
    assert shown(torn.metadata)["uuid"] == "??od"


@pytest.mark.parametrize(
    ("moment", "written"),
    [
        (253_402_300_800_000, "+10000-01-01T00:00:00.000Z"),
        (2**63 - 1, "+292278994-08-17T07:12:55.807Z"),
        (2**64 - 1, "1969-12-31T23:59:59.999Z"),
    ],
)
def test_a_time_beyond_all_dates_is_written_as_java_does(moment: int, written: str) -> None:
    assert shown(message(event_time=moment))["event-time"] == written


def test_a_payload_is_decompressed_unless_it_is_encrypted_or_a_chunk() -> None:
    packed = compress(Codec.ZSTD, b"x" * 1000)
    assert bytes(payload_of(entry(message(compression=3, uncompressed_size=1000), packed), LIMIT)) == b"x" * 1000
    chunk = message(compression=3, uncompressed_size=1000, num_chunks_from_msg=2, chunk_id=0, uuid="u")
    assert bytes(payload_of(entry(chunk, packed[:9]), LIMIT)) == packed[:9]
    sealed = message(compression=3, uncompressed_size=1000)
    sealed.encryption_keys.add(key="k", value=b"v")
    assert bytes(payload_of(entry(sealed, b"sealed"), LIMIT)) == b"sealed"
    with pytest.raises(CorruptEntry):
        payload_of(entry(message(compression=3, uncompressed_size=1000), packed[:9]), LIMIT)
    assert payload_of(decode_entry(encode_entry(message(), b"plain")), 1) == b"plain"


CODECS = [Codec.LZ4, Codec.ZLIB, Codec.ZSTD, Codec.SNAPPY]


@pytest.mark.parametrize("codec", CODECS)
def test_a_payload_that_claims_more_than_a_message_may_have_is_not_decompressed(
    codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = compress(codec, bytes(LIMIT + 1))
    assert len(bomb) < LIMIT / 20
    monkeypatch.setattr("afterglow.admin.entry_headers.decompress", lambda *_args, **_options: pytest.fail("allocated"))
    for claim in (LIMIT + 1, 2**32 - 1):
        with pytest.raises(AdminError, match="maxMessageSize=5242880: read the message with a client") as refused:
            payload_of(entry(message(compression=int(codec), uncompressed_size=claim), bomb), LIMIT)
        assert refused.value.status == 412


@pytest.mark.parametrize("codec", CODECS)
def test_a_payload_larger_than_it_claims_is_refused(codec: Codec) -> None:
    bomb = compress(codec, bytes(64 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptEntry):
            payload_of(entry(message(compression=int(codec), uncompressed_size=1000), bomb), LIMIT)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
