"""What to change where a store fails, by the kind of its error."""

from __future__ import annotations

from afterglow.errors import (
    AccessDenied,
    BucketMissing,
    ChecksumMismatch,
    NotSupported,
    StorageError,
    StoreThrottled,
    StoreTimeout,
    StoreUnavailable,
)


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
