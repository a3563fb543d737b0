"""Tiers that policies of tenants may name: the server's own, and those below an entry of ``allowedTiers``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from afterglow.config import BrokerConfig
from afterglow.errors import ConfigError, TierNotAllowed
from afterglow.policy.allowed_tiers import AllowedTiers, StoredPolicies
from afterglow.policy.fields import NAMESPACE_OFFLOAD, TOPIC_OFFLOAD
from afterglow.tier.locations import location_of_url

if TYPE_CHECKING:
    from pathlib import Path

    from afterglow.tier.locations import TierLocation

HERE = "http://minio:9000"
NOTHING = StoredPolicies({}, {})


def s3(bucket: str, **fields: Any) -> dict[str, Any]:
    return {"managedLedgerOffloadDriver": "aws-s3", "s3ManagedLedgerOffloadBucket": bucket, **fields}


def directory(uri: str) -> dict[str, Any]:
    return {"managedLedgerOffloadDriver": "filesystem", "fileSystemURI": uri}


def of_namespace(fields: dict[str, Any]) -> StoredPolicies:
    return StoredPolicies({NAMESPACE_OFFLOAD: fields}, {})


def is_allowed(tiers: AllowedTiers, fields: dict[str, Any]) -> bool:
    """Whether each level may set fields where none were set; no level may set what another may not."""
    levels = (
        StoredPolicies({}, {TOPIC_OFFLOAD: fields}),
        StoredPolicies({}, {"global": {TOPIC_OFFLOAD: fields}}),
        of_namespace(fields),
    )
    refused = [wanted for wanted in levels if is_refused(tiers, wanted)]
    assert len(refused) in {0, len(levels)}
    return not refused


def is_refused(tiers: AllowedTiers, wanted: StoredPolicies) -> bool:
    try:
        tiers.check("namespace acme/orders", wanted, NOTHING)
    except TierNotAllowed:
        return True
    return False


def allowed(*entries: str, own: TierLocation | None = None, **settings: Any) -> AllowedTiers:
    return AllowedTiers(BrokerConfig(allowed_tiers=entries, **settings), own)


@pytest.mark.parametrize(
    ("bucket", "is_below"),
    [
        ("b/a", True),
        ("b/a/", True),
        ("b/a/c", True),
        ("b", False),
        ("b/ab", False),
        ("b/a/../c", False),
        ("b/a/./c", False),
        ("b//a", False),
        ("ba", False),
        ("B/a", False),
    ],
)
def test_an_entry_for_a_bucket_allows_whole_segments_below_it(bucket: str, *, is_below: bool) -> None:
    assert is_allowed(allowed("s3://b/a"), s3(bucket)) is is_below


def test_an_entry_for_a_directory_allows_locations_below_it(tmp_path: Path) -> None:
    tier = tmp_path / "tiers"
    (tier / "inside").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tier / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "way in").symlink_to(tier)
    (tier / "loop").symlink_to(tier / "loop")
    tiers = allowed(tier.as_uri())
    below = [tier, tier / "inside", tier / "not there yet", tmp_path / "way in" / "inside", tier / "inside" / ".."]
    for path in below:
        assert is_allowed(tiers, directory(f"file://{str(path).replace(' ', '%20')}")), path
    for path in (
        *(tmp_path, tmp_path / "outside", tmp_path / "tiersX", tier / ".." / "outside", tier / "link"),
        *(tier / "link" / "x", tier / "%2e%2e" / "outside", tier / "loop", tier / "a%00b"),
    ):
        assert not is_allowed(tiers, directory(f"file://{path}")), path
    assert not is_allowed(tiers, directory("hdfs://namenode/tiers"))


def test_an_entry_through_a_link_allows_the_directory_behind_it(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert is_allowed(allowed((tmp_path / "link").as_uri()), directory((tmp_path / "real").as_uri()))


@pytest.mark.parametrize(
    ("entry", "fields", "expected"),
    [
        ("s3://b", {}, True),
        ("s3://b", {"s3ManagedLedgerOffloadServiceEndpoint": f"{HERE}/"}, True),
        ("s3://b", {"s3ManagedLedgerOffloadServiceEndpoint": "http://elsewhere"}, False),
        ("s3://b", {"s3ManagedLedgerOffloadServiceEndpoint": ""}, False),
        ("s3://b", {"s3ManagedLedgerOffloadRegion": "cn-north-1"}, True),
        ("s3://b?endpoint=http://other", {}, False),
        ("s3://b?endpoint=http://other", {"s3ManagedLedgerOffloadServiceEndpoint": "http://other"}, True),
    ],
)
def test_an_entry_without_an_endpoint_means_that_of_the_settings(
    entry: str, fields: dict[str, Any], *, expected: bool
) -> None:
    tiers = allowed(entry, s3_managed_ledger_offload_service_endpoint=HERE)
    assert is_allowed(tiers, s3("b", **fields)) is expected


@pytest.mark.parametrize(
    ("entry", "region", "expected"),
    [
        ("s3://b", "eu-west-1", True),
        ("s3://b", "cn-north-1", False),
        ("s3://b?region=cn-north-1", "cn-north-1", True),
        ("s3://b?region=cn-north-1", "eu-west-1", False),
    ],
)
def test_without_an_endpoint_the_region_counts(entry: str, region: str, *, expected: bool) -> None:
    tiers = allowed(entry, s3_managed_ledger_offload_region="eu-west-1")
    assert is_allowed(tiers, s3("b", s3ManagedLedgerOffloadRegion=region)) is expected


def test_the_servers_own_tier_is_allowed_and_nothing_below_or_above_it(tmp_path: Path) -> None:
    tiers = allowed(own=location_of_url(tmp_path.as_uri()))
    assert is_allowed(tiers, {})
    assert is_allowed(tiers, directory(tmp_path.as_uri()))
    for path in (tmp_path / "below", tmp_path.parent):
        assert not is_allowed(tiers, directory(path.as_uri()))


def test_the_tier_of_the_brokers_settings_is_the_servers_own_too() -> None:
    tiers = allowed(managed_ledger_offload_driver="aws-s3", s3_managed_ledger_offload_bucket="b")
    assert is_allowed(tiers, s3("b"))
    assert not is_allowed(tiers, s3("other"))


def test_the_own_tier_stays_allowed_beside_entries(tmp_path: Path) -> None:
    assert is_allowed(allowed("s3://b", own=location_of_url(tmp_path.as_uri())), directory(tmp_path.as_uri()))


@pytest.mark.parametrize(
    "fields",
    [
        {"fileSystemURI": "file:///elsewhere"},
        {"s3ManagedLedgerOffloadBucket": "elsewhere"},
        {"managedLedgerOffloadBucket": "elsewhere"},
        s3("b", fileSystemURI="file:///elsewhere"),
    ],
)
def test_a_location_without_its_driver_is_refused_too(fields: dict[str, Any]) -> None:
    assert not is_allowed(allowed("s3://b"), fields)


def test_an_external_driver_is_for_superusers_whatever_its_properties() -> None:
    driver = {"managedLedgerOffloadDriver": "tape", "managedLedgerExtraConfigurations": {"directory": "/a"}}
    tiers = allowed("file:///")
    assert not is_allowed(tiers, driver)
    other = {**driver, "managedLedgerExtraConfigurations": {"directory": "/b"}}
    tiers.check("namespace n", of_namespace({**driver, "managedLedgerOffloadMaxThreads": 3}), of_namespace(driver))
    with pytest.raises(TierNotAllowed, match="driver tape"):
        tiers.check("namespace n", of_namespace(other), of_namespace(driver))


def test_extra_configurations_of_a_built_in_driver_name_no_tier() -> None:
    extra = {"fileSystemURI": "file:///elsewhere", "managedLedgerOffloadBucket": "elsewhere"}
    tiers = allowed("s3://b")
    assert is_allowed(tiers, s3("b", managedLedgerExtraConfigurations=extra))


def test_a_tier_in_use_stays_and_cannot_be_modified() -> None:
    chosen = s3("chosen", s3ManagedLedgerOffloadServiceEndpoint=HERE)
    tiers = allowed()
    tiers.check("namespace n", of_namespace({**chosen, "managedLedgerOffloadMaxThreads": 3}), of_namespace(chosen))
    for field, value in (("Bucket", "other"), ("ServiceEndpoint", "http://evil"), ("Region", "cn-north-1")):
        changed = {**chosen, f"s3ManagedLedgerOffload{field}": value}
        with pytest.raises(TierNotAllowed):
            tiers.check("namespace n", of_namespace(changed), of_namespace(chosen))


def test_a_refusal_names_the_object_the_setting_and_the_fix() -> None:
    with pytest.raises(TierNotAllowed) as refused:
        allowed().check("topic persistent://acme/orders/t", of_namespace(directory("file:///elsewhere")), NOTHING)
    for words in ("topic persistent://acme/orders/t", "file:///elsewhere", "allowedTiers", "superuser"):
        assert words in str(refused.value)


@pytest.mark.parametrize(
    "entry", ["bucket", "s3://", "ftp://host", "gs://b", "file://relative", "s3://b?prefix=x", "s3://b?x"]
)
def test_an_entry_that_is_not_an_address_is_refused_at_the_start(entry: str) -> None:
    with pytest.raises(ConfigError, match="allowedTiers"):
        allowed(entry)
