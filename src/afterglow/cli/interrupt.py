"""Termination by Ctrl-C or SIGTERM of commands that have started Spark, clients or servers."""

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
def interruptible(activity: str) -> Iterator[None]:
    """Exit with code 128 + signal number within two seconds after SIGINT, SIGTERM or SIGHUP.

    Context managers inside are left normally. Further signals are ignored.

    Args:
        activity: The activity that is stopped, for the message.
    """
    received: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        if received:
            return
        received.append(number)
        _write_stderr(f"afterglow: interrupted; stopping {printable(activity)}\n")
        logging.disable()  # PySpark logs every call that is aborted when its JVM ends
        session = sys.modules.get("afterglow.spark.session")
        if session is not None:  # ends waits for Spark on all threads
            session.abort()
        raise SystemExit(128 + number)

    disabled = logging.root.manager.disable
    before = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield
    except BaseException as error:
        if received:  # the SystemExit may have been turned into another error on its way
            raise SystemExit(128 + received[0]) from error
        raise
    finally:
        logging.disable(disabled)
        for number, handler in before.items():
            signal.signal(number, handler)


def _write_stderr(line: str) -> None:
    try:
        sys.stderr.write(line)
        sys.stderr.flush()
    except RuntimeError:  # the signal interrupted a write to the same stream
        os.write(_STDERR, line.encode())
