"""``afterglow topics``: the segments of streaming offload, and taking a topic out of them again."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from afterglow.cli.command import Session
from afterglow.cli.parameters import OptionalTopicArgument, TopicArgument
from afterglow.cli.paths import topic_path
from afterglow.cli.rollback import NOTHING_CHANGED, PATH, LoseData, Streaming, Yes, delete_of_many, query_of
from afterglow.cli.topics import TOPICS

_COLUMNS: Final = ("id", "status", "begin", "end", "entries", "bytes", "offloaded")
"""What people see; where each object lies is for ``--json``, and a line of a terminal has 80 columns."""
_SHORT: Final = 8
"""Characters of an id that tell it from others."""


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
    query = query_of(streaming=streaming, yes=yes, lose_data=lose_data)
    if (topic is None) != everything:
        raise typer.BadParameter("give either a TOPIC or --all")
    if topic is None:
        delete_of_many(session, f"afterglow/{PATH}", "all namespaces", query)
        return
    plans = session.client.call("POST", topic_path(topic, PATH), query=query)
    for plan in plans:
        if session.out.as_json:
            session.out.json(plan)
        else:
            _tell(session, plan, done=yes)
    if not yes and any(plan["segments"] for plan in plans):
        session.out.say(NOTHING_CHANGED)


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
