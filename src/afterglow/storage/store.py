"""The protocol of object stores, the records that cross it, and the rules for keys, metadata and parts.

Promised by every store:

* An object appears whole or not at all, and its user metadata with it.
* Once a write returns, its effect is durable and every later ``get`` and ``head``, by any process, sees it. Listings
  may lag behind: what was just written may not be shown yet, and what was just deleted may still be.
* A range arrives whole or as an error, never silently shorter.
* Every call ends within the store's configured time-outs. :class:`~afterglow.errors.StoreTimeout` from a write means
  that its effect is unknown.
* Stores may be shared by threads, and pickled: a copy in another process opens its own connections.
* Keys and metadata obey one rule for all stores (:func:`check_key`, :func:`normal_metadata`); metadata keys come
  back in lower case.

Not promised: a directory tree. A key and a longer key below it (``a`` and ``a/b``) cannot both live in a local
directory. A store may lose an unfinished upload at any time (Azure after a week, others by a bucket's life-cycle rule).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from afterglow.errors import InvalidName, PartMismatch, RangeInvalid

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

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


MAX_KEY_BYTES = 1_024
"""S3, GCS and Azure agree on this."""

MAX_METADATA_BYTES = 2_048
"""S3's limit over all keys and values together; the others allow more."""

# Metadata travels as HTTP headers: keys are header tokens, values visible ASCII that survives trimming.
_METADATA_KEY = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")
_METADATA_VALUE = re.compile(r"[!-~]([ -~]*[!-~])?|")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def check_key(key: str) -> str:
    """Give the key back if every store can keep it.

    Raises:
        InvalidName: The key is empty, too long, absolute, not Unicode text, or has an empty, ``.`` or ``..`` component
            or a control character.
    """
    try:
        size_bytes = len(key.encode())
    except UnicodeEncodeError:
        raise InvalidName(f"object key {key!r} is not valid Unicode text") from None
    if not 0 < size_bytes <= MAX_KEY_BYTES:
        raise InvalidName(f"object key {key!r} has {size_bytes} bytes; it must have 1 to {MAX_KEY_BYTES}")
    if _CONTROL.search(key):
        raise InvalidName(f"object key {key!r} has a control character")
    if any(component in {"", ".", ".."} for component in key.split("/")):
        raise InvalidName(f"object key {key!r} has an empty, '.' or '..' component; use names joined by single slashes")
    return key


def normal_metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """Give user metadata in the form that all stores hand back: keys in lower case, as S3 does.

    Raises:
        InvalidName: Two keys differ only in case, a key is no HTTP header token, a value is not printable ASCII or has
            a space at an end, or all together pass 2,048 bytes.
    """
    normal: dict[str, str] = {}
    for name, value in (metadata or {}).items():
        key = name.lower()
        if key in normal:
            raise InvalidName(f"object metadata key {name!r} is there twice; keys are compared without case")
        if not _METADATA_KEY.fullmatch(key):
            raise InvalidName(f"object metadata key {name!r} is not made of letters, digits, '-', '_' and '.'")
        if not _METADATA_VALUE.fullmatch(value):
            raise InvalidName(f"object metadata {name!r} has the value {value!r}; only printable ASCII can be stored")
        normal[key] = value
    size_bytes = sum(len(key) + len(value) for key, value in normal.items())
    if size_bytes > MAX_METADATA_BYTES:
        raise InvalidName(f"object metadata has {size_bytes} bytes; stores take at most {MAX_METADATA_BYTES}")
    return normal


def check_range(key: str, start: int, end: int | None, size_bytes: int) -> int:
    """Give the end of the range ``[start, end)`` within an object of that size.

    Raises:
        RangeInvalid: Not ``0 <= start <= end <= size``.
    """
    stop = size_bytes if end is None else end
    if not 0 <= start <= stop <= size_bytes:
        raise RangeInvalid(f"range [{start}, {stop}) lies outside object {key!r} of {size_bytes} bytes")
    return stop


def check_part_number(number: int, limits: StoreLimits) -> None:
    """Refuse a part number that the store cannot keep.

    Raises:
        PartMismatch: The number lies outside 1…``max_parts``.
    """
    if not 1 <= number <= limits.max_parts:
        raise PartMismatch(f"part number {number} lies outside 1…{limits.max_parts}")


def check_parts(key: str, parts: Sequence[Part], limits: StoreLimits) -> None:
    """Refuse a list of parts that cannot become an object.

    Raises:
        PartMismatch: There are none, the numbers do not ascend, or a part but the last is too small.
    """
    if not parts:
        raise PartMismatch(f"upload of {key!r} cannot be completed without parts")
    for before, after in pairwise(parts):
        if before.number >= after.number:
            raise PartMismatch(f"upload of {key!r} names part {before.number} before part {after.number}")
        if before.size_bytes < limits.min_part_bytes:
            raise PartMismatch(
                f"part {before.number} of {key!r} has {before.size_bytes} bytes; "
                f"every part but the last must have at least {limits.min_part_bytes}"
            )
