"""Programs of others, run under a time limit: none outlives the test that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

_TAIL: Final = 4_000
"""Characters of output in a message."""


class CommandFailed(Exception):
    """A program did not do its work; the message has the end of its output."""


@dataclass(frozen=True, slots=True)
class Running:
    """A program that runs, in a process group of its own."""

    name: str
    process: subprocess.Popen[bytes]
    _output: IO[bytes]
    _errors: IO[bytes]

    @property
    def output(self) -> str:
        """What it has written to its standard output so far."""
        return _text(self._output)

    @property
    def errors(self) -> str:
        """What it has written to its standard error so far."""
        return _text(self._errors)

    def interrupt(self) -> None:
        """Ask it to end, as Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)

    def wait(self, limit_s: float) -> int:
        """Wait for its end; returns its exit code.

        Raises:
            CommandFailed: It did not end in time.
        """
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired as error:
            raise self.failure(f"did not end within {limit_s:g} s") from error

    def failure(self, what: str) -> CommandFailed:
        """An error that says what is wrong with it."""
        return CommandFailed(f"{self.name} {what}:\n{self.output[-_TAIL:]}\n{self.errors[-_TAIL:]}")


@contextmanager
def started(
    command: Sequence[str], *, directory: Path | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[Running]:
    """A program for the time of a ``with``; it and all that it started are killed at the end.

    Args:
        command: The program and its arguments.
        directory: Where it runs, if not here.
        environment: Variables beside our own.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
        try:
            yield Running(os.path.basename(command[0]), process, output, errors)  # noqa: PTH119 - a command may be no path
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def run(
    command: Sequence[str],
    *,
    limit_s: float,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run a program to its end; returns its standard output.

    Raises:
        CommandFailed: It cannot be started, did not end in time, or reported a failure.
    """
    try:
        with started(command, directory=directory, environment=environment) as running:
            code = running.wait(limit_s)
            if code != 0:
                raise running.failure(f"ended with {code}")
            return running.output
    except OSError as error:
        raise CommandFailed(f"{command[0]} cannot be run: {error}") from error


def _text(file: IO[bytes]) -> str:
    # Not by seek: the position is shared with the program that writes.
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), size, 0).decode(errors="replace")
