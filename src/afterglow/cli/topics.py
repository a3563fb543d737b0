"""``afterglow topics``: topics, what is in them, and letting go of them.

A partitioned topic's own name means all its partitions.
"""

from __future__ import annotations

from typing import Annotated

import typer

from afterglow.cli.command import Group, Session
from afterglow.cli.parameters import DEFAULT, NamespaceArgument, TopicArgument
from afterglow.cli.paths import namespace_path, topic_path
from afterglow.cli.statistics import print_statistics
from afterglow.metadata.names import TopicName

TOPICS = Group("topics", "Topics, by the names of pulsar-admin and some more.", read_priority=True)

Force = Annotated[
    bool, typer.Option("--force", "-f", help="Disconnect its producers and consumers instead of refusing.")
]


def partitions_of(session: Session, topic: TopicName) -> int:
    """How many partitions a topic has; 0 where it is not partitioned, or a partition itself."""
    if topic.partition_index is not None:
        return 0
    return int(session.client.fields(topic_path(topic, "partitions"), "partitions")["partitions"])


def each_of(session: Session, topic: TopicName) -> list[TopicName]:
    """The topic itself, or all its partitions."""
    count = partitions_of(session, topic)
    return [topic.partition(index) for index in range(count)] if count else [topic]


def remove(session: Session, topic: TopicName, *below: str, force: bool) -> None:
    """Delete a topic, or what is below it, with everything in it."""
    with session.out.working(f"deleting {topic}"):
        session.client.call("DELETE", topic_path(topic, *below), query={"force": "true"} if force else None)
    session.out.say(f"deleted {topic}")


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


@TOPICS.command("list")
def list_topics(session: Session, namespace: NamespaceArgument = DEFAULT) -> None:
    """List the topics of a namespace, each partition by itself.

    Example: afterglow topics list public/default
    """
    session.out.lines("topic", session.client.names(namespace_path(namespace, "topics")))


@TOPICS.command("delete")
def delete(session: Session, topic: TopicArgument, *, force: Force = False) -> None:
    """Delete a topic and everything in it, also what was offloaded.

    Example: afterglow topics delete orders --force
    """
    remove(session, topic, *(("partitions",) if partitions_of(session, topic) else ()), force=force)


@TOPICS.command("stats")
def stats(session: Session, topic: TopicArgument) -> None:
    """Show a topic's counters, producers and subscriptions.

    Example: afterglow topics stats orders --json
    """
    below = "partitioned-stats" if partitions_of(session, topic) else "stats"
    print_statistics(session.out, session.client.fields(topic_path(topic, below)))


@TOPICS.command("stats-internal")
def stats_internal(session: Session, topic: TopicArgument) -> None:
    """Show a topic's ledgers and cursors.

    Example: afterglow topics stats-internal orders
    """
    below = "partitioned-internalStats" if partitions_of(session, topic) else "internalStats"
    print_statistics(session.out, session.client.fields(topic_path(topic, below)))


@TOPICS.command("info-internal")
def info_internal(session: Session, topic: TopicArgument) -> None:
    """Show the list of ledgers as metadata has it, with the offload state of each.

    Example: afterglow topics info-internal orders --json
    """
    for name in each_of(session, topic):
        print_statistics(session.out, session.client.fields(topic_path(name, "internal-info")))


@TOPICS.command("last-message-id")
def last_message_id(session: Session, topic: TopicArgument) -> None:
    """Show where the newest message of a topic is.

    Example: afterglow topics last-message-id orders
    """
    for name in each_of(session, topic):
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
    for name in each_of(session, topic):
        last = session.client.fields(topic_path(name, "terminate"), "ledgerId", "entryId", method="POST")
        sentence = f"terminated {name} at {last['ledgerId']}:{last['entryId']}"
        session.out.say(sentence, {"topic": str(name), "ledger_id": last["ledgerId"], "entry_id": last["entryId"]})


@TOPICS.command("unload")
def unload(session: Session, topic: TopicArgument) -> None:
    """Close a topic; clients come back and open it again.

    Example: afterglow topics unload orders
    """
    with session.out.working(f"closing {topic}"):
        session.change("PUT", topic_path(topic, "unload"), None, f"unloaded {topic}")


@TOPICS.command("truncate")
def truncate(session: Session, topic: TopicArgument) -> None:
    """Acknowledge all messages for all subscriptions and let go of them.

    Example: afterglow topics truncate orders
    """
    with session.out.working(f"truncating {topic}"):
        session.change("DELETE", topic_path(topic, "truncate"), None, f"truncated {topic}")


@TOPICS.command("trim-topic")
def trim_topic(session: Session, topic: TopicArgument) -> None:
    """Let go of closed ledgers past their retention now, instead of at the next round.

    Example: afterglow topics trim-topic orders
    """
    with session.out.working(f"trimming {topic}"):
        session.change("POST", topic_path(topic, "trim"), None, f"trimmed {topic}")
