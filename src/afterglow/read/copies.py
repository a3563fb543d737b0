"""Copies of a ledger in the hot log and in tiers, and the runs of framed entries that are read from them.

A run is one buffer and the offsets of the frames in it: no Python object per entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from afterglow.errors import CorruptBlock, LedgerMissing
from afterglow.format.frames import FRAME_BYTES, Frames, check_whole, scan_frames

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

_HOT_SCAN_BYTES = 8 << 20
"""Bytes per read of a scan: the operating system prefetches files, so that more would only cost memory."""


class StorageTier(StrEnum):
    """The two copies of an entry, by the names in the column ``tier``."""

    HOT = "hot"
    TIERED = "tiered"


@dataclass(frozen=True, slots=True)
class FrameRun:
    """Consecutive entries of one ledger; at least one."""

    ledger_id: int
    data: memoryview
    """Holds the frames, and perhaps more before and after them. Not to be changed."""
    frames: Frames
    """Offsets of the frames in ``data``."""
    markers_stripped: bool = False
    """Whether a broker of Pulsar delivered them: without markers and messages of aborted transactions, so that all
    messages of transactions are committed. An entry that it did not deliver has no bytes."""

    @property
    def frame_bytes(self) -> int:
        """Bytes of the frames, with the headers and padding of blocks between them."""
        return self.frames.end - int(self.frames.offsets[0])

    def entries(self) -> list[memoryview]:
        """The entries one by one, in a new buffer, so that a kept entry keeps no more memory alive than its run.

        One Python object per entry: not for bulk.
        """
        offsets, ends = self.frames.offsets.tolist(), self.frames.ends.tolist()
        start = offsets[0]
        own = memoryview(bytes(self.data[start : offsets[-1]]))
        return [own[at - start + FRAME_BYTES : end - start] for at, end in zip(offsets, ends, strict=False)]


@dataclass(frozen=True, slots=True)
class ServedRun:
    """A run, and the copy that served it."""

    run: FrameRun
    tier: StorageTier


class LedgerCopy(Protocol):
    """One copy of a ledger, or of a range of its entries. Thread-safe."""

    def read(self, first: int, last: int, max_bytes: int) -> FrameRun:
        """Entries from ``first`` to at most ``last``: at least one, and more as far as ``max_bytes`` allows.

        Raises:
            AfterglowError: They cannot be read from this copy.
        """
        ...

    def scan(self, first: int, last: int) -> Iterator[FrameRun]:
        """All entries from ``first`` to ``last``, both inclusive, in large runs, prefetched.

        Raises:
            AfterglowError: An entry cannot be read from this copy; the runs before it are valid.
        """
        ...


class FrameLedger(Protocol):
    """The confirmed frames of a ledger of a hot log, in this process or in another."""

    @property
    def confirmed(self) -> int:
        """Id of the last entry that may be read; -1 if the ledger is empty."""
        ...

    @property
    def closed(self) -> bool:
        """Whether the ledger is closed, so that ``confirmed`` is its last entry; False if that is not known."""
        ...

    def read_frames(self, first: int, max_bytes: int) -> tuple[memoryview, int]:
        """Confirmed entries from ``first`` on as contiguous frames, and their number; at least one if one exists."""
        ...


class HotReader(Protocol):
    """Opens the ledgers of a hot log for reading."""

    def open(self, ledger_id: int) -> FrameLedger:
        """Open an existing ledger.

        Raises:
            LedgerMissing: It does not exist.
        """
        ...


def frame_run(ledger_id: int, data: Buffer, data_first: int, *, first: int, last: int, max_bytes: int) -> FrameRun:
    """A run of the wanted entries, from a buffer of frames that holds them.

    Args:
        ledger_id: The ledger.
        data: Frames ``[length:int32][entry id:int64][data]`` of consecutive entries.
        data_first: Id of the first entry in it.
        first: First entry wanted, which must be in it.
        last: Last entry wanted, inclusive; the run may end before.
        max_bytes: Limit for all entries of the run but the first.

    Raises:
        LedgerMissing: The buffer does not hold entry ``first``.
        CorruptBlock: The bytes are not such frames.
    """
    view = memoryview(data).cast("B")
    frames = scan_frames(view, data_first)
    check_whole(frames, f"the copy of ledger {ledger_id} from entry {data_first} on")
    low = first - data_first
    if not 0 <= low < len(frames):
        raise LedgerMissing(f"the copy of ledger {ledger_id} has no entry {first}")
    limit = int(frames.offsets[low]) + max_bytes
    high = min(int(frames.offsets.searchsorted(limit, side="right")) - 1, last - data_first + 1, len(frames))
    return FrameRun(ledger_id, view, frames.slice(low, max(high, low + 1)))


class HotCopy:
    """The hot copy of a ledger.

    Raises:
        LedgerMissing: The hot log does not have the ledger.
    """

    def __init__(self, hot: HotReader, ledger_id: int) -> None:
        self._ledger_id = ledger_id
        self._ledger = hot.open(ledger_id)

    def read(self, first: int, last: int, max_bytes: int) -> FrameRun:
        """Read a few entries; see :class:`LedgerCopy`.

        Raises:
            LedgerMissing: The ledger was deleted, or has no entry ``first``.
            CorruptBlock: The stored frames are damaged.
        """
        if first == last:
            max_bytes = 1  # one entry is returned whatever its size, and a remote hot log sends no others
        try:
            data, count = self._ledger.read_frames(first, max_bytes)
        except CorruptBlock:
            data, count = self._ledger.read_frames(first, 1)  # entries before the damaged one may be intact
        if not count:
            raise LedgerMissing(f"the hot copy of ledger {self._ledger_id} has no entry {first}")
        frames = scan_frames(data, first)
        if not len(frames):
            check_whole(frames, f"the hot copy of ledger {self._ledger_id}")
            raise CorruptBlock(f"the hot copy of ledger {self._ledger_id} ends within entry {first}")
        wanted = min(len(frames), last - first + 1)
        return FrameRun(self._ledger_id, data, Frames(first, frames.offsets[: wanted + 1], None))

    def scan(self, first: int, last: int) -> Iterator[FrameRun]:
        """Scan entries; see :class:`LedgerCopy`."""
        while first <= last:
            run = self.read(first, last, _HOT_SCAN_BYTES)
            yield run
            first = run.frames.end_entry_id
