"""``afterglow demo``."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from afterglow.cli.app import DONE, FAILED, app
from afterglow.errors import AfterglowError


@app.command()
def demo(
    *,
    messages: Annotated[int, typer.Option(min=1, help="How many messages to send.")] = 20_000,
    home: Annotated[Path | None, typer.Option(help="Directory to keep; a temporary one if not given.")] = None,
) -> int:
    """Stream a topic to a tier while a stock client writes it, read it back with Spark, and check every message.

    Example: afterglow demo --messages 50000 --home ./demo
    """
    from afterglow.cli.demo_screen import Screen  # noqa: PLC0415 - rich, numba and Spark are not needed for --help
    from afterglow.engine.demo import run_demo  # noqa: PLC0415

    began = time.monotonic()
    with ExitStack() as stack:
        stack.enter_context(_ending_on(signal.SIGTERM, signal.SIGHUP))
        screen = stack.enter_context(Screen())
        kept = home or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="afterglow-demo-")))
        result = run_demo(kept, messages, screen)
        screen.result(result, time.monotonic() - began)
    if home is not None:
        screen.hints(home, result.topic)
    return FAILED if result.differences else DONE


@contextmanager
def _ending_on(*numbers: signal.Signals) -> Iterator[None]:
    """Have signals end the program as Ctrl-C does: everything that was started is ended first."""
    came: list[int] = []

    def end(number: int, _: FrameType | None) -> None:
        came.append(number)
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    except AfterglowError as error:
        if came:  # the stock client, where it waits, makes an error of its own of whatever a handler raises
            raise SystemExit(128 + came[0]) from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
