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
    messages: Annotated[int, typer.Option(min=1, help="Number of messages to send.")] = 20_000,
    home: Annotated[
        Path | None, typer.Option(help="Home directory of the server, which is kept. Default: a temporary one.")
    ] = None,
) -> int:
    """Stream a topic to a tier while a stock client writes it, read it back with Spark, and compare every message.

    Example: afterglow demo --messages 50000 --home ./demo
    """
    from afterglow.demo import run  # noqa: PLC0415 - rich, numba and Spark are not needed for --help
    from afterglow.demo.screen import Screen  # noqa: PLC0415

    began = time.monotonic()
    with ExitStack() as stack:
        stack.enter_context(interruptible("the demo, its client, its server and Spark"))
        screen = stack.enter_context(Screen())
        kept = home or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="afterglow-demo-")))
        topic, differences = run.run_demo(kept, messages, screen)
    took_s = time.monotonic() - began
    for difference in differences[:10]:
        screen.say(f"  {difference}", "red")
    if differences:
        screen.say(f"Failed: {len(differences)} differences, after {took_s:.0f} s.", "bold red")
    else:
        compared = "value, key, properties, event time, position, order"
        came_back = f"All {messages:,} messages came back from the tier alone: {compared}."
        screen.say(f"{came_back} {took_s:.0f} s in all.", "bold green")
    if home is not None:
        screen.say(f"To explore it: afterglow read {home} {topic} --limit 5")
        screen.say(f"               afterglow verify {home} --deep")
        screen.say(f"               afterglow serve --home {home} --streaming")
    return FAILED if differences else DONE
