"""From a place that a caller names to the entries of a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from afterglow.broker.outgoing import prepare
from afterglow.format.position import LATEST
from afterglow.ledger.batch_acks import to_words

if TYPE_CHECKING:
    from afterglow.admin.message_ids import Place
    from afterglow.broker.topic import Topic
    from afterglow.format.position import Position


async def begin_at(topic: Topic, place: Place) -> tuple[Position, tuple[int, ...] | None]:
    """The entry to begin with, and which of its messages are not acknowledged; None: all."""
    if place.position == LATEST:
        return LATEST, None
    if place.batch_index < 0:
        return (place.position.next() if place.excluded else place.position), None
    first, size = await _in_batch(topic, place)
    if first >= size:
        return place.position.next(), None
    return place.position, (to_words((1 << size) - (1 << first)) if first > 0 else None)


async def end_at(topic: Topic, place: Place) -> tuple[Position, tuple[int, ...] | None]:
    """The entry up to which all go, and which of its messages stay; None: none, the entry goes as a whole.

    A place without a batch index is an entry that goes itself, excluded or not: the next one is the first that stays.
    """
    if place.batch_index < 0:
        return place.position, None
    first, size = await _in_batch(topic, place)
    if first == 0:
        return place.position.previous(), None
    return place.position, (to_words((1 << size) - (1 << first)) if first < size else None)


async def _in_batch(topic: Topic, place: Place) -> tuple[int, int]:
    """The first message of the batch that is meant, and how many it has; 1 where it is none, or not there."""
    first = place.batch_index + 1 if place.excluded else place.batch_index
    entries = await topic.read(place.position, 1, 1)
    if not entries or entries[0].position != place.position:
        return first, 1
    return first, prepare(entries[0], expose_broker_metadata=True).messages
