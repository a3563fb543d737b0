"""An offload driver for Afterglow: every offloaded ledger, and every segment, is one zip file in a directory.

A member holds up to a megabyte of consecutive entries of one ledger, in Afterglow's frames, and is named
``LEDGER/FIRST-LAST``. So any entry is found by the names alone, and a read decompresses one member.

Each attempt writes a zip file under a temporary name, syncs and renames it: a reader sees a complete file or none, two
attempts of one UUID do not conflict, and the later one replaces the earlier with the same entries.
"""

from __future__ import annotations

import os
import tempfile
from bisect import bisect_right
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile

from afterglow.errors import ConfigError, CorruptBlock, HandleClosed, InvalidPosition, LedgerMissing, ObjectMissing
from afterglow.format.frames import FRAME
from afterglow.format.position import Position
from afterglow.offload.offloader import (
    LedgerCopy,
    LedgerOffloader,
    OffloadHandle,
    OffloadResult,
    TierLocation,
    check_follows,
    frame_run,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from uuid import UUID

    from typing_extensions import Buffer

    from afterglow.config import BrokerConfig
    from afterglow.hot.log import ReadableLedger
    from afterglow.offload.offloader import FrameRun, OffloadedLedger
    from afterglow.tier.locations import Tiers

DRIVER = "zip"
"""The name that ``pyproject.toml`` registers."""
DIRECTORY = "directory"
"""The only setting: the directory of zip files. Kept with every ledger and segment, so that it may be changed later."""
MEMBER_BYTES = 1 << 20


class ZipOffloader(LedgerOffloader):
    """The driver. Created for every use, in the server and in Spark's workers: creation must be cheap.

    Args:
        policy: The topic's effective policy; settings of the driver are in its extra configurations.
        own: The server's own tier; not used.
        tiers: Opens object stores; not used.
    """

    def __init__(self, policy: BrokerConfig, own: TierLocation | None = None, tiers: Tiers | None = None) -> None:  # noqa: ARG002
        self._directory = dict(policy.managed_ledger_extra_configurations).get(DIRECTORY, "")

    @property
    def location(self) -> TierLocation:
        """The directory of new zip files."""
        return TierLocation(DRIVER, self._configured())

    def driver_metadata(self) -> dict[str, str]:
        """The directory, which finds zip files again after a change of policy."""
        return {DIRECTORY: self._configured()}

    def offload(self, ledger: ReadableLedger, uuid: UUID, extra_metadata: Mapping[str, str]) -> None:
        """Copy a closed ledger."""
        handle = ZipHandle(_path(self._configured(), uuid, ledger.ledger_id), uuid, extra_metadata)
        try:
            first = 0
            while first <= ledger.confirmed:
                frames, count = ledger.read_frames(first, MEMBER_BYTES)
                handle.offer_range(frames, Position(ledger.ledger_id, first), count)
                first += count
            handle.result()
        except BaseException:
            handle.abort()
            raise

    def streaming_offload(self, uuid: UUID, driver_metadata: Mapping[str, str]) -> ZipHandle:
        """Begin a segment in the directory to which it was assigned."""
        return ZipHandle(_path(driver_metadata[DIRECTORY], uuid), uuid, driver_metadata)

    def read_offloaded(self, ledger_id: int, context: OffloadedLedger) -> ZipCopy:
        """Open the entries of a ledger in a zip file."""
        directory = context.driver_metadata[DIRECTORY]
        return ZipCopy(_path(directory, context.uuid, None if context.segment else ledger_id), ledger_id)

    def delete_offloaded(self, ledger_id: int | None, uuid: UUID, driver_metadata: Mapping[str, str]) -> None:
        """Delete a zip file, and temporary files that failed attempts have left."""
        path = _path(driver_metadata[DIRECTORY], uuid, ledger_id)
        for each in (path, *_attempts(path)):
            each.unlink(missing_ok=True)

    def _configured(self) -> str:
        if not self._directory:
            raise ConfigError(
                f"offload driver {DRIVER} needs a directory: set {DIRECTORY} in managedLedgerExtraConfigurations"
            )
        return self._directory


class ZipHandle(OffloadHandle):
    """One zip file that is being written.

    Args:
        path: Path of the finished file.
        uuid: UUID of the segment, or of the offload of a ledger.
        comment: Comment of the zip file, for operators.
    """

    def __init__(self, path: Path, uuid: UUID, comment: Mapping[str, str]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        os.close(descriptor)
        self._temporary = Path(name)
        self._zip = ZipFile(self._temporary, "w", ZIP_DEFLATED, compresslevel=1)
        self._zip.comment = "\n".join(f"{key}={value}" for key, value in sorted(comment.items())).encode()
        self._path = path
        self._uuid = uuid
        self._begin: Position | None = None
        self._last: Position | None = None
        self._member = bytearray()
        self._member_first: Position | None = None
        self._closed = False
        self._result: OffloadResult | None = None

    def can_offer(self, size: int) -> bool:  # noqa: ARG002 - every size is accepted, unless the disk is full
        """Whether the handle is open: it writes at once, and accepts every entry."""
        return not self._closed

    def offer_entry(self, ledger_id: int, entry_id: int, data: Buffer) -> bool:
        """Accept an entry."""
        view = memoryview(data).cast("B")
        self._take(Position(ledger_id, entry_id), FRAME.pack(view.nbytes, entry_id) + view, 1)
        return True

    def offer_range(self, buffer: Buffer, first_id: Position, count: int) -> int:
        """Accept framed entries as they are: members hold the same frames."""
        self._take(first_id, memoryview(buffer).cast("B"), count)
        return count

    def last_offered(self) -> Position | None:
        """The last accepted entry."""
        return self._last

    def result(self) -> OffloadResult:
        """Finish the file, sync it, and rename it."""
        if self._result is not None:
            return self._result
        self._check_open()
        if self._begin is None or self._last is None:
            raise InvalidPosition(f"segment {self._uuid} has no entry: offer one, or abort it")
        self._end_member()
        self._closed = True
        self._zip.close()
        try:
            _sync(self._temporary)
            self._temporary.replace(self._path)
        except FileNotFoundError as error:  # the attempt that finished first has deleted it
            if not self._path.exists():
                raise ObjectMissing(f"{self._path} was deleted while it was written") from error
        _sync(self._path.parent)
        for other in _attempts(self._path):  # of workers that died, or are only slow: the file is complete now
            other.unlink(missing_ok=True)
        self._result = OffloadResult(self._uuid, self._begin, self._last)
        return self._result

    def abort(self) -> None:
        """Delete the temporary file; a finished file is kept."""
        self._closed = True
        if self._result is None:
            self._zip.close()
            self._temporary.unlink(missing_ok=True)

    def _check_open(self) -> None:
        if self._closed:
            raise HandleClosed(f"segment {self._uuid} accepts no more entries: it has ended, or was aborted")

    def _take(self, first: Position, frames: Buffer, count: int) -> None:
        self._check_open()
        check_follows(self._uuid, self._last, first)
        started = self._member_first
        if started is not None and (started.ledger_id != first.ledger_id or len(self._member) >= MEMBER_BYTES):
            self._end_member()
        self._member_first = self._member_first or first
        self._member += frames
        self._begin = self._begin or first
        self._last = Position(first.ledger_id, first.entry_id + count - 1)

    def _end_member(self) -> None:
        assert self._member_first is not None
        assert self._last is not None
        first = self._member_first
        self._zip.writestr(f"{first.ledger_id}/{first.entry_id}-{self._last.entry_id}", self._member)
        self._member = bytearray()
        self._member_first = None


class _Member(NamedTuple):
    first: int
    last: int
    """Inclusive."""
    name: str


class ZipCopy(LedgerCopy):
    """Entries of one ledger in a zip file. Thread-safe: every read opens the file for itself.

    Args:
        path: The file.
        ledger_id: The ledger.
    """

    def __init__(self, path: Path, ledger_id: int) -> None:
        self._path = path
        self._ledger_id = ledger_id
        prefix = f"{ledger_id}/"
        with self._open() as archive:
            names = [name for name in archive.namelist() if name.startswith(prefix)]
        ranges = (name.removeprefix(prefix).partition("-") for name in names)
        found = (_Member(int(first), int(last), name) for name, (first, _, last) in zip(names, ranges, strict=True))
        self._members = sorted(found)

    def read(self, first: int, last: int, max_bytes: int) -> FrameRun:
        """Some entries from ``first`` on: those of one member at most."""
        at = bisect_right(self._members, first, key=lambda member: member.first) - 1
        if at < 0 or self._members[at].last < first:
            raise LedgerMissing(f"{self._path} has no entry {self._ledger_id}:{first}")
        member = self._members[at]
        with self._open() as archive:
            try:
                data = archive.read(member.name)
            except BadZipFile as error:
                raise CorruptBlock(f"{self._path}, member {member.name}: {error}") from error
        return frame_run(self._ledger_id, data, member.first, first=first, last=last, max_bytes=max_bytes)

    def scan(self, first: int, last: int) -> Iterator[FrameRun]:
        """All entries, member by member."""
        while first <= last:
            run = self.read(first, last, MEMBER_BYTES << 10)
            yield run
            first = run.frames.end_entry_id

    def _open(self) -> ZipFile:
        try:
            return ZipFile(self._path)
        except FileNotFoundError as error:
            raise ObjectMissing(f"zip file {self._path} does not exist") from error
        except BadZipFile as error:
            raise CorruptBlock(f"{self._path} is not a valid zip file: {error}") from error


def _path(directory: str, uuid: UUID, ledger_id: int | None = None) -> Path:
    return Path(directory) / (f"{uuid}.zip" if ledger_id is None else f"{uuid}-ledger-{ledger_id}.zip")


def _attempts(path: Path) -> list[Path]:
    """Temporary files of a zip file, of attempts that are in progress or have failed."""
    return list(path.parent.glob(f".{path.name}.*.part"))


def _sync(path: Path) -> None:
    """Sync a file, or the names in a directory, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
