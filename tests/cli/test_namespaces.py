from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Cli


@pytest.fixture
def namespace(cli: Cli) -> str:
    name = f"public/n{uuid4().hex}"
    cli.do("namespaces", "create", name)
    return name


def policies(cli: Cli, namespace: str) -> Any:
    [found] = cli.rows("namespaces", "get-offload-policies", namespace)
    return found


def test_a_namespace_is_created_listed_and_deleted(cli: Cli, namespace: str) -> None:
    assert namespace in cli.do("namespaces", "list").splitlines()
    assert {"namespace": namespace} in cli.rows("namespaces", "list", "public")
    cli.do("namespaces", "delete", namespace)
    assert namespace not in cli.do("namespaces", "list")


def test_a_namespace_with_topics_is_not_deleted_and_the_servers_reason_is_shown(cli: Cli, namespace: str) -> None:
    cli.do("topics", "create", f"{namespace}/t")
    assert cli.do("namespaces", "topics", namespace) == f"persistent://{namespace}/t\n"
    assert namespace in cli.refused(1, "namespaces", "delete", namespace)
    assert "tenant nobody does not exist" in cli.refused(1, "namespaces", "create", "nobody/x")


def test_retention_is_set_in_pulsars_spelling_and_removed(cli: Cli, namespace: str) -> None:
    cli.do("namespaces", "set-retention", namespace, "--time", "3h", "--size", "10G")
    assert cli.rows("namespaces", "get-retention", namespace) == [
        {"retentionTimeInMinutes": 180, "retentionSizeInMB": 10240}
    ]
    cli.do("namespaces", "set-retention", namespace, "-t", "120", "-s", "-1")
    assert cli.rows("namespaces", "get-retention", namespace) == [
        {"retentionTimeInMinutes": 2, "retentionSizeInMB": -1}
    ]
    cli.do("namespaces", "remove-retention", namespace)
    assert cli.rows("namespaces", "get-retention", namespace) == [None]
    assert "not set" in cli.do("namespaces", "get-retention", namespace)


def test_a_retention_of_zero_says_what_it_deletes_and_needs_yes(cli: Cli, namespace: str) -> None:
    cli.do("namespaces", "set-retention", namespace, "--time", "3h", "--size", "10G")
    output = cli.refused(2, "namespaces", "set-retention", namespace, "--size", "0", "--time", "0")
    assert "keeps no acknowledged messages" in output
    assert f"{namespace} deletes them" in output
    assert "--yes" in output
    assert cli.rows("namespaces", "get-retention", namespace)[0]["retentionSizeInMB"] == 10240
    output = cli.do("namespaces", "set-retention", namespace, "--size", "0", "--time", "0", "--yes")
    assert output.startswith(f"{namespace} keeps no acknowledged messages: they are deleted, also from the tier")
    assert cli.rows("namespaces", "get-retention", namespace) == [{"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}]


@pytest.mark.parametrize(("time", "size"), [("0", "-1"), ("-1", "0"), ("0", "1G"), ("1h", "0")])
def test_one_limit_of_zero_is_refused_even_with_yes(cli: Cli, namespace: str, time: str, size: str) -> None:
    output = cli.refused(1, "namespaces", "set-retention", namespace, "-t", time, "-s", size, "--yes")
    assert "retains nothing: set both, -1 for no limit, or 0 and 0" in output
    assert cli.rows("namespaces", "get-retention", namespace) == [None]


def test_removing_a_retention_warns_that_the_brokers_default_may_delete(cli: Cli, namespace: str) -> None:
    assert "0 keeps no acknowledged messages" in cli.do("namespaces", "remove-retention", namespace)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("set-retention", "-t", "90", "-s", "1G"), "whole number of minutes"),
        (("set-retention", "-t", "1h", "-s", "1q"), "k, m, g or t"),
        (("set-retention", "-t", "1h"), "--size"),
        (("set-offload-threshold",), "--size SIZE, --time TIME"),
        (("set-offload-threshold", "-s", "-2"), "-1 is none"),
        (("set-offload-deletion-lag", "-l", "soon"), "as in 10m"),
        (("set-data-read-priority", "cold-first"), "bookkeeper-first"),
        (("set-offload-policies",), "nothing to change"),
        (("set-offload-policies", "--set", "x"), "NAME=VALUE"),
        (("set-offload-policies", "--extra-config", "=x"), "NAME=VALUE"),
        (("set-offload-policies", "--set", "managedLedgerExtraConfigurations=x"), "key=value pairs"),
        (("set-offload-policies", "--unset", "fileSystemURI"), "not set at this level"),
        (("set-offload-policies", "-d", "aws-s3", "-b", "b"), "--region or --endpoint"),
    ],
)
def test_wrong_usage_changes_nothing_and_exits_2(cli: Cli, namespace: str, args: tuple[str, ...], words: str) -> None:
    before = cli.rows("namespaces", "policies", namespace)
    command, *rest = args
    assert words in cli.refused(2, "namespaces", command, namespace, *rest)
    assert cli.rows("namespaces", "policies", namespace) == before


