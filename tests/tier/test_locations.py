"""Tier locations: from addresses, policies and metadata, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from afterglow.config import BrokerConfig
from afterglow.errors import ConfigError, CorruptMetadata, NotSupported
from afterglow.format.proto.managed_ledger_pb2 import OffloadDriverMetadata
from afterglow.storage import CountingStore, RetryingStore
from afterglow.tier.locations import (
    TierLocation,
    Tiers,
    driver_metadata,
    driver_setting,
    location_of_driver,
    location_of_policy,
    location_of_record,
    location_of_url,
    location_record,
    store_options,
)

if TYPE_CHECKING:
    from pathlib import Path

LOCATIONS = [
    TierLocation("filesystem", "/data/tier"),
    TierLocation("filesystem", "/data/a tier 100%"),
    TierLocation("aws-s3", "b"),
    TierLocation("aws-s3", "b", region="eu-west-1", prefix="a/b"),
    TierLocation("S3", "b", endpoint="http://127.0.0.1:9000"),
    TierLocation("memory", "m", prefix="p"),
]


@pytest.mark.parametrize("location", LOCATIONS, ids=str)
def test_a_location_survives_address_metadata_and_record(location: TierLocation) -> None:
    assert location_of_url(location.url, region=location.region, endpoint=location.endpoint) == location
    record = OffloadDriverMetadata(name=location.driver)
    for key, value in driver_metadata(location).items():
        record.properties.add(key=key, value=value)
    assert location_of_driver(record) == location
    assert location_of_record(location_record(location, "k")) == location
    assert location_record(location, "k").key == "k"


def test_metadata_of_a_bucket_has_pulsars_properties_in_its_order() -> None:
    assert list(driver_metadata(TierLocation("aws-s3", "b", region="r")).items()) == [
        ("managedLedgerOffloadDriver", "AWS_S3"),
        ("bucket", "b"),
        ("region", "r"),
        ("serviceEndpoint", ""),
    ]


def test_a_policy_without_a_driver_means_the_engines_own_tier() -> None:
    own = TierLocation("filesystem", "/tier")
    assert location_of_policy(BrokerConfig(), own) is own
    with pytest.raises(ConfigError, match="managedLedgerOffloadDriver"):
        location_of_policy(BrokerConfig(), None)


def test_the_drivers_own_keys_win_over_the_general_ones() -> None:
    policy = BrokerConfig(
        managed_ledger_offload_driver="AWS-S3",
        managed_ledger_offload_bucket="general",
        managed_ledger_offload_region="here",
        s3_managed_ledger_offload_bucket="own",
        managed_ledger_offload_read_buffer_size_in_bytes=7,
    )
    assert location_of_policy(policy, None) == TierLocation("aws-s3", "own", region="here")
    assert driver_setting(policy, "aws-s3", "ReadBufferSizeInBytes") == 7
    assert driver_setting(BrokerConfig(), "aws-s3", "ReadBufferSizeInBytes") == 1 << 20
    general = BrokerConfig(managed_ledger_offload_driver="s3", managed_ledger_offload_bucket="general")
    assert location_of_policy(general, None) == TierLocation("S3", "general")


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        (BrokerConfig(managed_ledger_offload_driver="tape"), ConfigError),
        (BrokerConfig(managed_ledger_offload_driver="aws-s3"), ConfigError),
        (BrokerConfig(managed_ledger_offload_driver="filesystem"), ConfigError),
        (BrokerConfig(managed_ledger_offload_driver="filesystem", file_system_uri="hdfs://n/x"), NotSupported),
        (BrokerConfig(managed_ledger_offload_driver="azureblob"), ConfigError),
        (BrokerConfig(managed_ledger_offload_driver="google-cloud-storage"), ConfigError),
    ],
    ids=repr,
)
def test_a_policy_without_a_location_is_rejected(policy: BrokerConfig, error: type[Exception]) -> None:
    with pytest.raises(error):
        location_of_policy(policy, TierLocation("filesystem", "/tier"))


@pytest.mark.parametrize("url", ["tier", "file://relative", "s3://", "ftp://x/y"])
def test_a_malformed_address_is_refused(url: str) -> None:
    with pytest.raises((ConfigError, NotSupported)):
        location_of_url(url)


def test_mapfiles_and_external_drivers_in_metadata_are_not_corruption() -> None:
    mapfile = OffloadDriverMetadata(name="filesystem")
    mapfile.properties.add(key="storageBasePath", value="/x")
    with pytest.raises(NotSupported, match="MapFile"):
        location_of_driver(mapfile)
    tape = OffloadDriverMetadata(name="tape")
    tape.properties.add(key="reel", value="7")
    external = location_of_driver(tape)
    assert external == TierLocation("tape", "", properties=(("reel", "7"),))
    assert location_of_record(location_record(external, "key")) == external
    with pytest.raises(ConfigError, match="external driver tape"):
        Tiers().store(external, BrokerConfig())
    with pytest.raises(CorruptMetadata, match="bucket"):
        location_of_driver(OffloadDriverMetadata(name="S3"))


def test_credentials_come_from_the_policy_then_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCESS_KEY_ID", "from-env")
    monkeypatch.setenv("ACCESS_KEY_SECRET", "secret-env")
    location = TierLocation("S3", "b", endpoint="http://127.0.0.1:9000")
    assert store_options(location, BrokerConfig())["access_key"] == "from-env"
    given = BrokerConfig(
        s3_managed_ledger_offload_credential_id="id", s3_managed_ledger_offload_credential_secret="secret"
    )
    assert store_options(location, given)["access_key"] == "id"
    assert "access_key" not in store_options(TierLocation("aws-s3", "b"), BrokerConfig())
    with pytest.raises(NotSupported, match="Role"):
        store_options(TierLocation("aws-s3", "b"), BrokerConfig(s3_managed_ledger_offload_role="arn"))


def test_a_store_is_opened_once_per_location_and_wrapped(tmp_path: Path) -> None:
    tiers = Tiers(CountingStore)
    location = TierLocation("filesystem", str(tmp_path))
    store = tiers.store(location, BrokerConfig())
    assert isinstance(store, CountingStore)
    assert tiers.store(location, BrokerConfig()) is store
    store.put("k", b"v")
    assert (tmp_path / "k").read_bytes() == b"v"
    for number in range(100):
        tiers.store(TierLocation("memory", f"m{number}"), BrokerConfig())
    assert tiers.store(location, BrokerConfig()) is not store


def test_a_reader_may_set_the_deadline_of_requests_to_a_store_that_does_not_answer() -> None:
    location = TierLocation("S3", "bucket", "us-east-1", "http://127.0.0.1:9")
    policy = BrokerConfig(s3_managed_ledger_offload_credential_id="a", s3_managed_ledger_offload_credential_secret="b")
    for tiers, deadline_s in ((Tiers(deadline_s=7.5), 7.5), (Tiers(), policy.offload_request_timeout_seconds)):
        store = tiers.store(location, policy)
        assert isinstance(store, RetryingStore)
        assert store.policy.deadline_s == deadline_s
