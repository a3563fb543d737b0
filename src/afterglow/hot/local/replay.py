"""Reading journals back: which files count, up to where, and what is in them.

A torn end is normal in the last file and in no other. Anything else that does not fit is told, never skipped: a journal
that cannot be read is acknowledged entries that cannot be read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from afterglow.errors import HotLogError
from afterglow.format.frames import FRAME, FRAME_BYTES
from afterglow.hot.local.journal import (
    BATCH,
    BATCH_MAGIC,
    HEADER_BYTES,
    JournalHeader,
    batch_crc,
    sections,
)
from afterglow.hot.local.layout import numbered

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afterglow.hot.local.disk import Disk
    from afterglow.hot.local.journal import Section
    from afterglow.hot.local.layout import Layout

__all__ = ["Replay", "frame_sizes"]

_LOOK_BYTES = 1 << 20


def frame_sizes(frames: memoryview) -> list[int]:
    """Bytes of each frame in a section, whose CRC was right."""
    sizes = []
    at = 0
    while at < len(frames):
        size = FRAME_BYTES + FRAME.unpack_from(frames, at)[0]
        sizes.append(size)
        at += size
    return sizes


@dataclass(frozen=True, slots=True)
class _Stretch:
    """The part of one journal file that counts."""

    header: JournalHeader
    end: int | None
    """Bytes that count, or None in the last file: as far as they are whole."""


class Replay:
    """The journals from one number on."""

    def __init__(self, disk: Disk, layout: Layout, first: int) -> None:
        """Find the files that count.

        Args:
            disk: Where they are.
            layout: What they are called.
            first: The first file to replay; 0 where there was no checkpoint yet.

        Raises:
            HotLogError: A file that counts is missing or has no readable header.
        """
        self._disk = disk
        self._layout = layout
        self._numbers = numbered(disk, layout.journals, ".journal")
        self._stretches = self._chain(first)
        self.last = self._stretches[-1].header.number if self._stretches else 0
        """Number of the last file that counts, 0: none."""
        self.last_end = 0
        """Bytes of it that count; known once all sections were read."""

    @property
    def newest(self) -> int:
        """The greatest number that was ever given to a file that is still there; 0: none."""
        return self._numbers[-1] if self._numbers else 0

    def sections(self, *, before: int | None = None) -> Iterator[Section]:
        """Everything the journals tell, oldest first; of files before a number, where one is given.

        Raises:
            HotLogError: A batch that was acknowledged is damaged.
        """
        for stretch in self._stretches:
            if before is not None and stretch.header.number >= before:
                return
            for body in self._batches(stretch):
                yield from sections(memoryview(body))

    def _chain(self, first: int) -> list[_Stretch]:
        """Walk back from the last file with a whole header, each naming the one before."""
        headers = {n: header for n in self._numbers if n >= first and (header := self._header(n)) is not None}
        chain: list[_Stretch] = []
        number, end = max(headers, default=first), None
        while number and number >= first:
            if number not in headers:
                raise HotLogError(
                    f"the journal file {self._layout.journal(number)} is missing, and with it entries that were "
                    "acknowledged; bring it back from a copy"
                )
            header = headers[number]
            chain.append(_Stretch(header, end))
            number, end = header.previous, header.previous_end
        chain.reverse()
        if first and chain[0].header.number != first:
            raise HotLogError(
                f"the journal file {self._layout.journal(first)} is missing, at which the checkpoint says to begin; "
                "bring it back from a copy"
            )
        return chain

    def _header(self, number: int) -> JournalHeader | None:
        path = self._layout.journal(number)
        with self._disk.opened(path) as file:
            header = JournalHeader.decode(self._disk.read(file, HEADER_BYTES, 0))
            # The header was durable before anything was written behind it: a torn one has nothing behind it.
            if header is None and self._disk.size(file) > HEADER_BYTES:
                raise HotLogError(f"the header of the journal file {path} is damaged; bring it back from a copy")
        return header

    def _batches(self, stretch: _Stretch) -> Iterator[bytes]:
        """The sections of each batch of a file."""
        header = stretch.header
        path = self._layout.journal(header.number)
        with self._disk.opened(path) as file:
            size = self._disk.size(file)
            limit = size if stretch.end is None else stretch.end
            at = HEADER_BYTES
            while at < limit and (body := self._batch(file, header, at, min(size, limit))) is not None:
                yield body
                at += BATCH.size + len(body)
            if at != limit and (stretch.end is not None or self._begun_behind(file, header, at, size)):
                raise HotLogError(
                    f"the journal file {path} is damaged at offset {at}, where entries stand that were acknowledged; "
                    "bring it back from a copy"
                )
        self.last_end = at

    def _batch(self, file: int, header: JournalHeader, at: int, limit: int) -> bytes | None:
        """The sections of the batch at an offset, or None where there is no whole one."""
        head = self._disk.read(file, BATCH.size, at) if at + BATCH.size <= limit else b""
        if len(head) < BATCH.size:
            return None
        magic, crc, length, position, file_id = BATCH.unpack(head)
        if (magic, position, file_id) != (BATCH_MAGIC, at, header.file_id):
            return None
        if not 0 <= length <= limit - at - BATCH.size:
            return None
        body = self._disk.read(file, length, at + BATCH.size)
        return body if len(body) == length and batch_crc(head, body) == crc else None

    def _begun_behind(self, file: int, header: JournalHeader, at: int, size: int) -> bool:
        """Tell whether a later batch was begun, which means that the one at ``at`` had been durable."""
        for start in range(at + 1, size, _LOOK_BYTES):
            piece = self._disk.read(file, _LOOK_BYTES + BATCH.size, start)
            found = piece.find(BATCH_MAGIC)
            while found >= 0 and found + BATCH.size <= len(piece):
                _, _, _, position, file_id = BATCH.unpack_from(piece, found)
                if position == start + found and file_id == header.file_id:
                    return True
                found = piece.find(BATCH_MAGIC, found + 1)
        return False
