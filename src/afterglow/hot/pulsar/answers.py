"""What a broker's refusals mean here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from afterglow.errors import AccessDenied, HotLogUnavailable, InvalidName, NotSupported, TopicMissing
from afterglow.format.proto import pulsar_api_pb2 as wire

if TYPE_CHECKING:
    from afterglow.errors import AfterglowError

NO_REQUEST: Final = 2**64 - 1
"""Request id of what a broker sends on its own accord: -1 in Java."""

_FINAL: Final[dict[int, type[AfterglowError]]] = {
    wire.AuthenticationError: AccessDenied,
    wire.AuthorizationError: AccessDenied,
    wire.TopicNotFound: TopicMissing,
    wire.InvalidTopicName: InvalidName,
    wire.NotAllowedError: NotSupported,
    wire.UnsupportedVersionError: NotSupported,
    wire.IncompatibleSchema: NotSupported,
}
"""Refusals that the next attempt would meet again; all others come from brokers that start, stop or are busy."""


def refused(what: str, code: wire.ServerError.ValueType, message: str) -> AfterglowError:
    """The error that says what a broker said to ``what``."""
    kind = _FINAL.get(code, HotLogUnavailable)
    return kind(f"{what} was refused: {wire.ServerError.Name(code)}: {message}")
