"""SENDs of producers for tests: as a client writes them, and as a receive buffer finds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support.raw_client import encode_send

from afterglow.format.new_entries import by_producer
from afterglow.format.wire import FrameBuffer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from afterglow.format.new_entries import EntryTable, NewEntry


@dataclass(frozen=True)
class Send:
    """One SEND."""

    producer_id: int
    sequence_id: int
    message: bytes
    messages: int = 1

    @property
    def frame(self) -> bytes:
        """As a client writes it."""
        return encode_send(self.producer_id, self.sequence_id, self.message, self.messages)


def received(data: bytes) -> FrameBuffer:
    """A receive buffer with these bytes."""
    buffer = FrameBuffer(8 << 20, initial_bytes=max(len(data), 64))
    buffer.space()[: len(data)] = data
    buffer.add(len(data))
    return buffer


def entries_of(sends: Iterable[Send]) -> list[tuple[int, NewEntry | EntryTable]]:
    """The messages of SENDs by producer."""
    found = received(b"".join(send.frame for send in sends)).sends()
    return [] if found is None else list(by_producer(*found))
