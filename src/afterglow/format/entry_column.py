"""Entries as an Arrow column, without a Python object per entry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from afterglow.format._kernels import calls
from afterglow.format.frames import FRAME_BYTES, as_bytes_array

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from afterglow.format.frames import Frames


def entry_column(data: Buffer, frames: Frames, low: int, high: int) -> pa.Array:
    """The bytes of some entries, without their frames.

    Args:
        data: The bytes that ``frames`` was found in.
        frames: Where the entries stand.
        low: Place of the first entry in ``frames``, inclusive.
        high: Place behind the last; all of them together must be below 2 GiB.
    """
    places = frames.offsets[low:high] + FRAME_BYTES
    ends = np.zeros(high - low + 1, np.int32)
    np.cumsum(frames.ends[low:high] - places, out=ends[1:])
    out = pa.allocate_buffer(int(ends[-1]))
    calls.gather(as_bytes_array(data), np.empty(0, np.uint8), places, ends, np.frombuffer(out, np.uint8))
    return pa.Array.from_buffers(pa.binary(), high - low, [None, pa.py_buffer(ends), out])
