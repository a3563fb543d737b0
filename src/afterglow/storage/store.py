"""The object store protocol, its records, and the rules for keys, metadata and parts.

Guarantees of every store:

* An object and its user metadata appear together and completely, or not at all.
* When a write returns, its effect is durable and visible to every later ``get`` and ``head`` of any process. Listings
  may lag: a new object may not be listed yet, and a deleted one may still be listed.
* ``get`` returns the whole range or raises; it never returns fewer bytes.
* Every call ends within the configured timeouts. :class:`~afterglow.errors.StoreTimeout` from a write means that its
  effect is unknown.
* Stores are thread-safe, and can be pickled: a copy in another process opens its own connections.
* All stores apply the same rules to keys and metadata (:func:`check_key`, :func:`normal_metadata`) and return metadata
  keys in lower case.

Not guaranteed: a directory tree. A local directory cannot hold both a key and a longer key below it (``a`` and
``a/b``). A store may lose an unfinished upload at any time (Azure after a week, others by a lifecycle rule).
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
"""Bytes to store. Wrap any other contiguous buffer (NumPy, Arrow) in a ``memoryview``: it is not copied."""

PAGE_SIZE = 1_000
"""Objects per listing request: the maximum of S3."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """Size, etag, modification time and user metadata of an object."""

    key: str
    size_bytes: int
    etag: str
    """Opaque; changes whenever the object's bytes change. Its form depends on the store."""
    modified_ms: int
    """Modification time in epoch milliseconds; many stores round it to seconds."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """User metadata, keys in lower case. Empty in listings; use ``head``."""


@dataclass(frozen=True, slots=True)
class ObjectPage:
    """One page of a listing."""

    objects: tuple[ObjectInfo, ...]
    """Ascending by the UTF-8 bytes of the key."""
    complete: bool
    """Whether this is the last page."""


@dataclass(frozen=True, slots=True)
class Upload:
    """The identity of an unfinished multipart upload; with it, another process can continue it after a crash."""

    key: str
    upload_id: str
    created_ms: int = field(default=0, compare=False)
    """Creation time in epoch milliseconds; 0 if the store does not report it. Not part of the identity."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part that a store has accepted."""

    number: int
    """From 1 to ``StoreLimits.max_parts``; the object is the parts in ascending order, gaps allowed."""
    size_bytes: int
    tag: str
    """The store's identifier of these bytes. ``complete_upload`` sends it, so that a replaced part is detected."""
    crc32c: int | None = None
    """CRC32C of the part's bytes; None if a listing does not contain it."""


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Limits of a store. Sizes in bytes, bounds inclusive."""

    min_part_bytes: int
    """Minimum size of every part except the last."""
    max_part_bytes: int
    max_parts: int
    max_put_bytes: int
    """Largest object that ``put`` accepts."""
    max_object_bytes: int


@runtime_checkable
class ObjectStore(Protocol):
    """Objects under string keys: immutable bytes with user metadata.

    Any call may raise ``StoreUnavailable``, ``StoreThrottled``, ``StoreTimeout``, ``AccessDenied``, ``BucketMissing``,
    and ``InvalidName`` for an invalid key or invalid metadata. ``Raises`` below lists only further errors.
    """

    @property
    def url(self) -> str:
        """The address of this store, without secrets."""
        ...

    @property
    def limits(self) -> StoreLimits:
        """Limits of this store."""
        ...

    def put(self, key: str, data: Data, *, metadata: Mapping[str, str] | None = None, if_absent: bool = False) -> None:
        """Write an object, replacing an older one unless ``if_absent``.

        Raises:
            ObjectExists: ``if_absent`` is set and the key exists; of concurrent writers exactly one succeeds.
        """
        ...

    def get(self, key: str, start: int = 0, end: int | None = None) -> memoryview:
        """Read the bytes ``[start, end)``, by default to the object's end, into one read-only buffer.

        Raises:
            ObjectMissing: No object found under the key.
            RangeInvalid: Not ``0 <= start <= end <= size``.
        """
        ...

    def head(self, key: str) -> ObjectInfo:
        """Return size, etag, modification time and user metadata of an object.

        Raises:
            ObjectMissing: No object found under the key.
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
        """Delete any number of objects; missing ones are ignored. After a failure some may be deleted already."""
        ...

    def create_upload(self, key: str, *, metadata: Mapping[str, str] | None = None) -> Upload:
        """Begin a multipart upload that will become the object ``key`` with this metadata."""
        ...

    def upload_part(self, upload: Upload, number: int, data: Data) -> Part:
        """Store one part, replacing an older one of the same number. Parts may arrive in any order and in parallel.

        Raises:
            UploadMissing: The store does not know the upload.
            PartMismatch: The part number lies outside 1…``max_parts``.
        """
        ...

    def list_parts(self, upload: Upload) -> tuple[Part, ...]:
        """Return the parts that the store holds, ascending by number.

        Raises:
            UploadMissing: The store does not know the upload.
        """
        ...

    def complete_upload(self, upload: Upload, parts: Sequence[Part]) -> None:
        """Join the named parts, in this order, into the object; it appears atomically, and the upload ends.

        Completing a completed upload again either does nothing or raises ``UploadMissing``; the object stays.

        Raises:
            UploadMissing: The store does not know the upload: completed, aborted or lost. ``head`` tells which.
            PartMismatch: A part is missing or has another tag, a part other than the last is too small, or the numbers
                do not ascend. Nothing was changed.
        """
        ...

    def abort_upload(self, upload: Upload) -> None:
        """Discard an upload and its parts; an unknown upload is ignored."""
        ...

    def list_uploads(self, prefix: str = "") -> tuple[Upload, ...]:
        """Return the unfinished uploads whose key starts with ``prefix``, ascending by key."""
        ...