def test_a_namespace_that_is_not_well_formed_exits_2(cli: Cli) -> None:
    assert "TENANT/NAMESPACE" in cli.refused(2, "namespaces", "policies", "public")


def test_only_the_offload_policies_that_are_given_change(cli: Cli, namespace: str) -> None:
    assert policies(cli, namespace) is None
    first = ("-oat", "1G", "-oae", "4h", "--streaming", "--max-segment-size", "64M", "--max-segment-time", "10m")
    cli.do("namespaces", "set-offload-policies", namespace, *first)
    cli.do("namespaces", "set-offload-policies", namespace, "--no-streaming", "-orp", "tiered-first")
    assert policies(cli, namespace) == {
        "managedLedgerOffloadThresholdInBytes": 1 << 30,
        "managedLedgerOffloadDeletionLagInMillis": 4 * 3_600_000,
        "managedLedgerOffloadedReadPriority": "TIERED_STORAGE_FIRST",
        "streamingOffloadEnabled": False,
        "maxSizePerOffloadSegmentMbytes": 64,
        "maxOffloadSegmentRolloverTimeMinutes": 10,
    }
    cli.do("namespaces", "remove-offload-policies", namespace)
    assert policies(cli, namespace) is None


def test_a_segments_limits_change_between_whole_and_finer_units(cli: Cli, namespace: str) -> None:
    for size, time in (("64M", "10m"), ("100k", "5s"), ("1M", "60s")):
        cli.do("namespaces", "set-offload-policies", namespace, "--max-segment-size", size, "--max-segment-time", time)
    assert policies(cli, namespace) == {"maxSizePerOffloadSegmentMbytes": 1, "maxOffloadSegmentRolloverTimeMinutes": 1}


def test_a_secret_is_shown_masked_and_survives_other_changes(cli: Cli, namespace: str) -> None:
    s3 = ("-d", "S3", "-b", "bucket", "-e", "http://127.0.0.1:1", "--aws-id", "id", "--aws-secret", "hunter2")
    cli.do("namespaces", "set-offload-policies", namespace, *s3)
    cli.do("namespaces", "set-offload-policies", namespace, "-mbs", "32M")
    found = policies(cli, namespace)
    assert "hunter2" not in str(found)
    assert found["s3ManagedLedgerOffloadCredentialId"] == "id"
    assert found["managedLedgerOffloadMaxBlockSizeInBytes"] == 32 << 20
    assert found["s3ManagedLedgerOffloadBucket"] == found["managedLedgerOffloadBucket"] == "bucket"


def test_settings_without_a_flag_are_set_and_unset_by_name(cli: Cli, namespace: str) -> None:
    cli.do("namespaces", "set-offload-policies", namespace, "--set", "offloadThrottlingRatePerTopicInBytes=10M")
    assert policies(cli, namespace) == {"offloadThrottlingRatePerTopicInBytes": 10 << 20}
    assert "did you mean" in cli.refused(
        1, "namespaces", "set-offload-policies", namespace, "--set", "offloadThrotlingRatePerTopicInBytes=1"
    )
    cli.do("namespaces", "set-offload-policies", namespace, "--unset", "offloadThrottlingRatePerTopicInBytes")
    assert policies(cli, namespace) is None


def test_properties_of_a_driver_are_added_replaced_and_removed(cli: Cli, namespace: str) -> None:
    def change(*args: str) -> Any:
        cli.do("namespaces", "set-offload-policies", namespace, *args)
        found = policies(cli, namespace)
        return None if found is None else found["managedLedgerExtraConfigurations"]

    whole, prefix = "managedLedgerExtraConfigurations", "managedLedgerOffloadExtraConfig"
    assert change("--extra-config", "a=1", "--extra-config", "url=http://h/?x=1,2") == {
        "a": "1",
        "url": "http://h/?x=1,2",
    }
    assert change("--extra-config", "a=2", "--set", f"{prefix}b=3") == {"a": "2", "b": "3", "url": "http://h/?x=1,2"}
    assert change("--unset", f"{prefix}a") == {"b": "3", "url": "http://h/?x=1,2"}
    assert change("--set", f"{whole}=c=4,d=5") == {"c": "4", "d": "5"}
    assert change("--set", f"{whole}=c=4", "--extra-config", "e=6") == {"c": "4", "e": "6"}
    assert change("--unset", whole) is None
    assert change("--extra-config", "a=1") == {"a": "1"}
    assert change("--unset", "a") is None


