"""Object store in a bucket of Amazon S3 or of an S3-compatible service.

Every write carries a CRC32C of the caller's buffer, so that the store rejects bytes corrupted in transit; multipart
uploads are created with this checksum type. After a store has rejected these checksums, requests omit them. Nothing is
retried here: wrap the store in :class:`~afterglow.storage.retry.RetryingStore`.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar, cast

from crc32c import crc32c

from afterglow.errors import RangeInvalid, StoreUnavailable, UploadMissing
from afterglow.storage.s3_client import (
    ErrorResponse,
    S3Options,
    body_of,
    boto_errors,
    error_for,
    obstore_errors,
    open_clients,
    require_sdks,
)
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
    from datetime import datetime

    from afterglow.storage.s3_client import S3Clients
    from afterglow.storage.store import Data

__all__ = ["S3_LIMITS", "S3Store"]

T = TypeVar("T")

S3_LIMITS = StoreLimits(
    min_part_bytes=5 << 20,
    max_part_bytes=5 << 30,
    max_parts=10_000,
    max_put_bytes=5 << 30,
    max_object_bytes=5 << 40,
)

_DELETE_BATCH = 1_000  # S3's limit of keys in one request

_STORE = ""  # scope of checksums: the whole store rather than one upload
# Error codes of stores that do not support the newer checksum headers.
_CHECKSUM_REJECTED = frozenset({"NotImplemented", "InvalidRequest", "InvalidArgument", "MalformedXML"})
# Error codes of stores that accept a bulk delete only with an MD5, or not at all.
_BULK_REJECTED = frozenset(
    {"NotImplemented", "MethodNotAllowed", "MissingContentMD5", "InvalidRequest", "InvalidDigest"}
)


class S3Store(ObjectStore):
    """An object store in a bucket.

    Args:
        bucket: Name of the bucket.
        options: Endpoint, credentials, encryption and timeouts.
    """

    def __init__(self, bucket: str, options: S3Options | None = None) -> None:
        require_sdks()
        self._bucket = bucket
        self._options = options or S3Options()
        self._lock = Lock()
        self._opened: tuple[int, S3Clients] | None = None
        self._plain: set[str] = set()  # uploads without checksums; _STORE if the store does not support them
        self._has_bulk_delete = True
        self._encryption: dict[str, Any] = {}
        if self._options.sse is not None:
            self._encryption["ServerSideEncryption"] = self._options.sse
        if self._options.sse_kms_key_id is not None:
            self._encryption["SSEKMSKeyId"] = self._options.sse_kms_key_id

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._bucket, self._options)

    def __repr__(self) -> str:
        return f"S3Store({self._bucket!r}, {self._options!r})"

    @property
    def url(self) -> str:
        """``s3://bucket``."""
        return f"s3://{self._bucket}"

    @property
    def limits(self) -> StoreLimits:
        """Amazon's own limits."""
        return S3_LIMITS

    def put(self, key: str, data: Data, *, metadata: Mapping[str, str] | None = None, if_absent: bool = False) -> None:
        """Write an object."""
        request = {"Bucket": self._bucket, "Key": check_key(key), "Metadata": normal_metadata(metadata)}
        if if_absent:
            request["IfNoneMatch"] = "*"
        checksum = crc32c(as_view(data))
        with boto_errors(f"{self.url}: put of {key!r}", writes=True):
            self._checksummed(
                _STORE,
                lambda extra: self._clients().writer.put_object(
                    **cast("Any", {**request, **self._encryption, **extra, "Body": body_of(data)})
                ),
                {"ChecksumCRC32C": _encode(checksum)},
            )

    def get(self, key: str, start: int = 0, end: int | None = None) -> memoryview:
        """Read ``[start, end)``: a view of the buffer that received the bytes."""
        import obstore  # noqa: PLC0415 - an extra

        if start == end or start < 0 or (end is not None and end < start):  # HTTP has no empty range
            return memoryview(b"")[: check_range(key, start, end, self.head(key).size_bytes) - start]
        span: Any = None
        if end is not None:
            span = {"range": (start, end)}
        elif start > 0:
            span = {"range": {"offset": start}}
        try:
            with obstore_errors(f"{self.url}: get of {key!r}"):
                answer = obstore.get(self._clients().reader, check_key(key), options=span)
                size_bytes = answer.meta["size"]
                view = memoryview(answer.bytes())
        except RangeInvalid:
            stop = check_range(key, start, end, self.head(key).size_bytes)  # raises unless the range is empty
            return memoryview(b"")[: stop - start]
        stop = check_range(key, start, end, size_bytes)
        if view.nbytes != stop - start:
            raise StoreUnavailable(f"{self.url}: received {view.nbytes} bytes of [{start}, {stop}) of {key!r}")
        return view

    def head(self, key: str) -> ObjectInfo:
        """Return size, etag, modification time and user metadata of an object."""
        with boto_errors(f"{self.url}: head of {key!r}", writes=False):
            found = self._clients().writer.head_object(Bucket=self._bucket, Key=check_key(key))
        metadata = {name.lower(): value for name, value in found["Metadata"].items()}
        return ObjectInfo(key, found["ContentLength"], _tag(found["ETag"]), _ms(found["LastModified"]), metadata)

    def list_page(self, prefix: str = "", start_after: str = "", limit: int = PAGE_SIZE) -> ObjectPage:
        """List objects in key order."""
        with boto_errors(f"{self.url}: list of {prefix!r}", writes=False):
            page = self._clients().writer.list_objects_v2(
                Bucket=self._bucket, Prefix=prefix, StartAfter=start_after, MaxKeys=min(limit, PAGE_SIZE)
            )
        objects = (
            ObjectInfo(found["Key"], found["Size"], _tag(found["ETag"]), _ms(found["LastModified"]))
            for found in page.get("Contents", ())
        )
        return ObjectPage(tuple(objects), complete=not page["IsTruncated"])

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects, a thousand with each request."""
        rest = iter([check_key(key) for key in keys])
        while batch := tuple(islice(rest, _DELETE_BATCH)):
            if not self._has_bulk_delete or not self._delete_bulk(batch):
                for key in batch:
                    with boto_errors(f"{self.url}: delete of {key!r}", writes=True):
                        self._clients().writer.delete_object(Bucket=self._bucket, Key=key)

    def create_upload(self, key: str, *, metadata: Mapping[str, str] | None = None) -> Upload:
        """Begin a multipart upload."""
        request = {"Bucket": self._bucket, "Key": check_key(key), "Metadata": normal_metadata(metadata)}
        with boto_errors(f"{self.url}: upload of {key!r}", writes=True):
            created = self._checksummed(
                _STORE,
                lambda extra: self._clients().writer.create_multipart_upload(
                    **cast("Any", {**request, **self._encryption, **extra})
                ),
                {"ChecksumAlgorithm": "CRC32C"},
            )
        if _STORE in self._plain:
            self._plain.add(created["UploadId"])
        return Upload(key, created["UploadId"])

    def upload_part(self, upload: Upload, number: int, data: Data) -> Part:
        """Store one part."""
        check_part_number(number, self.limits)
        view = as_view(data)
        checksum = crc32c(view)
        request = {**self._names(upload), "PartNumber": number}
        with boto_errors(f"{self.url}: part {number} of {upload.key!r}", writes=True):
            stored = self._checksummed(
                upload.upload_id,
                lambda extra: self._clients().writer.upload_part(
                    **cast("Any", {**request, **extra, "Body": body_of(data)})
                ),
                {"ChecksumCRC32C": _encode(checksum)},
            )
        return Part(number, view.nbytes, _tag(stored["ETag"]), checksum)

    def list_parts(self, upload: Upload) -> tuple[Part, ...]:
        """List the stored parts."""
        parts = []
        with boto_errors(f"{self.url}: parts of {upload.key!r}", writes=False):
            for page in self._clients().writer.get_paginator("list_parts").paginate(**self._names(upload)):
                for part in page.get("Parts", ()):
                    checksum = part.get("ChecksumCRC32C")
                    crc = int.from_bytes(b64decode(checksum), "big") if checksum else None
                    parts.append(Part(part["PartNumber"], part["Size"], _tag(part["ETag"]), crc))
        return tuple(parts)

    def complete_upload(self, upload: Upload, parts: Sequence[Part]) -> None:
        """Join the parts into the object."""
        check_parts(upload.key, parts, self.limits)
        plain = [{"PartNumber": part.number, "ETag": f'"{part.tag}"'} for part in parts]
        checked = [
            named if part.crc32c is None else {**named, "ChecksumCRC32C": _encode(part.crc32c)}
            for named, part in zip(plain, parts, strict=True)
        ]
        with boto_errors(f"{self.url}: completing the upload of {upload.key!r}", writes=True):
            self._checksummed(
                upload.upload_id,
                lambda extra: self._clients().writer.complete_multipart_upload(
                    **self._names(upload), MultipartUpload=cast("Any", {"Parts": plain, **extra})
                ),
                {"Parts": checked},
            )
        self._plain.discard(upload.upload_id)

    def abort_upload(self, upload: Upload) -> None:
        """Discard an upload."""
        try:
            with boto_errors(f"{self.url}: abort of {upload.key!r}", writes=True):
                self._clients().writer.abort_multipart_upload(**self._names(upload))
        except UploadMissing:
            return

    def list_uploads(self, prefix: str = "") -> tuple[Upload, ...]:
        """List the unfinished uploads."""
        uploads = []
        with boto_errors(f"{self.url}: uploads of {prefix!r}", writes=False):
            pages = self._clients().writer.get_paginator("list_multipart_uploads")
            for page in pages.paginate(Bucket=self._bucket, Prefix=prefix):
                uploads += [
                    Upload(found["Key"], found["UploadId"], _ms(found["Initiated"]))
                    for found in page.get("Uploads", ())
                ]
        return tuple(sorted(uploads, key=lambda upload: (upload.key, upload.upload_id)))

    def _clients(self) -> S3Clients:
        """Return the clients of this process; a forked child opens its own, since sockets cannot be shared."""
        with self._lock:
            if self._opened is None or self._opened[0] != os.getpid():
                self._opened = (os.getpid(), open_clients(self._bucket, self._options))
            return self._opened[1]

    def _names(self, upload: Upload) -> dict[str, Any]:
        return {"Bucket": self._bucket, "Key": check_key(upload.key), "UploadId": upload.upload_id}

    def _checksummed(self, scope: str, send: Callable[[dict[str, Any]], T], checksum: dict[str, Any]) -> T:
        """Send a request with its checksum, or without one if the scope (store or upload) does not support it."""
        from botocore.exceptions import ClientError  # noqa: PLC0415 - an extra

        if scope in self._plain:
            return send({})
        try:
            return send(checksum)
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") not in _CHECKSUM_REJECTED:
                raise
            try:
                result = send({})
            except ClientError:
                raise error from None  # the checksum was not the reason
        self._plain.add(scope)
        return result

    def _delete_bulk(self, keys: Sequence[str]) -> bool:
        """Delete up to a thousand keys with one request; False if the store does not support it."""
        from botocore.exceptions import ClientError  # noqa: PLC0415 - an extra

        what = f"{self.url}: delete of {len(keys)} keys from {keys[0]!r}"
        with boto_errors(what, writes=True):
            try:
                answer = self._clients().writer.delete_objects(
                    Bucket=self._bucket, Delete={"Objects": [{"Key": key} for key in keys], "Quiet": True}
                )
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") not in _BULK_REJECTED:
                    raise
                self._has_bulk_delete = False
                return False
        for failed in answer.get("Errors", ()):
            if failed.get("Code") not in {"NoSuchKey", "404"}:
                response = ErrorResponse(failed.get("Code", ""), 0, failed.get("Message", ""))
                raise error_for(response, f"{what}, among them {failed.get('Key')!r}", writes=True)
        return True


def _encode(checksum: int) -> str:
    return b64encode(checksum.to_bytes(4, "big")).decode()


def _tag(etag: str) -> str:
    return etag.strip('"')


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000)