def as_view(data: Data) -> memoryview:
    """View a buffer as plain bytes, without copying it."""
    view = memoryview(data)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


MAX_KEY_BYTES = 1_024
"""Common limit of S3, GCS and Azure."""

MAX_METADATA_BYTES = 2_048
"""S3's limit on all keys and values together; GCS and Azure allow more."""

# Metadata travels as HTTP headers: keys are header tokens, values visible ASCII that survives trimming.
_METADATA_KEY = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")
_METADATA_VALUE = re.compile(r"[!-~]([ -~]*[!-~])?|")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def check_key(key: str) -> str:
    """Return the key if it is valid in every store.

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
    """Return user metadata in the form that all stores return it: keys in lower case, as S3 does.

    Raises:
        InvalidName: Two keys differ only in case, a key is not a valid HTTP header token, a value is not printable
            ASCII or has a space at an end, or the total exceeds 2,048 bytes.
    """
    normal: dict[str, str] = {}
    for name, value in (metadata or {}).items():
        key = name.lower()
        if key in normal:
            raise InvalidName(f"duplicate object metadata key {name!r}; keys are compared case-insensitively")
        if not _METADATA_KEY.fullmatch(key):
            raise InvalidName(f"invalid object metadata key {name!r}; use letters, digits, '-', '_' and '.'")
        if not _METADATA_VALUE.fullmatch(value):
            raise InvalidName(f"invalid value {value!r} of object metadata {name!r}; use printable ASCII")
        normal[key] = value
    size_bytes = sum(len(key) + len(value) for key, value in normal.items())
    if size_bytes > MAX_METADATA_BYTES:
        raise InvalidName(f"object metadata has {size_bytes} bytes; stores accept at most {MAX_METADATA_BYTES}")
    return normal


def check_range(key: str, start: int, end: int | None, size_bytes: int) -> int:
    """Return the end of the range ``[start, end)`` in an object of that size.

    Raises:
        RangeInvalid: Not ``0 <= start <= end <= size``.
    """
    stop = size_bytes if end is None else end
    if not 0 <= start <= stop <= size_bytes:
        raise RangeInvalid(f"range [{start}, {stop}) lies outside object {key!r} of {size_bytes} bytes")
    return stop


def check_part_number(number: int, limits: StoreLimits) -> None:
    """Check that a store accepts a part number.

    Raises:
        PartMismatch: The number lies outside 1…``max_parts``.
    """
    if not 1 <= number <= limits.max_parts:
        raise PartMismatch(f"part number {number} lies outside 1…{limits.max_parts}")


def check_parts(key: str, parts: Sequence[Part], limits: StoreLimits) -> None:
    """Check that parts can be joined into an object.

    Raises:
        PartMismatch: The list is empty, the numbers do not ascend, or a part other than the last is too small.
    """
    if not parts:
        raise PartMismatch(f"upload of {key!r} cannot be completed without parts")
    for before, after in pairwise(parts):
        if before.number >= after.number:
            raise PartMismatch(f"upload of {key!r} lists part {before.number} before part {after.number}")
        if before.size_bytes < limits.min_part_bytes:
            raise PartMismatch(
                f"part {before.number} of {key!r} has {before.size_bytes} bytes; "
                f"every part except the last must have at least {limits.min_part_bytes}"
            )
