"""``afterglow topics``: topics, what is in them, and where their subscriptions are.

A partitioned topic's own name means all its partitions. What is a single call is in
:mod:`afterglow.cli.admin_commands`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from afterglow.cli.admin_commands import TOPICS
from afterglow.cli.command import Session, topic_path
from afterglow.cli.parameters import Force, Subscription, TopicArgument, read_moment, read_position
from afterglow.metadata.names import TopicName, encode_name

Position = Annotated[
    str | None,
    typer.Option(
        "--message-id",
        "--messageId",
        "-m",
        metavar="POS",
        parser=read_position,
        help="Where: LEDGER:ENTRY[:BATCH], earliest or latest.",
    ),
]
_ENDS: Final = ("earliest", "latest")
_NOWHERE: Final = "say where to: --time TIME, or --message-id POS"


@TOPICS.command("create")
def create(
    session: Session,
    topic: TopicArgument,
    *,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="How many partitions; without, it has none.")
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
def delete(session: Session, topic: TopicArgument, *, force: Force = False) -> None:
    """Delete a topic and everything in it, also what was offloaded.

    Example: afterglow topics delete orders --force
    """
    path = topic_path(topic, *(("partitions",) if session.partitions_of(topic) else ()))
    with session.out.working(f"deleting {topic}"):
        session.client.call("DELETE", path, query={"force": "true"} if force else None)
    session.out.say(f"deleted {topic}")


@TOPICS.command("stats")
def stats(session: Session, topic: TopicArgument) -> None:
    """Show a topic's counters, producers and subscriptions.

    Example: afterglow topics stats orders --json
    """
    below = "partitioned-stats" if session.partitions_of(topic) else "stats"
    session.out.statistics(session.client.fields(topic_path(topic, below)))


@TOPICS.command("stats-internal")
def stats_internal(session: Session, topic: TopicArgument) -> None:
    """Show a topic's ledgers and cursors.

    Example: afterglow topics stats-internal orders
    """
    below = "partitioned-internalStats" if session.partitions_of(topic) else "internalStats"
    session.out.statistics(session.client.fields(topic_path(topic, below)))


@TOPICS.command("info-internal")
def info_internal(session: Session, topic: TopicArgument) -> None:
    """Show the list of ledgers as metadata has it, with the offload state of each.

    Example: afterglow topics info-internal orders --json
    """
    for name in session.each_of(topic):
        session.out.statistics(session.client.fields(topic_path(name, "internal-info")))


@TOPICS.command("last-message-id")
def last_message_id(session: Session, topic: TopicArgument) -> None:
    """Show where the newest message of a topic is.

    Example: afterglow topics last-message-id orders
    """
    for name in session.each_of(topic):
        last = session.client.fields(topic_path(name, "lastMessageId"), "ledgerId", "entryId")
        place = (last["ledgerId"], last["entryId"], last.get("batchIndex", -1))
        words = f"{place[0]}:{place[1]}" + (f":{place[2]}" if place[2] >= 0 else "")
        row = dict(zip(("ledger_id", "entry_id", "batch_index"), place, strict=True))
        session.out.say(f"{name} {words}" if name != topic else words, {"topic": str(name), **row})


@TOPICS.command("terminate")
def terminate(session: Session, topic: TopicArgument) -> None:
    """End a topic for good: it takes no more messages, and those that it has can be read.

    Example: afterglow topics terminate orders
    """
    for name in session.each_of(topic):
        last = session.client.fields(topic_path(name, "terminate"), "ledgerId", "entryId", method="POST")
        sentence = f"terminated {name} at {last['ledgerId']}:{last['entryId']}"
        session.out.say(sentence, {"topic": str(name), "ledger_id": last["ledgerId"], "entry_id": last["entryId"]})


@TOPICS.command("get-partitioned-topic-metadata")
def partitioned_metadata(session: Session, topic: TopicArgument) -> None:
    """Show how many partitions a topic has; 0: it is not partitioned.

    Example: afterglow topics get-partitioned-topic-metadata orders
    """
    count = session.partitions_of(topic)
    session.out.say(f"{count} partitions", {"partitions": count})


@TOPICS.command("create-subscription")
def create_subscription(
    session: Session, topic: TopicArgument, *, subscription: Subscription, at: Position = "latest"
) -> None:
    """Create a subscription, which keeps messages for its consumers from then on.

    Example: afterglow topics create-subscription orders -s billing --message-id earliest
    """
    place = _place(at or "latest")
    session.change("PUT", _path(topic, subscription), place, f"created the subscription {subscription} of {topic}")


@TOPICS.command("reset-cursor")
def reset_cursor(
    session: Session,
    topic: TopicArgument,
    *,
    subscription: Subscription,
    time_ms: Annotated[
        int | None,
        typer.Option(
            "--time",
            "-t",
            metavar="TIME",
            parser=read_moment,
            help="To the first message from then on: an age like 4h, or RFC 3339.",
        ),
    ] = None,
    at: Position = None,
    excluded: Annotated[
        bool, typer.Option("--exclude-reset-position", "-e", help="With --message-id: behind that message.")
    ] = False,
) -> None:
    """Move a subscription, back or forth; its consumers connect again and go on from there.

    Example: afterglow topics reset-cursor orders -s billing --time 4h
    """
    if (time_ms is None) == (at is None):
        raise typer.BadParameter(_NOWHERE + ("" if time_ms is None else ", not both"))
    if excluded and (at is None or at in _ENDS):
        raise typer.BadParameter("--exclude-reset-position goes behind one message: give --message-id LEDGER:ENTRY")
    with session.out.working(f"moving {subscription}"):
        if at is None:
            session.client.call("POST", _path(topic, subscription, "resetcursor", str(time_ms)))
        else:
            # A message is in one partition, and the broker wants that one's name; the ends are those of all.
            for name in session.each_of(topic) if at in _ENDS else [topic]:
                session.client.call("POST", _path(name, subscription, "resetcursor"), _place(at, excluded=excluded))
    session.out.say(f"moved the subscription {subscription} of {topic}")


def _path(topic: TopicName, subscription: str, *rest: str) -> str:
    return topic_path(topic, "subscription", encode_name(subscription), *rest)


def _place(at: str, *, excluded: bool = False) -> dict[str, Any]:
    """A position as the JSON that brokers of either kind read."""
    from afterglow.format.position import parse_position  # noqa: PLC0415 - not needed for --help

    position, batch_index = parse_position(at)
    place = {"ledgerId": position.ledger_id, "entryId": position.entry_id, "partitionIndex": -1, "excluded": excluded}
    return {**place, "batchIndex": batch_index} if batch_index >= 0 else place
