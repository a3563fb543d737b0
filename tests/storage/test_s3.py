"""What the S3 store adds to the contract: checksums, encryption, and the meaning of a store's errors.

A proxy in front of moto plays the stores that moto is not: older, overloaded, or dying in the middle of an answer.
"""

from __future__ import annotations

import http.client
import threading
import uuid
from base64 import b64encode
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest
from crc32c import crc32c

from afterglow.errors import (
    AccessDenied,
    BucketMissing,
    ChecksumMismatch,
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
from afterglow.storage import RetryingStore, RetryPolicy, S3Options, open_store, s3
from afterglow.storage.s3 import S3Store
from afterglow.storage.s3_client import ErrorResponse, body_of, error_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.servers import S3Server

    from afterglow.errors import (
        AfterglowError,
    )

_BODY = bytes(range(256)) * 8


class _Proxy(ThreadingHTTPServer):
    """Forwards to moto, unless its rule names a trick for the request."""

    daemon_threads = True

    def __init__(self, target: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = target.removeprefix("http://")
        self.rule: Callable[[_Handler, bytes], str] = lambda _request, _body: ""
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.released = threading.Event()


class _Handler(BaseHTTPRequestHandler):
    server: _Proxy
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Stay silent."""

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.seen.append((self.command, self.path, {key.lower(): value for key, value in self.headers.items()}))
        trick = self.server.rule(self, body)
        if trick.isdigit():
            self._refuse(int(trick), {"501": "NotImplemented", "503": "SlowDown", "400": "MalformedXML"}.get(trick, ""))
        elif trick == "hang":
            self.server.released.wait(60)
            self.close_connection = True
        else:
            self._forward(body, trick)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle  # noqa: N815 - the library's names

    def _refuse(self, status: int, code: str) -> None:
        text = f"<Error><Code>{code}</Code><Message>sent by the proxy</Message></Error>".encode() if code else b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def _forward(self, body: bytes, trick: str) -> None:
        connection = http.client.HTTPConnection(self.server.target)
        headers = {key: value for key, value in self.headers.items() if key.lower() != "expect"}
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        data = answer.read()
        if trick == "drop":
            self.close_connection = True
            return
        self.send_response(answer.status)
        for key, value in answer.getheaders():
            if key.lower() not in {"connection", "transfer-encoding", "date", "server"}:
                self.send_header(key, value)
        self.end_headers()
        if trick == "truncate":
            self.close_connection = True
            data = data[: len(data) // 2]
        self.wfile.write(data)


@pytest.fixture
def proxy(moto: S3Server) -> Iterator[_Proxy]:
    with _Proxy(moto.endpoint) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.released.set()
            server.shutdown()
            thread.join()


@pytest.fixture
def bucket(moto: S3Server) -> str:
    name = f"bucket-{uuid.uuid4()}"
    moto.create_bucket(name)
    return name


@pytest.fixture
def store(proxy: _Proxy, bucket: str) -> S3Store:
    endpoint = f"http://127.0.0.1:{proxy.server_address[1]}"
    return S3Store(bucket, S3Options(endpoint, "us-east-1", "access", "secret", read_timeout_s=5.0, timeout_s=5.0))


def _crc(data: bytes) -> str:
    return b64encode(crc32c(data).to_bytes(4, "big")).decode()


@contextmanager
def _trick(proxy: _Proxy, trick: str, *methods: str) -> Iterator[None]:
    proxy.rule = lambda request, _: trick if request.command in methods else ""
    yield
    proxy.rule = lambda _request, _body: ""


# --- what is sent ----------------------------------------------------------------------------------------------------


def test_every_write_carries_our_checksum(proxy: _Proxy, store: S3Store) -> None:
    store.put("a", _BODY)
    upload = store.create_upload("b")
    store.complete_upload(upload, [store.upload_part(upload, 1, memoryview(_BODY)[5:])])
    put, create, part, _ = proxy.seen
    assert put[2]["x-amz-checksum-crc32c"] == _crc(_BODY)
    assert create[2]["x-amz-checksum-algorithm"] == "CRC32C"
    assert part[2]["x-amz-checksum-crc32c"] == _crc(_BODY[5:])
    assert "content-md5" not in put[2] | part[2]
    assert bytes(store.get("b")) == _BODY[5:]


def test_a_store_without_checksums_is_noticed_once_and_then_spared_them(proxy: _Proxy, store: S3Store) -> None:
    def old(request: _Handler, body: bytes) -> str:
        if b"ChecksumCRC32C" in body:
            return "400"
        return "501" if any("x-amz-checksum" in key.lower() for key in request.headers) else ""

    proxy.rule = old
    store.put("a", _BODY)
    store.put("b", memoryview(_BODY)[1:])
    assert len(proxy.seen) == 3  # one response
    upload = store.create_upload("c")
    store.complete_upload(upload, [store.upload_part(upload, 1, _BODY)])
    assert len(proxy.seen) == 6  # none
    assert bytes(store.get("b")) == _BODY[1:]
    assert store.get("c") == _BODY


def test_an_upload_without_checksums_is_continued_without_them(proxy: _Proxy, store: S3Store, bucket: str) -> None:
    plain = S3Store(bucket, store._options)
    plain._plain.add("")
    upload = plain.create_upload("a")
    proxy.rule = lambda request, body: (
        "400" if b"ChecksumCRC32C" in body or "x-amz-checksum-crc32c" in request.headers else ""
    )
    store.complete_upload(upload, [store.upload_part(upload, 1, _BODY)])
    assert store.get("a") == _BODY
    proxy.rule = lambda _request, _body: ""
    proxy.seen.clear()
    store.put("b", _BODY)
    assert "x-amz-checksum-crc32c" in proxy.seen[0][2]  # that one upload tells nothing about the store


def test_an_error_that_is_not_about_the_checksum_stays(proxy: _Proxy, store: S3Store) -> None:
    with _trick(proxy, "501", "PUT"), pytest.raises(NotSupported):
        store.put("a", _BODY)
    proxy.seen.clear()
    store.put("a", _BODY)
    assert "x-amz-checksum-crc32c" in proxy.seen[0][2]


@pytest.mark.pulsar
def test_bytes_that_do_not_fit_their_checksum_are_refused(
    versitygw_bucket: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = str(uuid.uuid4())
    upload = versitygw_bucket.create_upload(key)
    monkeypatch.setattr(s3, "crc32c", lambda data: crc32c(data) ^ 1)
    with pytest.raises(ChecksumMismatch):
        versitygw_bucket.put(key, _BODY)
    with pytest.raises(ChecksumMismatch):
        versitygw_bucket.upload_part(upload, 1, _BODY)
    versitygw_bucket.abort_upload(upload)


def test_encryption_is_asked_for_with_every_object(proxy: _Proxy, store: S3Store, bucket: str) -> None:
    endpoint = store._options.endpoint
    options = {"access_key": "a", "secret_key": "b", "region": "us-east-1", "endpoint": endpoint}
    encrypting = open_store(f"s3://{bucket}", sse="aws:kms", sse_kms_key_id="key-1", **options)
    encrypting.put("a", _BODY)
    upload = encrypting.create_upload("b")
    encrypting.upload_part(upload, 1, _BODY)
    put, create, part = (headers for _, _, headers in proxy.seen)
    for headers in (put, create):
        assert headers["x-amz-server-side-encryption"] == "aws:kms"
        assert headers["x-amz-server-side-encryption-aws-kms-key-id"] == "key-1"
    assert "x-amz-server-side-encryption" not in part


def test_a_buffer_is_handed_on_without_a_copy() -> None:
    data = bytearray(_BODY)
    assert body_of(data) is data
    assert body_of(_BODY) is _BODY
    assert body_of(memoryview(data)) is data
    file = body_of(memoryview(data)[10:20])
    assert file.read(3).obj is data
    assert bytes(file.read()) == _BODY[13:20]
    assert (file.seek(0, 2), file.tell(), bytes(file.read())) == (10, 10, b"")
    target = bytearray(4)
    file.seek(8)
    assert (file.readinto(target), bytes(target)) == (2, _BODY[18:20] + b"\0\0")


def test_a_store_without_bulk_delete_is_noticed_once(proxy: _Proxy, store: S3Store) -> None:
    for key in "abcd":
        store.put(key, b"")
    with _trick(proxy, "501", "POST"):
        proxy.seen.clear()
        store.delete(["a", "b"])
        store.delete(["c", "missing"])
    assert [method for method, _, _ in proxy.seen] == ["POST", "DELETE", "DELETE", "DELETE", "DELETE"]
    assert [info.key for info in store.list()] == ["d"]


# --- what errors mean ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "status", "kind", "named"),
    [
        ("NoSuchKey", 404, ObjectMissing, ""),
        ("404", 404, ObjectMissing, ""),
        ("NoSuchUpload", 404, UploadMissing, ""),
        ("NoSuchBucket", 404, BucketMissing, "tier's address"),
        ("PermanentRedirect", 301, BucketMissing, "set region"),
        ("PreconditionFailed", 412, ObjectExists, ""),
        ("412", 412, ObjectExists, ""),
        ("InvalidRange", 416, RangeInvalid, ""),
        ("InvalidPart", 400, PartMismatch, ""),
        ("InvalidPartOrder", 400, PartMismatch, ""),
        ("EntityTooSmall", 400, PartMismatch, ""),
        ("BadDigest", 400, ChecksumMismatch, ""),
        ("SlowDown", 503, StoreThrottled, ""),
        ("", 503, StoreThrottled, ""),
        ("", 429, StoreThrottled, ""),
        ("ConditionalRequestConflict", 409, StoreThrottled, ""),
        ("AccessDenied", 403, AccessDenied, "set sse"),
        ("403", 403, AccessDenied, "policy"),
        ("InvalidAccessKeyId", 403, AccessDenied, "access_key"),
        ("SignatureDoesNotMatch", 403, AccessDenied, "secret_key"),
        ("AuthorizationHeaderMalformed", 400, AccessDenied, "region"),
        ("ExpiredToken", 400, AccessDenied, "session_token"),
        ("RequestTimeTooSkewed", 403, AccessDenied, "clock"),
        ("NotImplemented", 501, NotSupported, ""),
        ("SomethingElse", 400, StorageError, "SomethingElse"),
    ],
)
def test_each_answer_has_its_error(code: str, status: int, kind: type[AfterglowError], named: str) -> None:
    error = error_for(ErrorResponse(code, status, "message"), "s3://bucket: put of 'a'", writes=True)
    assert type(error) is kind
    assert "s3://bucket: put of 'a'" in str(error)
    assert named in str(error)


@pytest.mark.parametrize("status", [500, 502, 504])
def test_a_store_that_failed_inside_leaves_a_write_unknown_and_a_read_to_be_tried_again(status: int) -> None:
    response = ErrorResponse("InternalError", status, "message")
    assert type(error_for(response, "put", writes=True)) is StoreTimeout
    assert type(error_for(response, "get", writes=False)) is StoreUnavailable


def test_throttling_is_reported_by_either_client(proxy: _Proxy, store: S3Store) -> None:
    with _trick(proxy, "503", "GET", "PUT", "HEAD", "POST"):
        for call in (
            lambda: store.get("a"),
            lambda: store.put("a", b""),
            lambda: store.head("a"),
            lambda: list(store.list()),
            lambda: store.delete(["a"]),
        ):
            with pytest.raises(StoreThrottled):
                call()


def test_a_write_whose_answer_is_lost_is_of_unknown_outcome(proxy: _Proxy, store: S3Store) -> None:
    with _trick(proxy, "drop", "PUT"), pytest.raises(StoreTimeout):
        store.put("a", _BODY)
    assert store.get("a") == _BODY


def test_a_write_without_answer_ends_at_its_time_out(proxy: _Proxy, bucket: str) -> None:
    endpoint = f"http://127.0.0.1:{proxy.server_address[1]}"
    hasty = S3Store(bucket, S3Options(endpoint, "us-east-1", "a", "b", read_timeout_s=0.2, timeout_s=0.2))
    with _trick(proxy, "hang", "PUT", "GET"):
        with pytest.raises(StoreTimeout):
            hasty.put("a", _BODY)
        with pytest.raises(StoreTimeout, match="timeout_s"):
            hasty.get("a")


def test_a_body_cut_short_is_an_error(proxy: _Proxy, store: S3Store) -> None:
    store.put("a", _BODY)
    with _trick(proxy, "truncate", "GET"), pytest.raises(StoreUnavailable):
        store.get("a", 0, 1_000)


def test_retries_settle_what_lost_answers_left_open(proxy: _Proxy, store: S3Store) -> None:
    lost: set[tuple[str, str]] = set()

    def lose_each_first_answer(request: _Handler, _: bytes) -> str:
        name = (request.command, request.path.partition("?")[0])
        if name in lost or "uploads" in request.path:
            return ""
        lost.add(name)
        return "drop"

    proxy.rule = lose_each_first_answer
    retrying = RetryingStore(store, RetryPolicy(30.0, 0.001, 0.001))
    retrying.put("a", _BODY, metadata={"k": "v"}, if_absent=True)
    upload = retrying.create_upload("b")
    retrying.complete_upload(upload, [retrying.upload_part(upload, 1, _BODY)])
    assert retrying.get("a") == _BODY
    assert retrying.get("b") == _BODY
    assert {("PUT", f"/{store.url[5:]}/a"), ("POST", f"/{store.url[5:]}/b")} <= lost


def test_a_missing_bucket_is_reported_by_reads_and_writes(moto: S3Server) -> None:
    store = S3Store("no-such-bucket", S3Options(moto.endpoint, moto.region, "a", "b"))
    for call in (lambda: store.put("a", b""), lambda: store.get("a"), lambda: list(store.list())):
        with pytest.raises(BucketMissing, match=r"s3://no-such-bucket.*address"):
            call()


def test_an_endpoint_without_a_server_is_unavailable() -> None:
    store = S3Store("bucket", S3Options("http://127.0.0.1:1", "us-east-1", "a", "b"))
    for call in (lambda: store.put("a", b""), lambda: store.get("a")):
        with pytest.raises(StoreUnavailable, match="check endpoint") as raised:
            call()
        assert not isinstance(raised.value, StoreTimeout)  # nothing was sent


def test_missing_credentials_are_reported_with_the_names_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nonexistent")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(AccessDenied, match="set access_key and secret_key, or AWS_ACCESS_KEY_ID"):
        S3Store("bucket", S3Options("http://127.0.0.1:1")).get("a")


def test_endpoint_and_credentials_come_from_the_environment(
    moto: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", moto.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", moto.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", moto.secret_key)
    store = open_store(f"s3://{bucket}/prefix")
    store.put("a", _BODY)
    assert store.get("a") == _BODY
