"""The journal, in which appends are durable before they are acknowledged: its format, and the file that is written.

A journal file is a header and batches. A batch is one group commit: written, synced and acknowledged at once, with one
CRC32C over all of it; so a torn batch is dropped whole, and nothing of it was acknowledged. The next batch is written
only when the one before is durable: a damaged batch with another after it is damage, not a torn write, and is reported.

A batch is a sequence of sections, one for each ledger in it: the section holds frames exactly as in the ledger file,
with their offset there, so that replaying is copying, and replaying twice is harmless.

The header of each file names the file before it and **how many of its bytes are valid**. After a failed write or sync a
file is never written or synced again; what of the failed batch may have reached the disk is void from the moment at
which the next file is durable, which is before anything in that is acknowledged. A file gets its name when its header
is durable: a damaged header was damaged later.

| header | | batch | | section | |
|---|---|---|---|---|---|
| 8 | magic | 4 | magic | 1+3 | kind, zeros |
| 8 | number | 4 | CRC32C of the rest | 4 | entries; state: bytes of the key |
| 8 | random id of the file | 8 | bytes of the sections | 8 | ledger id |
| 8 | number of the file before, 0: none | 8 | offset of the batch in the file | 8 | first entry id; state: -1 removes |
| 8 | valid bytes of it | 8 | id of the file | 8 | offset in the ledger file |
| 4 | CRC32C | | | 8 | bytes that follow |
"""

from __future__ import annotations

import secrets
import struct
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afterglow.hot.local.disk import Disk
    from afterglow.hot.local.paths import HotLogPaths

JOURNAL_MAGIC = b"AGLOWJ1\n"
BATCH_MAGIC = b"\xa6JB\x01"

_HEADER = struct.Struct(">8sqqqqI")
HEADER_BYTES = _HEADER.size
BATCH = struct.Struct(">4sIqqq")
SECTION = struct.Struct(">B3xIqqqq")
_UNCHECKED = 8  # magic and CRC of a batch, which its CRC does not cover


class SectionKind(IntEnum):
    """Kind of a section."""

    APPENDED = 1
    CREATED = 2
    DELETED = 3
    STATE = 4


class Section(NamedTuple):
    """One section of a batch."""

    kind: int
    entry_count: int
    ledger_id: int
    first: int
    start: int
    data: memoryview


@dataclass(frozen=True, slots=True)
class JournalHeader:
    """Header of a journal file."""

    number: int
    """Its number, from 1."""

    file_id: int
    """Random, repeated in every batch of the file: bytes of another file are never mistaken for this one's."""

    previous: int
    """Number of the file before it, 0 for the first."""

    previous_end: int
    """Valid bytes of that file; the rest is void."""

    def encode(self) -> bytes:
        """The header's bytes."""
        fields = (JOURNAL_MAGIC, self.number, self.file_id, self.previous, self.previous_end)
        plain = _HEADER.pack(*fields, 0)[:-4]
        return plain + crc32c(plain).to_bytes(4, "big")

    @classmethod
    def decode(cls, data: bytes) -> JournalHeader | None:
        """The header in a file's first bytes; None if it is damaged."""
        if len(data) < HEADER_BYTES:
            return None
        magic, number, file_id, previous, previous_end, crc = _HEADER.unpack_from(data)
        if magic != JOURNAL_MAGIC or crc != crc32c(data[: HEADER_BYTES - 4]):
            return None
        return cls(number, file_id, previous, previous_end)


class JournalStart(NamedTuple):
    """Link of a new journal file to the one before it."""

    previous: int = 0
    """Number of the file before it; 0: none."""

    previous_end: int = 0
    """Valid bytes of that file."""

    carried: bytes | None = None
    """A batch after these bytes that is copied to the new file."""


def batch_crc(head: bytes, body: bytes | memoryview) -> int:
    """CRC32C of a batch, given its head and its sections."""
    # Releasing the GIL for the tenth of a millisecond that a MiB takes would cost more than it gains.
    return int(crc32c(body, crc32c(head[_UNCHECKED:]), gil_release_mode=0))


def sections(body: memoryview) -> Iterator[Section]:
    """The sections of a batch with a valid CRC."""
    at = 0
    while at < len(body):
        kind, count, ledger_id, first, start, length = SECTION.unpack_from(body, at)
        at += SECTION.size
        yield Section(kind, count, ledger_id, first, start, body[at : at + length])
        at += length


def created_section(ledger_id: int) -> bytes:
    """The record of a ledger's creation."""
    return SECTION.pack(SectionKind.CREATED, 0, ledger_id, 0, 0, 0)


def deleted_section(ledger_id: int) -> bytes:
    """The record of a ledger's deletion."""
    return SECTION.pack(SectionKind.DELETED, 0, ledger_id, 0, 0, 0)


def state_section(key: bytes, value: bytes | None) -> bytes:
    """The record of a key's new value, or with None of its removal."""
    data = key if value is None else key + value
    return SECTION.pack(SectionKind.STATE, len(key), 0, -1 if value is None else 0, 0, len(data)) + data


class JournalFile:
    """The journal file that is being written. Used by one thread."""

    def __init__(self, disk: Disk, paths: HotLogPaths, number: int, start: JournalStart) -> None:
        """Begin a file; it is durable when this returns.

        1. Write and sync it under another name. *Crash: it is ignored.*
        2. Rename it, sync the directory. *Crash: all of it exists or nothing. Once it does, the bytes of the file
           before that it does not count are void, and the batch that it carries over is here.*

        Raises:
            OSError: It could not be created; remains of it are ignored. Its number must not be used again.
        """
        self._disk = disk
        self.number = number
        self.end = HEADER_BYTES
        """Bytes that are durable."""
        self._file_id = secrets.randbits(63)
        draft, path = paths.journals / "next.journal", paths.journal(number)
        disk.unlink(draft)
        self._file = disk.open(draft, write=True, create=True)
        try:
            header = JournalHeader(number, self._file_id, start.previous, start.previous_end)
            disk.write(self._file, header.encode(), 0)
            if start.carried is None:
                disk.sync(self._file)
            else:
                self.append(start.carried)
            disk.rename(draft, path)
            disk.sync_directory(paths.journals)
        except OSError:
            self.close()
            for name in (draft, path):
                with suppress(OSError):
                    disk.unlink(name)
            raise

    @property
    def empty(self) -> bool:
        """Whether it has no batch."""
        return self.end == HEADER_BYTES

    def append(self, body: bytes) -> None:
        """Write one batch and sync it.

        Raises:
            OSError: It may have reached the disk in part, in whole, or not. The file must not be written again.
        """
        head = BATCH.pack(BATCH_MAGIC, 0, len(body), self.end, self._file_id)
        crc = batch_crc(head, body)
        head = BATCH.pack(BATCH_MAGIC, crc, len(body), self.end, self._file_id)
        self._disk.write_buffers(self._file, (head, body), self.end)
        self._disk.sync(self._file)
        self.end += BATCH.size + len(body)

    def close(self) -> None:
        """Close the file, without a sync."""
        self._disk.close(self._file)
