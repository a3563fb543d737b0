"""Object store in the memory of this process: for tests, and the reference implementation of the protocol.

Buckets are named and global to the process, so that two stores of ``memory://name`` see the same objects. They are not
shared with other processes: an unpickled store finds its bucket in the process that created it, elsewhere an empty one.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from crc32c import crc32c

from afterglow.errors import ObjectExists, ObjectMissing, PartMismatch, UploadMissing
from afterglow.storage.store import (
    PAGE_SIZE,
    ObjectInfo,
    ObjectPage,
    ObjectStore,
    Part,
    StoreLimits,
    Upload,
    as_view,
    check_key,
    check_part_number,
    check_parts,
    check_range,
    normal_metadata,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from afterglow.storage.store import Data

__all__ = ["MEMORY_LIMITS", "MemoryStore"]

MEMORY_LIMITS = StoreLimits(
    min_part_bytes=1, max_part_bytes=2**40, max_parts=10_000, max_put_bytes=2**40, max_object_bytes=2**40
)


@dataclass(slots=True)
class _Pending:
    upload: Upload
    metadata: dict[str, str]
    parts: dict[int, tuple[Part, bytes]] = field(default_factory=dict)


@dataclass(slots=True, weakref_slot=True)
class _Bucket:
    lock: Lock = field(default_factory=Lock)
    objects: dict[str, tuple[ObjectInfo, bytes]] = field(default_factory=dict)
    uploads: dict[str, _Pending] = field(default_factory=dict)


_registry_lock = Lock()
_buckets: WeakValueDictionary[str, _Bucket] = WeakValueDictionary()
_named: dict[str, _Bucket] = {}  # keeps named buckets alive between opens; the others are freed with their last store


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def _random_id() -> str:
    return uuid.uuid4().hex


class MemoryStore(ObjectStore):
    """An object store in memory; without a name it has a bucket of its own.

    Args:
        name: Name of the bucket. A pickled copy uses the same bucket, with the default clock and ids.
        now_ms: Clock for the times of objects and uploads.
        new_id: Generates upload ids.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        now_ms: Callable[[], int] = _wall_clock_ms,
        new_id: Callable[[], str] = _random_id,
    ) -> None:
        self._now_ms = now_ms
        self._new_id = new_id
        self._name = name if name is not None else f"unnamed-{uuid.uuid4()}"
        with _registry_lock:
            self._bucket = _buckets.setdefault(self._name, _Bucket())
            if name is not None and not name.startswith("unnamed-"):
                _named[name] = self._bucket

    def __reduce__(self) -> tuple[type[MemoryStore], tuple[str]]:
        return type(self), (self._name,)

    def __repr__(self) -> str:
        return f"MemoryStore({self._name!r})"

    @property
    def url(self) -> str:
        """``memory://name``."""
        return f"memory://{self._name}"

    @property
    def limits(self) -> StoreLimits:
        """Limits far above the machine's memory."""
        return MEMORY_LIMITS

    def put(self, key: str, data: Data, *, metadata: Mapping[str, str] | None = None, if_absent: bool = False) -> None:
        """Write an object."""
        check_key(key)
        self._store(key, bytes(data), normal_metadata(metadata), if_absent=if_absent)

    def get(self, key: str, start: int = 0, end: int | None = None) -> memoryview:
        """Read ``[start, end)``: a view of the stored bytes, not a copy."""
        info, data = self._object(key)
        return memoryview(data)[start : check_range(key, start, end, info.size_bytes)]

    def head(self, key: str) -> ObjectInfo:
        """Return size, etag, modification time and user metadata of an object."""
        info = self._object(key)[0]
        return replace(info, metadata=dict(info.metadata))

    def list_page(self, prefix: str = "", start_after: str = "", limit: int = PAGE_SIZE) -> ObjectPage:
        """List objects in key order."""
        with self._bucket.lock:
            found = [info for key, (info, _) in self._bucket.objects.items() if key.startswith(prefix)]
        # Strings sort by code point, which is also the order of their UTF-8 bytes.
        rest = sorted((info for info in found if info.key > start_after), key=lambda info: info.key)
        listed = (ObjectInfo(info.key, info.size_bytes, info.etag, info.modified_ms) for info in rest[:limit])
        return ObjectPage(tuple(listed), complete=len(rest) <= limit)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects."""
        for key in keys:
            check_key(key)
            with self._bucket.lock:
                self._bucket.objects.pop(key, None)

    def create_upload(self, key: str, *, metadata: Mapping[str, str] | None = None) -> Upload:
        """Begin a multipart upload."""
        upload = Upload(check_key(key), self._new_id(), self._now_ms())
        pending = _Pending(upload, normal_metadata(metadata))
        with self._bucket.lock:
            self._bucket.uploads[upload.upload_id] = pending
        return upload

    def upload_part(self, upload: Upload, number: int, data: Data) -> Part:
        """Store one part."""
        check_part_number(number, self.limits)
        view = as_view(data)
        checksum = crc32c(view)
        part = Part(number, view.nbytes, f"{checksum:08x}-{view.nbytes:x}", checksum)
        copy = bytes(view)
        with self._bucket.lock:
            self._pending(upload).parts[number] = (part, copy)
        return part

    def list_parts(self, upload: Upload) -> tuple[Part, ...]:
        """List the stored parts."""
        with self._bucket.lock:
            parts = self._pending(upload).parts
            return tuple(parts[number][0] for number in sorted(parts))

    def complete_upload(self, upload: Upload, parts: Sequence[Part]) -> None:
        """Join the parts into the object."""
        with self._bucket.lock:
            pending = self._pending(upload)
            check_parts(upload.key, parts, self.limits)
            for part in parts:
                held = pending.parts.get(part.number)
                if held is None or held[0].tag != part.tag:
                    raise PartMismatch(f"{self.url}: part {part.number} of {upload.key!r} is missing or was replaced")
            data = b"".join(pending.parts[part.number][1] for part in parts)
            self._store_locked(upload.key, data, pending.metadata)
            del self._bucket.uploads[upload.upload_id]

    def abort_upload(self, upload: Upload) -> None:
        """Discard an upload."""
        with self._bucket.lock:
            self._bucket.uploads.pop(upload.upload_id, None)

    def list_uploads(self, prefix: str = "") -> tuple[Upload, ...]:
        """List the unfinished uploads."""
        with self._bucket.lock:
            uploads = [pending.upload for pending in self._bucket.uploads.values()]
        found = (upload for upload in uploads if upload.key.startswith(prefix))
        return tuple(sorted(found, key=lambda upload: (upload.key, upload.upload_id)))

    def _object(self, key: str) -> tuple[ObjectInfo, bytes]:
        check_key(key)
        with self._bucket.lock:
            found = self._bucket.objects.get(key)
        if found is None:
            raise ObjectMissing(f"{self.url} has no object {key!r}")
        return found

    def _pending(self, upload: Upload) -> _Pending:
        pending = self._bucket.uploads.get(upload.upload_id)
        if pending is None or pending.upload != upload:
            raise UploadMissing(f"{self.url}: no upload {upload.upload_id!r} of {upload.key!r} found")
        return pending

    def _store(self, key: str, data: bytes, metadata: dict[str, str], *, if_absent: bool) -> None:
        with self._bucket.lock:
            if if_absent and key in self._bucket.objects:
                raise ObjectExists(f"{self.url} already has an object {key!r}")
            self._store_locked(key, data, metadata)

    def _store_locked(self, key: str, data: bytes, metadata: dict[str, str]) -> None:
        etag = f"{crc32c(data):08x}-{len(data):x}"
        info = ObjectInfo(key, len(data), etag, self._now_ms(), metadata)
        self._bucket.objects[key] = (info, data)
