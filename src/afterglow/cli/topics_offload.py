"""``afterglow topics``: offload of a topic, by hand and by policy, and where its data is."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from afterglow.cli import offload_settings, parameters
from afterglow.cli.command import Session
from afterglow.cli.offload_flags import OffloadFlags
from afterglow.cli.offload_settings import POLICIES, READ_PRIORITY, Applied
from afterglow.cli.parameters import PriorityArgument, TopicArgument
from afterglow.cli.paths import topic_path
from afterglow.cli.segment_bars import watching
from afterglow.cli.topics import TOPICS, each_of
from afterglow.errors import AfterglowError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from afterglow.metadata.names import TopicName

_POLL_S: Final = 1.0

_STATES: Final = {
    "NOT_RUN": "Offload has not been run for {topic} since broker startup",
    "RUNNING": "Offload is currently running for {topic}",
    "SUCCESS": "Offload was a success for {topic}",
    "ERROR": "Error in offload of {topic}",
}


@TOPICS.command("offload")
def offload(
    session: Session,
    topic: TopicArgument,
    *,
    size: Annotated[
        int,
        typer.Option(
            "--size-threshold",
            "-s",
            metavar="SIZE",
            parser=parameters.read_bytes,
            help="How much of the newest data stays out of the tier, such as 10M, in whole ledgers. The open ledger "
            "always does, unless the topic streams: then it goes up to its last entry where all before it goes.",
        ),
    ],
) -> None:
    """Offload closed ledgers now, or what segments do not hold yet. Each partition of a topic keeps that size.

    Example: afterglow topics offload orders -s 10M
    """
    refused: list[str] = []
    topics = each_of(session, topic)
    for name in topics:
        try:
            _offload(session, name, size, "Nothing to offload" + (f" from {name}" if len(topics) > 1 else ""))
        except AfterglowError as error:  # the other partitions are not to wait for this one
            refused.append(str(error))
    if refused:
        raise AfterglowError("; ".join(refused))


def _offload(session: Session, topic: TopicName, size: int, nothing: str) -> None:
    ledger = first_kept(session.client.fields(topic_path(topic, "internalStats"), "ledgers", "currentLedgerSize"), size)
    row = {"topic": str(topic), "triggered": ledger is not None, "before_ledger_id": ledger}
    if ledger is None:
        session.out.say(nothing, row)
        return
    position = {"ledgerId": ledger, "entryId": 0, "partitionIndex": -1}
    session.client.call("PUT", topic_path(topic, "offload"), position)
    session.out.say(f"Offload triggered for {topic} for messages before {ledger}:0:-1", row)


def first_kept(stats: dict[str, Any], size: int) -> int | None:
    """The ledger before which everything is to go, by the rule of ``pulsar-admin``; None where nothing is.

    The newest ledgers stay as long as they have no more than ``size`` bytes together; the newest of all, which may be
    open, stays in any case. Its size is not in the list.
    """
    sizes = {int(ledger["ledgerId"]): int(ledger["size"]) for ledger in stats["ledgers"]}
    if not sizes:
        return None
    kept = list(sizes)[-1]
    sizes[kept] = int(stats["currentLedgerSize"])
    total = 0
    for ledger_id in reversed(sizes):
        total += sizes[ledger_id]
        if total > size:
            return kept
        kept = ledger_id
    return None


@TOPICS.command("offload-status")
def offload_status(
    session: Session,
    topic: TopicArgument,
    *,
    wait: Annotated[bool, typer.Option("--wait-complete", "-w", help="Wait until none is running.")] = False,
) -> None:
    """Show how the last offload by hand went; one that failed: exit 1.

    Example: afterglow topics offload-status orders -w
    """
    topics = each_of(session, topic)
    found = _wait(session, topics) if wait else _statuses(session, topics)
    for name, status in found.items():
        sentence = _STATES.get(status["status"], "Offload of {topic}: " + status["status"])
        session.out.say(sentence.format(topic=name), {"topic": str(name), **status})
    failed = [f"{name}: {status['lastError']}" for name, status in found.items() if status["status"] == "ERROR"]
    if failed:
        raise AfterglowError("Error offloading " + "; ".join(failed))


def _statuses(session: Session, topics: Sequence[TopicName]) -> dict[TopicName, dict[str, Any]]:
    return {topic: session.client.fields(topic_path(topic, "offload"), "status", "lastError") for topic in topics}


def _wait(session: Session, topics: Sequence[TopicName]) -> dict[TopicName, dict[str, Any]]:
    begin = time.monotonic()
    with watching(session) as show:
        while True:
            found = _statuses(session, topics)
            running = [topic for topic, status in found.items() if status["status"] == "RUNNING"]
            if not running:
                return found
            others = f" and {len(running) - 1} more" if len(running) > 1 else ""
            show(f"offload is running for {running[0]}{others}, {time.monotonic() - begin:.0f} s", running)
            time.sleep(_POLL_S)


@TOPICS.command("set-offload-policies")
def set_offload_policies(session: Session, topic: TopicArgument, flags: OffloadFlags) -> None:
    """Change a topic's offload policies; only what is given changes.

    Example: afterglow topics set-offload-policies orders --streaming --max-segment-size 64M --max-segment-time 10m
    """
    offload_settings.change_policies(session, topic_path(topic, POLICIES), flags, f"{topic}")


@TOPICS.command("get-offload-policies")
def get_offload_policies(session: Session, topic: TopicArgument, *, applied: Applied = False) -> None:
    """Show the offload policies that are set for a topic.

    Example: afterglow topics get-offload-policies orders --applied
    """
    offload_settings.show_policies(session, topic_path(topic, POLICIES), applied=applied)


@TOPICS.command("remove-offload-policies")
def remove_offload_policies(session: Session, topic: TopicArgument) -> None:
    """Let the namespace's offload policies hold again.

    Example: afterglow topics remove-offload-policies orders
    """
    session.change("DELETE", topic_path(topic, POLICIES), None, f"removed the offload policies of {topic}")


@TOPICS.command("set-data-read-priority")
def set_data_read_priority(session: Session, topic: TopicArgument, priority: PriorityArgument) -> None:
    """Say which copy serves a read while both exist; open readers obey at once.

    Example: afterglow topics set-data-read-priority orders bookkeeper-first
    """
    offload_settings.set_read_priority(session, topic_path(topic, READ_PRIORITY), priority, f"{topic}")


@TOPICS.command("get-data-read-priority")
def get_data_read_priority(session: Session, topic: TopicArgument) -> None:
    """Show which copy serves a read while both exist.

    Example: afterglow topics get-data-read-priority orders
    """
    offload_settings.show_read_priority(session, topic_path(topic, READ_PRIORITY))


@TOPICS.command("remove-data-read-priority")
def remove_data_read_priority(session: Session, topic: TopicArgument) -> None:
    """Let the namespace's read priority hold again.

    Example: afterglow topics remove-data-read-priority orders
    """
    session.change("DELETE", topic_path(topic, READ_PRIORITY), None, f"removed the data read priority of {topic}")


@TOPICS.command("policy")
def policy(session: Session, topic: TopicArgument) -> None:
    """Show every setting that holds for a topic, with the level that set it.

    Example: afterglow topics policy orders --json
    """
    session.out.rows(session.client.rows(topic_path(topic, "policy")), "no settings")


@TOPICS.command("explain")
def explain(session: Session, topic: TopicArgument) -> None:
    """Say of each ledger why it is where it is: not yet offloaded, or not yet gone from the hot log.

    Example: afterglow topics explain orders
    """
    found = session.client.rows(topic_path(topic, "explain"))
    several = len({row.get("topic") for row in found}) > 1
    columns = (*(("topic",) if several else ()), "ledger_id", "state", "sentence", "error")
    session.out.rows(found, f"{topic} has no ledgers", columns)
