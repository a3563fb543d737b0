"""Message ids: their JSON, and the entries of a topic that they name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from afterglow.admin import values
from afterglow.admin.errors import bad_request
from afterglow.broker.consumer import prepare_entry
from afterglow.catalog.json_nodes import check_given
from afterglow.format.position import LATEST, Position, parse_position
from afterglow.ledger.acks import to_words

if TYPE_CHECKING:
    from afterglow.broker.topic import Topic

_LONG_MIN: Final = -(2**63)


@dataclass(frozen=True, slots=True)
class MessageReference:
    """A message that a caller names, with the properties of a subscription that is created there."""

    position: Position = LATEST
    batch_index: int = -1
    """-1: the whole entry."""
    excluded: bool = False
    """Whether the message itself is left out."""
    properties: dict[str, str] = field(default_factory=dict)
    """Of a subscription that is created there."""


def encode(position: Position, partition: int, batch_index: int = -1) -> dict[str, int]:
    """A message id; with a batch index only where the message is one of a batch."""
    encoded = {"ledgerId": position.ledger_id, "entryId": position.entry_id, "partitionIndex": partition}
    if batch_index >= 0:
        encoded["batchIndex"] = batch_index
    return encoded


def decode(body: object) -> MessageReference:
    """The message that a body names: ``earliest``, ``latest``, ``LEDGER:ENTRY``, or a message id; no body is latest.

    Fields of a message id that do not tell its position are ignored: clients send them along.

    Raises:
        AdminError: A field has another type.
        InvalidName: The text is not a position.
        ValueTooLarge: The properties are too large to keep.
    """
    if body is None:
        return MessageReference()
    if isinstance(body, str):
        position, batch_index = parse_position(body)
        return MessageReference(position, batch_index)
    if not isinstance(body, dict):
        raise bad_request(f"a message id must be an object with ledgerId and entryId, not {values.shown(body)}")
    ledger_id = values.integer(body.get("ledgerId"), "ledgerId", _LONG_MIN, values.LONG_MAX)
    entry_id = values.integer(body.get("entryId"), "entryId", _LONG_MIN, values.LONG_MAX)
    properties = values.text_map(body.get("properties"), "properties")
    check_given(properties)
    return MessageReference(
        Position(ledger_id, entry_id),
        values.integer(body.get("batchIndex", -1), "batchIndex", -1),
        values.boolean(body.get("excluded", False), "excluded"),
        properties,
    )


async def begin_at(topic: Topic, message: MessageReference) -> tuple[Position, tuple[int, ...] | None]:
    """The entry to begin with, and which of its messages are not acknowledged; None: all."""
    if message.position == LATEST:
        return LATEST, None
    if message.batch_index < 0:
        return (message.position.next() if message.excluded else message.position), None
    first, size = await _in_batch(topic, message)
    if first >= size:
        return message.position.next(), None
    return message.position, (to_words((1 << size) - (1 << first)) if first > 0 else None)


async def _in_batch(topic: Topic, message: MessageReference) -> tuple[int, int]:
    """The first message of the batch that is meant, and how many it has; 1 where it is none, or not there."""
    first = message.batch_index + 1 if message.excluded else message.batch_index
    entries = await topic.read(message.position, 1, 1)
    if not entries or entries[0].position != message.position:
        return first, 1
    return first, prepare_entry(entries[0], expose_broker_metadata=True).messages
