"""``afterglow doctor``."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from afterglow.cli.app import DONE, FAILED, app
from afterglow.cli.output import Output
from afterglow.cli.terminal_text import printable
from afterglow.cli.tier import TierOptions, tier_options


@app.command()
def doctor(
    *,
    tier: Annotated[str, typer.Option(help="The tier: file:///path or s3://bucket[/prefix].")],
    option: TierOptions = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per step.")] = False,
) -> int:
    """Try everything that Afterglow asks of a tier, and say which setting is wrong where it fails.

    Example: afterglow doctor --tier s3://bucket/prefix --option endpoint=http://127.0.0.1:9000
    """
    from afterglow.storage import Outcome, check_store, open_store  # noqa: PLC0415 - not needed for --help

    options = tier_options(option)
    if tier.startswith("s3://"):
        # A patient you want to hear about at once: nothing is tried a second time.
        options.setdefault("retry_deadline_s", "0")
    with Output(as_json=as_json).working(f"trying {tier}"):
        checks = check_store(open_store(tier, **options))
    failed = any(check.outcome is Outcome.FAILED for check in checks)
    if as_json:
        for check in checks:
            row = {"step": check.step, "outcome": check.outcome.value, "elapsed_ms": round(check.elapsed_ms, 1)}
            typer.echo(json.dumps({**row, "detail": check.detail, "cure": check.cure}))
        return FAILED if failed else DONE
    colours = {Outcome.OK: "green", Outcome.FAILED: "bold red", Outcome.SKIPPED: "yellow"}
    table = Table("step", "result", "ms", "detail")
    for check in checks:
        # Text, not str: what a store says is no mark-up.
        detail = Text(printable(check.detail)).append(f"\n{check.cure}" if check.cure else "", "bold")
        table.add_row(check.step, Text(check.outcome.value, colours[check.outcome]), f"{check.elapsed_ms:.0f}", detail)
    Console().print(table)
    return FAILED if failed else DONE
