"""Verification of signed tokens (JWT) against the configured key.

The key alone decides which algorithms are accepted, never the token: a secret verifies HMAC only, a public key only
signatures of its own kind. So neither an unsigned token nor one that is "signed" with a public key used as a secret can
pass. Times are checked as in Pulsar: ``exp`` and ``nbf`` with the allowed skew, ``iat`` not.

No error message contains a part of the token.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from afterglow.errors import ConfigError, MissingDependency
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.wire import Refused

try:
    import jwt
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from cryptography.hazmat.primitives.serialization import load_der_public_key, load_pem_public_key
except ImportError as error:
    raise MissingDependency.of_extra("token authentication needs pyjwt[crypto]", "serve") from error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from afterglow.config import BrokerConfig

    PublicKey = rsa.RSAPublicKey | ec.EllipticCurvePublicKey

MAX_TOKEN_BYTES: Final = 64 << 10
"""Longer tokens are refused before they are parsed; usual tokens have some hundred bytes."""

_SECRET_BYTES: Final = {"HS256": 32, "HS384": 48, "HS512": 64}
"""Minimum secret length of each algorithm (RFC 7518, 3.2); Pulsar refuses shorter ones too."""
_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_RSA_BITS: Final = 2048
_CURVES: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_DATA_URL: Final = re.compile(r"data:[^,;]*(?:;charset=[^,;]*)?(?P<base64>;base64)?,(?P<data>.*)", re.DOTALL)


class TokenVerifier:
    """Verifies tokens against one key. Thread-safe."""

    def __init__(self, config: BrokerConfig) -> None:
        """Read the key.

        Raises:
            ConfigError: The key is missing, or has the wrong kind for its setting.
        """
        self._key: bytes | PublicKey
        if config.token_secret_key:
            self._setting = "tokenSecretKey"
            self._key = secret_key_of(self._setting, config.token_secret_key)
            self._algorithms = [name for name, least in _SECRET_BYTES.items() if len(self._key) >= least]
        elif config.token_public_key:
            self._setting = "tokenPublicKey"
            self._key = _public_key(read_key(self._setting, config.token_public_key))
            self._algorithms = _algorithms_of(self._key, config.token_public_alg)
        else:
            raise ConfigError("authenticationProviders=token needs a key; set tokenSecretKey or tokenPublicKey")
        if config.token_audience_claim and not config.token_audience:
            raise ConfigError("tokenAudienceClaim is set without tokenAudience; set it to the audience of this broker")
        self._role_claim = config.token_auth_claim
        self._audience_claim = config.token_audience_claim
        self._audience = config.token_audience
        self._skew_s = config.token_allowed_clock_skew_seconds

    def verify(self, token: str) -> tuple[str, float | None]:
        """Return the token's role, and the epoch second at which it expires (None: never).

        Raises:
            Refused: The token is not valid.
        """
        if len(token) > MAX_TOKEN_BYTES:
            raise _refused(f"the token is longer than {MAX_TOKEN_BYTES} bytes")
        claims = self._claims(token)
        self._check_audience(claims)
        return self._role(claims), self._expiry(claims)

    def _claims(self, token: str) -> Mapping[str, Any]:
        try:
            claims: Mapping[str, Any] = jwt.decode(
                token,
                self._key,
                algorithms=self._algorithms,
                leeway=self._skew_s,
                # The audience claim is configurable and checked below; Pulsar does not check the others.
                options={"verify_aud": False, "verify_iat": False, "verify_sub": False, "verify_jti": False},
            )
        except jwt.ExpiredSignatureError as error:
            raise _refused("the token has expired; give the client a new one") from error
        except jwt.ImmatureSignatureError as error:
            raise _refused(
                "the token is not valid yet; check both clocks, or raise tokenAllowedClockSkewSeconds"
            ) from error
        except jwt.InvalidAlgorithmError as error:
            raise _refused(
                f"the token is unsigned or its algorithm does not match {self._setting}; "
                f"sign it with {' or '.join(self._algorithms)}"
            ) from error
        except jwt.InvalidSignatureError as error:
            raise _refused(
                f"the token's signature does not match {self._setting}; sign it with the matching key"
            ) from error
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise _refused("the token is not a valid JWT; create it with `pulsar tokens create`") from error
        return claims

    def _check_audience(self, claims: Mapping[str, Any]) -> None:
        if self._audience_claim is None:
            return
        given = claims.get(self._audience_claim)
        audiences = given if isinstance(given, list) else [given]
        if self._audience not in audiences:
            raise _refused(
                f"the token's claim {self._audience_claim!r} (tokenAudienceClaim) does not name {self._audience!r} "
                f"(tokenAudience)"
            )

    def _role(self, claims: Mapping[str, Any]) -> str:
        role = claims.get(self._role_claim)
        if isinstance(role, list):
            role = role[0] if role else None
        if not isinstance(role, str) or not role:
            raise _refused(f"the token's claim {self._role_claim!r} (tokenAuthClaim) does not contain a role")
        return role

    def _expiry(self, claims: Mapping[str, Any]) -> float | None:
        expiry = claims.get("exp")
        if expiry is None:
            return None
        try:
            return float(expiry) + self._skew_s
        except OverflowError:
            return math.inf


def read_key(setting: str, text: str) -> bytes:
    """Return the bytes of a key given as ``file:`` or ``data:`` URL, as the path of a file, or as base64.

    Raises:
        ConfigError: The text has another form, or the file cannot be read.
    """
    if text.startswith("file:"):
        url = urlsplit(text.strip())
        if url.netloc not in {"", "localhost"} or not url.path:
            raise ConfigError(f"{setting}: invalid file URL; use file:///path")
        return _read_file(setting, Path(unquote(url.path)))
    if text.startswith("data:"):
        match = _DATA_URL.fullmatch(text)
        if match is None:
            raise ConfigError(f"{setting}: invalid data URL; use data:;base64,…")
        return _decode(setting, match["data"]) if match["base64"] else unquote_to_bytes(match["data"])
    if _is_file(text):
        return _read_file(setting, Path(text))
    return _decode(setting, text)


def secret_key_of(setting: str, text: str) -> bytes:
    """Return the bytes of a secret key in any form of :func:`read_key`.

    Raises:
        ConfigError: The text has another form, or the key is not a secret, or too short.
    """
    return _secret(read_key(setting, text))


def _read_file(setting: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{setting}: cannot read the key file {path}: {error.strerror}") from error


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # base64 text may be longer than any path
        return False


def _decode(setting: str, text: str) -> bytes:
    text = "".join(text.split()).rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ConfigError(f"{setting}: neither an existing file nor valid base64") from error


def _secret(key: bytes) -> bytes:
    if key.lstrip().startswith(b"-----BEGIN"):
        raise ConfigError("tokenSecretKey: a PEM key is not a secret; set it as tokenPublicKey")
    least = min(_SECRET_BYTES.values())
    if len(key) < least:
        raise ConfigError(
            f"tokenSecretKey: a key of {len(key)} bytes is not safe, the minimum is {least}; "
            f"create one with `afterglow tokens create-secret-key`"
        )
    return key


def _public_key(data: bytes) -> PublicKey:
    try:
        is_pem = data.lstrip().startswith(b"-----BEGIN")
        key = load_pem_public_key(data) if is_pem else load_der_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError("tokenPublicKey: not a valid public key in DER or PEM (SubjectPublicKeyInfo)") from error
    if not isinstance(key, rsa.RSAPublicKey | ec.EllipticCurvePublicKey):
        raise ConfigError("tokenPublicKey: neither an RSA nor an elliptic-curve key")
    return key


def _algorithms_of(key: PublicKey, configured: str) -> list[str]:
    """All algorithms of the key's kind, as in Pulsar, where ``tokenPublicAlg`` only selects the parser of the key."""
    if configured not in {*_RSA, *_CURVES.values()}:
        known = ", ".join((*_RSA, *_CURVES.values()))
        raise ConfigError(f"tokenPublicAlg: {configured!r} is not supported; use one of {known}")
    if isinstance(key, rsa.RSAPublicKey):
        if key.key_size < _RSA_BITS:
            raise ConfigError(f"tokenPublicKey: an RSA key of {key.key_size} bits is not safe; use {_RSA_BITS} or more")
        allowed = list(_RSA)
    elif key.curve.name in _CURVES:
        allowed = [_CURVES[key.curve.name]]
    else:
        raise ConfigError(f"tokenPublicKey: the curve {key.curve.name} is not supported; use {', '.join(_CURVES)}")
    if configured not in allowed:
        raise ConfigError(f"tokenPublicAlg: {configured} does not match tokenPublicKey; use {', '.join(allowed)}")
    return allowed


def _refused(message: str) -> Refused:
    return Refused(wire.AuthenticationError, message)
