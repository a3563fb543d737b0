"""Policies of attached topics: flags of the process, and the policy file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from afterglow.attach.policies import AttachPolicies, PolicyFile, read_policy_file
from afterglow.config import BrokerConfig
from afterglow.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

ORDERS = "public/default/persistent/orders"


def policies(tmp_path: Path, text: str, config: BrokerConfig | None = None) -> AttachPolicies:
    path = tmp_path / "attach.toml"
    path.write_text(text)
    return AttachPolicies(config or BrokerConfig(), read_policy_file(path))


def test_the_last_table_that_matches_wins_and_is_the_origin(tmp_path: Path) -> None:
    found = policies(
        tmp_path,
        "[policies]\nmaxOffloadSegmentRolloverTimeInSeconds = 600\n"
        '[topics."public/default/.*"]\nmaxOffloadSegmentRolloverTimeInSeconds = 300\n'
        '[topics."public/default/orders"]\nmaxOffloadSegmentRolloverTimeInSeconds = 30\n',
    )
    policy = found.of(f"{ORDERS}-partition-1")
    assert policy.max_offload_segment_rollover_time_in_seconds == 30
    assert str(policy.origin("maxOffloadSegmentRolloverTimeInSeconds")) == (
        'attach.toml [topics."public/default/orders"]'
    )
    assert found.of("public/other/persistent/orders").max_offload_segment_rollover_time_in_seconds == 600


def test_hot_copies_are_never_due_for_deletion_since_the_ledgers_are_the_clusters() -> None:
    """Otherwise each poll would verify all objects of a topic before it deletes nothing."""
    config = BrokerConfig(managed_ledger_offload_deletion_lag_in_millis=1000)
    assert AttachPolicies(config, PolicyFile()).of(ORDERS).managed_ledger_offload_deletion_lag_in_millis is None


def test_a_policy_file_cannot_have_hot_copies_deleted(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the cluster deletes its ledgers"):
        policies(tmp_path, "[policies]\nmanagedLedgerOffloadDeletionLagInMillis = 1000\n")
