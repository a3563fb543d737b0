"""Offload commands: manual offload and its status, offload policies and thresholds, ``topics explain``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from afterglow.cli import parameters
from afterglow.cli.admin_commands import NAMESPACES, TOPICS
from afterglow.cli.command import AdminSession, namespace_path, topic_path
from afterglow.cli.offload_flags import OPTIONS, OffloadFlags, driver_of
from afterglow.cli.parameters import NamespaceArgument, TopicArgument
from afterglow.cli.progress import segment_bars
from afterglow.errors import AfterglowError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from afterglow.metadata.names import TopicName

_POLICIES: Final = "offloadPolicies"
_POLL_S: Final = 1.0

_STATUS_MESSAGES: Final = {
    "NOT_RUN": "Offload has not been run for {topic} since broker startup",
    "RUNNING": "Offload is currently running for {topic}",
    "SUCCESS": "Offload was a success for {topic}",
    "ERROR": "Error in offload of {topic}",
}


@TOPICS.command("offload")
def offload(
    session: AdminSession,
    topic: TopicArgument,
    *,
    size: Annotated[
        int,
        typer.Option(
            "--size-threshold",
            "-s",
            metavar="SIZE",
            parser=parameters.read_bytes,
            help="Size of the newest data that is not offloaded, such as 10M, in whole ledgers. The open ledger is not "
            "offloaded, unless the topic streams and everything before it is: then it is offloaded up to its last "
            "entry.",
        ),
    ],
    wait: Annotated[
        bool, typer.Option("--wait-complete", "-w", help="Wait until the offload is complete; exit 1 if it failed.")
    ] = False,
) -> None:
    """Offload closed ledgers now; of a topic that streams, all entries in no segment yet. -s counts per partition.

    Example: afterglow topics offload orders -s 10M -w
    """
    refused: list[str] = []
    triggered: list[TopicName] = []
    topics = session.each_of(topic)
    for name in topics:
        try:
            if _offload(session, name, size, "Nothing to offload" + (f" from {name}" if len(topics) > 1 else "")):
                triggered.append(name)
        except AfterglowError as error:  # the other partitions are offloaded nevertheless
            refused.append(str(error))
    if wait and triggered:
        try:
            _say_statuses(session, _wait(session, triggered))
        except AfterglowError as error:
            refused.append(str(error))
    if refused:
        raise AfterglowError("; ".join(refused))


def _offload(session: AdminSession, topic: TopicName, size: int, nothing: str) -> bool:
    """Trigger an offload; returns whether anything is to be offloaded."""
    stats = session.client.fields(topic_path(topic, "internalStats"), "ledgers", "currentLedgerSize")
    ledger = first_kept(stats, size)
    row = {"topic": str(topic), "triggered": ledger is not None, "before_ledger_id": ledger}
    if ledger is None:
        session.out.say(nothing, row)
        return False
    # The first entry of the newest ledger means the whole topic if it streams.
    is_all = ledger == int(stats["ledgers"][-1]["ledgerId"]) and _streams(session, topic)
    position = {"ledgerId": ledger, "entryId": 0, "partitionIndex": -1}
    session.client.call("PUT", topic_path(topic, "offload"), position)
    what = "all messages written so far" if is_all else f"messages before {ledger}:0:-1"
    session.out.say(f"Offload triggered for {topic} for {what}", row)
    return True


def _streams(session: AdminSession, topic: TopicName) -> bool:
    """Whether a topic streams to the tier; False for a Pulsar, and without the permission to read policies."""
    try:
        policies = session.client.get(topic_path(topic, _POLICIES), applied="true") or {}
    except AfterglowError:
        return False
    return isinstance(policies, dict) and policies.get("streamingOffloadEnabled") is True


def first_kept(stats: dict[str, Any], size: int) -> int | None:
    """Return the ledger before which everything is to be offloaded, by the rule of ``pulsar-admin``; None: nothing.

    The newest ledgers are kept as long as their total size is at most ``size`` bytes; the last one, which may be open,
    is always kept. The list does not have its size.
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
    session: AdminSession,
    topic: TopicArgument,
    *,
    wait: Annotated[bool, typer.Option("--wait-complete", "-w", help="Wait until no offload is running.")] = False,
) -> None:
    """Show the status of the last manual offload; exit 1 if it failed.

    Example: afterglow topics offload-status orders -w
    """
    topics = session.each_of(topic)
    _say_statuses(session, _wait(session, topics) if wait else _statuses(session, topics))


