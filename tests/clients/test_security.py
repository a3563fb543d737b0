"""Who gets in, over which wire, and what hostile clients cost others: the stock client against a real process."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import ipaddress
import json
import os
import random
import re
import socket
import ssl
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import jwt
import pulsar
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from tests.support.raw_client import ErrorAnswer, RawClient
from tests.support.serving import serving

from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.wire import encode_command, encode_head

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.serving import Served

SECRET = bytes(range(32))
OTHER_SECRET = bytes(range(1, 33))
WAIT_MS = 20_000


def token(secret: bytes = SECRET, **claims: Any) -> str:
    return jwt.encode({"sub": "alice", **claims}, secret, algorithm="HS256")


def write_certificate(directory: Path) -> tuple[Path, Path]:
    """A certificate for this machine that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "afterglow test")])
    now = dt.datetime.now(dt.UTC)
    hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate_path, key_path = directory / "certificate.pem", directory / "key.pem"
    certificate_path.write_bytes(certificate.public_bytes(Encoding.PEM))
    key_path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return certificate_path, key_path


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, certificate: tuple[Path, Path]) -> Iterator[Served]:
    """A server that asks for tokens, and listens with TLS only."""
    directory = tmp_path_factory.mktemp("secured")
    conf = directory / "broker.conf"
    conf.write_text(
        "authenticationEnabled=true\n"
        "authenticationProviders=org.apache.pulsar.broker.authentication.AuthenticationProviderToken\n"
        f"tokenSecretKey=data:;base64,{base64.b64encode(SECRET).decode()}\n"
        "brokerServicePort=\n"
        "webServicePort=\n"
        "brokerServicePortTls=0\n"
        "webServicePortTls=0\n"
        f"tlsCertificateFilePath={certificate[0]}\n"
        f"tlsKeyFilePath={certificate[1]}\n"
    )
    with serving(directory / "home", "--conf", str(conf), plain=False) as served:
        yield served


