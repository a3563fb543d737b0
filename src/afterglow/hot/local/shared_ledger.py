"""Ledgers of a home read from another process: by a Spark task on the same disk, or beside a running server.

While the server runs, an open ledger is readable up to its published end, which follows confirmation by some 100 ms,
and grows while it is read. Without a server, only the part that is durable by the last checkpoint is readable: after
that a crash of the machine may have left anything. To read the rest, recover the home by opening a
:class:`~afterglow.hot.local.log.LocalLog`.

Nothing here writes.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from afterglow.errors import CorruptBlock, LedgerMissing
from afterglow.format.frames import FRAME_BYTES
from afterglow.hot.local.checkpoint import load_checkpoint
from afterglow.hot.local.disk import Disk
from afterglow.hot.local.ledger_files import (
    HEAD_BYTES,
    LedgerHead,
    read_entries,
    read_fitting,
    read_offsets,
    translated_errors,
)
from afterglow.hot.local.paths import HotLogPaths
from afterglow.hot.local.published_ends import PublishedView, ReadableEnd

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

_MAX_REREADS = 1_000  # the head is written in one call, and never seen torn this often in a row


def read_instance(home: Path) -> str | None:
    """The id of the hot log in a home; None if none exists. A task that finds the server's id shares its disk."""
    try:
        return HotLogPaths(home).instance.read_text("ascii").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None


def open_shared(home: Path, ledger_id: int, *, disk: Disk | None = None) -> SharedLedger:
    """Open a ledger of a home for reading.

    Raises:
        LedgerMissing: The ledger does not exist, or its readable end is unknown.
        HotLogError: The ledger cannot be read.
    """
    return SharedLedger(disk or Disk(), HotLogPaths(home), ledger_id)


class SharedLedger:
    """A ledger that another process may be writing."""

    def __init__(self, disk: Disk, paths: HotLogPaths, ledger_id: int) -> None:
        """Open a ledger; see :func:`open_shared`."""
        self._disk = disk
        self._paths = paths
        self._ledger_id = ledger_id
        self._final: ReadableEnd | None = None
        self._closed = False
        self._published: PublishedView | None = None
        with ExitStack() as held, translated_errors(self._ledger_id):
            self._frames = disk.open(paths.frames(ledger_id))
            held.callback(disk.close, self._frames)
            self._offsets = disk.open(paths.offsets(ledger_id))
            held.callback(disk.close, self._offsets)
            published = PublishedView(disk, paths)
            held.callback(published.close)
            if published.live:
                self._published = published
            self._end()
            self._held = held.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def ledger_id(self) -> int:
        """Its id."""
        return self._ledger_id

    @property
    def confirmed(self) -> int:
        """Id of the last entry that may be read; -1 if none exists. It grows while the ledger is written."""
        return self._end().entries - 1

    @property
    def size_bytes(self) -> int:
        """Bytes of the entries that may be read, without frames."""
        end = self._end()
        return end.frame_bytes - FRAME_BYTES * end.entries

    @property
    def closed(self) -> bool:
        """Whether the ledger is known to be closed."""
        self._end()
        return self._closed

    def read(self, first: int, last: int) -> list[bytes | memoryview]:
        """The entries ``first`` to ``last``, both inclusive; fewer where ``last`` may not be read yet.

        Raises:
            CorruptBlock: A stored entry is damaged.
        """
        first, last = max(first, 0), min(last, self.confirmed)
        if first > last:
            return []
        with translated_errors(self._ledger_id):
            return read_entries(self._disk, self._frames, self._offsets, first, last)

    def read_frames(self, first: int, max_bytes: int) -> tuple[memoryview, int]:
        """Entries from ``first`` on as contiguous frames, with their number; at least one if one may be read.

        Raises:
            CorruptBlock: A stored entry is damaged.
        """
        end = self._end().entries
        if not 0 <= first < end:
            return memoryview(b""), 0
        with translated_errors(self._ledger_id):
            return read_fitting(self._disk, self._frames, self._offsets, first, end=end, max_bytes=max_bytes)

    def read_into(self, first: int, last: int, target: memoryview) -> None:
        """Read the frames of the entries ``first`` to ``last``, both inclusive, into a buffer that they must fill.

        The frames are not checked.

        Raises:
            IndexError: ``first`` to ``last`` is not a range of entries that may be read.
            CorruptBlock: The frames have another length, or the file ends before them.
        """
        start, end = int(self.offsets(first, first)[0]), int(self.offsets(last, last)[1])
        with translated_errors(self._ledger_id):
            if end - start != target.nbytes:
                raise CorruptBlock(f"entries {first} to {last} have {end - start} bytes of frames, not {target.nbytes}")
            if (came := self._disk.read_into(self._frames, target, start)) < target.nbytes:
                raise CorruptBlock(f"the file of frames ends at {start + came}, within entries that were confirmed")

    def offsets(self, first: int, last: int) -> NDArray[np.int64]:
        """Offset of each frame from entry ``first`` to ``last`` in the ledger's file, and the end of the last one.

        Raises:
            IndexError: ``first`` to ``last`` is not a range of entries that may be read.
            CorruptBlock: A stored entry is damaged.
        """
        end = self._end().entries
        if not 0 <= first <= last < end:
            raise IndexError(f"entries {first} to {last} are not among the {end} readable ones of {self._ledger_id}")
        with translated_errors(self._ledger_id):
            return read_offsets(self._disk, self._offsets, first, last)

    def close(self) -> None:
        """Close the files."""
        self._held.close()

    def _end(self) -> ReadableEnd:
        """The current readable end."""
        if self._final is not None:
            return self._final
        if self._published is None:
            return self._durable_end()
        head = self._head()
        if not head.closed:
            end = self._published.end(head.slot, self._ledger_id)
            if end is not None:
                return end
            head = self._head()  # it was closed in between, before its slot was given to another
        if not head.closed:
            raise LedgerMissing(f"ledger {self._ledger_id} in {self._paths.ledgers} was deleted")
        return self._ended(head)

    def _durable_end(self) -> ReadableEnd:
        """The end by the last checkpoint, without a running writer."""
        checkpoint = load_checkpoint(self._disk, self._paths)
        durable = checkpoint.ledgers.get(self._ledger_id)
        if durable is None and self._ledger_id < checkpoint.next_ledger_id:
            return self._ended(self._head())
        self._final = (
            ReadableEnd(0, 0) if durable is None else ReadableEnd(max(durable.entries, 0), durable.frame_bytes)
        )
        return self._final

    def _ended(self, head: LedgerHead) -> ReadableEnd:
        self._closed = True
        self._final = ReadableEnd(head.entries, head.frame_bytes)
        return self._final

    def _head(self) -> LedgerHead:
        for _ in range(_MAX_REREADS):
            head = LedgerHead.decode(self._disk.read(self._offsets, HEAD_BYTES, 0))
            if head is not None and head.ledger_id == self._ledger_id:
                return head
        raise CorruptBlock(f"the head of {self._paths.offsets(self._ledger_id)} is damaged; restore it from a copy")
