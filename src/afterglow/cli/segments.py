"""``topics segments``, and ``delete-offloaded``, which rolls topics back from segments."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from afterglow.cli.admin_commands import NAMESPACES, TOPICS
from afterglow.cli.command import AdminSession, namespace_path, topic_path
from afterglow.cli.parameters import NamespaceArgument, OptionalTopicArgument, TopicArgument
from afterglow.errors import AfterglowError

Streaming = Annotated[
    bool, typer.Option("--streaming", help="Delete segments; offloaded ledgers are deleted with their topic.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Delete. Default: a dry run.")]
LoseData = Annotated[
    bool, typer.Option("--lose-data", help="Also delete ledgers whose hot copy is gone, with their entries.")
]

_NOTHING_CHANGED: Final = "nothing was changed; give --yes to delete"
_DELETE: Final = "deleteOffloaded"
_COLUMNS: Final = ("id", "status", "begin", "end", "entries", "bytes", "offloaded")
"""Columns of the table, for a terminal of 80 columns; ``--json`` also has the location of each object."""
_SHORT: Final = 8
"""Characters of an id in the table, enough to distinguish it from others."""
_OUTCOME_COLUMNS: Final = ("topic", "state", "segments", "bytes", "lost_entries")
"""Columns of the table, for a terminal of 80 columns; errors are printed below the table."""


@TOPICS.command("segments")
def segments(session: AdminSession, topic: TopicArgument) -> None:
    """List the segments of a topic, complete and in progress.

    Example: afterglow topics segments orders --json
    """
    found = session.client.rows(topic_path(topic, "segments"))
    if not session.out.as_json:
        found = [_shown(row) for row in found]
    session.out.rows(found, f"{topic} has no segments", _columns(found))
    if not session.out.as_json:
        for row in found:
            if row.get("error"):
                session.out.say(f"{row['id']}: {row['error']}")


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the table: entries in a segment, and if they are not uploaded yet, how many are."""
    planned = row.get("planned_entries")
    entries = f"{row['entries']} of {planned}" if planned is not None and planned > row["entries"] else row["entries"]
    return {**row, "id": row["id"][:_SHORT], "entries": entries, "offloaded": _time(row.get("offloaded_ms"))}


@TOPICS.command("delete-offloaded")
def delete_offloaded(
    session: AdminSession,
    topic: OptionalTopicArgument = None,
    *,
    streaming: Streaming = False,
    everything: Annotated[bool, typer.Option("--all", help="All topics of all namespaces.")] = False,
    yes: Yes = False,
    lose_data: LoseData = False,
) -> None:
    """Delete the segments of a topic, to roll back to a Pulsar that does not support them.

    Streaming must be disabled for the topic, and its last segment offloaded. Entries stay in the hot log, and can be
    offloaded in whole ledgers afterwards. Without --yes nothing is changed.

    With --all, nothing is deleted if one topic is refused. After a failure repeat the command: it continues with the
    topics that still have segments.

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
            _print_plan(session, plan, done=yes)
    if not yes and any(plan["segments"] for plan in plans):
        session.out.say(_NOTHING_CHANGED)


@NAMESPACES.command("delete-offloaded")
def delete_offloaded_of_namespace(
    session: AdminSession,
    namespace: NamespaceArgument,
    *,
    streaming: Streaming = False,
    yes: Yes = False,
    lose_data: LoseData = False,
) -> None:
    """Delete the segments of all topics of a namespace, to roll back to a Pulsar that does not support them.

    Streaming must be disabled for every topic. Nothing is deleted if one topic is refused. After a failure repeat the
    command: it continues with the topics that still have segments. Without --yes nothing is changed.

    Example: afterglow namespaces delete-offloaded public/default --streaming
    """
    query = _query(streaming=streaming, yes=yes, lose_data=lose_data)
    _delete_of_many(session, namespace_path(namespace, _DELETE), f"{namespace}", query)


def _query(*, streaming: bool, yes: bool, lose_data: bool) -> dict[str, str]:
    if not streaming:
        raise typer.BadParameter(
            "only segments can be deleted; give --streaming (offloaded ledgers are deleted with their topic)"
        )
    flags = {"streaming": True, "dryRun": not yes, "loseData": lose_data}
    return {name: "true" if flag else "false" for name, flag in flags.items()}


def _delete_of_many(session: AdminSession, path: str, where: str, query: dict[str, str]) -> None:
    """Delete the segments of many topics, and print the outcome of each."""
    outcomes: dict[str, dict[str, Any]] = {}
    with session.out.working(f"deleting segments of {where}") as show:
        while True:
            rows = session.client.call("POST", path, query=query)
            # Topics whose segments an earlier call has deleted are empty in a later one.
            outcomes |= {row["topic"]: row for row in rows if row["topic"] not in outcomes or row["state"] != "empty"}
            pending = sum(row["state"] == "pending" for row in rows)
            if not pending or not any(row["state"] == "deleted" for row in rows):
                break
            show(f"deleting segments of {where}, {pending} topics left")
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
            f"{states['refused']} of {len(outcomes)} topics are refused, so --yes would delete nothing"
        )
    if left := states["failed"] + states["pending"]:
        raise AfterglowError(
            f"{left} of {len(outcomes)} topics still have segments; repeat the command to continue with them"
        )
    if states["planned"]:
        session.out.say(_NOTHING_CHANGED)


def _print_plan(session: AdminSession, plan: dict[str, Any], *, done: bool) -> None:
    found, name = plan["segments"], plan["topic"]
    if not found:
        session.out.say(f"{name} has no segments")
        return
    if not done:
        session.out.rows(found, "", ("id", "begin", "end", "entries", "bytes"))
    size = sum(row["bytes"] for row in found)
    session.out.say(f"{name}: {len(found)} segments of {size} bytes {'are deleted' if done else 'would be deleted'}")
    if plan["ledgers"]:
        session.out.say(
            f"ledgers that {'remain' if done else 'would remain'} only in the hot log: {_joined(plan['ledgers'])}"
        )
    if plan["lost"]:
        entries = sum(ledger["entries"] for ledger in plan["lost"])
        ids = _joined([ledger["ledger_id"] for ledger in plan["lost"]])
        session.out.say(
            f"LOST: {entries} entries of ledgers {ids}, whose hot copies were gone"
            if done
            else f"WOULD BE LOST: {entries} entries of ledgers {ids}, whose hot copies are gone; refused without "
            "--lose-data"
        )


def _columns(rows: list[dict[str, Any]]) -> tuple[str, ...]:
    several = len({row.get("topic") for row in rows}) > 1
    return (*(("topic",) if several else ()), *_COLUMNS)


def _time(ms: int | None) -> str | None:
    """Format the time of day if it is today, the date otherwise."""
    if not ms:
        return None
    then = datetime.fromtimestamp(ms / 1000, UTC)
    return then.strftime("%H:%M:%SZ" if then.date() == datetime.now(UTC).date() else "%Y-%m-%d")


def _joined(ids: list[int]) -> str:
    return ", ".join(map(str, ids))
