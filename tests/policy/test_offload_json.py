from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterglow.config import BrokerConfig, ReadPriority
from afterglow.errors import ConfigError
from afterglow.policy.offload_json import (
    MASK,
    POLICY_SETTINGS,
    described,
    merged,
    read,
    read_checked,
    replaced,
    shown,
    without,
    write,
    write_all,
)
from afterglow.policy.resolver import resolve

# What `pulsar-admin namespaces set-offload-policies t/n -d S3 -b b -e http://e -i id -s key -oat 10M -oae 1h
# -orp bookkeeper-first` of Pulsar 4.0 sends: its defaults and what its getters derive come along.
STOCK = {
    "offloadersDirectory": "./offloaders",
    "managedLedgerOffloadDriver": "S3",
    "managedLedgerOffloadMaxThreads": 2,
    "managedLedgerOffloadReadThreads": 2,
    "managedLedgerOffloadPrefetchRounds": 1,
    "managedLedgerOffloadThresholdInBytes": 10485760,
    "managedLedgerOffloadDeletionLagInMillis": 3600000,
    "managedLedgerOffloadedReadPriority": "BOOKKEEPER_FIRST",
    "managedLedgerExtraConfigurations": {},
    "s3ManagedLedgerOffloadBucket": "b",
    "s3ManagedLedgerOffloadServiceEndpoint": "http://e",
    "s3ManagedLedgerOffloadMaxBlockSizeInBytes": 67108864,
    "s3ManagedLedgerOffloadReadBufferSizeInBytes": 1048576,
    "s3ManagedLedgerOffloadCredentialId": "id",
    "s3ManagedLedgerOffloadCredentialSecret": "key",
    "s3ManagedLedgerOffloadRoleSessionName": "pulsar-s3-offload",
    "gcsManagedLedgerOffloadMaxBlockSizeInBytes": 134217728,
    "gcsManagedLedgerOffloadReadBufferSizeInBytes": 1048576,
    "managedLedgerOffloadBucket": "b",
    "managedLedgerOffloadServiceEndpoint": "http://e",
    "managedLedgerOffloadMaxBlockSizeInBytes": 67108864,
    "managedLedgerOffloadReadBufferSizeInBytes": 1048576,
}
DERIVED = {"s3Driver": True, "gcsDriver": False, "fileSystemDriver": False}
SECRET = "s3ManagedLedgerOffloadCredentialSecret"


def values_of(fields: dict[str, Any]) -> dict[str, Any]:
    return read_checked(fields).values


def test_policies_of_the_stock_client_are_stored_and_shown_unchanged() -> None:
    stored = replaced({**STOCK, **DERIVED}, {})
    assert stored == STOCK
    assert shown(stored) == {**STOCK, SECRET: MASK}


@pytest.mark.parametrize(
    ("fields", "key", "expected"),
    [
        ({"offloadSizeInMB": 3}, "managedLedgerOffloadThresholdInBytes", 3 << 20),
        ({"offloadSizeInMB": -1}, "managedLedgerOffloadThresholdInBytes", -1),
        ({"offloadTimeInMinutes": 2}, "managedLedgerOffloadThresholdInSeconds", 120),
        ({"managedLedgerOffloadAutoTriggerSizeThresholdBytes": 5}, "managedLedgerOffloadThresholdInBytes", 5),
        ({"managedLedgerOffloadThresholdInBytes": "10M"}, "managedLedgerOffloadThresholdInBytes", 10 << 20),
        ({"managedLedgerOffloadDeletionLagMs": 7}, "managedLedgerOffloadDeletionLagInMillis", 7),
        ({"maxSizePerOffloadSegmentMbytes": 64}, "maxOffloadSegmentSizeInBytes", 64 << 20),
        ({"maxOffloadSegmentRolloverTimeMinutes": 10}, "maxOffloadSegmentRolloverTimeInSeconds", 600),
        ({"streamingOffloadEnabled": True}, "streamingOffloadEnabled", True),
        ({"streamingOffloadEnabled": "true"}, "streamingOffloadEnabled", True),
    ],
)
def test_the_names_of_the_proposals_are_accepted(fields: dict[str, Any], key: str, expected: object) -> None:
    assert values_of(fields) == {key: expected}


