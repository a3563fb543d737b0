"""A trial of everything that Afterglow asks of a store, and the setting to change for each kind of failure.

The trial works below a key of its own that nobody else can have, and removes what it made, also when it fails.
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


def cure_for(error: Exception, rights: str) -> str:
    """What to change.

    Args:
        error: Of a request.
        rights: What S3 calls the rights that the request needs.
    """
    match error:
        case AccessDenied():
            return f"check access_key and secret_key, and that they may do {rights} (in a directory: may write)"
        case BucketMissing():
            return "create the bucket or directory, or correct the tier's address, endpoint and region"
        case StoreThrottled():
            return "the store asks for fewer requests: try again later, or lower the load on it"
        case StoreTimeout():
            return "check endpoint and network; if the store is slow, raise read_timeout_s"
        case StoreUnavailable():
            return "check endpoint (scheme, host, port), network and proxy"
        case NotSupported():
            return "this store lacks the operation and cannot serve as a tier; choose another"
        case ChecksumMismatch():
            return "something between here and the store changes bytes: check proxies and memory"
        case StorageError():
            return "see the store's own message; sse and sse_kms_key_id are refused by stores that lack them"
        case _:
            return "see the message"


_METADATA = {"afterglowprobe": "doctor"}


class StepStatus(enum.Enum):
    """How a step of the trial ended."""

    OK = "ok"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class StoreCheck:
    """One step of the trial."""

    step: str
    outcome: StepStatus
    elapsed_ms: float
    detail: str
    """What was done, or what went wrong, or why it was not tried."""
    cure: str = ""
    """What to change; empty unless the step failed."""


class _Wrong(Exception):
    """The store answered, but not what was right."""


class _Untried(Exception):
    """The step needs another that has failed."""


def check_store(store: ObjectStore) -> list[StoreCheck]:
    """Put, put-if-absent, head, ranged get, list, multipart and delete under a fresh key.

    Never raises for what the store does. Once the store proves unreachable, or unknown, the rest is skipped. Pass a
    store without retries, or every step of a trial in vain lasts its whole deadline.

    Returns:
        Every step in its order.
    """
    trial = _Trial(store)
    checks: list[StoreCheck] = []
    hopeless = ""
    for name, (step, rights) in _STEPS.items():
        if hopeless:
            checks.append(StoreCheck(name, StepStatus.SKIPPED, 0.0, hopeless))
            continue
        began = time.perf_counter()
        outcome, cure = StepStatus.OK, ""
        try:
            detail = step(trial)
        except _Untried as reason:
            outcome, detail = StepStatus.SKIPPED, str(reason)
        except _Wrong as wrong:
            outcome, detail, cure = StepStatus.FAILED, str(wrong), "this store cannot serve as a tier; choose another"
        except (AfterglowError, OSError) as error:
            outcome, detail, cure = StepStatus.FAILED, str(error), cure_for(error, rights)
            if isinstance(error, BucketMissing | StoreUnavailable) and not isinstance(error, StoreThrottled):
                hopeless = f"not tried after the failure of {name}"
        checks.append(StoreCheck(name, outcome, (time.perf_counter() - began) * 1_000, detail, cure))
    trial.clean_up()
    return checks


@dataclass(slots=True)
class _Trial:
    """A trial under way: its keys, and what it has made so far."""

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
            return "an object that is there was not replaced"
        raise _Wrong("the store replaced an object that was to be kept: two writers could destroy each other's work")

    def head(self) -> str:
        self._needs_object()
        found = self.store.head(self.key)
        if found.size_bytes != len(self.body) or found.metadata != _METADATA:
            raise _Wrong(f"head gave {found.size_bytes} bytes and metadata {dict(found.metadata)}")
        return "size and user metadata as put"

    def get(self) -> str:
        self._needs_object()
        if self.store.get(self.key, 100, 300) != self.body[100:300] or self.store.get(self.key) != self.body:
            raise _Wrong("the bytes read are not those that were put")
        return "whole and in a range"

    def list(self) -> str:
        keys = [info.key for info in self.store.list(self.key)]
        if self.is_put and keys != [self.key]:
            raise _Wrong(f"the listing shows {keys} instead of {[self.key]}")
        return f"{len(keys)} object under the probe's key"

    def multipart(self) -> str:
        piece = bytes(self.store.limits.min_part_bytes)
        upload = self._create(self.joined)
        parts: list[Part] = [self.store.upload_part(upload, 1, piece), self.store.upload_part(upload, 2, b"end")]
        listed = self.store.list_parts(upload)
        if [(part.number, part.tag) for part in listed] != [(part.number, part.tag) for part in parts]:
            raise _Wrong(f"the store lists other parts than were sent: {listed}")
        self.store.complete_upload(upload, parts)
        found = self.store.head(self.joined)
        if found.size_bytes != len(piece) + 3 or found.metadata != _METADATA:
            raise _Wrong(f"the joined object has {found.size_bytes} bytes and metadata {dict(found.metadata)}")
        if bytes(self.store.get(self.joined, len(piece) - 1)) != b"\0end":
            raise _Wrong("the joined object does not hold the parts' bytes")
        return f"two parts of {len(piece)} and 3 bytes, listed and joined"

    def abort(self) -> str:
        upload = self._create(f"{self.key}-aborted")
        if upload not in self.store.list_uploads(upload.key):
            raise _Wrong("an unfinished upload is not listed: what crashes leave behind could not be found")
        self.store.abort_upload(upload)
        if upload in self.store.list_uploads(upload.key):
            raise _Wrong("an upload is still there after its abort")
        return "an unfinished upload listed and aborted"

    def delete(self) -> str:
        self.store.delete([self.key, self.joined])
        try:
            self.store.head(self.key)
        except ObjectMissing:
            return "the probe's objects are gone"
        raise _Wrong("the object is still there after its delete")

    def clean_up(self) -> None:
        """Remove what is left; what cannot be removed was reported by the step that should have."""
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
            raise _Untried("not tried: there is no object, for put failed")


# What S3 calls the right that each step needs.
_STEPS: Mapping[str, tuple[Callable[[_Trial], str], str]] = {
    "put": (_Trial.put, "s3:PutObject"),
    "put if absent": (_Trial.put_if_absent, "s3:PutObject"),
    "head": (_Trial.head, "s3:GetObject"),
    "ranged get": (_Trial.get, "s3:GetObject"),
    "list": (_Trial.list, "s3:ListBucket"),
    "multipart": (_Trial.multipart, "s3:PutObject and s3:ListMultipartUploadParts"),
    "abort": (_Trial.abort, "s3:AbortMultipartUpload and s3:ListBucketMultipartUploads"),
    "delete": (_Trial.delete, "s3:DeleteObject"),
}
