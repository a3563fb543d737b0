"""``afterglow topics``: topics, what is in them, and letting go of them.

A partitioned topic's own name means all its partitions.
"""

from __future__ import annotations

from typing import Annotated

import typer

from afterglow.cli.command import Group, Session
from afterglow.cli.parameters import NamespaceArgument, TopicArgument
from afterglow.cli.paths import namespace_path, topic_path
from afterglow.cli.statistics import print_statistics
from afterglow.metadata.names import DEFAULT_NAMESPACE, DEFAULT_TENANT, TopicName

TOPICS = Group("topics", "Topics, by the names of pulsar-admin and some more.")


def partitions_of(session: Session, topic: TopicName) -> int:
    """How many partitions a topic has; 0 where it is not partitioned, or a partition itself."""
    if topic.partition_index is not None:
        return 0
    return int(session.client.fields(topic_path(topic, "partitions"), "partitions")["partitions"])


def each_of(session: Session, topic: TopicName) -> list[TopicName]:
    """The topic itself, or all its partitions."""
    count = partitions_of(session, topic)
    return [topic.partition(index) for index in range(count)] if count else [topic]


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
def list_topics(
    session: Session,
    namespace: NamespaceArgument = f"{DEFAULT_TENANT}/{DEFAULT_NAMESPACE}",  # type: ignore[assignment]  # parsed later
) -> None:
    """List the topics of a namespace, each partition by itself.

    Example: afterglow topics list public/default
    """
    session.out.lines("topic", session.client.names(namespace_path(namespace, "topics")))


@TOPICS.command("delete")
def delete(
    session: Session,
    topic: TopicArgument,
    *,
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Disconnect its producers and consumers instead of refusing.")
    ] = False,
) -> None:
    """Delete a topic and everything in it, also what was offloaded.

    Example: afterglow topics delete orders --force
    """
    below = ("partitions",) if partitions_of(session, topic) else ()
    with session.out.working(f"deleting {topic}"):
        session.client.call("DELETE", topic_path(topic, *below), query={"force": "true"} if force else None)
    session.out.say(f"deleted {topic}")


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
