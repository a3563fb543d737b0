"""What every test shares: Hypothesis profiles, and the example driver as an installed package."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import settings

# No deadline: the first example may have to compile the kernels. The blob reproduces a failure on another machine.
settings.register_profile("default", max_examples=60, deadline=None, print_blob=True)
settings.register_profile("nightly", max_examples=5000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# A shell starts what runs in its background with Ctrl-C ignored, and every process below inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Spark's JVMs live for seconds here: the optimizing compiler costs a third of their processor time and gains nothing.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Programs that tests start, and Spark's workers among them, import ``tests.support`` too.
ROOT = Path(__file__).parents[1]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


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
