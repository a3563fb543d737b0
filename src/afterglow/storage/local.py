"""Object store in a directory: the tier of the embedded server, and a reader of any directory of objects.

The layout is public: key ``K`` is the file ``K``, its user metadata the file ``K.meta.json``. ``.uploads/`` is reserved
for unfinished writes. Listings show neither. A directory without any of these files is readable too; the store creates
nothing before the first write.

Any number of processes of one machine may write; lock files serialize the replacement of a key. Empty directories are
not removed. Symbolic links to files are followed; links to directories are followed by key, but not listed.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import uuid
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from crc32c import crc32c

from afterglow.errors import (
    AccessDenied,
    AfterglowError,
    BucketMissing,
    InvalidName,
    ObjectExists,
    ObjectMissing,
    StorageError,
    StoreUnavailable,
    UploadMissing,
)
from afterglow.storage import durable
from afterglow.storage.local_files import (
    RESERVED,
    LocalUploads,
    info_of,
    metadata_path,
    object_path,
    read_metadata,
    walk,
    write_metadata,
)
from afterglow.storage.store import (
    PAGE_SIZE,
    ObjectPage,
    ObjectStore,
    StoreLimits,
    as_view,
    check_part_number,
    check_parts,
    check_range,
    normal_metadata,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from afterglow.storage.store import Data, ObjectInfo, Part, Upload

__all__ = ["LOCAL_LIMITS", "LocalStore"]

# A key that the file system cannot store, or that has another object's key as a directory (EEXIST, ENOTDIR).
_INVALID_NAME = {errno.EEXIST, errno.EILSEQ, errno.EISDIR, errno.ENAMETOOLONG, errno.ENOTDIR}
_LOCKS = 64  # shared by hash, so that lock files need no clean-up; up to 64 keys can be replaced at once

LOCAL_LIMITS = StoreLimits(
    min_part_bytes=1, max_part_bytes=2**43, max_parts=10_000, max_put_bytes=2**43, max_object_bytes=2**43
)


class LocalStore(ObjectStore):
    """An object store in a directory.

    Args:
        root: The directory.
        create: Create a missing directory, with its parents, at the first write; the store is empty until then.
    """

    def __init__(self, root: str | Path, *, create: bool = False) -> None:
        self._root = Path(root).absolute()
        self._create = create
        reserved = self._root / RESERVED
        self._temporary = reserved / "tmp"
        self._locks = reserved / "locks"
        self._aside = reserved / "replaced"
        self._uploads = LocalUploads(reserved / "multipart", self._temporary)

    def __reduce__(self) -> tuple[object, ...]:
        return _reopen, (str(self._root), self._create)

    def __repr__(self) -> str:
        return f"LocalStore({str(self._root)!r})"

    @property
    def url(self) -> str:
        """``file:///path``."""
        return self._root.as_uri()

    @property
    def limits(self) -> StoreLimits:
        """Limits far above those of file systems."""
        return LOCAL_LIMITS

    def put(self, key: str, data: Data, *, metadata: Mapping[str, str] | None = None, if_absent: bool = False) -> None:
        """Write an object: to a temporary file, synced, then renamed into place."""
        self._path(key)
        normal = normal_metadata(metadata)
        with self._writing(key), self._staged() as staged:
            durable.write_file(staged, [as_view(data)])
            self._publish(key, staged, normal, if_absent=if_absent)

    def get(self, key: str, start: int = 0, end: int | None = None) -> memoryview:
        """Read ``[start, end)`` into one new buffer."""
        with self._reading(key):
            descriptor = os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC)
            try:
                found = os.fstat(descriptor)
                if stat.S_ISDIR(found.st_mode):
                    raise self._missing(key)
                return durable.read_range(descriptor, start, check_range(key, start, end, found.st_size))
            finally:
                os.close(descriptor)

    def head(self, key: str) -> ObjectInfo:
        """Return size, etag, modification time and user metadata of an object."""
        with self._reading(key):
            found, metadata = read_metadata(self._path(key), self._aside_path(key))
            if stat.S_ISDIR(found.st_mode):
                raise self._missing(key)
            return info_of(key, found, metadata)

    def list_page(self, prefix: str = "", start_after: str = "", limit: int = PAGE_SIZE) -> ObjectPage:
        """List objects in key order."""
        found = tuple(islice(self.list(prefix, start_after), limit + 1))
        return ObjectPage(found[:limit], complete=len(found) <= limit)

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
        """List objects in key order, in one walk."""
        with self._reading(prefix):
            if self._has_root():
                yield from walk(self._root, prefix, start_after)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects: first the object, then its metadata, which is not visible without it."""
        targets = [(key, self._path(key)) for key in keys]
        touched = set()
        with self._writing("*"):
            for key, target in targets:
                if (found := durable.status(target)) is None or stat.S_ISDIR(found.st_mode):
                    continue
                with durable.exclusive(self._lock_path(key)):
                    durable.remove(target)
                    durable.remove(metadata_path(target))
                    durable.remove(self._aside_path(key))
                touched.add(target.parent)
            for directory in touched:
                durable.sync_directory(directory)

    def create_upload(self, key: str, *, metadata: Mapping[str, str] | None = None) -> Upload:
        """Begin a multipart upload."""
        self._path(key)
        normal = normal_metadata(metadata)
        with self._writing(key):
            return self._uploads.create(key, normal)

    def upload_part(self, upload: Upload, number: int, data: Data) -> Part:
        """Store one part, synced."""
        check_part_number(number, self.limits)
        with self._writing(upload.key):
            return self._uploads.put_part(upload, number, data)

    def list_parts(self, upload: Upload) -> tuple[Part, ...]:
        """List the stored parts."""
        with self._reading(upload.key):
            return self._uploads.parts(upload)

    def complete_upload(self, upload: Upload, parts: Sequence[Part]) -> None:
        """Join the parts into the object. After a crash at any step it can be called again."""
        with self._writing(upload.key), self._staged() as staged:
            metadata = self._uploads.metadata(upload)
            check_parts(upload.key, parts, self.limits)
            # 1. Join the parts in a temporary file. Crash: the upload is as before.
            try:
                self._uploads.join(upload, parts, staged)
            except FileNotFoundError:
                raise UploadMissing(f"{self.url}: upload of {upload.key!r} ended while it was completed") from None
            # 2. Make it the object. Crash: the upload is still there, completing again publishes the same bytes.
            self._publish(upload.key, staged, metadata, if_absent=False)
            # 3. Discard the upload. Crash: it stays listed until it is completed again or aborted.
            self._uploads.discard(upload)

    def abort_upload(self, upload: Upload) -> None:
        """Discard an upload."""
        with self._writing(upload.key):
            self._uploads.discard(upload)

    def list_uploads(self, prefix: str = "") -> tuple[Upload, ...]:
        """List the unfinished uploads."""
        with self._reading(prefix):
            self._has_root()
            return tuple(upload for upload in self._uploads.all() if upload.key.startswith(prefix))

    def _publish(self, key: str, staged: Path, metadata: dict[str, str], *, if_absent: bool) -> None:
        """Make a synced temporary file the object; :mod:`~afterglow.storage.local_files` has the table of steps."""
        target, aside = self._path(key), self._aside_path(key)
        durable.make_directories(target.parent, self._root)
        with durable.exclusive(self._lock_path(key)):
            old = durable.status(target)
            if old is not None and stat.S_ISDIR(old.st_mode):
                raise InvalidName(f"{self.url} cannot store object key {key!r}: longer keys exist below it")
            if old is not None and if_absent:
                raise self._exists(key)
            modified_ns = _distinct_time(staged, old)
            beside = metadata_path(target)
            if metadata or durable.status(beside) is not None:
                if old is not None:
                    # 1. Keep the old metadata under the old object's time. Crash: an unused file.
                    _, old_metadata = read_metadata(target, aside)
                    write_metadata(self._new_temporary(), aside, old_metadata, old.st_mtime_ns)
                    durable.sync_directory(aside.parent)
                # 2. The new metadata. Crash: an old object still finds its own aside; a new one does not exist yet.
                write_metadata(self._new_temporary(), beside, metadata, modified_ns)
                durable.sync_directory(beside.parent)
            # 3. The object: the commit. Crash: the new object exists.
            if if_absent:
                try:
                    os.link(staged, target)
                except FileExistsError:  # written by another tool, which does not take the lock
                    raise self._exists(key) from None
            else:
                os.rename(staged, target)  # noqa: PTH104 - crash tests step through the calls of os
            durable.sync_directory(target.parent)
            # 4. Remove the old metadata. Crash: an unused file, since its time matches no object.
            durable.remove(aside)

    def _path(self, key: str) -> Path:
        return object_path(self._root, key)

    def _lock_path(self, key: str) -> Path:
        return self._locks / f"{crc32c(key.encode()) % _LOCKS:02}"

    def _aside_path(self, key: str) -> Path:
        return self._aside / f"{hashlib.sha256(key.encode()).hexdigest()}.json"

    def _new_temporary(self) -> Path:
        return self._temporary / uuid.uuid4().hex

    @contextmanager
    def _staged(self) -> Iterator[Path]:
        staged = self._new_temporary()
        try:
            yield staged
        finally:
            durable.remove(staged)

    @contextmanager
    def _writing(self, key: str) -> Iterator[None]:
        with self._errors(key):
            if not self._has_root():
                durable.make_directories(self._root, Path(self._root.anchor))
            for directory in (self._temporary, self._locks, self._aside, self._uploads.directory):
                durable.make_directories(directory, self._root)
            yield

    @contextmanager
    def _reading(self, key: str) -> Iterator[None]:
        with self._errors(key):
            try:
                yield
            except StorageError:
                raise
            except (FileNotFoundError, NotADirectoryError):
                self._has_root()
                raise self._missing(key) from None
            except EOFError as error:
                raise StoreUnavailable(f"{self.url}: object {key!r} was truncated during the read: {error}") from error

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        try:
            yield
        except AfterglowError:
            raise
        except PermissionError as error:
            raise AccessDenied(f"{self.url}: {error}; grant this user access to the directory") from error
        except OSError as error:
            if error.errno in _INVALID_NAME:
                raise InvalidName(f"{self.url} cannot store object key {key!r}: {error.strerror}") from error
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                raise StorageError(
                    f"{self.url} is full: {error.strerror}; free space or choose another tier"
                ) from error
            raise StoreUnavailable(f"{self.url}: {error}") from error

    def _missing(self, key: str) -> ObjectMissing:
        return ObjectMissing(f"{self.url} has no object {key!r}")

    def _exists(self, key: str) -> ObjectExists:
        return ObjectExists(f"{self.url} already has an object {key!r}")

    def _has_root(self) -> bool:
        """Return whether the directory exists; a store that may create it is empty until then.

        Raises:
            BucketMissing: It does not exist and ``create`` is not set.
        """
        if self._root.is_dir():
            return True
        if not self._create:
            raise BucketMissing(f"{self._root} is not a directory; create it, correct the address, or set create=true")
        return False


def _reopen(root: str, create: bool) -> LocalStore:  # noqa: FBT001 - pickle passes arguments by position
    return LocalStore(root, create=create)


def _distinct_time(staged: Path, old: os.stat_result | None) -> int:
    """Return the new object's modification time, different from the old one's: the kernel's clock ticks every 4 ms."""
    modified_ns = os.stat(staged).st_mtime_ns  # noqa: PTH116 - crash tests step through the calls of os
    if old is None or modified_ns != old.st_mtime_ns:
        return modified_ns
    modified_ns += 1
    os.utime(staged, ns=(modified_ns, modified_ns))
    descriptor = os.open(staged, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return modified_ns
