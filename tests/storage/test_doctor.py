from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.faults import Fault, FaultRule, FaultyStore

from afterglow.errors import AccessDenied, StoreThrottled
from afterglow.storage import LocalStore, MemoryStore, StepStatus, check_store, open_store

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.servers import S3Server

    from afterglow.storage import (
        ObjectStore,
        StoreCheck,
    )

_STEPS = ["put", "put if absent", "head", "ranged get", "list", "multipart", "abort", "delete"]


def _outcomes(checks: list[StoreCheck]) -> dict[str, StepStatus]:
    return {check.step: check.outcome for check in checks}


def _check_good(store: ObjectStore) -> None:
    checks = check_store(store)
    assert [check.step for check in checks] == _STEPS
    assert all(check.outcome is StepStatus.OK and not check.cure and check.elapsed_ms > 0 for check in checks), checks
    assert not list(store.list())
    assert not store.list_uploads()


def test_a_good_store_passes_and_is_left_as_it_was(tmp_path: Path) -> None:
    _check_good(MemoryStore())
    _check_good(LocalStore(tmp_path))


def test_a_good_bucket_passes(moto_store: ObjectStore) -> None:
    _check_good(moto_store)


@pytest.mark.pulsar
def test_a_good_bucket_of_a_real_server_passes(versitygw_store: ObjectStore) -> None:
    _check_good(versitygw_store)


def test_a_missing_bucket_is_reported_once_with_its_cure(moto: S3Server, tmp_path: Path) -> None:
    missing = [open_store("s3://no-such-bucket", retry_deadline_s=0, **moto.options()), LocalStore(tmp_path / "none")]
    for store in missing:
        first, *rest = check_store(store)
        assert first.outcome is StepStatus.FAILED
        assert "address" in first.cure
        assert all(check.outcome is StepStatus.SKIPPED and "failure of put" in check.detail for check in rest)


def test_an_endpoint_without_a_server_is_reported_once_with_its_cure() -> None:
    options = {"endpoint": "http://127.0.0.1:1", "access_key": "a", "secret_key": "b", "region": "us-east-1"}
    first, *rest = check_store(open_store("s3://bucket", retry_deadline_s=0, **options))
    assert (first.outcome, {check.outcome for check in rest}) == (StepStatus.FAILED, {StepStatus.SKIPPED})
    assert "endpoint" in first.cure


@pytest.mark.pulsar
@pytest.mark.parametrize(
    ("wrong", "named"), [({"secret_key": "wrong"}, "secret_key"), ({"access_key": "wrong"}, "access_key")]
)
def test_wrong_credentials_are_named(versitygw: S3Server, wrong: dict[str, str], named: str) -> None:
    store = open_store("s3://bucket", retry_deadline_s=0, **{**versitygw.options(), **wrong})
    put = check_store(store)[0]
    assert put.outcome is StepStatus.FAILED
    assert named in put.detail + put.cure


@pytest.mark.parametrize(
    ("operation", "failed", "right"),
    [
        ("put", {"put"}, "s3:PutObject"),
        ("get", {"ranged get", "multipart"}, "s3:GetObject"),
        ("list_page", {"list"}, "s3:ListBucket"),
        ("create_upload", {"multipart", "abort"}, "s3:PutObject"),
        ("list_parts", {"multipart"}, "s3:ListMultipartUploadParts"),
        ("abort_upload", {"abort"}, "s3:AbortMultipartUpload"),
        ("list_uploads", {"abort"}, "s3:ListBucketMultipartUploads"),
        ("delete", {"delete"}, "s3:DeleteObject"),
    ],
)
def test_a_missing_right_fails_its_steps_and_is_named(operation: str, failed: set[str], right: str) -> None:
    rule = FaultRule(Fault.ERROR_BEFORE, frozenset({operation}), times=None, error=AccessDenied)
    checks = check_store(FaultyStore(MemoryStore(), [rule]))
    assert {step for step, outcome in _outcomes(checks).items() if outcome is StepStatus.FAILED} == failed
    assert any(right in check.cure for check in checks)


def test_steps_that_need_the_object_are_skipped_when_it_could_not_be_put() -> None:
    rule = FaultRule(Fault.ERROR_BEFORE, frozenset({"put"}), times=None, error=AccessDenied)
    outcomes = _outcomes(check_store(FaultyStore(MemoryStore(), [rule])))
    skipped = {step for step, outcome in outcomes.items() if outcome is StepStatus.SKIPPED}
    assert skipped == {"put if absent", "head", "ranged get"}


def test_throttling_fails_a_step_but_not_those_behind_it() -> None:
    rule = FaultRule(Fault.ERROR_BEFORE, frozenset({"head"}), error=StoreThrottled)
    outcomes = _outcomes(check_store(FaultyStore(MemoryStore(), [rule])))
    assert [step for step, outcome in outcomes.items() if outcome is not StepStatus.OK] == ["head"]


@pytest.mark.parametrize("fault", [Fault.SHORT_READ, Fault.FLIPPED_BIT])
def test_wrong_bytes_are_noticed(fault: Fault) -> None:
    outcomes = _outcomes(check_store(FaultyStore(MemoryStore(), [FaultRule(fault, skip=1)])))
    assert outcomes["ranged get"] is StepStatus.FAILED


@pytest.mark.parametrize(
    "operation",
    [
        "put",
        "get",
        "head",
        "list_page",
        "create_upload",
        "upload_part",
        "list_parts",
        "complete_upload",
        "list_uploads",
    ],
)
@pytest.mark.parametrize("fault", [Fault.ERROR_BEFORE, Fault.ERROR_AFTER])
def test_nothing_is_left_behind_whatever_fails(operation: str, fault: Fault) -> None:
    inner = MemoryStore()
    check_store(FaultyStore(inner, [FaultRule(fault, frozenset({operation}), times=None, error=AccessDenied)]))
    assert not list(inner.list())
    if (operation, fault) != ("create_upload", Fault.ERROR_AFTER):  # nobody can know that upload
        assert not inner.list_uploads()