def test_an_unknown_driver_is_refused_with_the_servers_reason(cli: Cli, namespace: str) -> None:
    assert "support value" in cli.refused(1, "namespaces", "set-offload-policies", namespace, "-d", "floppy")


def test_thresholds_are_set_together_or_alone(cli: Cli, namespace: str) -> None:
    unset = "offloadThresholdInBytes: -1\noffloadThresholdInSeconds: -1\n"
    assert cli.do("namespaces", "get-offload-threshold", namespace) == unset
    cli.do("namespaces", "set-offload-threshold", namespace, "--size", "5M", "--time", "1h")
    cli.do("namespaces", "set-offload-threshold", namespace, "-s", "6M")
    assert cli.rows("namespaces", "get-offload-threshold", namespace) == [
        {"offloadThresholdInBytes": 6 << 20, "offloadThresholdInSeconds": 3600}
    ]


def test_the_deletion_lag_is_in_seconds_without_a_unit_and_can_be_cleared(cli: Cli, namespace: str) -> None:
    cli.do("namespaces", "set-offload-deletion-lag", namespace, "--lag", "120")
    assert cli.do("namespaces", "get-offload-deletion-lag", namespace) == "2 minute(s)\n"
    assert cli.rows("namespaces", "get-offload-deletion-lag", namespace) == [{"offloadDeletionLagMs": 120_000}]
    cli.do("namespaces", "clear-offload-deletion-lag", namespace)
    assert cli.do("namespaces", "get-offload-deletion-lag", namespace).startswith("Unset for namespace.")


def test_the_read_priority_takes_every_spelling_and_can_be_removed(cli: Cli, namespace: str) -> None:
    for word, shown in (
        ("bookkeeper-first", "bookkeeper-first"),
        ("tiered-first", "tiered-storage-first"),
        ("BOOKKEEPER_FIRST", "bookkeeper-first"),
    ):
        cli.do("namespaces", "set-data-read-priority", namespace, word)
        assert cli.do("namespaces", "get-data-read-priority", namespace) == f"{shown}\n"
    assert policies(cli, namespace) == {"managedLedgerOffloadedReadPriority": "BOOKKEEPER_FIRST"}
    cli.do("namespaces", "remove-data-read-priority", namespace)
    assert cli.rows("namespaces", "get-data-read-priority", namespace) == [{"dataReadPriority": None}]


def test_the_read_priority_is_set_as_pip_73_writes_it(cli: Cli, namespace: str) -> None:
    topic = f"{namespace}/t"
    cli.do("topics", "create", topic)
    for group, name in (("namespaces", namespace), ("topics", topic)):
        output = cli.do(group, "--set-data-read-priority", "bookkeeper-first", name)
        assert output == cli.do(group, "set-data-read-priority", name, "bookkeeper-first")
        assert cli.do(group, "get-data-read-priority", name) == "bookkeeper-first\n"
        assert cli.rows(group, "--set-data-read-priority=tiered-first", name) == []
        assert cli.do(group, "get-data-read-priority", name) == "tiered-storage-first\n"
        assert "bookkeeper-first" in cli.refused(2, group, "--set-data-read-priority", "cold-first", name)
        assert "the name after" in cli.refused(2, group, "--set-data-read-priority", "bookkeeper-first")
        assert "a command is missing" in cli.refused(2, group, "--admin-url", "http://127.0.0.1:1")
    assert "invalid namespace" in cli.refused(2, "namespaces", "--set-data-read-priority", "tiered-first", "public")
    assert cli.do("namespaces", "get-data-read-priority", namespace) == "tiered-storage-first\n"


def test_a_retention_below_a_threshold_is_refused_with_both_values(cli: Cli, namespace: str) -> None:
    cli.do("namespaces", "set-retention", namespace, "-t", "-1", "-s", "100M")
    cli.do("namespaces", "set-offload-threshold", namespace, "-s", "50M")
    output = cli.refused(1, "namespaces", "set-retention", namespace, "-t", "-1", "-s", "50M")
    assert "managedLedgerOffloadThresholdInBytes=52428800 (namespace policies)" in output
    assert "retentionSizeInMB=50 (namespace policies)" in output
    assert cli.rows("namespaces", "get-retention", namespace)[0]["retentionSizeInMB"] == 100


def test_a_namespace_is_unloaded(cli: Cli, namespace: str) -> None:
    cli.do("topics", "create", f"{namespace}/t")
    assert cli.do("namespaces", "unload", namespace) == f"unloaded {namespace}\n"
    assert cli.rows("topics", "stats", f"{namespace}/t")[0]["storageSize"] == 0
