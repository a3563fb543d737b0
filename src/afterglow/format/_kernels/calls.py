"""Python interface of the kernels: functions that take arrays and pass their addresses and sizes.

The caller must hold a reference to every array while its kernel runs: an address does not keep it alive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from afterglow.format._kernels import layout
from afterglow.format._kernels import typed_layout as v
from afterglow.format._kernels.native import kernels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Longs = NDArray[np.int64]
    Ints = NDArray[np.int32]


def _at(array: NDArray[np.generic], kind: type[np.generic]) -> int:
    assert array.flags.c_contiguous
    assert array.dtype == kind
    return array.ctypes.data


def find_frames(data: Bytes, start: int, end: int, first_id: int) -> tuple[Longs, int]:
    """Return the offset of each frame in ``data[start:end]``, the end of the last, and the code of the scan's end."""
    # Entries usually have 100 bytes or more; if this capacity is too small, the second one is the maximum.
    capacity = (end - start) // 100 + 64
    while True:
        offsets = np.empty(capacity, np.int64)
        count = kernels().find_frames(_at(data, np.uint8), start, end, first_id, _at(offsets, np.int64), capacity)
        if count >= 0:
            # The code follows the offsets.
            return offsets[: count + 1], int(offsets[count + 1])
        capacity = (end - start) // 12 + 3


def frame_values(data: Bytes, start: int, end: int, first_id: int, count: int) -> Bytes | None:
    """Return the length-prefixed values in ``data[start:end]`` as frames; None if there are not exactly ``count``."""
    out = np.empty(end - start + 8 * count, np.uint8)
    written = kernels().frame_values(_at(data, np.uint8), start, end, first_id, count, _at(out, np.uint8))
    return None if written < 0 else out


def take_messages(
    data: Bytes, start: int, end: int, limit: int, *, consumer: int, ledger: int, last: int, found: Longs
) -> int:
    """Convert MESSAGEs in ``data[start:end]`` to frames; see the kernel for ``found``. Returns the code of the end."""
    scratch = np.empty(layout.COLUMNS, np.int64)
    return kernels().take_messages(
        _at(data, np.uint8), start, end, limit, consumer, ledger, last, _at(scratch, np.int64), _at(found, np.int64)
    )


