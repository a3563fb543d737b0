"""File system operations that survive a crash, for the local store.

A file is durable after its own ``fsync``; its *name* is durable only after the ``fsync`` of the directory that holds
it. Each function performs a single step, so that the order of steps stays visible at the caller.
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

# Errors of copy_file_range if the kernel or file system does not support it; the bytes are then copied by this process.
_NO_KERNEL_COPY = {errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM}


def status(path: Path) -> os.stat_result | None:
    """Return a file's status; None if it does not exist."""
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
    """Create a directory and its missing parents below an existing root, durably."""
    missing = []
    while path != root and not path.is_dir():
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)


def write_file(path: Path, buffers: Iterable[Data], *, modified_ns: int | None = None) -> None:
    """Write a new file and sync its bytes; its name is not durable yet."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        for buffer in buffers:
            _write_all(descriptor, memoryview(buffer))
        if modified_ns is not None:
            os.utime(descriptor, ns=(modified_ns, modified_ns))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_range(descriptor: int, start: int, end: int) -> memoryview:
    """Read ``[start, end)`` into one new buffer.

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
            raise EOFError(f"the file ends at {start + done}, before {end}")
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
        data = os.pread(source, min(_COPY_BYTES, count - done), done)
        if not data:
            raise EOFError(f"the file ends at {done}, before {count}")
        _write_all(target, memoryview(data))
        done += len(data)


def remove(path: Path) -> bool:
    """Unlink a file; returns whether it existed."""
    try:
        os.unlink(path)  # noqa: PTH108 - crash tests step through the calls of os
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a lock file against every thread and process of this machine; the kernel releases it after a crash."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, view: memoryview) -> None:
    while view.nbytes:
        view = view[os.write(descriptor, view) :]
