"""A stored entry as a consumer gets it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from afterglow.errors import CorruptEntry
from afterglow.format.entry import decode_entry, split_broker_metadata

if TYPE_CHECKING:
    from afterglow.format.position import Position
    from afterglow.ledger.reader import StoredEntry


@dataclass(frozen=True, slots=True)
class Outgoing:
    """An entry ready to be sent."""

    position: Position
    data: memoryview
    """As the client shall see it: the broker's metadata stripped, unless it is exposed."""
    messages: int
    """Permits that it takes: the size of the batch, or 1."""
    marker: bool
    """Written by a broker for brokers: never sent, and counted as acknowledged."""
    deliver_at_ms: int = 0
    """Epoch milliseconds before which a shared subscription does not deliver it; 0: at once."""


def prepare(entry: StoredEntry, *, expose_broker_metadata: bool) -> Outgoing:
    """Make an entry ready to be sent. An entry that does not parse is sent as one message: its client will say so."""
    data = memoryview(entry.data)
    try:
        _, stripped = split_broker_metadata(data)
        metadata = decode_entry(stripped, check=False).metadata
    except CorruptEntry:
        return Outgoing(entry.position, data, 1, marker=False)
    messages = metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else 1
    return Outgoing(
        entry.position,
        data if expose_broker_metadata else stripped,
        max(messages, 1),
        metadata.HasField("marker_type"),
        metadata.deliver_at_time,
    )
