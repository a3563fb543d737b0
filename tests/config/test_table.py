from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from afterglow.config import SECTIONS, SETTINGS, BrokerConfig, driver_keys, parse_conf
from afterglow.config.load import is_pulsar_key, spellings
from afterglow.config.setting import camel_case, words
from afterglow.errors import ConfigError

if TYPE_CHECKING:
    from afterglow.config import Setting

STOCK = Path(__file__).parent / "stock"

OTHER_THAN_STOCK = {
    "bindAddress": "0.0.0.0 would be open to everybody",
    "fileSystemProfilePath": "stock names a file that this server does not ship",
    "httpMaxRequestSize": "without a limit anybody could fill the memory",
    "tlsHostnameVerificationEnabled": "without it anybody with a trusted certificate could pose as the server",
}
"""Settings whose default here is not the value in the stock broker.conf, with the reason."""

every_row = pytest.mark.parametrize("row", SETTINGS.values(), ids=lambda row: row.key)


@every_row
def test_attribute_and_key_are_the_same_words(row: Setting) -> None:
    assert "_".join(words(row.key)) == row.attribute


def test_a_setting_names_its_key_only_if_it_cannot_be_derived() -> None:
    named = {row.key for row in SETTINGS.values() if camel_case(row.attribute) != row.key}
    assert named == {
        "defaultRetentionSizeInMB",
        "fileSystemURI",
        "journalMaxSizeMB",
        "managedLedgerCacheSizeMB",
        "maxMessagePublishBufferSizeInMB",
        "tierRetentionSizeInMB",
    }


@every_row
def test_the_default_is_in_range_and_reads_back_from_its_text(row: Setting) -> None:
    assert row.value_type.accepts(row.default)
    written = row.value_type.render(row.default)
    assert row.value_type.parse(written) == row.default
    assert written or row.value_type.takes_empty


@every_row
def test_the_description_is_one_or_two_sentences(row: Setting) -> None:
    assert row.doc.endswith(".")
    assert 10 < len(row.doc) < 240
    assert "|" not in row.doc + row.value_type.description


def test_the_dataclass_has_the_rows_of_the_table_and_their_origins() -> None:
    attributes = {item.name for item in fields(BrokerConfig)}
    assert attributes == {row.attribute for row in SETTINGS.values()} | {"origins"}


def test_every_section_is_part_of_the_dataclass() -> None:
    assert all(issubclass(BrokerConfig, section) for section in SECTIONS)
    assert {row.section for row in SETTINGS.values()} == set(SECTIONS)


def test_every_spelling_is_unique() -> None:
    every = [name for row in SETTINGS.values() for name in (row.key, *row.aliases)]
    assert len(every) == len(set(every)) == len(spellings())


def test_defaults_are_those_of_stock_pulsar_but_for_the_reasons_given() -> None:
    stock = parse_conf((STOCK / "broker.conf").read_text("utf-8"))
    different = {row.key for row, value, origin in stock.rows() if value != row.default and origin.kind != "default"}
    assert different == OTHER_THAN_STOCK.keys()


def test_settings_that_stock_files_leave_out_have_pulsar_s_defaults_too() -> None:
    config = BrokerConfig()
    assert config.managed_ledger_offload_deletion_lag_in_millis == 14_400_000
    assert config.max_offload_segment_size_in_bytes == 1_073_741_824
    assert config.max_offload_segment_rollover_time_in_seconds == 600
    assert config.s3_managed_ledger_offload_role_session_name == "pulsar-s3-offload"
    assert not config.streaming_offload_enabled


