"""Serving an ASGI application over HTTP, in the event loop that is running.

The process keeps its own signal handlers. The sizes of headers are bounded by the parser, those of bodies by their
handlers; the number of connections and the time that a client may take are bounded here.
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

_WAITING: Final = (h11.IDLE, h11.SEND_BODY)
"""States of a client that has to send more: the headers of a request, or the rest of its body."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Bounds on connections to the admin API, shared by its plain and its TLS port."""

    slots: ConnectionSlots
    """Bounds the connections of both ports."""
    request_timeout_s: float
    """Seconds for the headers of a request, for its body, and for a client that has stopped reading an answer."""
    handshake_timeout_s: float
    """Seconds for a TLS handshake."""

    @classmethod
    def of(cls, config: BrokerConfig) -> HttpLimits:
        """The limits that the settings name, with no slot taken."""
        slots = ConnectionSlots(
            config.max_http_server_connections,
            config.max_http_server_connections_per_ip,
            "maxHttpServerConnections",
            "maxHttpServerConnectionsPerIp",
        )
        return cls(slots, config.http_request_timeout_seconds, config.tls_handshake_timeout_seconds)


class HttpServer:
    """A server that answers. Made by :func:`serve_http`."""

    def __init__(self, server: _Server, task: asyncio.Task[None], port: int) -> None:
        self._server = server
        self._task = task
        self.port = port
        """Where it listens."""

    async def stop(self) -> None:
        """Accept nothing more, let calls under way end, and close every connection. A second call does nothing."""
        self._server.should_exit = True
        await self._task


async def serve_http(
    app: ASGIApp, host: str, port: int, limits: HttpLimits, tls: ssl.SSLContext | None = None, *, grace_s: float = 10.0
) -> HttpServer:
    """Serve an application; returns once it answers.

    Args:
        app: What answers.
        host: Address to listen on.
        port: 0 picks a free one.
        limits: Bounds on connections and on the time that clients may take.
        tls: Protects the wire; None: nothing does.
        grace_s: Seconds that calls under way have when the server is stopped.

    Raises:
        ConfigError: The address or the port cannot be had.
    """
    listening = _listen(host, port)
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",  # who serves is said by whoever starts it
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
    server = _Server(config)
    task = asyncio.get_running_loop().create_task(server.serve(sockets=[listening]), name="admin-http")
    waiting = asyncio.get_running_loop().create_task(server.answering.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if not waiting.done():
        waiting.cancel()
        await task  # raises why it has ended
    found: int = listening.getsockname()[1]
    return HttpServer(server, task, found)


class _Server(uvicorn.Server):
    """Leaves signals to the process, and says when it answers."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.answering = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.answering.set()


class _HttpConnection(H11Protocol):
    """One connection, which ends where its client takes too long to send a request or to read an answer.

    uvicorn bounds only the time between two requests.
    """

    def __init__(self, timeout_s: float, slots: ConnectionSlots | None, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._timeout_s = timeout_s
        self._slots = slots
        """None where the TLS layer in front has taken the slot."""
        self._sending: asyncio.TimerHandle | None = None
        self._sending_what: Any = None
        """The state in which the client was when its time began."""
        self._reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._slots is not None and not self._slots.acquire(self, transport):
            transport.abort()
            return
        self._watch_request()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._slots is not None:
            self._slots.release(self)
        for timer in (self._sending, self._reading):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_request()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reading = self.loop.call_later(self._timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _watch_request(self) -> None:
        """Start the client's time where another part of a request is due, and stop it where nothing is."""
        state = self.conn.their_state
        if self._sending is not None:
            if state is self._sending_what:
                return
            self._sending.cancel()
            self._sending = None
        if state in _WAITING and not self.transport.is_closing():
            self._sending_what = state
            self._sending = self.loop.call_later(self._timeout_s, self._on_request_timeout)

    def _on_request_timeout(self) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            part = "the headers of a request" if self._sending_what is h11.IDLE else "the body"
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"{part} took longer than {self._timeout_s:g} s")
        self.transport.close()
        if self._reading is None:  # a client that does not read either keeps the connection from closing
            self._reading = self.loop.call_later(self._timeout_s, self.transport.abort)

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        """Answer in place of the application, which learns that its caller has gone."""
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
