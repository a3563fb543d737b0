from __future__ import annotations

from afterglow.broker.policies import resolve
from afterglow.config import BrokerConfig
from afterglow.ledger.retention import Retention

CONFIG = BrokerConfig(
    default_retention_time_in_minutes=7, default_retention_size_in_mb=8, ttl_duration_default_in_seconds=9
)


def test_what_is_not_set_is_the_brokers_default() -> None:
    found = resolve({}, CONFIG)
    assert found.retention == Retention.of(7, 8)
    assert found.ttl_ms == 9_000


def test_what_the_namespace_sets_wins() -> None:
    stored = {
        "retention_policies": {"retentionTimeInMinutes": -1, "retentionSizeInMB": 5},
        "message_ttl_in_seconds": 0,
    }
    found = resolve(stored, CONFIG)
    assert found.retention == Retention.of(-1, 5)
    assert found.ttl_ms == 0