@contextlib.contextmanager
def stock_client(url: str, trust: Path, credentials: str | None, timeout_s: int = 20) -> Iterator[Any]:
    client = pulsar.Client(
        url,
        authentication=None if credentials is None else pulsar.AuthenticationToken(credentials),
        tls_trust_certs_file_path=str(trust),
        tls_validate_hostname=True,
        operation_timeout_seconds=timeout_s,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    try:
        yield client
    finally:
        client.close()


def round_trip(client: Any, topic: str, value: bytes) -> None:
    consumer = client.subscribe(topic, "s")
    client.create_producer(topic).send(value)
    message = consumer.receive(WAIT_MS)
    assert message.data() == value
    consumer.acknowledge(message)


def admin(served: Served, trust: Path, path: str, authorization: str | None = None) -> tuple[int, Any]:
    """Status and body of a call of the admin API over TLS."""
    headers = {} if authorization is None else {"Authorization": authorization}
    call = urllib.request.Request(f"{served.admin_url}/admin/v2/{path}", headers=headers)
    context = ssl.create_default_context(cafile=trust)
    try:
        with urllib.request.urlopen(call, timeout=20, context=context) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_a_client_with_a_token_works_over_tls(secured: Served, certificate: tuple[Path, Path], topic: str) -> None:
    assert secured.service_url.startswith("pulsar+ssl://127.0.0.1:")
    assert secured.admin_url.startswith("https://127.0.0.1:")
    with stock_client(secured.service_url, certificate[0], token(exp=time.time() + 600)) as client:
        round_trip(client, topic, b"over TLS")


BAD_CREDENTIALS = [
    pytest.param(lambda: None, "requires a token", id="none"),
    pytest.param(lambda: token(OTHER_SECRET), "signature does not match tokenSecretKey", id="of another key"),
    pytest.param(lambda: token(exp=time.time() - 60), "has expired", id="expired"),
    pytest.param(lambda: "no token at all", "not a valid JWT", id="garbage"),
]


@pytest.mark.parametrize(("credentials", "reason"), BAD_CREDENTIALS)
def test_a_client_without_a_valid_token_is_refused_with_the_reason(
    secured: Served, certificate: tuple[Path, Path], topic: str, credentials: Any, reason: str
) -> None:
    # The client ignores errors that arrive before it is connected (apache/pulsar-client-cpp#227) and tries until its
    # time is up; so the error is checked without it.
    with (
        stock_client(secured.service_url, certificate[0], credentials(), timeout_s=1) as client,
        pytest.raises((pulsar.AuthenticationError, pulsar.ConnectError, pulsar.Timeout)),
    ):
        client.create_producer(topic)
    context = ssl.create_default_context(cafile=certificate[0])
    with pytest.raises(ErrorAnswer, match=reason) as caught:
        RawClient(secured.service_url, token=credentials(), tls=context)
    assert caught.value.code == wire.AuthenticationError
    secret_part = (credentials() or "").rpartition(".")[2]
    assert not secret_part or secret_part not in "".join(secured.lines)


@pytest.mark.parametrize(("credentials", "reason"), BAD_CREDENTIALS)
def test_the_admin_api_answers_401_without_a_valid_token(
    secured: Served, certificate: tuple[Path, Path], credentials: Any, reason: str
) -> None:
    given = credentials()
    status, body = admin(secured, certificate[0], "tenants", None if given is None else f"Bearer {given}")
    assert status == 401
    assert reason in body["reason"]


def test_the_admin_api_answers_with_a_token(secured: Served, certificate: tuple[Path, Path]) -> None:
    status, body = admin(secured, certificate[0], "tenants", f"Bearer {token()}")
    assert (status, "public" in body) == (200, True)


def test_a_client_that_does_not_trust_the_certificate_does_not_connect(
    secured: Served, tmp_path: Path, topic: str
) -> None:
    stranger, _ = write_certificate(tmp_path)
    with (
        stock_client(secured.service_url, stranger, token(), timeout_s=1) as client,
        pytest.raises(pulsar.PulsarException),
    ):
        client.create_producer(topic)


def test_a_client_without_tls_gets_nowhere_on_a_tls_port(
    secured: Served, certificate: tuple[Path, Path], topic: str
) -> None:
    url = urlsplit(secured.service_url)
    with socket.create_connection((url.hostname, url.port), 20) as plain:
        plain.sendall(encode_command(wire.BaseCommand(type=wire.BaseCommand.PING, ping=wire.CommandPing())))
        answer = plain.recv(1 << 16)  # a TLS alert or the end of the connection, never a frame
        assert not answer.startswith(b"\0")
    with stock_client(secured.service_url, certificate[0], token()) as client:
        round_trip(client, topic, b"others are served")


def wait_for_line(served: Served, pattern: str, timeout_s: float = 20) -> str:
    """The first line of the broker's output that matches; printed by another process, hence polled."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if found := next((line for line in list(served.lines) if re.search(pattern, line)), None):
            return found
        time.sleep(0.02)
    raise AssertionError(f"{pattern} is not in the log:\n" + "\n".join(served.lines))


def test_a_failed_handshake_is_in_the_log_with_address_port_and_reason(
    secured: Served, tmp_path: Path, topic: str
) -> None:
    stranger, _ = write_certificate(tmp_path)
    with (
        stock_client(secured.service_url, stranger, token(), timeout_s=1) as client,
        pytest.raises(pulsar.PulsarException),
    ):
        client.create_producer(topic)
    wait_for_line(secured, r"WARNING .*TLS handshake with 127\.0\.0\.1 failed on brokerServicePortTls: the client")
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        admin(secured, stranger, "tenants")
    wait_for_line(secured, r"failed on webServicePortTls: the client does not accept .* \(TLSV1_ALERT_UNKNOWN_CA\)")
    for url, port in ((secured.service_url, "brokerServicePortTls"), (secured.admin_url, "webServicePortTls")):
        with socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), 20) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
            closes(plain)
        wait_for_line(secured, rf"failed on {port}: the client does not speak TLS; .* \(HTTP_REQUEST\)")
    assert not any("Traceback" in line for line in secured.lines)


def serve_until_it_ends(home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "afterglow", "serve", "--home", str(home), "--port", "0", "--http-port", "0"]
    return subprocess.run([*command, *options], capture_output=True, text=True, timeout=300, check=False)


def test_listening_beyond_this_machine_without_token_and_tls_is_refused(tmp_path: Path) -> None:
    ended = serve_until_it_ends(tmp_path / "home", "--listen", "0.0.0.0")
    assert ended.returncode == 2
    for cure in ("authenticationEnabled=true", "brokerServicePortTls", "webServicePortTls", "--insecure", "127.0.0.1"):
        assert cure in ended.stderr
    assert not (tmp_path / "home").exists()


def test_insecure_lets_it_pass(tmp_path: Path) -> None:
    """It gets as far as the home, which is a file: no port is opened beyond this machine by a test."""
    home = tmp_path / "home"
    home.touch()
    ended = serve_until_it_ends(home, "--listen", "0.0.0.0", "--insecure")
    assert ended.returncode == 1
    assert "bindAddress" not in ended.stderr
    assert str(home) in ended.stderr


# --- hostile clients ---


def connection(served: Served) -> socket.socket:
    url = urlsplit(served.service_url)
    return socket.create_connection((url.hostname, url.port), 20)


def handshake() -> bytes:
    connect = wire.CommandConnect(client_version="hostile", protocol_version=19)
    return encode_command(wire.BaseCommand(type=wire.BaseCommand.CONNECT, connect=connect))


GARBAGE = [
    b"GET /admin/v2/tenants HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),  # the beginning of a TLS handshake
    struct.pack(">I", 2**32 - 1) + b"\xff" * 64,
    struct.pack(">II", 100, 2**31),
    struct.pack(">II", 8, 4) + b"\xff\xff\xff\xff",
    encode_head(b"\x08\x06\x32\x00", 4) + b"junk",  # a SEND without its required fields
    random.Random(6650).randbytes(4096),
]


def closes(hostile: socket.socket) -> bool:
    """Whether the broker ends the connection."""
    with contextlib.suppress(ConnectionError):
        while hostile.recv(1 << 16):
            pass
    return True


def test_garbage_closes_its_connection_and_a_stock_client_works_on(served: Served, client: Any, topic: str) -> None:
    for number, garbage in enumerate(GARBAGE):
        for prefix in (b"", handshake()):
            with connection(served) as hostile:
                hostile.sendall(prefix + garbage)
                round_trip(client, f"{topic}-{number}-{len(prefix)}", garbage)
                assert closes(hostile)


def test_half_a_frame_and_silence_hold_up_nobody(served: Served, client: Any, topic: str) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            hostile = stack.enter_context(connection(served))
            hostile.sendall(handshake() + struct.pack(">I", 5 << 20) + bytes(1000))
            stack.enter_context(connection(served))  # and one that never says a word
        round_trip(client, topic, b"on time")


def test_a_consumer_that_never_reads_holds_up_nobody(served: Served, client: Any, topic: str) -> None:
    value = os.urandom(1 << 20)
    with RawClient(served.service_url) as hostile:
        consumer = hostile.subscribe(topic, "never-reads")
        hostile.flow(consumer, 1_000_000)
        reader = client.subscribe(topic, "reads")
        producer = client.create_producer(topic, batching_enabled=False)
        for _ in range(32):  # far more than sockets and write buffers hold
            producer.send(value)
            message = reader.receive(WAIT_MS)
            assert message.data() == value
            reader.acknowledge(message)
        backlog = served.admin("GET", f"persistent/public/default/{topic.rpartition('/')[2]}/stats")
        assert backlog["subscriptions"]["never-reads"]["msgBacklog"] == 32
        # Once it reads, it gets everything.
        assert [len(hostile.message(consumer).payload) > len(value) for _ in range(32)] == [True] * 32
