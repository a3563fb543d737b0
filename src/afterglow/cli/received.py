"""A message for the screen: one line for people, one JSON object for machines."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from afterglow.cli.terminal_text import printable

if TYPE_CHECKING:
    from afterglow.cli.output import Output

Raw = Annotated[
    bool, typer.Option("--raw", help="The values alone, byte for byte, each with a newline behind it: for a pipe.")
]


@dataclass(frozen=True, slots=True)
class Received:
    """One message, wherever it came from."""

    topic: str
    ledger_id: int
    entry_id: int
    batch_index: int
    """-1: not in a batch."""
    publish_time: int | None
    event_time: int | None
    key: str | None
    properties: dict[str, str]
    value: bytes

    @property
    def line(self) -> str:
        """The message for people; bytes that are no text are replaced, control characters escaped."""
        batch = f":{self.batch_index}" if self.batch_index >= 0 else ""
        key = "" if self.key is None else f"{self.key}="
        return f"{self.ledger_id}:{self.entry_id}{batch}\t{printable(key + self.value.decode('utf-8', 'replace'))}"

    @property
    def row(self) -> dict[str, Any]:
        """The message for machines, by the keys that ``afterglow read`` has."""
        return {
            "topic": self.topic,
            "ledger_id": self.ledger_id,
            "entry_id": self.entry_id,
            "batch_index": self.batch_index,
            "publish_time": self.publish_time,
            "event_time": self.event_time,
            "key": self.key,
            "properties": self.properties,
            "value_base64": base64.b64encode(self.value).decode(),
        }


def check_raw(out: Output, *, raw: bool) -> None:
    """Insist on one form of output.

    Raises:
        BadParameter: Two are asked for.
    """
    if raw and out.as_json:
        raise typer.BadParameter("--raw and --json exclude each other; give one")


def show(out: Output, message: Received, *, raw: bool) -> None:
    """Print a message in the form that was asked for."""
    if raw:
        out.raw(message.value)
    else:
        out.say(message.line, message.row)
