from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
import socket
import time
from typing import TYPE_CHECKING, Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from afterglow.broker.auth import Authenticator, Principal, bearer, check_exposure, is_loopback
from afterglow.broker.tokens import MAX_TOKEN_BYTES
from afterglow.config import AuthenticationProvider, BrokerConfig
from afterglow.errors import ConfigError
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.wire import Refused

if TYPE_CHECKING:
    from pathlib import Path

SECRET = bytes(range(64))


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def config(**settings: Any) -> BrokerConfig:
    defaults: dict[str, Any] = {
        "authentication_enabled": True,
        "authentication_providers": (AuthenticationProvider.TOKEN,),
    }
    return BrokerConfig(**{**defaults, **settings})


def with_secret(**settings: Any) -> Authenticator:
    return Authenticator.from_config(config(token_secret_key=b64(SECRET), **settings))


def with_public(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, **settings: Any) -> Authenticator:
    return Authenticator.from_config(config(token_public_key=b64(public_der(key)), **settings))


def public_der(key: Any) -> bytes:
    data: bytes = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return data


def public_pem(key: Any) -> bytes:
    data: bytes = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return data


def token(algorithm: str = "HS256", key: Any = SECRET, **claims: Any) -> str:
    return jwt.encode({"sub": "alice", **claims}, key, algorithm=algorithm)


