"""Opening a home: bring every ledger to where it was acknowledged, and close those that were open.

Takes time in proportion to what the journals hold since the last checkpoint, plus one look at the names of the ledgers.

What is replayed goes the same way as what is appended: into memory, and by rounds into the ledgers' files, at the place
that the journal names. Nothing is cut before it was written again: another process that reads a ledger meanwhile finds
the bytes that were there. Nothing is synced here: until the first checkpoint the old one and its journals stay, and a
crash has it all done again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from afterglow.errors import HotLogError
from afterglow.hot.local.checkpoint import load_checkpoint
from afterglow.hot.local.journal import SectionKind, sections
from afterglow.hot.local.ledger_state import LedgerState
from afterglow.hot.local.paths import numbered_files
from afterglow.hot.local.replay import Replay, frame_sizes

if TYPE_CHECKING:
    from afterglow.hot.local.checkpoint import Checkpoint, DurableEnd
    from afterglow.hot.local.disk import Disk
    from afterglow.hot.local.journal import JournalStart, Section
    from afterglow.hot.local.ledger_state import LedgerTable
    from afterglow.hot.local.paths import HotLogPaths
    from afterglow.hot.local.writeback import Writeback

_log = logging.getLogger(__name__)

_ROUND_BYTES = 32 << 20  # replayed entries that may gather in memory


class Recovery:
    """One recovery. Nothing else uses the book meanwhile."""

    def __init__(self, disk: Disk, paths: HotLogPaths, book: LedgerTable, writeback: Writeback) -> None:
        self._disk = disk
        self._paths = paths
        self._book = book
        self._writeback = writeback
        self._checkpoint: Checkpoint = load_checkpoint(disk, paths)
        self.journal = self._checkpoint.journal
        """The journal file at which the last checkpoint begins."""
        self._replay = Replay(disk, paths, self.journal)
        self.newest_journal = self._replay.newest
        """The greatest number of a journal file."""

    def replay(self) -> JournalStart:
        """Replay what is certainly durable; gives how a new journal file has to go on from it.

        1. Know the ledgers that the checkpoint lists, as far as they are durable.
        2. Replay the journals. *Crash: done again.*

        Raises:
            HotLogError: Something that was acknowledged cannot be brought back.
            OSError: The disk does not take it. A later try begins again.
        """
        book, checkpoint = self._book, self._checkpoint
        book.ids.update(numbered_files(self._disk, self._paths.ledgers, ".ledger"))
        book.next_ledger_id = checkpoint.next_ledger_id
        book.state.update(checkpoint.state)
        for ledger_id, durable in checkpoint.ledgers.items():
            self._restore(ledger_id, durable)
        for section in self._replay.sections():
            self._apply(section)
            if self._writeback.unflushed_bytes >= _ROUND_BYTES:
                self._writeback.flush()
        return self._replay.resume()

    def finish(self, carried: bytes | None) -> None:
        """Replay the batch that the new journal file carries over, now that it is durable, and close all ledgers.

        Raises:
            HotLogError: Something that was acknowledged cannot be brought back.
            OSError: The disk does not take it. A later try begins again.
        """
        for section in sections(memoryview(carried or b"")):
            self._apply(section)
        self._refuse_unknown()
        self._writeback.flush()
        active = self._book.active
        for ledger_id in [ledger.ledger_id for ledger in active.values() if not ledger.created]:
            del active[ledger_id]
        for ledger in active.values():
            self._writeback.end(ledger)
        self._remove_leftovers()

    def _restore(self, ledger_id: int, durable: DurableEnd) -> None:
        """Take up a ledger that the checkpoint lists."""
        if durable.entries > 0 and ledger_id not in self._book.ids:
            # Its name was durable before the checkpoint: it was deleted while the journal could not be written.
            _log.warning("ledger %d was deleted without a record of it", ledger_id)
            return
        ledger = LedgerState(ledger_id, max(durable.entries, 0), durable.frame_bytes, closed=True)
        ledger.created = durable.entries >= 0
        ledger.head_closed = False
        self._book.active[ledger_id] = ledger
        if not ledger.created:
            return
        self._make(ledger)
        with self._disk.opened(self._paths.frames(ledger_id)) as file:
            if self._disk.size(file) < durable.frame_bytes:
                _log.error(
                    "%s is shorter than the %d bytes that were durable: reads of what is missing will fail",
                    self._paths.frames(ledger_id),
                    durable.frame_bytes,
                )

    def _make(self, ledger: LedgerState) -> None:
        """Make the files of a ledger of which none or one may be there; with durable entries both are."""
        if not ledger.entries:
            self._writeback.create(ledger)
            self._book.ids.add(ledger.ledger_id)

    def _apply(self, section: Section) -> None:
        if section.kind == SectionKind.APPENDED:
            self._append(section)
        elif section.kind == SectionKind.CREATED:
            self._create(section.ledger_id)
        elif section.kind == SectionKind.DELETED:
            self._book.ids.discard(section.ledger_id)
            self._writeback.schedule_delete(section.ledger_id)
            self._writeback.finish_deletes()
        elif section.kind == SectionKind.STATE:
            key, value = bytes(section.data[: section.entry_count]), bytes(section.data[section.entry_count :])
            if section.first < 0:
                self._book.state.pop(key, None)
            else:
                self._book.state[key] = value
        else:
            raise HotLogError(
                f"a journal in {self._paths.journals} holds a record of kind {section.kind}, which this release does "
                "not know: start the release that wrote it"
            )

    def _create(self, ledger_id: int) -> None:
        ledger = self._book.active.get(ledger_id)
        if ledger is None and ledger_id >= self._checkpoint.next_ledger_id:
            ledger = self._book.active[ledger_id] = LedgerState(ledger_id, closed=True)
            ledger.head_closed = False
        if ledger is not None:  # else it was durably closed by the checkpoint
            ledger.created = True
            self._make(ledger)
        self._book.next_ledger_id = max(self._book.next_ledger_id, ledger_id + 1)

    def _append(self, section: Section) -> None:
        ledger = self._book.active.get(section.ledger_id)
        if ledger is None:
            return  # durably closed by the checkpoint, or deleted
        known = ledger.entries - section.first
        if known < 0:
            raise HotLogError(
                f"the journals in {self._paths.journals} lack entries {ledger.entries} to {section.first - 1} of "
                f"ledger {section.ledger_id}; bring them back from a copy"
            )
        if known >= section.entry_count:
            return
        sizes = frame_sizes(section.data)
        frames = section.data[sum(sizes[:known]) :]
        fresh = [ledger] if ledger.confirm(sizes[known:], frames) else []
        ledger.next_entry = ledger.entries
        self._writeback.add_unflushed(fresh, len(frames))

    def _refuse_unknown(self) -> None:
        """Insist that no ledger is newer than checkpoint and journals: then one of these is not the last.

        A ledger's files are made only when its creation is durable in the journal.
        """
        newest = max(self._book.ids, default=0)
        if newest >= self._book.next_ledger_id:
            raise HotLogError(
                f"{self._paths.frames(newest)} is there, but neither {self._paths.checkpoint} nor a journal knows of "
                "it: they are older than the ledgers, or missing; bring them back from a copy"
            )

    def _remove_leftovers(self) -> None:
        """Remove the offsets of ledgers whose deletion a crash cut short."""
        for ledger_id in numbered_files(self._disk, self._paths.ledgers, ".offsets"):
            if ledger_id not in self._book.ids:
                self._disk.unlink(self._paths.offsets(ledger_id))
