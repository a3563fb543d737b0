"""The Spark session of this process, shared by its users.

:func:`local_session` starts Spark in a JVM of its own, on the Java that :mod:`afterglow.spark.java` finds, and ends
both when the last user leaves. Overlapping users share the session. A session that other code has started, such as a
notebook's, is used as it is and never stopped.

Spark starts on a thread of its own, so that Ctrl-C reaches the thread that waits for it. :func:`abort` ends a start, or
a running Spark, within a second or two: calls that wait for it fail.

:func:`prepare_spark` is for programs that make their session themselves, by ``SparkSession.builder``.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import warnings
from concurrent.futures import Future
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from afterglow.errors import AfterglowError, ConfigError
from afterglow.spark.java import find_java
from afterglow.spark.jvm import (
    SECRET,
    active_session,
    drop_context,
    end_jvm,
    is_jvm_alive,
    jvm_process,
    kill_soon,
    pyspark_classes,
    require_no_connect,
    spark_missing,
    start_jvm,
)
from afterglow.spark.master import is_local, with_attempts

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import SparkSession

    from afterglow.config.broker import BrokerConfig

_LOOPBACK: Final = "127.0.0.1"
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")
_CANCEL_TIMEOUT_S: Final = 2.4
"""For the end of a start that was cancelled."""
_CANCELLED: Final = "the start of Spark was cancelled"

QUIET: Final = {"spark.log.level": "OFF"}
"""Setting for commands that report errors themselves: Spark logs stacks too, also where nothing is wrong."""


@dataclass(slots=True)
class _SharedSession:
    """The running session and its users."""

    session: SparkSession
    settings: dict[str, str]
    """As requested by the first user."""
    users: int
    foreign: bool
    """Started by other code: never stopped, its settings never compared."""


_lock = threading.RLock()
_shared: _SharedSession | None = None
_current_start: _SparkStart | None = None
_last_start: _SparkStart | None = None
"""A start that was cancelled may still clean up when the next one is requested."""


def prepare_spark() -> None:
    """Let ``SparkSession.builder`` find a Java, and the Python that has this package; call it before the first session.

    Sets two environment variables of this process: ``JAVA_HOME`` to the result of
    :func:`afterglow.spark.java.find_java`, which is its own value if that one is usable; ``PYSPARK_PYTHON`` to this
    interpreter, unless it is set. For executors on other machines set ``PYSPARK_PYTHON`` to their interpreter.

    Raises:
        MissingDependency: PySpark or a Java is missing; the message says how to get it.
        ConfigError: The wheel's Java is needed and the cache directory cannot be written.
    """
    if find_spec("pyspark") is None:
        raise spark_missing()
    os.environ["JAVA_HOME"] = str(find_java().home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


@contextlib.contextmanager
def local_session(
    master: str = "local[2]", app_name: str = "afterglow", *, log_file: str | Path | None = None, **conf: str
) -> Iterator[SparkSession]:
    """Use a Spark session whose driver is this process; the last user to leave ends it and its JVM.

    Defaults: no web UI, and secrets masked in one that is enabled; times in UTC; Python workers that have imported this
    package, live on between jobs, and talk to the JVM over Unix sockets; jobs with a pool of their own share the
    workers evenly; no log lines below errors. With a local master nothing listens beyond the loopback address, and
    workers run this interpreter. With any other master Spark itself determines the address at which executors reach
    the driver, and their Python; this package must be installed there.

    Args:
        master: As in ``spark-submit --master``; a local one gets as many attempts per task as others have.
        app_name: The application's name.
        log_file: File that gets what Spark, Java and Python workers print, if this call starts them. Default: standard
            error, filtered.
        **conf: Spark settings by their full names (``**{"spark.sql.shuffle.partitions": "2"}``); they override the
            defaults.

    Raises:
        MissingDependency: PySpark or a Java is missing.
        ConfigError: The process already runs a session of ours with other settings, or one of Spark Connect; or the
            master is malformed.
    """
    require_no_connect()
    asked = {"spark.master": with_attempts(master), "spark.app.name": app_name, **conf}
    settings = {**_defaults(), **(_local_defaults() if is_local(master) else _cluster_defaults(asked)), **asked}
    used = _acquire(settings, log_file)
    try:
        yield used.session
    except (KeyboardInterrupt, SystemExit):
        if used.users == 1:
            abort()
        raise
    finally:
        _release(used)


def abort() -> None:
    """End the Spark that this process has started, or is about to, without waiting for it.

    Running tasks are killed, and every call to Spark fails from now on. Users of the session must still leave it.
    """
    cancel_start()
    process = own_jvm()
    if process is not None:
        kill_soon(process)


def own_jvm() -> subprocess.Popen[bytes] | None:
    """The process of the JVM that this package has started; None if it runs none."""
    used = _shared
    return None if used is None or used.foreign else jvm_process()


def cancel_start() -> None:
    """Cancel a start of Spark that another thread waits for, if there is one."""
    start = _current_start
    if start is not None:
        start.cancel()


def _defaults() -> dict[str, str]:
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.redaction.regex": SECRET.pattern,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
        "spark.pyspark.driver.python": sys.executable,
        "spark.python.daemon.module": "afterglow.spark.daemon",
        "spark.python.worker.reuse": "true",
        "spark.python.unix.domain.socket.enabled": "true" if hasattr(socket, "AF_UNIX") else "false",
        "spark.scheduler.mode": "FAIR",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
    }


def _local_defaults() -> dict[str, str]:
    return {
        "spark.driver.host": _LOOPBACK,
        "spark.driver.bindAddress": _LOOPBACK,
        "spark.pyspark.python": sys.executable,
    }


def _cluster_defaults(asked: Mapping[str, str]) -> dict[str, str]:
    """The interpreter of executors, also for tasks of a data source: these run that of the driver by default."""
    python = asked.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
    return {} if python is None else {"spark.sql.execution.pyspark.python": python}


def _acquire(settings: dict[str, str], log_file: str | Path | None) -> _SharedSession:
    global _shared  # noqa: PLW0603  # Spark itself allows one context per process
    with _lock:
        if _last_start is not None:
            _last_start.join()
        if _shared is not None and not _shared.foreign and not is_jvm_alive():
            _end(_shared)
        if _shared is None:
            foreign = active_session()
            _shared = _SharedSession(
                foreign or _start(settings, log_file), settings, users=0, foreign=foreign is not None
            )
        elif not _shared.foreign and _shared.settings != settings:
            differing = sorted(
                name for name in {*_shared.settings, *settings} if _shared.settings.get(name) != settings.get(name)
            )
            raise ConfigError(
                f"this process runs a Spark session with other settings (they differ in {', '.join(differing)}); "
                "leave it first, or ask for the same settings"
            )
        _shared.users += 1
        return _shared


def _release(used: _SharedSession) -> None:
    with _lock:
        used.users -= 1
        if not used.users and _shared is used:
            _end(used)


def _end(ended: _SharedSession) -> None:
    global _shared  # noqa: PLW0603  # see above
    _shared = None
    if ended.foreign:
        return
    try:
        ended.session.sparkContext.setLogLevel("OFF")  # tasks that still run fail now, which is expected
        ended.session.stop()
    except Exception:
        drop_context()
        if is_jvm_alive():
            raise
    finally:
        end_jvm()


def _start(settings: dict[str, str], log_file: str | Path | None) -> SparkSession:
    global _current_start, _last_start  # noqa: PLW0603  # see above
    _current_start = _last_start = _SparkStart(settings, log_file)
    try:
        return _current_start.result()
    finally:
        _current_start = None


class _SparkStart:
    """A start of Spark, on a thread of its own: on the main thread PySpark replaces the handler of Ctrl-C.

    PySpark does not end a JVM whose start is interrupted, and such a JVM may wait for ever. Therefore :meth:`_launch`
    keeps its process as soon as it exists.
    """

    def __init__(self, settings: dict[str, str], log_file: str | Path | None) -> None:
        self._settings = settings
        self._log_file = log_file
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._cancelled = False
        self._started: Future[SparkSession] = Future()
        self._thread = threading.Thread(target=self._run, name="spark-start", daemon=True)

    def result(self) -> SparkSession:
        """Start, and wait for the session.

        Raises:
            AfterglowError: It was cancelled.
        """
        try:
            self._thread.start()  # waits until the thread runs, so Ctrl-C may interrupt it too
            return self._started.result()
        except BaseException:
            self.cancel()
            self.join(_CANCEL_TIMEOUT_S)
            if self._started.done() and self._started.exception() is None:  # it started just before, without a user
                _discard()
            raise

    def cancel(self) -> None:
        """End it, from any thread; does not wait."""
        with self._lock:
            self._cancelled = True
            process = self._process
        if process is not None:
            kill_soon(process)

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for its end. A cancelled start ends soon, since its JVM is killed."""
        if self._thread.ident is not None:  # it was started
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            session = self._start_session()
            if self._cancelled:  # the session started all the same, and its JVM is being killed
                _discard()
                self._started.set_exception(AfterglowError(_CANCELLED))
            else:
                self._started.set_result(session)
        except BaseException as error:  # noqa: BLE001 - raised again by result()
            self._started.set_exception(AfterglowError(_CANCELLED) if self._cancelled else error)

    def _start_session(self) -> SparkSession:
        _, session = pyspark_classes()
        settings = self._settings
        variables = {
            "JAVA_HOME": str(find_java().home),
            "PYSPARK_DRIVER_PYTHON": settings["spark.pyspark.driver.python"],
        }
        # For these, PySpark and the launcher of its JVM read only the variables, not the settings.
        for variable, name in (
            ("SPARK_LOCAL_IP", "spark.driver.bindAddress"),
            ("PYSPARK_PYTHON", "spark.pyspark.python"),
        ):
            if name in settings:
                variables[variable] = settings[name]
        try:
            with _environment(variables), warnings.catch_warnings():
                # Users cannot act on it, and it would come with every command that uses Spark.
                warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
                quiet = settings.items() >= QUIET.items()
                start_jvm(settings, self._launch, drop_stacks=quiet, log_file=self._log_file)
                started: SparkSession = session.Builder().config(map=settings).getOrCreate()
        except BaseException:
            _discard()
            raise
        return started

    def _launch(self, popen: Callable[..., subprocess.Popen[bytes]], *args: Any, **options: Any) -> Any:
        """Start the process of the JVM, unless the start was cancelled."""
        with self._lock:
            if self._cancelled:
                raise AfterglowError(_CANCELLED)
            self._process = popen(*args, **options)
        return self._process


def _discard() -> None:
    """Drop a context, if any, and end its JVM."""
    drop_context()
    end_jvm()


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables while the JVM starts: it inherits them, other children of this process do not."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def spark_log(home: Path) -> Path:
    """The file in a server's home that gets what Spark, Java and Python workers print."""
    return home / "logs" / "spark.log"


def spark_properties(config: BrokerConfig) -> dict[str, str]:
    """Further settings of Spark from ours, by their full names.

    Raises:
        ConfigError: One of them is a setting of ours.
    """
    properties = {f"spark.{name}": value for name, value in config.spark_properties}
    if "spark.master" in properties:
        raise ConfigError("spark.master must be given as --master (sparkMaster), since more than Spark depends on it")
    return properties
