"""Offload settings of a namespace or a topic: the same calls at either level."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from afterglow.cli.offload_flags import driver_of

if TYPE_CHECKING:
    from afterglow.cli.command import Session
    from afterglow.cli.offload_flags import OffloadFlags

POLICIES: Final = "offloadPolicies"
READ_PRIORITY: Final = "dataReadPriority"

Applied = Annotated[bool, typer.Option("--applied", "-ap", help="All that holds, also from wider levels.")]


def change_policies(session: Session, path: str, flags: OffloadFlags, whose: str) -> None:
    """Change the stored policies in what the flags give, and in nothing else.

    Args:
        session: The command's.
        path: Of the policies.
        flags: What is to change.
        whose: The namespace or topic.

    Raises:
        ConfigError: The flags change nothing, or do not go together.
        AdminFailed: The server refused.
    """
    flags.check()
    stored = session.client.get(path) or {}
    inherited = driver_of(session.client.get(path, applied="true") or {}) if flags.places else None
    changed = flags.applied_to(stored, inherited)
    session.change("POST", path, changed, f"set the offload policies of {whose}")


def show_policies(session: Session, path: str, *, applied: bool) -> None:
    """Print the policies that are set, or all that hold."""
    found = session.client.get(path, **({"applied": "true"} if applied else {}))
    session.out.record(found, "not set here: what a wider level sets holds; --applied shows it")


def set_read_priority(session: Session, path: str, priority: str, whose: str) -> None:
    """Say which copy serves a read while both exist."""
    session.change("PUT", path, priority, f"set the data read priority of {whose}")


def show_read_priority(session: Session, path: str) -> None:
    """Print which copy serves a read while both exist."""
    found = session.client.get(path)
    sentence = "not set here: a wider level's holds" if found is None else found.lower().replace("_", "-")
    session.out.say(sentence, {READ_PRIORITY: found})
