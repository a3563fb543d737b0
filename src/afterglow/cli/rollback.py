"""Deleting segments on the command line: options of the commands, and what they print for many topics."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from afterglow.errors import AfterglowError

if TYPE_CHECKING:
    from afterglow.cli.command import Session

Streaming = Annotated[
    bool, typer.Option("--streaming", help="The segments of streaming offload; whole ledgers go with their topic.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without, only say what would go.")]
LoseData = Annotated[
    bool, typer.Option("--lose-data", help="Also drop ledgers that are in segments alone, with their entries.")
]

NOTHING_CHANGED: Final = "nothing was changed; give --yes to do it"
PATH: Final = "deleteOffloaded"

_COLUMNS: Final = ("topic", "state", "segments", "bytes", "lost_entries")
"""Columns for people. Reasons are sentences, and stand below the table: a line of a terminal has 80 columns."""


def query_of(*, streaming: bool, yes: bool, lose_data: bool) -> dict[str, str]:
    """The parameters of a call.

    Raises:
        BadParameter: It is not said that segments are meant.
    """
    if not streaming:
        raise typer.BadParameter("only segments are deleted by hand: give --streaming; whole ledgers go with the topic")
    flags = {"streaming": True, "dryRun": not yes, "loseData": lose_data}
    return {name: "true" if flag else "false" for name, flag in flags.items()}


def delete_of_many(session: Session, path: str, where: str, query: dict[str, str]) -> None:
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
    session.out.rows(shown, f"no topic of {where} has segments", _COLUMNS)
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
        session.out.say(NOTHING_CHANGED)
