"""The one seam to object storage: the protocol, and the records that cross it.

Promised by every store:

* An object appears whole or not at all, and its user metadata with it.
* Once a write returns, its effect is durable and every later ``get`` and ``head``, by any process, sees it. Listings
  may lag behind: what was just written may not be shown yet, and what was just deleted may still be.
* A range arrives whole or as an error, never silently shorter.
* Every call ends within the store's configured time-outs. :class:`~afterglow.errors.StoreTimeout` from a write means
  that its effect is unknown.
* Stores may be shared by threads, and pickled: a copy in another process opens its own connections.
* Keys and metadata obey :mod:`afterglow.storage.names`; metadata keys come back in lower case.

Not promised: a directory tree. A key and a longer key below it (``a`` and ``a/b``) cannot both live in a local
directory. A store may lose an unfinished upload at any time (Azure after a week, others by a bucket's life-cycle rule).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["Data", "ObjectInfo", "ObjectPage", "ObjectStore", "Part", "StoreLimits", "Upload", "as_view"]

Data: TypeAlias = bytes | bytearray | memoryview
"""Bytes to be stored. Wrap any other contiguous buffer (NumPy, Arrow) in a ``memoryview``: it is not copied."""

PAGE_SIZE = 1_000
"""Objects per listing request: the most that S3 gives."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a store tells about one object."""

    key: str
    size_bytes: int
    etag: str
    """Changes whenever the object's bytes change; otherwise opaque, and of another form in each store."""
    modified_ms: int
    """When the object was written, in epoch milliseconds; many stores know only whole seconds."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """User metadata, keys in lower case. Empty in listings, which do not carry it: ask ``head``."""


@dataclass(frozen=True, slots=True)
class ObjectPage:
    """One answer to a listing."""

    objects: tuple[ObjectInfo, ...]
    """Ascending by key, in the order of its UTF-8 bytes."""
    complete: bool
    """True when nothing follows this page."""


@dataclass(frozen=True, slots=True)
class Upload:
    """The identity of an unfinished multipart upload: two strings that another process can go on with after a crash."""

    key: str
    upload_id: str
    created_ms: int = field(default=0, compare=False)
    """When it was created, in epoch milliseconds; 0 where the store does not say. No part of the identity."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part that a store has accepted."""

    number: int
    """From 1 to ``StoreLimits.max_parts``; the object is the parts in ascending order, gaps allowed."""
    size_bytes: int
    tag: str
    """The store's own name for these bytes; completing names it, so that a stale or foreign part is noticed."""
    crc32c: int | None = None
    """CRC32C of the part's bytes; None where a listing does not tell it."""


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """What a store accepts. All sizes in bytes, all bounds inclusive."""

    min_part_bytes: int
    """Least size of every part of an upload but its last."""
    max_part_bytes: int
    max_parts: int
    max_put_bytes: int
    """Largest object that ``put`` takes at once."""
    max_object_bytes: int


@runtime_checkable
class ObjectStore(Protocol):
    """Objects under string keys: immutable bytes with a little user metadata.

    Any call may raise ``StoreUnavailable``, ``StoreThrottled``, ``StoreTimeout``, ``AccessDenied``, ``BucketMissing``,
    and ``InvalidName`` for a key or metadata that no store could keep. ``Raises`` below names only what is particular.
    """

    @property
    def url(self) -> str:
        """The address of this store, without secrets; for messages, and for opening it again."""
        ...

    @property
    def limits(self) -> StoreLimits:
        """What this store accepts."""
        ...

    def put(self, key: str, data: Data, *, metadata: Mapping[str, str] | None = None, if_absent: bool = False) -> None:
        """Write an object, replacing an older one unless ``if_absent``.

        Raises:
            ObjectExists: ``if_absent`` was asked and the key is taken; of many racing writers exactly one succeeds.
        """
        ...

    def get(self, key: str, start: int = 0, end: int | None = None) -> memoryview:
        """Read the bytes ``[start, end)``, by default to the object's end, into one read-only buffer.

        Raises:
            ObjectMissing: No object has that key.
            RangeInvalid: Not ``0 <= start <= end <= size``.
        """
        ...

    def head(self, key: str) -> ObjectInfo:
        """Tell size, etag, time and user metadata of an object.

        Raises:
            ObjectMissing: No object has that key.
        """
        ...

    def list_page(self, prefix: str = "", start_after: str = "", limit: int = PAGE_SIZE) -> ObjectPage:
        """List at most ``limit`` objects whose key starts with ``prefix`` and sorts after ``start_after``.

        ``prefix`` is any string, not a directory: ``a`` matches ``a``, ``ab`` and ``a/b``.
        """
        ...

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
        """List every object whose key starts with ``prefix`` and sorts after ``start_after``, page by page."""
        while True:
            page = self.list_page(prefix, start_after)
            yield from page.objects
            if page.complete or not page.objects:
                return
            start_after = page.objects[-1].key

    def delete(self, keys: Iterable[str]) -> None:
        """Delete any number of objects. A key without an object is no error. On failure some may be gone already."""
        ...

    def create_upload(self, key: str, *, metadata: Mapping[str, str] | None = None) -> Upload:
        """Begin a multipart upload that will become the object ``key`` with this metadata."""
        ...

    def upload_part(self, upload: Upload, number: int, data: Data) -> Part:
        """Store one part; a second time with the same number replaces it. Parts may come in any order and at once.

        Raises:
            UploadMissing: The store does not know the upload.
            PartMismatch: The part number lies outside 1…``max_parts``.
        """
        ...

    def list_parts(self, upload: Upload) -> tuple[Part, ...]:
        """Tell the parts that the store holds, ascending by number.

        Raises:
            UploadMissing: The store does not know the upload.
        """
        ...

    def complete_upload(self, upload: Upload, parts: Sequence[Part]) -> None:
        """Make the named parts, in this order, the object; it appears at once and whole, and the upload is gone.

        Completing again what is already complete either does nothing or raises ``UploadMissing``; the object stays.

        Raises:
            UploadMissing: The store does not know the upload: completed, aborted or lost. ``head`` tells which.
            PartMismatch: A part is absent or has another tag, a part but the last is too small, or the numbers do not
                ascend. Nothing was changed.
        """
        ...

    def abort_upload(self, upload: Upload) -> None:
        """Discard an upload and its parts. An upload that the store does not know is no error."""
        ...

    def list_uploads(self, prefix: str = "") -> tuple[Upload, ...]:
        """Tell the unfinished uploads whose key starts with ``prefix``, ascending by key."""
        ...


def as_view(data: Data) -> memoryview:
    """View a buffer as plain bytes, without copying it."""
    view = memoryview(data)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")
