"""A message for the screen: one line for people, one JSON object for machines."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any


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
        """The message for people; bytes that are no text are replaced."""
        batch = f":{self.batch_index}" if self.batch_index >= 0 else ""
        key = "" if self.key is None else f"{self.key}="
        return f"{self.ledger_id}:{self.entry_id}{batch}\t{key}{self.value.decode('utf-8', 'replace')}"

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
