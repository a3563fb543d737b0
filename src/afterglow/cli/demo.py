"""``afterglow demo``."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from afterglow.cli.app import DONE, FAILED, app
from afterglow.cli.interrupt import interruptible


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
        stack.enter_context(interruptible("the demo: its client, its engine and Spark"))
        screen = stack.enter_context(Screen())
        kept = home or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="afterglow-demo-")))
        result = run_demo(kept, messages, screen)
        screen.result(result, time.monotonic() - began)
    if home is not None:
        screen.hints(home, result.topic)
    return FAILED if result.differences else DONE
