"""Lease by a file lock, for metadata on this machine: the operating system ends it with the process."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from afterglow.errors import MetadataInUse, MetadataUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from threading import Event

    from afterglow.errors import Fenced

_ATTEMPTS: Final = 50
_WAIT_S: Final = 0.02
"""A process that is between fork and exec, or asks for the holder, holds the lock for a moment."""
_MAX_BYTES: Final = 1000
_BUSY: Final = {errno.EACCES, errno.EAGAIN}


class FileLease:
    """A :class:`~afterglow.metadata.lease.Lease`. No wait is supported: a second process is refused.

    Args:
        path: The file to lock; it is created, and stays.
        what: What is owned, for messages.
        process: Description of this process.
    """

    node: str | None = None
    """None: no other process can take the lock while this one runs."""

    def __init__(self, path: Path, what: str, process: str) -> None:
        self._path = path
        self._what = what
        self._process = process
        self._descriptor: int | None = None

    def holder(self) -> str | None:
        """Description of the process that holds the lock; None: none does."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failed(error) from error
        with _closed_on_error(descriptor):
            found = None if self._lock(descriptor) else self._read(descriptor)
        os.close(descriptor)
        return found

    def acquire(self, stop: Event, on_standby: Callable[[str], None]) -> bool:
        """Lock the file.

        Raises:
            MetadataInUse: Another process has locked it.
            MetadataUnavailable: The file cannot be created.
        """
        del stop, on_standby
        if self._descriptor is not None:
            return True
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._failed(error) from error
        with _closed_on_error(descriptor):
            if not self._lock(descriptor):
                raise MetadataInUse(
                    f"{self._what} is in use by {self._read(descriptor)}, which has locked {self._path}; stop that "
                    "process first, or keep metadata in ZooKeeper (zk://HOST:2181), where a second process waits as a "
                    "standby"
                )
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, self._process.encode(), 0)
        self._descriptor = descriptor
        return True

    def keep(self, guard: str, on_lost: Callable[[Fenced], None]) -> None:
        """Do nothing: the lock ends with the process."""

    def release(self) -> None:
        """Unlock the file."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None

    def _lock(self, descriptor: int) -> bool:
        for attempt in range(_ATTEMPTS):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in _BUSY:
                    raise self._failed(error) from error
            else:
                return True
            if attempt + 1 < _ATTEMPTS:
                time.sleep(_WAIT_S)
        return False

    @staticmethod
    def _read(descriptor: int) -> str:
        return os.pread(descriptor, _MAX_BYTES, 0).decode("utf-8", "replace") or "a process that is starting or ending"

    def _failed(self, error: OSError) -> MetadataUnavailable:
        return MetadataUnavailable(
            f"{self._path} cannot be locked: {error.strerror or error}; make its directory writable, on a file system "
            "with locks"
        )


@contextmanager
def _closed_on_error(descriptor: int) -> Iterator[None]:
    try:
        yield
    except BaseException:
        os.close(descriptor)
        raise