def find_sends(data: Bytes, start: int, end: int, limit: int) -> tuple[Longs, int]:
    """Return a row for each SEND of a valid message at the beginning of ``data[start:end]``, and where they end."""
    # A further call finds those that do not fit.
    capacity = min((end - start) // 100 + 16, 1024)
    sends = np.empty((capacity, layout.SEND_COLUMNS), np.int64)
    found = np.empty(1, np.int64)
    count = kernels().find_sends(
        _at(data, np.uint8), start, end, limit, _at(sends, np.int64), capacity, _at(found, np.int64)
    )
    return sends[:count].copy(), int(found[0])


def frame_sends(
    data: Bytes, sends: Longs, size_bytes: int, first_id: int, time_ms: int, index: int
) -> tuple[Bytes, Longs, int]:
    """Return messages as frames, the offset of each and the end of the last, and the index of the last message.

    ``size_bytes`` is the sum of the messages' bytes; see the kernel for ``time_ms`` and ``index``.
    """
    count = len(sends)
    out = np.empty(size_bytes + layout.FRAMED_BYTES * count, np.uint8)
    offsets = np.empty(count + 1, np.int64)
    last = kernels().frame_sends(
        _at(data, np.uint8),
        _at(sends, np.int64),
        count,
        first_id,
        time_ms,
        index,
        _at(out, np.uint8),
        _at(offsets, np.int64),
    )
    return out[: int(offsets[-1])], offsets, last


def encode_receipts(receipts: Longs) -> Bytes:
    """Return receipts as frames."""
    out = np.empty(layout.RECEIPT_BYTES * len(receipts), np.uint8)
    written = kernels().encode_receipts(_at(receipts, np.int64), len(receipts), _at(out, np.uint8))
    return out[:written]


def encode_messages(
    data: Bytes,
    sizes: Longs,
    *,
    consumer: int,
    ledger: int,
    first_id: int,
    partition: int,
    epoch: int,
    expose: bool,
) -> tuple[Bytes, int, int, int]:
    """Return MESSAGEs of the first entries in ``data``, the number of entries and of messages, and these' bytes."""
    out = np.empty(data.size + layout.MESSAGE_BYTES * sizes.size, np.uint8)
    row = np.empty(layout.COLUMNS, np.int64)
    found = np.empty(3, np.int64)
    count = kernels().encode_messages(
        _at(data, np.uint8),
        _at(sizes, np.int64),
        sizes.size,
        _at(row, np.int64),
        consumer,
        ledger,
        first_id,
        partition,
        epoch,
        expose,
        _at(out, np.uint8),
        _at(found, np.int64),
    )
    written, messages, payload_bytes = found.tolist()
    return out[:written], count, messages, payload_bytes


def parse_entries(data: Bytes, offsets: Longs, rows: Longs, *, check: int) -> int:
    """Parse the entries framed at ``offsets`` (one more than rows) into ``rows``; a corrupt one has only its STATUS.

    Args:
        data: The entries.
        offsets: Offsets of their frames.
        rows: Receives a row for each.
        check: When their checksums are verified: ``layout.CHECK_NEVER`` and so on.

    Returns:
        The union of the FLAGS of all good entries.
    """
    return kernels().parse_entries(_at(data, np.uint8), _at(offsets, np.int64), _at(rows, np.int64), len(rows), check)


def read_marks(data: Bytes, rows: Longs, first_id: int, marks: Longs) -> int:
    """Write the marks of the good entries that are MARKED, in order; returns their number."""
    return kernels().read_marks(_at(data, np.uint8), _at(rows, np.int64), len(rows), first_id, _at(marks, np.int64))


def measure_entries(data: Bytes, offsets: Longs) -> Longs:
    """Return min and max broker time, min and max publish time, first and last index of the entries; -1 for none."""
    found = np.full(6, -1, np.int64)
    scratch = np.empty(layout.COLUMNS, np.int64)
    kernels().measure_entries(
        _at(data, np.uint8), _at(offsets, np.int64), offsets.size - 1, _at(scratch, np.int64), _at(found, np.int64)
    )
    return found


def count_messages(rows: Longs) -> int:
    """Return the number of messages that the good entries claim: at least as many as they have rows."""
    return kernels().count_messages(_at(rows, np.int64), len(rows))


def plan_payloads(data: Bytes, rows: Longs, limit: int, *, want_value: bool) -> tuple[int, int, int, int]:
    """Check the claims of entries, and assign each compressed payload its offset in the arena.

    Returns:
        ``(arena bytes with slack, bytes of the repeated names, payloads left to a library, bytes of all payloads)``
    """
    found = np.empty(4, np.int64)
    kernels().plan_payloads(
        _at(data, np.uint8), _at(rows, np.int64), len(rows), want_value, limit, _at(found, np.int64)
    )
    arena_bytes, repeated, others, payloads = found.tolist()
    return arena_bytes, repeated, others, payloads


def expand_lz4(data: Bytes, rows: Longs, arena: Bytes) -> None:
    """Expand every planned LZ4 payload; up to SLACK bytes after it may be overwritten."""
    kernels().expand_lz4(_at(data, np.uint8), data.size, _at(rows, np.int64), len(rows), _at(arena, np.uint8))


def fill_rows(data: Bytes, arena: Bytes, rows: Longs, first_id: int, outputs: Longs) -> int:
    """Write every message of the good entries, with values; returns the number of rows written, or TOO_LONG."""
    scratch = np.empty(layout.COLUMNS, np.int64)
    return kernels().fill_rows(
        _at(data, np.uint8),
        data.size,
        _at(arena, np.uint8),
        arena.size,
        _at(rows, np.int64),
        len(rows),
        first_id,
        _at(scratch, np.int64),
        _at(outputs, np.int64),
    )


def decode_plain(data: Bytes, offsets: Longs, first_id: int, outputs: Longs, *, check: int) -> int:
    """Decode the first entries framed at ``offsets``, up to one that is not a plain message.

    Returns:
        The number of entries decoded, each to one row.
    """
    row, own = np.empty((2, layout.COLUMNS), np.int64)
    return kernels().decode_plain(
        _at(data, np.uint8),
        data.size,
        _at(offsets, np.int64),
        offsets.size - 1,
        first_id,
        check,
        _at(row, np.int64),
        _at(own, np.int64),
        _at(outputs, np.int64),
    )


def gather(data: Bytes, arena: Bytes, places: Longs, offsets: Ints, out: Bytes) -> None:
    """Copy every text from its place in data or arena to its offset in ``out``."""
    kernels().gather(
        _at(data, np.uint8),
        data.size,
        _at(arena, np.uint8),
        arena.size,
        _at(places, np.int64),
        _at(offsets, np.int32),
        places.size,
        _at(out, np.uint8),
    )


def gather_keys(data: Bytes, arena: Bytes, places: Longs, offsets: Ints, coded: Bytes, out: Bytes) -> None:
    """As ``gather``, and decode the keys that are base64."""
    kernels().gather_keys(
        _at(data, np.uint8),
        _at(arena, np.uint8),
        _at(places, np.int64),
        _at(offsets, np.int32),
        _at(coded, np.uint8),
        places.size,
        _at(out, np.uint8),
    )


def note_properties(
    data: Bytes, arena: Bytes, spans: Longs, counts: Ints, places: Longs, keys: Ints, values: Ints
) -> None:
    """Write the source offset of each key (``places[0]``) and value (``places[1]``) of each row's properties."""
    kernels().note_properties(
        _at(data, np.uint8),
        _at(arena, np.uint8),
        _at(spans, np.int64),
        _at(counts, np.int32),
        len(spans),
        _at(places[0], np.int64),
        _at(keys, np.int32),
        _at(places[1], np.int64),
        _at(values, np.int32),
    )


def text_kind(text: Bytes, offsets: Ints) -> int:
    """Return the encoding of the texts at ``offsets``, each checked by itself: ASCII, UTF8 or NOT_UTF8."""
    return kernels().text_kind(_at(text, np.uint8), _at(offsets, np.int32), offsets.size - 1)


def decode_values(
    data: Bytes,
    places: Longs,
    lengths: Longs,
    which: Longs,
    row: int,
    words: Longs,
    texts: Bytes,
    columns: Longs,
    state: Longs,
    nulls: tuple[int, int],
    wrong: Longs,
) -> int:
    """Append rows from ``row`` on; returns the first row that did not fit in a column, or their number."""
    stack = np.empty(v.FRAME * (v.MAX_DEPTH + 1), np.int64)
    return kernels("typed").decode_values(
        _at(data, np.uint8),
        _at(places, np.int64),
        _at(lengths, np.int64),
        _at(which, np.int64),
        row,
        places.size,
        _at(words, np.int64),
        _at(texts, np.uint8),
        _at(columns, np.int64),
        len(columns),
        _at(stack, np.int64),
        _at(state, np.int64),
        *nulls,
        _at(wrong, np.int64),
    )


def split_pairs(data: Bytes, places: Longs, lengths: Longs) -> Longs:
    """Return offsets and lengths of the keys, then of the values; the offset of the key is -1 if a row is corrupt."""
    found = np.empty((4, places.size), np.int64)
    kernels("typed").split_pairs(
        _at(data, np.uint8),
        _at(places, np.int64),
        _at(lengths, np.int64),
        places.size,
        *(_at(row, np.int64) for row in found),
    )
    return found
