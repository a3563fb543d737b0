"""The two SDK clients of a bucket: boto3 for everything but reading, obstore for reading.

boto3 can go on with another process's multipart upload, which obstore cannot; obstore reads a range with a fifth of
boto3's CPU time and without a copy into Python. Neither repeats a request by itself: that is
:mod:`afterglow.storage.retry`'s task, which knows the deadline.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from afterglow.errors import AccessDenied, MissingDependency

if TYPE_CHECKING:
    import boto3.session
    import obstore.store
    from mypy_boto3_s3 import S3Client

    from afterglow.storage.s3_options import S3Options

__all__ = ["S3Clients", "open_clients", "require_sdks"]

_CREDENTIAL_LIFE = timedelta(minutes=5)
"""obstore asks the SDK's chain again this often; boto3 renews expiring credentials well before that."""


@dataclass(frozen=True, slots=True)
class S3Clients:
    """The clients of one bucket in one process; both may be shared by threads."""

    writer: S3Client
    reader: obstore.store.S3Store


def require_sdks() -> None:
    """Refuse early, and without importing them, where the SDKs are absent.

    Raises:
        MissingDependency: boto3 or obstore is not installed.
    """
    absent = [name for name in ("boto3", "obstore") if find_spec(name) is None]
    if absent:
        raise MissingDependency.of_extra(f"s3:// needs {' and '.join(absent)}", "s3")


def open_clients(bucket: str, options: S3Options) -> S3Clients:
    """Open both clients; nothing is sent yet.

    Raises:
        AccessDenied: There are no credentials.
    """
    import boto3.session  # noqa: PLC0415 - an extra, and 0.3 s to import

    session = boto3.session.Session(
        aws_access_key_id=options.access_key,
        aws_secret_access_key=options.secret_key,
        aws_session_token=options.session_token,
        region_name=options.region,
    )
    if session.get_credentials() is None:
        raise AccessDenied(
            f"s3://{bucket}: no credentials found; set access_key and secret_key, "
            "or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile or role that the SDK finds"
        )
    endpoint = options.endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    path_style = options.path_style if options.path_style is not None else endpoint is not None
    writer = _open_writer(session, endpoint, options, path_style=path_style)
    reader = _open_reader(bucket, session, endpoint, options, writer.meta.region_name, path_style=path_style)
    return S3Clients(writer, reader)


def _open_writer(
    session: boto3.session.Session, endpoint: str | None, options: S3Options, *, path_style: bool
) -> S3Client:
    from botocore.config import Config  # noqa: PLC0415 - comes with boto3

    s3: dict[str, Any] = {"addressing_style": "path" if path_style else "auto"}
    if endpoint is None or endpoint.startswith("https://"):
        # TLS guards the body and our CRC32C rides with it; a SHA-256 of every part would cost more CPU than sending it.
        s3["payload_signing_enabled"] = False
    return session.client(
        "s3",
        endpoint_url=endpoint,
        config=Config(
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            connect_timeout=options.connect_timeout_s,
            read_timeout=options.read_timeout_s,
            retries={"total_max_attempts": 1, "mode": "standard"},
            max_pool_connections=options.max_connections,
            tcp_keepalive=True,
            user_agent_extra="afterglow",
            s3=s3,  # type: ignore[arg-type] # a TypedDict in the stubs
        ),
    )


def _open_reader(
    bucket: str,
    session: boto3.session.Session,
    endpoint: str | None,
    options: S3Options,
    region: str,
    *,
    path_style: bool,
) -> obstore.store.S3Store:
    from obstore.auth.boto3 import Boto3CredentialProvider  # noqa: PLC0415 - an extra
    from obstore.store import S3Store  # noqa: PLC0415 - an extra

    config: dict[str, Any] = {"region": region, "virtual_hosted_style_request": not path_style and "." not in bucket}
    if endpoint is not None:
        config["endpoint"] = endpoint
    return S3Store(
        bucket,
        config=config,  # type: ignore[arg-type] # a TypedDict in the stubs
        client_options={
            "allow_http": endpoint is not None and endpoint.startswith("http://"),
            "connect_timeout": timedelta(seconds=options.connect_timeout_s),
            "read_timeout": timedelta(seconds=options.read_timeout_s),
            "timeout": timedelta(seconds=options.timeout_s),
        },
        retry_config={"max_retries": 0},
        credential_provider=Boto3CredentialProvider(session, ttl=_CREDENTIAL_LIFE),
    )
