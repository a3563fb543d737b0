"""Ctrl-C and SIGTERM end real processes promptly, with one line, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from tests.support.homes import ServerHome
from tests.support.ledgers import message
from tests.support.served_topics import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.serving import Served

pytest.importorskip("pyspark", reason="the extra afterglow[spark] is not installed")
pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")

TOPIC = "persistent://public/default/t"
SOON_S = 6.0
"""Two seconds on an idle machine; starting Spark takes longer on any machine."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A topic with a ledger in the tier."""
    path = tmp_path_factory.mktemp("home")
    with ServerHome(path) as server:
        first, _ = server.write(TOPIC, [message(b"x")] * 20, [message(b"y")] * 20)
        server.offload(TOPIC, first)
    return path


class Command:
    """A command in a session of its own, as a terminal would start it."""

    def __init__(self, *args: str, **environ: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "afterglow", *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environ},
            start_new_session=True,
        )

    def others(self) -> dict[int, str]:
        """Command lines of all other processes that it has started, directly or not."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                session = int((path / "stat").read_text().rpartition(")")[2].split()[3])
                line = (path / "cmdline").read_bytes().replace(b"\\0", b" ").decode()
            except OSError:
                continue  # it has ended
            if session == self.process.pid != int(path.name) and line:
                found[int(path.name)] = line
        return found

    def interrupt(self, number: int, *, whole_group: bool) -> tuple[int, str, str, float]:
        """Send a signal; returns exit code, stdout, stderr, and the seconds until exit."""
        began = time.monotonic()
        if whole_group:
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)
        out, errors = self.process.communicate(timeout=300)
        return self.process.returncode, out, errors, time.monotonic() - began

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()


@pytest.fixture
def commands() -> Iterator[list[Command]]:
    started: list[Command] = []
    yield started
    for command in started:
        command.end()


def starts_spark(command: Command) -> bool:
    assert command.process.poll() is None, command.process.communicate()
    return any("spark" in line for line in command.others().values())


@pytest.mark.parametrize(
    ("args", "number", "to", "words"),
    [
        (("export", "{home}", "t", "--to", "parquet:{out}"), signal.SIGINT, "process", "the export of t and Spark"),
        (("export", "{home}", "t", "--to", "parquet:{out}"), signal.SIGTERM, "group", "the export of t and Spark"),
        (("verify", "{home}", "--deep"), signal.SIGINT, "group", "the verification and Spark"),
    ],
)
def test_a_command_that_starts_spark_ends_at_once_with_its_jvm(  # noqa: PLR0917 - cases and fixtures
    home: Path,
    tmp_path: Path,
    commands: list[Command],
    args: tuple[str, ...],
    number: signal.Signals,
    to: str,
    words: str,
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    command = Command(*(arg.format(home=home, out=tmp_path / "out") for arg in args), TMPDIR=str(temporary))
    commands.append(command)
    eventually(lambda: starts_spark(command), command.others, 120)
    code, out, errors, took_s = command.interrupt(number, whole_group=to == "group")
    assert (code, out, errors) == (128 + number, "", f"afterglow: interrupted; stopping {words}\n")
    assert took_s < SOON_S
    eventually(lambda: not command.others(), command.others, 5)
    assert list(temporary.iterdir()) == []


def test_a_continuous_export_ends_at_ctrl_c_and_reports_what_was_written(
    home: Path, tmp_path: Path, commands: list[Command]
) -> None:
    out = tmp_path / "out"
    command = Command("export", str(home), "t", "--to", f"parquet:{out}", "--continuous", "--every", "1s")
    commands.append(command)
    commits = tmp_path / ".out.export" / "checkpoint" / "commits"
    eventually(lambda: commits.is_dir() and any(commits.glob("[0-9]*")), command.others, 200)
    code, printed, errors, took_s = command.interrupt(signal.SIGINT, whole_group=True)
    assert (code, errors) == (0, "afterglow: interrupted; stopping the export of t and Spark\n")
    assert printed.endswith(f" written to {out}\n")
    assert took_s < SOON_S
    eventually(lambda: not command.others(), command.others, 5)
    assert [path.suffix for path in out.iterdir()] == [".parquet"]


@pytest.mark.parametrize("subscription", [(), ("-s", "mine")])
def test_a_consumer_that_waits_for_a_message_ends_at_once(
    served: Served, commands: list[Command], subscription: tuple[str, ...]
) -> None:
    name = f"t{uuid4().hex}"
    served.admin("PUT", f"persistent/public/default/{name}")
    command = Command(
        "topics", "consume", name, "--timeout", "10m", *subscription, AFTERGLOW_ADMIN_URL=served.admin_url
    )
    commands.append(command)
    stats = f"persistent/public/default/{name}/stats"
    eventually(lambda: bool(served.admin("GET", stats)["subscriptions"]), lambda: served.lines, 60)
    code, out, errors, took_s = command.interrupt(signal.SIGINT, whole_group=not subscription)
    stopped = f"the consumer of persistent://public/default/{name}"
    assert (code, out, errors) == (130, "", f"afterglow: interrupted; stopping {stopped}\n")
    assert took_s < SOON_S
