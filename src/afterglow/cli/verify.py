"""``afterglow verify``: runs :func:`afterglow.verify.verify` on every tier of a source, and sweeps.

In this process through :class:`afterglow.pipeline.tier_verifier.TierVerifier`, with ``--deep`` on Spark; for the
source of a running server over REST.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from afterglow.cli.app import DONE, FAILED, app
from afterglow.cli.interrupt import interruptible
from afterglow.cli.output import Output
from afterglow.cli.parameters import (
    AdminConnection,
    CaFile,
    SourceArgument,
    SourceMetadata,
    SourceTier,
    TierOptions,
    Token,
    read_milliseconds,
)
from afterglow.cli.progress import progress
from afterglow.errors import AfterglowError, ConfigError, NotSupported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from afterglow.cli.client import CliAdminClient
    from afterglow.pipeline.tier_verifier import VerifyRequest
    from afterglow.verify import ObjectVerifier

    FindingRow: TypeAlias = tuple[Mapping[str, Any], bool]
    """A finding as JSON, and whether it is a fault that was not repaired."""

_MAX_SHOWN: Final = 20
"""Findings of each kind in the table, except faults; a bucket may hold millions of foreign objects."""

_STATES: Final = {"failed": "failed", "cancelled": "was cancelled"}


@app.command()
def verify(
    context: typer.Context,
    source: SourceArgument,
    *,
    tier: SourceTier = None,
    metadata: SourceMetadata = None,
    deep: Annotated[bool, typer.Option("--deep", help="Read and verify every byte, on Spark.")] = False,
    master: Annotated[str | None, typer.Option(help="With --deep: Spark master. Default: local[*].")] = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Delete orphans and abort leaked uploads; a dry run without --yes.")
    ] = False,
    grace: Annotated[
        int,
        typer.Option(
            metavar="TIME", parser=read_milliseconds, help="Age below which an object may be an upload in progress."
        ),
    ] = "1h",  # type: ignore[assignment]  # the default is parsed too
    yes: Annotated[bool, typer.Option("--yes", help="With --sweep: delete.")] = False,
    option: TierOptions = None,
    token: Token = None,
    ca_file: CaFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per finding.")] = False,
) -> int:
    """Verify metadata against the tier; exit 1 for missing, damaged, overlapping or orphan objects, leaked uploads.

    Work in progress is not reported. Orphans younger than --grace are pending, objects of other systems are foreign;
    neither is a fault, nor are bytes without a checksum. For an http:// source the server verifies itself, with its own
    settings and Spark; Ctrl-C cancels this. For the ZooKeeper of a Pulsar cluster, the ledgers that its brokers have
    offloaded are verified; with the --metadata of `afterglow attach`, the segments of that.

    Example: afterglow verify ./home --deep

    Example: afterglow verify http://localhost:8080 --sweep

    Example: afterglow verify http://pulsar:8080 --metadata sqlite:a.db --deep
    """
    from afterglow.pipeline.tier_verifier import VerifyRequest  # noqa: PLC0415 - not needed for --help

    if yes and not sweep:
        raise ConfigError("--yes confirms the deletion by --sweep; give both, or neither")
    if sweep and source.startswith("zk://") and metadata is None:
        raise ConfigError(
            "--sweep deletes only objects of an Afterglow server, and a Pulsar cluster has none; remove --sweep"
        )
    if master is not None and not deep:
        raise ConfigError("--master is for --deep; give both, or neither")
    request = VerifyRequest(deep, sweep, yes, grace)
    is_remote = source.startswith(("http://", "https://")) and metadata is None
    connection = context.obj.overridden(AdminConnection(None, token, ca_file))
    home = _Home(source, tier, metadata, master, dict(option or ()), connection)
    out = Output(as_json=as_json)
    if is_remote:
        home.check_no_options()
        tally = _verify_remote(source, connection, request, out)
    else:
        tally = _verify_local(home, request, out)
    out.say(tally.summary)
    return FAILED if tally.faults else DONE


@dataclass(frozen=True, slots=True)
class _Home:
    """Options of a verification that runs in this process."""

    source: str
    tier: str | None
    metadata: str | None
    master: str | None
    options: Mapping[str, str]
    connection: AdminConnection
    """Credentials of a cluster's admin API."""

    def check_no_options(self) -> None:
        """Reject options that do not apply to a running server.

        Raises:
            ConfigError: One is given.
        """
        given = {"tier": self.tier, "master": self.master, "option": self.options}
        for name, value in given.items():
            if value:
                raise ConfigError(
                    f"--{name} is for a home directory; the server at {self.source} verifies with its own settings; "
                    f"remove --{name}"
                )


