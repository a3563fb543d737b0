"""Files below the root of a local store: objects, their user metadata, and multipart uploads.

An object's user metadata is the file ``K.meta.json`` beside the file ``K``, a flat JSON object of strings. Two files
cannot be replaced atomically. To show either the old object or the new one after a crash between the two steps, both
files of an object carry the same modification time to the nanosecond, and while an object is being replaced the old
metadata is kept aside with the time of the old object:

====================  =========  ================  ==========  ===================
after the step        ``K``      ``K.meta.json``   kept aside  a reader sees
====================  =========  ================  ==========  ===================
0. before             old        old               -           old
1. old kept aside     old        old               old         old
2. metadata renamed   old        new               old         old: the one aside
3. object renamed     new        new               old         new
4. aside removed      new        new               -           new
====================  =========  ================  ==========  ===================

Files copied by other tools carry arbitrary times; if no metadata kept aside matches, ``K.meta.json`` is used.

A multipart upload is a directory with a file per part. ``upload.json`` holds the key and its metadata; the upload
exists exactly as long as that file does. A part is the file ``NNNNN``: its bytes, then their CRC32C in four bytes,
big-endian, so that bytes and checksum appear in one rename.
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

from afterglow.errors import InvalidName, PartMismatch, StorageError, UploadMissing
from afterglow.storage import durable
from afterglow.storage.store import ObjectInfo, Part, Upload, as_view, check_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from afterglow.storage.store import Data

SUFFIX = ".meta.json"


def metadata_path(target: Path) -> Path:
    """Return the path of the metadata of an object's file."""
    return target.with_name(target.name + SUFFIX)


def read_metadata(target: Path, aside: Path) -> tuple[os.stat_result, dict[str, str]]:
    """Return an object's status and its metadata, even while another process replaces it.

    Raises:
        FileNotFoundError: The object does not exist.
        StorageError: The metadata file is not a flat JSON object of strings.
    """
    while True:
        status = os.stat(target)  # noqa: PTH116 - crash tests step through the calls of os
        beside = _load(metadata_path(target))
        if beside is None:
            return status, {}
        modified_ns, metadata = beside
        if modified_ns == status.st_mtime_ns:
            return status, metadata
        kept = _load(aside)
        if kept is not None and kept[0] == status.st_mtime_ns:
            return status, kept[1]
        if os.stat(target).st_mtime_ns == status.st_mtime_ns:  # noqa: PTH116 - as above
            return status, metadata
        # The object was replaced between the two calls: read again.


def write_metadata(temporary: Path, path: Path, metadata: Mapping[str, str], modified_ns: int) -> None:
    """Write a metadata file with the modification time of its object; its name is not durable yet."""
    text = json.dumps(dict(metadata), indent=1, sort_keys=True) + "\n"
    durable.write_file(temporary, [text.encode()], modified_ns=modified_ns)
    os.rename(temporary, path)  # noqa: PTH104 - crash tests step through the calls of os


def _load(path: Path) -> tuple[int, dict[str, str]] | None:
    try:
        with path.open("rb") as file:
            modified_ns = os.fstat(file.fileno()).st_mtime_ns
            text = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise StorageError(f"{path} is not a flat JSON object of strings; correct or remove it")
    return modified_ns, {key.lower(): item for key, item in value.items()}


RESERVED = ".uploads"
"""Directory of unfinished writes, directly below the root."""


def object_path(root: Path, key: str) -> Path:
    """Return the path of a key's file, below the root.

    Raises:
        InvalidName: The key is malformed or reserved.
    """
    components = check_key(key).split("/")
    if components[0] == RESERVED or any(component.endswith(SUFFIX) for component in components):
        raise InvalidName(f"object key {key!r} is reserved; choose one outside {RESERVED}/ and without {SUFFIX}")
    return root.joinpath(*components)


