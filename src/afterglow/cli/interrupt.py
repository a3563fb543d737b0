"""Ctrl-C and SIGTERM while a command runs that has started something: it is ended at once, and named."""

from __future__ import annotations

import logging
import os
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from afterglow.cli.output import printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STDERR: Final = 2


@contextmanager
def interruptible(what: str) -> Iterator[None]:
    """Have a signal end the program with exit code 130, or that of another signal, within two seconds.

    All that was opened inside is closed first. A second signal changes nothing.

    Args:
        what: What is stopped, for people.
    """
    came: list[int] = []

    def end(number: int, _: FrameType | None) -> None:
        if came:
            return
        came.append(number)
        _tell(f"afterglow: interrupted; stopping {printable(what)}\n")
        logging.disable()  # PySpark tells of every call that the end of its JVM cuts off
        session = sys.modules.get("afterglow.spark.session")
        if session is not None:  # whatever waits for Spark, on whatever thread, waits no longer
            session.abort()
        raise SystemExit(128 + number)

    disabled = logging.root.manager.disable
    before = {number: signal.signal(number, end) for number in _SIGNALS}
    try:
        yield
    except BaseException as error:
        if came:  # whatever an end amid something was turned into
            raise SystemExit(128 + came[0]) from error
        raise
    finally:
        logging.disable(disabled)
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell(line: str) -> None:
    try:
        sys.stderr.write(line)
        sys.stderr.flush()
    except RuntimeError:  # the signal came amid a write to the same stream
        os.write(_STDERR, line.encode())
