"""The table of published ends, from which other processes learn up to where an open ledger may be read.

A file of 32-byte slots, one for each open ledger: its id, its readable entries, the bytes of their frames, a CRC32C.
It is written, not mapped: a store into a mapped page of a full disk kills the process, a failed write is an error. A
slot that a reader finds half-written fails its CRC, and is read again.

Each process that writes a home creates the file anew and holds a lock on it. A table whose writer is gone is ignored,
since after a crash of the machine it may be newer than the ledgers. Readers that still have it open first read the head
of the ledger's file, which says that the ledger was closed.
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
_MAX_REREADS = 1_000  # a write of 32 bytes is never seen torn this often in a row


class ReadableEnd(NamedTuple):
    """The end of the readable part of a ledger."""

    entries: int
    frame_bytes: int


class PublishedEnds:
    """The table of the process that writes. Used by one thread at a time."""

    def __init__(self, disk: Disk, paths: HotLogPaths) -> None:
        """Replace the table by a new one.

        Raises:
            OSError: The disk failed.
        """
        self._disk = disk
        self._slots = bytearray()
        self._free: list[int] = []
        self._changed: set[int] = set()
        draft = paths.published.with_suffix(".new")
        disk.unlink(draft)  # a new inode: a reader may have an earlier draft open
        self._file = disk.open(draft, write=True, create=True)
        try:
            if not disk.lock(self._file):
                raise HotLogError(f"{draft} is locked by another process; stop that process, or use another home")
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
        """Change a slot; other processes see it after :meth:`publish`."""
        crc = crc32c(_SLOT.pack(ledger_id, entries, frame_bytes, 0))
        _SLOT.pack_into(self._slots, slot * SLOT_BYTES, ledger_id, entries, frame_bytes, crc)
        self._changed.add(slot)

    def release(self, slot: int) -> None:
        """Empty a slot, to be reused for another ledger."""
        self._slots[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES] = _EMPTY
        self._changed.add(slot)
        heapq.heappush(self._free, slot)

    def publish(self) -> None:
        """Write the range from the first to the last changed slot, in one call.

        Raises:
            OSError: Some slots may be published. The next call repeats all of them.
        """
        if self._changed:
            start, end = min(self._changed) * SLOT_BYTES, (max(self._changed) + 1) * SLOT_BYTES
            self._disk.write(self._file, self._slots[start:end], start)
            self._changed.clear()

    def close(self) -> None:
        """Close the table, which releases its lock: readers ignore it from now on."""
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
        """Whether its writer was running; else it is to be ignored."""

    def end(self, slot: int, ledger_id: int) -> ReadableEnd | None:
        """The readable end of a ledger; None if the slot is not the ledger's any more.

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
