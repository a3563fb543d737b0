"""The functions that kernels are built from, each compared with an independent implementation."""

from __future__ import annotations

import base64
import os
import random
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import crc32c as reference_crc
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from afterglow.format._kernels import calls, checksum, expand, layout, primitives, rows

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]

_LZ4 = pa.Codec("lz4_raw")

# Runs, repeats near and far, and noise: all that LZ4 tells apart.
COMPRESSIBLE = st.lists(
    st.one_of(
        st.binary(max_size=30),
        st.builds(lambda unit, times: unit * times, st.binary(min_size=1, max_size=24), st.integers(1, 80)),
        st.integers(0, 9).map(lambda seed: random.Random(seed).randbytes(300)),
    ),
    max_size=6,
).map(b"".join)


def array_of(data: bytes, slack: int = 0) -> Bytes:
    """Return the bytes as an array, with ``slack`` more bytes after them."""
    return np.frombuffer(data + b"\xaa" * slack, np.uint8).copy()


# --- checksum ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1007, 1008, 1009, 2016, 12_287, 12_288, 12_289, 12_288 + 1008 + 8 + 1, 100_000])
def test_crc32c_of_stretches_beside_each_other_is_that_of_the_library(size: int) -> None:
    data = random.Random(size).randbytes(size + 3)
    array = array_of(data)
    assert checksum.crc32c(array.ctypes.data, 3, array.size) == reference_crc.crc32c(data[3:])


@given(st.binary(max_size=100), st.integers(0, 8))
def test_crc32c_is_that_of_the_library(data: bytes, before: int) -> None:
    array = array_of(bytes(before) + data)
    assert checksum.crc32c(array.ctypes.data, before, array.size) == reference_crc.crc32c(data)


@given(st.binary(max_size=80))
def test_crc32c_by_tables_is_that_of_the_instruction(data: bytes) -> None:
    crc = np.uint64(0xFFFFFFFF)
    whole = len(data) // 8 * 8
    for word in np.frombuffer(data[:whole], "<u8"):
        crc = np.uint64(checksum._step8_by_tables(crc, word))
    for byte in data[whole:]:
        crc = (crc >> np.uint64(8)) ^ checksum._TABLES[0, (int(crc) ^ byte) & 0xFF]
    assert int(crc) ^ 0xFFFFFFFF == reference_crc.crc32c(data)


# --- lz4 -----------------------------------------------------------------------------------------------------------


def expanded(block: bytes, size: int) -> bytes | None:
    """What the kernel makes of a block; fails if it writes past the slack."""
    source = array_of(block)
    target = array_of(bytes(size), 2 * layout.SLACK)
    if not expand.lz4_expand(source.ctypes.data, 0, source.size, source.size, target.ctypes.data, size):
        target[:size] = 0
        assert (target[size + layout.SLACK :] == 0xAA).all()
        return None
    assert (target[size + layout.SLACK :] == 0xAA).all()
    return target[:size].tobytes()


@given(COMPRESSIBLE)
@example(b"")
@example(bytes(100_000))
@example(b"abcdefghijklmnop" * 1000)  # a distance of exactly sixteen
def test_lz4_blocks_of_the_library_are_measured_and_expanded(data: bytes) -> None:
    block: bytes = _LZ4.compress(data, asbytes=True)
    source = array_of(block)
    assert expand.lz4_size(source.ctypes.data, 0, source.size, len(data)) == len(data)
    assert expanded(block, len(data)) == data
    if data:
        assert expand.lz4_size(source.ctypes.data, 0, source.size, len(data) - 1) == -1
        assert expanded(block, len(data) - 1) is None
    assert expanded(block, len(data) + 1) is None


