"""One Spark session for the process.

:func:`local_session` starts Spark in a JVM of its own, on whatever Java :mod:`afterglow.spark.java` finds, and ends
both when its last user leaves. Users that overlap share the session. A session that somebody else has started, such as
a notebook's, is used as it is and never stopped.

Spark starts on a thread of its own, so that Ctrl-C reaches the thread that waits for it. :func:`abort` ends a start, or
a running Spark, within a second or two: whatever waits for it fails.

:func:`prepare_spark` is for programs that make their session themselves, by ``SparkSession.builder``.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import warnings
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from afterglow.errors import AfterglowError, ConfigError, MissingDependency
from afterglow.spark.java import find_java
from afterglow.spark.log_filter import filtered_stderr
from afterglow.spark.master import is_local, with_attempts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from afterglow.config.broker import BrokerConfig

_LOOPBACK: Final = "127.0.0.1"
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")
_EXIT_TIMEOUT_SECONDS: Final = 20.0  # the JVM's own shutdown hooks take about one
_ABORT_SECONDS: Final = 1.2  # for its hooks, where nobody wants to wait; they delete temporary files


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


_SECRET: Final = re.compile(r"(?i)secret|password|token|(access|account|private)[._]?key")
"""Settings whose values are secrets, by their names: those that Spark itself redacts, and keys of other stores."""

_lock = threading.RLock()
_shared: _Shared | None = None
_start_under_way: _Start | None = None
_last_start: _Start | None = None
"""A start that was cancelled may still be cleaning up when the next one is asked for."""


def prepare_spark() -> None:
    """Let ``SparkSession.builder`` find a Java, and the Python that has this package; call it before the first session.

    Sets two environment variables of this process: ``JAVA_HOME`` to what :func:`afterglow.spark.java.find_java` finds,
    which is its own value if that one fits; ``PYSPARK_PYTHON`` to this interpreter, unless it is set. For executors on
    other machines set ``PYSPARK_PYTHON`` to their interpreter.

    Raises:
        MissingDependency: PySpark or a Java is missing; the message says how to get it.
        ConfigError: The wheel's Java is needed and the cache directory cannot be written.
    """
    if find_spec("pyspark") is None:
        raise _spark_missing()
    os.environ["JAVA_HOME"] = str(find_java().home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


@contextlib.contextmanager
def local_session(master: str = "local[2]", app_name: str = "afterglow", **conf: str) -> Iterator[SparkSession]:
    """Use a Spark session with its driver here; the last user to leave ends it and its JVM.

    By default: no web page, and secrets masked in one that is asked for, times in UTC, Python workers with this package
    imported that live on between jobs and talk to the JVM over Unix sockets, jobs that share the workers evenly where
    each names a pool of its own, and no log lines below errors. With a local master nothing listens beyond the loopback
    address, and workers are this interpreter. Any other master finds out by Spark's own rules at which address its
    executors reach the driver, and which Python they run; this package must be installed there.

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
    except (KeyboardInterrupt, SystemExit):
        if used.users == 1:
            abort()
        raise
    finally:
        _leave(used)


def abort() -> None:
    """End the Spark that this process has started, or is about to, without waiting for it.

    Tasks end where they are, and every call to Spark fails from now on. Whoever uses the session must still leave it.
    """
    starting, used = _start_under_way, _shared
    if starting is not None:
        starting.cancel()
    if used is not None and not used.foreign:
        process = _jvm_process()
        if process is not None:
            _end_soon(process)


def cancel_start() -> None:
    """Have a start of Spark that another thread waits for fail; without one nothing happens."""
    starting = _start_under_way
    if starting is not None:
        starting.cancel()


def _defaults() -> dict[str, str]:
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.redaction.regex": _SECRET.pattern,
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
        if _last_start is not None:
            _last_start.join()
        if _shared is not None and not _shared.foreign and not _jvm_lives():
            _end(_shared)
        if _shared is None:
            foreign = _foreign_session()
            _shared = _Shared(foreign or _begin(settings), settings, users=0, foreign=foreign is not None)
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


def _begin(settings: dict[str, str]) -> SparkSession:
    global _start_under_way, _last_start  # noqa: PLW0603  # see above
    _start_under_way = _last_start = _Start(settings)
    try:
        return _start_under_way.result()
    finally:
        _start_under_way = None


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
        _stop_context()
        if _jvm_lives():
            raise
    finally:
        _end_jvm()


def _stop_context() -> None:
    """Have PySpark drop its context without asking the JVM, which does not answer once it was killed."""
    context, _ = _pyspark()
    active = context._active_spark_context  # noqa: SLF001  # see above
    if active is not None:
        active._jsc = None  # noqa: SLF001  # PySpark asks the JVM first, and drops the context afterwards
        active.stop()


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


