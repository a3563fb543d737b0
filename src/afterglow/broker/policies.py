"""What a namespace's policies ask of its topics: pure functions over Pulsar's JSON, with the broker's own defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from afterglow.ledger.retention import Retention

if TYPE_CHECKING:
    from collections.abc import Mapping

    from afterglow.config import BrokerConfig


@dataclass(frozen=True, slots=True)
class TopicPolicies:
    """What holds for one topic."""

    retention: Retention
    ttl_ms: int
    """Age at which messages count as acknowledged; 0: never."""


def resolve(policies: Mapping[str, Any], config: BrokerConfig) -> TopicPolicies:
    """Policies of a topic, from those stored for its namespace; what is not set there is the broker's default."""
    retention = Retention.from_config(config)
    stored = policies.get("retention_policies")
    if stored is not None:
        retention = Retention.of(stored["retentionTimeInMinutes"], stored["retentionSizeInMB"])
    ttl_s = policies.get("message_ttl_in_seconds")
    return TopicPolicies(retention, 1000 * (config.ttl_duration_default_in_seconds if ttl_s is None else ttl_s))
