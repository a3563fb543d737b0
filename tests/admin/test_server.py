from __future__ import annotations

import asyncio
import http.client
import signal
import ssl
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

from afterglow.admin.server import serve_http
from afterglow.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.requests import Request


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
        server = await serve_http(Starlette(routes=[Route("/", hello)]), "127.0.0.1", 0)
        assert await asyncio.to_thread(fetch, server.port) == b"hello"
        await server.stop()
        await server.stop()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.to_thread(fetch, server.port)

    asyncio.run(scenario())


def test_a_call_under_way_is_answered_before_it_stops() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_request: Request) -> PlainTextResponse:
        begun.set()
        await go_on.wait()
        return PlainTextResponse("late")

    async def scenario() -> None:
        server = await serve_http(Starlette(routes=[Route("/", slow)]), "127.0.0.1", 0)
        answer = asyncio.create_task(asyncio.to_thread(fetch, server.port))
        await begun.wait()
        stopping = asyncio.create_task(server.stop())
        await asyncio.sleep(0)
        go_on.set()
        assert await answer == b"late"
        await stopping

    asyncio.run(scenario())


def test_a_call_that_never_ends_does_not_keep_it_from_stopping() -> None:
    begun = asyncio.Event()

    async def endless(_request: Request) -> PlainTextResponse:
        begun.set()
        await asyncio.Event().wait()
        return PlainTextResponse("never")

    async def scenario() -> None:
        server = await serve_http(Starlette(routes=[Route("/", endless)]), "127.0.0.1", 0, grace_s=1)
        answer = asyncio.create_task(asyncio.to_thread(fetch, server.port))
        await begun.wait()
        await server.stop()
        await asyncio.gather(answer, return_exceptions=True)

    asyncio.run(scenario())


def test_signals_stay_with_the_process() -> None:
    async def scenario() -> None:
        before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
        server = await serve_http(Starlette(), "127.0.0.1", 0)
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
        await server.stop()

    asyncio.run(scenario())


def test_a_port_that_is_taken_is_named() -> None:
    async def scenario() -> None:
        server = await serve_http(Starlette(), "127.0.0.1", 0)
        with pytest.raises(ConfigError, match=f"webServicePort.*{server.port}"):
            await serve_http(Starlette(), "127.0.0.1", server.port)
        await server.stop()
        with pytest.raises(ConfigError, match="webServicePort"):
            await serve_http(Starlette(), "no.such.host.invalid", 0)

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


def test_it_answers_over_tls(certificate: Path) -> None:
    async def scenario() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server = await serve_http(Starlette(routes=[Route("/", hello)]), "127.0.0.1", 0, context)
        trusting = ssl.create_default_context(cafile=str(certificate))
        assert await asyncio.to_thread(fetch, server.port, trusting) == b"hello"
        with pytest.raises((http.client.HTTPException, OSError)):
            await asyncio.to_thread(fetch, server.port)
        await server.stop()

    asyncio.run(scenario())
