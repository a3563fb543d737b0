"""One client's connection: frames in and out, the handshake, keep-alive, and limits.

A misbehaving client affects its own connection only: malformed and oversized frames close it, an incomplete frame holds
one buffer of limited size, and a client that does not read gets no more messages, and is closed when unread responses
pile up.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from google.protobuf.message import DecodeError

from afterglow.broker import replies
from afterglow.broker.auth import TOKEN
from afterglow.errors import InvalidFrame
from afterglow.events import log_event
from afterglow.format.new_entries import encode_receipts
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.wire import COMMAND_ALLOWANCE_BYTES, FrameBuffer, Refused, encode_command

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from afterglow.broker.auth import Principal
    from afterglow.broker.connection_limits import ConnectionSlots

log = logging.getLogger(__name__)

PROTOCOL_VERSION = 19
"""The version of Pulsar 4.0; for older clients their own version is used."""

_REFRESH = b"PulsarAuthRefresh"
"""The challenge that clients answer with a new token."""

_PING = encode_command(wire.BaseCommand(type=wire.BaseCommand.PING, ping=wire.CommandPing()))
_PONG = encode_command(wire.BaseCommand(type=wire.BaseCommand.PONG, pong=wire.CommandPong()))


class PublishBudget:
    """Limit of bytes that all connections have sent and that are not durable yet.

    Above the limit, connections that publish are not read until half of the bytes are durable.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held = 0
        self._waiting: set[Connection] = set()

    def acquire(self, connection: Connection, size: int) -> bool:
        """Add bytes; False if the connection has to wait for a call of ``resume_reading``."""
        self._held += size
        if self._held <= self._limit_bytes:
            return True
        self._waiting.add(connection)
        return False

    def release(self, size: int) -> None:
        """Subtract bytes that are durable."""
        self._held -= size
        if self._waiting and self._held <= self._limit_bytes // 2:
            waiting, self._waiting = self._waiting, set()
            for connection in waiting:
                connection.resume_reading()

    def discard(self, connection: Connection) -> None:
        """Remove a lost connection."""
        self._waiting.discard(connection)

    def is_waiting(self, connection: Connection) -> bool:
        """Whether a connection waits for the budget."""
        return connection in self._waiting


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of one connection."""

    max_message_bytes: int
    keep_alive_s: float
    """Idle time after which a PING is sent; the same time without a response closes the connection."""
    pending_publish_bytes: int
    """Bytes received and not durable above which the client is not read."""
    budget: PublishBudget
    """Budget of all connections together."""
    write_buffer_bytes: int = 4 << 20
    """Unread bytes above which the client gets no more messages; four times as many close the connection."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Properties of a client from its CONNECT."""

    protocol_version: int
    supports_broker_metadata: bool
    supports_auth_refresh: bool
    role: str | None
    """The authenticated role; None without authentication."""
    client_version: str
    address: str
    """Host and port as Java prints them, ``/127.0.0.1:40334``."""


class Handler(Protocol):
    """Handles the commands of connections."""

    def authenticate(self, method: str, data: bytes) -> Principal:
        """Return the principal that the client has proved to be.

        Raises:
            Refused: The credentials are missing or not valid.
        """
        ...

    def can_act_for(self, role: str | None, original: str) -> bool:
        """Whether a client with one role may name another as its original principal."""
        ...

    def command(self, connection: Connection, command: wire.BaseCommand, payload: memoryview) -> None:
        """Handle one command after the handshake. The payload is valid during the call only."""
        ...

    def sends(self, connection: Connection, data: NDArray[np.uint8], rows: NDArray[np.int64]) -> None:
        """Handle many SENDs at once; see :meth:`FrameBuffer.sends`. The data are valid during the call only."""
        ...

    def closed(self, connection: Connection) -> None:
        """Handle the loss of the connection."""
        ...

    def writable(self, connection: Connection) -> None:
        """Handle that the client reads again."""
        ...


