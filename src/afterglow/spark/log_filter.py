"""Filters for output of Spark that does not indicate a problem: lines of its JVM, and log records of Py4J.

Java warns about an incubator module that Spark enables. A Python process of Spark that writes while its peer closes the
connection, as at the end of every stream, prints a stack. All other lines pass unchanged.
"""

from __future__ import annotations

import logging
import os
import threading
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

THREAD_NAME: Final = "spark-log-filter"
_JAVA_WARNING: Final = "Using incubator modules"
_STACK: Final = "Traceback (most recent call last):"
_UNRAISABLE: Final = "Exception ignored "
_CHAINS: Final = ("During handling of the above exception", "The above exception was the direct cause")
_DISCONNECTS: Final = ("BrokenPipeError", "EOFError", "ConnectionResetError")
_STDERR: Final = 2


def filter_lines(lines: Iterable[str], *, drop_stacks: bool = True) -> Iterator[str]:
    """Drop Java's warning, and stacks whose last error is a closed connection.

    A stack is held back until the line behind it shows that it is complete. One that ends before its error is dropped:
    its process was killed while it printed, as at the end of Spark.

    Args:
        lines: As they were printed, with their line ends.
        drop_stacks: Whether to drop those stacks; if not, only Java's warning is dropped.
    """
    held: list[str] = []
    error = ""  # the error that the held stack ends with so far
    for line in lines:
        if held and not error:
            held.append(line)
            if line[:1].strip():
                error = "" if line.startswith((_STACK, *_CHAINS)) else line
            continue
        if held and (not line.strip() or line.startswith(_CHAINS)):
            held.append(line)
            error = "" if line.startswith(_CHAINS) else error
            continue
        if held and not error.startswith(_DISCONNECTS):
            yield from held
        held, error = [], ""
        if drop_stacks and line.startswith((_STACK, _UNRAISABLE)):
            held.append(line)
        elif _JAVA_WARNING not in line:
            yield line
    if error and not error.startswith(_DISCONNECTS):
        yield from held


def is_not_py4j_chatter(record: logging.LogRecord) -> bool:
    """Whether to log a record: not if Py4J logs it below WARNING, or on the root logger.

    Py4J logs every connection that it closes, and on the root logger the stack of every command that the end of the JVM
    interrupts, whose callers get an error anyway.
    """
    is_py4j = PurePath(record.pathname).parent.name == "py4j"
    return not is_py4j or (record.levelno >= logging.WARNING and record.name != "root")


def filtered_stderr(*, drop_stacks: bool = True) -> int:
    """Open a pipe to the standard error of this process that passes through :func:`filter_lines`.

    Args:
        drop_stacks: As there.

    Returns:
        The descriptor to write to; close it once the child process has inherited it.
    """
    readable, writable = os.pipe()
    threading.Thread(target=_forward, args=(readable, drop_stacks), name=THREAD_NAME, daemon=True).start()
    return writable


def _forward(readable: int, drop_stacks: bool) -> None:  # noqa: FBT001 - Thread passes arguments by position
    with open(readable, encoding="utf-8", errors="replace") as lines:
        for line in filter_lines(lines, drop_stacks=drop_stacks):
            try:
                os.write(_STDERR, line.encode())
            except OSError:  # our standard error is closed; the child must not get a broken pipe
                continue
