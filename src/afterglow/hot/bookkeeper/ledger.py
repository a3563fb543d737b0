"""A ledger of BookKeeper, read from its bookies without the knowledge of its writer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from afterglow.errors import InvalidPosition
from afterglow.format.frames import FRAME_BYTES, check_whole, iter_entries, scan_frames
from afterglow.hot.bookkeeper.range_read import RangeRead

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from afterglow.hot.bookkeeper.replicas import LedgerReplicas

_READ_BYTES: Final = 8 << 20
"""Bytes per read of methods that read whole ranges."""
_MAX_KNOWN_FRAMES: Final = 1_000
"""Frames whose offsets are kept."""


class BookKeeperLedger:
    """The reading half of :class:`~afterglow.hot.log.HotLedger`. Thread-safe.

    Nothing beyond :attr:`confirmed` is requested: a bookie also serves entries that were never acknowledged. The end of
    a closed ledger is in its metadata; that of an open one comes from the caller, and grows with :meth:`advance`.

    Args:
        replicas: The bookies of the ledger.
        confirmed: Last confirmed entry of an open ledger; -1 before the first.
    """

    def __init__(self, replicas: LedgerReplicas, confirmed: int) -> None:
        self._replicas = replicas
        self._confirmed = confirmed
        self._known_frames: dict[int, tuple[int, int]] = {}
        self._entry_bytes = 0.0  # of the last read, to size the requests of the next one

    @property
    def ledger_id(self) -> int:
        """Its id."""
        return self._replicas.ledger_id

    @property
    def confirmed(self) -> int:
        """Id of the last entry that may be read; -1 before the first."""
        metadata = self._replicas.metadata
        return metadata.last_entry if metadata.is_closed else self._confirmed

    @property
    def closed(self) -> bool:
        """Whether the ledger was closed when its metadata was read last."""
        return self._replicas.metadata.is_closed

    @property
    def size_bytes(self) -> int:
        """Bytes of all confirmed entries, without frames.

        Raises:
            AfterglowError: The last entry cannot be read; see :meth:`bytes_up_to`.
        """
        metadata = self._replicas.metadata
        return metadata.length if metadata.is_closed else self.bytes_up_to(self.confirmed)

    def advance(self, confirmed: int) -> None:
        """Allow reads up to an entry that the writer has confirmed; never back.

        Args:
            confirmed: Such as ``lastConfirmedEntry`` of a broker, if it is of this ledger. Not the LAC in an entry,
                which lags, and not the last entry that a bookie has, which may not be acknowledged.
        """
        self._confirmed = max(self._confirmed, confirmed)

    def refresh(self) -> bool:
        """Read the metadata again, such as after the topic continued in another ledger.

        Returns:
            Whether the ledger still exists. The bookies of a deleted ledger serve it for some minutes.

        Raises:
            CorruptMetadata: The stored metadata is invalid.
            MetadataUnavailable: The metadata store cannot be reached.
        """
        return self._replicas.refresh()

    def bytes_up_to(self, entry_id: int) -> int:
        """Bytes of the entries from 0 to this one, without frames, by reading this one only; 0 for -1.

        Raises:
            InvalidPosition: The entry is not confirmed.
            LedgerMissing: The ledger was deleted.
            AfterglowError: The entry cannot be read; see :meth:`read_frames`.
        """
        if not -1 <= entry_id <= self.confirmed:
            raise InvalidPosition(
                f"entry {entry_id} of ledger {self.ledger_id} is not confirmed; the last one is {self.confirmed}"
            )
        return 0 if entry_id < 0 else self._replicas.read_entry(entry_id).length

    def read(self, first: int, last: int) -> list[bytes | memoryview]:
        """The confirmed entries ``first`` to ``last``, both inclusive; fewer where ``last`` is not confirmed yet.

        Raises:
            AfterglowError: They cannot be read; see :meth:`read_frames`.
        """
        first, last = max(first, 0), min(last, self.confirmed)
        found: list[bytes | memoryview] = []
        while first <= last:
            data, count = self._read_frames(first, last, _READ_BYTES)
            frames = scan_frames(data, first)
            check_whole(frames, f"frames of ledger {self.ledger_id}")
            found += [entry for _, entry in iter_entries(data, frames)]
            first += count
        return found

    def read_frames(self, first: int, max_bytes: int, last: int | None = None) -> tuple[memoryview, int]:
        """Confirmed entries from ``first`` on as contiguous frames, with their number; at least one if there is one.

        They end before an entry that cannot be read, which is an error of the next call.

        Args:
            first: The first entry.
            max_bytes: Limit for all of them but the first.
            last: The last entry that may be read; None: the last confirmed one.

        Raises:
            LedgerMissing: The ledger was deleted, and its bookies do not serve the entry any more.
            EntriesMissing: No bookie of the ensemble has the entry.
            CorruptBlock: All replicas of the entry that exist are damaged.
            HotLogUnavailable: A bookie that may have the entry does not answer.
            AccessDenied: The bookies require authentication.
        """
        last = self.confirmed if last is None else min(last, self.confirmed)
        if not 0 <= first <= last:
            return memoryview(b""), 0
        return self._read_frames(first, last, max_bytes)

    def offsets(self, first: int, last: int) -> NDArray[np.int64]:
        """Offset of each frame from entry ``first`` to ``last`` among the ledger's frames, and the end of the last one.

        Reads these entries, since a bookie does not report their sizes.

        Raises:
            IndexError: ``first`` to ``last`` is not a range of confirmed entries.
            AfterglowError: They cannot be read; see :meth:`read_frames`.
        """
        if not 0 <= first <= last <= self.confirmed:
            raise IndexError(f"entries {first} to {last} of ledger {self.ledger_id} are not confirmed")
        if first == last:
            return self._frame_of(first)
        start = self.bytes_up_to(first - 1) + FRAME_BYTES * first
        tables = [np.array([start], np.int64)]
        while first <= last:
            data, count = self._read_frames(first, last, _READ_BYTES)
            tables.append(scan_frames(data, first).offsets[1:] + start)
            start += len(data)
            first += count
        return np.concatenate(tables)

    def _frame_of(self, entry_id: int) -> NDArray[np.int64]:
        """Offset and end of one frame, by one read at most: a search by size asks for few entries, and again."""
        known = self._known_frames.get(entry_id)
        if known is None:
            entry = self._replicas.read_entry(entry_id)
            end = entry.length + FRAME_BYTES * (entry_id + 1)
            known = end - len(entry.payload) - FRAME_BYTES, end
            if len(self._known_frames) >= _MAX_KNOWN_FRAMES:
                self._known_frames.clear()
            self._known_frames[entry_id] = known
        return np.array(known, np.int64)

    def _read_frames(self, first: int, last: int, max_bytes: int) -> tuple[memoryview, int]:
        reading = RangeRead(self._replicas, first, last, max_bytes, self._entry_bytes)
        count = reading.read()
        self._entry_bytes = reading.entry_bytes
        return memoryview(reading.frames).toreadonly(), count
