"""``afterglow verify``."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from afterglow.cli.app import DONE, FAILED, app
from afterglow.cli.connection import CaFile, Connection, Token
from afterglow.cli.interrupt import interruptible
from afterglow.cli.output import Output
from afterglow.cli.parameters import read_milliseconds
from afterglow.cli.progress import byte_bar
from afterglow.cli.tier import TierOptions, tier_options
from afterglow.errors import AfterglowError, ConfigError, NotSupported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from afterglow.cli.client import AdminClient
    from afterglow.pipeline.tier_verifier import VerifyRequest
    from afterglow.verify import ObjectVerifier

    Found: TypeAlias = tuple[Mapping[str, Any], bool]
    """A finding as JSON, and whether it is a fault that is still there."""

_SHOWN: Final = 20
"""Of each kind that is no fault, so many are shown to people; a bucket may hold millions of others' objects."""


@app.command()
def verify(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(help="A server's home, or http://host:8080 of one that runs; or zk://host:2181 of a Pulsar."),
    ],
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
    grace: Annotated[
        int, typer.Option(metavar="TIME", parser=read_milliseconds, help="What is not older may be on its way.")
    ] = "1h",  # type: ignore[assignment]  # parsed like any other
    yes: Annotated[bool, typer.Option("--yes", help="With --sweep: delete.")] = False,
    option: TierOptions = None,
    token: Token = None,
    ca_file: CaFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per finding.")] = False,
) -> int:
    """Hold metadata against the tier: missing, damaged, overlapping, orphan objects, unfinished uploads. Any: exit 1.

    Work in progress is no finding. Orphans younger than the grace are pending, objects of others foreign; neither is a
    fault, nor are bytes that no checksum covers. Given an address, the server there checks itself, with its own
    settings and on its own Spark; Ctrl-C ends that check. Of a Pulsar cluster's ZooKeeper, what its brokers have
    offloaded is checked.

    Example: afterglow verify ./home --deep

    Example: afterglow verify http://localhost:8080 --sweep
    """
    from afterglow.pipeline.tier_verifier import VerifyRequest  # noqa: PLC0415 - not needed for --help

    if yes and not sweep:
        raise ConfigError("--yes says that --sweep may delete; give both, or neither")
    if sweep and source.startswith("zk://"):
        raise ConfigError(
            "--sweep deletes what a server of ours has left; of a cluster's objects none is: leave it out"
        )
    if master is not None and not deep:
        raise ConfigError("--master says where --deep runs its tasks; give both, or neither")
    request = VerifyRequest(deep, sweep, yes, grace)
    home = _Home(source, tier, metadata, master, tier_options(option))
    out = Output(as_json=as_json)
    if source.startswith(("http://", "https://")):
        home.insist_on_nothing()
        tally = _verify_remote(source, context.obj.overlaid(Connection(None, token, ca_file)), request, out)
    else:
        tally = _verify_local(home, request, out)
    out.say(tally.summary)
    return FAILED if tally.faults else DONE


@dataclass(frozen=True, slots=True)
class _Home:
    """A home, and how it is to be checked from outside."""

    source: str
    tier: str | None
    metadata: str | None
    master: str | None
    options: Mapping[str, str]

    def insist_on_nothing(self) -> None:
        """Insist that nothing is given that a running server knows by itself.

        Raises:
            ConfigError: Something is.
        """
        given = {"tier": self.tier, "metadata": self.metadata, "master": self.master, "option": self.options}
        for name, value in given.items():
            if value:
                raise ConfigError(
                    f"--{name} is for a home directory: the server at {self.source} checks with its own settings; "
                    f"leave --{name} out"
                )


