from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from afterglow.errors import InvalidFrame
from afterglow.format.entry import encode_broker_metadata, encode_entry
from afterglow.format.frames import frame_entries
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.proto.pulsar_api_pb2 import BaseCommand, CommandPing, CommandPong
from afterglow.format.wire import EntryBuffer, FrameBuffer, encode_command, encode_head


def feed(buffer: FrameBuffer, data: bytes, reads: list[int]) -> list[tuple[bytes, bytes]]:
    frames: list[tuple[bytes, bytes]] = []
    at = 0
    sizes = iter(reads)
    while at < len(data):
        space = buffer.space()
        assert len(space)
        take = min(len(space), len(data) - at, next(sizes, len(data)))
        space[:take] = data[at : at + take]
        at += take
        frames.extend((bytes(command), bytes(payload)) for command, payload in buffer.received(take))
    return frames


def test_ping_and_pong_have_the_known_bytes() -> None:
    ping = BaseCommand(type=BaseCommand.PING, ping=CommandPing())
    pong = BaseCommand(type=BaseCommand.PONG, pong=CommandPong())
    assert encode_command(ping).hex() == "00000009000000050812920100"
    assert encode_command(pong).hex() == "000000090000000508139a0100"


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.binary(max_size=3000)), max_size=20),
    st.lists(st.integers(1, 700), max_size=60),
)
def test_frames_are_whole_for_any_sizes_of_reads(frames: list[tuple[bytes, bytes]], reads: list[int]) -> None:
    data = b"".join(encode_head(command, len(payload)) + payload for command, payload in frames)
    assert feed(FrameBuffer(4096, initial_bytes=256), data, reads) == frames


def test_a_frame_larger_than_the_buffer_makes_it_grow_and_shrink_again() -> None:
    buffer = FrameBuffer(1 << 20, initial_bytes=1024)
    payload = bytes(500_000)
    data = encode_head(b"x", len(payload)) + payload
    assert feed(buffer, data, []) == [(b"x", payload)]
    small = encode_head(b"x", 10) + bytes(10)
    for _ in range(100):
        assert feed(buffer, small, []) == [(b"x", bytes(10))]
    assert len(buffer.space()) == 1024


