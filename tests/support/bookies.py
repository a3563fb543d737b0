"""Scripted bookies in this process, and the metadata of their cluster: faults that real ones do not show on demand."""

from __future__ import annotations

import hashlib
import hmac
import queue
import socket
import struct
import threading
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from crc32c import crc32c

from afterglow.format.proto.bookkeeper_pb2 import BookieServiceInfoFormat, LedgerMetadataFormat
from afterglow.hot.bookkeeper import BookKeeperClient, BookKeeperCluster, ReadLimits
from afterglow.metadata.memory import MemoryMetadataStore
from afterglow.metadata.store import MUST_NOT_EXIST

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from afterglow.metadata.store import MetadataStore

READ: Final = 2
BATCH: Final = 7
OK, NO_LEDGER, NO_ENTRY, IO_ERROR, UNAUTHORIZED, TOO_MANY, UNKNOWN = 0, 1, 2, 101, 102, 106, 107
MAGIC: Final = b"BookieMetadataFormatVersion\t"


def stored_entry(
    ledger_id: int,
    entry_id: int,
    payload: bytes,
    length: int,
    *,
    last_confirmed: int | None = None,
    digest: str = "CRC32C",
    password: bytes = b"",
) -> bytes:
    """An entry as a bookie stores it; ``length`` includes the payload."""
    last_confirmed = entry_id - 1 if last_confirmed is None else last_confirmed
    head = struct.pack(">qqqq", ledger_id, entry_id, last_confirmed, length)
    if digest == "CRC32C":
        found = struct.pack(">I", crc32c(head + payload))
    elif digest == "CRC32":
        found = struct.pack(">Q", zlib.crc32(head + payload))
    elif digest == "HMAC":
        found = hmac.digest(hashlib.sha1(b"mac" + password).digest(), head + payload, "sha1")
    else:
        found = b""
    return head + found + payload


def stored_entries(ledger_id: int, payloads: Sequence[bytes], **options: Any) -> list[bytes]:
    """All entries of a ledger as bookies store them."""
    length, entries = 0, []
    for entry_id, payload in enumerate(payloads):
        length += len(payload)
        entries.append(stored_entry(ledger_id, entry_id, payload, length, **options))
    return entries


class Received(NamedTuple):
    """One request that a bookie received."""

    operation: int
    ledger_id: int
    first: int
    entries: int


