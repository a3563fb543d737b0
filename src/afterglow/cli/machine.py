"""Tests of this machine: Java, Spark, disk, ports and clock. None changes anything."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import sys
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from afterglow.errors import ConfigError, MissingDependency
from afterglow.storage.doctor import StepStatus, StoreCheck

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Found = tuple[StepStatus, str, str]
    """Outcome, detail, and how to fix it."""

_PORTS: Final = {6650: "--port", 8080: "--http-port"}
"""Default ports of a server, each with the option that selects another."""
_FREE_BYTES: Final = 5 << 30
"""Less is soon filled: journal, ledgers that are not offloaded, and Spark's temporary files."""
_TIMEX_BYTES: Final = 512
"""More than the size of Linux's ``struct timex``; all zero, it only reads."""
_TIME_ERROR: Final = 5
"""Result of ``adjtimex``: no clock source keeps the system clock."""


def check_machine(home: Path) -> list[StoreCheck]:
    """Test this machine; never raises for what it finds.

    Args:
        home: Directory in which a server would keep its data; it need not exist.
    """
    steps: dict[str, Callable[[], Found]] = {
        "java": _java,
        "spark": _spark,
        "disk": lambda: _disk(home),
        **{f"port {port}": _port_step(port, flag) for port, flag in _PORTS.items()},
        "clock": _clock,
    }
    found = []
    for name, step in steps.items():
        began = time.perf_counter()
        status, detail, cure = step()
        found.append(StoreCheck(name, status, (time.perf_counter() - began) * 1_000, detail, cure))
    return found


def _java() -> Found:
    from afterglow.spark.java import find_java  # noqa: PLC0415 - not needed for the other commands

    try:
        java = find_java()
    except (MissingDependency, ConfigError) as error:
        return StepStatus.FAILED, str(error), "install Java 17 or newer, or pip install 'pulsar-afterglow[java]'"
    return StepStatus.OK, f"Java {java.version} at {java.home}, found by {java.origin}", ""


def _spark() -> Found:
    if find_spec("pyspark") is None:
        cure = "pip install 'pulsar-afterglow[spark]'"
        return StepStatus.FAILED, "PySpark is not installed; offload, export and verify --deep need it", cure
    from importlib.metadata import version  # noqa: PLC0415 - slow, and needed here alone

    return StepStatus.OK, f"PySpark {version('pyspark')}, Python {sys.version.split()[0]}", ""


def _disk(home: Path) -> Found:
    directory = home.absolute()
    while not directory.exists():
        directory = directory.parent
    try:
        free = shutil.disk_usage(directory).free
    except OSError as error:
        return StepStatus.FAILED, f"{directory}: {error.strerror}", "give another directory by --home"
    detail = f"{free / (1 << 30):.1f} GiB free in {directory}"
    if not os.access(directory, os.W_OK | os.X_OK):
        return StepStatus.FAILED, f"{directory} is not writable", "give a writable directory by --home"
    if free < _FREE_BYTES:
        return (
            StepStatus.WARNING,
            detail,
            f"free {_FREE_BYTES >> 30} GiB, or give a directory on another disk by --home",
        )
    return StepStatus.OK, detail, ""


def _port_step(port: int, flag: str) -> Callable[[], Found]:
    def step() -> Found:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                detail = f"127.0.0.1:{port} cannot be opened: {error.strerror}"
                return StepStatus.WARNING, detail, f"end the program that uses it, or give `afterglow serve` {flag}"
        return StepStatus.OK, f"127.0.0.1:{port} is free", ""

    return step


def _clock() -> Found:
    cure = "run an NTP client such as chronyd: retention, tokens and offload by age use the time of day"
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (AttributeError, OSError):
        state = -1
    if state < 0:
        return StepStatus.SKIPPED, "this system does not tell whether its clock is synchronized", ""
    if state == _TIME_ERROR:
        return StepStatus.WARNING, "the system clock is not synchronized", cure
    return StepStatus.OK, "the system clock is synchronized", ""
