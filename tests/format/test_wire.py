from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterglow.errors import BadFrame
from afterglow.format.proto.pulsar_api_pb2 import BaseCommand, CommandPing, CommandPong
from afterglow.format.wire import FrameBuffer, encode_command, encode_head


def feed(buffer: FrameBuffer, data: bytes, pieces: list[int]) -> list[tuple[bytes, bytes]]:
    frames: list[tuple[bytes, bytes]] = []
    at = 0
    sizes = iter(pieces)
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
def test_frames_come_out_whole_however_the_bytes_arrive(frames: list[tuple[bytes, bytes]], pieces: list[int]) -> None:
    data = b"".join(encode_head(command, len(payload)) + payload for command, payload in frames)
    assert feed(FrameBuffer(4096, initial_bytes=256), data, pieces) == frames


def test_a_frame_larger_than_the_buffer_makes_it_grow_and_shrink_again() -> None:
    buffer = FrameBuffer(1 << 20, initial_bytes=1024)
    payload = bytes(500_000)
    data = encode_head(b"x", len(payload)) + payload
    assert feed(buffer, data, []) == [(b"x", payload)]
    assert len(buffer.space()) == 1024


@pytest.mark.parametrize("total", [0, 3, 4097, 2**32 - 1])
def test_an_impossible_size_is_refused_before_anything_is_set_aside(total: int) -> None:
    buffer = FrameBuffer(4096, initial_bytes=64)
    with pytest.raises(BadFrame):
        feed(buffer, struct.pack(">I", total), [])
    assert len(buffer._data) == 64


def test_a_command_longer_than_its_frame_is_refused() -> None:
    with pytest.raises(BadFrame):
        feed(FrameBuffer(4096), struct.pack(">II", 10, 7) + bytes(6), [])


@given(st.binary(max_size=300))
def test_random_bytes_end_in_frames_or_in_a_typed_error(data: bytes) -> None:
    with contextlib.suppress(BadFrame):
        feed(FrameBuffer(1000, initial_bytes=64), data, [7, 1, 90])
