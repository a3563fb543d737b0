"""A terminal in which a test types the commands of a page."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_STEP_S: Final = 1_200.0
"""The longest step makes an environment and runs the demo, perhaps on a machine that does other things as well."""


class Terminal:
    """A shell that stays open from one command to the next."""

    def __init__(self, at: Path, environment: Mapping[str, str]) -> None:
        self._shell = subprocess.Popen(
            ["/bin/bash", "--noprofile", "--norc"],
            cwd=at,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._listen)
        self._reader.start()

    def type(self, text: str) -> None:
        """Type text, with the line ends that it has."""
        assert self._shell.stdin is not None
        self._shell.stdin.write(text)
        self._shell.stdin.flush()

    def run(self, text: str) -> str:
        """What commands print; every one of them must succeed."""
        self._lines.clear()
        # As a person would, it stops at the first that fails; the shell itself lives on.
        for line in text.replace("\\\n", " ").splitlines():
            self.type(f"{line}\necho ended $?\n")
            said = self.wait_for(r"^ended (\d+)$")
            assert said.group(1) == "0", f"{line}\n{self.said}"
            self._lines.remove(said.group())
        return self.said

    def wait_for(self, pattern: str) -> re.Match[str]:
        """The first line that matches."""
        with self._news:
            if not self._news.wait_for(lambda: self._found(pattern) or self._shell.poll() is not None, _STEP_S):
                raise AssertionError(f"{pattern} was not printed in {_STEP_S:.0f} s:\n{self.said}")
            found = self._found(pattern)
            assert found is not None, f"the shell has ended:\n{self.said}"
            return found

    @property
    def said(self) -> str:
        """What was printed since the last command."""
        return "\n".join(self._lines)

    def press_ctrl_c(self) -> None:
        """What a terminal does, to what runs in it; the shell itself stays."""
        listed = subprocess.run(
            ["pgrep", "-P", str(self._shell.pid)],
            capture_output=True,
            text=True,
            check=False,
        )
        for child in listed.stdout.split():
            os.kill(int(child), signal.SIGINT)

    def close(self) -> None:
        """End it with all that runs in it."""
        self.press_ctrl_c()
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        try:
            self._shell.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self._shell.pid, signal.SIGKILL)
            self._shell.wait(60)
        self._reader.join(60)

    def _found(self, pattern: str) -> re.Match[str] | None:
        return next((match for line in self._lines if (match := re.search(pattern, line))), None)

    def _listen(self) -> None:
        assert self._shell.stdout is not None
        for line in self._shell.stdout:
            with self._news:
                self._lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()


@contextmanager
def terminal(at: Path, environment: Mapping[str, str]) -> Iterator[Terminal]:
    """A terminal for the time of a ``with``."""
    opened = Terminal(at, environment)
    try:
        yield opened
    finally:
        opened.close()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
