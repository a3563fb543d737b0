"""Fuzzer that feeds corrupt entries to the decoder for some time; run as a program, since a fault may end the process.

    python columns_fuzzer.py SEED SECONDS

Every input, and every buffer that the decoder allocates, ends directly before a guard page: one byte read or written
past the end is a segmentation fault, which ends the process with a signal and a stack trace. If the oracle can read an
entry too, both results must be equal.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import random
import sys
import time
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from tests.support.oracle import batch_rows, decode_rows
from tests.support.strategies import envelope, sized, varint

from afterglow.errors import CorruptBlock, CorruptEntry
from afterglow.format import columns
from afterglow.format._kernels import calls
from afterglow.format.checks import open_block
from afterglow.format.compression import Codec, compress
from afterglow.format.entry import encode_broker_metadata
from afterglow.format.frames import frame_entries, scan_frames
from afterglow.format.proto.pulsar_api_pb2 import (
    CompressionType,
    EncryptionKeys,
    KeyValue,
    MessageMetadata,
    SingleMessageMetadata,
)
from afterglow.format.statistics import measure_block

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.format.marks import Marks

_libc = ctypes.CDLL(None, use_errno=True)

# Where the decoder refuses what the oracle reads: protobuf takes an unknown codec for none and passes over groups,
# which Pulsar's own parser refuses; and the oracle, which is not for bulk, has no limit to a batch.
STRICTER = {
    "it is compressed by an unknown codec",
    "it claims more messages than its bytes, or one record batch, can hold",
}


# --- memory with a guard behind it ---------------------------------------------------------------------------------


def guarded(size: int) -> memoryview:
    """Writable memory of exactly ``size`` bytes, directly before a page that may not be touched."""
    page = mmap.PAGESIZE
    mapped = -(-max(size, 1) // page) * page
    mapping = mmap.mmap(-1, mapped + page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    if _libc.mprotect(ctypes.c_void_p(address + mapped), ctypes.c_size_t(page), 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    return memoryview(mapping)[mapped - size : mapped]


def guarded_copy(data: bytes) -> memoryview:
    """The same bytes, guarded."""
    view = guarded(len(data))
    view[:] = data
    return view


class GuardedNumpy:
    """numpy, but that new arrays come guarded."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    @staticmethod
    def empty(shape: Any, dtype: Any) -> Any:
        count = int(np.prod(shape))
        return np.frombuffer(guarded(count * np.dtype(dtype).itemsize), dtype).reshape(shape)

    def full(self, shape: Any, value: Any, dtype: Any) -> Any:
        array = self.empty(shape, dtype)
        array.fill(value)
        return array

    def zeros(self, shape: Any, dtype: Any) -> Any:
        return self.full(shape, 0, dtype)


class GuardedArrow:
    """pyarrow, but that buffers come guarded."""

    def __getattr__(self, name: str) -> Any:
        return getattr(pa, name)

    @staticmethod
    def allocate_buffer(size: int) -> Any:
        return pa.py_buffer(guarded(size))


# --- entries, and what may become of them --------------------------------------------------------------------------


def a_payload(rng: random.Random) -> bytes:
    if rng.random() < 0.3:
        return rng.randbytes(rng.randrange(4)) * rng.randrange(200)
    return rng.randbytes(rng.choice([0, 1, 5, 15, 16, 17, 31, 60, 300]))


def some_fields(rng: random.Random) -> dict[str, Any]:
    """Fields that a message has, in a batch or alone."""
    fields: dict[str, Any] = {}
    if rng.random() < 0.4:
        count = rng.randrange(4)
        fields["properties"] = [
            KeyValue(key="k" * rng.randrange(20), value="ż" * rng.randrange(20)) for _ in range(count)
        ]
    if rng.random() < 0.4:
        fields["partition_key"] = rng.choice(["", "key", "QUJD", "QUI=", "Q" * 40, "ż*"])
        fields["partition_key_b64_encoded"] = rng.random() < 0.5
        fields["null_partition_key"] = rng.random() < 0.2
    if rng.random() < 0.3:
        fields["ordering_key"] = rng.randbytes(rng.randrange(20))
    if rng.random() < 0.3:
        fields["event_time"] = rng.choice([0, 1, 1_700_000_000_000, 2**64 - 1])
    if rng.random() < 0.2:
        fields["null_value"] = rng.random() < 0.5
    return fields