@given(COMPRESSIBLE.filter(bool), st.data())
def test_a_damaged_lz4_block_is_refused_or_expands_to_its_measure(data: bytes, draw: st.DataObject) -> None:
    block = bytearray(_LZ4.compress(data, asbytes=True))
    for _ in range(draw.draw(st.integers(1, 3))):
        block[draw.draw(st.integers(0, len(block) - 1))] = draw.draw(st.integers(0, 255))
    cut = bytes(block[: draw.draw(st.integers(0, len(block)))])
    source = array_of(cut)
    size = expand.lz4_size(source.ctypes.data, 0, source.size, 100_000)
    found = expanded(cut, max(size, 0))
    if size < 0:
        assert found is None
    elif found is not None:
        assert len(found) == size
        try:
            expected = _LZ4.decompress(cut, size, asbytes=True)
        except OSError:
            return  # the library insists on literals at the end, which no decoder needs
        assert found == expected


def test_every_distance_and_length_of_a_match_is_copied_right() -> None:
    for distance in [*range(1, 35), 255, 1000]:
        for length in [4, 5, 15, 16, 17, 18, 19, 31, 32, 33, 300]:
            literals = random.Random(distance).randbytes(distance)
            block = lz4_token(literals, length, distance) + lz4_token(b"tail!", None, 0)
            expected = bytearray(literals)
            for _ in range(length):
                expected.append(expected[-distance])
            assert expanded(block, distance + length + 5) == bytes(expected) + b"tail!"


def lz4_token(literals: bytes, match: int | None, distance: int) -> bytes:
    high, low = min(len(literals), 15), min((match or 4) - 4, 15)
    out = bytes([high << 4 | low]) + (lz4_length(len(literals) - 15) if high == 15 else b"") + literals
    if match is None:
        return out
    return out + distance.to_bytes(2, "little") + (lz4_length(match - 19) if low == 15 else b"")


def lz4_length(rest: int) -> bytes:
    return b"\xff" * (rest // 255) + bytes([rest % 255])


@pytest.mark.parametrize(
    "block", [b"", b"\x00", b"\xf0", b"\xf0\xff", b"\x10", b"\x10a\x01", b"\x10a\x00\x00", b"\x1fa\x01\x00"]
)
def test_torn_lz4_blocks_are_refused(block: bytes) -> None:
    source = array_of(block)
    size = expand.lz4_size(source.ctypes.data, 0, source.size, 1000)
    assert size == (0 if block == b"\x00" else -1)
    assert expanded(block, 5) is None


# --- base64 --------------------------------------------------------------------------------------------------------


def decode_base64(text: bytes) -> bytes | None:
    source = array_of(text)
    size = rows.base64_size(source.ctypes.data, 0, source.size)
    if size < 0:
        return None
    out = array_of(bytes(size), 8)
    rows._decode_base64(source.ctypes.data, 0, out.ctypes.data, size)
    assert (out[size:] == 0xAA).all()
    return out[:size].tobytes()


@given(st.binary(max_size=60))
def test_base64_is_decoded_with_and_without_its_padding(data: bytes) -> None:
    text = base64.b64encode(data)
    assert decode_base64(text) == decode_base64(text.rstrip(b"=")) == data


def test_every_byte_is_base64_or_not() -> None:
    letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    for byte in range(256):
        found = decode_base64(bytes([byte]) * 4)
        if byte in letters:
            assert found == base64.b64decode(bytes([byte]) * 4)
        else:
            assert found == (b"" if byte == ord("=") else None)


@given(st.text("AZaz09+/=*", max_size=12).map(str.encode))
def test_text_is_base64_as_python_says_but_for_its_padding(text: bytes) -> None:
    stripped = text.rstrip(b"=")
    try:
        expected = base64.b64decode(stripped + b"=" * (-len(stripped) % 4), validate=True)
    except ValueError:
        expected = None
    assert decode_base64(text) == expected


# --- utf-8 ---------------------------------------------------------------------------------------------------------


def text_kind(*texts: bytes) -> int:
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.int32)
    return calls.text_kind(array_of(b"".join(texts)), offsets)


