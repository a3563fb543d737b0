"""How to reach a bucket."""

from __future__ import annotations

from dataclasses import dataclass, field

from afterglow.errors import ConfigError

__all__ = ["S3Options"]

_ENCRYPTIONS = ("AES256", "aws:kms", "aws:kms:dsse")


@dataclass(frozen=True, slots=True)
class S3Options:
    """Options of an S3 store. What is not given comes from the SDK's own chain: environment, profile, instance role.

    Raises:
        ConfigError: Options contradict each other.
    """

    endpoint: str | None = None
    """URL of any S3-compatible service; else ``AWS_ENDPOINT_URL_S3``, ``AWS_ENDPOINT_URL``, else Amazon's own."""
    region: str | None = None
    """Region of the bucket; else ``AWS_REGION`` or the profile's."""
    access_key: str | None = field(default=None, repr=False)
    """Access key id; else ``AWS_ACCESS_KEY_ID`` and so on."""
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    """Of temporary credentials."""
    sse: str | None = None
    """Encryption at rest that every write asks for: ``AES256``, ``aws:kms`` or ``aws:kms:dsse``."""
    sse_kms_key_id: str | None = None
    """Key of ``aws:kms``; else the account's default key."""
    path_style: bool | None = None
    """Bucket in the path instead of the host name; by default true with an endpoint of your own."""
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 60.0
    """Longest silence of the store within a request."""
    timeout_s: float = 300.0
    """Longest time of a whole ranged read."""
    max_connections: int = 32
    """Connections for writes that are kept open; more threads than this wait for one."""

    def __post_init__(self) -> None:
        if self.endpoint is not None and not self.endpoint.startswith(("http://", "https://")):
            raise ConfigError(f"endpoint {self.endpoint!r} is no URL; write http://host:port or https://host")
        if (self.access_key is None) != (self.secret_key is None):
            raise ConfigError("access_key and secret_key must be given together, or neither")
        if self.session_token is not None and self.access_key is None:
            raise ConfigError("session_token needs access_key and secret_key beside it")
        if self.sse is not None and self.sse not in _ENCRYPTIONS:
            raise ConfigError(f"sse {self.sse!r} is unknown; use one of {', '.join(_ENCRYPTIONS)}")
        if self.sse_kms_key_id is not None and not (self.sse or "").startswith("aws:kms"):
            raise ConfigError("sse_kms_key_id needs sse=aws:kms")
        for name in ("connect_timeout_s", "read_timeout_s", "timeout_s", "max_connections"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be above 0")
