"""Entries of one ledger in memory, in the buffers in which they were appended."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from afterglow.format.frames import FramedEntries

_ONE_BYTES: Final = 190
_MANY_BYTES: Final = 900
"""Memory of a buffer with one entry, and with many, beside its frames and their offsets."""


def memory_bytes(entries: FramedEntries) -> int:
    """Memory that entries take while they are held, at most."""
    if entries.offsets is None:
        return len(entries.data) + _ONE_BYTES
    return len(entries.data) + entries.offsets.nbytes + _MANY_BYTES


class HeldEntries:
    """Buffers with entries of one ledger, ascending. There may be gaps between them. Not thread-safe."""

    __slots__ = ("_buffers", "_firsts")

    def __init__(self) -> None:
        self._buffers: list[FramedEntries] = []
        self._firsts: list[int] = []

    def __len__(self) -> int:
        """Number of entries."""
        return sum(map(len, self._buffers))

    @property
    def first(self) -> int | None:
        """Id of the first entry; None without entries."""
        return self._firsts[0] if self._firsts else None

    @property
    def end(self) -> int:
        """Id after the last entry; 0 without entries."""
        return self._buffers[-1].end if self._buffers else 0

    def add(self, entries: FramedEntries) -> None:
        """Add entries that follow those that are held."""
        self._buffers.append(entries)
        self._firsts.append(entries.first)

    def pop_first(self) -> FramedEntries:
        """Remove the oldest buffer, and return it."""
        del self._firsts[0]
        return self._buffers.pop(0)

    def release_before(self, entry_id: int) -> list[FramedEntries]:
        """Remove the buffers whose entries are all before ``entry_id``, and return them."""
        count = 0
        while count < len(self._buffers) and self._buffers[count].end <= entry_id:
            count += 1
        released = self._buffers[:count]
        del self._buffers[:count], self._firsts[:count]
        return released

    def buffers(self) -> list[FramedEntries]:
        """All buffers."""
        return list(self._buffers)

    def get_range(self, first: int, last: int, max_bytes: int) -> list[memoryview]:
        """The entries from ``first`` to ``last``, both inclusive, up to the first that is not held.

        The first one regardless of its size; further ones only while their sum is within ``max_bytes``.
        """
        found: list[memoryview] = []
        size = 0
        at = bisect_right(self._firsts, first) - 1
        while 0 <= at < len(self._buffers) and first <= last:
            buffer = self._buffers[at]
            if not buffer.first <= first < buffer.end:
                break
            for data in buffer.entries(first, min(last + 1, buffer.end)):
                size += data.nbytes
                if found and size > max_bytes:
                    return found
                found.append(data)
            first = buffer.end
            at += 1
        return found
