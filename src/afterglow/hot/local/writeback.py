"""Writing behind: confirmed entries go from memory to the ledgers' own files, in larger pieces, off the path of acks.

A round writes what gathered in some 100 ms: for each ledger one piece of frames and one of offsets, for all of them one
write that publishes their new ends. So a ledger costs two writes in a round however many group commits it was in, and
what is published is always written. Entries that are not flushed yet are read from memory.

A ledger whose files cannot be written takes no more entries: what it has stays in memory and in the journal, and is
tried again in each round.
"""

from __future__ import annotations

import threading
from itertools import accumulate, chain, islice
from typing import TYPE_CHECKING

import numpy as np

from afterglow.hot.local.files import Part
from afterglow.hot.local.layout import explain
from afterglow.hot.local.stored import Head, end_offset
from afterglow.hot.local.track import NO_SLOT, Piece

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.errors import HotLogError
    from afterglow.hot.local.disk import Disk
    from afterglow.hot.local.files import OpenFiles
    from afterglow.hot.local.layout import Layout
    from afterglow.hot.local.published import PublishedEnds
    from afterglow.hot.local.track import Book, Track

__all__ = ["Writeback"]


class Writeback:
    """Everything that writes to ledgers' files. Rounds do not overlap."""

    def __init__(self, disk: Disk, layout: Layout, files: OpenFiles, book: Book) -> None:
        self.published: PublishedEnds | None = None
        """The table of ends, where others may read."""
        self.unflushed_bytes = 0
        """Bytes that only the journal and memory have."""
        self.nudge: Callable[[], None] = lambda: None
        """Called under the lock when a round has something to do."""
        self._disk = disk
        self._layout = layout
        self._files = files
        self._book = book
        self._lock = book.lock
        self._round = threading.RLock()
        self._unflushed: list[Track] = []
        self._ending: list[Track] = []
        self._doomed: set[int] = set()

    def note(self, tracks: list[Track], frame_bytes: int) -> None:
        """Have ledgers flushed by the next round. The lock is held."""
        self._unflushed += tracks
        self.unflushed_bytes += frame_bytes
        self.nudge()

    def note_ending(self, track: Track) -> None:
        """Have a ledger's file say that it is closed, once all its entries are there. The lock is held."""
        track.ending = True
        self._ending.append(track)
        self.nudge()

    def create(self, track: Track) -> None:
        """Make a ledger's files, or begin to use those that a crash left.

        Raises:
            OSError: They cannot be made.
        """
        with self._round:
            if self.published is not None:
                track.slot = self.published.take()
                self.published.set(track.slot, track.ledger_id, 0, 0)
            for path in (self._layout.frames(track.ledger_id), self._layout.offsets(track.ledger_id)):
                self._disk.close(self._disk.open(path, write=True, create=True))
            self._write_head(track, closed=False)
            if self.published is not None:
                self.published.publish()
            with self._lock:
                track.unsynced = True

    def flush(self) -> None:
        """Do one round.

        1. For each ledger, write its frames, then its offsets. *Crash: the journal has them.*
        2. Close those that are to be closed.
        3. Publish the ends of all.

        Raises:
            HotLogError: Some of it could not be done, and will be tried again.
        """
        with self._round:
            with self._lock:
                unflushed, self._unflushed = self._unflushed, []
                ending, self._ending = self._ending, []
            failure: HotLogError | None = None
            for track in unflushed:
                try:
                    self._flush(track)
                except OSError as error:
                    failure = explain(error, f"ledger {track.ledger_id} could not be written")
                    with self._lock:
                        track.closed = True
                        self._unflushed.append(track)
            for track in ending:
                try:
                    self._close(track)
                except OSError as error:
                    failure = explain(error, f"ledger {track.ledger_id} could not be closed")
                    with self._lock:
                        self._ending.append(track)
            if self.published is not None:
                try:
                    self.published.publish()
                except OSError as error:
                    failure = explain(error, f"{self._layout.published} could not be written")
            if failure is not None:
                raise failure

    def doom(self, ledger_id: int) -> None:
        """Have a ledger's files removed, at the latest before the next checkpoint. The lock is held."""
        self._doomed.add(ledger_id)

    def finish_deletes(self) -> None:
        """Remove the files of all ledgers that are to be deleted: the frames first, without which there is no ledger.

        Raises:
            OSError: Some could not be removed; they stay doomed.
        """
        with self._round:
            for ledger_id in list(self._doomed):
                self._drop(ledger_id)
                self._disk.unlink(self._layout.frames(ledger_id))
                self._disk.unlink(self._layout.offsets(ledger_id))
                self._files.forget(ledger_id)  # now that nobody can open them again: open files would keep their room
                with self._lock:
                    self._doomed.discard(ledger_id)

    def end(self, track: Track) -> None:
        """Close a ledger that a crash left open: cut its files behind its last entry.

        Raises:
            OSError: They cannot be written.
        """
        with self._files.use(track.ledger_id, Part.FRAMES, write=True) as file:
            self._disk.truncate(file, track.flushed_bytes)
        with self._files.use(track.ledger_id, Part.OFFSETS, write=True) as file:
            self._disk.truncate(file, end_offset(track.flushed_entries))
        self._close(track)

    def write_offsets(self, ledger_id: int, first: int, start: int, sizes: list[int]) -> None:
        """Write the offsets behind frames that begin with entry ``first`` at offset ``start``.

        Raises:
            OSError: The file cannot be written.
        """
        ends = np.fromiter(islice(accumulate(sizes, initial=start), 1, None), "<i8", len(sizes))
        with self._files.use(ledger_id, Part.OFFSETS, write=True) as file:
            self._disk.write(file, ends.tobytes(), end_offset(first))

    def write_frames(self, ledger_id: int, frames: list[memoryview], start: int) -> None:
        """Write frames to their place in a ledger's file.

        Raises:
            OSError: The file cannot be written.
        """
        with self._files.use(ledger_id, Part.FRAMES, write=True) as file:
            self._disk.write_pieces(file, frames, start)

    def write_head(self, track: Track) -> None:
        """Write the head again, as it should be.

        Raises:
            OSError: The file cannot be written.
        """
        self._write_head(track, closed=track.head_closed)

    def _drop(self, ledger_id: int) -> None:
        """Know a ledger no more."""
        with self._lock:
            track = self._book.active.pop(ledger_id, None)
            if track is None:
                return
            self.unflushed_bytes -= sum(len(piece.frames) for piece in track.tail)
            track.tail.clear()
        self._give_slot_back(track)

    def _give_slot_back(self, track: Track) -> None:
        if self.published is not None and track.slot != NO_SLOT:
            self.published.give_back(track.slot)
            track.slot = NO_SLOT

    def _flush(self, track: Track) -> None:
        with self._lock:
            pieces = list(track.tail)
        if not pieces:
            return  # deleted meanwhile
        sizes = list(chain.from_iterable(piece.sizes for piece in pieces))
        frames = [piece.frames for piece in pieces]
        frame_bytes = sum(map(len, frames))
        try:
            self.write_frames(track.ledger_id, frames, track.flushed_bytes)
            self.write_offsets(track.ledger_id, track.flushed_entries, track.flushed_bytes, sizes)
        except OSError:
            # The pieces are views of whole groups, of which each holds every ledger's entries in memory.
            with self._lock:
                track.tail[: len(pieces)] = [Piece(pieces[0].first, sizes, memoryview(b"".join(frames)))]
            raise
        with self._lock:
            track.flushed(len(pieces), len(sizes), frame_bytes)
            self.unflushed_bytes -= frame_bytes
            if track.tail:
                self._unflushed.append(track)
        if self.published is not None and track.slot != NO_SLOT:
            self.published.set(track.slot, track.ledger_id, track.flushed_entries, track.flushed_bytes)

    def _close(self, track: Track) -> None:
        with self._lock:
            if track.tail or not track.settled:
                self._ending.append(track)  # in a later round
                return
            if track.ledger_id not in self._book.active:
                return  # deleted meanwhile
        self._write_head(track, closed=True)
        with self._lock:
            track.head_closed = True
            track.unsynced = True
        self._give_slot_back(track)

    def _write_head(self, track: Track, *, closed: bool) -> None:
        end = (track.flushed_entries, track.flushed_bytes) if closed else (0, 0)
        head = Head(track.ledger_id, track.slot, closed, *end)
        with self._files.use(track.ledger_id, Part.OFFSETS, write=True) as file:
            self._disk.write(file, head.encode(), 0)
