"""TLS for the ports that ask for it, with certificates that may be renewed while the broker runs.

One context serves all ports. At the start of a handshake it hands the connection over to a context with the newest
certificate, which was made from the files as a whole: a renewal that is half-written, or does not fit its key, is
logged and tried again later, and meanwhile the last good one is used.

Not promised: a choice among the cipher suites of TLS 1.3. OpenSSL's interface in Python cannot make it; all of them are
offered where ``tlsCiphers`` is empty or names one, none (and so no TLS 1.3) where it names only older ones.
"""

from __future__ import annotations

import logging
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from afterglow.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.config import BrokerConfig

log = logging.getLogger(__name__)

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
"""Older ones are broken, and OpenSSL refuses them by default."""
_TLS_1_3_SUITES: Final = frozenset({"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"})


def server_context(config: BrokerConfig, now_s: Callable[[], float] = time.monotonic) -> ssl.SSLContext | None:
    """Return the context of the TLS ports; None where none is open.

    Args:
        config: What to offer and where its files are.
        now_s: The clock that spaces looks for a renewed certificate, in seconds.

    Raises:
        ConfigError: A file is missing, unreadable or not what its setting promises, or a setting has an unknown value.
    """
    if config.broker_service_port_tls is None and config.web_service_port_tls is None:
        return None
    return _Renewing(config, now_s).context


class _Renewing:
    """Keeps the newest good certificate. Its methods belong to the thread that serves the ports."""

    def __init__(self, config: BrokerConfig, now_s: Callable[[], float]) -> None:
        self._config = config
        self._files = _Files.of(config)
        self._now_s = now_s
        self._checked_s = now_s()
        self._state = self._files.state()
        self._failed: object = None
        self.context = self._current = _build(config, self._files)
        self.context.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """Hand the connection over; OpenSSL asks this at every handshake, also where the client names no server."""
        now_s = self._now_s()
        if now_s - self._checked_s >= self._config.tls_cert_refresh_check_duration_sec:
            self._checked_s = now_s
            self._refresh()
        connection.context = self._current

    def _refresh(self) -> None:
        # The state is taken first: what changes while the files are read is seen at the next look.
        state = self._files.state()
        if state == self._state:
            return
        try:
            self._current = _build(self._config, self._files)
        except ConfigError as error:
            if state != self._failed:
                log.warning("the TLS certificate was not renewed, the last good one is still used: %s", error)
            self._failed = state
            return
        self._state, self._failed = state, None
        log.info("took the renewed TLS certificate of %s", self._files.certificate)


@dataclass(frozen=True, slots=True)
class _Files:
    certificate: Path
    key: Path
    trust: Path | None

    @classmethod
    def of(cls, config: BrokerConfig) -> _Files:
        if not config.tls_certificate_file_path or not config.tls_key_file_path:
            raise ConfigError("TLS needs both tlsCertificateFilePath and tlsKeyFilePath")
        trust = config.tls_trust_certs_file_path
        return cls(
            Path(config.tls_certificate_file_path), Path(config.tls_key_file_path), Path(trust) if trust else None
        )

    def state(self) -> tuple[tuple[int, int, int] | None, ...]:
        """What changes when a file is renewed, in place, by renaming, or by turning a symbolic link."""
        return tuple(_state(path) for path in (self.certificate, self.key, self.trust) if path is not None)


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _build(config: BrokerConfig, files: _Files) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    _set_versions(context, config.tls_protocols)
    _set_ciphers(context, config.tls_ciphers)
    _load_chain(context, files)
    _set_trust(context, files.trust, required=config.tls_require_trusted_client_cert_on_connect)
    return context


def _set_versions(context: ssl.SSLContext, names: tuple[str, ...]) -> None:
    for name in names:
        if name not in _VERSIONS:
            raise ConfigError(f"tlsProtocols: {name!r} is not offered; take {' or '.join(_VERSIONS)}")
    versions = [_VERSIONS[name] for name in names] or [*_VERSIONS.values()]
    context.minimum_version, context.maximum_version = min(versions), max(versions)


def _set_ciphers(context: ssl.SSLContext, names: tuple[str, ...]) -> None:
    if not names:
        return
    older = [name for name in names if name not in _TLS_1_3_SUITES]
    for name in older:
        try:
            # One at a time: of a list, OpenSSL drops silently what it does not know.
            context.set_ciphers(_openssl_name(name))
        except ssl.SSLError as error:
            raise ConfigError(f"tlsCiphers: {name!r} is no cipher suite that this machine's OpenSSL offers") from error
    if older:
        context.set_ciphers(":".join(map(_openssl_name, older)))
        if len(older) == len(names):
            context.maximum_version = ssl.TLSVersion.TLSv1_2
    else:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    if context.minimum_version > context.maximum_version:
        raise ConfigError("tlsCiphers: none of the cipher suites belongs to a version that tlsProtocols offers")


def _openssl_name(name: str) -> str:
    """OpenSSL's name of a suite that Java names ``TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256``."""
    exchange, found, cipher = name.removeprefix("TLS_").partition("_WITH_")
    if not found:
        return name
    cipher = cipher.replace("AES_128", "AES128").replace("AES_256", "AES256").replace("_CBC", "")
    cipher = cipher.replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    return (cipher if exchange == "RSA" else f"{exchange}_{cipher}").replace("_", "-")


def _load_chain(context: ssl.SSLContext, files: _Files) -> None:
    _check_readable("tlsCertificateFilePath", files.certificate)
    _check_readable("tlsKeyFilePath", files.key)
    try:
        context.load_cert_chain(files.certificate, files.key, password=_refuse_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(
                f"tlsKeyFilePath: the key of {files.key} does not belong to the certificate of {files.certificate} "
                f"(tlsCertificateFilePath)"
            ) from error
        raise ConfigError(
            f"tlsCertificateFilePath {files.certificate} or tlsKeyFilePath {files.key} is no PEM file of its kind: "
            f"{error.reason or error}"
        ) from error
    except OSError as error:
        raise ConfigError(f"the TLS certificate {files.certificate} cannot be read: {error.strerror}") from error


def _set_trust(context: ssl.SSLContext, trust: Path | None, *, required: bool) -> None:
    if trust is None:
        if required:
            raise ConfigError(
                "tlsRequireTrustedClientCertOnConnect needs tlsTrustCertsFilePath, the authorities to trust"
            )
        return
    _check_readable("tlsTrustCertsFilePath", trust)
    try:
        context.load_verify_locations(trust)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"tlsTrustCertsFilePath: {trust} holds no PEM certificates") from error
    context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL


def _check_readable(setting: str, path: Path) -> None:
    """OpenSSL does not say which of two files it could not read."""
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise ConfigError(f"{setting}: cannot read {path}: {error.strerror}") from error


def _refuse_password() -> str:
    """Without this OpenSSL would ask for the passphrase on the terminal, and wait."""
    raise ConfigError(
        "tlsKeyFilePath: the key is encrypted: store it without a passphrase, readable by the broker only"
    )
