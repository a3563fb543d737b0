"""``afterglow topics``: subscriptions, and where they are. A partitioned topic's own name means all its partitions."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from afterglow.cli.command import Session
from afterglow.cli.parameters import TopicArgument, read_moment, read_position
from afterglow.cli.paths import topic_path
from afterglow.cli.received import Raw, check_raw, show
from afterglow.cli.topics import TOPICS, Force, each_of
from afterglow.metadata.encoding import encode_name
from afterglow.metadata.names import TopicName

Subscription = Annotated[str, typer.Option("--subscription", "-s", metavar="NAME", help="The subscription.")]
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
Count = Annotated[int, typer.Option("--count", "-n", min=1, help="How many.")]

_ENDS: Final = ("earliest", "latest")
_NOWHERE: Final = "say where to: --time TIME, or --message-id POS"


@TOPICS.command("subscriptions")
def subscriptions(session: Session, topic: TopicArgument) -> None:
    """List the subscriptions of a topic.

    Example: afterglow topics subscriptions orders
    """
    session.out.lines("subscription", session.client.names(topic_path(topic, "subscriptions")))


@TOPICS.command("create-subscription")
def create_subscription(
    session: Session, topic: TopicArgument, *, subscription: Subscription, at: Position = "latest"
) -> None:
    """Create a subscription, which keeps messages for its consumers from then on.

    Example: afterglow topics create-subscription orders -s billing --message-id earliest
    """
    place = _place(at or "latest")
    session.change("PUT", _path(topic, subscription), place, f"created the subscription {subscription} of {topic}")


@TOPICS.command("unsubscribe")
def unsubscribe(session: Session, topic: TopicArgument, *, subscription: Subscription, force: Force = False) -> None:
    """Delete a subscription; what no other one keeps is left to retention.

    Example: afterglow topics unsubscribe orders -s billing
    """
    query = {"force": "true"} if force else None
    session.client.call("DELETE", _path(topic, subscription), query=query)
    session.out.say(f"deleted the subscription {subscription} of {topic}")


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
            for name in each_of(session, topic) if at in _ENDS else [topic]:
                session.client.call("POST", _path(name, subscription, "resetcursor"), _place(at, excluded=excluded))
    session.out.say(f"moved the subscription {subscription} of {topic}")


@TOPICS.command("skip")
def skip(session: Session, topic: TopicArgument, *, subscription: Subscription, count: Count) -> None:
    """Acknowledge the next entries of a subscription; a batch is one entry.

    Example: afterglow topics skip orders -s billing -n 10
    """
    path = _path(topic, subscription, "skip", str(count))
    session.change("POST", path, None, f"skipped {count} entries for {subscription} of {topic}")


@TOPICS.command("clear-backlog")
def clear_backlog(session: Session, topic: TopicArgument, *, subscription: Subscription) -> None:
    """Acknowledge everything for a subscription.

    Example: afterglow topics clear-backlog orders -s billing
    """
    path = _path(topic, subscription, "skip_all")
    session.change("POST", path, None, f"cleared the backlog of {subscription} of {topic}")


@TOPICS.command("peek-messages")
def peek_messages(
    session: Session, topic: TopicArgument, *, subscription: Subscription, count: Count = 1, raw: Raw = False
) -> None:
    """Print the next messages of a subscription without acknowledging them.

    A line has a message's position, a tab, its key, and its value with control characters escaped.

    Example: afterglow topics peek-messages orders -s billing -n 3
    """
    from afterglow.cli.peeking import peek  # noqa: PLC0415 - protobufs are not needed for --help

    check_raw(session.out, raw=raw)
    for name in each_of(session, topic):
        for message in peek(session.client, name, _path(name, subscription, "position"), count):
            show(session.out, message, raw=raw)


def _path(topic: TopicName, subscription: str, *rest: str) -> str:
    return topic_path(topic, "subscription", encode_name(subscription), *rest)


def _place(at: str, *, excluded: bool = False) -> dict[str, Any]:
    """A position as the JSON that brokers of either kind read."""
    from afterglow.format.position import parse_position  # noqa: PLC0415 - not needed for --help

    position, batch_index = parse_position(at)
    place = {"ledgerId": position.ledger_id, "entryId": position.entry_id, "partitionIndex": -1, "excluded": excluded}
    return {**place, "batchIndex": batch_index} if batch_index >= 0 else place
