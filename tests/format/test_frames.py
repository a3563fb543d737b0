from __future__ import annotations

import array
import struct
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterglow.errors import CorruptBlock
from afterglow.format.frames import (
    FRAME_BYTES,
    PADDING,
    Frames,
    as_bytes_array,
    check_whole,
    frame_entries,
    iter_entries,
    scan_frames,
)

ENTRIES = st.lists(st.binary(max_size=30), max_size=8)
FIRST_IDS = st.integers(0, 2**40)


def padding(size: int) -> bytes:
    return (PADDING * (size // 4 + 1))[:size]


@given(ENTRIES, FIRST_IDS, st.integers(0, 9), st.integers(0, 20))
def test_framed_entries_are_found_again(entries: list[bytes], first: int, padded: int, before: int) -> None:
    data = bytes(before) + frame_entries(entries, first) + padding(padded)
    frames = scan_frames(data, first, before)
    assert frames.damage is None
    assert [(at, bytes(entry)) for at, entry in iter_entries(data, frames)] == list(enumerate(entries, first))
    assert frames.payload_bytes == sum(map(len, entries))
    assert (len(frames), frames.end_entry_id) == (len(entries), first + len(entries))
    assert frames.end == len(data) - padded
    assert frames.offsets.tolist() == list(accumulate((FRAME_BYTES + len(entry) for entry in entries), initial=before))


def test_a_frame_is_length_id_and_bytes_big_endian() -> None:
    assert frame_entries([b"A" * 10], 7).hex() == "0000000a" + "0000000000000007" + "41" * 10


def test_entries_of_any_buffer_type_are_framed_alike() -> None:
    words = array.array("I", [1, 2])
    assert frame_entries([memoryview(words), bytearray(b"x")]) == frame_entries([words.tobytes(), b"x"])
    assert as_bytes_array(words).tobytes() == words.tobytes()


@given(ENTRIES.filter(bool), st.data())
def test_frames_cut_anywhere_keep_the_entries_before_the_cut(entries: list[bytes], data: st.DataObject) -> None:
    framed = frame_entries(entries, 5)
    cut = data.draw(st.integers(0, len(framed)))
    frames = scan_frames(framed[:cut], 5)
    ends = list(accumulate((FRAME_BYTES + len(entry) for entry in entries), initial=0))
    assert frames.offsets.tolist() == [end for end in ends if end <= cut]
    if cut in ends:
        assert frames.damage is None
        check_whole(frames, "here")
    else:
        assert frames.damage is not None
        with pytest.raises(CorruptBlock, match=r"^here: .*entry"):
            check_whole(frames, "here")


@pytest.mark.parametrize(
    ("tail", "damage"),
    [
        (struct.pack(">iq", 1, 2), "the frame of entry 2 is truncated"),
        (struct.pack(">i", 0), "the frame of entry 2 is truncated"),
        (struct.pack(">iq", 2**31 - 1, 2), "the frame of entry 2 is truncated"),
        (struct.pack(">iq", 0, 3), "the frame of entry 2 has another id"),
        (struct.pack(">iq", 0, -1), "the frame of entry 2 has another id"),
        (struct.pack(">iq", -1, 2), "neither a frame nor padding follows entry 1"),
        (b"\xfe\xdc\xde\xad\xfe\xdc\xde", None),
        (b"\xfe\xdc\xde\xad\xfe\xdc\xad", "neither a frame nor padding follows entry 1"),
        (b"\xfe", None),
        (b"\x00", "neither a frame nor padding follows entry 1"),
    ],
)
def test_bytes_after_the_last_entry_are_checked(tail: bytes, damage: str | None) -> None:
    frames = scan_frames(frame_entries([b"a", b"b"]) + tail, 0)
    assert len(frames) == 2
    assert frames.damage == damage


@given(st.binary(max_size=80), st.integers(-(2**63), 2**63 - 1), st.integers(0, 90), st.integers(-5, 90))
def test_any_bytes_give_frames_inside_them(data: bytes, first: int, start: int, end: int) -> None:
    if start > len(data):
        with pytest.raises(ValueError, match="cannot start"):
            scan_frames(data, first, start, end)
        return
    frames = scan_frames(data, first, start, end)
    assert frames.offsets[0] == start
    assert (np.diff(frames.offsets) >= FRAME_BYTES).all()
    assert frames.end <= max(min(end, len(data)), start)


def test_frames_do_not_start_before_the_data() -> None:
    with pytest.raises(ValueError, match="cannot start at -1"):
        scan_frames(bytes(40), 0, -1)


def test_frames_of_several_blocks_are_sliced_without_the_gaps() -> None:
    entries = [bytes([i]) * (i + 1) for i in range(6)]
    header = b"header"
    data = frame_entries(entries[:2]) + header + frame_entries(entries[2:3], 2) + header + frame_entries(entries[3:], 3)
    offsets = [0]
    for number, entry in enumerate(entries):
        gap = len(header) if number + 1 in {2, 3} else 0
        offsets.append(offsets[-1] + FRAME_BYTES + len(entry) + gap)
    whole = Frames(0, np.array(offsets), None, ((2, len(header)), (3, len(header))))
    for low in range(6):
        for high in range(low + 1, 7):
            part = whole.slice(low, high)
            assert [(at, bytes(entry)) for at, entry in iter_entries(data, part)] == list(enumerate(entries))[low:high]
            assert part.payload_bytes == sum(map(len, entries[low:high]))
            assert part.ends[-1] == part.end
