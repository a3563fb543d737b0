"""Invalid tokens, sent to both ports of a real ``afterglow serve``."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from tests.support.raw_client import ErrorAnswer, Kind, RawClient
from tests.support.serving import start

from afterglow.broker.tokens import MAX_TOKEN_BYTES
from afterglow.format.proto import pulsar_api_pb2 as wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.serving import Served

AUDIENCE = "this-broker"
CLAIMS = {"sub": "admin", "aud": AUDIENCE}


@dataclass(frozen=True)
class SecuredServer:
    """A running server that accepts tokens of one key, and the key that it replaced."""

    served: Served
    key: rsa.RSAPrivateKey
    revoked: rsa.RSAPrivateKey

    @property
    def public_pem(self) -> bytes:
        return self.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def token(self, **claims: Any) -> str:
        return jwt.encode({**CLAIMS, **claims}, self.key, algorithm="RS256")

    def http_status(self, path: str = "/admin/v2/tenants", token: str | None = None) -> int:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        request = urllib.request.Request(self.served.admin_url + path, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return int(answer.status)
        except HTTPError as refused:
            return refused.code


def by_hand(header: dict[str, Any], secret: bytes | None) -> str:
    """A token that the library refuses to create."""

    def part(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    body = f"{part(json.dumps(header).encode())}.{part(json.dumps(CLAIMS).encode())}"
    signature = b"" if secret is None else hmac.new(secret, body.encode(), hashlib.sha256).digest()
    return f"{body}.{part(signature)}"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServer]:
    """A server that was restarted with a new key, which revokes the old one."""
    home = tmp_path_factory.mktemp("home")
    revoked, key = (rsa.generate_private_key(65537, 2048) for _ in range(2))
    pem = home / "tokens.pem"
    conf = home / "broker.conf"
    conf.write_text(
        "authenticationEnabled=true\nauthenticationProviders=token\nsuperUserRoles=admin\n"
        f"tokenPublicKey={pem}\ntokenAudienceClaim=aud\ntokenAudience={AUDIENCE}\n"
    )
    pem.write_bytes(revoked.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    before = start(home, "--conf", str(conf))
    assert SecuredServer(before, revoked, key).http_status(token=SecuredServer(before, revoked, key).token()) == 200
    assert before.stop() == 0
    pem.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    served = start(home, "--conf", str(conf))
    yield SecuredServer(served, key, revoked)
    served.kill()


ATTACKS: dict[str, Callable[[SecuredServer], str]] = {
    "alg none": lambda _: by_hand({"alg": "none", "typ": "JWT"}, None),
    "alg none with a signature": lambda secured: by_hand({"alg": "none"}, secured.public_pem),
    "no alg": lambda _: by_hand({"typ": "JWT"}, None),
    "public key as a secret": lambda secured: by_hand({"alg": "HS256", "typ": "JWT"}, secured.public_pem),
    "key of its own in the header": lambda secured: jwt.encode(
        CLAIMS,
        secured.revoked,
        algorithm="RS256",
        headers={"jwk": json.loads(_jwk(secured.revoked)), "jku": "http://x/"},
    ),
    "signature left out": lambda secured: secured.token().rpartition(".")[0] + ".",
    "expired": lambda secured: secured.token(exp=int(time.time()) - 5),
    "not yet valid": lambda secured: secured.token(nbf=int(time.time()) + 3600),
    "wrong audience": lambda secured: secured.token(aud="another-broker"),
    "no audience": lambda secured: jwt.encode({"sub": "admin"}, secured.key, algorithm="RS256"),
    "wrong key": lambda _: jwt.encode(CLAIMS, rsa.generate_private_key(65537, 2048), algorithm="RS256"),
    "revoked key": lambda secured: jwt.encode(CLAIMS, secured.revoked, algorithm="RS256"),
    "critical extension": lambda secured: jwt.encode(
        CLAIMS, secured.key, algorithm="RS256", headers={"crit": ["x"], "x": True}
    ),
}


def _jwk(key: rsa.RSAPrivateKey) -> str:
    return str(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key()))


def test_a_valid_token_passes_both_ports(secured: SecuredServer) -> None:
    assert secured.http_status(token=secured.token()) == 200
    RawClient(secured.served.service_url, token=secured.token()).close()


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_an_invalid_token_passes_neither_port_and_is_not_logged(
    secured: SecuredServer, attack: Callable[[SecuredServer], str]
) -> None:
    token = attack(secured)
    assert secured.http_status(token=token) == 401
    with pytest.raises(ErrorAnswer) as refused:
        RawClient(secured.served.service_url, token=token)
    assert refused.value.code == wire.AuthenticationError
    log = "\n".join(secured.served.lines)
    assert not [part for part in token.split(".") if len(part) > 20 and (part in log or part in str(refused.value))]


def test_an_oversized_token_passes_neither_port(secured: SecuredServer) -> None:
    token = secured.token(pad="x" * MAX_TOKEN_BYTES)
    assert secured.http_status(token=token) in {400, 401, 431}  # the parser bounds headers before the token is read
    with pytest.raises(ErrorAnswer, match="longer than"):
        RawClient(secured.served.service_url, token=token)


@pytest.mark.parametrize("name", ["token", "access_token", "Authorization"])
def test_a_token_in_the_query_string_is_not_accepted(secured: SecuredServer, name: str) -> None:
    """URLs are stored in logs of proxies and in histories of browsers."""
    assert secured.http_status(f"/admin/v2/tenants?{name}={secured.token()}") == 401


def test_a_connection_is_not_kept_open_with_a_token_of_another_role(secured: SecuredServer) -> None:
    with RawClient(secured.served.service_url, token=secured.token()) as client:
        for role, is_closed in (("admin", False), ("other", True)):
            command = Kind(type=Kind.AUTH_RESPONSE)
            command.authResponse.response.auth_method_name = "token"
            command.authResponse.response.auth_data = secured.token(sub=role).encode()
            client.send(command)
            if is_closed:
                with pytest.raises(ConnectionError):
                    client.lookup("persistent://public/default/t")
            else:
                assert client.lookup("persistent://public/default/t").brokerServiceUrl
