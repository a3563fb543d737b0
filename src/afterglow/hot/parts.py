"""Entries as callers hand them over: in pieces, to be joined."""

from __future__ import annotations

from typing import TYPE_CHECKING

from afterglow.errors import EntryTooLarge

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["total_bytes"]

_MAX_BYTES = (1 << 31) - 1  # a frame's length is an int32


def total_bytes(parts: Sequence[bytes | bytearray | memoryview]) -> int:
    """Bytes of an entry.

    Raises:
        TypeError: A piece is not contiguous bytes.
        EntryTooLarge: Its length does not fit a frame.
    """
    total = 0
    for part in parts:
        kind = part.__class__
        if kind is bytes or kind is bytearray:
            total += len(part)
        elif isinstance(part, memoryview) and part.c_contiguous:
            total += part.nbytes  # not len(): that counts items
        else:
            raise TypeError(f"a piece of an entry must be contiguous bytes, not {part!r}")
    if total > _MAX_BYTES:
        raise EntryTooLarge(f"an entry of {total} bytes does not fit a frame; {_MAX_BYTES} do")
    return total
