"""A ledger of the local hot log.

Confirmed entries are read from the ledger's files if they are flushed, else from memory. Reading holds no lock while it
waits for the disk.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, chain, islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from afterglow.errors import EntryTooLarge, HotLogError, LedgerClosed, LedgerMissing
from afterglow.format.frames import FRAME, FRAME_BYTES
from afterglow.hot.local.ledger_files import entries_in, read_entries, read_fitting, read_offsets, translated_errors
from afterglow.hot.local.open_files import LedgerFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from afterglow.format.frames import FramedEntries
    from afterglow.hot.local.commit import Committer
    from afterglow.hot.local.disk import Disk
    from afterglow.hot.local.ledger_state import LedgerState, LedgerTable, UnflushedFrames
    from afterglow.hot.local.open_files import OpenFiles
    from afterglow.hot.local.paths import HotLogPaths
    from afterglow.hot.local.writeback import Writeback
    from afterglow.hot.log import Completion

_MAX_BYTES = (1 << 31) - 1  # a frame's length is an int32


def total_bytes(parts: Sequence[bytes | bytearray | memoryview]) -> int:
    """Bytes of an entry.

    Raises:
        TypeError: A buffer is not contiguous bytes.
        EntryTooLarge: Its length does not fit a frame.
    """
    total = 0
    for part in parts:
        kind = part.__class__
        if kind is bytes or kind is bytearray:
            total += len(part)
        elif isinstance(part, memoryview) and part.c_contiguous:
            total += part.nbytes  # not len(): that counts items
        else:
            raise TypeError(f"buffers of an entry must be contiguous bytes, not {part!r}")
    if total > _MAX_BYTES:
        raise EntryTooLarge(f"entry too large: {total} bytes; a frame can hold {_MAX_BYTES}")
    return total


@dataclass(frozen=True, slots=True)
class LogComponents:
    """Components of a log; each uses only those above it."""

    disk: Disk
    """Calls to the operating system."""

    paths: HotLogPaths
    """Names of the files."""

    files: OpenFiles
    """Open files of ledgers."""

    book: LedgerTable
    """States of ledgers."""

    writeback: Writeback
    """Writes the files of ledgers."""

    committer: Committer
    """Writes the journal."""


class _LedgerView(NamedTuple):
    """A consistent view of a ledger."""

    flushed: int
    """Entries that are in its files."""

    flushed_bytes: int
    """Bytes of their frames."""

    tail: list[UnflushedFrames]
    """The confirmed entries after them."""

    entries: int
    """All confirmed entries."""


class LocalLedger:
    """A :class:`~afterglow.hot.log.HotLedger` on the local disk."""

    def __init__(self, shared: LogComponents, ledger: LedgerState) -> None:
        self._components = shared
        self._committer = shared.committer
        self._state = ledger

    def __repr__(self) -> str:
        return f"<LocalLedger {self.ledger_id}: {self._state.entries} entries{', closed' if self.closed else ''}>"

    @property
    def ledger_id(self) -> int:
        """Unique in its log, ascending by creation, never reused."""
        return self._state.ledger_id

    @property
    def confirmed(self) -> int:
        """Id of the last confirmed entry; -1 before the first."""
        return self._state.entries - 1

    @property
    def size_bytes(self) -> int:
        """Bytes of all confirmed entries, without frames."""
        with self._committer.lock:
            return self._state.frame_bytes - FRAME_BYTES * self._state.entries

    @property
    def closed(self) -> bool:
        """Whether it takes no more entries: it was closed, or fenced after a failure."""
        return self._state.closed

    def append(self, parts: Sequence[bytes | bytearray | memoryview], done: Completion) -> int:
        """Append one entry; returns its id at once, and calls ``done`` when it is durable. Does no I/O.

        Raises:
            LedgerClosed: The ledger takes no more entries.
            TypeError: A buffer is not contiguous bytes.
            EntryTooLarge: The entry's length does not fit the frame's 31 bits.
        """
        length = total_bytes(parts)
        ledger = self._state
        with self._committer.lock:
            if ledger.closed:
                raise LedgerClosed(f"ledger {ledger.ledger_id} takes no more entries; append to a new one")
            entry_id = ledger.next_entry
            ledger.next_entry = entry_id + 1
            ledger.buffers.append(FRAME.pack(length, entry_id))
            ledger.buffers += parts
            ledger.sizes.append(FRAME_BYTES + length)
            ledger.dones.append(done)
            self._committer.enqueue(ledger, FRAME_BYTES + length)
        return entry_id

    def append_framed(self, entries: FramedEntries, done: Completion) -> None:
        """Append entries that are framed with the next ids, all or none. Does no I/O.

        Raises:
            LedgerClosed: The ledger takes no more entries.
            ValueError: The first id is not the next one.
        """
        sizes = entries.sizes
        ledger = self._state
        with self._committer.lock:
            if ledger.closed:
                raise LedgerClosed(f"ledger {ledger.ledger_id} takes no more entries; append to a new one")
            if entries.first != ledger.next_entry:
                raise ValueError(f"entries from {entries.first} on do not follow entry {ledger.next_entry - 1}")
            ledger.next_entry = entries.end
            ledger.buffers.append(entries.data)
            ledger.sizes += sizes
            ledger.dones.append(done)
            self._committer.enqueue(ledger, len(entries.data))

    def read(self, first: int, last: int) -> list[bytes | memoryview]:
        """The confirmed entries ``first`` to ``last``, both inclusive; fewer where ``last`` is not confirmed yet.

        Raises:
            LedgerMissing: The ledger was deleted.
            CorruptBlock: A stored entry is damaged.
        """
        seen = self._view()
        entries: list[bytes | memoryview] = []
        first, last = max(first, 0), min(last, seen.entries - 1)
        if first <= last and first < seen.flushed:
            with self._files() as (frames, offsets):
                entries = read_entries(self._components.disk, frames, offsets, first, min(last, seen.flushed - 1))
            first += len(entries)
        for part in seen.tail:
            if first > last:
                break
            if first < part.first + len(part.sizes):
                found = entries_in(part.frames, part.first, part.sizes)
                wanted = found[first - part.first : last - part.first + 1]
                entries += wanted
                first += len(wanted)
        return entries

    def read_frames(self, first: int, max_bytes: int) -> tuple[memoryview, int]:
        """Confirmed entries from ``first`` on as contiguous frames, with their number; at least one if there is one.

        Raises:
            LedgerMissing: The ledger was deleted.
            CorruptBlock: A stored entry is damaged.
        """
        seen = self._view()
        if not 0 <= first < seen.entries:
            return memoryview(b""), 0
        if first < seen.flushed:
            with self._files() as (frames, offsets):
                return read_fitting(
                    self._components.disk, frames, offsets, first, end=seen.flushed, max_bytes=max_bytes
                )
        part = next(part for part in seen.tail if first < part.first + len(part.sizes))
        ends = list(accumulate(part.sizes, initial=0))[first - part.first :]
        count = max(1, sum(end - ends[0] <= max_bytes for end in islice(ends, 1, None)))
        return part.frames[ends[0] : ends[count]], count

    def offsets(self, first: int, last: int) -> NDArray[np.int64]:
        """Offset of each frame from entry ``first`` to ``last`` among the ledger's frames, and the end of the last one.

        Raises:
            IndexError: ``first`` to ``last`` is not a range of confirmed entries.
            LedgerMissing: The ledger was deleted.
            CorruptBlock: A stored entry is damaged.
        """
        seen = self._view()
        if not 0 <= first <= last < seen.entries:
            raise IndexError(f"entries {first} to {last} are not among the {seen.entries} of ledger {self.ledger_id}")
        stored = np.empty(1, np.int64)
        if first < seen.flushed:
            with self._files() as (_, file):
                stored = read_offsets(self._components.disk, file, first, min(last, seen.flushed - 1))
            if last < seen.flushed:
                return stored
        sizes = chain.from_iterable(part.sizes for part in seen.tail)
        unflushed = np.fromiter(accumulate(sizes, initial=seen.flushed_bytes), np.int64)
        wanted = unflushed[max(first - seen.flushed, 0) : last - seen.flushed + 2]
        return np.concatenate((stored[:-1], wanted))

    def close(self) -> None:
        """Wait for appends in flight, then end the ledger durably at its last confirmed entry.

        Nothing needs to be written: the journal has every entry, and recovery closes the ledger. Only after a failed
        append a new journal file must void what may be left of it.

        Raises:
            HotLogError: An append had failed, and that file cannot be created yet. Close the ledger again before its
                end is recorded elsewhere.
        """
        ledger = self._state
        with self._committer.lock:
            ledger.closed = True
            self._committer.settle(ledger)
        if not self._committer.fence_durable(ledger):
            self._committer.write(b"")
        with self._committer.lock:
            if not ledger.ending and ledger.ledger_id in self._components.book.active:
                self._components.writeback.add_ending(ledger)

    def _view(self) -> _LedgerView:
        """Flushed and unflushed entries, consistent with each other."""
        ledger = self._state
        with self._committer.lock:
            if self._components.book.closed:
                raise HotLogError(f"the hot log at {self._components.paths.root} is closed")
            if ledger.ledger_id not in self._components.book.ids:
                raise LedgerMissing(f"ledger {ledger.ledger_id} was deleted")
            return _LedgerView(ledger.flushed_entries, ledger.flushed_bytes, list(ledger.tail), ledger.entries)

    @contextmanager
    def _files(self) -> Iterator[tuple[int, int]]:
        """The ledger's two files, with errors translated to those of the hot log."""
        files = self._components.files
        with (
            translated_errors(self.ledger_id),
            files.use(self.ledger_id, LedgerFile.FRAMES) as frames,
            files.use(self.ledger_id, LedgerFile.OFFSETS) as offsets,
        ):
            yield frames, offsets
