"""Messages of producers: found in receive buffers, framed for a ledger, and answered."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.sends import Send, entries_of, received

from afterglow.format.entry import encode_broker_metadata, encode_entry
from afterglow.format.frames import frame_entries
from afterglow.format.new_entries import EntryTable, NewEntry, by_producer, encode_receipts
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.wire import FrameBuffer, encode_command, encode_head

if TYPE_CHECKING:
    from afterglow.format.new_entries import NewEntries

U64 = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))
METADATA = wire.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)


def message(payload: bytes, *, checksum: bool = True) -> bytes:
    return encode_entry(METADATA, payload, checksum=checksum)


SENDS = st.lists(
    st.builds(
        Send,
        st.integers(0, 3),
        U64,
        st.builds(message, st.binary(max_size=200), checksum=st.booleans()),
        st.integers(1, 2**31 - 1),
    ),
    min_size=1,
    max_size=16,  # one pass over a buffer finds as many; further ones find the rest
)


def stored(entries: NewEntries, first_id: int, time_ms: int | None, before: int | None) -> bytes:
    framed, _ = entries.framed(first_id, time_ms, before)
    assert len(framed) == len(entries)
    assert framed.end == first_id + len(entries)
    assert sum(framed.sizes) == len(framed.data)
    return bytes(framed.data)


@given(SENDS)
def test_messages_are_found_by_producer_and_in_order(sends: list[Send]) -> None:
    found = entries_of(sends)
    assert [producer for producer, _ in found] == sorted({send.producer_id for send in sends})
    for producer, entries in found:
        expected = [send for send in sends if send.producer_id == producer]
        each = list(entries.each()) if isinstance(entries, EntryTable) else [entries]
        assert [bytes(one.data) for one in each] == [send.message for send in expected]
        assert [one.messages for one in each] == [send.messages for send in expected]
        assert entries.sequence_ids == [send.sequence_id for send in expected]
        assert entries.messages == sum(send.messages for send in expected)
        assert entries.size_bytes == sum(len(send.message) for send in expected)


@given(
    SENDS, st.integers(0, 2**40), st.one_of(st.none(), st.integers(0, 2**62)), st.one_of(st.none(), st.just(-1), U64)
)
@example([Send(0, 0, message(b""))], 0, None, None)
def test_entries_are_framed_as_python_frames_them(
    sends: list[Send], first_id: int, time_ms: int | None, before: int | None
) -> None:
    before = None if before is None else min(before, 2**40)
    for producer, entries in entries_of(sends):
        expected = []
        index = before
        for send in sends:
            if send.producer_id == producer:
                index = None if index is None else index + send.messages
                stamp = b"" if time_ms is None and index is None else encode_broker_metadata(time_ms, index)
                expected.append(stamp + send.message)
        assert stored(entries, first_id, time_ms, before) == frame_entries(expected, first_id)
        assert stored(entries.detached(), first_id, time_ms, before) == frame_entries(expected, first_id)
        _, last = entries.framed(first_id, time_ms, before)
        assert last == (index if index is not None else last)
        table = entries_of([*(send for send in sends if send.producer_id == producer), Send(producer, 9, b"\0" * 4)])
        framed, _ = table[0][1].framed(first_id, time_ms, before)
        assert [bytes(entry) for entry in framed.entries(first_id, first_id + len(expected))] == expected


def test_entries_without_messages_repeat_the_index() -> None:
    for before, expected in ((-1, None), (7, 7)):
        data, last = NewEntry(b"marker", 0).framed(3, 5, before)
        assert last == before
        assert bytes(data.data) == frame_entries([encode_broker_metadata(5, expected) + b"marker"], 3)


@given(st.lists(st.tuples(U64, U64, U64, U64, U64), min_size=1, max_size=40))
def test_receipts_are_encoded_as_protobuf_encodes_them(receipts: list[tuple[int, int, int, int, int]]) -> None:
    expected = b""
    for producer_id, sequence_id, highest, ledger_id, entry_id in receipts:
        command = wire.BaseCommand(type=wire.BaseCommand.SEND_RECEIPT)
        command.send_receipt.producer_id = producer_id
        command.send_receipt.sequence_id = sequence_id
        command.send_receipt.highest_sequence_id = highest
        command.send_receipt.message_id.ledgerId = ledger_id
        command.send_receipt.message_id.entryId = entry_id
        expected += encode_command(command)
    assert bytes(encode_receipts(receipts)) == expected


def test_a_table_has_the_receipts_of_its_entries() -> None:
    sends = [Send(2**64 - 1, 2**64 - 3 + number, message(b"x")) for number in range(3)]
    ((producer_id, entries),) = entries_of(sends)
    assert isinstance(entries, EntryTable)
    assert bytes(entries.receipts(5, 10)) == bytes(
        encode_receipts([(producer_id, send.sequence_id, 0, 5, 10 + number) for number, send in enumerate(sends)])
    )


def send_frame(send: wire.CommandSend, payload: bytes) -> bytes:
    command = wire.BaseCommand(type=wire.BaseCommand.SEND, send=send).SerializeToString()
    return encode_head(command, len(payload)) + payload


PLAIN = message(b"payload")
DAMAGED = PLAIN[:-1] + b"\xff"
OTHERS = {
    "another command": encode_command(wire.BaseCommand(type=wire.BaseCommand.PING, ping=wire.CommandPing())),
    "of a transaction": send_frame(
        wire.CommandSend(producer_id=1, sequence_id=1, txnid_least_bits=1, txnid_most_bits=0), PLAIN
    ),
    "a marker": send_frame(wire.CommandSend(producer_id=1, sequence_id=1, marker=True), PLAIN),
    "a wrong checksum": send_frame(wire.CommandSend(producer_id=1, sequence_id=1), DAMAGED),
    "a truncated checksum": send_frame(wire.CommandSend(producer_id=1, sequence_id=1), PLAIN[:5]),
    "metadata beyond the frame": send_frame(
        wire.CommandSend(producer_id=1, sequence_id=1), struct.pack(">I", 100) + b"x"
    ),
    "no payload": send_frame(wire.CommandSend(producer_id=1, sequence_id=1), b""),
    "without a producer": encode_head(bytes((8, 6, 50, 2, 16, 1)), 4) + bytes(4),
    "without a command": encode_head(bytes((8, 6)), 4) + bytes(4),
    "a field cut off": encode_head(bytes((8, 6, 50, 2, 8)), 4) + bytes(4),
    "a length beyond the command": encode_head(bytes((8, 6, 50, 9, 8, 1, 16, 1)), 4) + bytes(4),
}


@pytest.mark.parametrize("name", OTHERS)
def test_frames_that_are_not_ordinary_messages_are_left_to_the_general_path(name: str) -> None:
    before, behind = Send(1, 1, PLAIN), Send(1, 2, PLAIN)
    buffer = received(before.frame + OTHERS[name] + behind.frame)
    found = buffer.sends()
    assert found is not None
    assert [entries.sequence_ids for _, entries in by_producer(*found)] == [[1]]
    assert buffer.sends() is None
    frame = buffer.frame()
    assert frame is not None
    assert b"".join(map(bytes, frame)) == OTHERS[name][8:]
    assert [entries.sequence_ids for _, entries in by_producer(*(buffer.sends() or ()))] == [[2]]


def test_a_chunk_is_an_ordinary_message() -> None:
    buffer = received(send_frame(wire.CommandSend(producer_id=1, sequence_id=1, is_chunk=True), PLAIN))
    assert buffer.sends() is not None


@given(st.integers(1, 200))
def test_an_incomplete_message_waits_for_its_rest(cut: int) -> None:
    sends = [Send(1, number, message(bytes(20))) for number in range(3)]
    data = b"".join(send.frame for send in sends)
    buffer = FrameBuffer(1 << 20, initial_bytes=len(data) + 64)
    found: list[int] = []
    for part in (data[:-cut], data[-cut:]):
        buffer.space()[: len(part)] = part
        buffer.add(len(part))
        if (rows := buffer.sends()) is not None:
            for _, entries in by_producer(*rows):
                found += entries.sequence_ids
    assert found == [0, 1, 2]
    assert buffer.frame() is None


def test_a_message_larger_than_the_limit_is_refused_by_the_general_path() -> None:
    send = Send(1, 1, message(bytes(5000)))
    buffer = FrameBuffer(4000, initial_bytes=8000)
    buffer.space()[: len(send.frame)] = send.frame
    buffer.add(len(send.frame))
    assert buffer.sends() is None


@given(st.binary(max_size=300), st.integers(0, 300), st.binary(max_size=8))
def test_damaged_bytes_are_never_read_beyond_the_buffer(noise: bytes, at: int, patch: bytes) -> None:
    data = bytearray(b"".join(Send(1, number, message(noise)).frame for number in range(3)))
    data[at : at + len(patch)] = patch[: max(len(data) - at, 0)]
    buffer = received(bytes(data))
    if (found := buffer.sends()) is not None:
        _, rows = found
        assert np.all(rows[:, 4] + rows[:, 5] <= len(data))
        assert np.all(rows[:, 4:] >= 0)


def test_detached_messages_do_not_change_with_their_buffer() -> None:
    buffer = received(b"".join(Send(1, number, message(b"%d" % number)).frame for number in range(5)))
    found = buffer.sends()
    assert found is not None
    ((_, entries),) = by_producer(*found)
    expected = stored(entries, 0, None, None)
    detached = entries.detached()
    found[0][:] = 0
    assert stored(detached, 0, None, None) == expected
