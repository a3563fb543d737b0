"""HTTP through a process of ours: requests are passed on, and what is answered is seen."""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

Answer: TypeAlias = tuple[int, list[tuple[str, str]], bytes]
"""Status, headers, body."""

_TIMEOUT_S: Final = 120.0
_HOP_BY_HOP: Final = frozenset({"connection", "expect", "keep-alive", "transfer-encoding", "content-length"})


class ForwardingServer(ThreadingHTTPServer):
    """A server on a free port of 127.0.0.1, in front of another."""

    daemon_threads = True

    def __init__(self, target: str, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.target = target

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_port}"

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Serve for the time of a ``with``."""
        thread = threading.Thread(target=self.serve_forever, args=(0.05,), name="proxy", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.shutdown()
            self.server_close()
            thread.join()

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: clients are killed in the middle of requests."""


class ForwardingHandler(BaseHTTPRequestHandler):
    """Reads a request, asks the server behind, answers; subclasses come between."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: ForwardingServer

    def body(self) -> bytes:
        """The body of the request."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def forward(self, method: str, path: str, body: bytes) -> Answer:
        """Ask the server behind; where it does not answer, 500."""
        target = urlsplit(self.server.target)
        assert target.hostname is not None
        connection = HTTPConnection(target.hostname, target.port, timeout=_TIMEOUT_S)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _HOP_BY_HOP:
                    connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        except (OSError, HTTPException):
            return HTTPStatus.INTERNAL_SERVER_ERROR, [], b""
        finally:
            connection.close()

    def answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        """Answer the client."""
        length = str(len(body))
        with suppress(OSError):  # the client is gone
            self.send_response_only(status)
            for name, value in headers:
                if name.lower() not in _HOP_BY_HOP:
                    self.send_header(name, value)
                elif name.lower() == "content-length" and self.command == "HEAD":
                    length = value
            # Where there is no content, some clients take a length, even of nothing, for a mistake.
            if status != HTTPStatus.NO_CONTENT:
                self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the class above
        """Say nothing."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and how it was answered."""

    method: str
    path: str
    """With the query."""
    status: int
    body: bytes = field(repr=False)
    """Of the answer."""


class _RecordingServer(ForwardingServer):
    def __init__(self, target: str) -> None:
        super().__init__(target, _RecordingHandler)
        self.exchanges: list[Exchange] = []


class _RecordingHandler(ForwardingHandler):
    server: _RecordingServer

    def _serve(self) -> None:
        status, headers, body = self.forward(self.command, self.path, self.body())
        self.server.exchanges.append(Exchange(self.command, self.path, status, body))
        self.answer(status, headers, body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815 - the names that the server looks for


@dataclass(frozen=True, slots=True)
class Recorder:
    """A proxy that keeps what went through it."""

    url: str
    _exchanges: list[Exchange]

    def taken(self) -> tuple[Exchange, ...]:
        """What was answered since this was last asked."""
        found = tuple(self._exchanges)
        del self._exchanges[: len(found)]
        return found


@contextmanager
def recorder(target: str) -> Iterator[Recorder]:
    """Run a proxy that keeps what goes through it, until the block ends."""
    server = _RecordingServer(target)
    with server.serving():
        yield Recorder(server.url, server.exchanges)
