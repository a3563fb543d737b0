"""Cache of open ledger files, of limited size; the least recently used file is closed first.

Its keys are ledger id and kind of file, since to build and hash a path costs as much as a write.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afterglow.hot.local.disk import Disk
    from afterglow.hot.local.paths import HotLogPaths


class _Handle:
    """One open file and the number of its current users."""

    __slots__ = ("descriptor", "users", "writable")

    def __init__(self, descriptor: int, *, writable: bool) -> None:
        self.descriptor = descriptor
        self.writable = writable
        self.users = 0


class LedgerFile(IntEnum):
    """The files of a ledger."""

    FRAMES = 0
    OFFSETS = 1


class OpenFiles:
    """Open files of ledgers. Thread-safe. Files in use stay open even beyond the limit."""

    def __init__(self, disk: Disk, paths: HotLogPaths, limit: int) -> None:
        self._disk = disk
        self._paths = paths
        self._limit = limit
        self._lock = threading.Lock()
        self._handles: OrderedDict[tuple[int, LedgerFile], _Handle] = OrderedDict()

    @contextmanager
    def use(self, ledger_id: int, part: LedgerFile, *, write: bool = False) -> Iterator[int]:
        """The descriptor of an existing ledger's file, which stays open during the block.

        Raises:
            FileNotFoundError: The file does not exist.
        """
        key = ledger_id, part
        handle = self._take(key, write=write)
        try:
            yield handle.descriptor
        finally:
            with self._lock:
                handle.users -= 1
                if not handle.users and self._handles.get(key) is not handle:
                    self._disk.close(handle.descriptor)  # dropped while it was in use

    def close_ledger(self, ledger_id: int) -> None:
        """Close a ledger's files, or let their last users close them."""
        with self._lock:
            for part in LedgerFile:
                self._drop((ledger_id, part))

    def close(self) -> None:
        """Close every file."""
        with self._lock:
            for key in list(self._handles):
                self._drop(key)

    def _take(self, key: tuple[int, LedgerFile], *, write: bool) -> _Handle:
        with self._lock:
            handle = self._handles.get(key)
            if handle is not None and (handle.writable or not write):
                self._handles.move_to_end(key)
            else:
                ledger_id, part = key
                path = self._paths.frames(ledger_id) if part is LedgerFile.FRAMES else self._paths.offsets(ledger_id)
                descriptor = self._disk.open(path, write=write)
                self._drop(key)
                handle = self._handles[key] = _Handle(descriptor, writable=write)
                self._shrink(handle)
            handle.users += 1
            return handle

    def _shrink(self, keep: _Handle) -> None:
        """Close the least recently used files; the new one and those in use stay."""
        while len(self._handles) > self._limit:
            idle = (key for key, handle in self._handles.items() if not handle.users and handle is not keep)
            oldest = next(idle, None)
            if oldest is None:
                return
            self._drop(oldest)

    def _drop(self, key: tuple[int, LedgerFile]) -> None:
        handle = self._handles.pop(key, None)
        if handle is not None and not handle.users:
            self._disk.close(handle.descriptor)
