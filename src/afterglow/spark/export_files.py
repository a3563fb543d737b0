"""The directory that an export writes to: on this machine, or wherever Spark's own file systems reach.

Names are relative to the directory and have slashes. What readers of Parquet see are its files alone; names that begin
with an underscore, and all below them, they pass over.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, Protocol

from afterglow.errors import AfterglowError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pyspark.sql import SparkSession

OWN: Final = "_export"
"""Directory of what is not for readers."""
_LOCK: Final = f"{OWN}/lock"


class ExportFiles(Protocol):
    """A directory that may not be there yet. Every method raises ``AfterglowError`` or ``OSError`` where it fails."""

    @property
    def url(self) -> str:
        """Its address, as Spark takes it."""
        ...

    def alone(self) -> AbstractContextManager[None]:
        """Keep all others out meanwhile, as far as the file system can.

        Raises:
            AfterglowError: Somebody else does that.
        """
        ...

    def names(self, below: str = "") -> list[str]:
        """Names of files and directories in a directory; none where it is not there."""
        ...

    def read(self, name: str) -> bytes | None:
        """A small file; None where there is none."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Write a small file that is not there yet."""
        ...

    def move(self, name: str, target: str) -> None:
        """Give a file another name, which nobody has."""
        ...

    def delete(self, name: str) -> None:
        """Delete a file, or a directory with all that is in it; none is no error."""
        ...


class LocalFiles:
    """A directory on this machine."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    @property
    def url(self) -> str:
        """See :class:`ExportFiles`."""
        return self._root.as_uri()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """See :class:`ExportFiles`. The system lets go of the lock when the process dies."""
        lock = self._root / _LOCK
        lock.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise AfterglowError(f"{self._root} is being written by another export; wait for its end") from error
        try:
            yield
        finally:
            os.close(descriptor)

    def names(self, below: str = "") -> list[str]:
        """See :class:`ExportFiles`."""
        try:
            return [path.name for path in (self._root / below).iterdir()]
        except FileNotFoundError:
            return []

    def read(self, name: str) -> bytes | None:
        """See :class:`ExportFiles`."""
        try:
            return (self._root / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """See :class:`ExportFiles`."""
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        staged = path.with_name(f".{path.name}.new")
        staged.write_bytes(data)
        staged.rename(path)

    def move(self, name: str, target: str) -> None:
        """See :class:`ExportFiles`."""
        (self._root / name).rename(self._root / target)

    def delete(self, name: str) -> None:
        """See :class:`ExportFiles`."""
        path = self._root / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


class HadoopFiles:
    """A directory in any file system that Spark knows, such as ``hdfs://…`` or ``s3a://…``.

    Args:
        session: Knows the file system, and its credentials.
        url: Address of the directory.

    Raises:
        AfterglowError: There is no such file system.
    """

    def __init__(self, session: SparkSession, url: str) -> None:
        context: Any = session.sparkContext
        self._jvm: Any = context._jvm  # noqa: SLF001 - PySpark offers no other way to Hadoop's file systems
        self._url = url.rstrip("/")
        configuration = context._jsc.hadoopConfiguration()  # noqa: SLF001 - likewise
        self._system: Any = self._call(lambda: self._path("").getFileSystem(configuration))

    @property
    def url(self) -> str:
        """See :class:`ExportFiles`."""
        return self._url

    def alone(self) -> AbstractContextManager[None]:
        """See :class:`ExportFiles`. Spark itself ends a query that finds its checkpoint written by another one."""
        return nullcontext()

    def names(self, below: str = "") -> list[str]:
        """See :class:`ExportFiles`."""
        path = self._path(below)
        if not self._call(lambda: self._system.exists(path)):
            return []
        return [status.getPath().getName() for status in self._call(lambda: self._system.listStatus(path))]

    def read(self, name: str) -> bytes | None:
        """See :class:`ExportFiles`."""
        path = self._path(name)
        if not self._call(lambda: self._system.exists(path)):
            return None
        stream = self._call(lambda: self._system.open(path))
        try:
            return bytes(self._call(stream.readAllBytes))
        finally:
            stream.close()

    def write(self, name: str, data: bytes) -> None:
        """See :class:`ExportFiles`."""
        stream = self._call(lambda: self._system.create(self._path(name), False))  # noqa: FBT003 - Java's
        try:
            self._call(lambda: stream.write(bytearray(data)))
        finally:
            self._call(stream.close)

    def move(self, name: str, target: str) -> None:
        """See :class:`ExportFiles`."""
        if not self._call(lambda: self._system.rename(self._path(name), self._path(target))):
            raise AfterglowError(
                f"{self._url}/{name} could not be renamed to {target}; is somebody else at work there?"
            )

    def delete(self, name: str) -> None:
        """See :class:`ExportFiles`."""
        self._call(lambda: self._system.delete(self._path(name), True))  # noqa: FBT003 - Java's

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._url}/{name}" if name else self._url)

    def _call(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except Exception as error:  # py4j, which wraps what Java throws, has no types
            cause = getattr(error, "java_exception", None)
            raise AfterglowError(f"{self._url}: {error if cause is None else cause.getMessage()}") from error
