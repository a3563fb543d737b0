from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from afterglow.config import BrokerConfig, Origin, OriginKind
from afterglow.errors import ConfigError
from afterglow.policy.validation import check, problems, warnings


def policy(**settings: Any) -> BrokerConfig:
    return BrokerConfig(**settings)


@pytest.mark.parametrize("driver", ["S3", "s3", "aws-s3", "AWS-S3", "aliyun-oss"])
def test_a_driver_needs_a_bucket(driver: str) -> None:
    with pytest.raises(ConfigError, match=r"The bucket must be specified.*managedLedgerOffloadBucket"):
        check(policy(managed_ledger_offload_driver=driver))
    check(policy(managed_ledger_offload_driver=driver, managed_ledger_offload_bucket="b"))


def test_a_driver_specific_bucket_applies_to_that_driver_only() -> None:
    check(policy(managed_ledger_offload_driver="aws-s3", s3_managed_ledger_offload_bucket="b"))
    assert problems(policy(managed_ledger_offload_driver="S3", s3_managed_ledger_offload_bucket="b"))
    assert problems(policy(managed_ledger_offload_driver="aws-s3", gcs_managed_ledger_offload_bucket="b"))


def test_the_servers_own_tier_and_a_directory_need_no_bucket() -> None:
    check(policy())
    check(policy(managed_ledger_offload_driver="filesystem"))


@pytest.mark.parametrize("driver", ["tape", "azureblob", "google-cloud-storage", "Azureblob"])
def test_a_driver_without_an_entry_point_is_refused_with_the_supported_ones(driver: str) -> None:
    origins = {"managedLedgerOffloadDriver": Origin(OriginKind.FILE, "broker.conf:7")}
    held = policy(managed_ledger_offload_driver=driver, managed_ledger_offload_bucket="b", origins=origins)
    with pytest.raises(ConfigError) as refused:
        check(held)
    assert str(refused.value).startswith(
        "The driver is not supported, support value: S3, aliyun-oss, aws-s3, filesystem; "
        f"managedLedgerOffloadDriver={driver} (broker, broker.conf:7)"
    )


def test_a_role_that_no_store_assumes_is_refused() -> None:
    given = {"managed_ledger_offload_driver": "aws-s3", "managed_ledger_offload_bucket": "b"}
    given["s3_managed_ledger_offload_role"] = "arn:aws:iam::1:role/r"
    with pytest.raises(ConfigError, match="s3ManagedLedgerOffloadRole is not supported"):
        check(policy(**given))
    keys = {
        "s3_managed_ledger_offload_credential_id": "id",
        "s3_managed_ledger_offload_credential_secret": "secret",
    }
    check(policy(**given, **keys))


@pytest.mark.parametrize(
    ("threshold", "megabytes", "fits"),
    [
        (-1, 1, True),
        (0, 1, True),
        ((1 << 20) - 1, 1, True),
        (1 << 20, 1, False),
        (1 << 30, 1, False),
        (1 << 30, -1, True),
        (1 << 30, 0, True),
    ],
)
def test_a_size_threshold_fits_below_the_retention_by_size(threshold: int, megabytes: int, *, fits: bool) -> None:
    found = problems(
        policy(managed_ledger_offload_threshold_in_bytes=threshold, default_retention_size_in_mb=megabytes)
    )
    assert (found == ()) is fits
    if not fits:
        assert f"managedLedgerOffloadThresholdInBytes={threshold} (default)" in found[0].text
        assert f"defaultRetentionSizeInMB={megabytes} (default)" in found[0].text


@pytest.mark.parametrize(
    ("threshold", "minutes", "fits"),
    [(-1, 1, True), (0, 1, True), (59, 1, True), (60, 1, False), (3600, 1, False), (3600, -1, True), (3600, 0, True)],
)
def test_a_time_threshold_fits_below_the_retention_by_time(threshold: int, minutes: int, *, fits: bool) -> None:
    found = problems(
        policy(managed_ledger_offload_threshold_in_seconds=threshold, default_retention_time_in_minutes=minutes)
    )
    assert (found == ()) is fits


def test_a_threshold_without_retention_is_taken_with_a_warning() -> None:
    held = policy(managed_ledger_offload_threshold_in_bytes=0, default_retention_time_in_minutes=-1)
    assert problems(held) == ()
    assert len(check(held)) == 1
    assert "defaultRetentionSizeInMB=0" in check(held)[0]
    assert warnings(policy()) == ()
    unlimited = policy(managed_ledger_offload_threshold_in_bytes=0, default_retention_size_in_mb=-1)
    assert warnings(unlimited) == ()


def test_segments_that_retention_deletes_at_once_are_taken_with_a_warning() -> None:
    short = {"default_retention_time_in_minutes": 10, "default_retention_size_in_mb": -1}
    (warning,) = check(policy(streaming_offload_enabled=True, **short))
    assert "maxOffloadSegmentRolloverTimeInSeconds=600 (default)" in warning
    assert "defaultRetentionTimeInMinutes=10 (default)" in warning
    assert (
        check(policy(streaming_offload_enabled=True, max_offload_segment_rollover_time_in_seconds=599, **short)) == ()
    )
    assert check(policy(**short)) == ()


def test_a_deletion_lag_above_the_retention_gives_a_warning() -> None:
    short = {"default_retention_time_in_minutes": 10, "default_retention_size_in_mb": -1}
    origins = {"managedLedgerOffloadDeletionLagInMillis": Origin(OriginKind.NAMESPACE, "namespace policies")}
    held = policy(managed_ledger_offload_deletion_lag_in_millis=600_000, origins=origins, **short)
    (warning,) = check(held)
    assert "managedLedgerOffloadDeletionLagInMillis=600000 (namespace policies)" in warning
    assert check(replace(held, managed_ledger_offload_deletion_lag_in_millis=599_999)) == ()
    assert check(policy(**short)) == (), "the default lag was not chosen"
