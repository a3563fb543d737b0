"""The published ends: how other processes learn up to where an open ledger may be read.

A file of 32-byte slots, one for each open ledger: its id, its readable entries, the bytes of their frames, a CRC32C.
It is written, not mapped: a store into a mapped page of a full disk kills the process, a failed write is an error. A
slot that a reader meets half-written fails its CRC, and is read again.

The file is made anew by each process that writes a home, which holds a lock on it: a table whose maker is gone says
nothing, since after a crash of the machine it may be newer than the ledgers. Readers that still have it open look at
the head of a ledger's file first, which tells that the ledger was closed.
"""

from __future__ import annotations

import heapq
import struct
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from afterglow.errors import HotLogError

if TYPE_CHECKING:
    from afterglow.hot.local.disk import Disk
    from afterglow.hot.local.paths import HotLogPaths

_SLOT = struct.Struct(">qqqI4x")
SLOT_BYTES = _SLOT.size
_EMPTY = bytes(SLOT_BYTES)
_MAX_REREADS = 1_000  # a write of 32 bytes is never seen torn so often in a row


class ReadableEnd(NamedTuple):
    """Up to where a ledger may be read."""

    entries: int
    frame_bytes: int


class PublishedEnds:
    """The table of the process that writes. One thread at a time uses it."""

    def __init__(self, disk: Disk, paths: HotLogPaths) -> None:
        """Make a new table in the place of the one before it.

        Raises:
            OSError: The disk does not take it.
        """
        self._disk = disk
        self._slots = bytearray()
        self._free: list[int] = []
        self._changed: set[int] = set()
        draft = paths.published.with_suffix(".new")
        disk.unlink(draft)  # another inode, not the same one emptied: a reader may have a former draft open
        self._file = disk.open(draft, write=True, create=True)
        try:
            if not disk.lock(self._file):
                raise HotLogError(f"{draft} is held by another process; two must not write the same home")
            disk.rename(draft, paths.published)
        except OSError:
            disk.close(self._file)
            raise

    def take(self) -> int:
        """A slot for a new ledger."""
        if self._free:
            return heapq.heappop(self._free)
        self._slots += _EMPTY
        return len(self._slots) // SLOT_BYTES - 1

    def set(self, slot: int, ledger_id: int, entries: int, frame_bytes: int) -> None:
        """Change a slot; others see it when it is published."""
        crc = crc32c(_SLOT.pack(ledger_id, entries, frame_bytes, 0))
        _SLOT.pack_into(self._slots, slot * SLOT_BYTES, ledger_id, entries, frame_bytes, crc)
        self._changed.add(slot)

    def release(self, slot: int) -> None:
        """Empty a slot and let another ledger have it."""
        self._slots[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES] = _EMPTY
        self._changed.add(slot)
        heapq.heappush(self._free, slot)

    def publish(self) -> None:
        """Write what changed, in one piece: bytes in between are written as they are.

        Raises:
            OSError: Some of it may be published. The next call does it all again.
        """
        if self._changed:
            start, end = min(self._changed) * SLOT_BYTES, (max(self._changed) + 1) * SLOT_BYTES
            self._disk.write(self._file, self._slots[start:end], start)
            self._changed.clear()

    def close(self) -> None:
        """Let go of the table; it says nothing any more."""
        self._disk.close(self._file)


class PublishedView:
    """The table as another process reads it."""

    def __init__(self, disk: Disk, paths: HotLogPaths) -> None:
        """Open the table.

        Raises:
            FileNotFoundError: No process has ever written the home.
        """
        self._disk = disk
        self._file = disk.open(paths.published)
        self.live = disk.locked(self._file)
        """Whether its maker was alive, without which it says nothing."""

    def end(self, slot: int, ledger_id: int) -> ReadableEnd | None:
        """The readable end of a ledger; None where the slot is not its any more.

        Raises:
            HotLogError: The table is damaged.
        """
        for _ in range(_MAX_REREADS):
            data = self._disk.read(self._file, SLOT_BYTES, slot * SLOT_BYTES)
            if len(data) < SLOT_BYTES or data == _EMPTY:
                return None
            found, entries, frame_bytes, crc = _SLOT.unpack(data)
            if crc == crc32c(_SLOT.pack(found, entries, frame_bytes, 0)):
                return ReadableEnd(entries, frame_bytes) if found == ledger_id else None
        raise HotLogError(f"the published end of ledger {ledger_id} (slot {slot}) is damaged; restart the server")

    def close(self) -> None:
        """Close the table."""
        self._disk.close(self._file)
