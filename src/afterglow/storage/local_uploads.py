"""Multipart uploads of the local store: a directory per upload, a file per part.

``upload.json`` names the key and its metadata; an upload exists exactly as long as that file does. A part is the file
``NNNNN``: its bytes, then their CRC32C in four bytes, big endian, so that bytes and checksum appear in one rename.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crc32c import crc32c

from afterglow.errors import PartMismatch, UploadMissing
from afterglow.storage import durable
from afterglow.storage.store import Part, Upload, as_view

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from afterglow.storage.store import Data

__all__ = ["LocalUploads"]

_RECORD = "upload.json"
_PART = re.compile(r"\d{5}")
_UPLOAD_ID = re.compile(r"[0-9a-f]{32}")
_CHECKSUM_BYTES = 4

_DEBRIS_AGE_S = 24 * 3600
"""No write takes a day, so what is older was left behind by a crash."""


@dataclass(frozen=True, slots=True)
class LocalUploads:
    """The unfinished uploads below a store's reserved directory."""

    directory: Path
    """One directory per upload."""
    temporary: Path
    """Where files are written before they are renamed into place; on the same file system."""

    def create(self, key: str, metadata: Mapping[str, str]) -> Upload:
        """Begin an upload, durably."""
        self._sweep()
        upload = Upload(key, uuid.uuid4().hex, time.time_ns() // 1_000_000)
        home = self.directory / upload.upload_id
        record = {"key": key, "metadata": dict(metadata), "created_ms": upload.created_ms}
        # 1. A directory without a record is no upload; the sweep takes it after a crash.
        durable.make_directories(home, self.directory)
        # 2. The record makes it one.
        self._place(home / _RECORD, [json.dumps(record).encode()])
        return upload

    def put_part(self, upload: Upload, number: int, data: Data) -> Part:
        """Store a part, durably.

        Raises:
            UploadMissing: There is no such upload.
        """
        home = self._home(upload)
        view = as_view(data)
        checksum = crc32c(view)
        try:
            self._place(home / f"{number:05}", [view, checksum.to_bytes(_CHECKSUM_BYTES, "big")])
        except FileNotFoundError:
            raise _missing(upload) from None  # aborted or completed by another process meanwhile
        return _part(number, view.nbytes, checksum)

    def parts(self, upload: Upload) -> tuple[Part, ...]:
        """Tell the parts that are there.

        Raises:
            UploadMissing: There is no such upload.
        """
        home = self._home(upload)
        numbers = sorted(name for name in os.listdir(home) if _PART.fullmatch(name))  # noqa: PTH208 - names only
        return tuple(_read_part(home / name) for name in numbers)

    def join(self, upload: Upload, parts: Sequence[Part], target: Path) -> None:
        """Write the named parts, one after the other, into a new file and sync it.

        Raises:
            UploadMissing: There is no such upload.
            PartMismatch: A part is absent or is not the recorded one.
        """
        home = self._home(upload)
        held = {part.number: part for part in self.parts(upload)}
        for part in parts:
            if part.number not in held or held[part.number].tag != part.tag:
                raise PartMismatch(
                    f"part {part.number} of upload {upload.upload_id} of {upload.key!r} is not as recorded"
                )
        output = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            for part in parts:
                source = os.open(home / f"{part.number:05}", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    durable.append_range(source, output, part.size_bytes)
                finally:
                    os.close(source)
            os.fsync(output)
        finally:
            os.close(output)

    def metadata(self, upload: Upload) -> dict[str, str]:
        """Tell the metadata that the object is to have.

        Raises:
            UploadMissing: There is no such upload.
        """
        metadata: dict[str, str] = json.loads((self._home(upload) / _RECORD).read_bytes())["metadata"]
        return metadata

    def discard(self, upload: Upload) -> None:
        """Remove an upload, if it is there."""
        try:
            home = self._home(upload)
        except UploadMissing:
            return
        # 1. Without its record the upload is gone for everybody; after a crash here the sweep takes the parts.
        durable.remove(home / _RECORD)
        durable.sync_directory(home)
        # 2. Free the space.
        shutil.rmtree(home, ignore_errors=True)

    def all(self) -> tuple[Upload, ...]:
        """Tell every unfinished upload, ascending by key."""
        found = []
        for path in self.directory.glob(f"*/{_RECORD}"):
            try:
                record = json.loads(path.read_bytes())
            except FileNotFoundError:
                continue  # finished meanwhile
            found.append(Upload(record["key"], path.parent.name, record["created_ms"]))
        return tuple(sorted(found, key=lambda upload: (upload.key, upload.upload_id)))

    def _home(self, upload: Upload) -> Path:
        home = self.directory / upload.upload_id
        try:
            if (
                _UPLOAD_ID.fullmatch(upload.upload_id)
                and json.loads((home / _RECORD).read_bytes())["key"] == upload.key
            ):
                return home
        except FileNotFoundError:
            pass
        raise _missing(upload)

    def _place(self, path: Path, pieces: Sequence[Data]) -> None:
        temporary = self.temporary / uuid.uuid4().hex
        try:
            durable.write_file(temporary, pieces)
            os.rename(temporary, path)  # noqa: PTH104 - crash tests step through the calls of os
        except BaseException:
            durable.remove(temporary)
            raise
        durable.sync_directory(path.parent)

    def _sweep(self) -> None:
        """Remove what crashes have left: old temporary files, and directories of uploads without a record."""
        oldest = time.time() - _DEBRIS_AGE_S
        for path in [*self.temporary.iterdir(), *self.directory.iterdir()]:
            found = durable.status(path)
            if found is None or found.st_mtime > oldest or (path / _RECORD).exists():
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                durable.remove(path)


def _missing(upload: Upload) -> UploadMissing:
    return UploadMissing(f"upload {upload.upload_id!r} of {upload.key!r} is not known: completed, aborted or lost")


def _part(number: int, size_bytes: int, checksum: int) -> Part:
    return Part(number, size_bytes, f"{checksum:08x}-{size_bytes:x}", checksum)


def _read_part(path: Path) -> Part:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size_bytes = os.fstat(descriptor).st_size - _CHECKSUM_BYTES
        checksum = int.from_bytes(os.pread(descriptor, _CHECKSUM_BYTES, size_bytes), "big")
    finally:
        os.close(descriptor)
    return _part(int(path.name), size_bytes, checksum)
