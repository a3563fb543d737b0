"""``afterglow topics``: partitioned topics, by the names of ``pulsar-admin``."""

from __future__ import annotations

from typing import Annotated

import typer

from afterglow.cli.command import Session
from afterglow.cli.parameters import DEFAULT, NamespaceArgument, TopicArgument
from afterglow.cli.paths import topic_path
from afterglow.cli.topics import TOPICS, Force, partitions_of, remove

Partitions = Annotated[int, typer.Option("--partitions", "-p", min=1, help="How many partitions.")]


@TOPICS.command("create-partitioned-topic")
def create_partitioned(session: Session, topic: TopicArgument, *, partitions: Partitions) -> None:
    """Create a topic with partitions; `create --partitions` does the same.

    Example: afterglow topics create-partitioned-topic orders --partitions 4
    """
    with session.out.working(f"creating {partitions} partitions"):
        path = topic_path(topic, "partitions")
        session.change("PUT", path, partitions, f"created {topic} with {partitions} partitions")


@TOPICS.command("update-partitioned-topic")
def update_partitioned(session: Session, topic: TopicArgument, *, partitions: Partitions) -> None:
    """Give a partitioned topic more partitions. Keys are spread anew: a key's later messages may go to another one.

    Example: afterglow topics update-partitioned-topic orders --partitions 8
    """
    with session.out.working("creating partitions"):
        session.change("POST", topic_path(topic, "partitions"), partitions, f"{topic} has {partitions} partitions")


@TOPICS.command("list-partitioned-topics")
def list_partitioned(session: Session, namespace: NamespaceArgument = DEFAULT) -> None:
    """List the partitioned topics of a namespace.

    Example: afterglow topics list-partitioned-topics public/default
    """
    session.out.lines("topic", session.client.names(f"persistent/{namespace}/partitioned"))


@TOPICS.command("get-partitioned-topic-metadata")
def partitioned_metadata(session: Session, topic: TopicArgument) -> None:
    """Show how many partitions a topic has; 0: it is not partitioned.

    Example: afterglow topics get-partitioned-topic-metadata orders
    """
    count = partitions_of(session, topic)
    session.out.say(f"{count} partitions", {"partitions": count})


@TOPICS.command("delete-partitioned-topic")
def delete_partitioned_topic(session: Session, topic: TopicArgument, *, force: Force = False) -> None:
    """Delete a partitioned topic with all its partitions; `delete` does the same.

    Example: afterglow topics delete-partitioned-topic orders --force
    """
    remove(session, topic, "partitions", force=force)
