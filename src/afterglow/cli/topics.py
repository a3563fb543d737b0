"""``topics create``, ``delete``, ``create-subscription`` and ``reset-cursor``, which combine options or calls.

The other commands of ``pulsar-admin topics`` are in the table of :mod:`afterglow.cli.admin_commands`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from afterglow.cli.admin_commands import TOPICS
from afterglow.cli.command import AdminSession, topic_path
from afterglow.cli.parameters import Force, Subscription, TopicArgument, read_position, read_time
from afterglow.metadata.names import TopicName, encode_name

PositionOption = Annotated[
    str | None,
    typer.Option(
        "--message-id",
        "--messageId",
        "-m",
        metavar="POS",
        parser=read_position,
        help="LEDGER:ENTRY[:BATCH], earliest or latest.",
    ),
]
_ENDS: Final = ("earliest", "latest")


@TOPICS.command("create")
def create(
    session: AdminSession,
    topic: TopicArgument,
    *,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="Number of partitions. Default: not partitioned.")
    ] = None,
) -> None:
    """Create a topic.

    Example: afterglow topics create orders --partitions 4
    """
    if partitions is None:
        session.change("PUT", topic_path(topic), None, f"created {topic}")
        return
    with session.out.working(f"creating {partitions} partitions"):
        path = topic_path(topic, "partitions")
        session.change("PUT", path, partitions, f"created {topic} with {partitions} partitions")


@TOPICS.command("delete")
def delete(session: AdminSession, topic: TopicArgument, *, force: Force = False) -> None:
    """Delete a topic with all its data, in hot log and tier.

    Example: afterglow topics delete orders --force
    """
    path = topic_path(topic, *(("partitions",) if session.partitions_of(topic) else ()))
    with session.out.working(f"deleting {topic}"):
        session.client.call("DELETE", path, query={"force": "true"} if force else None)
    session.out.say(f"deleted {topic}")


@TOPICS.command("create-subscription")
def create_subscription(
    session: AdminSession, topic: TopicArgument, *, subscription: Subscription, position: PositionOption = "latest"
) -> None:
    """Create a subscription at a position; messages from there on are kept until it acknowledges them.

    Example: afterglow topics create-subscription orders -s billing --message-id earliest
    """
    body = _position_json(position or "latest")
    session.change("PUT", _path(topic, subscription), body, f"created the subscription {subscription} of {topic}")


@TOPICS.command("reset-cursor")
def reset_cursor(
    session: AdminSession,
    topic: TopicArgument,
    *,
    subscription: Subscription,
    time_ms: Annotated[
        int | None,
        typer.Option(
            "--time",
            "-t",
            metavar="TIME",
            parser=read_time,
            help="Reset to the first message at or after this time: an age such as 4h, or RFC 3339.",
        ),
    ] = None,
    position: PositionOption = None,
    excluded: Annotated[
        bool, typer.Option("--exclude-reset-position", "-e", help="With --message-id: reset to the message after it.")
    ] = False,
) -> None:
    """Reset the position of a subscription; its consumers reconnect and continue from there.

    Example: afterglow topics reset-cursor orders -s billing --time 4h
    """
    if (time_ms is None) == (position is None):
        raise typer.BadParameter("give either --time TIME or --message-id POS")
    if excluded and (position is None or position in _ENDS):
        raise typer.BadParameter("--exclude-reset-position needs one message; give --message-id LEDGER:ENTRY")
    with session.out.working(f"resetting {subscription}"):
        if position is None:
            session.client.call("POST", _path(topic, subscription, "resetcursor", str(time_ms)))
        else:
            # A message is in one partition, which must be named; earliest and latest apply to all partitions.
            for name in session.each_of(topic) if position in _ENDS else [topic]:
                body = _position_json(position, excluded=excluded)
                session.client.call("POST", _path(name, subscription, "resetcursor"), body)
    session.out.say(f"reset the subscription {subscription} of {topic}")


def _path(topic: TopicName, subscription: str, *rest: str) -> str:
    return topic_path(topic, "subscription", encode_name(subscription), *rest)


def _position_json(text: str, *, excluded: bool = False) -> dict[str, Any]:
    """Return a position as the JSON that Afterglow and Pulsar accept."""
    from afterglow.format.position import parse_position  # noqa: PLC0415 - not needed for --help

    position, batch_index = parse_position(text)
    found = {"ledgerId": position.ledger_id, "entryId": position.entry_id, "partitionIndex": -1, "excluded": excluded}
    return {**found, "batchIndex": batch_index} if batch_index >= 0 else found