def info_of(key: str, found: os.stat_result, metadata: Mapping[str, str]) -> ObjectInfo:
    """Describe an object by its file's status."""
    etag = f"{found.st_mtime_ns:x}-{found.st_size:x}"
    return ObjectInfo(key, found.st_size, etag, found.st_mtime_ns // 1_000_000, metadata)


def walk(root: Path, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
    """Yield the objects below a root in key order; directories that cannot contain a match are not opened."""
    yield from _walk(root, root, "", prefix, start_after)


def _walk(root: Path, directory: Path, base: str, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
    found = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                key = base + entry.name
                if entry.is_dir(follow_symlinks=False):
                    key += "/"  # with its slash it sorts where the keys below it do
                    wanted = (key.startswith(prefix) or prefix.startswith(key)) and (
                        key > start_after or start_after.startswith(key)
                    )
                else:
                    wanted = key.startswith(prefix) and key > start_after and entry.is_file()
                if wanted and _can_be_key(root, key.removesuffix("/")):
                    found.append(key)
    except FileNotFoundError:
        return  # removed by another tool in the meantime
    for key in sorted(found):
        if key.endswith("/"):
            yield from _walk(root, root / key, key, prefix, start_after)
        elif (status := durable.status(root / key)) is not None:
            yield info_of(key, status, {})


def _can_be_key(root: Path, key: str) -> bool:
    try:
        object_path(root, key)
    except InvalidName:
        return False
    return True


_RECORD = "upload.json"
_PART = re.compile(r"\d{5}")
_UPLOAD_ID = re.compile(r"[0-9a-f]{32}")
_CHECKSUM_BYTES = 4

_DEBRIS_AGE_S = 24 * 3600
"""No write takes a day, so older temporary files are left from crashes."""


@dataclass(frozen=True, slots=True)
class LocalUploads:
    """The unfinished uploads below a store's reserved directory."""

    directory: Path
    """Has one subdirectory per upload."""
    temporary: Path
    """Directory of files that are not renamed into place yet; on the same file system."""

    def create(self, key: str, metadata: Mapping[str, str]) -> Upload:
        """Begin an upload, durably."""
        self._sweep()
        upload = Upload(key, uuid.uuid4().hex, time.time_ns() // 1_000_000)
        home = self.directory / upload.upload_id
        record = {"key": key, "metadata": dict(metadata), "created_ms": upload.created_ms}
        # 1. Create the directory. Crash: without a record it is not an upload, and the sweep removes it.
        durable.make_directories(home, self.directory)
        # 2. Write the record. Crash: the upload exists.
        self._write_file(home / _RECORD, [json.dumps(record).encode()])
        return upload

    def put_part(self, upload: Upload, number: int, data: Data) -> Part:
        """Store a part, durably.

        Raises:
            UploadMissing: The upload does not exist.
        """
        home = self._home(upload)
        view = as_view(data)
        checksum = crc32c(view)
        try:
            self._write_file(home / f"{number:05}", [view, checksum.to_bytes(_CHECKSUM_BYTES, "big")])
        except FileNotFoundError:
            raise _missing(upload) from None  # aborted or completed by another process in the meantime
        return _part(number, view.nbytes, checksum)

    def parts(self, upload: Upload) -> tuple[Part, ...]:
        """Return the stored parts.

        Raises:
            UploadMissing: The upload does not exist.
        """
        home = self._home(upload)
        numbers = sorted(name for name in os.listdir(home) if _PART.fullmatch(name))  # noqa: PTH208 - names only
        return tuple(_read_part(home / name) for name in numbers)

    def join(self, upload: Upload, parts: Sequence[Part], target: Path) -> None:
        """Write the named parts, one after the other, into a new file and sync it.

        Raises:
            UploadMissing: The upload does not exist.
            PartMismatch: A part is missing or has another tag.
        """
        home = self._home(upload)
        held = {part.number: part for part in self.parts(upload)}
        for part in parts:
            if part.number not in held or held[part.number].tag != part.tag:
                raise PartMismatch(
                    f"part {part.number} of upload {upload.upload_id} of {upload.key!r} is missing or was replaced"
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
        """Return the metadata of the object to be.

        Raises:
            UploadMissing: The upload does not exist.
        """
        metadata: dict[str, str] = json.loads((self._home(upload) / _RECORD).read_bytes())["metadata"]
        return metadata

    def discard(self, upload: Upload) -> None:
        """Remove an upload if it exists."""
        try:
            home = self._home(upload)
        except UploadMissing:
            return
        # 1. Remove the record, and with it the upload. Crash: the sweep removes the parts.
        durable.remove(home / _RECORD)
        durable.sync_directory(home)
        # 2. Free the space.
        shutil.rmtree(home, ignore_errors=True)

    def all(self) -> tuple[Upload, ...]:
        """Return every unfinished upload, ascending by key."""
        found = []
        for path in self.directory.glob(f"*/{_RECORD}"):
            try:
                record = json.loads(path.read_bytes())
            except FileNotFoundError:
                continue  # completed or aborted in the meantime
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

    def _write_file(self, path: Path, buffers: Sequence[Data]) -> None:
        temporary = self.temporary / uuid.uuid4().hex
        try:
            durable.write_file(temporary, buffers)
            os.rename(temporary, path)  # noqa: PTH104 - crash tests step through the calls of os
        except BaseException:
            durable.remove(temporary)
            raise
        durable.sync_directory(path.parent)

    def _sweep(self) -> None:
        """Remove what crashes have left: old temporary files, and upload directories without a record."""
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
    return UploadMissing(f"no upload {upload.upload_id!r} of {upload.key!r} found: completed, aborted or lost")


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