def _say_statuses(session: AdminSession, found: dict[TopicName, dict[str, Any]]) -> None:
    """Print the statuses of offloads.

    Raises:
        AfterglowError: An offload failed.
    """
    for name, status in found.items():
        message = _STATUS_MESSAGES.get(status["status"], "Offload of {topic}: " + status["status"])
        session.out.say(message.format(topic=name), {"topic": str(name), **status})
    failed = [f"{name}: {status['lastError']}" for name, status in found.items() if status["status"] == "ERROR"]
    if failed:
        raise AfterglowError("Error offloading " + "; ".join(failed))


def _statuses(session: AdminSession, topics: Sequence[TopicName]) -> dict[TopicName, dict[str, Any]]:
    return {topic: session.client.fields(topic_path(topic, "offload"), "status", "lastError") for topic in topics}


def _wait(session: AdminSession, topics: Sequence[TopicName]) -> dict[TopicName, dict[str, Any]]:
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
def explain(session: AdminSession, topic: TopicArgument) -> None:
    """Explain for each ledger why it is not offloaded yet, or why its hot copy still exists.

    Example: afterglow topics explain orders
    """
    found = session.client.rows(topic_path(topic, "explain"))
    several = len({row.get("topic") for row in found}) > 1
    failed = any(row.get("error") for row in found)
    columns = (
        *(("topic",) if several else ()),
        *("ledger_id", "state", "sentence"),
        *(("error",) if failed else ()),
    )
    session.out.rows(found, f"{topic} has no ledgers", columns)


@TOPICS.command("set-offload-policies", OPTIONS)
def set_offload_policies(session: AdminSession, topic: TopicArgument, **flags: Any) -> None:
    """Change offload policies of a topic; options that are not given stay unchanged.

    Example: afterglow topics set-offload-policies orders --streaming --max-segment-size 64M --max-segment-time 10m
    """
    _change_policies(session, topic_path(topic, _POLICIES), flags, f"{topic}")


@NAMESPACES.command("set-offload-policies", OPTIONS)
def set_namespace_offload_policies(session: AdminSession, namespace: NamespaceArgument, **flags: Any) -> None:
    """Change offload policies of a namespace; options that are not given stay unchanged.

    Example: afterglow namespaces set-offload-policies public/default -oat 1G -oae 4h
    """
    _change_policies(session, namespace_path(namespace, _POLICIES), flags, f"{namespace}")


@NAMESPACES.command("set-offload-threshold")
def set_offload_threshold(
    session: AdminSession,
    namespace: NamespaceArgument,
    *,
    size: Annotated[
        int | None,
        typer.Option(
            "--size",
            "-s",
            metavar="SIZE",
            parser=parameters.read_bytes_or_none,
            help="Size of a topic's newest data that is not offloaded, such as 10G. 0: none, -1: no size threshold.",
        ),
    ] = None,
    time: Annotated[
        int | None,
        typer.Option(
            "--time",
            "-t",
            metavar="TIME",
            parser=parameters.read_seconds_or_none,
            help="Time from the closing of a ledger to its offload, such as 1h. 0: immediately, -1: no time threshold.",
        ),
    ] = None,
) -> None:
    """Set the thresholds of automatic offload: a size, a time, or both.

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
def get_offload_threshold(session: AdminSession, namespace: NamespaceArgument) -> None:
    """Show the thresholds of automatic offload; -1: none.

    Example: afterglow namespaces get-offload-threshold public/default
    """
    found = {
        "offloadThresholdInBytes": session.client.get(namespace_path(namespace, "offloadThreshold")),
        "offloadThresholdInSeconds": session.client.get(namespace_path(namespace, "offloadThresholdInSeconds")),
    }
    session.out.say("\n".join(f"{name}: {value}" for name, value in found.items()), found)


def _change_policies(session: AdminSession, path: str, given: dict[str, Any], whose: str) -> None:
    """Apply flags to the stored policies at a path."""
    flags = OffloadFlags(given)
    stored = session.client.get(path) or {}
    inherited = driver_of(session.client.get(path, applied="true") or {}) if flags.by_driver else None
    session.change("POST", path, flags.applied_to(stored, inherited), f"set the offload policies of {whose}")
