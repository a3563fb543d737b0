"""What S3's errors mean, from either client, in the words of the one error tree.

A message names the bucket and the setting to look at; it never holds credentials or request headers.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from afterglow.errors import (
    AccessDenied,
    AfterglowError,
    BucketMissing,
    ChecksumMismatch,
    NotSupported,
    ObjectExists,
    ObjectMissing,
    PartMismatch,
    RangeInvalid,
    StorageError,
    StoreThrottled,
    StoreTimeout,
    StoreUnavailable,
    UploadMissing,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Refusal", "boto_errors", "error_for", "obstore_errors"]

_KINDS: dict[str, type[AfterglowError]] = {
    "NoSuchKey": ObjectMissing,
    "NoSuchUpload": UploadMissing,
    "NoSuchBucket": BucketMissing,
    "InvalidBucketName": BucketMissing,
    "PermanentRedirect": BucketMissing,
    "PreconditionFailed": ObjectExists,
    "InvalidRange": RangeInvalid,
    "InvalidPart": PartMismatch,
    "InvalidPartOrder": PartMismatch,
    "EntityTooSmall": PartMismatch,
    "BadDigest": ChecksumMismatch,
    "InvalidDigest": ChecksumMismatch,
    "XAmzContentChecksumMismatch": ChecksumMismatch,
    "XAmzContentSHA256Mismatch": ChecksumMismatch,
    "NotImplemented": NotSupported,
    "MethodNotAllowed": NotSupported,
    # Another conditional write of the same key was under way: nothing was done, and S3 asks to try again.
    "ConditionalRequestConflict": StoreThrottled,
    "OperationAborted": StoreThrottled,
    "SlowDown": StoreThrottled,
    "ServiceUnavailable": StoreThrottled,
    "Throttling": StoreThrottled,
    "ThrottlingException": StoreThrottled,
    "RequestLimitExceeded": StoreThrottled,
    "TooManyRequests": StoreThrottled,
    "RequestTimeout": StoreTimeout,
}

# Answers to HEAD have no body and so no code but the status.
_STATUSES: dict[int, type[AfterglowError]] = {
    301: BucketMissing,
    401: AccessDenied,
    403: AccessDenied,
    404: ObjectMissing,
    412: ObjectExists,
    416: RangeInvalid,
    429: StoreThrottled,
    501: NotSupported,
    503: StoreThrottled,
}

_CURES = {
    "NoSuchBucket": "create the bucket, or correct its name in the tier's address, endpoint or region",
    "InvalidBucketName": "correct the bucket's name in the tier's address",
    "PermanentRedirect": "the bucket is in another region: set region",
    "InvalidAccessKeyId": "the store does not know the access key: check access_key (AWS_ACCESS_KEY_ID) and endpoint",
    "XAdminUserNotFound": "the store does not know the access key: check access_key and endpoint",  # versitygw
    "SignatureDoesNotMatch": "check secret_key (AWS_SECRET_ACCESS_KEY), then region and endpoint",
    "AuthorizationHeaderMalformed": "check region, then access_key",
    "ExpiredToken": "the credentials have expired: renew session_token (AWS_SESSION_TOKEN)",
    "InvalidToken": "check session_token (AWS_SESSION_TOKEN)",
    "RequestTimeTooSkewed": "set this machine's clock",
}
_DENIED = frozenset(_CURES) - {"NoSuchBucket", "InvalidBucketName", "PermanentRedirect"}
_DENIED_CURE = (
    "allow it to these credentials (access_key, profile or role) in the bucket's policy; "
    "if the policy demands encryption, set sse"
)

_OBSTORE_STATUS = re.compile(r"status code: (\d{3})")
_OBSTORE_CODE = re.compile(r"<Code>(\w+)</Code>")
_OBSTORE_TIMEOUT = re.compile(r"kind: Timeout|TimedOut|operation timed out")


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that says no."""

    code: str
    """S3's own code; empty, or the status as text, where it gave none."""
    status: int
    """HTTP status; 0 where there is none."""
    message: str


def error_for(refusal: Refusal, what: str, *, writes: bool) -> AfterglowError:
    """Choose the error for an answer to the request ``what``, such as ``s3://bucket: put of 'key'``."""
    code, status = refusal.code, refusal.status
    said = f"{code} {refusal.message}".strip() or f"status {status}"
    kind = _KINDS.get(code)
    if kind is None and code in _DENIED:
        kind = AccessDenied
    if kind is None:
        kind = _STATUSES.get(status)
    if kind is None and status >= 500:
        # The store failed inside, maybe after it had done what was asked.
        kind = StoreTimeout if writes else StoreUnavailable
    cure = _CURES.get(code, _DENIED_CURE if kind is AccessDenied else "")
    return (kind or StorageError)(f"{what}: {said}" + (f"; {cure}" if cure else ""))


@contextmanager
def boto_errors(what: str, *, writes: bool) -> Iterator[None]:
    """Turn boto3's errors into ours."""
    from botocore import exceptions as boto  # noqa: PLC0415 - an extra

    try:
        yield
    except boto.ClientError as error:
        answer = error.response
        told = answer.get("Error", {})
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        refusal = Refusal(str(told.get("Code", "")), status, str(told.get("Message", "")))
        raise error_for(refusal, what, writes=writes) from error
    except (boto.EndpointConnectionError, boto.ConnectTimeoutError, boto.ProxyConnectionError, boto.SSLError) as error:
        raise StoreUnavailable(f"{what}: {error}; check endpoint, network and proxy") from error
    except (boto.NoCredentialsError, boto.PartialCredentialsError, boto.CredentialRetrievalError) as error:
        raise AccessDenied(f"{what}: {error}; set access_key and secret_key, or a profile or role") from error
    except (boto.ReadTimeoutError, boto.HTTPClientError) as error:
        # Sent, and no answer: for a write the outcome is unknown.
        raise (StoreTimeout if writes else StoreUnavailable)(f"{what}: {error}") from error
    except boto.BotoCoreError as error:
        raise StorageError(f"{what}: {error}") from error


@contextmanager
def obstore_errors(what: str) -> Iterator[None]:
    """Turn the errors of obstore's reads into ours. It gives most of what it knows as text only."""
    from obstore.exceptions import BaseError  # noqa: PLC0415 - an extra

    try:
        yield
    except AfterglowError:
        raise
    except (BaseError, FileNotFoundError) as error:
        text = str(error)
        status, code = _OBSTORE_STATUS.search(text), _OBSTORE_CODE.search(text)
        summary = text.split("\n", 1)[0].split(": <?xml", 1)[0]
        if status is not None:
            refusal = Refusal(code.group(1) if code else "", int(status.group(1)), summary)
            raise error_for(refusal, what, writes=False) from error
        if _OBSTORE_TIMEOUT.search(text):
            raise StoreTimeout(f"{what}: {summary}; check endpoint, or raise timeout_s") from error
        raise StoreUnavailable(f"{what}: {summary}; check endpoint, network and proxy") from error
