"""MESSAGEs for consumers, as protobuf encodes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from afterglow.format.entry import encode_broker_metadata, encode_entry
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.wire import encode_head, encode_messages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from afterglow.format.wire import EncodedMessages

U63 = st.one_of(st.integers(0, 300), st.integers(0, 2**63 - 1))


def entry(payload: bytes, batch: int | None = None, *, marker: bool = False) -> bytes:
    metadata = wire.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    if batch is not None:
        metadata.num_messages_in_batch = batch
    if marker:
        metadata.marker_type = 1
    return encode_entry(metadata, payload)


def encoded(entries: Sequence[bytes | memoryview], *, expose: bool = False, first_id: int = 0) -> EncodedMessages:
    return encode_messages(
        entries, consumer_id=3, ledger_id=7, first_id=first_id, partition=-1, epoch=None, expose_broker_metadata=expose
    )


@given(
    st.lists(st.tuples(st.binary(max_size=60), st.one_of(st.none(), st.integers(0, 500)), st.booleans()), min_size=1),
    st.tuples(U63, U63, st.integers(0, 2**40), st.integers(-1, 2**31 - 1), st.one_of(st.none(), U63)),
    st.booleans(),
)
def test_messages_are_encoded_as_protobuf_encodes_them(
    messages: list[tuple[bytes, int | None, bool]],
    numbers: tuple[int, int, int, int, int | None],
    expose: bool,  # noqa: FBT001
) -> None:
    consumer_id, ledger_id, first_id, partition, epoch = numbers
    entries, expected = [], b""
    for number, (payload, batch, is_stamped) in enumerate(messages):
        plain = entry(payload, batch)
        stored = encode_broker_metadata(5, 6) + plain if is_stamped else plain
        entries.append(stored)
        command = wire.BaseCommand(type=wire.BaseCommand.MESSAGE)
        command.message.consumer_id = consumer_id
        command.message.message_id.ledgerId = ledger_id
        command.message.message_id.entryId = first_id + number
        command.message.message_id.partition = partition
        if epoch is not None:
            command.message.consumer_epoch = epoch
        sent = stored if expose else plain
        expected += encode_head(command.SerializeToString(), len(sent)) + sent
    found = encode_messages(
        entries,
        consumer_id=consumer_id,
        ledger_id=ledger_id,
        first_id=first_id,
        partition=partition,
        epoch=epoch,
        expose_broker_metadata=expose,
    )
    assert bytes(found.frames) == expected
    assert found.entries == len(entries)
    assert found.messages == sum(max(1 if batch is None else batch, 1) for _, batch, _ in messages)
    plain_bytes = sum(len(entry(payload, batch)) for payload, batch, _ in messages)
    assert found.size_bytes == (sum(map(len, entries)) if expose else plain_bytes)


def test_encoding_stops_at_markers_and_at_damaged_entries() -> None:
    good = encode_broker_metadata(5, 6) + entry(b"good")
    for bad in (entry(b"", marker=True), b"", b"\x0e", good[:20], b"\x0e\x02\xff\xff\xff\xff", bytes(4)):
        found = encoded([good, memoryview(good), bad, good])
        assert (found.entries, found.messages) == (2, 2)
        assert bytes(found.frames) == bytes(encoded([good, good]).frames)
        assert encoded([bad]).entries == 0


@given(st.lists(st.binary(max_size=80), min_size=1, max_size=5), st.booleans())
def test_random_bytes_are_never_read_beyond_their_end(entries: list[bytes], expose: bool) -> None:  # noqa: FBT001
    found = encoded(entries, expose=expose)
    assert found.entries <= len(entries)
    assert found.size_bytes <= sum(map(len, entries))
