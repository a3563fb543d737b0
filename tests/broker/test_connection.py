"""A misbehaving client affects its own connection only."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from afterglow.broker.auth import Principal
from afterglow.broker.connection import Connection, ConnectionLimits, PublishBudget
from afterglow.errors import HotLogError
from afterglow.format._kernels import layout
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.wire import Refused, encode_command, encode_head

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from typing import Any

    import numpy as np
    from numpy.typing import NDArray

Kind = wire.BaseCommand
LIMITS = ConnectionLimits(
    max_message_bytes=1 << 20, keep_alive_s=30, pending_publish_bytes=1000, budget=PublishBudget(1 << 30)
)
WAIT_S = 10


class Recorder:
    """A handler that records commands."""

    def __init__(self, principal: Principal | Refused = Principal(None, None)) -> None:  # noqa: B008 - it is frozen
        self.principal = principal
        self.commands: list[int] = []
        self.connections: list[Connection] = []
        self.lost = 0
        self.readable_again = asyncio.Event()
        self.changed = asyncio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), WAIT_S)

    def authenticate(self, method: str, data: bytes) -> Principal:
        if isinstance(self.principal, Refused):
            raise self.principal
        return self.principal

    def can_act_for(self, role: str | None, original: str) -> bool:
        return role == original

    def command(self, connection: Connection, command: wire.BaseCommand, payload: memoryview) -> None:
        self.commands.append(command.type)
        self.changed.set()
        if command.type == Kind.SEND:
            connection.publish_started(len(payload))

    def sends(self, connection: Connection, data: NDArray[np.uint8], rows: NDArray[np.int64]) -> None:
        self.commands += [Kind.SEND] * len(rows)
        self.changed.set()
        connection.publish_started(int(rows[:, layout.SEND_LEN].sum()))

    def closed(self, connection: Connection) -> None:
        self.lost += 1

    def writable(self, connection: Connection) -> None:
        self.readable_again.set()

    def opened(self, connection: Connection) -> None:
        self.connections.append(connection)


class Client:
    """A raw client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def handshake(self, *, refresh: bool = False) -> wire.BaseCommand:
        connect = wire.BaseCommand(type=Kind.CONNECT)
        connect.connect.client_version = "raw"
        connect.connect.protocol_version = 21
        connect.connect.feature_flags.supports_auth_refresh = refresh
        self.writer.write(encode_command(connect))
        return await self.receive()

    async def receive(self) -> wire.BaseCommand:
        (total,) = struct.unpack(">I", await asyncio.wait_for(self.reader.readexactly(4), WAIT_S))
        frame = await asyncio.wait_for(self.reader.readexactly(total), WAIT_S)
        (size,) = struct.unpack_from(">I", frame)
        return wire.BaseCommand.FromString(frame[4 : 4 + size])

    async def is_closed(self) -> bool:
        """Whether the broker closes the connection."""
        try:
            while await asyncio.wait_for(self.reader.read(1 << 16), WAIT_S):
                pass
        except ConnectionError:
            pass
        return True

    async def ping(self) -> None:
        """Check that the connection is open."""
        self.writer.write(encode_command(Kind(type=Kind.PING, ping=wire.CommandPing())))
        assert (await self.receive()).type == Kind.PONG


@contextlib.asynccontextmanager
async def listening(recorder: Recorder, limits: ConnectionLimits = LIMITS) -> AsyncIterator[int]:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(recorder, limits, recorder.opened), "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    for connection in recorder.connections:
        connection.abort()


async def connect(port: int) -> Client:
    return Client(*await asyncio.open_connection("127.0.0.1", port))


async def fill(connection: Connection, condition: Callable[[], bool]) -> None:
    """Send until a condition holds."""
    while not condition():
        connection.send_bytes(bytes(50_000))
        await asyncio.sleep(0)


async def closed_though_it_pings(client: Client) -> bool:
    """Whether the broker closes a connection that keeps sending PINGs, within 20 intervals of 0.2 s."""
    closed = asyncio.create_task(client.is_closed())
    for _ in range(80):
        if closed.done():
            return True
        client.writer.write(encode_command(Kind(type=Kind.PING, ping=wire.CommandPing())))
        await asyncio.sleep(0.05)
    return False


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 30))


def test_connected_carries_protocol_version_and_message_limit() -> None:
    async def test() -> None:
        async with listening(Recorder()) as port:
            answer = await (await connect(port)).handshake()
            assert answer.type == Kind.CONNECTED
            assert answer.connected.max_message_size == LIMITS.max_message_bytes
            assert answer.connected.protocol_version == 19
            assert answer.connected.server_version

    run(test())


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        struct.pack(">I", 2**31),
        struct.pack(">II", 100, 200),
        struct.pack(">II", 8, 4) + b"\xff\xff\xff\xff",
        encode_head(b"\x08\x06\x32\x00", 0),  # a SEND without its required fields
    ],
)
def test_garbage_closes_its_own_connection_and_no_other(garbage: bytes) -> None:
    async def test() -> None:
        async with listening(Recorder()) as port:
            other = await connect(port)
            await other.handshake()
            bad = await connect(port)
            await bad.handshake()
            bad.writer.write(garbage)
            assert await bad.is_closed()
            await other.ping()

    run(test())