def _verify_local(home: _Home, request: VerifyRequest, out: Output) -> Tally:
    from afterglow.pipeline.tier_verifier import open_verifier  # noqa: PLC0415 - not needed for --help

    tally = Tally(everything=out.as_json)
    with ExitStack() as stack:
        stack.enter_context(interruptible("the check and Spark" if request.deep else "the check"))
        opened = open_verifier(home.source, tier=home.tier, metadata=home.metadata, options=home.options)
        verifier = stack.enter_context(opened)
        objects: ObjectVerifier | None = None
        if request.deep:
            bar = stack.enter_context(byte_bar("checking every byte", "objects"))
            objects = stack.enter_context(verifier.deep(home.master, bar))
        else:
            stack.enter_context(out.working("checking"))
        found = ((item.finding.as_json(), item.fault) for item in verifier.run(request, objects))
        out.rows(tally.shown(found), absent="nothing found")
    return tally


def _verify_remote(source: str, connection: Connection, request: VerifyRequest, out: Output) -> Tally:
    from afterglow.cli.client import AdminClient  # noqa: PLC0415 - HTTP and TLS are not needed for --help

    client = AdminClient(connection.overlaid(Connection(source)).resolved(), "SOURCE")
    tally = Tally(everything=out.as_json)
    with ExitStack() as stack:
        stack.enter_context(interruptible(f"the check that {source} makes"))
        if request.deep:
            bar = stack.enter_context(byte_bar("checking every byte", "objects"))

            def show(now: Mapping[str, Any]) -> None:
                if now["bytesDue"]:
                    bar(now["bytesDone"], now["bytesDue"], now["objectsDone"])
        else:
            say = stack.enter_context(out.working("checking"))

            def show(now: Mapping[str, Any]) -> None:
                say(f"checking: {now['objectsDone']:,} of {now['objectsDue']:,} objects")

        out.rows(tally.shown(_remote_findings(client, source, request, show)), absent="nothing found")
    return tally


def _remote_findings(
    client: AdminClient, source: str, request: VerifyRequest, show: Callable[[Mapping[str, Any]], None]
) -> Iterator[Found]:
    """The findings of a running server, as it makes them; it stops when the connection is closed before the end."""
    from afterglow.cli.client import AdminFailed  # noqa: PLC0415 - see above

    body = {
        "deep": request.deep,
        "sweep": request.sweep,
        "delete": request.delete,
        "graceMillis": request.grace_ms,
    }
    try:
        with client.stream("POST", "afterglow/verify", body) as lines:
            for line in lines:
                if "finding" in line:
                    yield line["finding"], line["finding"].pop("fault")
                elif "progress" in line:
                    show(line["progress"])
                elif "result" in line:
                    state, error = line["result"]["state"], line["result"].get("error")
                    if state != "done":
                        raise AfterglowError(f"the check was {state}" + (f": {error}" if error else ""))
                    return
    except AdminFailed as error:
        if error.status in {404, 405}:
            raise NotSupported(
                f"what answers at {source} makes no checks: it is no Afterglow of this release; give the address of "
                "an `afterglow serve`, or the directory of its home"
            ) from error
        raise
    raise AfterglowError(f"{source} closed the connection before the check had ended; its log may say why")


class Tally:
    """Counts findings as they pass, and holds back what is too much for people."""

    def __init__(self, *, everything: bool) -> None:
        self.faults = 0
        """That are still there."""
        self._counts: Counter[str] = Counter()
        self._everything = everything

    def shown(self, findings: Iterable[Found]) -> Iterator[Mapping[str, Any]]:
        """The findings to print, given each with whether it is a fault."""
        for finding, fault in findings:
            kind = finding["kind"]
            self._counts[kind] += 1
            self.faults += fault
            if fault or self._everything or self._counts[kind] <= _SHOWN:
                yield finding

    @property
    def summary(self) -> str:
        """One line about all of them."""
        told = ", ".join(f"{kind} {count}" for kind, count in sorted(self._counts.items()))
        hidden = any(count > _SHOWN for count in self._counts.values())
        rest = f"; of what is no fault the first {_SHOWN} of a kind are shown, --json prints all" if hidden else ""
        return f"{self.faults or 'no'} faults{f' ({told}{rest})' if told else ''}"
