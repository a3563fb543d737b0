"""When a ledger is full, by Pulsar's settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from afterglow.config import BrokerConfig

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class RolloverLimits:
    """Bounds of one ledger."""

    max_entries: int
    max_bytes: int
    min_age_s: float
    """No limit closes a ledger that is not older; 0: any age will do."""
    max_age_s: float
    """0: age does not matter."""
    max_idle_s: float
    """0: idleness does not matter."""

    @classmethod
    def from_config(cls, config: BrokerConfig) -> RolloverLimits:
        """The limits that a configuration gives."""
        return cls(
            config.managed_ledger_max_entries_per_ledger,
            config.managed_ledger_max_size_per_ledger_mbytes * _MIB,
            config.managed_ledger_min_ledger_rollover_time_minutes * 60.0,
            config.managed_ledger_max_ledger_rollover_time_minutes * 60.0,
            config.managed_ledger_inactive_ledger_rollover_time_seconds * 1.0,
        )

    def full(self, entries: int, size_bytes: int, age_s: float) -> bool:
        """Whether a ledger with so much in it is to be followed by another. An empty one never is."""
        if not entries or (self.min_age_s and age_s <= self.min_age_s):
            return False
        old = self.max_age_s > 0 and age_s >= self.max_age_s
        return entries >= self.max_entries or size_bytes >= self.max_bytes or old

    def idle(self, entries: int, idle_s: float) -> bool:
        """Whether a ledger was left alone for so long that it is to be closed."""
        return entries > 0 and 0 < self.max_idle_s <= idle_s