def forged(header: dict[str, Any], claims: dict[str, Any], secret: bytes | None) -> str:
    """A token that the library refuses to create."""

    def part(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    body = f"{part(json.dumps(header).encode())}.{part(json.dumps(claims).encode())}"
    signature = b"" if secret is None else hmac.new(secret, body.encode(), hashlib.sha256).digest()
    return f"{body}.{part(signature)}"


def refused(authenticator: Authenticator, text: str | bytes, method: str = "token") -> str:
    with pytest.raises(Refused) as caught:
        authenticator.authenticate(method, text)
    assert caught.value.code == wire.AuthenticationError
    return str(caught.value)


@pytest.fixture(scope="module")
def rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


# --- who is asked ----------------------------------------------------------------------------------------------------


def test_without_authentication_every_client_is_accepted() -> None:
    authenticator = Authenticator.from_config(BrokerConfig())
    assert not authenticator.enabled
    assert authenticator.authenticate("token", b"garbage") == Principal(None, None)
    assert authenticator.authenticate_header("Basic garbage") == Principal(None, None)
    assert authenticator.is_super_user(None)


@pytest.mark.parametrize("method", ["", "none"])
def test_a_client_without_credentials_is_refused_or_gets_the_anonymous_role(method: str) -> None:
    assert "token" in refused(with_secret(), b"", method)
    assert with_secret(anonymous_user_role="guest").authenticate(method, b"") == Principal("guest")


def test_another_method_is_refused_even_if_anonymous_clients_are_accepted() -> None:
    message = refused(with_secret(anonymous_user_role="guest"), b"x", "athenz")
    assert "athenz" in message


@pytest.mark.parametrize("data", [b"", b"  \n", "\u00e9".encode()])
def test_an_empty_or_binary_token_is_refused(data: bytes) -> None:
    refused(with_secret(anonymous_user_role="guest"), data)


def test_only_configured_roles_are_super_users() -> None:
    authenticator = with_secret(super_user_roles=("admin",))
    assert authenticator.is_super_user("admin")
    assert not authenticator.is_super_user("alice")
    assert not authenticator.is_super_user(None)


def test_the_header_of_an_http_request_carries_the_token() -> None:
    authenticator = with_secret()
    assert authenticator.authenticate_header(f"Bearer {token()}").role == "alice"
    assert authenticator.authenticate_header(f"bearer  {token()} ").role == "alice"
    for header in (None, "", "Basic YTpi", "Bearer", "Bearer garbage"):
        with pytest.raises(Refused):
            authenticator.authenticate_header(header)


def test_bearer_returns_the_token_of_its_header() -> None:
    assert bearer(None) is None
    assert bearer("Bearer abc") == "abc"
    with pytest.raises(Refused, match="Bearer"):
        bearer("Basic YTpi")


# --- keys ------------------------------------------------------------------------------------------------------------


def test_a_secret_may_be_given_in_every_form_that_pulsar_accepts(tmp_path: Path) -> None:
    file = tmp_path / "my secret.key"
    file.write_bytes(SECRET)
    forms = [
        file.as_uri(),
        f"file:{tmp_path}/my%20secret.key",
        str(file),
        f"data:;base64,{b64(SECRET)}",
        f"data:application/octet-stream;base64,{b64(SECRET)}",
        b64(SECRET),
        b64(SECRET).rstrip("="),
    ]
    for form in forms:
        authenticator = Authenticator.from_config(config(token_secret_key=form))
        assert authenticator.authenticate("token", token().encode()).role == "alice", form


def test_a_data_url_without_base64_is_the_text_itself() -> None:
    authenticator = Authenticator.from_config(config(token_secret_key="data:," + "k" * 40))
    assert authenticator.authenticate("token", token(key="k" * 40)).role == "alice"


@pytest.mark.parametrize(
    "given",
    [
        "file:///nowhere/secret.key",
        "file://host/secret.key",
        "data:nothing",
        "data:;base64,!!!",
        "not base64, and no file",
        b64(b"x" * 31),
        "\0" * 50,
    ],
)
def test_a_secret_that_cannot_be_read_or_is_weak_names_its_setting_and_never_itself(given: str) -> None:
    with pytest.raises(ConfigError, match="tokenSecretKey") as caught:
        Authenticator.from_config(config(token_secret_key=given))
    assert given not in str(caught.value)


def test_public_keys_may_be_der_or_pem(rsa_key: rsa.RSAPrivateKey, tmp_path: Path) -> None:
    for data in (public_der(rsa_key), public_pem(rsa_key)):
        file = tmp_path / "public.key"
        file.write_bytes(data)
        authenticator = Authenticator.from_config(config(token_public_key=file.as_uri()))
        assert authenticator.authenticate("token", token("RS256", rsa_key)).role == "alice"


@pytest.mark.parametrize("algorithm", ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"])
def test_an_rsa_key_verifies_every_rsa_algorithm(rsa_key: rsa.RSAPrivateKey, algorithm: str) -> None:
    assert with_public(rsa_key).authenticate("token", token(algorithm, rsa_key)).role == "alice"


@pytest.mark.parametrize(
    ("curve", "algorithm"), [(ec.SECP256R1(), "ES256"), (ec.SECP384R1(), "ES384"), (ec.SECP521R1(), "ES512")]
)
def test_an_elliptic_curve_key_verifies_the_algorithm_of_its_curve(curve: ec.EllipticCurve, algorithm: str) -> None:
    key = ec.generate_private_key(curve)
    authenticator = with_public(key, token_public_alg=algorithm)
    assert authenticator.authenticate("token", token(algorithm, key)).role == "alice"


def test_a_public_key_must_match_the_configured_algorithm(rsa_key: rsa.RSAPrivateKey) -> None:
    curve = ec.generate_private_key(ec.SECP256R1())
    for key, algorithm in ((rsa_key, "ES256"), (curve, "RS256"), (curve, "ES384")):
        with pytest.raises(ConfigError, match="tokenPublicAlg"):
            with_public(key, token_public_alg=algorithm)
    for algorithm in ("none", "HS256", "EdDSA"):
        with pytest.raises(ConfigError, match="tokenPublicAlg"):
            with_public(rsa_key, token_public_alg=algorithm)


def test_an_unsafe_or_invalid_public_key_is_refused(rsa_key: rsa.RSAPrivateKey) -> None:
    small = rsa.generate_private_key(65537, 1024)
    private = rsa_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    unsupported = ec.generate_private_key(ec.SECP256K1())
    for data in (
        public_der(small),
        private,
        b"garbage",
        public_der(ed25519.Ed25519PrivateKey.generate()),
        public_der(unsupported),
    ):
        with pytest.raises(ConfigError, match="tokenPublicKey"):
            Authenticator.from_config(config(token_public_key=b64(data)))


def test_a_public_key_given_as_the_secret_is_refused(rsa_key: rsa.RSAPrivateKey) -> None:
    with pytest.raises(ConfigError, match="set it as tokenPublicKey"):
        Authenticator.from_config(config(token_secret_key=b64(public_pem(rsa_key))))


# --- tokens ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_a_long_secret_verifies_every_hmac(algorithm: str) -> None:
    assert with_secret().authenticate("token", token(algorithm)) == Principal("alice", None)


def test_a_short_secret_verifies_only_the_hmac_that_is_safe_with_it() -> None:
    authenticator = Authenticator.from_config(config(token_secret_key=b64(SECRET[:32])))
    assert authenticator.authenticate("token", token("HS256", SECRET[:32])).role == "alice"
    with pytest.warns(match="below the minimum"):
        weak = token("HS512", SECRET[:32])
    assert "HS256" in refused(authenticator, weak)


def test_a_token_of_another_secret_is_refused() -> None:
    assert "tokenSecretKey" in refused(with_secret(), token(key=b"x" * 64))


def test_a_changed_token_is_refused() -> None:
    head, body, signature = token().split(".")
    claims = base64.urlsafe_b64encode(b'{"sub":"admin"}').rstrip(b"=").decode()
    refused(with_secret(), f"{head}.{claims}.{signature}")
    refused(with_secret(), f"{head}.{body}.")
    refused(with_secret(), f"{head}.{body}")


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE", ""])
def test_an_unsigned_token_is_refused_by_either_key(algorithm: str, rsa_key: rsa.RSAPrivateKey) -> None:
    unsigned = forged({"alg": algorithm, "typ": "JWT"}, {"sub": "admin"}, None)
    refused(with_secret(), unsigned)
    refused(with_public(rsa_key), unsigned)


def test_a_public_key_never_serves_as_a_secret(rsa_key: rsa.RSAPrivateKey) -> None:
    authenticator = with_public(rsa_key)
    for known in (public_der(rsa_key), public_pem(rsa_key), b64(public_der(rsa_key)).encode()):
        confused = forged({"alg": "HS256", "typ": "JWT"}, {"sub": "admin"}, known)
        assert "RS256" in refused(authenticator, confused)


def test_an_expired_token_is_refused_unless_within_the_allowed_skew() -> None:
    expired = token(exp=int(time.time()) - 30)
    assert "expired" in refused(with_secret(), expired)
    principal = with_secret(token_allowed_clock_skew_seconds=3600).authenticate("token", expired)
    assert principal.expires_at is not None
    assert principal.expires_at > time.time() + 3000


def test_a_token_of_the_future_is_refused_unless_within_the_allowed_skew() -> None:
    early = token(nbf=int(time.time()) + 600)
    assert "tokenAllowedClockSkewSeconds" in refused(with_secret(), early)
    assert with_secret(token_allowed_clock_skew_seconds=3600).authenticate("token", early).role == "alice"


def test_the_time_of_issue_is_not_checked() -> None:
    assert with_secret().authenticate("token", token(iat=int(time.time()) + 600)).role == "alice"


def test_the_principal_has_the_expiry_of_its_token() -> None:
    at = int(time.time()) + 600
    assert with_secret().authenticate("token", token(exp=at)) == Principal("alice", float(at))
    assert with_secret().authenticate("token", token(exp=10**400)).expires_at == math.inf


@pytest.mark.parametrize("expiry", ["soon", [], {}, math.inf, math.nan])
def test_an_invalid_expiry_is_refused(expiry: Any) -> None:
    refused(with_secret(), token(exp=expiry))


def test_the_role_is_the_configured_claim_or_the_first_of_its_list() -> None:
    authenticator = with_secret(token_auth_claim="groups")
    assert authenticator.authenticate("token", token(groups="ops")).role == "ops"
    assert authenticator.authenticate("token", token(groups=["ops", "dev"])).role == "ops"
    assert with_secret().authenticate("token", jwt.encode({"sub": ["ops"]}, SECRET, "HS256")).role == "ops"


@pytest.mark.parametrize("role", [None, "", [], [""], 5, [5], {"a": 1}])
def test_a_token_without_a_role_is_refused(role: Any) -> None:
    authenticator = with_secret(token_auth_claim="groups", anonymous_user_role="guest")
    assert "tokenAuthClaim" in refused(authenticator, token(groups=role))


def test_the_audience_must_name_this_broker_if_one_is_configured() -> None:
    authenticator = with_secret(token_audience_claim="aud", token_audience="my-cluster")
    assert authenticator.authenticate("token", token(aud="my-cluster")).role == "alice"
    assert authenticator.authenticate("token", token(aud=["other", "my-cluster"])).role == "alice"
    for claims in ({}, {"aud": "other"}, {"aud": ["other"]}, {"aud": {"my-cluster": 1}}, {"aud": None}):
        assert "tokenAudience" in refused(authenticator, token(**claims))


def test_the_audience_is_not_checked_unless_configured() -> None:
    assert with_secret().authenticate("token", token(aud="other")).role == "alice"


def test_an_audience_claim_needs_an_audience() -> None:
    with pytest.raises(ConfigError, match="tokenAudience"):
        with_secret(token_audience_claim="aud")


@pytest.mark.parametrize(
    "text",
    ["garbage", "a.b.c", "..", "." * 1000, "e30.e30.e30", "x" * (MAX_TOKEN_BYTES + 1)],
)
def test_a_malformed_token_is_refused_and_not_repeated_in_the_error(text: str) -> None:
    message = refused(with_secret(), text)
    assert text not in message
    assert len(message) < 200


def test_an_oversized_token_is_refused_although_it_is_valid() -> None:
    """It is refused before it is decoded, so that clients without a key cannot cause work."""
    assert str(MAX_TOKEN_BYTES) in refused(with_secret(), token(note="x" * MAX_TOKEN_BYTES))


def test_a_deeply_nested_header_is_refused() -> None:
    deep = base64.urlsafe_b64encode(b'{"alg":' + b"[" * 20_000).rstrip(b"=").decode()
    refused(with_secret(), f"{deep}.e30.AAAA")


def test_no_refusal_shows_any_part_of_the_token() -> None:
    secret_claim = "a-claim-nobody-may-see"
    for text in (
        token(exp=1, note=secret_claim),
        token(key=b"y" * 64, note=secret_claim),
        token(nbf=2**40, note=secret_claim),
        forged({"alg": "none"}, {"sub": secret_claim}, None),
    ):
        message = refused(with_secret(), text)
        assert secret_claim not in message
        assert all(part not in message for part in text.split(".") if part)


# --- exposure --------------------------------------------------------------------------------------------------------


def tls_only(**settings: Any) -> dict[str, Any]:
    return {
        "broker_service_port": None,
        "web_service_port": None,
        "broker_service_port_tls": 6651,
        "web_service_port_tls": 8443,
        "tls_certificate_file_path": "cert.pem",
        "tls_key_file_path": "key.pem",
        **settings,
    }


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.8.8", "::1", "localhost", "::ffff:127.0.0.1"])
def test_a_loopback_address_may_be_bound_without_protection(address: str) -> None:
    check_exposure(BrokerConfig(bind_address=address), insecure=False)


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.0.2.1", "2001:db8::1", "::ffff:192.0.2.1"])
def test_any_other_address_needs_authentication_and_tls(address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_exposure(BrokerConfig(bind_address=address), insecure=False)
    for word in (address, "authenticationEnabled", "brokerServicePortTls", "webServicePortTls", "--insecure"):
        assert word in str(caught.value)
    check_exposure(BrokerConfig(bind_address=address), insecure=True)


def test_authentication_alone_and_tls_alone_do_not_suffice() -> None:
    with pytest.raises(ConfigError, match="brokerServicePortTls") as caught:
        check_exposure(config(bind_address="0.0.0.0", token_secret_key=b64(SECRET)), insecure=False)
    assert "authenticationEnabled" not in str(caught.value)
    with pytest.raises(ConfigError, match="authenticationEnabled") as caught:
        check_exposure(BrokerConfig(bind_address="0.0.0.0", **tls_only()), insecure=False)
    assert "brokerServicePortTls" not in str(caught.value)


def test_a_single_port_without_tls_counts_as_exposed() -> None:
    settings = tls_only(bind_address="0.0.0.0", token_secret_key=b64(SECRET), web_service_port=8080)
    with pytest.raises(ConfigError, match="webServicePort") as caught:
        check_exposure(config(**settings), insecure=False)
    assert "brokerServicePort" not in str(caught.value)


def test_with_authentication_and_tls_on_every_port_any_address_may_be_bound() -> None:
    check_exposure(config(bind_address="0.0.0.0", token_secret_key=b64(SECRET), **tls_only()), insecure=False)


def test_without_ports_nothing_is_exposed() -> None:
    closed = BrokerConfig(bind_address="0.0.0.0", broker_service_port=None, web_service_port=None)
    check_exposure(closed, insecure=False)


def test_all_addresses_of_a_host_name_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses: list[str] = []

    def resolve(*_args: Any, **_kwargs: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    addresses[:] = ["127.0.0.1", "127.0.1.1"]
    check_exposure(BrokerConfig(bind_address="my-host"), insecure=False)
    addresses[:] = ["127.0.0.1", "192.0.2.1"]
    with pytest.raises(ConfigError, match="my-host"):
        check_exposure(BrokerConfig(bind_address="my-host"), insecure=False)


def test_an_empty_host_means_every_address() -> None:
    assert not is_loopback("")
    assert is_loopback("127.0.0.1")


def test_an_unknown_host_name_is_an_error() -> None:
    with pytest.raises(ConfigError, match="cannot be resolved"):
        check_exposure(BrokerConfig(bind_address="no-such-host.invalid"), insecure=False)
