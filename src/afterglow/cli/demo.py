"""``afterglow demo``."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from afterglow.cli.app import DONE, FAILED, app


@app.command()
def demo(
    *,
    messages: Annotated[int, typer.Option(min=1, help="How many messages to send.")] = 5_000,
    home: Annotated[Path | None, typer.Option(help="Directory to keep; a temporary one if not given.")] = None,
) -> int:
    """Send a topic's messages to a tier in both formats and read them back through Spark.

    Example: afterglow demo --messages 20000 --home ./demo
    """
    from afterglow.engine.demo import run_demo  # noqa: PLC0415 - numba and Spark are not needed for --help

    console = Console(highlight=False)

    def say(line: str) -> None:
        console.print(f"  {line}", soft_wrap=True)

    console.print("[bold]Afterglow demo[/bold]")
    with tempfile.TemporaryDirectory(prefix="afterglow-demo-") as temporary:
        result = run_demo(home or Path(temporary), messages, say)
    for difference in result.differences[:10]:
        console.print(f"  [red]{difference}[/red]", soft_wrap=True)
    if result.differences:
        console.print(f"[bold red]{len(result.differences)} differences[/bold red]")
        return FAILED
    console.print(
        f"[bold green]All {result.sent} messages came back as they were sent, from both formats.[/bold green]"
    )
    return DONE
