"""State of ledgers that are not durably closed yet, shared by the threads of the log.

A ledger's entries go through four stages, each a prefix of the one before: appended (queued for the journal),
**confirmed** (durable in the journal; readable), **flushed** (written to the ledger's own files; readable by other
processes), **synced** (durable there; the journal is not needed for them).

Everything here is guarded by the one lock of the table, which is never held during I/O.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from afterglow.hot.local.checkpoint import FIRST_LEDGER_ID

if TYPE_CHECKING:
    from afterglow.hot.log import Completion

    Data = bytes | bytearray | memoryview

NO_SLOT = -1
NOT_FENCED = -1


class UnflushedFrames(NamedTuple):
    """Confirmed entries of one group commit that are not flushed yet."""

    first: int
    """Id of the first entry."""

    sizes: list[int]
    """Bytes of each frame."""

    frames: memoryview
    """The frames."""


class QueuedEntries(NamedTuple):
    """Entries of one ledger that go into one group commit."""

    ledger: LedgerState
    buffers: list[Data]
    """Frame headers and buffers of entries, to be joined."""

    sizes: list[int]
    """Bytes of each frame."""

    dones: list[Completion]
    frame_bytes: int
    """Sum of the sizes."""


class LedgerState:
    """State of one ledger."""

    __slots__ = (
        "buffers",
        "closed",
        "created",
        "dones",
        "durably_closed",
        "ending",
        "entries",
        "fenced_in",
        "flushed_bytes",
        "flushed_entries",
        "frame_bytes",
        "head_closed",
        "ledger_id",
        "next_entry",
        "queued_bytes",
        "sizes",
        "slot",
        "suspect",
        "synced_bytes",
        "synced_entries",
        "tail",
        "unsynced",
    )

    def __init__(self, ledger_id: int, entries: int = 0, frame_bytes: int = 0, *, closed: bool = False) -> None:
        """A ledger whose first ``entries`` entries are durable in its own files."""
        self.ledger_id = ledger_id
        self.slot = NO_SLOT
        # appended
        self.next_entry = entries
        self.buffers: list[Data] = []
        self.sizes: list[int] = []
        self.dones: list[Completion] = []
        self.queued_bytes = 0
        # confirmed
        self.entries = entries
        self.frame_bytes = frame_bytes
        self.tail: list[UnflushedFrames] = []
        # flushed
        self.flushed_entries = entries
        self.flushed_bytes = frame_bytes
        # synced
        self.synced_entries = entries
        self.synced_bytes = frame_bytes

        self.created = True
        """Whether its creation is durable."""
        self.closed = closed
        """Whether it takes no more entries."""
        self.fenced_in = NOT_FENCED
        """Number of the journal file in which an append failed; until another is begun, a crash may bring it back."""
        self.ending = closed
        """Whether its end is known, so that its file may be marked as closed."""
        self.head_closed = closed
        """Whether its file is marked as closed."""
        self.durably_closed = False
        """Whether the mark is durable."""
        self.unsynced = False
        """Whether its files changed since they were last synced."""
        self.suspect = False
        """Whether a sync failed: data written since the last successful one may be lost without an error."""

    @property
    def settled(self) -> bool:
        """Whether no append is in flight."""
        return self.next_entry == self.entries

    def take(self) -> QueuedEntries:
        """Take the queued entries, to be committed."""
        queued = QueuedEntries(self, self.buffers, self.sizes, self.dones, self.queued_bytes)
        self.buffers, self.sizes, self.dones, self.queued_bytes = [], [], [], 0
        return queued

    def confirm(self, sizes: list[int], frames: memoryview) -> bool:
        """Make the next entries readable; returns whether they are the first unflushed ones."""
        tail = self.tail
        tail.append(UnflushedFrames(self.entries, sizes, frames))
        self.entries += len(sizes)
        self.frame_bytes += len(frames)
        return len(tail) == 1

    def fence(self, journal: int) -> list[Completion]:
        """End the ledger at its last confirmed entry; returns the completions of the queued entries."""
        self.closed = True
        self.fenced_in = journal
        self.next_entry = self.entries
        return self.take().dones

    def flushed(self, buffers: int, entries: int, frame_bytes: int) -> None:
        """Record that the first items of the tail are in the ledger's files."""
        del self.tail[:buffers]
        self.flushed_entries += entries
        self.flushed_bytes += frame_bytes
        self.unsynced = True


class LedgerTable:
    """All ledgers of a log, and its keyed state."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Guards the state that the log's threads share."""
        self.active: dict[int, LedgerState] = {}
        """The ledgers that are not durably closed."""
        self.ids: set[int] = set()
        """Ids of all ledgers."""
        self.next_ledger_id = FIRST_LEDGER_ID
        self.state: dict[bytes, bytes] = {}
        self.closing = False
        """Whether the log accepts no more calls that change it."""
        self.closed = False
        """Whether the log cannot be read any more."""