def a_batch(rng: random.Random, count: int) -> bytes:
    out = bytearray()
    for _ in range(count):
        payload = a_payload(rng)
        single = SingleMessageMetadata(payload_size=len(payload), compacted_out=rng.random() < 0.1, **some_fields(rng))
        if rng.random() < 0.5:
            single.sequence_id = rng.getrandbits(64)
        head = mutate(rng, single.SerializeToString(), 0.05)
        out += len(head).to_bytes(4, "big") + head + payload
    return bytes(out)


def an_entry(rng: random.Random) -> bytes:
    metadata = MessageMetadata(
        producer_name="p" * rng.choice([0, 1, 15, 16, 17, 100]),
        sequence_id=rng.getrandbits(rng.choice([8, 64])),
        publish_time=rng.getrandbits(41),
        **some_fields(rng),
    )
    if rng.random() < 0.3:
        metadata.schema_version = rng.randbytes(8)
    if rng.random() < 0.2:
        metadata.replicated_from = "ż" * rng.randrange(9)
        metadata.schema_id = rng.randbytes(rng.randrange(9))
    payload = a_payload(rng)
    if rng.random() < 0.6:
        metadata.num_messages_in_batch = rng.randrange(1, 8)
        payload = mutate(rng, a_batch(rng, metadata.num_messages_in_batch), 0.1)
        if rng.random() < 0.05:
            metadata.num_messages_in_batch = rng.choice([-1, 0, 1, 9, 2**21, 2**31 - 1])
    codec = Codec(rng.choice([0, 0, 1, 1, 1, 2, 3, 4]))
    metadata.compression = CompressionType.ValueType(int(codec))
    metadata.uncompressed_size = len(payload)
    payload = zlib.compress(payload)[:-4] if codec is Codec.ZLIB and rng.random() < 0.5 else compress(codec, payload)
    payload = mutate(rng, payload, 0.2)
    if rng.random() < 0.05:
        metadata.uncompressed_size = rng.choice([0, len(payload) + 1, 2**20, 2**28, 2**32 - 1])
    if rng.random() < 0.05:
        metadata.encryption_keys.append(EncryptionKeys(key="k", value=b"v"))
    if rng.random() < 0.05:
        metadata.num_chunks_from_msg = rng.choice([1, 2])
    if rng.random() < 0.05:
        metadata.marker_type = 20
    entry = envelope(mutate(rng, metadata.SerializeToString(), 0.3), payload, checksum=rng.random() < 0.5)
    if rng.random() < 0.5:
        entry = mutate(rng, encode_broker_metadata(rng.getrandbits(41), rng.getrandbits(20)), 0.1) + entry
    return mutate(rng, entry, 0.1)


def mutate(rng: random.Random, data: bytes, chance: float) -> bytes:
    """With the given chance, some bytes of the data become others, more or fewer."""
    out = bytearray(data)
    while rng.random() < chance:
        at = rng.randrange(len(out) + 1)
        kind = rng.randrange(7)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del out[at:]
        elif kind == 2:
            out[at:at] = varint(rng.choice([2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1, len(data)]))
        elif kind == 3:
            out[at:at] = rng.randbytes(rng.randrange(1, 12))
        elif kind == 4:
            out[at:at] = varint(rng.randrange(1, 40) << 3 | 2) + sized(rng.randbytes(rng.randrange(8)))
        elif kind == 5:
            out[at:at] = varint(rng.randrange(1, 40) << 3) + varint(rng.choice([0, 1, 2, 5, 2**31, 2**64 - 1]))
        else:
            out[at : at + rng.randrange(1, 8)] = b""
    return bytes(out)


# --- what must hold ------------------------------------------------------------------------------------------------


