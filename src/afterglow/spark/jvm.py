"""The JVM that PySpark drives: its process, and calls that PySpark has no public API for.

Only this module uses PySpark's private attributes (``_gateway``, ``_jvm``, ``_jsc``, ``_active_spark_context``).
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from afterglow.errors import AfterglowError, ConfigError, MissingDependency, NotSupported
from afterglow.spark.log_filter import filtered_stderr

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

SECRET: Final = re.compile(r"(?i)secret|password|token|(access|account|private)[._]?key")
"""Names of settings whose values are secrets: those that Spark itself redacts, and keys of other stores."""

_EXIT_TIMEOUT_S: Final = 20.0
"""For an orderly end; the JVM's shutdown hooks take about one second."""
_ABORT_TIMEOUT_S: Final = 1.2
"""For the shutdown hooks after an abort; they delete temporary files."""


def pyspark_classes() -> tuple[Any, Any]:
    """PySpark's classes ``SparkContext`` and ``SparkSession``.

    Raises:
        MissingDependency: PySpark is not installed.
    """
    try:
        from pyspark import SparkContext  # noqa: PLC0415  # optional, and takes half a second
        from pyspark.sql import SparkSession  # noqa: PLC0415  # likewise
    except ImportError as error:
        raise spark_missing() from error
    return SparkContext, SparkSession


def spark_missing() -> MissingDependency:
    """The error for a missing PySpark."""
    return MissingDependency.of_extra("Spark is not installed", "spark")


# --- Spark Connect ---


def require_no_connect() -> None:
    """Verify that PySpark would start a driver in this process, rather than use a server of Spark Connect.

    Raises:
        ConfigError: The environment, or a session of this process, selects Spark Connect.
    """
    address = os.environ.get("SPARK_REMOTE")
    if address is None and "SPARK_CONNECT_MODE_ENABLED" not in os.environ:
        return
    named = "" if address is None else f" (SPARK_REMOTE={address.partition('/;')[0]})"  # parameters may be secrets
    raise ConfigError(
        f"this process uses Spark Connect{named}, and export, verify --deep and offload need a Spark driver in their "
        "own process: run them in a process without SPARK_REMOTE and without a session of Spark Connect"
    )


def require_driver(session: SparkSession, operation: str) -> None:
    """Verify that the driver of a session is in this process.

    Raises:
        NotSupported: The session is one of Spark Connect.
    """
    if type(session).__module__.startswith("pyspark.sql.connect."):
        raise NotSupported(
            f"{operation} needs a Spark driver in its own process, and the session is one of Spark Connect; use a "
            "session with a master, such as spark://HOST:7077, in another process"
        )


# --- the process ---


def start_jvm(
    settings: Mapping[str, str], launch: Callable[..., Any], *, drop_stacks: bool, log_file: str | Path | None = None
) -> None:
    """Start the JVM as PySpark does, unless this process has one. Its standard error passes the log filter.

    Args:
        settings: Of Spark. Secrets among them do not reach the command line of the JVM, which every user of the machine
            can read: the session gets them when the JVM runs.
        launch: Called with ``Popen`` and its arguments in place of ``Popen``: PySpark gives access to the process only
            when the JVM has started.
        drop_stacks: Whether the log filter drops stacks of closed connections besides Java's warning.
        log_file: File that gets all that the JVM and its Python workers print, in place of standard output and error.

    Raises:
        OSError: The file cannot be opened.
    """
    from pyspark import SparkConf, java_gateway  # noqa: PLC0415 - optional, and takes half a second

    context, _ = pyspark_classes()
    if context._gateway is not None:  # noqa: SLF001
        return
    module: Any = java_gateway
    popen = module.Popen
    output = filtered_stderr(drop_stacks=drop_stacks) if log_file is None else _open_log(Path(log_file))
    streams = {"stderr": output} if log_file is None else {"stdout": output, "stderr": output}
    module.Popen = partial(launch, popen)
    try:
        public = [(name, value) for name, value in settings.items() if not SECRET.search(name)]
        conf = SparkConf(loadDefaults=False).setAll(public)
        gateway = module.launch_gateway(conf, streams)
        context._ensure_initialized(gateway=gateway)  # noqa: SLF001 - the first context does the same
    finally:
        module.Popen = popen
        os.close(output)


