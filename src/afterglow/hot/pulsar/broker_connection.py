"""A connection to a broker: TLS, handshake, requests and responses, errors and deadlines.

It blocks and belongs to one thread; no wait is longer than its caller allows. Commands that concern the connection
itself (PING, authentication challenges, final errors) are handled here whenever received bytes are parsed. While the
client does other things for long, a PING goes unanswered: the broker then closes the connection, and the client opens
another.
"""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from afterglow.errors import (
    AccessDenied,
    ConfigError,
    HotLogTimeout,
    HotLogUnavailable,
    InvalidFrame,
    InvalidName,
    NotSupported,
    TopicMissing,
)
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.wire import COMMAND_ALLOWANCE_BYTES, EntryBuffer, encode_command
from afterglow.pacing import Backoff

if TYPE_CHECKING:
    from afterglow.errors import AfterglowError, HotLogError
    from afterglow.hot.pulsar.address import Endpoint, PulsarAddress

NO_REQUEST: Final = 2**64 - 1
"""Request id of unsolicited errors: -1 in Java."""

_FINAL: Final[dict[int, type[AfterglowError]]] = {
    wire.AuthenticationError: AccessDenied,
    wire.AuthorizationError: AccessDenied,
    wire.TopicNotFound: TopicMissing,
    wire.InvalidTopicName: InvalidName,
    wire.NotAllowedError: NotSupported,
    wire.UnsupportedVersionError: NotSupported,
    wire.IncompatibleSchema: NotSupported,
}
"""Permanent errors; all others come from brokers that start, stop or are busy, and are retried."""


def refused(what: str, code: wire.ServerError.ValueType, message: str) -> AfterglowError:
    """The error for a broker's negative response to ``what``."""
    kind = _FINAL.get(code, HotLogUnavailable)
    return kind(f"{what} was refused: {wire.ServerError.Name(code)}: {message}")


_BACKOFF_S: Final = Backoff(0.1, 5.0)


class Deadline:
    """A deadline that progress renews, with backoff between attempts until then.

    Args:
        what: The operation, for messages.
        deadline_s: Longest time without progress.
        timeout_s: Longest wait for one response.
    """

    def __init__(self, what: str, deadline_s: float, timeout_s: float) -> None:
        self._what = what
        self._deadline_s = deadline_s
        self.timeout_s = timeout_s
        self.renew()

    def renew(self) -> None:
        """Restart after progress."""
        self._end = time.monotonic() + self._deadline_s
        self._failures = 0

    @property
    def wait_s(self) -> float:
        """Time to wait for the next response; above zero.

        Raises:
            HotLogTimeout: The deadline has passed.
        """
        left = self._end - time.monotonic()
        if left <= 0:
            raise HotLogTimeout(f"{self._what}: no progress within deadline_s={self._deadline_s:g}")
        return min(left, self.timeout_s)

    def pause(self, error: HotLogError) -> None:
        """Wait after a failure: not after the first one, then with backoff and full jitter.

        Raises:
            HotLogTimeout: The deadline has passed, or would during the pause.
        """
        pause = _BACKOFF_S.jittered(self._failures)
        self._failures += 1
        if time.monotonic() + pause >= self._end:
            raise HotLogTimeout(
                f"{self._what}: no progress within deadline_s={self._deadline_s:g}; the last of {self._failures} "
                f"failures: {error}"
            ) from error
        time.sleep(pause)


Command = wire.BaseCommand

PROTOCOL_VERSION: Final = 19
"""The newest version supported here; brokers send broker entry metadata from version 18 on."""

_MAX_MESSAGE_BYTES: Final = 5 << 20  # Pulsar's default, until the broker sends its own
_WRITE_S: Final = 30.0  # commands are small: a socket that accepts none for this long is dead
_PONG: Final = encode_command(Command(type=Command.PONG, pong=wire.CommandPong()))


