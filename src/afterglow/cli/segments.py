"""``topics segments``, and ``delete-offloaded``: taking topics out of their segments again."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from afterglow.cli.admin_commands import NAMESPACES, TOPICS
from afterglow.cli.command import Session, namespace_path, topic_path
from afterglow.cli.parameters import NamespaceArgument, OptionalTopicArgument, TopicArgument
from afterglow.errors import AfterglowError

Streaming = Annotated[
    bool, typer.Option("--streaming", help="The segments of streaming offload; whole ledgers go with their topic.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without, only say what would go.")]
LoseData = Annotated[
    bool, typer.Option("--lose-data", help="Also drop ledgers that are in segments alone, with their entries.")
]

_NOTHING_CHANGED: Final = "nothing was changed; give --yes to do it"
_DELETE: Final = "deleteOffloaded"
_COLUMNS: Final = ("id", "status", "begin", "end", "entries", "bytes", "offloaded")
"""What people see; where each object lies is for ``--json``, and a line of a terminal has 80 columns."""
_SHORT: Final = 8
"""Characters of an id that tell it from others."""
_OUTCOME_COLUMNS: Final = ("topic", "state", "segments", "bytes", "lost_entries")
"""Columns for people. Reasons are sentences, and stand below the table: a line of a terminal has 80 columns."""


@TOPICS.command("segments")
def segments(session: Session, topic: TopicArgument) -> None:
    """List the segments of a topic that streaming offload has made or is making.

    Example: afterglow topics segments orders --json
    """
    found = session.client.rows(topic_path(topic, "segments"))
    if not session.out.as_json:
        found = [{**row, "id": row["id"][:_SHORT], "offloaded": _time(row.get("offloaded_ms"))} for row in found]
    session.out.rows(found, f"{topic} has no segments", _columns(found))


@TOPICS.command("delete-offloaded")
def delete_offloaded(
    session: Session,
    topic: OptionalTopicArgument = None,
    *,
    streaming: Streaming = False,
    everything: Annotated[bool, typer.Option("--all", help="All topics of all namespaces, instead of one.")] = False,
    yes: Yes = False,
    lose_data: LoseData = False,
) -> None:
    """Take a topic out of its segments and delete them, for going back to a Pulsar that knows none.

    Streaming must be switched off for the topic, and its last segment offloaded. Entries stay in the hot log, and may
    be offloaded by whole ledgers afterwards. Without --yes nothing is changed.

    With --all, one topic that must be refused keeps all as they are. What fails later can be tried again: topics that
    are done have no segments any more.

    Example: afterglow topics delete-offloaded orders --streaming
    """
    query = _query(streaming=streaming, yes=yes, lose_data=lose_data)
    if (topic is None) != everything:
        raise typer.BadParameter("give either a TOPIC or --all")
    if topic is None:
        _delete_of_many(session, f"afterglow/{_DELETE}", "all namespaces", query)
        return
    plans = session.client.call("POST", topic_path(topic, _DELETE), query=query)
    for plan in plans:
        if session.out.as_json:
            session.out.json(plan)
        else:
            _tell(session, plan, done=yes)
    if not yes and any(plan["segments"] for plan in plans):
        session.out.say(_NOTHING_CHANGED)


@NAMESPACES.command("delete-offloaded")
def delete_offloaded_of_namespace(
    session: Session,
    namespace: NamespaceArgument,
    *,
    streaming: Streaming = False,
    yes: Yes = False,
    lose_data: LoseData = False,
) -> None:
    """Take all topics of a namespace out of their segments and delete these, for going back to a Pulsar without them.

    Streaming must be switched off for every topic. One topic that must be refused keeps all as they are. What fails
    later can be tried again: topics that are done have no segments any more. Without --yes nothing is changed.

    Example: afterglow namespaces delete-offloaded public/default --streaming
    """
    query = _query(streaming=streaming, yes=yes, lose_data=lose_data)
    _delete_of_many(session, namespace_path(namespace, _DELETE), f"{namespace}", query)


def _query(*, streaming: bool, yes: bool, lose_data: bool) -> dict[str, str]:
    """The parameters of a call.

    Raises:
        BadParameter: It is not said that segments are meant.
    """
    if not streaming:
        raise typer.BadParameter("only segments are deleted by hand: give --streaming; whole ledgers go with the topic")
    flags = {"streaming": True, "dryRun": not yes, "loseData": lose_data}
    return {name: "true" if flag else "false" for name, flag in flags.items()}


def _delete_of_many(session: Session, path: str, where: str, query: dict[str, str]) -> None:
    """Delete the segments of many topics, and print the outcome for each.

    Args:
        session: The command's.
        path: Of the call.
        where: Whose topics they are.
        query: Its parameters.

    Raises:
        AdminFailed: The server refused all.
        AfterglowError: Some would be refused, or failed.
    """
    outcomes: dict[str, dict[str, Any]] = {}
    with session.out.working(f"deleting segments of {where}") as show:
        while True:
            rows = session.client.call("POST", path, query=query)
            # A topic that an earlier call has done is empty in a later one.
            outcomes |= {row["topic"]: row for row in rows if row["topic"] not in outcomes or row["state"] != "empty"}
            pending = sum(row["state"] == "pending" for row in rows)
            if not pending or not any(row["state"] == "deleted" for row in rows):
                break
            show(f"deleting segments of {where}, {pending} topics to go")
    states = Counter(row["state"] for row in outcomes.values())
    concerned = [row for row in outcomes.values() if row["state"] != "empty"]
    shown = outcomes.values() if session.out.as_json else concerned
    session.out.rows(shown, f"no topic of {where} has segments", _OUTCOME_COLUMNS)
    for row in concerned:
        if row["error"]:
            named = row["topic"] in row["error"]
            session.out.say(row["error"] if named else f"{row['topic']}: {row['error']}")
    if concerned and states["empty"]:
        session.out.say(f"{states['empty']} more topics have no segments")
    if states["refused"]:
        raise AfterglowError(
            f"{states['refused']} of {len(outcomes)} topics are refused, and with them all: --yes would delete nothing"
        )
    if left := states["failed"] + states["pending"]:
        raise AfterglowError(
            f"{left} of {len(outcomes)} topics still have their segments; the same command again goes on with them"
        )
    if states["planned"]:
        session.out.say(_NOTHING_CHANGED)


def _tell(session: Session, plan: dict[str, Any], *, done: bool) -> None:
    """Say in words what goes, or has gone, of one topic."""
    found, name = plan["segments"], plan["topic"]
    if not found:
        session.out.say(f"{name} has no segments")
        return
    if not done:
        session.out.rows(found, "", ("id", "begin", "end", "entries", "bytes"))
    size = sum(row["bytes"] for row in found)
    session.out.say(f"{name}: {len(found)} segments of {size} bytes {'are deleted' if done else 'would be deleted'}")
    if plan["ledgers"]:
        session.out.say(f"the hot log alone {'keeps' if done else 'would keep'} ledgers {_joined(plan['ledgers'])}")
    if plan["lost"]:
        entries = sum(ledger["entries"] for ledger in plan["lost"])
        ids = _joined([ledger["ledger_id"] for ledger in plan["lost"]])
        session.out.say(
            f"LOST with them: {entries} entries of ledgers {ids}, whose hot copies are gone"
            if done
            else f"LOST with them, if --lose-data is given, would be {entries} entries of ledgers {ids}, whose hot "
            "copies are gone; it is refused otherwise"
        )


def _columns(rows: list[dict[str, Any]]) -> tuple[str, ...]:
    several = len({row.get("topic") for row in rows}) > 1
    failed = any(row.get("error") for row in rows)
    return (*(("topic",) if several else ()), *_COLUMNS, *(("error",) if failed else ()))


def _time(ms: int | None) -> str | None:
    """The time of day for what happened today, the day for all else."""
    if not ms:
        return None
    then = datetime.fromtimestamp(ms / 1000, UTC)
    return then.strftime("%H:%M:%SZ" if then.date() == datetime.now(UTC).date() else "%Y-%m-%d")


def _joined(ids: list[int]) -> str:
    return ", ".join(map(str, ids))