class Connection(asyncio.BufferedProtocol):
    """One client's connection. Belongs to the event loop's thread.

    Args:
        handler: Handles the commands.
        limits: Limits of the connection.
        on_open: Called when the connection has its slot.
        slots: Limits the number of connections; None if the TLS layer holds the slot.
    """

    def __init__(
        self,
        handler: Handler,
        limits: ConnectionLimits,
        on_open: Callable[[Connection], None],
        slots: ConnectionSlots | None = None,
    ) -> None:
        self._handler = handler
        self._limits = limits
        self._on_open = on_open
        self._slots = slots
        self._buffer = FrameBuffer(limits.max_message_bytes + COMMAND_ALLOWANCE_BYTES)
        self._transport: asyncio.Transport | None = None
        self._out: list[Buffer | list[tuple[int, int, int, int, int]]] = []
        self._flushing = False
        self._received = False
        """Whether anything was received since the last keep-alive check."""
        self._ping_sent = False
        self._timer: asyncio.TimerHandle | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._pending_publish = 0
        self._reading = True
        self._tasks: set[asyncio.Task[None]] = set()
        self._command = wire.BaseCommand()
        self.can_write = True
        self.peer: Peer | None = None
        self.session: Any = None
        """State that the handler keeps for this connection."""

    # --- calls of the event loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start; called by the event loop."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=self._limits.write_buffer_bytes)
        if self._slots is not None and not self._slots.acquire(self, transport):
            transport.abort()
            return
        self._on_open(self)
        self._timer = asyncio.get_running_loop().call_later(self._limits.keep_alive_s, self._keep_alive)

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up; called by the event loop."""
        if exc is not None:
            log.debug("%s: %s", self, exc)
        self._transport = None
        for timer in (self._timer, self._expiry):
            if timer is not None:
                timer.cancel()
        for task in self._tasks:
            task.cancel()
        self._out.clear()
        self._limits.budget.discard(self)
        if self._slots is not None:
            self._slots.release(self)
        self._handler.closed(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the buffer knows the size it needs
        """Return the space for the next bytes; called by the event loop."""
        return self._buffer.space()

    def buffer_updated(self, nbytes: int) -> None:
        """Handle received bytes; called by the event loop."""
        self._received = True
        try:
            self._buffer.add(nbytes)
            while not self.closing:
                if self.session is not None and (sends := self._buffer.sends()) is not None:
                    self._handler.sends(self, *sends)
                elif (frame := self._buffer.frame()) is not None:
                    self._handle(*frame)
                else:
                    return
        except (InvalidFrame, DecodeError) as error:
            self.fail(f"sent a malformed command: {error}")
        except Exception:
            # asyncio takes any OSError for a socket error and does not log it; errors of hot log and tier are OSErrors.
            log.exception("%s: closed: a command failed", self)
            self.abort()

    def pause_writing(self) -> None:
        """Stop messages to a client that does not read; called by the event loop."""
        self.can_write = False

    def resume_writing(self) -> None:
        """Resume messages to the client; called by the event loop."""
        self.can_write = True
        self._handler.writable(self)

    # --- calls of handlers ---

    @property
    def host(self) -> str:
        """The client's address without its port; empty once it is disconnected."""
        name = None if self._transport is None else self._transport.get_extra_info("peername")
        return str(name[0]) if name else ""

    @property
    def closing(self) -> bool:
        """Whether nothing more can be sent."""
        return self._transport is None or self._transport.is_closing()

    def send(self, command: wire.BaseCommand) -> None:
        """Send a command without payload; commands of one turn of the event loop share a write."""
        self.send_bytes(encode_command(command))

    def send_bytes(self, *buffers: Buffer) -> None:
        """Send a frame, given as one or more buffers."""
        if self.closing:
            return
        self._out.extend(buffers)
        self._schedule_flush()

    def send_receipt(self, receipt: tuple[int, int, int, int, int]) -> None:
        """Send a receipt; those of one turn of the event loop are encoded together.

        Args:
            receipt: Producer id, sequence id, highest sequence id, ledger id and entry id.
        """
        if self._out and isinstance(receipts := self._out[-1], list):
            receipts.append(receipt)
        elif not self.closing:
            self._out.append([receipt])
            self._schedule_flush()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work for this connection; it is cancelled when the connection is lost."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def publish_started(self, size: int) -> None:
        """Add bytes that are not durable yet, and pause reading above a limit."""
        self._pending_publish += size
        has_budget = self._limits.budget.acquire(self, size)
        if has_budget and self._pending_publish <= self._limits.pending_publish_bytes:
            return
        if self._reading and self._transport is not None:
            self._reading = False
            self._transport.pause_reading()

    def publish_ended(self, size: int) -> None:
        """Subtract bytes that are durable, and resume reading below half of the limit."""
        self._pending_publish -= size
        self._limits.budget.release(size)
        self.resume_reading()

    def resume_reading(self) -> None:
        """Resume reading if both the limit of this connection and the budget of all allow it."""
        if self._reading or self._transport is None or self._limits.budget.is_waiting(self):
            return
        if self._pending_publish <= self._limits.pending_publish_bytes // 2:
            self._reading = True
            self._transport.resume_reading()

    def fail(self, reason: str) -> None:
        """Close the connection because of an error of the client."""
        log_event(log, "client disconnected" if self.peer else "client refused", client=self._address, reason=reason)
        self.close()

    def close(self) -> None:
        """Send pending data, then close."""
        if self._transport is not None:
            self._flush()
            self._transport.close()

    def abort(self) -> None:
        """Close without sending pending data."""
        if self._transport is not None:
            self._transport.abort()

    def __str__(self) -> str:
        if self._transport is None:
            return "a lost connection"
        return f"connection from {self._transport.get_extra_info('peername')}"

    # --- private ---

    @property
    def _address(self) -> str:
        peername = None if self._transport is None else self._transport.get_extra_info("peername")
        return _java_address(peername).removeprefix("/")

    def _handle(self, data: memoryview, payload: memoryview) -> None:
        command = self._command
        command.Clear()
        command.MergeFromString(bytes(data))
        if not command.IsInitialized():
            self.fail("sent a command without a required field")
            return
        kind = command.type
        if kind == wire.BaseCommand.PING:
            self.send_bytes(_PONG)
        elif kind == wire.BaseCommand.PONG:
            pass
        elif kind == wire.BaseCommand.AUTH_RESPONSE:
            response = command.authResponse.response
            self._refresh(response.auth_method_name, response.auth_data)
        elif self.peer is not None:
            self._handler.command(self, command, payload)
        elif kind == wire.BaseCommand.CONNECT:
            self._connect(command.connect)
        else:
            self.fail("sent a command before CONNECT")

    def _connect(self, connect: wire.CommandConnect) -> None:
        principal = self._authenticate(connect.auth_method_name, connect.auth_data)
        if principal is None:
            return
        if connect.original_principal and not self._handler.can_act_for(principal.role, connect.original_principal):
            self.send(replies.error(replies.NO_REQUEST, Refused(wire.AuthorizationError, "Invalid roles.")))
            self.fail(f"the role {principal.role!r} may not act for {connect.original_principal!r}")
            return
        assert self._transport is not None
        self.peer = Peer(
            min(connect.protocol_version, PROTOCOL_VERSION),
            connect.feature_flags.supports_broker_entry_metadata,
            connect.feature_flags.supports_auth_refresh,
            principal.role,
            connect.client_version,
            _java_address(self._transport.get_extra_info("peername")),
        )
        command = wire.BaseCommand(type=wire.BaseCommand.CONNECTED)
        command.connected.server_version = f"Pulsar Server {replies.PULSAR_VERSION} (Afterglow)"
        command.connected.protocol_version = self.peer.protocol_version
        command.connected.max_message_size = self._limits.max_message_bytes
        command.connected.feature_flags.supports_get_partitioned_metadata_without_auto_creation = True
        self.send(command)
        role, version = self.peer.role, self.peer.client_version
        log_event(log, "client connected", client=self._address, role=role, version=version)

    def _authenticate(self, method: str, data: bytes) -> Principal | None:
        """Authenticate the client; after a failure it gets the error and is disconnected."""
        try:
            principal = self._handler.authenticate(method, data)
        except Refused as refused:
            self.send(replies.error(replies.NO_REQUEST, refused))
            self.fail(str(refused))
            return None
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if principal.expires_at is not None:
            left = max(principal.expires_at - time.time(), 0)
            self._expiry = asyncio.get_running_loop().call_later(left, self._expired)
        return principal

    def _refresh(self, method: str, data: bytes) -> None:
        """Authenticate an open connection again. The role must stay the same, since open producers depend on it."""
        principal = self._authenticate(method, data)
        if principal is not None and self.peer is not None and principal.role != self.peer.role:
            self.fail(f"its role cannot change from {self.peer.role!r} to {principal.role!r}; reconnect")

    def _expired(self) -> None:
        """Ask for a new token after the old one has expired; a client that cannot send one is disconnected."""
        if self.peer is None or not self.peer.supports_auth_refresh:
            self.fail("its token has expired")
            return
        command = wire.BaseCommand(type=wire.BaseCommand.AUTH_CHALLENGE)
        command.authChallenge.challenge.auth_method_name = TOKEN
        command.authChallenge.challenge.auth_data = _REFRESH
        command.authChallenge.protocol_version = self.peer.protocol_version
        self.send(command)
        self._expiry = asyncio.get_running_loop().call_later(
            self._limits.keep_alive_s, self.fail, "its token has expired, and it sent no new one"
        )

    def _schedule_flush(self) -> None:
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._out and self._transport is not None and not self._transport.is_closing():
            buffers = [encode_receipts(each) if isinstance(each, list) else each for each in self._out]
            self._transport.write(b"".join(buffers))
            if self._transport.get_write_buffer_size() > 4 * self._limits.write_buffer_bytes:
                self.abort()
        self._out.clear()

    def _keep_alive(self) -> None:
        if self.peer is None:
            self.fail(f"did not finish the handshake within {self._limits.keep_alive_s:g} s")
            return
        if not self._received:
            if self._ping_sent:
                self.fail("does not respond")
                return
            self._ping_sent = True
            self._buffer.shrink()
            self.send_bytes(_PING)
        else:
            self._ping_sent = False
        self._received = False
        self._timer = asyncio.get_running_loop().call_later(self._limits.keep_alive_s, self._keep_alive)


def _java_address(peername: tuple[Any, ...] | None) -> str:
    if not peername:
        return ""
    host, port = peername[:2]
    return f"/[{host}]:{port}" if ":" in host else f"/{host}:{port}"