def _verify_local(home: _Home, request: VerifyRequest, out: Output) -> FindingTally:
    from afterglow.metadata.cluster_credentials import ClusterCredentials  # noqa: PLC0415 - not needed for --help
    from afterglow.pipeline.tier_verifier import open_verifier  # noqa: PLC0415

    tally = FindingTally(everything=out.as_json)
    with ExitStack() as stack:
        stack.enter_context(interruptible("the verification and Spark" if request.deep else "the verification"))
        credentials = ClusterCredentials.of(home.connection.token, home.connection.ca_file)
        opened = open_verifier(
            home.source, tier=home.tier, metadata=home.metadata, options=home.options, credentials=credentials
        )
        verifier = stack.enter_context(opened)
        objects: ObjectVerifier | None = None
        if request.deep:
            show = stack.enter_context(progress("verifying"))
            show("starting Spark")
            objects = stack.enter_context(
                verifier.deep(home.master, lambda done, due, count: show(f"{count:,} objects", done, due))
            )
        else:
            show = stack.enter_context(progress("verifying", "objects"))
            verifier.report_objects(partial(show, ""))
        found = ((item.finding.as_json(), item.fault) for item in verifier.run(request, objects))
        out.rows(tally.shown(found), absent="nothing found")
    return tally


def _verify_remote(source: str, connection: AdminConnection, request: VerifyRequest, out: Output) -> FindingTally:
    from afterglow.cli.client import CliAdminClient  # noqa: PLC0415 - HTTP and TLS are not needed for --help

    client = CliAdminClient(connection.overridden(AdminConnection(source)).resolved(), "SOURCE")
    tally = FindingTally(everything=out.as_json)
    with ExitStack() as stack:
        stack.enter_context(interruptible(f"the verification by {source}"))
        if request.deep:
            show_bytes = stack.enter_context(progress("verifying"))

            def show(now: Mapping[str, Any]) -> None:
                show_bytes(f"{now['objectsDone']:,} objects", now["bytesDone"], now["bytesDue"])
        else:
            show_objects = stack.enter_context(progress("verifying", "objects"))

            def show(now: Mapping[str, Any]) -> None:
                show_objects("", now["objectsDone"], now["objectsDue"])

        out.rows(tally.shown(_remote_findings(client, source, request, show)), absent="nothing found")
    return tally


def _remote_findings(
    client: CliAdminClient, source: str, request: VerifyRequest, show: Callable[[Mapping[str, Any]], None]
) -> Iterator[FindingRow]:
    """Return the findings of a running server as they arrive; closing the connection cancels the verification."""
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
                        raise AfterglowError(
                            f"the verification {_STATES.get(state, state)}" + (f": {error}" if error else "")
                        )
                    return
    except AdminFailed as error:
        if error.status in {404, 405}:
            raise NotSupported(
                f"the server at {source} does not support verification: it is not an Afterglow of this release; "
                "give the address of `afterglow serve`, or its home directory"
            ) from error
        raise
    raise AfterglowError(f"{source} closed the connection before the verification had ended; see the log of the server")


class FindingTally:
    """Counts findings, and limits those that are shown in a table."""

    def __init__(self, *, everything: bool) -> None:
        self.faults = 0
        """Faults that were not repaired."""
        self._counts: Counter[str] = Counter()
        self._everything = everything

    def shown(self, findings: Iterable[FindingRow]) -> Iterator[Mapping[str, Any]]:
        """Return the findings to print."""
        for finding, fault in findings:
            kind = finding["kind"]
            self._counts[kind] += 1
            self.faults += fault
            if fault or self._everything or self._counts[kind] <= _MAX_SHOWN:
                yield finding

    @property
    def summary(self) -> str:
        """Number of faults, and of findings by kind."""
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self._counts.items()))
        hidden = any(count > _MAX_SHOWN for count in self._counts.values())
        rest = f"; only the first {_MAX_SHOWN} of each kind but faults are shown, --json prints all" if hidden else ""
        return f"{self.faults or 'no'} faults{f' ({kinds}{rest})' if kinds else ''}"
