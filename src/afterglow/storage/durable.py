"""Steps on a file system that survive a crash, from which the local store is built.

A file is durable after its own ``fsync``; its *name* is durable only after the ``fsync`` of the directory that holds
it. Every function here does exactly what its name says, so that the order of steps stays visible at the caller.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from afterglow.storage.store import Data

__all__ = [
    "append_range",
    "exclusive",
    "make_directories",
    "read_range",
    "remove",
    "status",
    "sync_directory",
    "write_file",
]

_COPY_BYTES = 1 << 20
_ONE_READ_BYTES = 1 << 30  # Linux reads at most 2 GiB - 4 KiB at once

# What copy_file_range answers where kernel or file system cannot do it; the bytes then go through this process.
_NO_KERNEL_COPY = {errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM}


def status(path: Path) -> os.stat_result | None:
    """Tell a file's status, or None where there is none."""
    try:
        return os.stat(path)  # noqa: PTH116 - crash tests step through the calls of os
    except (FileNotFoundError, NotADirectoryError):
        return None


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directories(path: Path, root: Path) -> None:
    """Make a directory and its missing parents below an existing root, durably."""
    missing = []
    while path != root and not path.is_dir():
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)


def write_file(path: Path, pieces: Iterable[Data], *, modified_ns: int | None = None) -> None:
    """Write a new file and sync its bytes; its name is not durable yet."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        for piece in pieces:
            _write_all(descriptor, memoryview(piece))
        if modified_ns is not None:
            os.utime(descriptor, ns=(modified_ns, modified_ns))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_range(descriptor: int, start: int, end: int) -> memoryview:
    """Read ``[start, end)`` into one fresh buffer.

    Raises:
        EOFError: The file is shorter than ``end``.
    """
    if end - start <= _ONE_READ_BYTES:
        data = os.pread(descriptor, end - start, start)  # unlike a bytearray it is not zeroed first
        if len(data) == end - start:
            return memoryview(data)
    buffer = memoryview(bytearray(end - start))
    done = 0
    while done < buffer.nbytes:
        count = os.preadv(descriptor, [buffer[done:]], start + done)
        if count == 0:
            raise EOFError(f"file ends at {start + done}, {end} was asked")
        done += count
    return buffer.toreadonly()


def append_range(source: int, target: int, count: int) -> None:
    """Append the first ``count`` bytes of one open file to another, inside the kernel where it can.

    Raises:
        EOFError: The source is shorter than ``count``.
    """
    done = 0
    with suppress(AttributeError):  # copy_file_range: Linux only
        while done < count:
            try:
                copied = os.copy_file_range(source, target, count - done, offset_src=done)
            except OSError as error:
                if error.errno in _NO_KERNEL_COPY:
                    break
                raise
            if copied == 0:
                break
            done += copied
    while done < count:
        piece = os.pread(source, min(_COPY_BYTES, count - done), done)
        if not piece:
            raise EOFError(f"file ends at {done}, {count} bytes were to be copied")
        _write_all(target, memoryview(piece))
        done += len(piece)


def remove(path: Path) -> bool:
    """Unlink a file; tell whether it was there."""
    try:
        os.unlink(path)  # noqa: PTH108 - crash tests step through the calls of os
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a lock file against every thread and process of this machine; the system releases it when we die."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, view: memoryview) -> None:
    while view.nbytes:
        view = view[os.write(descriptor, view) :]