def expected_kind(*texts: bytes) -> int:
    try:
        decoded = [text.decode() for text in texts]
    except UnicodeDecodeError:
        return layout.NOT_UTF8
    return layout.ASCII if all(text.isascii() for text in decoded) else layout.UTF8


@given(st.lists(st.one_of(st.text(max_size=20).map(str.encode), st.binary(max_size=6)), max_size=4))
def test_text_is_utf8_as_python_says(texts: list[bytes]) -> None:
    assert text_kind(*texts) == expected_kind(*texts)


def test_every_pair_of_bytes_is_judged_as_python_judges_it() -> None:
    for lead in range(0x80, 0x100):
        for second in range(256):
            for tail in (b"", b"\x80", b"\x80\x80", b"\x80a"):
                text = bytes([lead, second]) + tail
                assert text_kind(text) == expected_kind(text), text.hex()


@pytest.mark.parametrize(
    "text", ["\x7f", "\x80", "\u07ff", "\u0800", "\ud7ff", "\ue000", "\uffff", "\U00010000", "\U0010ffff"]
)
def test_the_borders_of_utf8_are_inside(text: str) -> None:
    encoded = text.encode()
    assert text_kind(encoded) == expected_kind(encoded)
    assert text_kind(encoded[:-1], encoded[-1:]) in {layout.ASCII, layout.NOT_UTF8}


@pytest.mark.parametrize(
    "text", [b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\x80", b"\xe0\x9f\xbf", b"\xf0\x8f\xbf\xbf"]
)
def test_surrogates_and_overlong_forms_are_no_utf8(text: bytes) -> None:
    assert text_kind(text) == layout.NOT_UTF8


# --- varints -------------------------------------------------------------------------------------------------------


def read_varint(data: bytes) -> tuple[int, int]:
    array = array_of(data)
    value, behind = primitives.varint(array.ctypes.data, 0, array.size)
    return int(value) % 2**64, int(behind)


@given(st.integers(0, 2**64 - 1), st.integers(0, 3))
def test_varints_are_read(value: int, longer: int) -> None:
    encoded = bytearray()
    rest = value
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    assert read_varint(bytes(encoded) + b"xx") == (value, len(encoded))
    assert read_varint(bytes(encoded[:-1]))[1] == primitives.TORN
    # Zeros behind the last digit change nothing, up to the ten bytes that there may be.
    padded = bytes(encoded[:-1]) + bytes([encoded[-1] | 0x80]) + b"\x80" * longer + b"\0"
    assert read_varint(padded) == ((value, len(padded)) if len(padded) <= 10 else (value, primitives.TORN))


# --- the compiled library ------------------------------------------------------------------------------------------


def test_a_second_process_decodes_without_a_compiler(tmp_path: Path) -> None:
    calls.text_kind(array_of(b"x"), np.array([0, 1], np.int32))  # compiled by now
    code = (
        "import sys\n"
        "from afterglow.format.frames import frame_entries, scan_frames\n"
        "from afterglow.format.columns import decode_messages\n"
        "data = frame_entries([b'bad'])\n"
        "(messages,) = decode_messages(data, scan_frames(data, 0), 1)\n"
        "assert len(messages.unreadable) == 1\n"
        "assert not {'numba', 'llvmlite'} & set(sys.modules)\n"
        # It takes a second to import, and pyarrow does so for some conversions.
        "assert 'pandas' not in sys.modules\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300, env=environment, cwd=tmp_path)


def test_threads_that_come_first_together_load_the_kernels_once() -> None:
    """In a process of its own: it would crash."""
    script = """
        import threading
        from afterglow.format._kernels import native

        barrier = threading.Barrier(8)
        found = []

        def load():
            barrier.wait()
            found.append(native.kernels())

        threads = [threading.Thread(target=load) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(map(id, found))) == 1, found
        print("one")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, done.stdout) == (0, "one\n"), done.stderr
