"""Marks of chunks, markers and messages of transactions, against protobuf's own parser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.support import strategies

from afterglow.format._kernels import layout
from afterglow.format.columns import decode_messages
from afterglow.format.entry import decode_entry, encode_entry
from afterglow.format.frames import frame_entries, scan_frames
from afterglow.format.marks import Chunk, find_marks
from afterglow.format.proto.pulsar_api_pb2 import EncryptionKeys, MessageMetadata

if TYPE_CHECKING:
    from tests.support.strategies import LedgerEntries

    from afterglow.format.marks import Marks

BITS = st.sampled_from([0, 1, 2, 2**63, 2**64 - 1])


def entry_of(payload: bytes = b"", **fields: Any) -> bytes:
    return encode_entry(MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, **fields), payload)


@st.composite
def marked_entries(draw: st.DrawFn) -> bytes:
    """An entry with any of the fields that make a mark."""
    fields: dict[str, Any] = {}
    for name, values in (
        ("txnid_most_bits", BITS),
        ("txnid_least_bits", BITS),
        ("marker_type", st.sampled_from([0, 10, 13, 20, 21, 22, -1])),
        ("uuid", st.text(max_size=10)),
        ("num_chunks_from_msg", st.integers(-1, 4)),
        ("chunk_id", st.integers(-1, 4)),
        ("total_chunk_msg_size", st.integers(-1, 2**31 - 1)),
        ("encryption_keys", st.just([EncryptionKeys(key="k", value=b"v")])),
        ("uncompressed_size", st.integers(0, 100)),
    ):
        if draw(st.booleans()):
            fields[name] = draw(values)
    return entry_of(draw(st.binary(max_size=30)), **fields)


def transaction(metadata: MessageMetadata) -> int | None:
    if metadata.HasField("txnid_most_bits") and metadata.HasField("txnid_least_bits"):
        return metadata.txnid_most_bits << 64 | metadata.txnid_least_bits
    return None


def in_transactions(marks: Marks) -> list[tuple[int, int]]:
    ids, entries, which = marks.transactions()
    assert len(set(ids)) == len(ids)
    return [(entry, ids[offset]) for entry, offset in zip(entries.tolist(), which.tolist(), strict=True)]


@given(st.lists(marked_entries() | strategies.entries(), max_size=12), st.integers(0, 2**40), st.integers(0, 12))
def test_marks_are_what_protobuf_reads(entries: list[bytes], first: int, start: int) -> None:
    framed = frame_entries(entries, first)
    marks = find_marks(framed, scan_frames(framed, first), first + start)
    chunks, endings, messages = [], [], []
    for entry_id, entry in list(enumerate(entries, first))[start:]:
        parts = decode_entry(entry)
        metadata, txn = parts.metadata, transaction(parts.metadata)
        if metadata.num_chunks_from_msg > 1:
            chunks.append((
                Chunk(
                    entry_id,
                    metadata.uuid.encode(),
                    txn,
                    metadata.chunk_id,
                    metadata.num_chunks_from_msg,
                    metadata.total_chunk_msg_size,
                    0,
                    len(parts.payload),
                    metadata.compression,
                    metadata.uncompressed_size,
                    bool(metadata.encryption_keys),
                ),
                bytes(parts.payload),
            ))  # fmt: skip
        if metadata.HasField("marker_type"):
            if txn is not None and metadata.marker_type in {21, 22}:
                endings.append((entry_id, txn, metadata.marker_type == 21))
        elif txn is not None:
            messages.append((entry_id, txn))
    found = [(chunk, framed[chunk.payload_at : chunk.payload_at + chunk.payload_bytes]) for chunk in marks.chunks()]
    assert [(_placeless(chunk), payload) for chunk, payload in found] == chunks
    assert list(marks.endings()) == endings
    assert in_transactions(marks) == messages


def _placeless(chunk: Chunk) -> Chunk:
    values = {name: getattr(chunk, name) for name in Chunk.__slots__}
    return Chunk(**{**values, "payload_at": 0})


@given(strategies.ledgers(max_entries=8), st.lists(marked_entries(), max_size=4), st.integers(1, 300))
def test_a_decoder_gives_the_same_marks_and_other_columns_only_where_there_are_any(
    ledger: LedgerEntries, more: list[bytes], batch_bytes: int
) -> None:
    framed = frame_entries([*ledger.entries, *more])
    frames = scan_frames(framed, 0)
    found = [np.empty((0, layout.MARK_COLUMNS), np.int64)]
    for messages in decode_messages(
        framed, frames, 1, columns=["value"], marked=["value", "entry_id"], batch_bytes=batch_bytes, check=True
    ):
        assert messages.unreadable == ()
        assert (messages.marks is None) == (messages.batch.schema.names == ["value"])
        if messages.marks is not None:
            assert len(messages.marks.table)
            found.append(messages.marks.table)
    assert np.concatenate(found).tolist() == find_marks(framed, frames).table.tolist()


def test_a_damaged_entry_has_no_mark() -> None:
    good = entry_of(b"abc", num_chunks_from_msg=2, uuid="u")
    flipped = good[:-1] + b"x"
    framed = frame_entries([flipped, good])
    assert [chunk.entry_id for chunk in find_marks(framed, scan_frames(framed, 0)).chunks()] == [1]
    (messages,) = decode_messages(framed, scan_frames(framed, 0), 1, marked=["entry_id"], check=True)
    assert messages.marks is not None
    assert [chunk.entry_id for chunk in messages.marks.chunks()] == [1]


def test_alternating_transactions_are_distinguished() -> None:
    entries = [
        entry_of(txnid_most_bits=most, txnid_least_bits=least)
        for most, least in [(0, 5), (0, 5), (2**64 - 1, 5), (0, 5), (0, 7), (2**64 - 1, 5)]
    ]
    framed = frame_entries(entries)
    high = (2**64 - 1) << 64 | 5
    assert in_transactions(find_marks(framed, scan_frames(framed, 0))) == [
        (0, 5), (1, 5), (2, high), (3, 5), (4, 7), (5, high)
    ]  # fmt: skip
