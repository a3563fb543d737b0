"""One Spark session for the process.

:func:`local_session` starts Spark in a JVM of its own, on whatever Java :mod:`afterglow.spark.java` finds, and ends
both when its last user leaves. Users that overlap share the session. A session that somebody else has started, such as
a notebook's, is used as it is and never stopped.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from afterglow.errors import ConfigError, MissingDependency
from afterglow.spark.hush import hushed_stderr
from afterglow.spark.java import find_java
from afterglow.spark.master import is_local, with_attempts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

_LOOPBACK: Final = "127.0.0.1"
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")
_ENDINGS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_EXIT_TIMEOUT_SECONDS: Final = 20.0  # the JVM's own shutdown hooks take about one


QUIET: Final = {"spark.log.level": "OFF"}
"""For whoever tells all that goes wrong in words of its own: Spark prints stacks beside them, also where nothing is."""


@dataclass(slots=True)
class _Shared:
    """The running session and who uses it."""

    session: SparkSession
    settings: dict[str, str]
    """What it was asked for."""
    users: int
    foreign: bool
    """Started by somebody else: never stopped, its settings never compared."""


_lock = threading.RLock()
_shared: _Shared | None = None


@contextlib.contextmanager
def local_session(master: str = "local[2]", app_name: str = "afterglow", **conf: str) -> Iterator[SparkSession]:
    """Use a Spark session with its driver here; the last user to leave ends it and its JVM.

    By default: no web page, times in UTC, Python workers with this package imported that live on between jobs and talk
    to the JVM over Unix sockets, jobs that share the workers evenly where each names a pool of its own, and no log
    lines below errors. With a local master nothing listens beyond the loopback address, and workers are this
    interpreter. Any other master finds out by Spark's own rules at which address its executors reach the driver, and
    which Python they run; this package must be installed there.

    Args:
        master: Where the work runs, as in ``spark-submit --master``; a local one tries tasks as often as others do.
        app_name: The application's name.
        **conf: Spark settings by their full names (``**{"spark.sql.shuffle.partitions": "2"}``); they win over the
            defaults.

    Raises:
        MissingDependency: PySpark or a Java is missing.
        ConfigError: The process already runs a session of ours with other settings, or the master is malformed.
    """
    asked = {"spark.master": with_attempts(master), "spark.app.name": app_name, **conf}
    used = _enter({**_defaults(), **(_beside_us() if is_local(master) else {}), **asked})
    try:
        yield used.session
    finally:
        _leave(used)


def _defaults() -> dict[str, str]:
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
        "spark.pyspark.driver.python": sys.executable,
        "spark.python.daemon.module": "afterglow.spark.daemon",
        "spark.python.worker.reuse": "true",
        "spark.python.unix.domain.socket.enabled": "true" if hasattr(socket, "AF_UNIX") else "false",
        "spark.scheduler.mode": "FAIR",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
    }


def _beside_us() -> dict[str, str]:
    """What holds where executors run on this machine, and not anywhere else."""
    return {
        "spark.driver.host": _LOOPBACK,
        "spark.driver.bindAddress": _LOOPBACK,
        "spark.pyspark.python": sys.executable,
    }


def _enter(settings: dict[str, str]) -> _Shared:
    global _shared  # noqa: PLW0603  # Spark itself allows one session context per process
    with _lock:
        if _shared is not None and not _shared.foreign and not _jvm_lives():
            _end(_shared)
        if _shared is None:
            foreign = _foreign_session()
            _shared = _Shared(foreign or _start(settings), settings, users=0, foreign=foreign is not None)
        elif not _shared.foreign and _shared.settings != settings:
            names = sorted(
                name for name in {*_shared.settings, *settings} if _shared.settings.get(name) != settings.get(name)
            )
            raise ConfigError(
                f"a Spark session with other settings runs in this process (they differ in {', '.join(names)}); "
                "leave it first, or ask for the same settings"
            )
        _shared.users += 1
        return _shared


def _leave(used: _Shared) -> None:
    with _lock:
        used.users -= 1
        if not used.users and _shared is used:
            _end(used)


def _end(ended: _Shared) -> None:
    global _shared  # noqa: PLW0603  # see above
    _shared = None
    if ended.foreign:
        return
    try:
        # Tasks that still run lose what they stand on: no news to whoever has ended Spark.
        ended.session.sparkContext.setLogLevel("OFF")
        ended.session.stop()
    except Exception:
        # PySpark asks the JVM first and forgets the context afterwards. A JVM that was killed does not answer.
        ended.session.sparkContext._jsc = None  # noqa: SLF001  # see above
        ended.session.sparkContext.stop()
        if _jvm_lives():
            raise
    finally:
        _end_jvm()


def _jvm_lives() -> bool:
    context, _ = _pyspark()
    gateway = context._gateway  # noqa: SLF001  # PySpark has no public question for it
    return gateway is not None and (gateway.proc is None or gateway.proc.poll() is None)


def _foreign_session() -> SparkSession | None:
    """The session that this process already has."""
    context, session = _pyspark()
    # Asked of the context, not of the session class: the latter knows the active session of a thread only.
    if context._active_spark_context is None:  # noqa: SLF001  # PySpark has no public question for it
        return None
    existing: SparkSession = session.Builder().getOrCreate()
    return existing


def _start(settings: dict[str, str]) -> SparkSession:
    _, session = _pyspark()
    variables = {
        "JAVA_HOME": str(find_java().home),
        "PYSPARK_DRIVER_PYTHON": settings["spark.pyspark.driver.python"],
    }
    # PySpark and the launcher of its JVM look at variables alone for what else is known by the settings' names.
    for variable, name in (("SPARK_LOCAL_IP", "spark.driver.bindAddress"), ("PYSPARK_PYTHON", "spark.pyspark.python")):
        if name in settings:
            variables[variable] = settings[name]
    started: SparkSession | None = None
    try:
        with _environment(variables), _undisturbed(), warnings.catch_warnings():
            # Not a matter of ours, and it would come with every command that uses Spark.
            warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
            if settings.items() >= QUIET.items():
                _start_hushed_jvm(settings)
            started = session.Builder().config(map=settings).getOrCreate()
    except BaseException:
        if started is not None:
            started.stop()
        _end_jvm()
        raise
    assert started is not None
    return started


def _start_hushed_jvm(settings: dict[str, str]) -> None:
    """Start the JVM as PySpark does, but for where it prints to."""
    from pyspark import SparkConf  # noqa: PLC0415 - see below
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415

    context, _ = _pyspark()
    stderr = hushed_stderr()
    try:
        asked = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        launched: Any = launch_gateway
        # Not public; it is what the first context does itself.
        context._ensure_initialized(gateway=launched(asked, {"stderr": stderr}))  # noqa: SLF001
    finally:
        os.close(stderr)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Hold Ctrl-C and its like back while the JVM starts.

    PySpark does not end a JVM whose start is broken off, and such a JVM may wait for ever. Other threads than the main
    one are never disturbed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    before = {number: signal.signal(number, lambda number, _: held.append(number)) for number in _ENDINGS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for caught in held:
        signal.raise_signal(caught)


def _pyspark() -> tuple[Any, Any]:
    """PySpark's classes ``SparkContext`` and ``SparkSession``."""
    try:
        from pyspark import SparkContext  # noqa: PLC0415  # an extra, and half a second
        from pyspark.sql import SparkSession  # noqa: PLC0415  # likewise
    except ImportError as error:
        raise MissingDependency("Spark is not installed: pip install 'afterglow[spark]'") from error
    return SparkContext, SparkSession


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


def _end_jvm() -> None:
    """End the JVM that PySpark has started, if any, so that PySpark can start another one later.

    PySpark offers no way to end it before the Python process ends. A closed standard input is the sign at which the JVM
    leaves.
    """
    context, _ = _pyspark()
    gateway = context._gateway  # noqa: SLF001  # see above
    if gateway is None or gateway.proc is None:
        return  # nothing was started, or the JVM started us
    process: subprocess.Popen[bytes] = gateway.proc
    context._gateway = context._jvm = None  # noqa: SLF001  # see above
    gateway.shutdown()
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(_EXIT_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
