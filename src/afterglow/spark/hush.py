"""What Java and Spark's Python processes print though nothing is wrong, kept from people who did not ask for Spark.

Java greets with a warning about a module that Spark switches on. Each Python process of Spark's that is amid a word
when its other end goes away, as at the end of every stream, prints a stack. All else passes as it comes.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_GREETING: Final = "Using incubator modules"
_STACK: Final = "Traceback (most recent call last):"
_CHAINS: Final = ("During handling of the above exception", "The above exception was the direct cause")
_FAREWELLS: Final = ("BrokenPipeError", "EOFError", "ConnectionResetError")
_STDERR: Final = 2


def hushed(lines: Iterable[str]) -> Iterator[str]:
    """Lines without greetings and farewells.

    A stack is held until the line behind it shows that it is over; whether it is a farewell, its last error tells.

    Args:
        lines: As they were printed, with their ends.
    """
    held: list[str] = []
    named = ""  # the error that the held stack ends with so far
    for line in lines:
        if held and not named:
            held.append(line)
            if line[:1].strip():
                named = "" if line.startswith((_STACK, *_CHAINS)) else line
            continue
        if held and (not line.strip() or line.startswith(_CHAINS)):
            held.append(line)
            named = "" if line.startswith(_CHAINS) else named
            continue
        if held and not named.startswith(_FAREWELLS):
            yield from held
        held, named = [], ""
        if line.startswith(_STACK):
            held.append(line)
        elif _GREETING not in line:
            yield line
    if held and not named.startswith(_FAREWELLS):
        yield from held


def hushed_stderr() -> int:
    """A file that a process may print to: what is worth it goes on to the standard error of this one.

    Returns:
        Its descriptor, to be closed once the process has it.
    """
    readable, writable = os.pipe()
    threading.Thread(target=_pass_on, args=(readable,), name="hush", daemon=True).start()
    return writable


def _pass_on(readable: int) -> None:
    with open(readable, encoding="utf-8", errors="replace") as lines:
        for line in hushed(lines):
            try:
                os.write(_STDERR, line.encode())
            except OSError:  # nobody listens any more; the other end must not notice
                continue
