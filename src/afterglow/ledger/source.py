"""Where a topic's entries come from, the tail cache aside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from afterglow.errors import LedgerMissing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.hot.log import HotLog

EntryData: TypeAlias = bytes | memoryview
"""An entry as stored, with the broker's metadata in front."""


@dataclass(frozen=True, slots=True)
class EntryRun:
    """Consecutive entries of one ledger."""

    first: int
    """Id of the first; above the one that was asked for where damaged ones were left out."""
    entries: Sequence[EntryData]
    """May be empty only where damaged entries were left out up to the end of what was asked for."""
    tiered: bool = False
    """Whether a tier served them, not the hot log."""


class EntrySource(Protocol):
    """Reads the ledgers of one topic. Thread-safe."""

    def read(self, row: ManagedLedgerInfo.LedgerInfo, first: int, last: int, max_bytes: int) -> EntryRun:
        """Entries from ``first`` to ``last``, both inclusive: at least one, further ones while within ``max_bytes``.

        Args:
            row: The ledger, as the newest list has it; not to be changed.
            first: First entry wanted.
            last: Last entry wanted; readers may see it.
            max_bytes: Bound for all entries but the first.

        Raises:
            LedgerMissing: No copy can be read.
            AfterglowError: They cannot be read.
        """
        ...


Sources: TypeAlias = "Callable[[str], EntrySource]"
"""Gives the source of a topic by its managed-ledger name."""


class HotSource:
    """Reads the hot log and nothing else."""

    def __init__(self, name: str, hot: HotLog) -> None:
        self._name = name
        self._hot = hot

    def read(self, row: ManagedLedgerInfo.LedgerInfo, first: int, last: int, max_bytes: int) -> EntryRun:
        """Entries of one ledger; see the protocol."""
        if not row.offloadContext.bookkeeperDeleted:
            try:
                return read_hot(self._hot, row.ledgerId, first, last, max_bytes)
            except LedgerMissing:
                pass
        raise LedgerMissing(
            f"{self._name} cannot read {row.ledgerId}:{first}: the hot copy of the ledger is gone and no tier is "
            "configured to read it from; set managedLedgerOffloadDriver"
        )


def read_hot(hot: HotLog, ledger_id: int, first: int, last: int, max_bytes: int) -> EntryRun:
    """Entries of a hot ledger; see :meth:`EntrySource.read`.

    Raises:
        LedgerMissing: The hot log has no such ledger, or not the entry.
        CorruptBlock: What is stored is damaged.
    """
    ledger = hot.open(ledger_id)
    try:
        # Of frames, which are a few bytes longer than the entries that are asked for.
        ends = ledger.offsets(first, last)
    except IndexError as error:
        raise LedgerMissing(f"the hot copy of ledger {ledger_id} ends before entry {last}") from error
    fitting = int((ends[1:] - ends[0]).searchsorted(max_bytes, side="right"))
    run = ledger.read(first, min(last, first + max(fitting, 1) - 1))
    if not run:
        raise LedgerMissing(f"the hot copy of ledger {ledger_id} has no entry {first}")
    return EntryRun(first, run)