def decode(data: memoryview, first: int, **options: Any) -> tuple[list[dict[str, Any]], dict[int, str]]:
    rows: list[dict[str, Any]] = []
    bad: dict[int, str] = {}
    marked = options.get("columns") or columns.BLOCK_COLUMNS
    for messages in columns.decode_messages(data, scan_frames(data, first), 1, marked=marked, **options):
        messages.batch.validate(full=True)
        if messages.marks is not None:
            check_marks(messages.marks, data.nbytes)
        rows += batch_rows(messages.batch)
        bad |= {item.entry_id: item.reason for item in messages.unreadable}
    return rows, bad


def check_marks(marks: Marks, size: int) -> None:
    """Marks name places in the data, whatever it is."""
    for chunk in marks.chunks():
        assert 0 <= chunk.payload_at <= chunk.payload_at + chunk.payload_bytes <= size
        assert chunk.count > 1
    entries = set(marks.table[:, 0].tolist())
    assert {entry for entry, _, _ in marks.endings()} <= entries
    assert set(marks.transactions()[1].tolist()) <= entries


def check_entries(rng: random.Random) -> None:
    """The decoder and the oracle agree on each entry, and any choice of columns agrees with all of them."""
    first = rng.randrange(1000)
    entries = [an_entry(rng) for _ in range(rng.randrange(1, 6))]
    data = guarded_copy(frame_entries(entries, first))
    check = rng.random() < 0.3
    rows, bad = decode(data, first, check=check)
    for entry_id, entry in enumerate(entries, first):
        found = [row for row in rows if row["entry_id"] == entry_id]
        try:
            expected = decode_rows(entry, 1, entry_id, check=check)
        except CorruptEntry:
            continue  # protobuf checks more than what is asked for
        if entry_id not in bad:
            assert found == expected, (entry.hex(), found, expected)
        else:
            assert bad[entry_id] in STRICTER or has_groups(entry), (entry.hex(), bad[entry_id])
    chosen = rng.sample(columns.BLOCK_COLUMNS, rng.randrange(1, 16))
    some, fewer_bad = decode(data, first, columns=chosen, check=check, batch_bytes=rng.choice([1, 100, 1 << 20]))
    assert fewer_bad.keys() <= bad.keys()
    if fewer_bad.keys() == bad.keys():
        assert some == [{name: row[name] for name in chosen} for row in rows]
    measure_block(data, data, scan_frames(data, first).offsets)


def check_block(rng: random.Random) -> None:
    """Damage anywhere in the frames of a block."""
    framed = frame_entries([an_entry(rng) for _ in range(rng.randrange(4))])
    data = guarded_copy(mutate(rng, framed, 0.7))
    decode(data, 0)
    try:
        open_block(data)
    except CorruptBlock:
        return


def check_noise(rng: random.Random) -> None:
    """Bytes without any form."""
    entries = [
        rng.choice([b"", b"\x0e\x01", b"\x0e\x02", b"\0\0\0\x08"]) + rng.randbytes(rng.randrange(60)) for _ in range(8)
    ]
    decode(guarded_copy(frame_entries(entries)), 0)


def has_groups(entry: bytes) -> bool:
    """Whether a group could stand somewhere: some byte ends like the tag of one."""
    return any(byte & 7 in {3, 4} for byte in entry)


LEAST_ROUNDS = 50
"""However busy the machine is."""


def main(seed: int, seconds: float) -> None:
    faulthandler.enable()
    # The modules' own names for the libraries that they allocate with.
    columns.np = calls.np = GuardedNumpy()  # type: ignore[assignment, attr-defined]
    columns.pa = GuardedArrow()  # type: ignore[attr-defined]
    checks: list[Callable[[random.Random], None]] = [check_entries, check_entries, check_block, check_noise]
    until = time.monotonic() + seconds
    rounds = 0
    while time.monotonic() < until or rounds <= LEAST_ROUNDS:
        round_seed = f"{seed}/{rounds}"
        try:
            rng = random.Random(round_seed)
            rng.choice(checks)(rng)
        except BaseException:
            print("failed in round", round_seed, file=sys.stderr)  # noqa: T201 (a program)
            raise
        rounds += 1
    print(rounds, "rounds")  # noqa: T201


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
