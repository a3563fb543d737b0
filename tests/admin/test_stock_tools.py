"""Offload policies set and shown by Pulsar's own ``pulsar-admin``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.commands import CommandFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.admin.conftest import Admin
    from tests.support.java_tools import JavaTools

# The first run fetches the tools, which takes minutes.
pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(900)]

NAMESPACE = "public/default"
TOPIC = "persistent://public/default/t"
STORE = ("--driver", "S3", "--bucket", "b", "--endpoint", "http://127.0.0.1:9", "--aws-id", "id", "--aws-secret", "key")


@pytest.fixture
def admin(start: Callable[..., Admin]) -> Admin:
    return start(offload=True, default_retention_size_in_mb=-1, default_retention_time_in_minutes=-1)


def shown(output: str) -> Any:
    return json.loads(output[output.index("{") : output.rindex("}") + 1])


def test_pulsar_admin_sets_shows_and_removes_policies_of_a_namespace(tools: JavaTools, admin: Admin) -> None:
    tools.admin(
        "namespaces", "set-offload-policies", NAMESPACE, *STORE,
        "-oat", "10M", "-oats", "1h", "-oae", "2h", "-orp", "bookkeeper-first", "-mbs", "32M",
    )  # fmt: skip
    found = shown(tools.admin("namespaces", "get-offload-policies", NAMESPACE))
    assert found["managedLedgerOffloadThresholdInBytes"] == 10 << 20
    assert found["managedLedgerOffloadThresholdInSeconds"] == 3600
    assert found["managedLedgerOffloadDeletionLagInMillis"] == 2 * 3_600_000
    assert found["managedLedgerOffloadedReadPriority"] == "BOOKKEEPER_FIRST"
    assert found["managedLedgerOffloadMaxBlockSizeInBytes"] == 32 << 20
    assert "10485760" in tools.admin("namespaces", "get-offload-threshold", NAMESPACE)
    tools.admin("namespaces", "set-offload-threshold", NAMESPACE, "--size", "1M")
    assert admin.get(f"namespaces/{NAMESPACE}/offloadThreshold") == 1 << 20
    assert admin.get(f"namespaces/{NAMESPACE}/offloadThresholdInSeconds") == -1
    tools.admin("namespaces", "set-offload-deletion-lag", NAMESPACE, "--lag", "3m")
    assert "3 minute" in tools.admin("namespaces", "get-offload-deletion-lag", NAMESPACE)
    tools.admin("namespaces", "clear-offload-deletion-lag", NAMESPACE)
    assert "Unset for namespace" in tools.admin("namespaces", "get-offload-deletion-lag", NAMESPACE)
    tools.admin("namespaces", "remove-offload-policies", NAMESPACE)
    assert admin.call("GET", f"namespaces/{NAMESPACE}/offloadPolicies").status == 204


def test_pulsar_admin_sets_shows_and_removes_policies_of_a_topic(tools: JavaTools, admin: Admin) -> None:
    path = "persistent/public/default/t"
    admin.do("PUT", path)
    tools.admin("topics", "set-offload-policies", TOPIC, *STORE, "--offloadedReadPriority", "tiered-storage-first")
    assert admin.get(f"{path}/dataReadPriority") == "TIERED_STORAGE_FIRST"
    found = shown(tools.admin("topics", "get-offload-policies", TOPIC, "--applied"))
    assert found["managedLedgerOffloadDriver"] == "S3"
    assert found["managedLedgerOffloadDeletionLagInMillis"] == 4 * 3_600_000
    tools.admin("topics", "remove-offload-policies", TOPIC)
    assert admin.call("GET", f"{path}/offloadPolicies").status == 204
    tools.admin("topicPolicies", "set-offload-policies", TOPIC, *STORE, "-t", "1000")
    assert admin.get(f"{path}/offloadPolicies")["managedLedgerOffloadThresholdInBytes"] == 1000


def test_pulsar_admin_offloads_a_topic_and_shows_the_status(tools: JavaTools, admin: Admin) -> None:
    path = "persistent/public/default/t"
    admin.do("PUT", path)
    *older, newest = admin.write_ledgers(3)
    assert "not been run" in tools.admin("topics", "offload-status", TOPIC)
    current = max(row["ledgerId"] for row in admin.get(f"{path}/internalStats")["ledgers"])
    assert current > newest
    assert f"messages before {current}:0:-1" in tools.admin("topics", "offload", TOPIC, "-s", "0")
    admin.offloading.begin()
    assert "currently running" in tools.admin("topics", "offload-status", TOPIC)
    assert "Offload already in progress" in str(_failed(tools))
    admin.offloading.finish()
    assert "was a success" in tools.admin("topics", "offload-status", TOPIC, "-w")
    rows = admin.get(f"{path}/internalStats")["ledgers"]
    assert [row["ledgerId"] for row in rows if row["offloaded"]] == [*older, newest]


def _failed(tools: JavaTools) -> object:
    with pytest.raises(CommandFailed) as failed:
        tools.admin("topics", "offload", TOPIC, "-s", "0")
    return failed.value
