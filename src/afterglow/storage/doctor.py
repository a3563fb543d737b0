"""Self-test of every operation that Afterglow needs of a store, and the setting to change for each kind of failure.

The test writes below a random key of its own and deletes its objects, also when it fails.
"""

from __future__ import annotations

import enum
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from afterglow.errors import (
    AccessDenied,
    AfterglowError,
    BucketMissing,
    ChecksumMismatch,
    NotSupported,
    ObjectExists,
    ObjectMissing,
    StorageError,
    StoreThrottled,
    StoreTimeout,
    StoreUnavailable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from afterglow.storage.store import ObjectStore, Part, Upload


def cure_for(error: Exception, permissions: str) -> str:
    """Return how to fix the error of a request.

    Args:
        error: The error.
        permissions: S3's names of the permissions that the request needs.
    """
    match error:
        case AccessDenied():
            return f"check access_key and secret_key, and that they permit {permissions} (a directory: write access)"
        case BucketMissing():
            return "create the bucket or directory, or correct the tier's address, endpoint and region"
        case StoreThrottled():
            return "the store throttles requests: retry later, or reduce its load"
        case StoreTimeout():
            return "check endpoint and network; if the store is slow, raise read_timeout_s"
        case StoreUnavailable():
            return "check endpoint (scheme, host, port), network and proxy"
        case NotSupported():
            return "this store lacks the operation and cannot be used as a tier; choose another"
        case ChecksumMismatch():
            return "bytes are corrupted between this host and the store: check proxies and memory"
        case StorageError():
            return "see the store's own message; stores without encryption reject sse and sse_kms_key_id"
        case _:
            return "see the message"


_METADATA = {"afterglowprobe": "doctor"}


class StepStatus(enum.Enum):
    """Result of a step."""

    OK = "ok"
    FAILED = "failed"
    SKIPPED = "skipped"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class StoreCheck:
    """One step of the self-test."""

    step: str
    outcome: StepStatus
    elapsed_ms: float
    detail: str
    """What the step did, why it failed, or why it was skipped."""
    cure: str = ""
    """How to fix it; empty unless the step failed."""


class _WrongResult(Exception):
    """The store answered with a wrong result."""


class _Skipped(Exception):
    """The step depends on one that has failed."""


def check_store(store: ObjectStore) -> list[StoreCheck]:
    """Put, put-if-absent, head, ranged get, list, multipart and delete under a random key.

    Never raises for an error of the store. After an unreachable or missing store, the remaining steps are skipped. Pass
    a store without retries: otherwise each failing step takes the whole retry deadline.

    Returns:
        All steps in order.
    """
    test = _SelfTest(store)
    checks: list[StoreCheck] = []
    skip_reason = ""
    for name, (step, permissions) in _STEPS.items():
        if skip_reason:
            checks.append(StoreCheck(name, StepStatus.SKIPPED, 0.0, skip_reason))
            continue
        began = time.perf_counter()
        status, cure = StepStatus.OK, ""
        try:
            detail = step(test)
        except _Skipped as reason:
            status, detail = StepStatus.SKIPPED, str(reason)
        except _WrongResult as error:
            status, detail = StepStatus.FAILED, str(error)
            cure = "this store cannot be used as a tier; choose another"
        except (AfterglowError, OSError) as error:
            status, detail, cure = StepStatus.FAILED, str(error), cure_for(error, permissions)
            if isinstance(error, BucketMissing | StoreUnavailable) and not isinstance(error, StoreThrottled):
                skip_reason = f"skipped after the failure of {name}"
        checks.append(StoreCheck(name, status, (time.perf_counter() - began) * 1_000, detail, cure))
    test.clean_up()
    return checks


@dataclass(slots=True)
class _SelfTest:
    """A running self-test: its keys, and the objects and uploads it has created."""

    store: ObjectStore
    key: str = field(default_factory=lambda: f"afterglow-doctor-{uuid.uuid4()}")
    uploads: list[Upload] = field(default_factory=list)
    is_put: bool = False
    body: bytes = bytes(range(256)) * 4

    @property
    def joined(self) -> str:
        return f"{self.key}-multipart"

    def put(self) -> str:
        self.store.put(self.key, self.body, metadata=_METADATA)
        self.is_put = True
        return f"{len(self.body)} bytes at {self.store.url}, key {self.key}"

    def put_if_absent(self) -> str:
        self._needs_object()
        try:
            self.store.put(self.key, b"second", if_absent=True)
        except ObjectExists:
            return "an existing object was not replaced"
        raise _WrongResult("put-if-absent replaced an existing object: two writers could overwrite each other")

    def head(self) -> str:
        self._needs_object()
        found = self.store.head(self.key)
        if found.size_bytes != len(self.body) or found.metadata != _METADATA:
            raise _WrongResult(f"head returned {found.size_bytes} bytes and metadata {dict(found.metadata)}")
        return "size and user metadata as put"

    def get(self) -> str:
        self._needs_object()
        if self.store.get(self.key, 100, 300) != self.body[100:300] or self.store.get(self.key) != self.body:
            raise _WrongResult("get returned other bytes than were put")
        return "whole and in a range"

    def list(self) -> str:
        keys = [info.key for info in self.store.list(self.key)]
        if self.is_put and keys != [self.key]:
            raise _WrongResult(f"the listing returned {keys} instead of {[self.key]}")
        return f"{len(keys)} object under the test key"

    def multipart(self) -> str:
        data = bytes(self.store.limits.min_part_bytes)
        upload = self._create(self.joined)
        parts: list[Part] = [self.store.upload_part(upload, 1, data), self.store.upload_part(upload, 2, b"end")]
        listed = self.store.list_parts(upload)
        if [(part.number, part.tag) for part in listed] != [(part.number, part.tag) for part in parts]:
            raise _WrongResult(f"the store lists other parts than were uploaded: {listed}")
        self.store.complete_upload(upload, parts)
        found = self.store.head(self.joined)
        if found.size_bytes != len(data) + 3 or found.metadata != _METADATA:
            raise _WrongResult(f"the joined object has {found.size_bytes} bytes and metadata {dict(found.metadata)}")
        if bytes(self.store.get(self.joined, len(data) - 1)) != b"\0end":
            raise _WrongResult("the joined object does not contain the bytes of its parts")
        return f"two parts of {len(data)} and 3 bytes, listed and joined"

    def abort(self) -> str:
        upload = self._create(f"{self.key}-aborted")
        if upload not in self.store.list_uploads(upload.key):
            raise _WrongResult("an unfinished upload is not listed: uploads leaked by crashes could not be found")
        self.store.abort_upload(upload)
        if upload in self.store.list_uploads(upload.key):
            raise _WrongResult("an upload is still listed after its abort")
        return "an unfinished upload listed and aborted"

    def delete(self) -> str:
        self.store.delete([self.key, self.joined])
        try:
            self.store.head(self.key)
        except ObjectMissing:
            return "the test objects are deleted"
        raise _WrongResult("the object still exists after its delete")

    def clean_up(self) -> None:
        """Delete what is left; a failure to delete was reported by the delete step."""
        for upload in self.uploads:
            with suppress(AfterglowError, OSError):
                self.store.abort_upload(upload)
        with suppress(AfterglowError, OSError):
            self.store.delete([self.key, self.joined])

    def _create(self, key: str) -> Upload:
        upload = self.store.create_upload(key, metadata=_METADATA)
        self.uploads.append(upload)
        return upload

    def _needs_object(self) -> None:
        if not self.is_put:
            raise _Skipped("skipped after the failure of put")


# Steps by name, each with S3's name of the permission that it needs.
_STEPS: Mapping[str, tuple[Callable[[_SelfTest], str], str]] = {
    "put": (_SelfTest.put, "s3:PutObject"),
    "put if absent": (_SelfTest.put_if_absent, "s3:PutObject"),
    "head": (_SelfTest.head, "s3:GetObject"),
    "ranged get": (_SelfTest.get, "s3:GetObject"),
    "list": (_SelfTest.list, "s3:ListBucket"),
    "multipart": (_SelfTest.multipart, "s3:PutObject and s3:ListMultipartUploadParts"),
    "abort": (_SelfTest.abort, "s3:AbortMultipartUpload and s3:ListBucketMultipartUploads"),
    "delete": (_SelfTest.delete, "s3:DeleteObject"),
}