class _Start:
    """A start of Spark, on a thread of its own: on the main one PySpark replaces the handler of Ctrl-C.

    PySpark does not end a JVM whose start is broken off, and such a JVM may wait for ever. So its process is caught as
    soon as there is one.
    """

    def __init__(self, settings: dict[str, str]) -> None:
        self._settings = settings
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
            self._thread.start()  # waits for the thread's first step, so that Ctrl-C may come here too
            return self._started.result()
        except BaseException:
            self.cancel()
            self.join(2 * _ABORT_SECONDS)
            if self._started.done() and self._started.exception() is None:  # it came right before, and has no user
                _stop_context()
                _end_jvm()
            raise

    def cancel(self) -> None:
        """End it, from any thread; does not wait."""
        with self._lock:
            self._cancelled = True
            process = self._process
        if process is not None:
            _end_soon(process)

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until it has come to an end, which a cancelled one does soon: its JVM is killed."""
        if self._thread.ident is not None:  # it was started
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._started.set_result(self._session())
        except BaseException as error:  # noqa: BLE001 - raised where the session is waited for
            failed = AfterglowError("the start of Spark was cancelled") if self._cancelled else error
            self._started.set_exception(failed)

    def _session(self) -> SparkSession:
        session = _start(self._settings, self._launch)
        if self._cancelled:  # it came all the same, and its JVM is being killed
            _stop_context()
            _end_jvm()
            raise AfterglowError("the start of Spark was cancelled")
        return session

    def _launch(self, popen: Callable[..., subprocess.Popen[bytes]], *args: Any, **options: Any) -> Any:
        """Start the process of the JVM, unless it is too late."""
        with self._lock:
            if self._cancelled:
                raise AfterglowError("the start of Spark was cancelled")
            self._process = popen(*args, **options)
        return self._process


def _start(settings: dict[str, str], launch: Callable[..., Any]) -> SparkSession:
    """Start the JVM and the session in it.

    Args:
        settings: Spark's.
        launch: Is given what makes the process of the JVM, and its arguments.
    """
    _, session = _pyspark()
    variables = {
        "JAVA_HOME": str(find_java().home),
        "PYSPARK_DRIVER_PYTHON": settings["spark.pyspark.driver.python"],
    }
    # PySpark and the launcher of its JVM look at variables alone for what else is known by the settings' names.
    for variable, name in (("SPARK_LOCAL_IP", "spark.driver.bindAddress"), ("PYSPARK_PYTHON", "spark.pyspark.python")):
        if name in settings:
            variables[variable] = settings[name]
    try:
        with _environment(variables), warnings.catch_warnings():
            # Not a matter of ours, and it would come with every command that uses Spark.
            warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
            _start_jvm(settings, launch)
            started: SparkSession = session.Builder().config(map=settings).getOrCreate()
    except BaseException:
        _stop_context()
        _end_jvm()
        raise
    return started


def _start_jvm(settings: dict[str, str], launch: Callable[..., Any]) -> None:
    """Start the JVM as PySpark does, but for where it prints to."""
    from pyspark import SparkConf, java_gateway  # noqa: PLC0415 - see below

    context, _ = _pyspark()
    if context._gateway is not None:  # noqa: SLF001 - one that this process has already
        return
    is_filtered = settings.items() >= QUIET.items()
    stderr = filtered_stderr() if is_filtered else None
    module: Any = java_gateway
    popen = module.Popen
    module.Popen = partial(launch, popen)  # what it returns is not to be had in time otherwise
    try:
        # All of them stand in the command line of the JVM, which every user of the machine can read. The session is
        # given its secrets when the JVM runs.
        public = [(name, value) for name, value in settings.items() if not _SECRET.search(name)]
        asked = SparkConf(loadDefaults=False).setAll(public)
        # Not public; it is what the first context does itself.
        context._ensure_initialized(gateway=module.launch_gateway(asked, {"stderr": stderr} if is_filtered else {}))  # noqa: SLF001
    finally:
        module.Popen = popen
        if stderr is not None:
            os.close(stderr)


def _pyspark() -> tuple[Any, Any]:
    """PySpark's classes ``SparkContext`` and ``SparkSession``."""
    try:
        from pyspark import SparkContext  # noqa: PLC0415  # an extra, and half a second
        from pyspark.sql import SparkSession  # noqa: PLC0415  # likewise
    except ImportError as error:
        raise _spark_missing() from error
    return SparkContext, SparkSession


def _spark_missing() -> MissingDependency:
    return MissingDependency.of_extra("Spark is not installed", "spark")


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


def _jvm_process() -> subprocess.Popen[bytes] | None:
    """The JVM's process, if PySpark has started it here."""
    context, _ = _pyspark()
    gateway = context._gateway  # noqa: SLF001  # see above
    process: subprocess.Popen[bytes] | None = None if gateway is None else gateway.proc
    return process


def _end_soon(process: subprocess.Popen[bytes]) -> None:
    """End the JVM by a signal, and by force where that takes long; its Python processes end with it."""
    launchers = _children(process.pid)  # until it has become the JVM, the process is a shell that asks one for options
    for pid in (process.pid, *launchers):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)

    def kill() -> None:
        try:
            process.wait(_ABORT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()

    threading.Thread(target=kill, name="spark-abort", daemon=True).start()


def _children(pid: int) -> list[int]:
    """Processes that a process has started, where the system tells."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


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


def spark_properties(config: BrokerConfig) -> dict[str, str]:
    """Further properties of Spark by their full names.

    Raises:
        ConfigError: One of them is a setting of ours.
    """
    properties = {f"spark.{name}": value for name, value in config.spark_properties}
    if "spark.master" in properties:
        raise ConfigError("spark.master is given as --master (sparkMaster), since more than Spark depends on it")
    return properties
