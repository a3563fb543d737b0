"""The kernels as Python calls them: with arrays, whose addresses and sizes they are given.

An address outlives nothing: every array is held by the caller's frame while its kernel runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from afterglow.format._kernels import layout
from afterglow.format._kernels.native import kernels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Longs = NDArray[np.int64]
    Ints = NDArray[np.int32]


def _at(array: NDArray[np.generic]) -> int:
    assert array.flags.c_contiguous
    return array.ctypes.data


def find_frames(data: Bytes, start: int, end: int, first_id: int) -> tuple[Longs, int]:
    """Offset of each frame in ``data[start:end]`` and behind the last, and the code of what ended them."""
    # An entry has 100 bytes or more as a rule; where they are smaller, the most there can be is the second guess.
    room = (end - start) // 100 + 64
    while True:
        offsets = np.empty(room, np.int64)
        count = kernels().find_frames(_at(data), start, end, first_id, _at(offsets), room)
        if count >= 0:
            # What ended them stands behind the offsets.
            return offsets[: count + 1], int(offsets[count + 1])
        room = (end - start) // 12 + 3


def parse_entries(data: Bytes, offsets: Longs, rows: Longs, *, check: bool) -> None:
    """Parse the entries framed at ``offsets`` (one more than rows) into ``rows``; a bad one has only its STATUS."""
    kernels().parse_entries(_at(data), _at(offsets), _at(rows), len(rows), check)


def measure_entries(data: Bytes, offsets: Longs) -> Longs:
    """Min and max broker time, min and max publish time, first and last index of the entries; -1 is none."""
    found = np.full(6, -1, np.int64)
    scratch = np.empty(layout.COLUMNS, np.int64)
    kernels().measure_entries(_at(data), _at(offsets), offsets.size - 1, _at(scratch), _at(found))
    return found


def count_messages(rows: Longs) -> int:
    """How many messages the good entries claim to hold: no more than they give rows."""
    return kernels().count_messages(_at(rows), len(rows))


def plan_payloads(data: Bytes, rows: Longs, limit: int, *, want_value: bool) -> tuple[int, int, int]:
    """Check what entries claim and place what must be expanded.

    Returns:
        ``(arena bytes with slack, bytes of the repeated names, payloads left to a library)``
    """
    found = np.empty(3, np.int64)
    kernels().plan_payloads(_at(data), _at(rows), len(rows), want_value, limit, _at(found))
    return int(found[0]), int(found[1]), int(found[2])


def expand_lz4(data: Bytes, rows: Longs, arena: Bytes) -> None:
    """Expand every planned LZ4 payload into its place; bytes behind it, up to SLACK, may be overwritten."""
    kernels().expand_lz4(_at(data), data.size, _at(rows), len(rows), _at(arena))


def fill_rows(data: Bytes, arena: Bytes, rows: Longs, first_id: int, outputs: Longs) -> int:
    """Write every message of the good entries; returns how many rows were written, or TOO_LONG."""
    scratch = np.empty(layout.COLUMNS, np.int64)
    return kernels().fill_rows(_at(data), _at(arena), _at(rows), len(rows), first_id, _at(scratch), _at(outputs))


def gather(data: Bytes, arena: Bytes, places: Longs, offsets: Ints, out: Bytes) -> None:
    """Copy every noted stretch to its offset in ``out``."""
    kernels().gather(_at(data), data.size, _at(arena), arena.size, _at(places), _at(offsets), places.size, _at(out))


def gather_keys(data: Bytes, arena: Bytes, places: Longs, offsets: Ints, coded: Bytes, out: Bytes) -> None:
    """As ``gather``, with those keys decoded that stand as base64."""
    kernels().gather_keys(_at(data), _at(arena), _at(places), _at(offsets), _at(coded), places.size, _at(out))


def note_properties(
    data: Bytes, arena: Bytes, spans: Longs, counts: Ints, places: Longs, keys: Ints, values: Ints
) -> None:
    """Note where each key (``places[0]``) and value (``places[1]``) of each row's properties stands."""
    kernels().note_properties(
        _at(data),
        _at(arena),
        _at(spans),
        _at(counts),
        len(spans),
        _at(places[0]),
        _at(keys),
        _at(places[1]),
        _at(values),
    )


def text_kind(text: Bytes, offsets: Ints) -> int:
    """ASCII, UTF8 or BROKEN: what the texts at ``offsets`` are, each for itself."""
    return kernels().text_kind(_at(text), _at(offsets), offsets.size - 1)
