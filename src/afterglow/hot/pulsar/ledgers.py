"""Ledgers read over the protocol, to whoever knows which of their entries are there.

A broker tells the end of a topic and nothing about its ledgers, so the stretches are the caller's word: an entry of
them that the broker does not have is an error, and nothing beyond them is ever asked for.

Whoever goes through the stretches in order reads all of them as one stream, over one connection, of which memory holds
what :class:`~afterglow.hot.pulsar.reader.RawReader` may. Going anywhere else begins another stream there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np

from afterglow.errors import InvalidPosition
from afterglow.format.frames import FRAME_BYTES, Frames, check_whole, iter_entries
from afterglow.format.position import Position
from afterglow.hot.pulsar.reader import RawReader

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from afterglow.format.position import LedgerRange
    from afterglow.hot.pulsar.address import PulsarAddress
    from afterglow.hot.pulsar.runs import RawRun


class RemoteLedgers:
    """Stretches of the ledgers of one topic. Belongs to one thread; holds at most one connection.

    Args:
        address: The cluster.
        topic: Its name in any spelling.
        stretches: What may be read, in the order of the topic; nothing else stands between two of them.
        timeout_s: As for :class:`~afterglow.hot.pulsar.reader.RawReader`.
        deadline_s: Likewise.
        instance: Likewise.
        offloads: Likewise.

    Raises:
        InvalidName: The topic's name is not well-formed.
    """

    def __init__(
        self,
        address: PulsarAddress,
        topic: str,
        stretches: Sequence[LedgerRange],
        *,
        timeout_s: float = 30.0,
        deadline_s: float = 120.0,
        instance: str | None = None,
        offloads: bool = False,
    ) -> None:
        self._reader = RawReader(
            address, topic, timeout_s=timeout_s, deadline_s=deadline_s, instance=instance, offloads=offloads
        )
        self._stretches = tuple(stretches)
        self._runs: Iterator[RawRun] = iter(())
        self._run: RawRun | None = None
        self._frames: Frames | None = None
        self._following: Position | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection."""
        self._reader.close()

    def ledger(self, ledger_id: int) -> RemoteLedger:
        """One of the ledgers; it can be read until :meth:`close`.

        Raises:
            InvalidPosition: None of the stretches is of this ledger.
        """
        stretch = next((each for each in self._stretches if each.ledger_id == ledger_id), None)
        if stretch is None:
            raise InvalidPosition(f"{self._reader.topic}: nothing of ledger {ledger_id} is to be read")
        return RemoteLedger(self, stretch)

    def frames_from(self, position: Position) -> tuple[memoryview, Frames]:
        """Frames that begin with an entry of the stretches, as many as came together; where each of them stands.

        Raises:
            EntriesMissing: The broker does not have the entry.
            HotLogTimeout: It did not come in time.
            AfterglowError: See :meth:`~afterglow.hot.pulsar.reader.RawReader.read`.
        """
        run = self._run
        if run is None or run.ledger_id != position.ledger_id or not _holds(run, position.entry_id):
            run = self._next_run(position)
        if self._frames is None:
            self._frames = run.frames
            check_whole(self._frames, f"what the broker sent of ledger {run.ledger_id}")
        skipped = position.entry_id - run.first_entry_id
        start = int(self._frames.offsets[skipped])
        return run.data[start:], Frames(position.entry_id, self._frames.offsets[skipped:] - start, None)

    def _next_run(self, position: Position) -> RawRun:
        self._run = self._frames = None  # its memory, before there is another
        if position != self._following:
            last = self._stretches[-1]
            self._runs = self._reader.read(position, Position(last.ledger_id, last.last), self._stretches)
        self._following = None  # a stream that fails has ended
        self._run = run = next(self._runs)
        self._following = self._behind(Position(run.ledger_id, run.last_entry_id))
        return run

    def _behind(self, position: Position) -> Position | None:
        """The entry that follows in the stretches."""
        places = iter(self._stretches)
        for stretch in places:
            if stretch.ledger_id == position.ledger_id:
                if position.entry_id < stretch.last:
                    return position.next()
                following = next(places, None)
                return None if following is None else Position(following.ledger_id, following.first)
        return None


class RemoteLedger:
    """One stretch of a ledger, as the reading half of :class:`~afterglow.hot.log.HotLedger`.

    Offsets and sizes count from the stretch's first entry. Brokers tell neither: the first question for one of them
    reads the whole stretch.
    """

    def __init__(self, ledgers: RemoteLedgers, stretch: LedgerRange) -> None:
        """See :meth:`RemoteLedgers.ledger`."""
        self._ledgers = ledgers
        self._stretch = stretch
        self._offsets: NDArray[np.int64] | None = None

    @property
    def ledger_id(self) -> int:
        """Its id."""
        return self._stretch.ledger_id

    @property
    def confirmed(self) -> int:
        """Id of the last entry that may be read."""
        return self._stretch.last

    @property
    def size_bytes(self) -> int:
        """Bytes of the entries that may be read, without frames."""
        return int(self._table()[-1]) - FRAME_BYTES * len(self._stretch)

    def read(self, first: int, last: int) -> list[bytes | memoryview]:
        """The entries ``first`` to ``last``, both inclusive; fewer where these may not be read.

        Raises:
            AfterglowError: They cannot be had; see :meth:`RemoteLedgers.frames_from`.
        """
        first, last = max(first, self._stretch.first), min(last, self._stretch.last)
        found: list[bytes | memoryview] = []
        while first <= last:
            data, frames = self._ledgers.frames_from(Position(self.ledger_id, first))
            found += [entry for entry_id, entry in iter_entries(data, frames) if entry_id <= last]
            first = frames.end_entry_id
        return found

    def read_frames(self, first: int, max_bytes: int) -> tuple[memoryview, int]:
        """Entries from ``first`` on as contiguous frames, and how many; at least one if one may be read.

        Raises:
            AfterglowError: They cannot be had; see :meth:`RemoteLedgers.frames_from`.
        """
        if not self._stretch.first <= first <= self._stretch.last:
            return memoryview(b""), 0
        data, frames = self._ledgers.frames_from(Position(self.ledger_id, first))
        count = max(1, int(np.searchsorted(frames.offsets, max_bytes, "right")) - 1)
        return data[: int(frames.offsets[count])], count

    def offsets(self, first: int, last: int) -> NDArray[np.int64]:
        """Offset of each frame from entry ``first`` to ``last``, and behind ``last``.

        Raises:
            IndexError: ``first`` to ``last`` is not a stretch of entries that may be read.
            AfterglowError: They cannot be had; see :meth:`RemoteLedgers.frames_from`.
        """
        if not self._stretch.first <= first <= last <= self._stretch.last:
            raise IndexError(f"entries {first} to {last} are not among those to be read: {self._stretch}")
        begin = first - self._stretch.first
        return self._table()[begin : begin + last - first + 2]

    def _table(self) -> NDArray[np.int64]:
        if self._offsets is None:
            pieces = [np.zeros(1, np.int64)]
            first, end = self._stretch.first, 0
            while first <= self._stretch.last:
                _, frames = self._ledgers.frames_from(Position(self.ledger_id, first))
                pieces.append(frames.offsets[1:] + end)
                end += frames.end
                first = frames.end_entry_id
            self._offsets = np.concatenate(pieces)
        return self._offsets


def _holds(run: RawRun, entry_id: int) -> bool:
    return run.first_entry_id <= entry_id <= run.last_entry_id
