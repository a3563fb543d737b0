"""Replay of journals: the chain of valid files, their valid bytes, and the sections in them.

A torn end is normal in the last file only. All other damage is reported, never skipped: a journal that cannot be read
means acknowledged entries that cannot be read.
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
    JournalStart,
    batch_crc,
    sections,
)
from afterglow.hot.local.paths import numbered_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afterglow.hot.local.disk import Disk
    from afterglow.hot.local.journal import Section
    from afterglow.hot.local.paths import HotLogPaths

_SEARCH_BYTES = 1 << 20


def frame_sizes(frames: memoryview) -> list[int]:
    """Bytes of each frame in a section with a valid CRC."""
    sizes = []
    at = 0
    while at < len(frames):
        size = FRAME_BYTES + FRAME.unpack_from(frames, at)[0]
        sizes.append(size)
        at += size
    return sizes


@dataclass(frozen=True, slots=True)
class _CountedFile:
    """A journal file with its valid bytes."""

    header: JournalHeader
    end: int | None
    """Number of valid bytes; None for the last file: up to the first incomplete batch."""


class Replay:
    """The journals from one number on."""

    def __init__(self, disk: Disk, paths: HotLogPaths, first: int) -> None:
        """Find the chain of valid files.

        Args:
            disk: Calls to the operating system.
            paths: Names of the files.
            first: The first file to replay; 0 if there was no checkpoint yet.

        Raises:
            HotLogError: A valid file is missing, or its header is damaged.
        """
        self._disk = disk
        self._paths = paths
        self._numbers = numbered_files(disk, paths.journals, ".journal")
        self._files = self._chain(first)
        self._first = first
        self._last_batch: tuple[int, bytes] | None = None

    @property
    def newest(self) -> int:
        """The greatest number of an existing file; 0: none."""
        return self._numbers[-1] if self._numbers else 0

    def sections(self, *, before: int | None = None) -> Iterator[Section]:
        """All sections, oldest first, except those of the last batch of the last file.

        Args:
            before: Read only files before this number.

        Raises:
            HotLogError: A batch that was acknowledged is damaged.
        """
        for counted in self._files:
            if before is not None and counted.header.number >= before:
                return
            held: tuple[int, bytes] | None = None
            for batch in self._batches(counted):
                if held is not None:
                    yield from sections(memoryview(held[1]))
                held = batch
            if counted.end is None:
                self._last_batch = held
            elif held is not None:
                yield from sections(memoryview(held[1]))

    def resume(self) -> JournalStart:
        """The link for a new file to what is certainly durable, once all sections were read.

        A process that was killed may have written its last batch, or begun its last file, without a sync: it is read
        from the page cache, and the machine may still lose it. So the batch is copied to the new file, and is valid
        when that is durable; and a file without a batch is left out, unless the checkpoint, which came after it,
        begins there.
        """
        if not self._files:
            return JournalStart()
        header = self._files[-1].header
        if self._last_batch is not None:
            return JournalStart(header.number, *self._last_batch)
        if header.number == self._first:
            return JournalStart(header.number, HEADER_BYTES)
        return JournalStart(header.previous, header.previous_end)

    def _chain(self, first: int) -> list[_CountedFile]:
        """Walk back from the last file, since each names the one before; files that none names were abandoned."""
        headers = {number: self._header(number) for number in self._numbers if number >= first}
        chain: list[_CountedFile] = []
        number, end = max(headers, default=first), None
        while number and number >= first:
            if number not in headers:
                raise HotLogError(
                    f"the journal file {self._paths.journal(number)} is missing, and with it acknowledged entries; "
                    "restore it from a copy"
                )
            header = headers[number]
            chain.append(_CountedFile(header, end))
            number, end = header.previous, header.previous_end
        chain.reverse()
        if first and chain[0].header.number != first:
            raise HotLogError(
                f"the journal file {self._paths.journal(first)} is missing, at which the checkpoint begins; restore it "
                "from a copy"
            )
        return chain

    def _header(self, number: int) -> JournalHeader:
        path = self._paths.journal(number)
        with self._disk.opened(path) as file:
            header = JournalHeader.decode(self._disk.read(file, HEADER_BYTES, 0))
        if header is None:
            raise HotLogError(f"the header of the journal file {path} is damaged; restore it from a copy")
        return header

    def _batches(self, counted: _CountedFile) -> Iterator[tuple[int, bytes]]:
        """The offset and the sections of each batch of a file."""
        header = counted.header
        path = self._paths.journal(header.number)
        with self._disk.opened(path) as file:
            size = self._disk.size(file)
            limit = size if counted.end is None else counted.end
            at = HEADER_BYTES
            while at < limit and (body := self._batch(file, header, at, min(size, limit))) is not None:
                yield at, body
                at += BATCH.size + len(body)
            if at != limit and (counted.end is not None or self._begun_after(file, header, at, size)):
                raise HotLogError(
                    f"the journal file {path} is damaged at offset {at}, within acknowledged entries; restore it from "
                    "a copy"
                )

    def _batch(self, file: int, header: JournalHeader, at: int, limit: int) -> bytes | None:
        """The sections of the batch at an offset; None if there is no complete batch."""
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

    def _begun_after(self, file: int, header: JournalHeader, at: int, size: int) -> bool:
        """Whether a later batch was begun, which means that the one at ``at`` had been durable."""
        for start in range(at + 1, size, _SEARCH_BYTES):
            part = self._disk.read(file, _SEARCH_BYTES + BATCH.size, start)
            found = part.find(BATCH_MAGIC)
            while found >= 0 and found + BATCH.size <= len(part):
                _, _, _, position, file_id = BATCH.unpack_from(part, found)
                if position == start + found and file_id == header.file_id:
                    return True
                found = part.find(BATCH_MAGIC, found + 1)
        return False
