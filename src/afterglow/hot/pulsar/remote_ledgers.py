"""Ledgers read over the binary protocol, within ranges that the caller knows.

A broker reports the end of a topic and nothing about its ledgers. So the caller gives the ranges: an entry of them that
the broker does not have is an error, and nothing beyond them is ever requested.

Sequential reads through the ranges use one subscription on one connection, with the memory limit of
:class:`~afterglow.hot.pulsar.raw_reader.RawReader`. A read elsewhere begins another subscription there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np

from afterglow.errors import InvalidPosition
from afterglow.format.frames import FRAME_BYTES, Frames, check_whole, iter_entries
from afterglow.format.position import Position
from afterglow.hot.pulsar.raw_reader import RawReader

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from afterglow.format.position import LedgerRange
    from afterglow.hot.pulsar.address import PulsarAddress
    from afterglow.hot.pulsar.raw_entries import RawEntries


class RemoteLedgers:
    """Ranges of the ledgers of one topic. Belongs to one thread; holds at most one connection.

    Args:
        address: The cluster.
        topic: Name of the topic, in any form.
        ranges: The entries that may be read, in the order of the topic, without other entries between them.
        timeout_s: As for :class:`~afterglow.hot.pulsar.raw_reader.RawReader`.
        deadline_s: Likewise.
        instance: Likewise.
        offloads: Likewise.
        fills_gaps: Likewise.

    Raises:
        InvalidName: The topic's name is not well-formed.
    """

    def __init__(
        self,
        address: PulsarAddress,
        topic: str,
        ranges: Sequence[LedgerRange],
        *,
        timeout_s: float = 30.0,
        deadline_s: float = 120.0,
        instance: str | None = None,
        offloads: bool = False,
        fills_gaps: bool = False,
    ) -> None:
        self._reader = RawReader(
            address,
            topic,
            timeout_s=timeout_s,
            deadline_s=deadline_s,
            instance=instance,
            offloads=offloads,
            fills_gaps=fills_gaps,
        )
        self._ranges = tuple(ranges)
        self._batches: Iterator[RawEntries] = iter(())
        self._received: RawEntries | None = None
        self._frames: Frames | None = None
        self._following: Position | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._reader.close()

    def ledger(self, ledger_id: int) -> RemoteLedger:
        """One of the ledgers; it can be read until :meth:`close`.

        Raises:
            InvalidPosition: No range is of this ledger.
        """
        ledger_range = next((each for each in self._ranges if each.ledger_id == ledger_id), None)
        if ledger_range is None:
            raise InvalidPosition(f"{self._reader.topic}: ledger {ledger_id} is not in the ranges to read")
        return RemoteLedger(self, ledger_range)

    def frames_from(self, position: Position) -> tuple[memoryview, Frames]:
        """Frames from an entry of the ranges on, as many as were received together, with their offsets.

        Raises:
            EntriesMissing: The broker does not have the entry.
            HotLogTimeout: The entry was not received in time.
            AfterglowError: See :meth:`~afterglow.hot.pulsar.raw_reader.RawReader.read`.
        """
        received = self._received
        if received is None or received.ledger_id != position.ledger_id or not _holds(received, position.entry_id):
            received = self._receive(position)
        if self._frames is None:
            self._frames = received.frames
            check_whole(self._frames, f"entries received of ledger {received.ledger_id}")
        skipped = position.entry_id - received.first_entry_id
        start = int(self._frames.offsets[skipped])
        return received.data[start:], Frames(position.entry_id, self._frames.offsets[skipped:] - start, None)

    def _receive(self, position: Position) -> RawEntries:
        self._received = self._frames = None  # frees its memory before the next ones are received
        if position != self._following:
            last = self._ranges[-1]
            self._batches = self._reader.read(position, Position(last.ledger_id, last.last), self._ranges)
        self._following = None  # after a failure the subscription has ended
        self._received = received = next(self._batches)
        self._following = self._following_entry(Position(received.ledger_id, received.last_entry_id))
        return received

    def _following_entry(self, position: Position) -> Position | None:
        """The entry that follows in the ranges."""
        remaining = iter(self._ranges)
        for ledger_range in remaining:
            if ledger_range.ledger_id == position.ledger_id:
                if position.entry_id < ledger_range.last:
                    return position.next()
                following = next(remaining, None)
                return None if following is None else Position(following.ledger_id, following.first)
        return None


class RemoteLedger:
    """One range of a ledger, as the reading half of :class:`~afterglow.hot.log.HotLedger`.

    Offsets and sizes count from the first entry of the range. Brokers report neither: the first call for one of them
    reads the whole range.
    """

    def __init__(self, ledgers: RemoteLedgers, ledger_range: LedgerRange) -> None:
        """See :meth:`RemoteLedgers.ledger`."""
        self._ledgers = ledgers
        self._range = ledger_range
        self._offsets: NDArray[np.int64] | None = None

    @property
    def ledger_id(self) -> int:
        """Its id."""
        return self._range.ledger_id

    @property
    def confirmed(self) -> int:
        """Id of the last entry that may be read."""
        return self._range.last

    @property
    def size_bytes(self) -> int:
        """Bytes of the entries that may be read, without frames."""
        return int(self._table()[-1]) - FRAME_BYTES * len(self._range)

    def read(self, first: int, last: int) -> list[bytes | memoryview]:
        """The entries ``first`` to ``last``, both inclusive; fewer where these may not be read.

        Raises:
            AfterglowError: They cannot be read; see :meth:`RemoteLedgers.frames_from`.
        """
        first, last = max(first, self._range.first), min(last, self._range.last)
        found: list[bytes | memoryview] = []
        while first <= last:
            data, frames = self._ledgers.frames_from(Position(self.ledger_id, first))
            found += [entry for entry_id, entry in iter_entries(data, frames) if entry_id <= last]
            first = frames.end_entry_id
        return found

    def read_frames(self, first: int, max_bytes: int) -> tuple[memoryview, int]:
        """Entries from ``first`` on as contiguous frames, and how many; at least one if one may be read.

        Raises:
            AfterglowError: They cannot be read; see :meth:`RemoteLedgers.frames_from`.
        """
        if not self._range.first <= first <= self._range.last:
            return memoryview(b""), 0
        data, frames = self._ledgers.frames_from(Position(self.ledger_id, first))
        count = max(1, int(np.searchsorted(frames.offsets, max_bytes, "right")) - 1)
        return data[: int(frames.offsets[count])], count

    def offsets(self, first: int, last: int) -> NDArray[np.int64]:
        """Offset of each frame from entry ``first`` to ``last``, and the end of the last one.

        Raises:
            IndexError: ``first`` to ``last`` is not a range of entries that may be read.
            AfterglowError: They cannot be read; see :meth:`RemoteLedgers.frames_from`.
        """
        if not self._range.first <= first <= last <= self._range.last:
            raise IndexError(f"entries {first} to {last} are not in the range {self._range}")
        begin = first - self._range.first
        return self._table()[begin : begin + last - first + 2]

    def _table(self) -> NDArray[np.int64]:
        if self._offsets is None:
            tables = [np.zeros(1, np.int64)]
            first, end = self._range.first, 0
            while first <= self._range.last:
                _, frames = self._ledgers.frames_from(Position(self.ledger_id, first))
                tables.append(frames.offsets[1:] + end)
                end += frames.end
                first = frames.end_entry_id
            self._offsets = np.concatenate(tables)
        return self._offsets


def _holds(received: RawEntries, entry_id: int) -> bool:
    return received.first_entry_id <= entry_id <= received.last_entry_id
