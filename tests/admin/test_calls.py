from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from afterglow.admin import values
from afterglow.admin.errors import status_of
from afterglow.errors import (
    AccessDenied,
    AfterglowError,
    BucketMissing,
    CommitFailed,
    CommitUnknown,
    CorruptMetadata,
    DiskFull,
    MetadataUnavailable,
    NotEmpty,
    StoreThrottled,
)
from afterglow.metadata.memory import MemoryMetadataStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.admin.conftest import Admin

TTL = "/admin/v2/namespaces/public/default/messageTTL"


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"NaN",
        b"[1,]",
        b"\xff\xfe",
        b'"\\ud800"',
        b"[" * 100_000,
        b"9" * 10_000,
        b'{"a":' * 5_000,
    ],
)
def test_a_body_that_is_not_json_is_refused(admin: Admin, body: bytes) -> None:
    answer = admin.send("POST", TTL, body)
    assert answer.status == 400
    assert answer.reason
    assert admin.send("PUT", "/admin/v2/tenants/acme", body).status == 400


def test_a_number_that_would_be_infinite_is_refused(admin: Admin) -> None:
    for body in (b"1e999", b"-1e999", b'{"bookkeeperEnsemble":2,"managedLedgerMaxMarkDeleteRate":1e999}'):
        answer = admin.send("POST", "/admin/v2/namespaces/public/default/persistence", body)
        assert answer.status == 400
        assert "too large" in answer.reason


def test_a_body_that_is_too_long_is_refused(start: Callable[..., Admin]) -> None:
    admin = start(http_max_request_size=1000)
    assert admin.send("POST", TTL, b" " * 999 + b"5").status == 204
    answer = admin.send("POST", TTL, b" " * 1000 + b"5")
    assert answer.status == 413
    assert "httpMaxRequestSize" in answer.reason


def test_a_body_is_bounded_whatever_the_setting_says(start: Callable[..., Admin]) -> None:
    admin = start(http_max_request_size=-1)
    assert admin.send("POST", TTL, b"5".rjust(256 << 10)).status == 204
    answer = admin.send("POST", TTL, b"5".rjust((256 << 10) + 1))
    assert answer.status == 413
    assert "httpMaxRequestSize" not in answer.reason


def test_a_schema_may_have_a_longer_body(admin: Admin) -> None:
    fields = [{"name": f"field_{number}", "type": "string"} for number in range(2_000)]
    definition = json.dumps({"type": "record", "name": "Wide", "fields": fields})
    schema = {"type": "JSON", "schema": definition, "properties": {"note": '"' * 20_000}}
    body = json.dumps(schema).encode()
    assert len(definition) < 128 << 10
    answer = admin.send("POST", "/admin/v2/schemas/public/default/t/schema", body.rjust(300 << 10))
    assert answer.status == 200, answer


@pytest.mark.parametrize("value", ["x" * 100_000, ["x"] * 100_000, {"a": ["b"] * 100_000}, 10**400])
def test_a_long_value_is_truncated_in_messages(value: object) -> None:
    image = values.shown(value)
    assert image == f"{json.dumps(value)[:77]}..."


@pytest.mark.parametrize("value", ["x" * 78, ["x", 1], None, {}, 1.5])
def test_a_short_value_is_whole_in_messages(value: object) -> None:
    assert values.shown(value) == json.dumps(value)


def test_unknown_paths_and_methods_have_a_reason(admin: Admin) -> None:
    for path in ("/admin/v2", "/admin/v2/nothing", "/admin/v2/persistent/a", "/admin/v2//tenants", "/%"):
        answer = admin.call("GET", path)
        assert answer.status == 404
        assert path.rstrip("/") in answer.reason
    answer = admin.call("POST", "clusters")
    assert answer.status == 405
    assert "POST" in answer.reason
    assert "GET" in answer.headers["allow"]
    assert admin.call("BREW", "tenants/acme").status == 405


def test_a_slash_at_the_end_changes_nothing(admin: Admin) -> None:
    assert admin.get("tenants/") == ["public"]


def test_head_is_get_without_a_body(admin: Admin) -> None:
    answer = admin.call("HEAD", "tenants")
    assert (answer.status, answer.body) == (200, b"")
    assert admin.call("HEAD", "tenants/nobody").status == 404


def test_an_internal_error_is_logged_and_not_returned(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_self: object, _path: str) -> tuple[str, ...]:
        raise RuntimeError("the password is swordfish")

    monkeypatch.setattr(MemoryMetadataStore, "children", broken)
    with caplog.at_level(logging.ERROR):
        answer = admin.call("GET", "tenants")
    monkeypatch.undo()
    assert answer.status == 500
    assert "swordfish" not in answer.reason
    assert "swordfish" in caplog.text
    assert "GET /admin/v2/tenants" in caplog.text


def test_an_unreachable_metadata_store_is_answered_with_503(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(_self: object, _path: str) -> tuple[str, ...]:
        raise MetadataUnavailable("the metadata store cannot be reached")

    monkeypatch.setattr(MemoryMetadataStore, "children", unreachable)
    assert "cannot be reached" in admin.refused(503, "GET", "tenants")
    admin.refused(503, "GET", "brokers/health")
    monkeypatch.undo()
    admin.get("tenants")


def test_a_client_that_disconnects_within_a_body_leaves_no_trace(
    admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    before = admin.state()
    with caplog.at_level(logging.WARNING):
        with socket.create_connection(("127.0.0.1", admin.port)) as caller:
            caller.sendall(f"POST {TTL} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n5".encode())
        admin.get("tenants")  # on another connection, after which the first is dealt with
        admin.run(asyncio.sleep(0))
    assert admin.state() == before
    assert caplog.records == []


def test_a_call_that_waits_for_metadata_does_not_block_others(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, go_on = threading.Event(), threading.Event()
    children = MemoryMetadataStore.children

    def slow(self: MemoryMetadataStore, path: str) -> tuple[str, ...]:
        asked.set()
        assert go_on.wait(30)
        return children(self, path)

    monkeypatch.setattr(MemoryMetadataStore, "children", slow)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(admin.get, "tenants")
        assert asked.wait(30)
        assert admin.call("GET", "brokers/ready").body == b"ok"
        assert not waiting.done()
        go_on.set()
        assert waiting.result(30) == ["public"]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NotEmpty("x"), 409),
        (CommitUnknown("x"), 503),
        (CommitFailed("x"), 503),
        (StoreThrottled("x"), 503),
        (BucketMissing("x"), 502),
        (AccessDenied("x"), 502),
        (DiskFull("x"), 507),
        (CorruptMetadata("x"), 500),
        (AfterglowError("x"), 500),
        (ValueError("x"), 500),
    ],
)
def test_errors_have_their_status(error: Exception, status: int) -> None:
    assert status_of(error) == status
