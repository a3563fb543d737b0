"""The directory that an export writes to: on this machine, or wherever Spark's own file systems reach.

Names are relative to the directory and have slashes. The directory holds data files and nothing else: Polars refuses
one with any other file in it, hidden or not. What is not for readers has names below ``_export`` and is kept beside the
directory, in ``.NAME.export``. A directory that is copied or moved is read as before; an export into it goes on where
``.NAME.export`` was moved with it.

Earlier releases kept ``_export`` inside the directory. It is moved to its place before anything else is done.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from afterglow.errors import AfterglowError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

OWN: Final = "_export"
"""What the names of all that is not for readers begin with."""
RECORD: Final = f"{OWN}/export.json"
"""What is exported."""
_LOCK: Final = f"{OWN}/lock"
_PROBE: Final = ".afterglow-probe"
_REFUSED: Final = frozenset({"lock", "staging"})
"""All that an earlier release has left in ``_export`` of a directory that it did not write to."""


class ExportFiles(Protocol):
    """A directory that may not be there yet. Every method raises ``AfterglowError`` or ``OSError`` where it fails."""

    @property
    def url(self) -> str:
        """Its address, as Spark takes it."""
        ...

    def address(self, name: str) -> str:
        """That of a file or directory."""
        ...

    def adopt(self) -> None:
        """Move what an earlier release kept inside the directory to its place.

        Raises:
            AfterglowError: An export of that release runs, or something is in the way.
        """
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
    """A directory on this machine.

    Args:
        root: The directory.

    Raises:
        ConfigError: Nothing is above it.
    """

    def __init__(self, root: Path) -> None:
        # Links are followed, so that a rename from the directory beside it stays on one file system.
        self._root = root.resolve()
        if not self._root.name:
            raise ConfigError(f"--to parquet:{root} has no directory above it; give a directory below it")
        self._own = self._root.with_name(f".{self._root.name}.export")

    @property
    def url(self) -> str:
        """See :class:`ExportFiles`."""
        return self._root.as_uri()

    def address(self, name: str) -> str:
        """See :class:`ExportFiles`."""
        return self._path(name).as_uri()

    def adopt(self) -> None:
        """See :class:`ExportFiles`."""
        inside = self._root / OWN
        if not (inside / Path(RECORD).name).exists():
            if inside.is_dir() and {path.name for path in inside.iterdir()} <= _REFUSED:
                shutil.rmtree(inside)
            return
        with self._locked(inside / Path(_LOCK).name):
            try:
                inside.rename(self._own)
            except OSError as error:
                if error.errno == errno.EXDEV:
                    raise self._mounted() from error
                raise AfterglowError(
                    f"{inside} cannot be moved to {self._own}: {error.strerror}; an export keeps it there"
                ) from error

    @contextmanager
    def alone(self) -> Iterator[None]:
        """See :class:`ExportFiles`. The system lets go of the lock when the process dies."""
        self._root.mkdir(parents=True, exist_ok=True)
        self._own.mkdir(exist_ok=True)
        if not self.names():
            self._check_same_file_system()
        with self._locked(self._path(_LOCK)):
            try:
                yield
            finally:
                if not self._path(RECORD).exists():  # refused: an export's own may be moved to this name
                    shutil.rmtree(self._own, ignore_errors=True)

    @contextmanager
    def _locked(self, lock: Path) -> Iterator[None]:
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
            return [path.name for path in self._path(below).iterdir()]
        except FileNotFoundError:
            return []

    def read(self, name: str) -> bytes | None:
        """See :class:`ExportFiles`."""
        try:
            return self._path(name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """See :class:`ExportFiles`."""
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        staged = path.with_name(f".{path.name}.new")
        staged.write_bytes(data)
        staged.rename(path)

    def move(self, name: str, target: str) -> None:
        """See :class:`ExportFiles`."""
        self._path(name).rename(self._path(target))

    def delete(self, name: str) -> None:
        """See :class:`ExportFiles`."""
        path = self._path(name)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        own = _below_own(name)
        return self._root / name if own is None else self._own / own

    def _check_same_file_system(self) -> None:
        """Insist that files can be renamed into the directory, which a mount prevents."""
        probe = self._own / _PROBE
        probe.mkdir(exist_ok=True)
        try:
            probe.rename(self._root / _PROBE)
        except OSError as error:
            probe.rmdir()
            if error.errno == errno.EXDEV:
                raise self._mounted() from error
            raise
        (self._root / _PROBE).rmdir()

    def _mounted(self) -> ConfigError:
        return ConfigError(
            f"--to parquet:{self._root} is a mount point, and an export is staged beside its directory; give a "
            f"directory below it, such as {self._root}/topic"
        )


class HadoopFiles:
    """A directory in any file system that Spark knows, such as ``hdfs://…`` or ``s3a://…``.

    Args:
        session: Knows the file system, and its credentials.
        url: Address of the directory.

    Raises:
        ConfigError: The address is that of a whole bucket or file system.
        AfterglowError: There is no such file system.
    """

    def __init__(self, session: SparkSession, url: str) -> None:
        context: Any = session.sparkContext
        self._jvm: Any = context._jvm  # noqa: SLF001 - PySpark offers no other way to Hadoop's file systems
        self._url = url.rstrip("/")
        above, _, name = self._url.rpartition("/")
        if "://" not in self._url or above.endswith(":/"):
            raise ConfigError(f"--to parquet:{url} has no directory above it; give a directory below it")
        self._own = f"{above}/.{name}.export"
        self._configuration: Any = context._jsc.hadoopConfiguration()  # noqa: SLF001 - likewise
        self._system: Any = self._call(lambda: self._path("").getFileSystem(self._configuration))

    @property
    def url(self) -> str:
        """See :class:`ExportFiles`."""
        return self._url

    def address(self, name: str) -> str:
        """See :class:`ExportFiles`."""
        own = _below_own(name)
        return (f"{self._url}/{name}" if name else self._url) if own is None else f"{self._own}/{own}".rstrip("/")

    def adopt(self) -> None:
        """See :class:`ExportFiles`. Where a rename is no atomic step it is copied; the record inside goes last."""
        inside = self._jvm.org.apache.hadoop.fs.Path(f"{self._url}/{OWN}")
        record = self._jvm.org.apache.hadoop.fs.Path(f"{self._url}/{RECORD}")
        if self._call(lambda: self._system.exists(record)):
            self.delete(OWN)
            copy = self._jvm.org.apache.hadoop.fs.FileUtil.copy
            target = self._path(OWN)
            self._call(
                lambda: copy(self._system, inside, self._system, target, False, self._configuration)  # noqa: FBT003
            )
            self._call(lambda: self._system.delete(record, False))  # noqa: FBT003 - Java's
        if self.read(RECORD) is not None:
            self._call(lambda: self._system.delete(inside, True))  # noqa: FBT003 - Java's

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
        self._call(lambda: self._system.mkdirs(self._path(target).getParent()))
        if not self._call(lambda: self._system.rename(self._path(name), self._path(target))):
            raise AfterglowError(
                f"{self._url}/{name} could not be renamed to {target}; is somebody else at work there?"
            )

    def delete(self, name: str) -> None:
        """See :class:`ExportFiles`."""
        self._call(lambda: self._system.delete(self._path(name), True))  # noqa: FBT003 - Java's

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.address(name))

    def _call(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except Exception as error:  # py4j, which wraps what Java throws, has no types
            cause = getattr(error, "java_exception", None)
            raise AfterglowError(f"{self._url}: {error if cause is None else cause.getMessage()}") from error


def _below_own(name: str) -> str | None:
    """A name relative to the directory beside; None for one in the directory itself."""
    if name == OWN:
        return ""
    return name.removeprefix(f"{OWN}/") if name.startswith(f"{OWN}/") else None
