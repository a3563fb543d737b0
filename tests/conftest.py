"""Fixtures of all tests: Hypothesis profiles, one Spark session, and the example driver as an installed package."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from tests.support.spark_capabilities import SparkCapabilities

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from pyspark.sql import SparkSession
    from tests.support.shared_spark import SharedSpark

# No deadline: the first example may have to compile the kernels. The blob reproduces a failure on another machine.
settings.register_profile("default", max_examples=60, deadline=None, print_blob=True)
settings.register_profile("quick", max_examples=10, deadline=None, print_blob=True)
settings.register_profile("nightly", max_examples=5000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# A shell starts what runs in its background with Ctrl-C ignored, and every process below inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Spark's JVMs live for seconds here: the optimizing compiler costs a third of their processor time and gains nothing.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# On a loaded machine any command may take the two seconds after which it prints its progress.
os.environ.setdefault("AFTERGLOW_PROGRESS", "off")

# Programs that tests start, and Spark's workers among them, import ``tests.support`` too.
ROOT = Path(__file__).parents[1]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


_STARTS_A_PROCESS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"})
"""Audit events by which CPython announces that a process is about to be started."""
_quick_test_runs = False


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="skip tests at the moment they start a process or a JVM")
    parser.addoption("--spark-report", metavar="FILE", help="write outcomes by capability of Spark to a file, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SparkCapabilities(config.getoption("--spark-report")))
    if config.getoption("--quick"):
        sys.addaudithook(_skip_on_process)
        settings.load_profile("quick")


def _skip_on_process(event: str, _arguments: tuple[object, ...]) -> None:
    if _quick_test_runs and event in _STARTS_A_PROCESS:
        pytest.skip("starts a process, which `make quick` leaves out")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    global _quick_test_runs  # noqa: PLW0603 - an audit hook cannot be removed, so that a flag switches it
    _quick_test_runs = bool(item.config.getoption("--quick"))
    try:
        return (yield)
    finally:
        _quick_test_runs = False


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--quick"):
        # Known before they start; some wait for a JVM that another thread was not allowed to start.
        needs_jvm = [item for item in items if _needs_jvm(item)]
        config.hook.pytest_deselected(items=needs_jvm)
        items[:] = [item for item in items if not _needs_jvm(item)]
    # Last, so that no other test has to start the shared Spark session again.
    items.sort(key=lambda item: item.get_closest_marker("own_spark") is not None)


def _needs_jvm(item: pytest.Item) -> bool:
    return item.get_closest_marker("own_spark") is not None or "shared_spark" in getattr(item, "fixturenames", ())


@pytest.fixture(scope="session")
def zip_driver(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process for which the example offload driver is installed."""
    target = tmp_path_factory.mktemp("zip-driver")
    project = ROOT / "examples" / "offloader"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    options = ["--no-deps", "--no-build-isolation", "--target", str(target), str(project)]
    subprocess.run([*command, *options], check=True, capture_output=True, text=True)
    known = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(target), *([known] if known else [])])}


@pytest.fixture(scope="session")
def shared_spark() -> Iterator[SharedSpark]:
    """The Spark session of this process; it starts when a test asks for ``spark``.

    Tests that need a JVM with settings or an environment of their own call ``end()`` first, and are marked
    ``own_spark``.
    """
    pytest.importorskip("pyspark", reason="the extra pulsar-afterglow[spark] is not installed")
    from tests.support.shared_spark import SharedSpark

    shared = SharedSpark()
    yield shared
    shared.end()


@pytest.fixture
def spark(shared_spark: SharedSpark) -> SparkSession:
    """The shared Spark session. Tests that change its settings restore them."""
    return shared_spark.session()
