from __future__ import annotations

import logging
from typing import Any

import pytest

from afterglow.config import BrokerConfig
from afterglow.errors import ConfigError
from afterglow.ledger.catalog import Catalog
from afterglow.metadata.memory import MemoryMetadataStore
from afterglow.offload.policies import Policies
from afterglow.offload.policy_checks import check, drivers, problems, warnings


def policy(**settings: Any) -> BrokerConfig:
    return BrokerConfig(**settings)


@pytest.mark.parametrize("driver", ["S3", "s3", "aws-s3", "AWS-S3", "google-cloud-storage", "azureblob", "aliyun-oss"])
def test_a_driver_needs_a_bucket(driver: str) -> None:
    with pytest.raises(ConfigError, match=r"The bucket must be specified.*managedLedgerOffloadBucket"):
        check(policy(managed_ledger_offload_driver=driver))
    check(policy(managed_ledger_offload_driver=driver, managed_ledger_offload_bucket="b"))


def test_a_bucket_of_the_drivers_own_counts_for_that_driver_alone() -> None:
    check(policy(managed_ledger_offload_driver="aws-s3", s3_managed_ledger_offload_bucket="b"))
    assert problems(policy(managed_ledger_offload_driver="S3", s3_managed_ledger_offload_bucket="b"))
    assert problems(policy(managed_ledger_offload_driver="aws-s3", gcs_managed_ledger_offload_bucket="b"))


def test_the_engines_own_tier_and_a_directory_need_no_bucket() -> None:
    check(policy())
    check(policy(managed_ledger_offload_driver="filesystem"))


def test_an_unknown_driver_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"The driver is not supported, support value: .*aws-s3.*'tape'"):
        check(policy(managed_ledger_offload_driver="tape", managed_ledger_offload_bucket="b"))
    assert "filesystem" in drivers()


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
        assert "managedLedgerOffloadThresholdInBytes" in found[0]
        assert "defaultRetentionSizeInMB" in found[0]


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


def test_a_problem_that_is_there_already_does_not_stop_the_change_of_something_else() -> None:
    low = {"managed_ledger_offload_threshold_in_bytes": 1 << 30, "default_retention_size_in_mb": 1}
    before = policy(**low)
    check(policy(**low, managed_ledger_offload_max_threads=5), before)
    with pytest.raises(ConfigError, match="managedLedgerOffloadThresholdInSeconds"):
        check(
            policy(**low, managed_ledger_offload_threshold_in_seconds=60, default_retention_time_in_minutes=1), before
        )


def test_an_engine_does_not_start_with_settings_that_cannot_be_obeyed(caplog: pytest.LogCaptureFixture) -> None:
    catalog = Catalog(MemoryMetadataStore(), "standalone")
    with pytest.raises(ConfigError, match="bucket"):
        Policies(policy(managed_ledger_offload_driver="S3"), catalog)
    with caplog.at_level(logging.WARNING):
        Policies(policy(managed_ledger_offload_threshold_in_bytes=0), catalog)
    assert "managedLedgerOffloadThresholdInBytes=0" in caplog.text
