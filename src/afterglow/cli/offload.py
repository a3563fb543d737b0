"""Offload on the command line: by hand, by the policies of a topic or a namespace, and why data is where it is."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from afterglow.cli import parameters
from afterglow.cli.admin_commands import NAMESPACES, TOPICS
from afterglow.cli.command import Session, namespace_path, topic_path
from afterglow.cli.offload_flags import OPTIONS, OffloadFlags, driver_of
from afterglow.cli.parameters import NamespaceArgument, TopicArgument
from afterglow.cli.progress import segment_bars
from afterglow.errors import AfterglowError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from afterglow.metadata.names import TopicName

_POLICIES: Final = "offloadPolicies"
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
    topics = session.each_of(topic)
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
    topics = session.each_of(topic)
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
    with segment_bars(session) as show:
        while True:
            found = _statuses(session, topics)
            running = [topic for topic, status in found.items() if status["status"] == "RUNNING"]
            if not running:
                return found
            others = f" and {len(running) - 1} more" if len(running) > 1 else ""
            show(f"offload is running for {running[0]}{others}, {time.monotonic() - begin:.0f} s", running)
            time.sleep(_POLL_S)


@TOPICS.command("explain")
def explain(session: Session, topic: TopicArgument) -> None:
    """Say of each ledger why it is where it is: not yet offloaded, or not yet gone from the hot log.

    Example: afterglow topics explain orders
    """
    found = session.client.rows(topic_path(topic, "explain"))
    several = len({row.get("topic") for row in found}) > 1
    columns = (*(("topic",) if several else ()), "ledger_id", "state", "sentence", "error")
    session.out.rows(found, f"{topic} has no ledgers", columns)


@TOPICS.command("set-offload-policies", OPTIONS)
def set_offload_policies(session: Session, topic: TopicArgument, **flags: Any) -> None:
    """Change a topic's offload policies; only what is given changes.

    Example: afterglow topics set-offload-policies orders --streaming --max-segment-size 64M --max-segment-time 10m
    """
    _change_policies(session, topic_path(topic, _POLICIES), flags, f"{topic}")


@NAMESPACES.command("set-offload-policies", OPTIONS)
def set_namespace_offload_policies(session: Session, namespace: NamespaceArgument, **flags: Any) -> None:
    """Change offload policies; only what is given changes.

    Example: afterglow namespaces set-offload-policies public/default -oat 1G -oae 4h
    """
    _change_policies(session, namespace_path(namespace, _POLICIES), flags, f"{namespace}")


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
    given = {"offloadThreshold": size, "offloadThresholdInSeconds": time}
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
        "offloadThresholdInBytes": session.client.get(namespace_path(namespace, "offloadThreshold")),
        "offloadThresholdInSeconds": session.client.get(namespace_path(namespace, "offloadThresholdInSeconds")),
    }
    session.out.say("\n".join(f"{name}: {value}" for name, value in found.items()), found)


def _change_policies(session: Session, path: str, given: dict[str, Any], whose: str) -> None:
    """Change the stored policies at a path in what flags give, and in nothing else."""
    flags = OffloadFlags(given)
    stored = session.client.get(path) or {}
    inherited = driver_of(session.client.get(path, applied="true") or {}) if flags.by_driver else None
    session.change("POST", path, flags.applied_to(stored, inherited), f"set the offload policies of {whose}")
