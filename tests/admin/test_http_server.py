from __future__ import annotations

import asyncio
import http.client
import signal
import socket
import ssl
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from afterglow.admin.http_server import HttpLimits, serve_http
from afterglow.broker.connection_limits import ConnectionSlots
from afterglow.config import BrokerConfig
from afterglow.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from starlette.requests import Request


LIMITS = HttpLimits.of(BrokerConfig())


def limits(*, total: int = 0, per_address: int = 0, timeout_s: float = 60.0) -> HttpLimits:
    return HttpLimits(ConnectionSlots(total, per_address, "total", "perAddress"), timeout_s, timeout_s)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the server says nothing when a connection ends
        await asyncio.sleep(0.01)


async def hello(_request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


def fetch(port: int, context: ssl.SSLContext | None = None) -> bytes:
    connection = (
        http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        if context is None
        else http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=context)
    )
    try:
        connection.request("GET", "/")
        return connection.getresponse().read()
    finally:
        connection.close()


def test_it_answers_until_it_is_stopped() -> None:
    async def scenario() -> None:
        server = await serve_http(Starlette(routes=[Route("/", hello)]), "127.0.0.1", 0, LIMITS)
        assert await asyncio.to_thread(fetch, server.port) == b"hello"
        await server.stop()
        await server.stop()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.to_thread(fetch, server.port)

    asyncio.run(scenario())


def test_a_call_in_progress_is_answered_before_the_server_stops() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_request: Request) -> PlainTextResponse:
        begun.set()
        await go_on.wait()
        return PlainTextResponse("late")

    async def scenario() -> None:
        server = await serve_http(Starlette(routes=[Route("/", slow)]), "127.0.0.1", 0, LIMITS)
        answer = asyncio.create_task(asyncio.to_thread(fetch, server.port))
        await begun.wait()
        stopping = asyncio.create_task(server.stop())
        await asyncio.sleep(0)
        go_on.set()
        assert await answer == b"late"
        await stopping

    asyncio.run(scenario())


def test_a_call_that_never_ends_does_not_prevent_stopping() -> None:
    begun = asyncio.Event()

    async def endless(_request: Request) -> PlainTextResponse:
        begun.set()
        await asyncio.Event().wait()
        return PlainTextResponse("never")

    async def scenario() -> None:
        server = await serve_http(Starlette(routes=[Route("/", endless)]), "127.0.0.1", 0, LIMITS, grace_s=1)
        answer = asyncio.create_task(asyncio.to_thread(fetch, server.port))
        await begun.wait()
        await server.stop()
        await asyncio.gather(answer, return_exceptions=True)

    asyncio.run(scenario())


def test_signals_stay_with_the_process() -> None:
    async def scenario() -> None:
        before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
        server = await serve_http(Starlette(), "127.0.0.1", 0, LIMITS)
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
        await server.stop()

    asyncio.run(scenario())


def test_a_port_that_is_taken_is_named() -> None:
    async def scenario() -> None:
        server = await serve_http(Starlette(), "127.0.0.1", 0, LIMITS)
        with pytest.raises(ConfigError, match=f"webServicePort.*{server.port}"):
            await serve_http(Starlette(), "127.0.0.1", server.port, LIMITS)
        await server.stop()
        with pytest.raises(ConfigError, match="webServicePort"):
            await serve_http(Starlette(), "no.such.host.invalid", 0, LIMITS)

    asyncio.run(scenario())


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A key and a certificate of this machine, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "server.pem"
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(private + signed.public_bytes(Encoding.PEM))
    return path