class ScriptedBookie:
    """A bookie on 127.0.0.1; ends with the ``with`` block of its cluster."""

    def __init__(self) -> None:
        self.entries: dict[tuple[int, int], bytes] = {}
        self.received: list[Received] = []
        self.is_old = False
        """Whether it resets the connection on a batch read."""
        self.code_of: Callable[[Received], int | None] = lambda _request: None
        """Another code to answer with; None: as usual."""
        self.answering = threading.Event()
        """Cleared: it takes requests and answers none."""
        self.answering.set()
        self.answers_sent = 0
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._start()

    def kill(self) -> None:
        """Close the port and reset all connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.answering.set()
        for each in self._sockets:
            _reset(each)

    def count(self, operation: int) -> int:
        """Number of requests of one kind."""
        return sum(each.operation == operation for each in self.received)

    def _start(self) -> None:
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connected, _ = listener.accept()
                self._sockets.append(connected)
                waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()
                threading.Thread(target=self._receive, args=(connected, waiting), daemon=True).start()
                threading.Thread(target=self._answer, args=(connected, waiting), daemon=True).start()

    def _receive(self, connected: socket.socket, waiting: queue.SimpleQueue[bytes]) -> None:
        data = b""
        with suppress(OSError):
            while got := connected.recv(1 << 16):
                data += got
                while len(data) >= 4 and len(data) >= 4 + (size := struct.unpack_from(">I", data)[0]):
                    frame, data = data[: 4 + size], data[4 + size :]
                    # Bit 0 of the flags fences the ledger of a real bookie.
                    assert frame[:8] in {bytes.fromhex("0000001402020000"), bytes.fromhex("0000002802070000")}, frame
                    self.received.append(_parsed(frame))
                    waiting.put(frame)
        waiting.put(b"")

    def _answer(self, connected: socket.socket, waiting: queue.SimpleQueue[bytes]) -> None:
        with suppress(OSError):
            while frame := waiting.get():
                self.answering.wait()
                request = _parsed(frame)
                if request.operation == BATCH and self.is_old:
                    _reset(connected)
                    return
                connected.sendall(self._response(frame, request))
                self.answers_sent += 1

    def _response(self, frame: bytes, request: Received) -> bytes:
        found: list[bytes] = []
        first = request.first
        if first < 0:
            first = max((entry for ledger, entry in self.entries if ledger == request.ledger_id), default=-1)
        size, limit = 36, struct.unpack_from(">q", frame, 36)[0] if request.operation == BATCH else 0
        for entry_id in range(first, first + request.entries):
            stored = self.entries.get((request.ledger_id, entry_id))
            size += 4 + len(stored or b"")
            if stored is None or (found and size > min(limit, 5 << 20)):
                break
            found.append(stored)
        code = self.code_of(request)
        if code is None:
            has_ledger = any(ledger == request.ledger_id for ledger, _ in self.entries)
            code = OK if found else NO_ENTRY if has_ledger else NO_LEDGER
        body = frame[4:8] + struct.pack(">i", code) + frame[8:24]
        if request.operation == BATCH:
            body += frame[24:32]
        if code == OK:
            sizes = request.operation == BATCH
            body += b"".join((struct.pack(">i", len(each)) if sizes else b"") + each for each in found)
        return struct.pack(">I", len(body)) + body


def _parsed(frame: bytes) -> Received:
    operation, (ledger_id, first) = frame[5], struct.unpack_from(">qq", frame, 8)
    return Received(operation, ledger_id, first, struct.unpack_from(">i", frame, 32)[0] if operation == BATCH else 1)


def _reset(connected: socket.socket) -> None:
    with suppress(OSError):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connected.shutdown(socket.SHUT_RD)  # wakes the thread that receives
        connected.close()


class ScriptedCluster:
    """Bookies ``b0``, ``b1``, … and a metadata store; a context manager that ends them.

    Args:
        bookies: Their number.
        limits: Of its client.
        name: Of the store, which is then at ``memory://NAME``.
        store: By default one of its own.
    """

    def __init__(
        self,
        bookies: int = 3,
        limits: ReadLimits | None = None,
        name: str | None = None,
        *,
        store: MetadataStore | None = None,
    ) -> None:
        self.bookies = {f"b{number}": ScriptedBookie() for number in range(bookies)}
        self.store: MetadataStore = store or MemoryMetadataStore(name)
        self.metadata = f"memory://{name}"
        """Address of the store, if it has a name."""
        self.reads: list[str] = []
        """Paths that were read from the store."""
        for bookie_id, bookie in self.bookies.items():
            self.register(bookie_id, bookie.port)
        self.client = BookKeeperClient(BookKeeperCluster(self), limits or ReadLimits(timeout_s=5, deadline_s=10))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        for bookie in self.bookies.values():
            bookie.kill()
        self.store.close()

    def get(self, path: str) -> Any:
        self.reads.append(path)
        return self.store.get(path)

    def children(self, path: str) -> tuple[str, ...]:
        return self.store.children(path)

    def put(self, path: str, value: bytes) -> None:
        found = self.store.get(path)
        self.store.put(path, value, MUST_NOT_EXIST if found is None else found.version)

    def register(self, name: str, port: int) -> None:
        info = BookieServiceInfoFormat()
        info.endpoints.add(id="http", port=1, host="127.0.0.1", protocol="http")
        info.endpoints.add(id="bookie", port=port, host="127.0.0.1", protocol="bookie-rpc")
        self.put(f"/ledgers/available/{name}", info.SerializeToString())
        self.put(f"/ledgers/cookies/{name}", b"4\n")

    def write(
        self,
        ledger_id: int,
        payloads: Sequence[bytes],
        fragments: Mapping[int, Sequence[str]],
        quorum: int,
        *,
        digest: str = "CRC32C",
        password: bytes = b"",
    ) -> list[bytes]:
        """Put the metadata of a ledger, and its entries on the bookies that must hold them; returns the entries."""
        self.put_metadata(ledger_id, fragments, quorum, digest=digest, password=password)
        entries = stored_entries(ledger_id, payloads, digest=digest, password=password)
        for entry_id, stored in enumerate(entries):
            ensemble = fragments[max(first for first in fragments if first <= entry_id)]
            for i in range(quorum):
                name = ensemble[(entry_id + i) % len(ensemble)]
                self.bookies[name].entries[ledger_id, entry_id] = stored
        return entries

    def put_metadata(
        self,
        ledger_id: int,
        fragments: Mapping[int, Sequence[str]],
        quorum: int,
        last: int | None = None,
        *,
        digest: str = "CRC32C",
        password: bytes = b"",
    ) -> None:
        form = LedgerMetadataFormat
        message = form(
            quorumSize=quorum,
            ensembleSize=len(fragments[0]),
            ackQuorumSize=quorum,
            length=0,
            lastEntryId=-1 if last is None else last,
            state=form.OPEN if last is None else form.CLOSED,
            segment=[form.Segment(ensembleMember=names, firstEntryId=first) for first, names in fragments.items()],
            digestType=form.DigestType.Value(digest),
            password=password,
        )
        data = message.SerializeToString()
        assert len(data) < 1 << 14
        size = bytes([len(data) & 0x7F | 0x80, len(data) >> 7])
        self.put(ledger_node(ledger_id), MAGIC + b"3\n" + size + data)


def ledger_node(ledger_id: int) -> str:
    digits = f"{ledger_id:010d}"
    return f"/ledgers/{digits[:2]}/{digits[2:6]}/L{digits[6:]}"
