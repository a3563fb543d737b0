"""Creation of checkpoints: a checkpoint makes the journals before it unnecessary.

1. Begin a new journal file. Everything confirmed so far is in the files before it.
2. Flush all ledgers. Remove the files of deleted ones.
3. Sync the files of every ledger that changed, then the directory. *Crash until here: recovery from the old checkpoint
   and its journals repeats it all.*
4. Store the checkpoint. *Crash: the old or the new one is valid, and the journals of both exist.*
5. Remove the older journals. *Crash: they are removed after the next checkpoint.*

Appends continue meanwhile. A failure at any step leaves the old checkpoint with its journals.

**After a failed sync of a ledger's file** the system may have dropped data that it could not write, and would report
the next sync as a success. So nothing written to that file since its last successful sync is trusted: the next
checkpoint writes it again, from the journals, before it syncs.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from afterglow.hot.local.checkpoint import Checkpoint, DurableEnd, store_checkpoint
from afterglow.hot.local.journal import SectionKind
from afterglow.hot.local.open_files import LedgerFile
from afterglow.hot.local.paths import disk_error, numbered_files
from afterglow.hot.local.replay import Replay, frame_sizes

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.hot.local.ledger import LogComponents
    from afterglow.hot.local.ledger_state import LedgerState

_log = logging.getLogger(__name__)


class Checkpointer:
    """Makes checkpoints, one at a time."""

    def __init__(self, shared: LogComponents) -> None:
        self.journal = 0
        """Number of the journal file at which the last checkpoint begins."""
        self._disk = shared.disk
        self._paths = shared.paths
        self._files = shared.files
        self._book = shared.book
        self._committer = shared.committer
        self._writeback = shared.writeback
        self._one = threading.Lock()

    def make(self, *, rotate: bool, between: Callable[[], None] = lambda: None) -> None:
        """Make a checkpoint.

        Args:
            rotate: Begin a new journal file; else the checkpoint covers everything before the current one.
            between: Called between syncs, each of which may take long.

        Raises:
            HotLogError: The checkpoint failed; the last one stays valid.
        """
        with self._one:
            with self._committer.lock:
                # Everything flushed before the failed sync must be in journal files that are complete.
                rotate = rotate or any(ledger.suspect for ledger in self._book.active.values())
            number = self._committer.rotate() if rotate and not self._committer.fresh else self._committer.number
            try:
                self._writeback.flush()
                self._writeback.finish_deletes()
                self._repair(number)
                with self._committer.lock:
                    changed = [ledger for ledger in self._book.active.values() if ledger.unsynced]
                for ledger in changed:
                    self._sync(ledger)
                    between()
                self._disk.sync_directory(self._paths.ledgers)
                store_checkpoint(self._disk, self._paths, self._describe(number))
            except OSError as error:
                raise disk_error(error, f"cannot make a checkpoint in {self._paths.root}") from error
            self.journal = number
            self._drop_journals()

    def _sync(self, ledger: LedgerState) -> None:
        """Sync both files of a ledger."""
        with self._committer.lock:
            end = ledger.flushed_entries, ledger.flushed_bytes
            closed = ledger.head_closed
            ledger.unsynced = False
        try:
            for part in LedgerFile:
                with self._files.use(ledger.ledger_id, part, write=True) as file:
                    self._disk.sync(file)
        except FileNotFoundError:
            if ledger.ledger_id in self._book.active:
                raise
        except OSError:
            with self._committer.lock:
                ledger.suspect = ledger.unsynced = ledger.closed = True
            raise
        with self._committer.lock:
            ledger.synced_entries, ledger.synced_bytes = end
            ledger.durably_closed = closed

    def _describe(self, number: int) -> Checkpoint:
        """The checkpoint; drops durably closed ledgers from the table."""
        with self._committer.lock:
            active = self._book.active
            for ledger in [ledger for ledger in active.values() if ledger.durably_closed]:
                del active[ledger.ledger_id]
            ledgers = {
                ledger.ledger_id: DurableEnd(ledger.synced_entries if ledger.created else -1, ledger.synced_bytes)
                for ledger in active.values()
            }
            return Checkpoint(number, self._book.next_ledger_id, ledgers, dict(self._book.state))

    def _repair(self, number: int) -> None:
        """Write entries again, from the journals since the last checkpoint, that a failed sync may have dropped."""
        with self._committer.lock:
            suspects = {ledger.ledger_id: ledger for ledger in self._book.active.values() if ledger.suspect}
        if not suspects:
            return
        for section in Replay(self._disk, self._paths, self.journal).sections(before=number):
            ledger = suspects.get(section.ledger_id)
            if section.kind == SectionKind.APPENDED and ledger is not None:
                sizes = frame_sizes(section.data)
                self._writeback.write_frames(ledger.ledger_id, [section.data], section.start)
                self._writeback.write_offsets(ledger.ledger_id, section.first, section.start, sizes)
        for ledger in suspects.values():
            self._writeback.write_head(ledger)
            with self._committer.lock:
                ledger.suspect = False
                ledger.unsynced = True

    def _drop_journals(self) -> None:
        for number in numbered_files(self._disk, self._paths.journals, ".journal"):
            if number < self.journal:
                try:
                    self._disk.unlink(self._paths.journal(number))
                except OSError as error:
                    _log.warning("cannot remove %s: %s", self._paths.journal(number), error)
