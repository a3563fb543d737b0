"""``afterglow verify``."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final

import typer

from afterglow.cli.app import DONE, FAILED, app
from afterglow.cli.output import Output
from afterglow.cli.parameters import read_milliseconds
from afterglow.cli.progress import byte_bar
from afterglow.cli.tier import TierOptions, tier_options
from afterglow.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from afterglow.engine.checking import HomeChecker
    from afterglow.verify import Finding, ObjectChecker

_SHOWN: Final = 20
"""Of each kind that is no fault, so many are shown to people; a bucket may hold millions of others' objects."""


@app.command()
def verify(
    source: Annotated[str, typer.Argument(help="The home directory of an engine, running or not.")],
    *,
    tier: Annotated[
        str | None, typer.Option(help="Where all objects are: file:///path or s3://bucket[/prefix]; else as recorded.")
    ] = None,
    metadata: Annotated[str | None, typer.Option(help="sqlite:PATH, if the metadata is not in the home.")] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Read and check every byte, on Spark.")] = False,
    master: Annotated[str | None, typer.Option(help="With --deep: the Spark master; else local[*].")] = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Delete orphans and abort leaked uploads; a dry run unless --yes.")
    ] = False,
    grace: Annotated[str, typer.Option(metavar="TIME", help="What is not older may be on its way.")] = "1h",
    yes: Annotated[bool, typer.Option("--yes", help="With --sweep: delete.")] = False,
    option: TierOptions = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per finding.")] = False,
) -> int:
    """Hold metadata against the tier: missing, damaged, overlapping, orphan objects, unfinished uploads. Any: exit 1.

    Work in progress is no finding. Orphans younger than the grace are pending, objects of others foreign; neither is a
    fault, nor are bytes that no checksum covers.

    Example: afterglow verify ./home --deep
    """
    from afterglow.engine.checking import open_checker  # noqa: PLC0415 - not needed for --help

    if yes and not sweep:
        raise ConfigError("--yes says that --sweep may delete; give both, or neither")
    if master is not None and not deep:
        raise ConfigError("--master says where --deep runs its tasks; give both, or neither")
    out = Output(as_json=as_json)
    tally = Tally(everything=as_json)
    grace_ms = read_milliseconds(grace)
    with ExitStack() as stack:
        opened = stack.enter_context(open_checker(source, tier=tier, metadata=metadata, options=tier_options(option)))
        objects: ObjectChecker | None = None
        if deep:
            bar = stack.enter_context(byte_bar("checking every byte", "objects"))
            objects = stack.enter_context(opened.deep(master, bar))
        else:
            stack.enter_context(out.working("checking"))
        found = _findings(opened, objects, grace_ms=grace_ms, sweep=sweep, yes=yes)
        out.rows((finding.as_json() for finding in tally.shown(found)), absent="nothing found")
    out.say(tally.summary)
    return FAILED if tally.faults else DONE


class Tally:
    """Counts findings as they pass, and holds back what is too much for people."""

    def __init__(self, *, everything: bool) -> None:
        self.faults = 0
        """That are still there."""
        self._counts: Counter[str] = Counter()
        self._everything = everything

    def shown(self, findings: Iterable[tuple[Finding, bool]]) -> Iterator[Finding]:
        """The findings to print."""
        for finding, fault in findings:
            self._counts[finding.kind] += 1
            self.faults += fault
            if fault or self._everything or self._counts[finding.kind] <= _SHOWN:
                yield finding

    @property
    def summary(self) -> str:
        """One line about all of them."""
        told = ", ".join(f"{kind} {count}" for kind, count in sorted(self._counts.items()))
        hidden = any(count > _SHOWN for count in self._counts.values())
        rest = f"; of what is no fault the first {_SHOWN} of a kind are shown, --json prints all" if hidden else ""
        return f"{self.faults or 'no'} faults{f' ({told}{rest})' if told else ''}"


def _findings(
    checker: HomeChecker, objects: ObjectChecker | None, *, grace_ms: int, sweep: bool, yes: bool
) -> Iterator[tuple[Finding, bool]]:
    """Every finding, and whether it is a fault that is still there."""
    from afterglow.verify import Kind  # noqa: PLC0415 - not needed for --help

    swept = {Kind.ORPHAN_OBJECT, Kind.LEAKED_UPLOAD} if sweep else set()
    for finding in checker.findings(grace_ms=grace_ms, checker=objects):
        if finding.kind not in swept:
            yield finding, finding.kind.is_fault
        elif not yes:
            yield replace(finding, detail=f"{finding.detail}; --yes would delete it"), True
    if yes:
        for item in checker.sweep(grace_ms=grace_ms):
            yield replace(item.finding, detail=f"{item.finding.detail}; deleted"), False