class BrokerConnection:
    """A connection after its handshake.

    Args:
        address: The cluster, with credentials.
        endpoint: The broker or proxy to connect to.
        broker: The broker that a proxy is to connect to; None without a proxy.
        buffer_bytes: Size of the receive buffer.
        deadline: Limit for connecting and the handshake.

    Raises:
        HotLogUnavailable: The broker cannot be reached.
        AccessDenied: The broker does not accept the token.
        ConfigError: The broker's certificate is not trusted.
    """

    def __init__(
        self,
        address: PulsarAddress,
        endpoint: Endpoint,
        *,
        broker: Endpoint | None,
        buffer_bytes: int,
        deadline: Deadline,
    ) -> None:
        self.endpoint = endpoint
        self.buffer = EntryBuffer(buffer_bytes, _MAX_MESSAGE_BYTES + COMMAND_ALLOWANCE_BYTES)
        self.max_message_bytes = _MAX_MESSAGE_BYTES
        self._address = address
        self._last_id = 0
        self._socket = _connect(address, endpoint, deadline.wait_s)
        try:
            self._handshake(broker, deadline)
        except BaseException:
            self.close()
            raise

    def __str__(self) -> str:
        return str(self.endpoint)

    def next_id(self) -> int:
        """A new id for a request or consumer of this connection."""
        self._last_id += 1
        return self._last_id

    def fileno(self) -> int:
        """The socket's file descriptor, for selectors."""
        return self._socket.fileno()

    @property
    def has_decrypted(self) -> bool:
        """Whether TLS has bytes that are not received yet and that a selector does not see."""
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def close(self) -> None:
        """Close the socket."""
        with suppress(OSError):
            self._socket.close()

    # --- sending ---

    def send(self, command: wire.BaseCommand) -> None:
        """Send a command.

        Raises:
            HotLogUnavailable: The connection is lost.
        """
        self._write(encode_command(command))

    def request(self, command: wire.BaseCommand, request_id: int, deadline: Deadline) -> wire.BaseCommand:
        """Send a request and wait for its response; other commands received meanwhile are ignored.

        Raises:
            HotLogUnavailable: The connection is lost, or no response came in time.
            AfterglowError: The broker refused the request permanently.
        """
        name = Command.Type.Name(command.type)
        self.send(command)
        while True:
            frame = self._await_command(name, deadline)
            if request_id_of(frame) != request_id:
                continue
            if frame.type == Command.ERROR:
                raise refused(f"{name} at {self}", frame.error.error, frame.error.message)
            return frame

    # --- receiving ---

    def receive(self, space: memoryview, wait_s: float) -> bool:
        """Receive bytes into the buffer's ``space``; False on timeout.

        Raises:
            HotLogUnavailable: The connection is lost.
        """
        try:
            self._socket.settimeout(wait_s)
            count = self._socket.recv_into(space)
        except TimeoutError:
            return False
        except OSError as error:
            raise HotLogUnavailable(f"the connection to {self} is lost: {error}") from error
        if not count:
            raise HotLogUnavailable(f"{self} closed the connection")
        self.buffer.received(count)
        return True

    def command(self) -> tuple[wire.BaseCommand, memoryview] | None:
        """The next command that does not concern the connection itself, with its payload; None if none is complete.

        Raises:
            HotLogUnavailable: The connection is lost, or the broker closes it.
            AccessDenied: The broker does not accept the token any more.
            InvalidFrame: The broker sent an invalid command.
        """
        while (frame := self.buffer.frame()) is not None:
            try:
                command = Command.FromString(bytes(frame[0]))
            except DecodeError as error:
                raise InvalidFrame(f"{self} sent an invalid command: {error}") from error
            if command.type == Command.PING:
                self._write(_PONG)
            elif command.type == Command.AUTH_CHALLENGE:
                self._authenticate()
            elif command.type == Command.ERROR and command.error.request_id == NO_REQUEST:
                raise refused(f"the connection to {self}", command.error.error, command.error.message)
            elif command.type != Command.PONG:
                return command, frame[1]
        return None

    def _await_command(self, what: str, deadline: Deadline) -> wire.BaseCommand:
        while (found := self.command()) is None:
            if not self.receive(self.buffer.space(), deadline.wait_s):
                raise HotLogUnavailable(f"no response to {what} from {self}")
        return found[0]

    def _handshake(self, broker: Endpoint | None, deadline: Deadline) -> None:
        connect = wire.CommandConnect(
            client_version="Afterglow", protocol_version=PROTOCOL_VERSION, auth_method_name="none"
        )
        connect.feature_flags.supports_auth_refresh = True
        connect.feature_flags.supports_broker_entry_metadata = True
        if self._address.token is not None:
            connect.auth_method_name = "token"
            connect.auth_data = self._address.token.encode()
        if broker is not None:
            connect.proxy_to_broker_url = broker.authority
        self.send(Command(type=Command.CONNECT, connect=connect))
        while (command := self._await_command("CONNECT", deadline)).type != Command.CONNECTED:
            pass
        if command.connected.max_message_size > 0:
            self.max_message_bytes = command.connected.max_message_size
            self.buffer.max_frame_bytes = self.max_message_bytes + COMMAND_ALLOWANCE_BYTES

    def _authenticate(self) -> None:
        command = Command(type=Command.AUTH_RESPONSE)
        command.authResponse.client_version = "Afterglow"
        command.authResponse.protocol_version = PROTOCOL_VERSION
        command.authResponse.response.auth_method_name = "none" if self._address.token is None else "token"
        command.authResponse.response.auth_data = (self._address.token or "").encode()
        self.send(command)

    def _write(self, data: bytes) -> None:
        try:
            self._socket.settimeout(_WRITE_S)
            self._socket.sendall(data)
        except OSError as error:  # also a timeout, after which half a frame cannot be completed
            raise HotLogUnavailable(f"the connection to {self} is lost: {error}") from error


def _connect(address: PulsarAddress, endpoint: Endpoint, timeout_s: float) -> socket.socket:
    context = tls_context(address) if endpoint.tls else None
    try:
        plain = socket.create_connection((endpoint.host, endpoint.port), timeout_s)
    except OSError as error:
        raise HotLogUnavailable(f"{endpoint} cannot be reached: {error}") from error
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return plain if context is None else context.wrap_socket(plain, server_hostname=endpoint.host)
    except ssl.SSLCertVerificationError as error:
        plain.close()
        raise ConfigError(
            f"certificate of {endpoint} is not trusted: {error.verify_message}; set trust_certs to the authority that "
            "signed it, and use a host name in the certificate (or disable verify_hostname)"
        ) from error
    except OSError as error:
        plain.close()
        raise HotLogUnavailable(f"{endpoint} cannot be reached by TLS: {error}") from error


def tls_context(address: PulsarAddress) -> ssl.SSLContext:
    """The TLS context for connections to a cluster.

    Raises:
        ConfigError: The trusted certificates cannot be read.
    """
    pem = address.trust_certs
    try:
        if pem is not None and pem.lstrip().startswith("-----BEGIN"):
            context = ssl.create_default_context(cadata=pem)
        else:
            context = ssl.create_default_context(cafile=pem)
    except OSError as error:
        raise ConfigError(f"trust_certs has no readable PEM certificates: {error}") from error
    context.check_hostname = address.verify_hostname
    return context


def request_id_of(command: wire.BaseCommand) -> int | None:
    """The id of the request that a command responds to."""
    for _, value in command.ListFields():
        found: int | None = getattr(value, "request_id", None)
        if found is not None:
            return found
    return None
