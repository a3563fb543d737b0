"""Errors as status codes and ``{"reason": …}``.

Our errors say what the caller can do about them and are passed on as they are. What is not ours, or means that stored
data does not parse, is a fault inside: it goes to the log with its traceback, and the answer says no more than that.
"""

from __future__ import annotations

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

FAULT: Final = "the broker failed inside; its log says more"


class AdminError(AfterglowError):
    """A call that is answered with this status and this reason."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def bad_request(reason: str) -> AdminError:
    """The body or a parameter is not what the call takes."""
    return AdminError(HTTPStatus.BAD_REQUEST, reason)


def forbidden(reason: str) -> AdminError:
    """What nobody may ask for here."""
    return AdminError(HTTPStatus.FORBIDDEN, reason)


def not_found(reason: str) -> AdminError:
    """What the call names is not there."""
    return AdminError(HTTPStatus.NOT_FOUND, reason)


def not_allowed(reason: str) -> AdminError:
    """What the call names does not take this operation."""
    return AdminError(HTTPStatus.METHOD_NOT_ALLOWED, reason)


def conflict(reason: str) -> AdminError:
    """What the call would make is there already, or in the way."""
    return AdminError(HTTPStatus.CONFLICT, reason)


def precondition_failed(reason: str) -> AdminError:
    """The values are well-formed and cannot be taken, or what they concern is in use."""
    return AdminError(HTTPStatus.PRECONDITION_FAILED, reason)


def status_of(error: Exception) -> HTTPStatus:
    """The status that answers an error; 500 where the fault is ours."""
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
    # Worth trying again: the topic is on its way out of this process, or what it needs cannot be reached now.
    (TopicClosed, HTTPStatus.SERVICE_UNAVAILABLE),
    (Fenced, HTTPStatus.SERVICE_UNAVAILABLE),
    (MetadataError, HTTPStatus.SERVICE_UNAVAILABLE),
    (HotLogError, HTTPStatus.SERVICE_UNAVAILABLE),
    (StoreUnavailable, HTTPStatus.SERVICE_UNAVAILABLE),
    # The tier refuses what the broker asks of it, or has not what it should have: the caller may be in the right.
    (StorageError, HTTPStatus.BAD_GATEWAY),
    # Stored bytes that do not parse are no fault of the caller's.
    (FormatError, HTTPStatus.INTERNAL_SERVER_ERROR),
)
"""First match counts."""

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