def test_a_buffer_that_every_read_fills_grows_and_an_idle_one_shrinks() -> None:
    buffer = FrameBuffer(1 << 20, initial_bytes=1024)
    frame = encode_head(b"x", 247) + bytes(247)
    assert len(frame) == 256
    for _ in range(20):
        assert len(feed(buffer, frame * (len(buffer.space()) // 256), [])) > 0
    assert len(buffer.space()) == 1 << 20
    feed(buffer, frame[:100], [])
    buffer.shrink()
    assert len(buffer.space()) == (1 << 20) - 100, "a frame is being received"
    feed(buffer, frame[100:], [])
    buffer.shrink()
    assert len(buffer.space()) == 1024


@pytest.mark.parametrize("total", [0, 3, 4097, 2**32 - 1])
def test_an_impossible_size_is_refused_before_anything_is_set_aside(total: int) -> None:
    buffer = FrameBuffer(4096, initial_bytes=64)
    with pytest.raises(InvalidFrame):
        feed(buffer, struct.pack(">I", total), [])
    assert len(buffer._data) == 64


def test_a_command_longer_than_its_frame_is_refused() -> None:
    with pytest.raises(InvalidFrame):
        feed(FrameBuffer(4096), struct.pack(">II", 10, 7) + bytes(6), [])


@given(st.binary(max_size=300))
def test_random_bytes_end_in_frames_or_in_a_typed_error(data: bytes) -> None:
    with contextlib.suppress(InvalidFrame):
        feed(FrameBuffer(1000, initial_bytes=64), data, [7, 1, 90])


LIMIT = 1 << 20
PING = encode_command(wire.BaseCommand(type=wire.BaseCommand.PING, ping=wire.CommandPing()))


def message(ledger_id: int, entry_id: int, entry: bytes, consumer_id: int = 1, **more: object) -> bytes:
    command = wire.BaseCommand(type=wire.BaseCommand.MESSAGE)
    command.message.consumer_id = consumer_id
    command.message.message_id.ledgerId = ledger_id
    command.message.message_id.entryId = entry_id
    command.message.message_id.partition = -1
    for name, value in more.items():
        setattr(command.message, name, value)
    return encode_head(command.SerializeToString(), len(entry)) + entry


def stored(batch: int | None, payload: bytes, *, stamped: bool) -> bytes:
    metadata = wire.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2)
    if batch is not None:
        metadata.num_messages_in_batch = batch
    return (encode_broker_metadata(5, 6) if stamped else b"") + encode_entry(metadata, payload)


class Feed:
    """Gives a buffer bytes in pieces, and takes from it what it can."""

    def __init__(self, capacity: int, first: int, last: int) -> None:
        self.buffer = EntryBuffer(capacity, LIMIT)
        self.next, self.last = first, last
        self.frames = bytearray()
        self.others: list[tuple[bytes, bytes]] = []
        self.messages = self.stamped = 0

    def put(self, data: bytes, reads: list[int]) -> None:
        sizes = iter(reads)
        while data:
            space = self.buffer.space()
            if not space:
                self.frames += self.buffer.cut()
                continue
            size = min(len(space), len(data), next(sizes, len(data)))
            space[:size], data = data[:size], data[size:]
            self.buffer.received(size)
            self._take()

    def _take(self) -> None:
        while True:
            taken = self.buffer.take(1, 7, self.next, self.last)
            self.next += taken.entries
            self.messages += taken.messages
            self.stamped += taken.with_broker_metadata
            frame = self.buffer.frame()
            if frame is None:
                return
            self.others.append((bytes(frame[0]), bytes(frame[1])))


ENTRY = st.builds(stored, st.none() | st.integers(0, 300), st.binary(max_size=3000), stamped=st.booleans())
ENTRIES = st.lists(ENTRY | st.binary(max_size=40), max_size=30)


@given(ENTRIES, st.integers(0, 2**62), st.lists(st.integers(1, 9000), max_size=80), st.integers(0, 20_000))
@example([bytes(5000)] * 3, 0, [], 4096)
@example([b""] * 500, 0, [100] * 200, 4096)
def test_entries_become_frames_however_the_bytes_arrive(
    entries: list[bytes], first: int, reads: list[int], capacity: int
) -> None:
    feed = Feed(capacity, first, first + len(entries) - 1)
    feed.put(b"".join(message(7, first + i, entry) for i, entry in enumerate(entries)), reads)
    assert bytes(feed.frames + feed.buffer.cut()) == frame_entries(entries, first)
    assert feed.others == []
    assert feed.stamped == sum(entry.startswith(b"\x0e\x02") for entry in entries)


@given(st.lists(st.none() | st.integers(-5, 5000), max_size=20))
def test_permits_are_counted_by_messages(batches: list[int | None]) -> None:
    feed = Feed(1 << 16, 0, len(batches) - 1)
    feed.put(b"".join(message(7, i, stored(n, b"x", stamped=False)) for i, n in enumerate(batches)), [])
    assert feed.messages == sum(max(n or 1, 1) for n in batches)


def test_what_does_not_parse_is_one_message_and_passed_on_as_it_is() -> None:
    feed = Feed(1 << 16, 0, 1)
    feed.put(message(7, 0, b"\x0e\x02torn") + message(7, 1, b""), [])
    assert (feed.messages, bytes(feed.buffer.cut())) == (2, frame_entries([b"\x0e\x02torn", b""]))


OTHERS = {
    "a command": PING,
    "another ledger": message(8, 1, b"other"),
    "an entry too far": message(7, 2, b"other"),
    "an entry again": message(7, 0, b"other"),
    "another consumer": message(7, 1, b"other", consumer_id=2),
    "no id": encode_head(b"\x08\x09\x4a\x02\x08\x01", 5) + b"other",
    "a torn command": encode_head(b"\x08\x09\x4a\x20\x08\x01", 5) + b"other",
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("read", [1, 7, 10_000])
def test_whatever_is_not_the_next_entry_comes_out_by_itself(other: bytes, read: int) -> None:
    feed = Feed(1 << 16, 0, 1)
    feed.put(message(7, 0, b"zero") + other + message(7, 1, b"one"), [read] * 400)
    ((command, payload),) = feed.others
    assert encode_head(command, len(payload)) + payload == other
    assert bytes(feed.buffer.cut()) == frame_entries([b"zero", b"one"])


def test_fields_that_we_do_not_know_do_not_matter() -> None:
    feed = Feed(1 << 16, 0, 0)
    feed.put(message(7, 0, b"zero", redelivery_count=3, consumer_epoch=9), [])
    assert bytes(feed.buffer.cut()) == frame_entries([b"zero"])


def test_nothing_behind_the_last_entry_is_taken() -> None:
    feed = Feed(1 << 16, 0, 1)
    feed.put(b"".join(message(7, i, b"%d" % i) for i in range(4)), [])
    assert [payload for _, payload in feed.others] == [b"2", b"3"]
    assert bytes(feed.buffer.cut()) == frame_entries([b"0", b"1"])


def test_what_was_cut_stays_as_it_is() -> None:
    feed = Feed(1 << 16, 0, 9)
    feed.put(message(7, 0, b"zero") + message(7, 1, b"one")[:9], [])
    first = feed.buffer.cut()
    feed.put(message(7, 1, b"one")[9:], [])
    assert bytes(first) == frame_entries([b"zero"])
    assert bytes(feed.buffer.cut()) == frame_entries([b"one"], 1)


@pytest.mark.parametrize("head", [(3, 0), (100, 97), (LIMIT + 1, 4), (2**32 - 1, 4), (8, 2**32 - 1)])
def test_sizes_that_cannot_be_are_refused(head: tuple[int, int]) -> None:
    buffer = EntryBuffer(1 << 12, LIMIT)
    buffer.space()[:8] = struct.pack(">II", *head)
    buffer.received(8)
    with pytest.raises(InvalidFrame, match="maxMessageSize"):
        buffer.take(1, 7, 0, 9)
    with pytest.raises(InvalidFrame, match="maxMessageSize"):
        buffer.frame()


def test_memory_is_bounded_by_the_capacity_or_one_frame() -> None:
    feed = Feed(1 << 14, 0, 10**6)
    sizes = []
    for i in range(200):
        feed.put(message(7, i, bytes(50_000 if i % 50 == 0 else 900)), [1500] * 100)
        sizes.append(feed.buffer._data.size)
    assert max(sizes) < 50_100
    assert sizes[-1] == 1 << 14
