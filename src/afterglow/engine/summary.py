"""What holds for a topic without policies of its own, in one line for whoever starts an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from afterglow.config import BrokerConfig
    from afterglow.read.places import TierPlace


def summarize(config: BrokerConfig, target: TierPlace) -> str:
    """Tier, offload method and retention.

    Args:
        config: The broker's settings.
        target: The tier of topics without policies of their own.
    """
    return f"tier {target}, offload {_method(config)}, retention {_retention(config)}"


def _method(config: BrokerConfig) -> str:
    if config.streaming_offload_enabled:
        return "while written (streaming)"
    due = []
    if (kept := config.managed_ledger_offload_threshold_in_bytes) >= 0:
        due.append(f"past {kept} bytes" if kept else "on close")
    if (age := config.managed_ledger_offload_threshold_in_seconds) >= 0:
        due.append(f"{age} s after close")
    return f"of closed ledgers {' or '.join(due) or 'on request'}"


def _retention(config: BrokerConfig) -> str:
    """Of acknowledged messages; others stay."""
    minutes, mebibytes = config.default_retention_time_in_minutes, config.default_retention_size_in_mb
    if 0 in {minutes, mebibytes}:
        return "until acknowledged"
    bounds = [f"{minutes} min"] * (minutes > 0) + [f"{mebibytes} MiB"] * (mebibytes > 0)
    return " and ".join(bounds) or "for ever"
