"""Broker time and index: what the broker writes in front of each entry (PIP-70).

Broker time never goes back within a topic, whatever the clock does. The index counts messages without a gap; an entry
carries that of its last message. Every entry of a stamped topic is stamped, also one without messages (a marker): it
repeats the index, so that the last entry of a ledger always says how far the topic has come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from afterglow.config.choices import EntryInterceptor
from afterglow.errors import CorruptEntry
from afterglow.format.entry import encode_broker_metadata, split_broker_metadata
from afterglow.ledger.ledger_list import Progress

if TYPE_CHECKING:
    from collections.abc import Collection

    from typing_extensions import Buffer

    from afterglow.ledger.clock import Clock


class Stamper:
    """Gives out stamps for one topic. Not thread-safe: its user holds a lock.

    Args:
        interceptors: What to write.
        reached: How far the topic had come.
        clock: Gives the time.
    """

    def __init__(self, interceptors: Collection[EntryInterceptor], reached: Progress, clock: Clock) -> None:
        self._with_time = EntryInterceptor.BROKER_TIMESTAMP in interceptors
        self._with_index = EntryInterceptor.INDEX in interceptors
        self._given = reached
        self._confirmed = reached
        self._clock = clock

    @property
    def confirmed(self) -> Progress:
        """How far the topic has come with its last confirmed entry."""
        return self._confirmed

    @property
    def confirmed_time_ms(self) -> int | None:
        """Broker time of the last confirmed entry; None where no time is written."""
        return self._confirmed.broker_time_ms if self._with_time else None

    def stamp(self, messages: int) -> tuple[bytes, Progress]:
        """The bytes for the next entry, and how far the topic will have come with it."""
        time_ms = self._given.broker_time_ms
        index = self._given.index
        if self._with_time:
            now_ms = self._clock.now_ms()
            time_ms = now_ms if time_ms is None else max(now_ms, time_ms)
        if self._with_index and messages:
            index = messages - 1 if index is None else index + messages
        self._given = Progress(index, time_ms)
        if not self._with_time and not self._with_index:
            return b"", self._given
        return encode_broker_metadata(
            time_ms if self._with_time else None, index if self._with_index else None
        ), self._given

    def confirm(self, reached: Progress) -> None:
        """Note that the entry with this stamp is durable."""
        self._confirmed = reached

    def roll_back(self) -> None:
        """Take back every stamp that was not confirmed. The time stays: it need not be continuous, only ordered."""
        self._given = Progress(self._confirmed.index, self._given.broker_time_ms)


def progress_of(entry: Buffer) -> Progress:
    """How far a topic had come with an entry: nothing known where the entry has no broker metadata, or is damaged."""
    try:
        metadata, _ = split_broker_metadata(entry)
    except CorruptEntry:
        return Progress()
    if metadata is None:
        return Progress()
    return Progress(
        metadata.index if metadata.HasField("index") else None,
        metadata.broker_timestamp if metadata.HasField("broker_timestamp") else None,
    )
