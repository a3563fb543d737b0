"""Serving an ASGI application over HTTP, in the event loop that is running.

The process keeps its own signal handlers. Headers are bounded by the parser, bodies by whoever reads them.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import uvicorn

from afterglow.errors import ConfigError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

    from starlette.types import ASGIApp

_MOST_CONNECTIONS: Final = 2048
"""As Pulsar's maxHttpServerConnections; who comes after is turned away with 503."""


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
    app: ASGIApp, host: str, port: int, tls: ssl.SSLContext | None = None, *, grace_s: float = 10.0
) -> HttpServer:
    """Serve an application; returns once it answers.

    Args:
        app: What answers.
        host: Address to listen on.
        port: 0 picks a free one.
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
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=max(int(grace_s), 1),
    )
    config.load()
    config.ssl = tls
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


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address, family=family, backlog=1024)
    except OSError as error:
        raise ConfigError(
            f"webServicePort: cannot listen on {host} port {port}: {error.strerror or error}; choose another port, "
            "or 0 for any free one"
        ) from error
