"""Status codes of errors; an answer has the form ``{"reason": …}``.

The message of an :class:`AfterglowError` tells the caller how to proceed, and becomes the reason. Any other error, and
stored data that does not parse, is an internal error: its traceback is logged, and the answer has no details.
"""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import Final

from afterglow.errors import (
    AfterglowError,
    AlreadyExists,
    ConfigError,
    DiskFull,
    Fenced,
    FormatError,
    HotLogError,
    InvalidName,
    InvalidPosition,
    MetadataError,
    MissingDependency,
    NotEmpty,
    NotFound,
    NotSupported,
    OffloadInProgress,
    StorageError,
    StoreUnavailable,
    TierNotAllowed,
    TopicClosed,
    TopicTerminated,
    ValueTooLarge,
    VersionConflict,
    WouldLoseData,
)
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.wire import Refused

INTERNAL_ERROR: Final = "internal error; see the broker's log"


class AdminError(AfterglowError):
    """An error that is answered with this status and this reason."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


bad_request: Final = partial(AdminError, HTTPStatus.BAD_REQUEST)
"""The body or a parameter is malformed."""
forbidden: Final = partial(AdminError, HTTPStatus.FORBIDDEN)
"""The operation is not available to any role."""
not_found: Final = partial(AdminError, HTTPStatus.NOT_FOUND)
"""The object does not exist."""
not_allowed: Final = partial(AdminError, HTTPStatus.METHOD_NOT_ALLOWED)
"""The object does not support the operation."""
conflict: Final = partial(AdminError, HTTPStatus.CONFLICT)
"""The object exists already, or its state does not permit the operation."""
precondition_failed: Final = partial(AdminError, HTTPStatus.PRECONDITION_FAILED)
"""The values are well-formed and not acceptable, or the object is in use."""


def status_of(error: Exception) -> HTTPStatus:
    """The status code of an error; 500 for internal errors."""
    if isinstance(error, AdminError):
        return error.status
    if isinstance(error, Refused):
        return _WIRE.get(error.code, HTTPStatus.INTERNAL_SERVER_ERROR)
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return status
    return HTTPStatus.INTERNAL_SERVER_ERROR


_STATUS: Final[tuple[tuple[type[AfterglowError], HTTPStatus], ...]] = (
    (ConfigError, HTTPStatus.PRECONDITION_FAILED),
    (InvalidName, HTTPStatus.PRECONDITION_FAILED),
    (InvalidPosition, HTTPStatus.PRECONDITION_FAILED),
    (ValueTooLarge, HTTPStatus.PRECONDITION_FAILED),
    (WouldLoseData, HTTPStatus.PRECONDITION_FAILED),
    (TierNotAllowed, HTTPStatus.FORBIDDEN),
    (NotFound, HTTPStatus.NOT_FOUND),
    (AlreadyExists, HTTPStatus.CONFLICT),
    (NotEmpty, HTTPStatus.CONFLICT),
    (OffloadInProgress, HTTPStatus.CONFLICT),
    (TopicTerminated, HTTPStatus.CONFLICT),
    (VersionConflict, HTTPStatus.CONFLICT),
    (NotSupported, HTTPStatus.METHOD_NOT_ALLOWED),
    (MissingDependency, HTTPStatus.NOT_IMPLEMENTED),
    (DiskFull, HTTPStatus.INSUFFICIENT_STORAGE),
    # Worth a retry: the topic is being closed, or a store cannot be reached now.
    (TopicClosed, HTTPStatus.SERVICE_UNAVAILABLE),
    (Fenced, HTTPStatus.SERVICE_UNAVAILABLE),
    (MetadataError, HTTPStatus.SERVICE_UNAVAILABLE),
    (HotLogError, HTTPStatus.SERVICE_UNAVAILABLE),
    (StoreUnavailable, HTTPStatus.SERVICE_UNAVAILABLE),
    # The tier refuses a request of the broker, or an object is missing: not the caller's error.
    (StorageError, HTTPStatus.BAD_GATEWAY),
    # Stored bytes do not parse: not the caller's error.
    (FormatError, HTTPStatus.INTERNAL_SERVER_ERROR),
)
"""The first match counts."""

_WIRE: Final = {
    wire.AuthenticationError: HTTPStatus.UNAUTHORIZED,
    wire.AuthorizationError: HTTPStatus.FORBIDDEN,
    wire.TopicNotFound: HTTPStatus.NOT_FOUND,
    wire.SubscriptionNotFound: HTTPStatus.NOT_FOUND,
    wire.ConsumerNotFound: HTTPStatus.NOT_FOUND,
    wire.IncompatibleSchema: HTTPStatus.CONFLICT,
    wire.InvalidTopicName: HTTPStatus.PRECONDITION_FAILED,
    wire.NotAllowedError: HTTPStatus.PRECONDITION_FAILED,
    wire.ProducerBusy: HTTPStatus.PRECONDITION_FAILED,
    wire.ProducerFenced: HTTPStatus.PRECONDITION_FAILED,
    wire.ConsumerBusy: HTTPStatus.PRECONDITION_FAILED,
    wire.TopicTerminatedError: HTTPStatus.CONFLICT,
    wire.ServiceNotReady: HTTPStatus.SERVICE_UNAVAILABLE,
    wire.MetadataError: HTTPStatus.SERVICE_UNAVAILABLE,
    wire.PersistenceError: HTTPStatus.SERVICE_UNAVAILABLE,
}