@pytest.mark.parametrize("name", ["managedLedgerOffloadedReadPriority", "managedLedgerDataReadPriority"])
@pytest.mark.parametrize("word", ["TIERED_STORAGE_FIRST", "tiered-storage-first", "tiered-first", "Tiered-First"])
def test_a_read_priority_is_taken_in_every_spelling_and_written_as_pulsars_constant(name: str, word: str) -> None:
    assert values_of({name: word}) == {"managedLedgerOffloadedReadPriority": ReadPriority.TIERED_STORAGE_FIRST}
    assert replaced({name: word}, {}) == {"managedLedgerOffloadedReadPriority": "TIERED_STORAGE_FIRST"}


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"managedLedgerOffloadedReadPriority": "nearest"}, "'nearest' is not one of bookkeeper-first"),
        ({"managedLedgerOffloadTresholdInBytes": 1}, "did you mean managedLedgerOffloadThresholdInBytes"),
        ({"nonsense": 1}, "no field 'nonsense'"),
        ({"brokerServicePort": 1}, "brokerServicePort is not a field of offload policies"),
        ({"defaultRetentionSizeInMB": 1}, "defaultRetentionSizeInMB is not a field of offload policies"),
        ({"managedLedgerOffloadMaxThreads": 0}, "managedLedgerOffloadMaxThreads: 0 is not an integer of at least 1"),
        ({"managedLedgerOffloadMaxThreads": 1.5}, "1.5 is not an integer"),
        ({"managedLedgerOffloadMaxThreads": 2**64}, "is not an integer"),
        ({"managedLedgerOffloadBucket": 5}, "5 is not a string"),
        ({"managedLedgerOffloadBucket": ["b"]}, "is not a string"),
        ({"streamingOffloadEnabled": "yes"}, "'yes' is not true or false"),
        ({"s3ManagedLedgerOffloadMaxBlockSizeInBytes": 1024}, "from 5M"),
        ({"managedLedgerExtraConfigurations": 5}, "is not an object of strings"),
        ({"managedLedgerExtraConfigurations": "a"}, "is not a comma-separated list of key=value pairs"),
        ({"managedLedgerOffloadExtraConfiga": {}}, "is not a string"),
        (
            {"managedLedgerExtraConfigurations": {"a": "1"}, "managedLedgerOffloadExtraConfiga": "2"},
            "managedLedgerExtraConfigurations and managedLedgerOffloadExtraConfiga give one property different",
        ),
        ({"managedLedgerExtraConfigurations": {"a": {}}}, "is not a string"),
        ({"managedLedgerExtraConfigurations": {"streamingOffloadEnabled": "yes"}}, "'yes' is not true or false"),
        ({"offloadSizeInMB": 1, "managedLedgerOffloadThresholdInBytes": 1}, "different values"),
    ],
)
def test_fields_that_pulsar_ignores_are_refused_by_name(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        replaced(fields, {})


@pytest.mark.parametrize(
    ("older", "newer", "value"),
    [
        ("managedLedgerOffloadAutoTriggerSizeThresholdBytes", "managedLedgerOffloadThresholdInBytes", 5),
        ("managedLedgerOffloadDeletionLagMs", "managedLedgerOffloadDeletionLagInMillis", 5),
        ("managedLedgerDataReadPriority", "managedLedgerOffloadedReadPriority", "BOOKKEEPER_FIRST"),
    ],
)
def test_the_newer_name_of_pulsar_wins_over_the_older_in_either_order(older: str, newer: str, value: Any) -> None:
    other = 7 if isinstance(value, int) else "TIERED_STORAGE_FIRST"
    assert replaced({older: other, newer: value}, {}) == {newer: value}
    assert replaced({newer: value, older: other}, {}) == {newer: value}
    assert replaced({newer: None, older: other}, {}) == {newer: other}


def test_a_secret_that_cannot_be_taken_is_not_shown() -> None:
    with pytest.raises(ConfigError, match="the value is not") as refused:
        replaced({SECRET: {"swordfish": 1}}, {})
    assert "swordfish" not in str(refused.value)


def test_one_setting_under_two_names_with_one_value_is_accepted() -> None:
    assert values_of({"offloadSizeInMB": 1, "managedLedgerOffloadThresholdInBytes": 1 << 20})


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "managedLedgerOffloadThresholdInBytes": st.integers(-1, 2**63 - 1),
            "managedLedgerOffloadDeletionLagInMillis": st.none() | st.integers(0, 2**63 - 1),
            "managedLedgerOffloadedReadPriority": st.sampled_from(ReadPriority),
            "managedLedgerOffloadBucket": st.none() | st.text("ab/ä", min_size=1),
            "maxOffloadSegmentSizeInBytes": st.integers(1, 2**40) | st.integers(1, 2**20).map(lambda size: size << 20),
            "maxOffloadSegmentRolloverTimeInSeconds": st.integers(1, 10**6),
            "streamingOffloadEnabled": st.booleans(),
            "managedLedgerExtraConfigurations": st.dictionaries(st.text("xyz", min_size=1), st.text("xyz")).map(
                lambda pairs: tuple(sorted(pairs.items()))
            ),
        },
    )
)
def test_written_policies_are_read_back(values: dict[str, Any]) -> None:
    written = json.loads(json.dumps(write(values)))
    found = read(written)
    assert found.given == values
    assert found.problems == ()


