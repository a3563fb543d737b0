"""Message ids as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from afterglow.admin import values
from afterglow.admin.errors import bad_request
from afterglow.format.position import LATEST, Position, parse_position
from afterglow.ledger.properties import check_given

_LONG_MIN: Final = -(2**63)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a subscription is to begin."""

    position: Position = LATEST
    batch_index: int = -1
    """-1: the whole entry."""
    excluded: bool = False
    """Whether to begin behind the message that is named."""
    properties: dict[str, str] = field(default_factory=dict)
    """Of a subscription that is created there."""


def encode(position: Position, partition: int, batch_index: int = -1) -> dict[str, int]:
    """A message id; with a batch index only where the message is one of a batch."""
    encoded = {"ledgerId": position.ledger_id, "entryId": position.entry_id, "partitionIndex": partition}
    if batch_index >= 0:
        encoded["batchIndex"] = batch_index
    return encoded


def decode(body: object) -> Place:
    """The place that a body names: ``earliest``, ``latest``, ``LEDGER:ENTRY``, or a message id; nothing is latest.

    Fields of a message id that say nothing of its place are passed over: clients send them along.

    Raises:
        AdminError: A field has another type.
        InvalidName: The text is no position.
        ValueTooLarge: The properties are too large to keep.
    """
    if body is None:
        return Place()
    if isinstance(body, str):
        position, batch_index = parse_position(body)
        return Place(position, batch_index)
    if not isinstance(body, dict):
        raise bad_request(f"a message id must be an object with ledgerId and entryId, not {values.shown(body)}")
    ledger_id = values.integer(body.get("ledgerId"), "ledgerId", _LONG_MIN, values.LONG_MAX)
    entry_id = values.integer(body.get("entryId"), "entryId", _LONG_MIN, values.LONG_MAX)
    properties = values.text_map(body.get("properties"), "properties")
    check_given(properties)
    return Place(
        Position(ledger_id, entry_id),
        values.integer(body.get("batchIndex", -1), "batchIndex", -1),
        values.boolean(body.get("excluded", False), "excluded"),
        properties,
    )
