"""The decoder on hostile input: for any bytes it returns rows and unreadable entries, without crash, hang or bomb.

Uncompressed bytes use at most ``FACTOR`` times their size in memory; compressed ones the same multiple of their
expanded size, and never more than the limit of a batch.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import strategies
from tests.support.assemble import encode_block
from tests.support.oracle import batch_rows, decode_rows

from afterglow.errors import CorruptBlock, CorruptEntry
from afterglow.format.blocks import HEADER_BYTES, BlockHeader, Format
from afterglow.format.checks import open_block
from afterglow.format.columns import decode_messages
from afterglow.format.compression import Codec, compress
from afterglow.format.entry import encode_batch, encode_broker_metadata, encode_entry
from afterglow.format.frames import frame_entries, scan_frames
from afterglow.format.proto.pulsar_api_pb2 import CompressionType, KeyValue, MessageMetadata, SingleMessageMetadata

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.oracle import Row

HERE = Path(__file__).parent
FUZZ_SECONDS = float(os.environ.get("AFTERGLOW_FUZZ_SECONDS", "4"))

FACTOR = 32
"""The worst is a batch of empty messages: six bytes each, and 142 in all columns of a row, before texts."""

SLACK_BYTES = 512 * 1024
"""Of the interpreter, and of buffers that have a least size."""

# What a step may differ in: protobuf takes an unknown codec for none, and the oracle has no limit to a batch.
STRICTER = {
    "it is compressed by an unknown codec",
    "it claims more messages than its bytes, or one record batch, can hold",
}


def decode(entries: list[bytes], **options: Any) -> tuple[list[Row], dict[int, str]]:
    framed = frame_entries(entries)
    rows: list[Row] = []
    bad: dict[int, str] = {}
    for messages in decode_messages(framed, scan_frames(framed, 0), 3, **options):
        messages.batch.validate(full=True)
        rows += batch_rows(messages.batch)
        bad |= {item.entry_id: item.reason for item in messages.unreadable}
    return rows, bad


def sample(codec: Codec, *, batched: bool) -> bytes:
    """A small entry that has about everything."""
    fields: dict[str, Any] = {
        "properties": [KeyValue(key="k", value="ż")],
        "partition_key": "QUI=",
        "partition_key_b64_encoded": True,
        "ordering_key": b"o",
        "event_time": 5,
    }
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, schema_version=b"\0\1")
    metadata.replicated_from, metadata.schema_id = "ż", b"\3\4"
    payload = b"value value value"
    if batched:
        metadata.num_messages_in_batch = 2
        payload = encode_batch([(SingleMessageMetadata(**fields), b"one"), (SingleMessageMetadata(), b"")])
    else:
        metadata.MergeFrom(MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, **fields))
    metadata.compression = CompressionType.ValueType(int(codec))
    metadata.uncompressed_size = len(payload)
    return encode_broker_metadata(7, 8) + encode_entry(metadata, compress(codec, payload))


SAMPLES = [sample(codec, batched=batched) for codec in Codec for batched in (False, True)]


def check_against_oracle(entries: list[bytes]) -> set[str]:
    """Decode entries of which each may be damaged; returns what was said of the bad ones."""
    rows, bad = decode(entries)
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row["entry_id"], []).append(row)
    for entry_id, entry in enumerate(entries):
        try:
            expected = decode_rows(entry, 3, entry_id)
        except CorruptEntry:
            continue
        if entry_id in bad:
            assert bad[entry_id] in STRICTER, (entry.hex(), bad[entry_id])
        else:
            assert found.get(entry_id, []) == expected, entry.hex()
    return set(bad.values())


# --- small damage, all of it ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(len(SAMPLES)))
def test_an_entry_cut_at_any_byte_is_bad_or_what_the_oracle_sees(number: int) -> None:
    entry = SAMPLES[number]
    reasons = check_against_oracle([entry[:size] for size in range(len(entry) + 1)])
    assert "its message metadata reaches beyond the entry" in reasons


@pytest.mark.parametrize("number", range(len(SAMPLES)))
def test_an_entry_with_any_bit_flipped_is_bad_or_what_the_oracle_sees(number: int) -> None:
    entry = SAMPLES[number]
    flipped = []
    for bit in range(8 * len(entry)):
        copy = bytearray(entry)
        copy[bit // 8] ^= 1 << bit % 8
        flipped.append(bytes(copy))
    assert len(check_against_oracle(flipped)) > 3
    _, bad = decode(flipped, check=True)
    behind_the_checksum = range(8 * (6 + 4 + 6), 8 * len(entry))
    assert set(behind_the_checksum) <= bad.keys()


def test_a_block_with_any_bit_flipped_gives_its_other_entries_or_a_typed_error() -> None:
    framed = frame_entries(SAMPLES[:4], 5)
    block = bytes(encode_block(BlockHeader(Format.V2, HEADER_BYTES + len(framed) + 5, 5, 3), framed))
    whole = [row for i, entry in enumerate(SAMPLES[:4], 5) for row in decode_rows(entry, 3, i)]
    for bit in range(8 * len(block)):
        flipped = bytearray(block)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            opened = open_block(flipped, 5, 3)
        except CorruptBlock:
            assert bit // 8 < 36
            continue
        rows: list[Row] = []
        for messages in decode_messages(flipped, opened.frames, 3):
            rows += batch_rows(messages.batch)
        # The entries in front of the damaged one are untouched.
        damaged = next((i for i in range(4) if bit // 8 < sum(len(e) + 12 for e in SAMPLES[: i + 1]) + 128), 4)
        before = [row for row in whole if row["entry_id"] < 5 + damaged]
        assert rows[: len(before)] == before


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_random_bytes_are_bad_entries_or_what_the_oracle_sees(entries: list[bytes]) -> None:
    check_against_oracle(entries)


@given(strategies.entries(plain=True), st.data())
def test_lengths_of_any_size_are_bad_or_what_the_oracle_sees(entry: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(entry)))
    huge = strategies.varint(data.draw(st.sampled_from([2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1])))
    check_against_oracle([entry[:at] + huge + entry[at + data.draw(st.integers(0, 3)) :]])


# --- much damage, in a process of its own --------------------------------------------------------------------------


def run(program: str, *arguments: str, timeout: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(HERE / program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


def test_no_byte_is_touched_outside_what_was_given() -> None:
    seed = os.environ.get("AFTERGLOW_FUZZ_SEED", str(random.SystemRandom().getrandbits(32)))
    done = run("columns_fuzzer.py", seed, str(FUZZ_SECONDS), timeout=FUZZ_SECONDS + 120)
    assert done.returncode == 0, f"seed {seed}: AFTERGLOW_FUZZ_SEED={seed} repeats it\n{done.stderr[-4000:]}"
    assert int(done.stdout.split()[0]) > 50


def test_one_byte_past_the_end_would_have_ended_the_process() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(HERE)!r})\n"
        "import numpy as np, columns_fuzzer as f\n"
        "from afterglow.format._kernels.calls import text_kind\n"
        "text = np.frombuffer(f.guarded_copy(b'x' * 10), np.uint8)\n"
        "text_kind(text, np.array([0, 10], np.int32))\n"
        "print('whole', flush=True)\n"
        "text_kind(text, np.array([0, 11], np.int32))\n"
        "print('not reached')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == "whole\n"
    assert done.returncode in {-signal.SIGSEGV, -signal.SIGBUS}


@pytest.mark.skipif(sys.platform != "linux", reason="an address space is bounded by Linux alone")
def test_small_inputs_that_ask_for_much_do_not_get_it() -> None:
    done = run("columns_bombs.py", timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]


# --- memory --------------------------------------------------------------------------------------------------------


def peak_bytes(action: Callable[[], object]) -> int:
    """The most memory that Python and Arrow together hold while the action runs, at most twice counted."""
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1] + int(pool.max_memory())
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)


def smallest(count: int, name: bytes = b"") -> bytes:
    head = b"\x0a" + strategies.sized(name) + b"\x10\0\x18\0" + b"\x58" + strategies.varint(count)
    return strategies.envelope(head, b"\0\0\0\2\x18\0" * count, checksum=False)


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param([b""] * 30_000, id="empty entries"),
        pytest.param([strategies.envelope(b"\x0a\0\x10\0\x18\0", b"", checksum=False)] * 30_000, id="smallest entries"),
        pytest.param([smallest(50_000)], id="smallest messages"),
        pytest.param([smallest(20_000, b"n" * 16)], id="smallest messages with a name"),
        pytest.param([smallest(20_000, b"\xff")], id="smallest messages with a broken name"),
        pytest.param(
            [strategies.envelope(b"\x0a\0\x10\0\x18\0" + b"\x22\x04\x0a\0\x12\0" * 50_000, b"")],
            id="smallest properties",
        ),
        pytest.param([random.Random(1).randbytes(500_000)], id="noise"),
        pytest.param([random.Random(i).randbytes(40) for i in range(8_000)], id="many noises"),
        pytest.param([SAMPLES[0]] * 3_000, id="messages"),
    ],
)
def test_memory_is_a_small_multiple_of_the_input(entries: list[bytes]) -> None:
    framed = frame_entries(entries)

    def action() -> None:
        for messages in decode_messages(framed, scan_frames(framed, 0), 3):
            del messages

    action()  # what is loaded once is loaded
    assert peak_bytes(action) <= FACTOR * len(framed) + SLACK_BYTES


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZLIB, Codec.ZSTD, Codec.SNAPPY])
def test_memory_is_a_small_multiple_of_what_the_input_expands_to(codec: Codec) -> None:
    payload = b"\0\0\0\2\x18\0" * 50_000
    metadata = MessageMetadata(
        producer_name="p",
        sequence_id=1,
        publish_time=1,
        num_messages_in_batch=50_000,
        compression=CompressionType.ValueType(int(codec)),
        uncompressed_size=len(payload),
    )
    framed = frame_entries([encode_entry(metadata, compress(codec, payload))])

    def action() -> None:
        (messages,) = decode_messages(framed, scan_frames(framed, 0), 3)
        assert messages.batch.num_rows == 50_000

    action()
    assert peak_bytes(action) <= FACTOR * (len(framed) + len(payload)) + SLACK_BYTES