def test_segment_limits_have_the_names_of_the_proposal_where_they_are_whole() -> None:
    assert write({"maxOffloadSegmentSizeInBytes": 64 << 20}) == {"maxSizePerOffloadSegmentMbytes": 64}
    assert write({"maxOffloadSegmentSizeInBytes": 5}) == {"maxOffloadSegmentSizeInBytes": 5}
    assert write({"maxOffloadSegmentRolloverTimeInSeconds": 90}) == {"maxOffloadSegmentRolloverTimeInSeconds": 90}


@pytest.mark.parametrize(
    "fields",
    [
        {"managedLedgerExtraConfigurations": {"a": "1", "b": "x=y"}},
        {"managedLedgerExtraConfigurations": "b=x=y, a=1"},
        {"managedLedgerOffloadExtraConfiga": 1, "managedLedgerOffloadExtraConfigb": "x=y"},
        {"managedLedgerExtraConfigurations": "a=1", "managedLedgerOffloadExtraConfigb": "x=y"},
        {"managedLedgerOffloadExtraConfigb": "x=y", "managedLedgerExtraConfigurations": {"a": "1", "b": "x=y"}},
    ],
)
def test_properties_of_a_driver_are_accepted_in_every_form(fields: dict[str, Any]) -> None:
    assert replaced(fields, {}) == {"managedLedgerExtraConfigurations": {"a": "1", "b": "x=y"}}
    changed = merged({"managedLedgerExtraConfigurations": {"b": "0", "c": "2"}}, fields)
    assert changed == {"managedLedgerExtraConfigurations": {"a": "1", "b": "x=y", "c": "2"}}


def test_streaming_settings_stay_among_the_extra_configurations_for_stock_clients() -> None:
    fields = {"managedLedgerExtraConfigurations": {"streamingOffloadEnabled": "true", "a": "1"}}
    assert replaced(fields, {}) == fields


def test_a_masked_secret_sent_back_stays_what_it_is() -> None:
    stored = {SECRET: "swordfish"}
    assert replaced(shown(stored), stored) == stored
    assert merged(stored, {SECRET: MASK, "managedLedgerOffloadMaxThreads": 3})[SECRET] == "swordfish"
    with pytest.raises(ConfigError, match="send the value"):
        replaced({SECRET: MASK}, {})


def test_a_change_keeps_all_other_fields_and_those_of_other_releases() -> None:
    stored = {"someNewField": [1], "offloadSizeInMB": 1, "managedLedgerOffloadMaxThreads": 9}
    changed = merged(stored, {"managedLedgerOffloadThresholdInBytes": 7})
    assert changed == {
        "someNewField": [1],
        "managedLedgerOffloadThresholdInBytes": 7,
        "managedLedgerOffloadMaxThreads": 9,
    }
    assert without(changed, "managedLedgerOffloadThresholdInBytes") == {
        "someNewField": [1],
        "managedLedgerOffloadMaxThreads": 9,
    }


def test_the_effective_policy_has_no_nulls_and_no_secrets() -> None:
    policy = resolve(BrokerConfig(), {"offload_policies": STOCK}, {})
    written = write_all(policy)
    assert None not in written.values()
    assert written[SECRET] == MASK
    assert written["managedLedgerOffloadedReadPriority"] == "BOOKKEEPER_FIRST"
    assert read(written).problems == ()


def test_every_value_is_described_with_the_level_that_set_it() -> None:
    policy = resolve(
        BrokerConfig(managed_ledger_offload_max_threads=3),
        {"offload_policies": {SECRET: "swordfish"}, "retention_policies": {"retentionTimeInMinutes": 5}},
        {"offloadPolicies": {"managedLedgerOffloadedReadPriority": "bookkeeper-first"}},
    )
    rows = {row["name"]: row for row in described(policy)}
    assert set(POLICY_SETTINGS) <= set(rows)
    assert all(set(row) == {"name", "value", "origin"} for row in rows.values())
    assert rows[SECRET] | {"name": ""} == {"name": "", "value": MASK, "origin": "namespace"}
    assert rows["managedLedgerOffloadedReadPriority"]["origin"] == "topic"
    assert rows["managedLedgerOffloadedReadPriority"]["value"] == "BOOKKEEPER_FIRST"
    assert rows["defaultRetentionTimeInMinutes"] | {"name": ""} == {"name": "", "value": 5, "origin": "namespace"}
    assert rows["managedLedgerOffloadReadThreads"]["origin"] == "default"
    assert "swordfish" not in json.dumps(described(policy))
