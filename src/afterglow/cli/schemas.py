"""``afterglow schemas``: what the values of a topic are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from afterglow.cli.command import Group, Session
from afterglow.cli.parameters import TopicArgument
from afterglow.errors import ConfigError
from afterglow.metadata.encoding import encode_name
from afterglow.metadata.names import TopicName

SCHEMAS = Group("schemas", "Schemas of topics, by the names of pulsar-admin.")


@SCHEMAS.command("get")
def get(
    session: Session,
    topic: TopicArgument,
    *,
    version: Annotated[int | None, typer.Option("--version", "-v", min=0, help="A version by its number.")] = None,
    every: Annotated[bool, typer.Option("--all-version", "-a", help="All versions, oldest first.")] = False,
) -> None:
    """Show the newest schema of a topic, one version, or all.

    Example: afterglow schemas get orders --all-version
    """
    if every and version is not None:
        raise typer.BadParameter("--version asks for one, --all-version for all: give one of them")
    if every:
        found: list[Any] = session.client.fields(_path(topic, "schemas"), "getSchemaResponses")["getSchemaResponses"]
        session.out.rows(found, f"{topic} has no schema")
        return
    session.show(_path(topic, "schema", *([] if version is None else [str(version)])), f"{topic} has no schema")


@SCHEMAS.command("upload")
def upload(
    session: Session,
    topic: TopicArgument,
    *,
    file: Annotated[
        Path,
        typer.Option(
            "--filename",
            "-f",
            exists=True,
            dir_okay=False,
            help='JSON: {"type": "JSON", "schema": "…Avro as text…", "properties": {}}.',
        ),
    ],
) -> None:
    """Add a version to the schema of a topic; one with the same content is not added again.

    Example: afterglow schemas upload orders --filename order.json
    """
    try:
        schema = json.loads(file.read_text())
    except ValueError as error:
        raise ConfigError(f"--filename {str(file)!r} is no JSON: {error}") from error
    added = session.client.call("POST", _path(topic, "schema"), schema) or {}
    number = (added.get("version") or {}).get("version")
    session.out.say(f"{topic} has version {number} of its schema", {"version": number})


@SCHEMAS.command("delete")
def delete(
    session: Session,
    topic: TopicArgument,
    *,
    force: Annotated[bool, typer.Option("--force", "-f", help="Also where messages name its versions.")] = False,
) -> None:
    """Forget all versions of a topic's schema.

    Example: afterglow schemas delete orders
    """
    session.client.call("DELETE", _path(topic, "schema"), query={"force": "true"} if force else None)
    session.out.say(f"deleted the schema of {topic}")


def _path(topic: TopicName, *rest: str) -> str:
    return "/".join(("schemas", str(topic.namespace), encode_name(topic.local_name), *rest))
