"""``afterglow doctor``: tests this machine, and every operation that Afterglow needs of a tier."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from afterglow.cli.app import DONE, FAILED, app
from afterglow.cli.output import Output, printable
from afterglow.cli.parameters import TierOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from afterglow.storage.doctor import StoreCheck

_COLOURS: Final = {"ok": "green", "failed": "bold red", "warning": "yellow", "skipped": "dim"}


@app.command()
def doctor(
    *,
    tier: Annotated[str | None, typer.Option(help="Test this tier too: file:///path or s3://bucket[/prefix].")] = None,
    home: Annotated[Path, typer.Option(help="Directory in which a server would keep its data.")] = Path(),
    option: TierOptions = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per step.")] = False,
) -> int:
    """Test whether this machine can run Afterglow, and whether a tier has all operations that it needs.

    Without --tier: Java, Spark, disk, ports and clock. Exit 1 if a step failed; a warning is not a failure.

    Example: afterglow doctor

    Example: afterglow doctor --tier s3://bucket/prefix --option endpoint=http://127.0.0.1:9000
    """
    from afterglow.cli.machine import check_machine  # noqa: PLC0415 - not needed for --help
    from afterglow.storage import check_store, open_store  # noqa: PLC0415

    out = Output(as_json=as_json)
    if tier is None:
        with out.working("testing this machine"):
            checks: Sequence[StoreCheck] = check_machine(home)
        subject = "this machine"
    else:
        options = dict(option or ())
        if tier.startswith("s3://"):
            # A retry would only delay the diagnosis.
            options.setdefault("retry_deadline_s", "0")
        with out.working(f"testing {tier}"):
            checks = check_store(open_store(tier, **options))
        subject = f"the tier {tier}"
    if as_json:
        for check in checks:
            row = {"step": check.step, "outcome": check.outcome.value, "elapsed_ms": round(check.elapsed_ms, 1)}
            typer.echo(json.dumps({**row, "detail": check.detail, "cure": check.cure}))
    else:
        _print(checks)
        out.say(verdict(subject, checks))
    return FAILED if any(check.outcome.value == "failed" for check in checks) else DONE


def verdict(subject: str, checks: Sequence[StoreCheck]) -> str:
    """One sentence about all steps, with what to do first."""
    failed = [check for check in checks if check.outcome.value == "failed"]
    warned = [check for check in checks if check.outcome.value == "warning"]
    if failed:
        first = failed[0]
        number = f"{len(failed)} of {len(checks)} steps failed"
        return f"{subject} cannot be used: {number}; first {first.cure or 'see the message of ' + first.step}"
    if warned:
        return f"{subject} can be used; see the warnings about {', '.join(check.step for check in warned)}"
    return f"{subject} can be used"


def _print(checks: Sequence[StoreCheck]) -> None:
    from rich.console import Console  # noqa: PLC0415 - not needed for --help
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table("step", "result", "ms", "detail")
    before = ("", "")
    for check in checks:
        result = Text(check.outcome.value, _COLOURS[check.outcome.value])
        same = bool(check.cure) and (check.detail, check.cure) == before
        before = check.detail, check.cure
        # Text, not str: brackets in a message of the store are not mark-up.
        detail = Text(printable(check.detail)).append(f"\n{check.cure}" if check.cure else "", "bold")
        table.add_row(check.step, result, f"{check.elapsed_ms:.0f}", Text("as above") if same else detail)
    Console().print(table)
