"""Message ids in requests and answers, and the position and acknowledgements at which a subscription starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from afterglow.admin import values
from afterglow.admin.errors import bad_request
from afterglow.broker.consumer import prepare_entry
from afterglow.catalog.json_nodes import check_properties_size
from afterglow.format.position import LATEST, Position, parse_position
from afterglow.ledger.acks import to_words

if TYPE_CHECKING:
    from afterglow.broker.topic import Topic

_LONG_MIN: Final = -(2**63)


@dataclass(frozen=True, slots=True)
class MessageReference:
    """A message id in a request, with the properties of a subscription that is created there."""

    position: Position = LATEST
    batch_index: int = -1
    """-1: the whole entry."""
    excluded: bool = False
    """Whether the range starts after the message."""
    properties: dict[str, str] = field(default_factory=dict)
    """Of a subscription that is created there."""


def encode(position: Position, partition: int, batch_index: int = -1) -> dict[str, int]:
    """Encode a message id; messages outside batches have no batch index."""
    encoded = {"ledgerId": position.ledger_id, "entryId": position.entry_id, "partitionIndex": partition}
    if batch_index >= 0:
        encoded["batchIndex"] = batch_index
    return encoded


def decode(body: object) -> MessageReference:
    """Decode a body: ``earliest``, ``latest``, ``LEDGER:ENTRY``, or a message id; an empty body means latest.

    Other fields of a message id, which clients send along, are ignored.

    Raises:
        AdminError: A field has a wrong type.
        InvalidName: The text is not a position.
        ValueTooLarge: The properties are too large.
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
    check_properties_size(properties)
    return MessageReference(
        Position(ledger_id, entry_id),
        values.integer(body.get("batchIndex", -1), "batchIndex", -1),
        values.boolean(body.get("excluded", False), "excluded"),
        properties,
    )


async def start_position(topic: Topic, message: MessageReference) -> tuple[Position, tuple[int, ...] | None]:
    """The first entry of a subscription, and the ack set of its unacknowledged messages; None: all."""
    if message.position == LATEST:
        return LATEST, None
    if message.batch_index < 0:
        return (message.position.next() if message.excluded else message.position), None
    first = message.batch_index + 1 if message.excluded else message.batch_index
    entries = await topic.read(message.position, 1, 1)
    is_found = bool(entries) and entries[0].position == message.position
    size = prepare_entry(entries[0], expose_broker_metadata=True).messages if is_found else 1
    if first >= size:
        return message.position.next(), None
    return message.position, (to_words((1 << size) - (1 << first)) if first > 0 else None)
