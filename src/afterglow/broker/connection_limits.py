"""Limits on connections and TLS handshakes of a port.

A connection holds its slot from the moment it is accepted, also during its TLS handshake, so that clients that never
finish the handshake are limited too.

asyncio drops the error of a failed handshake, and the protocol behind it never learns of the connection: a client with
the wrong trust store would leave no trace. Therefore the TLS layer is put in front of the protocol explicitly, with a
future that asyncio resolves when the handshake ends.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from asyncio.sslproto import SSLProtocol
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, ParamSpec

from afterglow.broker.log_throttle import LogThrottle
from afterglow.events import log_warning

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)


class ConnectionSlots:
    """Slots for the connections of one service, on all its ports. Belongs to the event loop's thread.

    Args:
        total: Limit of all connections; 0: no limit.
        per_address: Limit of connections from one address; 0: no limit.
        total_setting: Name of the setting of `total`, for the log.
        per_address_setting: Name of the setting of `per_address`.
        now_s: The clock, in seconds.
    """

    def __init__(
        self,
        total: int,
        per_address: int,
        total_setting: str,
        per_address_setting: str,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = total
        self._per_address = per_address
        self._total_setting = total_setting
        self._per_address_setting = per_address_setting
        self._addresses: dict[object, str] = {}
        self._counts: Counter[str] = Counter()
        self._throttle = LogThrottle(now_s)

    def __len__(self) -> int:
        return len(self._addresses)

    def acquire(self, holder: object, transport: asyncio.BaseTransport) -> bool:
        """Acquire a slot for a connection.

        Args:
            holder: The protocol of the connection, which releases the slot.
            transport: The transport, for the client's address.

        Returns:
            False if a limit is reached; the reason is logged.
        """
        peer = transport.get_extra_info("peername")
        address = str(peer[0]) if peer else ""
        if self._total and len(self._addresses) >= self._total:
            self._report(self._total_setting, self._total, address)
            return False
        if self._per_address and self._counts[address] >= self._per_address:
            self._report(self._per_address_setting, self._per_address, address)
            return False
        self._addresses[holder] = address
        self._counts[address] += 1
        return True

    def release(self, holder: object) -> None:
        """Release the slot of a connection, if it holds one."""
        address = self._addresses.pop(holder, None)
        if address is None:
            return
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]

    def _report(self, setting: str, limit: int, address: str) -> None:
        if (dropped := self._throttle.admit(setting)) is not None:
            reason = f"{setting} is {limit}{dropped}"
            log_warning(log, "client refused", client=address, reason=reason)


P = ParamSpec("P")

_NOT_TLS: Final = "the client does not speak TLS; give it a pulsar+ssl:// or https:// address"
_NOT_TRUSTED: Final = (
    "the client does not accept the certificate; it must trust the issuer, and the certificate must name the address "
    "that the client uses (advertisedAddress)"
)
_NO_COMMON_CIPHER: Final = (
    "client and broker have no TLS version or cipher suite in common; see tlsProtocols, tlsCiphers"
)
_NO_CERTIFICATE: Final = "the client has no certificate that tlsTrustCertsFilePath trusts"
_CAUSES: Final = {
    "HTTP_REQUEST": _NOT_TLS,
    "WRONG_VERSION_NUMBER": _NOT_TLS,
    "RECORD_LAYER_FAILURE": _NOT_TLS,
    "TLSV1_ALERT_UNKNOWN_CA": _NOT_TRUSTED,
    "SSLV3_ALERT_BAD_CERTIFICATE": _NOT_TRUSTED,
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": _NOT_TRUSTED,
    "NO_SHARED_CIPHER": _NO_COMMON_CIPHER,
    "UNSUPPORTED_PROTOCOL": _NO_COMMON_CIPHER,
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": _NO_CERTIFICATE,
    "CERTIFICATE_VERIFY_FAILED": _NO_CERTIFICATE,
}
"""Explanations by OpenSSL's name of the reason."""


class FailedHandshakes:
    """Logs failed handshakes of one port, at most once per minute for each address and reason.

    Args:
        port: Name of the port's setting.
        now_s: The clock, in seconds.
    """

    def __init__(self, port: str, now_s: Callable[[], float] = time.monotonic) -> None:
        self._port = port
        self._throttle = LogThrottle(now_s)

    def report(self, address: str, error: BaseException) -> None:
        """Log the reason of a failed handshake, unless it was logged within the last minute."""
        reason = _reason(error)
        if (dropped := self._throttle.admit((address, reason))) is not None:
            log.warning("TLS handshake with %s failed on %s: %s%s", address, self._port, reason, dropped)


def over_tls(
    make_protocol: Callable[P, asyncio.BaseProtocol],
    context: ssl.SSLContext,
    port: str,
    slots: ConnectionSlots,
    handshake_timeout_s: float,
) -> Callable[P, asyncio.BaseProtocol]:
    """Put TLS in front of the protocols of a factory, for a server that is created without a context.

    Args:
        make_protocol: The factory. Its protocols acquire no slots.
        context: The TLS context, with the certificate.
        port: Name of the port's setting, for the log.
        slots: Limits the connections, from before the handshake.
        handshake_timeout_s: Seconds after which an unfinished handshake ends the connection.
    """
    failed = FailedHandshakes(port)

    def make(*args: P.args, **kwargs: P.kwargs) -> asyncio.BaseProtocol:
        return _ServerTls(make_protocol(*args, **kwargs), context, failed, slots, handshake_timeout_s)

    return make


class _ServerTls(SSLProtocol):
    """The protocol that asyncio uses for ``create_server`` with a context, with slots and logging added."""

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
        seconds: Any = handshake_timeout_s  # the stubs declare int
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
        return "the handshake timed out"
    if isinstance(error, ConnectionError):
        return "the client closed the connection during the handshake"
    return str(error) or type(error).__name__
