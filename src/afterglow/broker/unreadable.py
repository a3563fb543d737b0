"""Messages that a consumer's client could not read and acknowledged as such: undecryptable, corrupt, not decompressed.

An acknowledgement names the message alone. Its producer is looked up where the entry is still in memory, which it is
when the client has just been sent it; so a line is logged once per minute for each subscription and producer, and once
per minute for a subscription's messages that are no longer in memory.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from afterglow.broker.replies import signed
from afterglow.errors import CorruptEntry
from afterglow.format.entry import decode_entry
from afterglow.format.position import Position
from afterglow.format.proto import pulsar_api_pb2 as wire

if TYPE_CHECKING:
    from afterglow.broker.consumers import Consumer
    from afterglow.broker.subscription import Subscription

log = logging.getLogger(__name__)

INTERVAL_MS: Final = 60_000
_MOST_PRODUCERS: Final = 1_000
"""Producers of one subscription whose last lines are remembered; more of them share a line."""


class UnreadableMessages:
    """Logs what consumers of one subscription could not read, at a bounded rate.

    Args:
        subscription: Whose consumers they are.
    """

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._logged_ms: dict[str, int] = {}
        self._passed_over: dict[str, int] = {}

    def report(self, consumer: Consumer, ack: wire.CommandAck) -> None:
        """Log an acknowledgement that carries a validation error, unless its producer had a line within a minute."""
        position = _position(ack.message_id[0]) if ack.message_id else None
        producer = "" if position is None else self._producer(position)
        now_ms = self._subscription.now_ms()
        if producer not in self._logged_ms and len(self._logged_ms) >= _MOST_PRODUCERS:
            self._forget(now_ms)
            if len(self._logged_ms) >= _MOST_PRODUCERS:
                producer = ""
        last_ms = self._logged_ms.get(producer)
        if last_ms is not None and now_ms - last_ms < INTERVAL_MS:
            self._passed_over[producer] = self._passed_over.get(producer, 0) + 1
            return
        self._logged_ms[producer] = now_ms
        log.warning(
            "%s: consumer %s could not read %s of producer %s: %s; %d more since the last such line",
            self._subscription,
            consumer.name,
            position,
            producer or "(not known)",
            wire.CommandAck.ValidationError.Name(ack.validation_error),
            self._passed_over.pop(producer, 0),
        )

    def _producer(self, position: Position) -> str:
        """Who sent a message, empty where it is not in memory."""
        held = self._subscription.topic.ledger.read_memory(position, 1, 1)
        if held is None or not held.entries or held.entries[0].position != position:
            return ""
        try:
            return decode_entry(held.entries[0].data, check=False).metadata.producer_name
        except CorruptEntry:
            return ""

    def _forget(self, now_ms: int) -> None:
        kept = {name: at_ms for name, at_ms in self._logged_ms.items() if now_ms - at_ms < INTERVAL_MS}
        self._logged_ms = kept
        self._passed_over = {name: count for name, count in self._passed_over.items() if name in kept}


def _position(message_id: wire.MessageIdData) -> Position:
    return Position(signed(message_id.ledgerId), signed(message_id.entryId))