def test_a_command_that_fails_closes_its_connection_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Recorder):
        def command(self, connection: Connection, command: wire.BaseCommand, payload: memoryview) -> None:
            raise HotLogError("the disk is gone; check it")  # an OSError, which asyncio takes for one of the socket

    async def test() -> None:
        async with listening(Failing()) as port:
            client = await connect(port)
            await client.handshake()
            client.writer.write(
                encode_command(Kind(type=Kind.FLOW, flow=wire.CommandFlow(consumer_id=1, messagePermits=1)))
            )
            assert await client.is_closed()

    with caplog.at_level("ERROR"):
        run(test())
    assert "the disk is gone; check it" in caplog.text


def test_a_command_before_the_handshake_closes_the_connection() -> None:
    async def test() -> None:
        recorder = Recorder()
        async with listening(recorder) as port:
            client = await connect(port)
            flow = wire.BaseCommand(type=Kind.FLOW)
            flow.flow.consumer_id = 1
            flow.flow.messagePermits = 1
            client.writer.write(encode_command(flow))
            assert await client.is_closed()
            assert recorder.commands == []

    run(test())


def test_an_incomplete_frame_does_not_block_other_connections() -> None:
    async def test() -> None:
        async with listening(Recorder()) as port:
            half = await connect(port)
            await half.handshake()
            half.writer.write(struct.pack(">I", 500_000) + bytes(100))
            other = await connect(port)
            await other.handshake()
            await other.ping()

    run(test())


def test_a_client_without_a_handshake_is_closed() -> None:
    async def test() -> None:
        async with listening(Recorder(), replace(LIMITS, keep_alive_s=0.05)) as port:
            assert await (await connect(port)).is_closed()

    run(test())


def test_a_client_that_sends_pings_before_a_handshake_is_closed() -> None:
    async def test() -> None:
        async with listening(Recorder(), replace(LIMITS, keep_alive_s=0.2)) as port:
            client = await connect(port)
            assert await closed_though_it_pings(client)

    run(test())


def test_an_idle_client_gets_a_ping_and_is_then_closed() -> None:
    async def test() -> None:
        async with listening(Recorder(), replace(LIMITS, keep_alive_s=0.1)) as port:
            client = await connect(port)
            await client.handshake()
            assert (await client.receive()).type == Kind.PING
            assert await client.is_closed()

    run(test())


def test_a_client_that_answers_pings_stays_connected() -> None:
    async def test() -> None:
        async with listening(Recorder(), replace(LIMITS, keep_alive_s=0.05)) as port:
            client = await connect(port)
            await client.handshake()
            for _ in range(6):
                assert (await client.receive()).type == Kind.PING
                client.writer.write(encode_command(Kind(type=Kind.PONG, pong=wire.CommandPong())))
            await client.ping()

    run(test())


def test_a_client_is_logged_once_when_it_connects_and_when_it_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    async def test(principal: Principal | Refused) -> None:
        async with listening(Recorder(principal)) as port:
            client = await connect(port)
            await client.handshake()
            if isinstance(principal, Principal):
                await client.ping()

    caplog.set_level(logging.INFO)
    run(test(Principal("alice", None)))
    run(test(Refused(wire.AuthenticationError, "no token")))
    fields = [record.__dict__["fields"] for record in caplog.records if "fields" in record.__dict__]
    assert [fields[0]["role"], fields[1]["reason"]] == ["alice", "no token"]
    assert all(row["client"].startswith("127.0.0.1:") for row in fields)
    texts = [message.split(" client=")[0] for message in caplog.messages if " client=" in message]
    assert texts == ["client connected", "client refused"]


def test_a_refused_client_gets_the_reason() -> None:
    async def test() -> None:
        async with listening(Recorder(Refused(wire.AuthenticationError, "no token"))) as port:
            client = await connect(port)
            answer = await client.handshake()
            assert answer.error.error == wire.AuthenticationError
            assert answer.error.message == "no token"
            assert await client.is_closed()

    run(test())


def test_a_client_that_never_reads_gets_no_more_and_others_do() -> None:
    async def test() -> None:
        recorder = Recorder()
        async with listening(recorder, replace(LIMITS, write_buffer_bytes=100_000)) as port:
            client = await connect(port)
            await client.handshake()
            (connection,) = recorder.connections
            await fill(connection, lambda: not connection.can_write)
            other = await connect(port)
            await other.handshake()
            await other.ping()
            # Once the client reads, it is written to again.
            reading = asyncio.create_task(client.is_closed())
            await asyncio.wait_for(recorder.readable_again.wait(), WAIT_S)
            assert connection.can_write
            reading.cancel()

    run(test())


