"""Python's interface to the kernels: functions that take arrays, and pass on their addresses and sizes.

The caller's frame holds every array while its kernel runs: an address alone would keep nothing alive.
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
    """Offset of each frame in ``data[start:end]`` and behind the last, and the code of what ended them."""
    # An entry has 100 bytes or more as a rule; where they are smaller, the most there can be is the second guess.
    room = (end - start) // 100 + 64
    while True:
        offsets = np.empty(room, np.int64)
        count = kernels().find_frames(_at(data, np.uint8), start, end, first_id, _at(offsets, np.int64), room)
        if count >= 0:
            # What ended them stands behind the offsets.
            return offsets[: count + 1], int(offsets[count + 1])
        room = (end - start) // 12 + 3


def frame_values(data: Bytes, start: int, end: int, first_id: int, count: int) -> Bytes | None:
    """The values in ``data[start:end]``, each behind its length, as frames; None where they are not ``count``."""
    out = np.empty(end - start + 8 * count, np.uint8)
    written = kernels().frame_values(_at(data, np.uint8), start, end, first_id, count, _at(out, np.uint8))
    return None if written < 0 else out


def take_messages(
    data: Bytes, start: int, end: int, limit: int, *, consumer: int, ledger: int, last: int, found: Longs
) -> int:
    """Turn MESSAGEs in ``data[start:end]`` into frames; see the kernel for ``found``. Returns what ended it."""
    scratch = np.empty(layout.COLUMNS, np.int64)
    return kernels().take_messages(
        _at(data, np.uint8), start, end, limit, consumer, ledger, last, _at(scratch, np.int64), _at(found, np.int64)
    )


def parse_entries(data: Bytes, offsets: Longs, rows: Longs, *, check: bool) -> int:
    """Parse the entries framed at ``offsets`` (one more than rows) into ``rows``; a bad one has only its STATUS.

    Returns:
        All bits that are in the FLAGS of a good one.
    """
    return kernels().parse_entries(_at(data, np.uint8), _at(offsets, np.int64), _at(rows, np.int64), len(rows), check)


def read_marks(data: Bytes, rows: Longs, first_id: int, marks: Longs) -> int:
    """Note what each good entry says that is MARKED, in order; ``marks`` has a row for each. Returns how many."""
    return kernels().read_marks(_at(data, np.uint8), _at(rows, np.int64), len(rows), first_id, _at(marks, np.int64))


def measure_entries(data: Bytes, offsets: Longs) -> Longs:
    """Min and max broker time, min and max publish time, first and last index of the entries; -1 is none."""
    found = np.full(6, -1, np.int64)
    scratch = np.empty(layout.COLUMNS, np.int64)
    kernels().measure_entries(
        _at(data, np.uint8), _at(offsets, np.int64), offsets.size - 1, _at(scratch, np.int64), _at(found, np.int64)
    )
    return found


def count_messages(rows: Longs) -> int:
    """How many messages the good entries claim to hold: no more than they give rows."""
    return kernels().count_messages(_at(rows, np.int64), len(rows))


def plan_payloads(data: Bytes, rows: Longs, limit: int, *, want_value: bool) -> tuple[int, int, int]:
    """Check what entries claim and place what must be expanded.

    Returns:
        ``(arena bytes with slack, bytes of the repeated names, payloads left to a library)``
    """
    found = np.empty(3, np.int64)
    kernels().plan_payloads(
        _at(data, np.uint8), _at(rows, np.int64), len(rows), want_value, limit, _at(found, np.int64)
    )
    return int(found[0]), int(found[1]), int(found[2])


def expand_lz4(data: Bytes, rows: Longs, arena: Bytes) -> None:
    """Expand every planned LZ4 payload into its place; bytes behind it, up to SLACK, may be overwritten."""
    kernels().expand_lz4(_at(data, np.uint8), data.size, _at(rows, np.int64), len(rows), _at(arena, np.uint8))


def fill_rows(data: Bytes, arena: Bytes, rows: Longs, first_id: int, outputs: Longs) -> int:
    """Write every message of the good entries; returns how many rows were written, or TOO_LONG."""
    scratch = np.empty(layout.COLUMNS, np.int64)
    return kernels().fill_rows(
        _at(data, np.uint8),
        _at(arena, np.uint8),
        _at(rows, np.int64),
        len(rows),
        first_id,
        _at(scratch, np.int64),
        _at(outputs, np.int64),
    )


def gather(data: Bytes, arena: Bytes, places: Longs, offsets: Ints, out: Bytes) -> None:
    """Copy every noted text to its offset in ``out``."""
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
    """As ``gather``, with those keys decoded that stand as base64."""
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
    """Note where each key (``places[0]``) and value (``places[1]``) of each row's properties stands."""
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
    """ASCII, UTF8 or BROKEN: what the texts at ``offsets`` are, each for itself."""
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
    """Append rows from ``row`` on; returns the one that a column had no room for, or their number."""
    stack = np.empty(v.FRAME * (v.DEEPEST + 1), np.int64)
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
    """Places and lengths of the keys, then those of the values; the place of the key is -1 where a row is damaged."""
    found = np.empty((4, places.size), np.int64)
    kernels("typed").split_pairs(
        _at(data, np.uint8),
        _at(places, np.int64),
        _at(lengths, np.int64),
        places.size,
        *(_at(row, np.int64) for row in found),
    )
    return found