def test_every_field_of_pulsar_s_offload_policies_is_a_setting_of_topics() -> None:
    common = ["Driver", "MaxThreads", "ReadThreads", "PrefetchRounds", "ThresholdInSeconds", "ThresholdInBytes"]
    common += ["DeletionLagInMillis", "Bucket", "Region", "ServiceEndpoint"]
    common += ["MaxBlockSizeInBytes", "ReadBufferSizeInBytes"]
    s3 = ["Region", "Bucket", "ServiceEndpoint", "MaxBlockSizeInBytes", "ReadBufferSizeInBytes"]
    s3 += ["CredentialId", "CredentialSecret", "Role", "RoleSessionName"]
    gcs = ["Region", "Bucket", "MaxBlockSizeInBytes", "ReadBufferSizeInBytes", "ServiceAccountKeyFile"]
    policies = {f"managedLedgerOffload{name}" for name in common}
    policies |= {f"s3ManagedLedgerOffload{name}" for name in s3} | {f"gcsManagedLedgerOffload{name}" for name in gcs}
    policies |= {"offloadersDirectory", "managedLedgerOffloadedReadPriority", "managedLedgerExtraConfigurations"}
    policies |= {"fileSystemProfilePath", "fileSystemURI"}
    assert {key for key in policies if SETTINGS[key].scope != "topic"} == set()
    assert {key for key in policies if not is_pulsar_key(key)} == set()


def test_specific_keys_of_a_driver_override_the_general_ones() -> None:
    assert driver_keys("aws-s3", "Bucket") == ("s3ManagedLedgerOffloadBucket", "managedLedgerOffloadBucket")
    assert driver_keys("Google-Cloud-Storage", "Region") == (
        "gcsManagedLedgerOffloadRegion",
        "managedLedgerOffloadRegion",
    )
    assert driver_keys("S3", "Bucket") == ("managedLedgerOffloadBucket",)


def test_a_configuration_cannot_be_changed_but_copied_with_changes() -> None:
    config = BrokerConfig(broker_service_port=0)
    with pytest.raises(FrozenInstanceError):
        config.broker_service_port = 1  # type: ignore[misc]  # the point of the test
    assert replace(config, web_service_port=0) == BrokerConfig(broker_service_port=0, web_service_port=0)
    assert pickle.loads(pickle.dumps(config)) == config
    assert hash(config) == hash(BrokerConfig(broker_service_port=0))


def test_a_configuration_shows_what_differs_from_the_defaults_and_no_secret() -> None:
    config = BrokerConfig(token_secret_key="hush", offload_buffer_max_bytes=1 << 20)
    assert repr(config) == "BrokerConfig(tokenSecretKey=********, offloadBufferMaxBytes=1M)"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"broker_service_port": 70_000}, r"^brokerServicePort \(default\): 70000 is not an integer from 0 to 65535"),
        ({"offload_buffer_max_bytes": "1M"}, "^offloadBufferMaxBytes .*: '1M' is not a size in bytes"),
        ({"token_secret_key": 7}, r"^tokenSecretKey \(default\): the value is not a string"),
        (
            {"managed_ledger_min_ledger_rollover_time_minutes": 300},
            "^managedLedgerMinLedgerRolloverTimeMinutes .* is gr",
        ),
        ({"offload_retry_min_backoff_millis": 90_000}, "^offloadRetryMinBackoffMillis .* is greater"),
        ({"streaming_offload_block_size_in_bytes": 1 << 24}, "^streamingOffloadBlockSizeInBytes .* whole blocks"),
        ({"broker_service_port_tls": 6651}, "^brokerServicePortTls .* needs both tlsCertificateFilePath and"),
        ({"web_service_port_tls": 8443, "tls_key_file_path": "k"}, "^webServicePortTls .* needs both"),
        ({"authorization_enabled": True}, "^authorizationEnabled .* needs authenticationEnabled=true"),
        (
            {"authorization_enabled": True, "authorization_provider": "org.example.Mine"},
            "^authorizationProvider .* is not supported: org.example.Mine; leave it unset",
        ),
        ({"authentication_enabled": True}, "^authenticationEnabled .* needs authenticationProviders"),
    ],
)
def test_contradictory_settings_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BrokerConfig(**changes)  # type: ignore[arg-type]  # wrong values are the point


def test_age_does_not_limit_a_ledger_where_its_maximum_is_zero() -> None:
    assert BrokerConfig(managed_ledger_max_ledger_rollover_time_minutes=0)
