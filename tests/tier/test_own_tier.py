from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from afterglow.config import BrokerConfig
from afterglow.errors import ConfigError
from afterglow.server.process import summarize
from afterglow.tier.locations import TierLocation, own_tier

if TYPE_CHECKING:
    from pathlib import Path


def test_by_default_the_tier_is_a_directory_in_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir()

    location = own_tier((tmp_path / "home").relative_to(tmp_path), None, BrokerConfig())

    assert location == TierLocation("filesystem", str(tmp_path / "home/tier"))
    assert (tmp_path / "home/tier").is_dir()
    assert own_tier(tmp_path / "home", None, BrokerConfig()) == location


def test_a_directory_that_is_given_must_be_there(tmp_path: Path) -> None:
    assert own_tier(tmp_path, tmp_path.as_uri(), BrokerConfig()) == TierLocation("filesystem", str(tmp_path))
    with pytest.raises(ConfigError, match=r"--tier file:.*/absent: directory .* is missing; .* mount its disk"):
        own_tier(tmp_path, (tmp_path / "absent").as_uri(), BrokerConfig())
    assert not (tmp_path / "absent").exists()


def test_a_tier_that_dies_with_the_process_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--tier memory:// would be lost with this process; use file:///path"):
        own_tier(tmp_path, "memory://", BrokerConfig())


@pytest.mark.parametrize("tier", ["gs://bucket", "az://container"])
def test_a_reserved_tier_is_refused(tmp_path: Path, tier: str) -> None:
    with pytest.raises(ConfigError, match=r"--tier .*not available in this release; use s3:// or file://"):
        own_tier(tmp_path, tier, BrokerConfig())


@pytest.mark.parametrize("prefix", ["s3_managed_ledger_offload_", "managed_ledger_offload_"])
def test_region_and_endpoint_of_the_settings_hold_for_the_given_bucket(tmp_path: Path, prefix: str) -> None:
    settings = {f"{prefix}region": "eu-north-1", f"{prefix}service_endpoint": "http://127.0.0.1:9000"}
    config = BrokerConfig(**settings)  # type: ignore[arg-type]  # settings by name

    location = own_tier(tmp_path, "s3://bucket/below", config)

    assert location == TierLocation("S3", "bucket", "eu-north-1", "http://127.0.0.1:9000", "below")


OWN = TierLocation("filesystem", "/home/tier")


@pytest.mark.parametrize(
    ("settings", "target", "said"),
    [
        ({}, OWN, "tier file:///home/tier, offload of closed ledgers on request, retention until acknowledged"),
        (
            {
                "managed_ledger_offload_threshold_in_bytes": 1000,
                "managed_ledger_offload_threshold_in_seconds": 60,
                "default_retention_time_in_minutes": 90,
                "default_retention_size_in_mb": -1,
            },
            TierLocation("aws-s3", "b"),
            "tier s3://b, offload of closed ledgers past 1000 bytes or 60 s after close, retention 90 min",
        ),
        (
            {
                "managed_ledger_offload_threshold_in_bytes": 0,
                "default_retention_time_in_minutes": 90,
                "default_retention_size_in_mb": 512,
            },
            OWN,
            "tier file:///home/tier, offload of closed ledgers on close, retention 90 min and 512 MiB",
        ),
        (
            {
                "streaming_offload_enabled": True,
                "default_retention_time_in_minutes": -1,
                "default_retention_size_in_mb": -1,
            },
            TierLocation("tape", "room 7"),
            "tier tape://room 7, offload while written (streaming), retention for ever",
        ),
    ],
)
def test_a_line_reports_tier_method_retention(settings: dict[str, object], target: TierLocation, said: str) -> None:
    assert summarize(BrokerConfig(**settings), target) == said  # type: ignore[arg-type]  # settings by name
