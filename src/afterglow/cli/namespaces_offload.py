"""``afterglow namespaces``: what offload does for all topics of a namespace."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from afterglow.cli import offload_settings, parameters
from afterglow.cli.command import Session
from afterglow.cli.namespaces import NAMESPACES
from afterglow.cli.offload_flags import OffloadFlags
from afterglow.cli.offload_settings import POLICIES, READ_PRIORITY, Applied
from afterglow.cli.parameters import NamespaceArgument, PriorityArgument
from afterglow.cli.paths import namespace_path
from afterglow.cli.rollback import PATH, LoseData, Streaming, Yes, delete_of_many, query_of

_BYTES: Final = "offloadThreshold"
_SECONDS: Final = "offloadThresholdInSeconds"
_LAG: Final = "offloadDeletionLagMs"
_MINUTE_MS: Final = 60_000


@NAMESPACES.command("set-offload-policies")
def set_offload_policies(session: Session, namespace: NamespaceArgument, flags: OffloadFlags) -> None:
    """Change offload policies; only what is given changes.

    Example: afterglow namespaces set-offload-policies public/default -oat 1G -oae 4h
    """
    offload_settings.change_policies(session, namespace_path(namespace, POLICIES), flags, f"{namespace}")


@NAMESPACES.command("get-offload-policies")
def get_offload_policies(session: Session, namespace: NamespaceArgument, *, applied: Applied = False) -> None:
    """Show the offload policies that are set for a namespace.

    Example: afterglow namespaces get-offload-policies public/default --json
    """
    offload_settings.show_policies(session, namespace_path(namespace, POLICIES), applied=applied)


@NAMESPACES.command("remove-offload-policies")
def remove_offload_policies(session: Session, namespace: NamespaceArgument) -> None:
    """Let the broker's offload settings hold again, also for threshold, lag and read priority.

    Example: afterglow namespaces remove-offload-policies public/default
    """
    # Pulsar has no DELETE where the policies are.
    path = namespace_path(namespace, "removeOffloadPolicies")
    session.change("DELETE", path, None, f"removed the offload policies of {namespace}")


@NAMESPACES.command("set-offload-threshold")
def set_offload_threshold(
    session: Session,
    namespace: NamespaceArgument,
    *,
    size: Annotated[
        int | None,
        typer.Option(
            "--size",
            "-s",
            metavar="SIZE",
            parser=parameters.read_bytes_or_none,
            help="What a topic keeps out of the tier, such as 10G. 0: each ledger goes as it closes, -1: not by size.",
        ),
    ] = None,
    time: Annotated[
        int | None,
        typer.Option(
            "--time",
            "-t",
            metavar="TIME",
            parser=parameters.read_seconds_or_none,
            help="Time from a ledger's close to its offload, such as 1h. 0: at once, -1: not by time.",
        ),
    ] = None,
) -> None:
    """Say when ledgers are offloaded by themselves: past a size, past an age, or both.

    Example: afterglow namespaces set-offload-threshold public/default --size 1G --time 1h
    """
    given = {_BYTES: size, _SECONDS: time}
    if size is None and time is None:
        raise typer.BadParameter("give --size SIZE, --time TIME, or both")
    for path, value in given.items():
        if value is not None:
            session.client.call("PUT", namespace_path(namespace, path), value)
    session.out.say(f"set the offload threshold of {namespace}")


@NAMESPACES.command("get-offload-threshold")
def get_offload_threshold(session: Session, namespace: NamespaceArgument) -> None:
    """Show past which size and age ledgers are offloaded; -1: not by this.

    Example: afterglow namespaces get-offload-threshold public/default
    """
    found = {
        "offloadThresholdInBytes": session.client.get(namespace_path(namespace, _BYTES)),
        "offloadThresholdInSeconds": session.client.get(namespace_path(namespace, _SECONDS)),
    }
    session.out.say("\n".join(f"{name}: {value}" for name, value in found.items()), found)


@NAMESPACES.command("set-offload-deletion-lag")
def set_offload_deletion_lag(
    session: Session,
    namespace: NamespaceArgument,
    *,
    lag: Annotated[
        int,
        typer.Option(
            "--lag",
            "-l",
            metavar="TIME",
            parser=parameters.read_milliseconds,
            help="Time from offload to the end of the hot copy, such as 4h; without a unit seconds.",
        ),
    ],
) -> None:
    """Say how long the hot copy of a ledger stays after its offload.

    Example: afterglow namespaces set-offload-deletion-lag public/default --lag 4h
    """
    sentence = f"hot copies in {namespace} stay for {lag / 1000:g} s after their offload"
    session.change("PUT", namespace_path(namespace, _LAG), lag, sentence)


@NAMESPACES.command("get-offload-deletion-lag")
def get_offload_deletion_lag(session: Session, namespace: NamespaceArgument) -> None:
    """Show how long the hot copy of a ledger stays after its offload.

    Example: afterglow namespaces get-offload-deletion-lag public/default
    """
    lag = session.client.get(namespace_path(namespace, _LAG))
    sentence = (
        "Unset for namespace. Defaulting to broker setting." if lag is None else f"{lag / _MINUTE_MS:g} minute(s)"
    )
    session.out.say(sentence, {_LAG: lag})


@NAMESPACES.command("clear-offload-deletion-lag")
def clear_offload_deletion_lag(session: Session, namespace: NamespaceArgument) -> None:
    """Let the broker's deletion lag hold again.

    Example: afterglow namespaces clear-offload-deletion-lag public/default
    """
    session.change("DELETE", namespace_path(namespace, _LAG), None, f"cleared the deletion lag of {namespace}")


@NAMESPACES.command("set-data-read-priority")
def set_data_read_priority(session: Session, namespace: NamespaceArgument, priority: PriorityArgument) -> None:
    """Say which copy serves a read while both exist.

    Example: afterglow namespaces set-data-read-priority public/default bookkeeper-first
    """
    offload_settings.set_read_priority(session, namespace_path(namespace, READ_PRIORITY), priority, f"{namespace}")


@NAMESPACES.command("get-data-read-priority")
def get_data_read_priority(session: Session, namespace: NamespaceArgument) -> None:
    """Show which copy serves a read while both exist.

    Example: afterglow namespaces get-data-read-priority public/default
    """
    offload_settings.show_read_priority(session, namespace_path(namespace, READ_PRIORITY))


@NAMESPACES.command("remove-data-read-priority")
def remove_data_read_priority(session: Session, namespace: NamespaceArgument) -> None:
    """Let the broker's read priority hold again.

    Example: afterglow namespaces remove-data-read-priority public/default
    """
    path = namespace_path(namespace, READ_PRIORITY)
    session.change("DELETE", path, None, f"removed the data read priority of {namespace}")


@NAMESPACES.command("delete-offloaded")
def delete_offloaded(
    session: Session,
    namespace: NamespaceArgument,
    *,
    streaming: Streaming = False,
    yes: Yes = False,
    lose_data: LoseData = False,
) -> None:
    """Take all topics of a namespace out of their segments and delete these, for going back to a Pulsar without them.

    Streaming must be switched off for every topic. One topic that must be refused keeps all as they are. What fails
    later can be tried again: topics that are done have no segments any more. Without --yes nothing is changed.

    Example: afterglow namespaces delete-offloaded public/default --streaming
    """
    query = query_of(streaming=streaming, yes=yes, lose_data=lose_data)
    delete_of_many(session, namespace_path(namespace, PATH), f"{namespace}", query)
