"""TLS connections of a port: limits on handshakes, and failed ones in the log.

asyncio drops the error of a handshake that fails, and the protocol behind it never learns of the connection: a client
with the wrong certificate store would leave no trace. Here the TLS layer is put in front of the protocol by hand, with
a future that asyncio resolves when the handshake ends.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from asyncio.sslproto import SSLProtocol
from typing import TYPE_CHECKING, Any, Final, ParamSpec

from afterglow.broker.log_throttle import LogThrottle

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.broker.connection_slots import ConnectionSlots

log = logging.getLogger(__name__)

P = ParamSpec("P")

_NOT_TLS: Final = "the client does not speak TLS; give it a pulsar+ssl:// or https:// address"
_NOT_TRUSTED: Final = (
    "the client does not accept the certificate; it must trust the issuer, and the certificate must name the address "
    "that the client uses (advertisedAddress)"
)
_NOTHING_IN_COMMON: Final = (
    "no TLS version or cipher suite is common to client and broker; see tlsProtocols, tlsCiphers"
)
_NO_CERTIFICATE: Final = "the client has no certificate that tlsTrustCertsFilePath trusts"
_CAUSES: Final = {
    "HTTP_REQUEST": _NOT_TLS,
    "WRONG_VERSION_NUMBER": _NOT_TLS,
    "RECORD_LAYER_FAILURE": _NOT_TLS,
    "TLSV1_ALERT_UNKNOWN_CA": _NOT_TRUSTED,
    "SSLV3_ALERT_BAD_CERTIFICATE": _NOT_TRUSTED,
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": _NOT_TRUSTED,
    "NO_SHARED_CIPHER": _NOTHING_IN_COMMON,
    "UNSUPPORTED_PROTOCOL": _NOTHING_IN_COMMON,
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": _NO_CERTIFICATE,
    "CERTIFICATE_VERIFY_FAILED": _NO_CERTIFICATE,
}
"""By OpenSSL's name of the reason."""


class FailedHandshakes:
    """Logs failed handshakes of one port, each address and reason at most once in a minute.

    Args:
        port: Name of the port's setting.
        now_s: The clock, in seconds.
    """

    def __init__(self, port: str, now_s: Callable[[], float] = time.monotonic) -> None:
        self._port = port
        self._throttle = LogThrottle(now_s)

    def report(self, address: str, error: BaseException) -> None:
        """Log why the handshake with a client failed, unless it was logged a moment ago."""
        reason = _reason(error)
        if (more := self._throttle.admit((address, reason))) is None:
            return
        log.warning("TLS handshake with %s failed on %s: %s%s", address, self._port, reason, more)


def over_tls(
    make_protocol: Callable[P, asyncio.BaseProtocol],
    context: ssl.SSLContext,
    port: str,
    slots: ConnectionSlots,
    handshake_timeout_s: float,
) -> Callable[P, asyncio.BaseProtocol]:
    """Put TLS in front of the protocols that a factory makes, for a server that is given no context of its own.

    Args:
        make_protocol: The factory. Its protocols take no slots of their own.
        context: Offers the certificate.
        port: Name of the port's setting, for the log.
        slots: Bounds the connections, from before the handshake.
        handshake_timeout_s: Seconds after which a handshake that is not finished ends the connection.
    """
    failed = FailedHandshakes(port)

    def make(*args: P.args, **kwargs: P.kwargs) -> asyncio.BaseProtocol:
        return _ServerTls(make_protocol(*args, **kwargs), context, failed, slots, handshake_timeout_s)

    return make


class _ServerTls(SSLProtocol):
    """The protocol that asyncio itself uses where ``create_server`` is given a context."""

    def __init__(
        self,
        protocol: asyncio.BaseProtocol,
        context: ssl.SSLContext,
        failed: FailedHandshakes,
        slots: ConnectionSlots,
        handshake_timeout_s: float,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._client_address = "a client"
        self._failed_handshakes = failed
        self._slots = slots
        ended: asyncio.Future[None] = loop.create_future()
        ended.add_done_callback(self._on_handshake_end)
        seconds: Any = handshake_timeout_s  # the stubs allow whole numbers alone
        super().__init__(loop, protocol, context, ended, server_side=True, ssl_handshake_timeout=seconds)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peer = transport.get_extra_info("peername")
        if peer:
            self._client_address = str(peer[0])
        if not self._slots.acquire(self, transport):
            assert isinstance(transport, asyncio.Transport)
            transport.abort()
            return
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._slots.release(self)
        super().connection_lost(exc)

    def _on_handshake_end(self, ended: asyncio.Future[None]) -> None:
        if not ended.cancelled() and (error := ended.exception()) is not None:
            self._failed_handshakes.report(self._client_address, error)


def _reason(error: BaseException) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return f"{_CAUSES[error.reason]} ({error.reason})" if error.reason in _CAUSES else error.reason
    if isinstance(error, ConnectionAbortedError):
        return "it took too long"
    if isinstance(error, ConnectionError):
        return "the client closed the connection before it was done"
    return str(error) or type(error).__name__
