"""S3 SDKs: options of a bucket, its two clients, request bodies, and the mapping of errors.

obstore reads, boto3 does everything else: boto3 can continue another process's multipart upload, which obstore cannot;
obstore reads a range with a fifth of boto3's CPU time and without a copy into Python. Their own retries are disabled:
:mod:`afterglow.storage.retry` retries, since it knows the deadline.

Error messages name the bucket and the setting to check; they never contain credentials or request headers.
"""

from __future__ import annotations

import io
import os
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from afterglow.errors import (
    AccessDenied,
    AfterglowError,
    BucketMissing,
    ChecksumMismatch,
    ConfigError,
    MissingDependency,
    NotSupported,
    ObjectExists,
    ObjectMissing,
    PartMismatch,
    RangeInvalid,
    StorageError,
    StoreThrottled,
    StoreTimeout,
    StoreUnavailable,
    UploadMissing,
)
from afterglow.storage.store import as_view

if TYPE_CHECKING:
    from collections.abc import Iterator

    import boto3.session
    import obstore.store
    from mypy_boto3_s3 import S3Client

    from afterglow.storage.store import Data

_ENCRYPTIONS = ("AES256", "aws:kms", "aws:kms:dsse")


@dataclass(frozen=True, slots=True)
class S3Options:
    """Options of an S3 store. Defaults come from the SDK's own chain: environment, profile, instance role.

    Raises:
        ConfigError: Options contradict each other.
    """

    endpoint: str | None = None
    """URL of an S3-compatible service; default ``AWS_ENDPOINT_URL_S3``, ``AWS_ENDPOINT_URL``, then Amazon's own."""
    region: str | None = None
    """Region of the bucket; default ``AWS_REGION`` or the profile's."""
    access_key: str | None = field(default=None, repr=False)
    """Access key id; default ``AWS_ACCESS_KEY_ID`` and so on."""
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    """Session token of temporary credentials."""
    sse: str | None = None
    """Encryption at rest that every write requests: ``AES256``, ``aws:kms`` or ``aws:kms:dsse``."""
    sse_kms_key_id: str | None = None
    """Key of ``aws:kms``; default is the account's default key."""
    path_style: bool | None = None
    """Bucket in the path instead of the host name; by default true with a custom endpoint."""
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 60.0
    """Longest wait for the next bytes of a response."""
    timeout_s: float = 300.0
    """Longest duration of a whole ranged read."""
    max_connections: int = 32
    """Open connections for writes; further threads wait for one."""

    def __post_init__(self) -> None:
        if self.endpoint is not None and not self.endpoint.startswith(("http://", "https://")):
            raise ConfigError(f"invalid endpoint {self.endpoint!r}; write http://host:port or https://host")
        if (self.access_key is None) != (self.secret_key is None):
            raise ConfigError("set access_key and secret_key together, or neither")
        if self.session_token is not None and self.access_key is None:
            raise ConfigError("session_token needs access_key and secret_key")
        if self.sse is not None and self.sse not in _ENCRYPTIONS:
            raise ConfigError(f"unknown sse {self.sse!r}; use one of {', '.join(_ENCRYPTIONS)}")
        if self.sse_kms_key_id is not None and not (self.sse or "").startswith("aws:kms"):
            raise ConfigError("sse_kms_key_id needs sse=aws:kms")
        for name in ("connect_timeout_s", "read_timeout_s", "timeout_s", "max_connections"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be above 0")


_CREDENTIAL_LIFE = timedelta(minutes=5)
"""Interval at which obstore refreshes credentials from boto3, which renews expiring ones well before they expire."""


@dataclass(frozen=True, slots=True)
class S3Clients:
    """The clients of one bucket in one process; both are thread-safe."""

    writer: S3Client
    reader: obstore.store.S3Store


def require_sdks() -> None:
    """Check that the SDKs are installed, without importing them.

    Raises:
        MissingDependency: boto3 or obstore is not installed.
    """
    missing = [name for name in ("boto3", "obstore") if find_spec(name) is None]
    if missing:
        raise MissingDependency.of_extra(f"s3:// needs {' and '.join(missing)}", "s3")


def open_clients(bucket: str, options: S3Options) -> S3Clients:
    """Open both clients; no request is sent yet.

    Raises:
        AccessDenied: No credentials found.
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
        # TLS and the CRC32C protect the body; a SHA-256 of every part would cost more CPU than sending it.
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


def body_of(data: Data) -> Any:
    """Return the data as boto3 accepts it: ``bytes`` or ``bytearray`` unchanged, else a file over the view."""
    view = as_view(data)
    whole = view.obj
    if isinstance(whole, bytes | bytearray) and len(whole) == view.nbytes:
        return whole
    return _ViewFile(view)


class _ViewFile(io.RawIOBase):
    """A file over a buffer whose reads are views of it. boto3 seeks to find its length, and after signing it."""

    def __init__(self, view: memoryview) -> None:
        super().__init__()
        self._view = view
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> Any:
        end = None if size is None or size < 0 else self._position + size
        data = self._view[self._position : end]
        self._position += data.nbytes
        return data

    def readinto(self, buffer: Any, /) -> int:
        data = self.read(len(buffer))
        buffer[: data.nbytes] = data
        return int(data.nbytes)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._view.nbytes}[whence]
        self._position = origin + offset
        return self._position

    def tell(self) -> int:
        return self._position


_KINDS: dict[str, type[AfterglowError]] = {
    "NoSuchKey": ObjectMissing,
    "NoSuchUpload": UploadMissing,
    "NoSuchBucket": BucketMissing,
    "InvalidBucketName": BucketMissing,
    "PermanentRedirect": BucketMissing,
    "PreconditionFailed": ObjectExists,
    "InvalidRange": RangeInvalid,
    "InvalidPart": PartMismatch,
    "InvalidPartOrder": PartMismatch,
    "EntityTooSmall": PartMismatch,
    "BadDigest": ChecksumMismatch,
    "InvalidDigest": ChecksumMismatch,
    "XAmzContentChecksumMismatch": ChecksumMismatch,
    "XAmzContentSHA256Mismatch": ChecksumMismatch,
    "NotImplemented": NotSupported,
    "MethodNotAllowed": NotSupported,
    # A concurrent conditional write of the same key: nothing was changed, and S3 asks for a retry.
    "ConditionalRequestConflict": StoreThrottled,
    "OperationAborted": StoreThrottled,
    "SlowDown": StoreThrottled,
    "ServiceUnavailable": StoreThrottled,
    "Throttling": StoreThrottled,
    "ThrottlingException": StoreThrottled,
    "RequestLimitExceeded": StoreThrottled,
    "TooManyRequests": StoreThrottled,
    "RequestTimeout": StoreTimeout,
}

# Responses to HEAD have no body, and so only a status.
_STATUSES: dict[int, type[AfterglowError]] = {
    301: BucketMissing,
    401: AccessDenied,
    403: AccessDenied,
    404: ObjectMissing,
    412: ObjectExists,
    416: RangeInvalid,
    429: StoreThrottled,
    501: NotSupported,
    503: StoreThrottled,
}

_CURES = {
    "NoSuchBucket": "create the bucket, or correct its name in the tier's address, endpoint or region",
    "InvalidBucketName": "correct the bucket's name in the tier's address",
    "PermanentRedirect": "the bucket is in another region: set region",
    "InvalidAccessKeyId": "the store does not know the access key: check access_key (AWS_ACCESS_KEY_ID) and endpoint",
    "XAdminUserNotFound": "the store does not know the access key: check access_key and endpoint",  # versitygw
    "SignatureDoesNotMatch": "check secret_key (AWS_SECRET_ACCESS_KEY), then region and endpoint",
    "AuthorizationHeaderMalformed": "check region, then access_key",
    "ExpiredToken": "the credentials have expired: renew session_token (AWS_SESSION_TOKEN)",
    "InvalidToken": "check session_token (AWS_SESSION_TOKEN)",
    "RequestTimeTooSkewed": "set this machine's clock",
}
_DENIED = frozenset(_CURES) - {"NoSuchBucket", "InvalidBucketName", "PermanentRedirect"}
_DENIED_CURE = (
    "allow it to these credentials (access_key, profile or role) in the bucket's policy; "
    "if the policy demands encryption, set sse"
)

_OBSTORE_STATUS = re.compile(r"status code: (\d{3})")
_OBSTORE_CODE = re.compile(r"<Code>(\w+)</Code>")
_OBSTORE_TIMEOUT = re.compile(r"kind: Timeout|TimedOut|operation timed out")


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """An error response of S3."""

    code: str
    """S3's own code; empty, or the status as text, if the response has none."""
    status: int
    """HTTP status; 0 if unknown."""
    message: str


def error_for(response: ErrorResponse, what: str, *, writes: bool) -> AfterglowError:
    """Return the error for a response to the request ``what``, such as ``s3://bucket: put of 'key'``."""
    code, status = response.code, response.status
    detail = f"{code} {response.message}".strip() or f"status {status}"
    kind = _KINDS.get(code)
    if kind is None and code in _DENIED:
        kind = AccessDenied
    if kind is None:
        kind = _STATUSES.get(status)
    if kind is None and status >= 500:
        # An internal error of the store, possibly after the request took effect.
        kind = StoreTimeout if writes else StoreUnavailable
    cure = _CURES.get(code, _DENIED_CURE if kind is AccessDenied else "")
    return (kind or StorageError)(f"{what}: {detail}" + (f"; {cure}" if cure else ""))


@contextmanager
def boto_errors(what: str, *, writes: bool) -> Iterator[None]:
    """Convert boto3's errors into Afterglow's."""
    from botocore import exceptions as boto  # noqa: PLC0415 - an extra

    try:
        yield
    except boto.ClientError as error:
        detail = error.response.get("Error", {})
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        response = ErrorResponse(str(detail.get("Code", "")), status, str(detail.get("Message", "")))
        raise error_for(response, what, writes=writes) from error
    except (boto.EndpointConnectionError, boto.ConnectTimeoutError, boto.ProxyConnectionError, boto.SSLError) as error:
        raise StoreUnavailable(f"{what}: {error}; check endpoint, network and proxy") from error
    except (boto.NoCredentialsError, boto.PartialCredentialsError, boto.CredentialRetrievalError) as error:
        raise AccessDenied(f"{what}: {error}; set access_key and secret_key, or a profile or role") from error
    except (boto.ReadTimeoutError, boto.HTTPClientError) as error:
        # The request was sent and got no response: the effect of a write is unknown.
        raise (StoreTimeout if writes else StoreUnavailable)(f"{what}: {error}") from error
    except boto.BotoCoreError as error:
        raise StorageError(f"{what}: {error}") from error


@contextmanager
def obstore_errors(what: str) -> Iterator[None]:
    """Convert the errors of obstore's reads into Afterglow's. obstore reports status and code only in its text."""
    from obstore.exceptions import BaseError  # noqa: PLC0415 - an extra

    try:
        yield
    except AfterglowError:
        raise
    except (BaseError, FileNotFoundError) as error:
        text = str(error)
        status, code = _OBSTORE_STATUS.search(text), _OBSTORE_CODE.search(text)
        summary = text.split("\n", 1)[0].split(": <?xml", 1)[0]
        if status is not None:
            response = ErrorResponse(code.group(1) if code else "", int(status.group(1)), summary)
            raise error_for(response, what, writes=False) from error
        if _OBSTORE_TIMEOUT.search(text):
            raise StoreTimeout(f"{what}: {summary}; check endpoint, or raise timeout_s") from error
        raise StoreUnavailable(f"{what}: {summary}; check endpoint, network and proxy") from error