def _open_log(file: Path) -> int:
    """Open a log, which only its user can read: messages of Spark may quote data. Appending keeps logrotate simple."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def jvm_process() -> subprocess.Popen[bytes] | None:
    """The process of the JVM, if PySpark has started it here."""
    context, _ = pyspark_classes()
    gateway = context._gateway  # noqa: SLF001
    process: subprocess.Popen[bytes] | None = None if gateway is None else gateway.proc
    return process


def is_jvm_alive() -> bool:
    """Whether this process has a JVM that runs."""
    context, _ = pyspark_classes()
    gateway = context._gateway  # noqa: SLF001
    return gateway is not None and (gateway.proc is None or gateway.proc.poll() is None)


def kill_soon(process: subprocess.Popen[bytes]) -> None:
    """Terminate a JVM without waiting, and kill it if that takes long; its Python processes end with it."""
    # Until it has become the JVM, the process is a shell whose child computes the options.
    for pid in (process.pid, *_children(process.pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)

    def kill() -> None:
        try:
            process.wait(_ABORT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()

    threading.Thread(target=kill, name="spark-abort", daemon=True).start()


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:  # not Linux, or it has ended
        return []


def end_jvm() -> None:
    """End the JVM that PySpark has started, if any, so that PySpark can start another one later.

    PySpark offers no way to end it before the Python process ends. The JVM exits when its standard input is closed.
    """
    context, _ = pyspark_classes()
    gateway = context._gateway  # noqa: SLF001
    if gateway is None or gateway.proc is None:
        return  # nothing was started, or the JVM has started this process
    process: subprocess.Popen[bytes] = gateway.proc
    context._gateway = context._jvm = None  # noqa: SLF001
    gateway.shutdown()
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(_EXIT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


# --- the context ---


def active_session() -> SparkSession | None:
    """The session that this process has, whichever thread or program has started it."""
    context, session = pyspark_classes()
    # The context is asked, not the session class: the latter knows only the active session of a thread.
    if context._active_spark_context is None:  # noqa: SLF001
        return None
    existing: SparkSession = session.Builder().getOrCreate()
    return existing


def drop_context() -> None:
    """Have PySpark drop its context without a call to the JVM, which does not answer once it was killed."""
    context, _ = pyspark_classes()
    active = context._active_spark_context  # noqa: SLF001
    if active is not None:
        active._jsc = None  # noqa: SLF001  # else stop() calls the JVM before it drops the context
        active.stop()


def is_stopped(context: Any) -> bool:
    """Whether a context has ended, or its JVM does not answer."""
    try:
        return context._jsc is None or bool(context._jsc.sc().isStopped())  # noqa: SLF001
    except Exception:  # noqa: BLE001 - py4j has no common error type
        return True


# --- file systems ---


class HadoopFiles:
    """Files in one of Hadoop's file systems: Spark writes through the same ones, with the same credentials.

    Names are full URLs. Methods raise ``AfterglowError`` if the file system fails.

    Args:
        session: Has the configuration of file systems, and their credentials.
        url: Of a directory.

    Raises:
        AfterglowError: There is no such file system.
    """

    def __init__(self, session: SparkSession, url: str) -> None:
        context: Any = session.sparkContext
        self._url = url
        self._hadoop: Any = context._jvm.org.apache.hadoop.fs  # noqa: SLF001
        self._configuration: Any = context._jsc.hadoopConfiguration()  # noqa: SLF001
        self._system: Any = self._call(lambda: self._path(url).getFileSystem(self._configuration))
        if url.startswith("file:"):
            self._system = self._system.getRawFileSystem()  # the default one writes a .crc file beside each file

    def make_directory(self, directory: str) -> None:
        """Create a directory and its parents, unless it exists."""
        self._call(lambda: self._system.mkdirs(self._path(directory)))

    def names(self, directory: str) -> list[str]:
        """Names of files and directories in a directory; empty if it is missing."""
        path = self._path(directory)
        if not self._call(lambda: self._system.exists(path)):
            return []
        return [status.getPath().getName() for status in self._call(lambda: self._system.listStatus(path))]

    def read(self, file: str) -> bytes | None:
        """Contents of a small file; None if it is missing."""
        path = self._path(file)
        if not self._call(lambda: self._system.exists(path)):
            return None
        stream = self._call(lambda: self._system.open(path))
        try:
            return bytes(self._call(stream.readAllBytes))
        finally:
            stream.close()

    def write(self, file: str, data: bytes) -> None:
        """Create a small file. A crash may leave it truncated."""
        stream = self._call(lambda: self._system.create(self._path(file), False))  # noqa: FBT003 - Java has no keywords
        try:
            self._call(lambda: stream.write(bytearray(data)))
        finally:
            self._call(stream.close)

    def copy(self, directory: str, target: str) -> None:
        """Copy a directory."""
        arguments = self._system, self._path(directory), self._system, self._path(target)
        self._call(lambda: self._hadoop.FileUtil.copy(*arguments, False, self._configuration))  # noqa: FBT003

    def move(self, file: str, target: str) -> None:
        """Rename a file to a name that is not in use."""
        if not self._call(lambda: self._system.rename(self._path(file), self._path(target))):
            raise AfterglowError(f"{file} could not be renamed to {target}; check that no other program writes there")

    def delete(self, name: str) -> None:
        """Delete a file or a directory with its contents; a missing one is not an error."""
        self._call(lambda: self._system.delete(self._path(name), True))  # noqa: FBT003

    def _path(self, name: str) -> Any:
        return self._hadoop.Path(name)

    def _call(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:  # py4j has no common error type
            cause = getattr(error, "java_exception", None)
            raise AfterglowError(f"{self._url}: {error if cause is None else cause.getMessage()}") from error
