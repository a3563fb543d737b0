"""Which ledgers a topic may let go of: pure functions.

A ledger may go once it is consumed and retention no longer holds it. Ledgers go from the oldest on, and the first that
is kept keeps all behind it, so that the log never gets a hole. The last ledger of the list is never let go of: it is
being written, or marks where the topic ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from afterglow.config import BrokerConfig
    from afterglow.format.position import Position
    from afterglow.ledger.ledger_list import LedgerRecord

_MIB = 1024 * 1024
_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class Retention:
    """How long consumed ledgers are kept, with Pulsar's meaning of the numbers."""

    time_ms: int
    """Kept until older than this; 0: not kept; negative: age does not matter."""
    size_bytes: int
    """Kept while what follows is less than this; 0: not kept; negative: size does not matter."""

    @classmethod
    def from_config(cls, config: BrokerConfig) -> Retention:
        """The broker's default."""
        return cls.of(config.default_retention_time_in_minutes, config.default_retention_size_in_mb)

    @classmethod
    def of(cls, minutes: int, megabytes: int) -> Retention:
        """From the numbers of a policy: -1 is without limit."""
        return cls(
            -1 if minutes < 0 else minutes * _MINUTE_MS,
            -1 if megabytes < 0 else megabytes * _MIB,
        )


def consumed_before(mark_deletes: Iterable[Position], ledgers: Sequence[LedgerRecord]) -> int | None:
    """The id below which every ledger is consumed by every cursor; None where there is no cursor to wait for."""
    slowest = min(mark_deletes, default=None)
    if slowest is None:
        return None
    entries = next((row.entries for row in ledgers if row.ledger_id == slowest.ledger_id), None)
    whole = entries is not None and slowest.entry_id >= entries - 1
    return slowest.ledger_id + 1 if whole else slowest.ledger_id


def ledgers_to_trim(
    ledgers: Sequence[LedgerRecord],
    below: int | None,
    retention: Retention,
    now_ms: int,
    in_use: Callable[[int], bool],
) -> list[int]:
    """Ids of the ledgers that may go.

    Args:
        ledgers: The list, ascending.
        below: Only ledgers below this id are consumed; None: all are.
        retention: How long consumed ledgers are kept.
        now_ms: Epoch milliseconds.
        in_use: Whether something else still needs the ledger; such a one stays, and all behind it.
    """
    total = sum(row.size_bytes or 0 for row in ledgers)
    going: list[int] = []
    for row in ledgers[:-1]:
        if not row.finished or (below is not None and row.ledger_id >= below) or in_use(row.ledger_id):
            break
        total -= row.size_bytes or 0
        too_old = 0 <= retention.time_ms < now_ms - row.closed_ms
        too_much = 0 <= retention.size_bytes <= total
        if not too_old and not too_much:
            break
        going.append(row.ledger_id)
    return going


def ledgers_to_truncate(ledgers: Sequence[LedgerRecord], in_use: Callable[[int], bool]) -> list[int]:
    """Ids of the ledgers that go when everything is to go: all from the oldest on that nothing else needs."""
    going: list[int] = []
    for row in ledgers[:-1]:
        if not row.finished or in_use(row.ledger_id):
            break
        going.append(row.ledger_id)
    return going
