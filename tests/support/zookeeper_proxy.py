"""A proxy in front of ZooKeeper that records what each connection writes.

It parses the frames of clients; what it does not know counts as a write.
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

_READS: Final = frozenset({3, 4, 6, 8, 9, 11, 12, 100, 101, 102, 103, 105, 106, 107, -11})
"""exists, getData, getACL, getChildren, sync, ping, getChildren2, auth, watches, sasl, closing of the session."""
_CREATES: Final = frozenset({1, 15, 19, 21})
_DELETE: Final = 2
_SET_DATA: Final = 5
_CHECK: Final = 13
_MULTI: Final = 14
_WITH_PATH: Final = _CREATES | {_DELETE, _SET_DATA, 7}
_CHUNK: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Write:
    """One change that a client asked for."""

    operation: int
    """ZooKeeper's number of the request."""
    path: str
    """Empty if the request has none that is known here."""


class ZooKeeperProxy:
    """Listens on a free port of 127.0.0.1, in front of a server; a context manager.

    Args:
        target: ``host:port`` of the server.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.partition(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._writes: list[Write] = []
        self._sockets: list[socket.socket] = []
        self.connections = 0
        """Number of connections so far."""

    @property
    def hosts(self) -> str:
        """Where clients find it: ``host:port``."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def writes(self) -> tuple[Write, ...]:
        """What clients asked to change so far."""
        with self._lock:
            return tuple(self._writes)

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        with self._lock:
            sockets = tuple(self._sockets)
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            with self._lock:
                self.connections += 1
                self._sockets += [client, server]
            threading.Thread(target=self._requests, args=(client, server), daemon=True).start()
            threading.Thread(target=_forward, args=(server, client), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        is_first = True
        try:
            while True:
                header = _read(client, 4)
                frame = _read(client, struct.unpack(">i", header)[0])
                if not is_first:  # the first frame of a connection asks for a session
                    self._record(frame)
                is_first = False
                server.sendall(header + frame)
        except (OSError, EOFError):
            for each in (client, server):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _record(self, frame: bytes) -> None:
        (operation,) = struct.unpack_from(">i", frame, 4)
        found = list(parse_writes(operation, frame[8:]))
        with self._lock:
            self._writes += found


def parse_writes(operation: int, body: bytes) -> Iterator[Write]:
    """The changes that a request asks for."""
    if operation in _READS:
        return
    if operation in _WITH_PATH:
        yield Write(operation, _text(body, 0)[0])
    elif operation == _MULTI:
        yield from _parse_multi(body)
    else:
        yield Write(operation, "")


def _parse_multi(body: bytes) -> Iterator[Write]:
    at = 0
    while True:
        operation, is_done = struct.unpack_from(">i?", body, at)
        at += 9  # with an error code
        if is_done:
            return
        path, at = _text(body, at)
        if operation != _CHECK:
            yield Write(operation, path)
        if operation in _CREATES:
            at = _skip(body, at)
            (acls,) = struct.unpack_from(">i", body, at)
            at += 4
            for _ in range(acls):
                at = _skip(body, _skip(body, at + 4))
            at += 4  # flags
        elif operation == _SET_DATA:
            at = _skip(body, at) + 4
        elif operation in {_DELETE, _CHECK}:
            at += 4
        else:
            yield Write(operation, "")
            return


def _text(body: bytes, at: int) -> tuple[str, int]:
    end = _skip(body, at)
    return body[at + 4 : end].decode(), end


def _skip(body: bytes, at: int) -> int:
    """The offset behind a string or buffer; a length of -1 stands for none."""
    (length,) = struct.unpack_from(">i", body, at)
    return int(at + 4 + max(0, length))


def _read(source: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        data = source.recv(min(_CHUNK, size - len(found)))
        if not data:
            raise EOFError
        found += data
    return bytes(found)


def _forward(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(_CHUNK):
            target.sendall(data)
    for each in (source, target):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
