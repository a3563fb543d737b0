"""What the parts of one local hot log share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from afterglow.hot.local.commit import Committer
    from afterglow.hot.local.disk import Disk
    from afterglow.hot.local.files import OpenFiles
    from afterglow.hot.local.layout import Layout
    from afterglow.hot.local.track import Book
    from afterglow.hot.local.writeback import Writeback

__all__ = ["Machinery"]


@dataclass(frozen=True, slots=True)
class Machinery:
    """The parts, of which each knows those above it only."""

    disk: Disk
    """Calls to the operating system."""

    layout: Layout
    """What files are called."""

    files: OpenFiles
    """Open files of ledgers."""

    book: Book
    """What is known of ledgers."""

    writeback: Writeback
    """Writes ledgers' own files."""

    committer: Committer
    """Writes the journal."""
