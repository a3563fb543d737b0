from __future__ import annotations

import subprocess
import sys
import tracemalloc
import zlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterglow.errors import CorruptEntry
from afterglow.format.compression import MAX_EXPANSION, MAX_UNCOMPRESSED_BYTES, Codec, compress, decompress

if TYPE_CHECKING:
    from collections.abc import Callable

CODECS = [Codec.LZ4, Codec.ZLIB, Codec.ZSTD, Codec.SNAPPY]
SLACK_BYTES = 64 * 1024  # of the interpreter, the codec and the error message

codecs = st.sampled_from(CODECS)
payloads = st.one_of(
    st.binary(max_size=2000),
    st.builds(lambda unit, times: unit * times, st.binary(min_size=1, max_size=40), st.integers(0, 3000)),
)


def java_deflate(data: bytes) -> bytes:
    """As Java's client does: flushed, never finished."""
    deflater = zlib.compressobj()
    return deflater.compress(data) + deflater.flush(zlib.Z_SYNC_FLUSH)


def peak_bytes(action: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def decompress_or_refuse(codec: Codec, data: bytes, claim: int) -> None:
    try:
        result = decompress(codec, data, claim)
    except CorruptEntry:
        return
    assert len(result) == claim


# --- what is right -------------------------------------------------------------------------------------------------


@given(st.sampled_from(Codec), payloads, st.sampled_from([bytes, bytearray, memoryview]))
def test_what_was_compressed_comes_back(codec: Codec, data: bytes, form: type[bytes | bytearray | memoryview]) -> None:
    compressed = compress(codec, form(data))
    assert bytes(decompress(codec, form(compressed), len(data))) == data


@given(payloads)
def test_a_zlib_stream_that_java_left_unfinished_comes_back(data: bytes) -> None:
    assert decompress(Codec.ZLIB, java_deflate(data), len(data)) == data


@pytest.mark.parametrize(
    ("codec", "compressed"),
    [
        (Codec.LZ4, "44 61626364 0400 50 6261626162"),  # four literals, a match of 8 at distance 4, five literals
        (Codec.ZLIB, "7801 00 1100eeff 6162636461626364616263646261626162"),  # one stored block that is not the last
        (Codec.ZSTD, "28b52ffd 0000 890000 6162636461626364616263646261626162"),  # one raw block, no content size
        (Codec.SNAPPY, "11 0c 61626364 1104 10 6261626162"),  # length, four literals, a copy of 8, five literals
    ],
)
def test_bytes_written_by_hand_are_understood(codec: Codec, compressed: str) -> None:
    assert decompress(codec, bytes.fromhex(compressed), 17) == b"abcdabcdabcdbabab"


def test_without_compression_the_data_is_returned_uncopied_whatever_is_claimed() -> None:
    data = memoryview(b"hello")
    assert decompress(Codec.NONE, data, 0) is data
    assert decompress(Codec.NONE, data, 2**40) is data


@pytest.mark.parametrize("codec", CODECS)
def test_empty_bytes_decompress_to_an_empty_payload(codec: Codec) -> None:
    assert decompress(codec, b"", 0) == b""


@pytest.mark.parametrize("codec", CODECS)
def test_the_densest_payload_stays_within_the_bound_and_near_it(codec: Codec) -> None:
    zeros = bytes(32 * 1024 * 1024)
    compressed = compress(codec, zeros)
    assert 0.95 < len(zeros) / len(compressed) / MAX_EXPANSION[codec] <= 1
    assert decompress(codec, compressed, len(zeros)) == zeros


# --- what is wrong -------------------------------------------------------------------------------------------------


@given(codecs, payloads, st.integers(-3, 3).filter(bool))
def test_a_claim_that_is_off_is_refused(codec: Codec, data: bytes, off: int) -> None:
    with pytest.raises(CorruptEntry):
        decompress(codec, compress(codec, data), len(data) + off)


@given(codecs, payloads, st.data())
def test_a_truncated_payload_never_gives_another_size_than_claimed(
    codec: Codec, data: bytes, draw: st.DataObject
) -> None:
    compressed = compress(codec, data)
    cut = draw.draw(st.integers(0, len(compressed) - 1))
    decompress_or_refuse(codec, compressed[:cut], len(data))


@given(st.sampled_from([Codec.LZ4, Codec.ZSTD, Codec.SNAPPY]), payloads.filter(bool), st.data())
def test_a_truncated_payload_is_refused(codec: Codec, data: bytes, draw: st.DataObject) -> None:
    compressed = compress(codec, data)
    cut = draw.draw(st.integers(0, len(compressed) - 1))
    with pytest.raises(CorruptEntry):
        decompress(codec, compressed[:cut], len(data))


@given(codecs, payloads, st.data())
def test_a_flipped_bit_never_gives_another_size_than_claimed(codec: Codec, data: bytes, draw: st.DataObject) -> None:
    compressed = bytearray(compress(codec, data))
    bit = draw.draw(st.integers(0, len(compressed) * 8 - 1))
    compressed[bit // 8] ^= 1 << (bit % 8)
    decompress_or_refuse(codec, bytes(compressed), len(data))


@given(codecs, st.binary(max_size=300), st.one_of(st.integers(-1, 5000), st.integers(-(2**31), 2**32)))
def test_random_bytes_are_refused_or_give_the_claimed_size_in_bounded_memory(
    codec: Codec, data: bytes, claim: int
) -> None:
    honest = claim if 0 <= claim <= len(data) * MAX_EXPANSION[codec] else 0
    assert peak_bytes(lambda: decompress_or_refuse(codec, data, claim)) <= 3 * honest + SLACK_BYTES


@pytest.mark.parametrize("codec", CODECS)
def test_a_claim_that_the_data_cannot_hold_is_refused_before_anything_is_allocated(codec: Codec) -> None:
    data = compress(codec, b"x" * 100)
    claim = len(data) * MAX_EXPANSION[codec] + 1
    assert peak_bytes(lambda: decompress_or_refuse(codec, data, claim)) < SLACK_BYTES
    with pytest.raises(CorruptEntry, match="which it cannot hold"):
        decompress(codec, data, claim)


def test_a_zlib_stream_that_holds_more_than_claimed_is_not_read_to_its_end() -> None:
    bomb = zlib.compress(bytes(32 * 1024 * 1024))
    assert peak_bytes(lambda: decompress_or_refuse(Codec.ZLIB, bomb, 10_000)) < 3 * 10_000 + SLACK_BYTES


WINDOW = """
import re, resource, sys
from pathlib import Path
import pyarrow as pa
from afterglow.format.compression import Codec, decompress

decompress(Codec.ZSTD, bytes.fromhex("28b52ffd 2000 010000"), 0)  # whatever the codec needs once
frame = bytes.fromhex("28b52ffd 0088 010000")  # a window of 2^27 bytes, one empty block
used = int(re.search(r"VmSize:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
resource.setrlimit(resource.RLIMIT_AS, (used + 2**26, resource.RLIM_INFINITY))
if sys.argv[1] == "one-shot":
    assert decompress(Codec.ZSTD, frame, 0) == b""
else:
    assert pa.CompressedInputStream(pa.BufferReader(frame), "zstd").read(1) == b""
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits and tells a process's address space")
@pytest.mark.parametrize(("how", "fits"), [("one-shot", True), ("stream", False)])
def test_a_zstd_frame_that_asks_for_a_large_window_gets_it_from_a_stream_only(how: str, *, fits: bool) -> None:
    done = subprocess.run([sys.executable, "-c", WINDOW, how], capture_output=True, text=True, check=False)
    assert (done.returncode == 0) is fits, done.stderr


def test_bytes_behind_a_finished_zlib_stream_are_refused() -> None:
    with pytest.raises(CorruptEntry, match="3 bytes follow"):
        decompress(Codec.ZLIB, zlib.compress(b"hello") + b"abc", 5)


def test_a_zlib_stream_with_a_wrong_checksum_is_refused() -> None:
    stream = zlib.compress(b"hello")
    with pytest.raises(CorruptEntry, match="incorrect data check"):
        decompress(Codec.ZLIB, stream[:-1] + bytes([stream[-1] ^ 1]), 5)


def test_a_claim_above_the_limit_is_refused_and_the_limit_can_be_raised() -> None:
    data = compress(Codec.ZSTD, bytes(2000))
    with pytest.raises(CorruptEntry, match="above the limit of 1999"):
        decompress(Codec.ZSTD, data, 2000, max_bytes=1999)
    assert decompress(Codec.ZSTD, data, 2000, max_bytes=2000) == bytes(2000)
    with pytest.raises(CorruptEntry, match="above the limit"):
        decompress(Codec.ZSTD, bytes(10_000), MAX_UNCOMPRESSED_BYTES + 1)


def test_an_unknown_codec_is_refused_by_its_number() -> None:
    with pytest.raises(CorruptEntry, match="unknown compression type 9"):
        decompress(9, b"hello", 5)
