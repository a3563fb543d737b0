"""TLS contexts of the ports, with certificates that are reloaded while the broker runs.

One context serves all ports. At the start of a handshake it passes the connection to a context with the newest
certificate. A renewal that is half-written, or does not match its key, is logged and retried later; until then the last
valid certificate is used.

Single cipher suites of TLS 1.3 cannot be selected with Python's ``ssl``: all of them are offered if ``tlsCiphers`` is
empty or names one of them, and TLS 1.3 is not offered if ``tlsCiphers`` names older suites only.
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
"""Older versions are insecure, and OpenSSL refuses them by default."""
_TLS_1_3_SUITES: Final = frozenset({"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"})


def server_context(config: BrokerConfig, now_s: Callable[[], float] = time.monotonic) -> ssl.SSLContext | None:
    """Return the context of the TLS ports; None if no such port is configured.

    Args:
        config: The settings.
        now_s: The clock for the interval between checks for a renewed certificate, in seconds.

    Raises:
        ConfigError: A file is missing, unreadable or not valid for its setting, or a setting has an unknown value.
    """
    if config.broker_service_port_tls is None and config.web_service_port_tls is None:
        return None
    return _CertificateReloader(config, now_s).context


class _CertificateReloader:
    """Provides the newest valid certificate. Belongs to the event loop's thread."""

    def __init__(self, config: BrokerConfig, now_s: Callable[[], float]) -> None:
        self._config = config
        self._files = _TlsFiles.of(config)
        self._now_s = now_s
        self._checked_s = now_s()
        self._version = self._files.version()
        self._failed_version: object = None
        self.context = self._current = _build(config, self._files)
        self.context.sni_callback = self._on_handshake

    def _on_handshake(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """Set the current context; OpenSSL calls this in every handshake, also without a server name."""
        now_s = self._now_s()
        if now_s - self._checked_s >= self._config.tls_cert_refresh_check_duration_sec:
            self._checked_s = now_s
            self._reload()
        connection.context = self._current

    def _reload(self) -> None:
        # The version is read before the files, so that the next check notices a change in between.
        version = self._files.version()
        if version == self._version:
            return
        try:
            self._current = _build(self._config, self._files)
        except ConfigError as error:
            if version != self._failed_version:
                log.warning("cannot reload the TLS certificate, the last valid one is still used: %s", error)
            self._failed_version = version
            return
        self._version, self._failed_version = version, None
        log.info("reloaded the TLS certificate %s", self._files.certificate)


@dataclass(frozen=True, slots=True)
class _TlsFiles:
    certificate: Path
    key: Path
    trust: Path | None

    @classmethod
    def of(cls, config: BrokerConfig) -> _TlsFiles:
        if not config.tls_certificate_file_path or not config.tls_key_file_path:
            raise ConfigError("TLS needs both tlsCertificateFilePath and tlsKeyFilePath")
        trust = config.tls_trust_certs_file_path
        return cls(
            Path(config.tls_certificate_file_path), Path(config.tls_key_file_path), Path(trust) if trust else None
        )

    def version(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Identifies the content: changes when a file is rewritten, renamed over, or its symbolic link is moved."""
        return tuple(_version(path) for path in (self.certificate, self.key, self.trust) if path is not None)


def _version(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _build(config: BrokerConfig, files: _TlsFiles) -> ssl.SSLContext:
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
            raise ConfigError(f"tlsProtocols: {name!r} is not supported; use {' or '.join(_VERSIONS)}")
    versions = [_VERSIONS[name] for name in names] or [*_VERSIONS.values()]
    context.minimum_version, context.maximum_version = min(versions), max(versions)


def _set_ciphers(context: ssl.SSLContext, names: tuple[str, ...]) -> None:
    if not names:
        return
    older = [name for name in names if name not in _TLS_1_3_SUITES]
    for name in older:
        try:
            # One at a time: OpenSSL silently ignores unknown names in a list.
            context.set_ciphers(_openssl_name(name))
        except ssl.SSLError as error:
            raise ConfigError(
                f"tlsCiphers: unknown cipher suite {name!r}; see `openssl ciphers` for those of this machine"
            ) from error
    if older:
        context.set_ciphers(":".join(map(_openssl_name, older)))
        if len(older) == len(names):
            context.maximum_version = ssl.TLSVersion.TLSv1_2
    else:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    if context.minimum_version > context.maximum_version:
        raise ConfigError(
            "tlsCiphers: no cipher suite belongs to a version of tlsProtocols; add one, or another version"
        )


def _openssl_name(name: str) -> str:
    """OpenSSL's name of a suite in Java's form, such as ``TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256``."""
    exchange, found, cipher = name.removeprefix("TLS_").partition("_WITH_")
    if not found:
        return name
    cipher = cipher.replace("AES_128", "AES128").replace("AES_256", "AES256").replace("_CBC", "")
    cipher = cipher.replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    return (cipher if exchange == "RSA" else f"{exchange}_{cipher}").replace("_", "-")


def _load_chain(context: ssl.SSLContext, files: _TlsFiles) -> None:
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
            f"tlsCertificateFilePath {files.certificate} or tlsKeyFilePath {files.key} is not a valid PEM file: "
            f"{error.reason or error}"
        ) from error
    except OSError as error:
        raise ConfigError(f"the TLS certificate {files.certificate} cannot be read: {error.strerror}") from error


def _set_trust(context: ssl.SSLContext, trust: Path | None, *, required: bool) -> None:
    if trust is None:
        if required:
            raise ConfigError(
                "tlsRequireTrustedClientCertOnConnect needs trusted authorities; set tlsTrustCertsFilePath"
            )
        return
    _check_readable("tlsTrustCertsFilePath", trust)
    try:
        context.load_verify_locations(trust)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"tlsTrustCertsFilePath: no PEM certificates found in {trust}") from error
    context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL


def _check_readable(setting: str, path: Path) -> None:
    """Report an unreadable file by its setting, since OpenSSL does not say which of two files it could not read."""
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise ConfigError(f"{setting}: cannot read {path}: {error.strerror}") from error


def _refuse_password() -> str:
    """Refuse an encrypted key: OpenSSL would ask for the passphrase on the terminal, and wait."""
    raise ConfigError(
        "tlsKeyFilePath: the key is encrypted; store it without a passphrase, readable by the broker only"
    )
