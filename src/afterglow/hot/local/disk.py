"""All calls to the operating system that the local hot log makes on its files.

One small class, so that tests can count the calls, let any of them fail, and reconstruct the disk after a crash between
two of them. Callers document the order in which calls must be made.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_MAX_CALL_BYTES = 1 << 30  # Linux moves at most 2 GiB - 4 KiB at once
_MAX_BUFFERS = 1024  # IOV_MAX
_LOCK_ATTEMPTS = 50
_LOCK_WAIT_S = 0.02


class Disk:
    """The real disk."""

    def open(self, path: Path, *, write: bool = False, create: bool = False, empty: bool = False) -> int:
        """Open a file to read, or to read and write; ``create`` creates a missing file, ``empty`` truncates it."""
        flags = (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC
        flags |= (os.O_CREAT if create else 0) | (os.O_TRUNC if empty else 0)
        return os.open(path, flags, 0o644)

    def close(self, descriptor: int) -> None:
        """Close a file."""
        os.close(descriptor)

    def read(self, descriptor: int, length: int, offset: int) -> bytes:
        """Read ``length`` bytes; fewer only at the end of the file."""
        data = os.pread(descriptor, min(length, _MAX_CALL_BYTES), offset)
        if len(data) == length or not data:
            return data
        buffers = [data]
        while (done := sum(map(len, buffers))) < length:
            data = os.pread(descriptor, min(length - done, _MAX_CALL_BYTES), offset + done)
            if not data:
                break
            buffers.append(data)
        return b"".join(buffers)

    def read_into(self, descriptor: int, target: memoryview, offset: int) -> int:
        """Fill a buffer; returns the number of bytes read, less than its size only at the end of the file."""
        done = 0
        while done < target.nbytes:
            count = os.preadv(descriptor, [target[done : done + _MAX_CALL_BYTES]], offset + done)
            if not count:
                break
            done += count
        return done

    def write(self, descriptor: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write all of ``data``."""
        done = os.pwrite(descriptor, data, offset)
        if done < len(data):
            view = memoryview(data)
            while done < len(view):
                done += os.pwrite(descriptor, view[done:], offset + done)

    def write_buffers(self, descriptor: int, buffers: Sequence[bytes | memoryview], offset: int) -> None:
        """Write buffers one after the other, with few calls: each may have to wait for the GIL."""
        for first in range(0, len(buffers), _MAX_BUFFERS):
            some = buffers[first : first + _MAX_BUFFERS]
            length = sum(map(len, some))
            done = os.pwritev(descriptor, some, offset)
            if done < length:
                self.write(descriptor, b"".join(some)[done:], offset + done)
            offset += length

    def truncate(self, descriptor: int, length: int) -> None:
        """Truncate a file to a length, or extend it with zeros."""
        os.ftruncate(descriptor, length)

    def size(self, descriptor: int) -> int:
        """Length of a file in bytes."""
        return os.fstat(descriptor).st_size

    def sync(self, descriptor: int) -> None:
        """Make a file's bytes and length durable; its name is not."""
        if sys.platform == "darwin":
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)  # fsync stops at the drive's cache there
        else:
            os.fdatasync(descriptor)

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def make_directory(self, path: Path) -> None:
        """Create a directory with its parents, if it is missing."""
        path.mkdir(parents=True, exist_ok=True)

    def names(self, path: Path) -> list[str]:
        """Names in a directory, in no order."""
        return os.listdir(path)  # noqa: PTH208 - a Path for each name costs ten times as much

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file, replacing the target."""
        source.rename(target)

    def unlink(self, path: Path) -> None:
        """Remove a file name; a missing one is not an error."""
        path.unlink(missing_ok=True)

    def lock(self, descriptor: int) -> bool:
        """Lock a file exclusively until it is closed; returns whether that was possible.

        A process that calls :meth:`locked`, or is between fork and exec, holds the lock for a moment, so that this
        waits up to a second.
        """
        for _ in range(_LOCK_ATTEMPTS):
            if self._flock(descriptor, fcntl.LOCK_EX):
                return True
            time.sleep(_LOCK_WAIT_S)
        return self._flock(descriptor, fcntl.LOCK_EX)

    def locked(self, descriptor: int) -> bool:
        """Whether a process holds the lock of a file."""
        if not self._flock(descriptor, fcntl.LOCK_SH):
            return True
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        return False

    @contextmanager
    def opened(self, path: Path, *, write: bool = False, create: bool = False, empty: bool = False) -> Iterator[int]:
        """A file that is open during the block."""
        descriptor = self.open(path, write=write, create=create, empty=empty)
        try:
            yield descriptor
        finally:
            self.close(descriptor)

    @staticmethod
    def _flock(descriptor: int, how: int) -> bool:
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
