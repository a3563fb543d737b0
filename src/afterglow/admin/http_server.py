"""HTTP server of an ASGI application, in the running event loop.

The process keeps its own signal handlers. The parser limits the size of headers and the handlers that of bodies; this
module limits the number of connections and the time that a client may take.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from afterglow.broker.connection_limits import ConnectionSlots, over_tls
from afterglow.errors import ConfigError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

    from starlette.types import ASGIApp

    from afterglow.config import BrokerConfig

_RECEIVING: Final = (h11.IDLE, h11.SEND_BODY)
"""States in which the client has to send more: the headers of a request, or the rest of its body."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of connections to the admin API, shared by the plain and the TLS port."""

    slots: ConnectionSlots
    """Limits the connections of both ports."""
    request_timeout_s: float
    """For the headers of a request, for its body, and for a client that has stopped reading an answer."""
    handshake_timeout_s: float
    """For a TLS handshake."""

    @classmethod
    def of(cls, config: BrokerConfig) -> HttpLimits:
        """Limits by the settings, with no slot taken."""
        slots = ConnectionSlots(
            config.max_http_server_connections,
            config.max_http_server_connections_per_ip,
            "maxHttpServerConnections",
            "maxHttpServerConnectionsPerIp",
        )
        return cls(slots, config.http_request_timeout_seconds, config.tls_handshake_timeout_seconds)


class HttpServer:
    """A running server. Made by :func:`serve_http`."""

    def __init__(self, server: _UvicornServer, task: asyncio.Task[None], port: int) -> None:
        self._server = server
        self._task = task
        self.port = port
        """The port that it listens on."""

    async def stop(self) -> None:
        """Stop accepting connections, finish the calls in progress, and close all connections. Idempotent."""
        self._server.should_exit = True
        await self._task


async def serve_http(
    app: ASGIApp, host: str, port: int, limits: HttpLimits, tls: ssl.SSLContext | None = None, *, grace_s: float = 10.0
) -> HttpServer:
    """Serve an application; returns once it accepts connections.

    Args:
        app: The application.
        host: Address to listen on.
        port: 0 picks a free one.
        limits: Limits of connections and of the time that clients may take.
        tls: The TLS context; None: plain HTTP.
        grace_s: Time for calls in progress when the server is stopped.

    Raises:
        ConfigError: The address or the port is not available.
    """
    listening = _listen(host, port)
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",  # `afterglow serve` prints the address
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=max(int(grace_s), 1),
    )
    config.load()
    make: Any = partial(_HttpConnection, limits.request_timeout_s, limits.slots if tls is None else None)
    if tls is not None:
        make = over_tls(make, tls, "webServicePortTls", limits.slots, limits.handshake_timeout_s)
    config.http_protocol_class = make
    server = _UvicornServer(config)
    task = asyncio.get_running_loop().create_task(server.serve(sockets=[listening]), name="admin-http")
    started = asyncio.get_running_loop().create_task(server.is_started.wait())
    await asyncio.wait({task, started}, return_when=asyncio.FIRST_COMPLETED)
    if not started.done():
        started.cancel()
        await task  # raises the error that ended it
    bound_port: int = listening.getsockname()[1]
    return HttpServer(server, task, bound_port)


class _UvicornServer(uvicorn.Server):
    """Leaves signals to the process, and notifies when it accepts connections."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_started = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_started.set()


class _HttpConnection(H11Protocol):
    """One connection; it is closed if the client takes too long to send a request or to read an answer.

    uvicorn limits only the time between two requests.
    """

    def __init__(self, timeout_s: float, slots: ConnectionSlots | None, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._timeout_s = timeout_s
        self._slots = slots
        """None: the TLS layer in front has taken the slot."""
        self._request_timer: asyncio.TimerHandle | None = None
        self._timed_state: Any = None
        """State of the client when its request timer was started."""
        self._answer_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._slots is not None and not self._slots.acquire(self, transport):
            transport.abort()
            return
        self._update_request_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._slots is not None:
            self._slots.release(self)
        for timer in (self._request_timer, self._answer_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update_request_timer()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._answer_timer = self.loop.call_later(self._timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None

    def _update_request_timer(self) -> None:
        """Start the timer when the client has to send headers or a body, and stop it when it has not."""
        state = self.conn.their_state
        if self._request_timer is not None:
            if state is self._timed_state:
                return
            self._request_timer.cancel()
            self._request_timer = None
        if state in _RECEIVING and not self.transport.is_closing():
            self._timed_state = state
            self._request_timer = self.loop.call_later(self._timeout_s, self._on_request_timeout)

    def _on_request_timeout(self) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            part = "the headers of a request" if self._timed_state is h11.IDLE else "the body"
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"{part} took longer than {self._timeout_s:g} s")
        self.transport.close()
        if self._answer_timer is None:  # a client that does not read would keep the connection open
            self._answer_timer = self.loop.call_later(self._timeout_s, self.transport.abort)

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        """Answer in place of the application, which is notified of a disconnect."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        headers = [("content-type", "text/plain; charset=utf-8"), ("connection", "close")]
        for event in (
            h11.Response(status_code=status, headers=headers, reason=status.phrase.encode()),
            h11.Data(data=reason.encode()),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event))


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address, family=family, backlog=1024)
    except OSError as error:
        raise ConfigError(
            f"webServicePort: cannot listen on {host} port {port}: {error.strerror or error}; choose another port, "
            "or 0 for any free one"
        ) from error
