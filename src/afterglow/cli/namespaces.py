"""``afterglow namespaces``: namespaces and how long they keep messages."""

from __future__ import annotations

from typing import Annotated

import typer

from afterglow.cli import parameters
from afterglow.cli.command import Group, Session
from afterglow.cli.parameters import NamespaceArgument
from afterglow.cli.paths import namespace_path
from afterglow.metadata.encoding import encode_name

NAMESPACES = Group("namespaces", "Namespaces and their policies, by the names of pulsar-admin.", read_priority=True)

_RETENTION = "retention"
_TTL = "messageTTL"


@NAMESPACES.command("create")
def create(session: Session, namespace: NamespaceArgument) -> None:
    """Create a namespace in a tenant that exists.

    Example: afterglow namespaces create public/orders
    """
    session.change("PUT", namespace_path(namespace), None, f"created {namespace}")


@NAMESPACES.command("list")
def list_namespaces(
    session: Session, tenant: Annotated[str, typer.Argument(metavar="TENANT", help="The tenant.")] = "public"
) -> None:
    """List the namespaces of a tenant.

    Example: afterglow namespaces list public
    """
    session.out.lines("namespace", session.client.names(f"namespaces/{encode_name(tenant)}"))


@NAMESPACES.command("delete")
def delete(session: Session, namespace: NamespaceArgument) -> None:
    """Delete a namespace that has no topics.

    Example: afterglow namespaces delete public/orders
    """
    session.change("DELETE", namespace_path(namespace), None, f"deleted {namespace}")


@NAMESPACES.command("policies")
def policies(session: Session, namespace: NamespaceArgument) -> None:
    """Show all policies of a namespace.

    Example: afterglow namespaces policies public/default --json
    """
    session.show(namespace_path(namespace), "none")


@NAMESPACES.command("topics")
def topics(session: Session, namespace: NamespaceArgument) -> None:
    """List the topics of a namespace, each partition by itself.

    Example: afterglow namespaces topics public/default
    """
    session.out.lines("topic", session.client.names(namespace_path(namespace, "topics")))


@NAMESPACES.command("unload")
def unload(session: Session, namespace: NamespaceArgument) -> None:
    """Close all topics of a namespace; clients come back and open theirs again.

    Example: afterglow namespaces unload public/default
    """
    with session.out.working(f"closing the topics of {namespace}"):
        session.change("PUT", namespace_path(namespace, "unload"), None, f"unloaded {namespace}")


@NAMESPACES.command("set-retention")
def set_retention(
    session: Session,
    namespace: NamespaceArgument,
    *,
    time: Annotated[
        int,
        typer.Option(
            "--time",
            "-t",
            metavar="TIME",
            parser=parameters.read_minutes_or_none,
            help="How long acknowledged messages are kept, such as 3h; -1: for ever.",
        ),
    ],
    size: Annotated[
        int,
        typer.Option(
            "--size",
            "-s",
            metavar="SIZE",
            parser=parameters.read_mebibytes_or_none,
            help="How much of them is kept for each topic, such as 10G; -1: all.",
        ),
    ],
    yes: Annotated[bool, typer.Option("--yes", help="With --time 0 --size 0: delete.")] = False,
) -> None:
    """Keep messages after every subscription has acknowledged them; --time 0 --size 0 deletes them instead.

    What is deleted is gone from the hot log and from the tier, ledger by ledger, and without a way back: therefore
    zeros are refused without --yes. A topic without subscriptions has no unacknowledged messages.

    Example: afterglow namespaces set-retention public/default --time 3d --size -1
    """
    keeps_nothing = time == size == 0
    if keeps_nothing and not yes:
        raise typer.BadParameter(
            f"--time 0 --size 0 keeps no acknowledged messages: {namespace} deletes them now, also from the tier, and "
            "of topics without subscriptions all messages; nothing was changed: give --yes to do it"
        )
    limits = f"age: {_limit(time, 'min')}, size of a topic: {_limit(size, 'MiB')}"
    sentence = f"{namespace} keeps acknowledged messages; {limits}"
    if keeps_nothing:
        gone = "they are deleted, also from the tier, as soon as their ledger is closed"
        sentence = f"{namespace} keeps no acknowledged messages: {gone}"
    value = {"retentionTimeInMinutes": time, "retentionSizeInMB": size}
    session.change("POST", namespace_path(namespace, _RETENTION), value, sentence)


@NAMESPACES.command("get-retention")
def get_retention(session: Session, namespace: NamespaceArgument) -> None:
    """Show how long acknowledged messages are kept.

    Example: afterglow namespaces get-retention public/default
    """
    session.show(namespace_path(namespace, _RETENTION), "not set: the broker's defaultRetention… settings hold")


@NAMESPACES.command("remove-retention")
def remove_retention(session: Session, namespace: NamespaceArgument) -> None:
    """Let the broker's retention hold again; where that is 0, acknowledged messages are deleted.

    Example: afterglow namespaces remove-retention public/default
    """
    session.change(
        "DELETE",
        namespace_path(namespace, _RETENTION),
        None,
        f"removed the retention of {namespace}: the broker's defaultRetentionTimeInMinutes and "
        "defaultRetentionSizeInMB hold; 0 keeps no acknowledged messages",
    )


@NAMESPACES.command("set-message-ttl")
def set_message_ttl(
    session: Session,
    namespace: NamespaceArgument,
    *,
    seconds: Annotated[
        int,
        typer.Option(
            "--messageTTL",
            "-ttl",
            metavar="TIME",
            parser=parameters.read_seconds,
            help="Age past which a message counts as acknowledged, such as 2d; 0: never.",
        ),
    ],
) -> None:
    """Acknowledge messages by themselves once they are so old.

    Example: afterglow namespaces set-message-ttl public/default -ttl 2d
    """
    sentence = f"messages in {namespace} expire after {seconds} s" if seconds else f"messages in {namespace} stay"
    session.change("POST", namespace_path(namespace, _TTL), seconds, sentence)


@NAMESPACES.command("get-message-ttl")
def get_message_ttl(session: Session, namespace: NamespaceArgument) -> None:
    """Show the age past which messages count as acknowledged, in seconds.

    Example: afterglow namespaces get-message-ttl public/default
    """
    found = session.client.get(namespace_path(namespace, _TTL))
    words = "not set: messages stay until they are acknowledged" if found is None else f"{found}"
    session.out.say(words, {_TTL: found})


@NAMESPACES.command("remove-message-ttl")
def remove_message_ttl(session: Session, namespace: NamespaceArgument) -> None:
    """Let messages stay until they are acknowledged, however old.

    Example: afterglow namespaces remove-message-ttl public/default
    """
    session.change("DELETE", namespace_path(namespace, _TTL), None, f"removed the time to live of {namespace}")


def _limit(number: int, unit: str) -> str:
    return "without limit" if number < 0 else f"{number} {unit}"
