"""Selection of the ledgers to trim: pure functions.

A ledger is trimmed once it is consumed and past retention. Ledgers are trimmed from the oldest on, and the first that
is kept keeps all later ones, so that the log never gets a hole. The last ledger of the list is never trimmed: it is
being written, or marks the end of the topic.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from afterglow.config import BrokerConfig
    from afterglow.format.position import Position
    from afterglow.ledger.ledger_list import LedgerRecord

_MIB = 1024 * 1024
_MINUTE_MS = 60_000
_TIME: Final = "defaultRetentionTimeInMinutes"
_SIZE: Final = "defaultRetentionSizeInMB"


@dataclass(frozen=True, slots=True)
class Retention:
    """How long consumed ledgers are kept, with Pulsar's meaning of the numbers."""

    time_ms: int
    """Ledgers are kept until older than this; 0: not kept; negative: no limit by age."""
    size_bytes: int
    """Ledgers are kept while later ones are smaller than this; 0: not kept; negative: no limit by size."""
    policy: str = field(default="", compare=False)
    """The settings that it comes from, with their origins, for the log."""

    @classmethod
    def from_config(cls, config: BrokerConfig) -> Retention:
        """From the effective policy of a topic, or the settings of the broker."""
        minutes, megabytes = config.default_retention_time_in_minutes, config.default_retention_size_in_mb
        policy = f"{_given(config, _TIME, minutes)}, {_given(config, _SIZE, megabytes)}"
        return replace(cls.of(minutes, megabytes), policy=policy)

    @classmethod
    def of(cls, minutes: int, megabytes: int) -> Retention:
        """From the numbers of a policy; -1: no limit."""
        return cls(
            -1 if minutes < 0 else minutes * _MINUTE_MS,
            -1 if megabytes < 0 else megabytes * _MIB,
        )


def _given(config: BrokerConfig, key: str, value: int) -> str:
    return f"{key}={value} ({config.origin(key)})"


def consumed_before(mark_deletes: Iterable[Position], ledgers: Sequence[LedgerRecord]) -> int | None:
    """The id below which every ledger is consumed by every cursor; None if there are no cursors."""
    slowest = min(mark_deletes, default=None)
    if slowest is None:
        return None
    entries = next((ledger.entries for ledger in ledgers if ledger.ledger_id == slowest.ledger_id), None)
    whole = entries is not None and slowest.entry_id >= entries - 1
    return slowest.ledger_id + 1 if whole else slowest.ledger_id


def ledgers_to_trim(
    ledgers: Sequence[LedgerRecord],
    below: int | None,
    retention: Retention,
    now_ms: int,
    in_use: Callable[[int], bool],
) -> list[int]:
    """Ids of the ledgers to trim.

    Args:
        ledgers: The list, ascending.
        below: Only ledgers below this id are consumed; None: all are.
        retention: How long consumed ledgers are kept.
        now_ms: Epoch milliseconds.
        in_use: Whether a ledger is being offloaded; it stays then, with all later ones.
    """
    total = sum(ledger.size_bytes or 0 for ledger in ledgers)
    chosen: list[int] = []
    for ledger in ledgers[:-1]:
        if not ledger.finished or (below is not None and ledger.ledger_id >= below) or in_use(ledger.ledger_id):
            break
        total -= ledger.size_bytes or 0
        too_old = 0 <= retention.time_ms < now_ms - ledger.closed_ms
        too_much = 0 <= retention.size_bytes <= total
        if not too_old and not too_much:
            break
        chosen.append(ledger.ledger_id)
    return chosen


def ledgers_to_truncate(ledgers: Sequence[LedgerRecord], in_use: Callable[[int], bool]) -> list[int]:
    """Ids of the ledgers to truncate: all from the oldest on, up to the first that is being offloaded."""
    chosen: list[int] = []
    for ledger in ledgers[:-1]:
        if not ledger.finished or in_use(ledger.ledger_id):
            break
        chosen.append(ledger.ledger_id)
    return chosen
