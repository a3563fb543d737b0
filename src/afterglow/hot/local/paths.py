"""Paths below ``HOME/hot``, and the errors for failures of the disk.

| file | content |
|---|---|
| ``instance`` | id of this hot log; a task that finds the server's id here shares its disk |
| ``lock`` | locked by the one process that writes |
| ``checkpoint`` | state from which the journals are replayed |
| ``published`` | readable end of each open ledger, for other processes |
| ``journal/N.journal`` | journal of acknowledged appends |
| ``ledgers/ID.ledger`` | frames of a ledger's entries, nothing else |
| ``ledgers/ID.offsets`` | end offset of each frame |
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING

from afterglow.errors import DiskFull, HotLogError

if TYPE_CHECKING:
    from pathlib import Path

    from afterglow.hot.local.disk import Disk

_FULL = {errno.ENOSPC, errno.EDQUOT}


@dataclass(frozen=True, slots=True)
class HotLogPaths:
    """Paths of the hot log below a home."""

    home: Path
    """The server's home directory."""

    @property
    def root(self) -> Path:
        """The hot log's own directory."""
        return self.home / "hot"

    @property
    def instance(self) -> Path:
        """The file with the id of this hot log."""
        return self.root / "instance"

    @property
    def lock(self) -> Path:
        """The file that the writing process locks."""
        return self.root / "lock"

    @property
    def checkpoint(self) -> Path:
        """The last checkpoint."""
        return self.root / "checkpoint"

    @property
    def published(self) -> Path:
        """The table of published ends."""
        return self.root / "published"

    @property
    def journals(self) -> Path:
        """The directory of journal files."""
        return self.root / "journal"

    @property
    def ledgers(self) -> Path:
        """The directory of ledger files."""
        return self.root / "ledgers"

    def journal(self, number: int) -> Path:
        """One journal file."""
        return self.journals / f"{number}.journal"

    def frames(self, ledger_id: int) -> Path:
        """A ledger's frames."""
        return self.ledgers / f"{ledger_id}.ledger"

    def offsets(self, ledger_id: int) -> Path:
        """A ledger's offsets."""
        return self.ledgers / f"{ledger_id}.offsets"


def numbered_files(disk: Disk, directory: Path, suffix: str) -> list[int]:
    """The numbers N of all files ``N<suffix>`` in a directory, ascending; other files are ignored."""
    stems = (name.removesuffix(suffix) for name in disk.names(directory) if name.endswith(suffix))
    return sorted(int(stem) for stem in stems if stem.isascii() and stem.isdigit())


def disk_error(error: OSError, what: str) -> HotLogError:
    """The error of the hot log for a failure of the disk."""
    if isinstance(error, HotLogError):
        return error
    if error.errno in _FULL:
        translated: HotLogError = DiskFull(
            f"{what}: the disk is full ({error}); free space below the home, or shorten retention"
        )
    elif error.errno == errno.EROFS:
        translated = HotLogError(f"{what}: the disk is read-only ({error}); mount it writable again")
    else:
        translated = HotLogError(f"{what}: {error}; check the disk")
    translated.__cause__ = error
    return translated
