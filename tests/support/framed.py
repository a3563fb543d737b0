"""Framed entries for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from afterglow.format.frames import FRAME_BYTES, FramedEntries, frame_entries

if TYPE_CHECKING:
    from collections.abc import Sequence


def together(first: int, entries: Sequence[bytes]) -> FramedEntries:
    """Entries in one buffer, as a producer's messages of one read come."""
    offsets = np.cumsum([0, *(FRAME_BYTES + len(entry) for entry in entries)], dtype=np.int64)
    return FramedEntries(first, memoryview(frame_entries(entries, first)), memoryview(offsets.data))
