"""Recovery of a home: restore every acknowledged entry, and close the ledgers that were open.

Takes time in proportion to the journals since the last checkpoint, plus one listing of the ledger files.

Replayed entries take the same path as appended ones: into memory, and in rounds into the ledgers' files, at the offset
that the journal records. Nothing is truncated before it was written again: another process that reads a ledger
meanwhile finds the same bytes. Nothing is synced here: until the first checkpoint the old one and its journals stay,
and a crash repeats the recovery.
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

_ROUND_BYTES = 32 << 20  # replayed entries that are buffered in memory


class Recovery:
    """One recovery. Nothing else uses the ledger table meanwhile."""

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
        """Replay what is certainly durable; returns the link for a new journal file.

        1. Restore the ledgers that the checkpoint lists, up to their durable ends.
        2. Replay the journals. *Crash: repeated.*

        Raises:
            HotLogError: An acknowledged entry cannot be recovered.
            OSError: The disk failed. A later attempt begins again.
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
        """Replay the batch that was copied to the new journal file, now that it is durable, and close all ledgers.

        Raises:
            HotLogError: An acknowledged entry cannot be recovered.
            OSError: The disk failed. A later attempt begins again.
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
        """Restore a ledger that the checkpoint lists."""
        if durable.entries > 0 and ledger_id not in self._book.ids:
            # Its name was durable before the checkpoint: it was deleted while the journal could not be written.
            _log.warning("ledger %d was deleted without a record in the journal", ledger_id)
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
                    "%s is shorter than its %d durable bytes: reads of the missing entries will fail",
                    self._paths.frames(ledger_id),
                    durable.frame_bytes,
                )

    def _make(self, ledger: LedgerState) -> None:
        """Create the files of a ledger, of which none or one may exist; with durable entries both do."""
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
                f"a journal in {self._paths.journals} has a record of unknown kind {section.kind}; start the release "
                "that wrote it"
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
                f"ledger {section.ledger_id}; restore them from a copy"
            )
        if known >= section.entry_count:
            return
        sizes = frame_sizes(section.data)
        frames = section.data[sum(sizes[:known]) :]
        fresh = [ledger] if ledger.confirm(sizes[known:], frames) else []
        ledger.next_entry = ledger.entries
        self._writeback.add_unflushed(fresh, len(frames))

    def _refuse_unknown(self) -> None:
        """Refuse ledgers that are newer than checkpoint and journals, which are outdated or missing then.

        A ledger's files are created only when its creation is durable in the journal.
        """
        newest = max(self._book.ids, default=0)
        if newest >= self._book.next_ledger_id:
            raise HotLogError(
                f"{self._paths.frames(newest)} exists, but neither {self._paths.checkpoint} nor a journal has it: they "
                "are older than the ledgers, or missing; restore them from a copy"
            )

    def _remove_leftovers(self) -> None:
        """Remove the offsets of ledgers whose deletion a crash interrupted."""
        for ledger_id in numbered_files(self._disk, self._paths.ledgers, ".offsets"):
            if ledger_id not in self._book.ids:
                self._disk.unlink(self._paths.offsets(ledger_id))