@pytest.fixture
def context(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def test_it_answers_over_tls(certificate: Path, context: ssl.SSLContext) -> None:
    async def scenario() -> None:
        server = await serve_http(Starlette(routes=[Route("/", hello)]), "127.0.0.1", 0, LIMITS, context)
        trusting = ssl.create_default_context(cafile=str(certificate))
        assert await asyncio.to_thread(fetch, server.port, trusting) == b"hello"
        with pytest.raises((http.client.HTTPException, OSError)):
            await asyncio.to_thread(fetch, server.port)
        await server.stop()

    asyncio.run(scenario())


# --- clients that cost more than they should -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "part"),
    [
        (b"", b"the headers of a request took longer"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n", b"the headers of a request took longer"),
        (b"POST /read HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n1234", b"the body took longer"),
    ],
    ids=["nothing", "half of the headers", "half of the body"],
)
@pytest.mark.parametrize("secure", [False, True], ids=["http", "https"])
def test_300_requests_that_never_end_are_closed_with_408(
    certificate: Path, context: ssl.SSLContext, sent: bytes, part: bytes, *, secure: bool
) -> None:
    """Each byte that arrives must not give the client new time: half of the clients go on sending."""
    number = 40 if secure else 300
    bound = limits(timeout_s=1.0)

    async def read(request: Request) -> PlainTextResponse:
        return PlainTextResponse(str(len(await request.body())))

    async def half_open(port: int, *, drip: bool) -> bytes:
        trusting = ssl.create_default_context(cafile=str(certificate)) if secure else None
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
        writer.write(sent)
        answer = asyncio.create_task(reader.read())
        while drip and sent and not answer.done():
            await asyncio.wait({answer}, timeout=0.4)
            if part.startswith(b"the headers"):
                writer.write(b"X: y\r\n")
        found = await answer
        writer.close()
        return found

    async def scenario() -> None:
        app = Starlette(routes=[Route("/read", read, methods=["POST"])])
        server = await serve_http(app, "127.0.0.1", 0, bound, context if secure else None)
        clients = [half_open(server.port, drip=bool(each % 2)) for each in range(number)]
        answers = await asyncio.gather(*clients, return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, bytes) and answer.startswith(b"HTTP/1.1 408 ")]
        # A client that sends at the moment of the end may meet a reset in place of the answer.
        assert len(refused) >= number // 2
        assert all(part in answer for answer in refused)
        await until(lambda: len(bound.slots) == 0)
        await server.stop()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_client_that_does_not_read_its_answer_is_closed() -> None:
    bound = limits(timeout_s=0.5)

    async def large(_request: Request) -> PlainTextResponse:
        return PlainTextResponse("x" * (32 << 20))

    async def scenario() -> None:
        server = await serve_http(Starlette(routes=[Route("/", large)]), "127.0.0.1", 0, bound)
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await until(lambda: len(bound.slots) == 1)
            await until(lambda: len(bound.slots) == 0)
        await server.stop()

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_a_call_that_takes_longer_than_a_request_may_is_answered() -> None:
    async def slow(_request: Request) -> PlainTextResponse:
        await asyncio.sleep(0.5)
        return PlainTextResponse("late")

    async def scenario() -> None:
        server = await serve_http(Starlette(routes=[Route("/", slow)]), "127.0.0.1", 0, limits(timeout_s=0.2))
        assert await asyncio.to_thread(fetch, server.port) == b"late"
        await server.stop()

    asyncio.run(asyncio.wait_for(scenario(), 30))


@pytest.mark.parametrize(("total", "per_address"), [(3, 0), (0, 3)], ids=["in all", "per address"])
def test_connections_are_limited_over_both_ports_from_before_the_tls_handshake(
    certificate: Path, context: ssl.SSLContext, caplog: pytest.LogCaptureFixture, total: int, per_address: int
) -> None:
    bound = limits(total=total, per_address=per_address)
    trusting = ssl.create_default_context(cafile=str(certificate))
    app = Starlette(routes=[Route("/", hello)])

    async def scenario() -> None:
        plain = await serve_http(app, "127.0.0.1", 0, bound)
        secure = await serve_http(app, "127.0.0.1", 0, bound, context)
        held = [await asyncio.open_connection("127.0.0.1", port) for port in (plain.port, secure.port, secure.port)]
        await until(lambda: len(bound.slots) == 3)
        for port, client in ((plain.port, None), (secure.port, trusting)):
            with pytest.raises((http.client.HTTPException, OSError)):
                await asyncio.to_thread(fetch, port, client)
        assert len(bound.slots) == 3
        held[1][1].close()
        await until(lambda: len(bound.slots) == 2)
        assert await asyncio.to_thread(fetch, secure.port, trusting) == b"hello"
        for _, writer in held:
            writer.close()
        await plain.stop()
        await secure.stop()

    asyncio.run(asyncio.wait_for(scenario(), 30))
    setting = "total" if total else "perAddress"
    (line,) = [line for line in caplog.messages if "client refused" in line]
    assert line == f'client refused client=127.0.0.1 reason="{setting} is 3"'


def test_a_tls_handshake_that_never_ends_is_closed(context: ssl.SSLContext, caplog: pytest.LogCaptureFixture) -> None:
    bound = limits(timeout_s=0.3)

    async def scenario() -> None:
        server = await serve_http(Starlette(), "127.0.0.1", 0, bound, context)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"\x16\x03\x01")  # the beginning of a record
        with suppress(ConnectionError):
            assert await reader.read() == b""
        assert len(bound.slots) == 0
        writer.close()
        await server.stop()

    asyncio.run(asyncio.wait_for(scenario(), 30))
    assert any("the handshake timed out" in line for line in caplog.messages)