def test_a_client_that_sends_requests_without_reading_responses_is_closed() -> None:
    async def test() -> None:
        recorder = Recorder()
        async with listening(recorder, replace(LIMITS, write_buffer_bytes=100_000)) as port:
            client = await connect(port)
            await client.handshake()
            (connection,) = recorder.connections
            for _ in range(1000):  # much more than the buffers of both sockets hold
                if connection.closing:
                    break
                connection.send_bytes(bytes(50_000))
                await asyncio.sleep(0)
            assert connection.closing
            client.writer.close()  # not before: it would be closed for that

    run(test())


def test_reading_pauses_above_the_limit_of_pending_bytes() -> None:
    async def test() -> None:
        recorder = Recorder()
        async with listening(recorder) as port:
            client = await connect(port)
            await client.handshake()
            (connection,) = recorder.connections
            send = wire.BaseCommand(type=Kind.SEND)
            send.send.producer_id = 1
            send.send.sequence_id = 1
            frame = encode_head(send.SerializeToString(), 400) + bytes(400)
            # Much more than the sockets' own buffers hold: if reading continued, all of it would arrive.
            client.writer.write(frame * 40_000)
            await recorder.until(lambda: not connection._reading)
            taken = len(recorder.commands)
            assert taken < 1_000
            connection.publish_ended(400 * taken)
            await recorder.until(lambda: len(recorder.commands) > taken)

    run(test())


def test_all_connections_share_one_publish_budget() -> None:
    async def test() -> None:
        recorder = Recorder()
        limits = replace(LIMITS, pending_publish_bytes=1 << 20, budget=PublishBudget(1000))
        async with listening(recorder, limits) as port:
            clients = [await connect(port) for _ in range(2)]
            for client in clients:
                await client.handshake()
            first, second = recorder.connections
            send = wire.BaseCommand(type=Kind.SEND)
            send.send.producer_id = 1
            send.send.sequence_id = 1
            frame = encode_head(send.SerializeToString(), 600) + bytes(600)
            clients[0].writer.write(frame)
            await recorder.until(lambda: len(recorder.commands) == 1)
            assert first._reading
            clients[1].writer.write(frame)
            await recorder.until(lambda: not second._reading)
            assert first._reading
            # What the first has made durable lets the second go on.
            first.publish_ended(600)
            assert not second._reading
            second.publish_ended(600)
            assert second._reading

    run(test())


def test_a_client_is_challenged_when_its_token_expires() -> None:
    async def test() -> None:
        recorder = Recorder(Principal("me", time.time() + 0.1))
        async with listening(recorder) as port:
            client = await connect(port)
            await client.handshake(refresh=True)
            assert (await client.receive()).type == Kind.AUTH_CHALLENGE
            recorder.principal = Principal("me", None)
            answer = wire.BaseCommand(type=Kind.AUTH_RESPONSE)
            answer.authResponse.response.auth_method_name = "token"
            answer.authResponse.response.auth_data = b"new"
            client.writer.write(encode_command(answer))
            await client.ping()

    run(test())


def test_a_client_that_cannot_renew_its_token_is_closed_when_it_expires() -> None:
    async def test() -> None:
        async with listening(Recorder(Principal("me", time.time() + 0.1))) as port:
            client = await connect(port)
            await client.handshake(refresh=False)
            assert await client.is_closed()

    run(test())


def test_a_client_that_could_renew_its_token_and_does_not_is_closed() -> None:
    async def test() -> None:
        limits = replace(LIMITS, keep_alive_s=0.2)
        async with listening(Recorder(Principal("me", time.time() + 0.05)), limits) as port:
            client = await connect(port)
            await client.handshake(refresh=True)
            assert (await client.receive()).type == Kind.AUTH_CHALLENGE
            assert await closed_though_it_pings(client)

    run(test())


def test_a_new_token_of_another_role_closes_the_connection() -> None:
    async def test() -> None:
        recorder = Recorder(Principal("me", time.time() + 0.1))
        async with listening(recorder) as port:
            client = await connect(port)
            await client.handshake(refresh=True)
            assert (await client.receive()).type == Kind.AUTH_CHALLENGE
            recorder.principal = Principal("another-role", None)
            answer = wire.BaseCommand(type=Kind.AUTH_RESPONSE)
            answer.authResponse.response.auth_method_name = "token"
            answer.authResponse.response.auth_data = b"new"
            client.writer.write(encode_command(answer))
            assert await client.is_closed()

    run(test())


def test_a_client_that_may_not_act_for_another_role_gets_an_error_and_is_closed() -> None:
    async def test() -> None:
        async with listening(Recorder(Principal("proxy", None))) as port:
            client = await connect(port)
            connecting = wire.BaseCommand(type=Kind.CONNECT)
            connecting.connect.client_version = "raw"
            connecting.connect.original_principal = "root"
            client.writer.write(encode_command(connecting))
            assert (await client.receive()).error.error == wire.AuthorizationError
            assert await client.is_closed()

    run(test())
