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
class EntrySlice:
    """Consecutive entries of one ledger."""

    first: int
    """Id of the first; above the one that was asked for where damaged ones were left out."""
    entries: Sequence[EntryData]
    """May be empty only where damaged entries were left out up to the end of what was asked for."""
    tiered: bool = False
    """Whether a tier served them, not the hot log."""


class EntrySource(Protocol):
    """Reads the ledgers of one topic. Thread-safe."""

    def read(self, row: ManagedLedgerInfo.LedgerInfo, first: int, last: int, max_bytes: int) -> EntrySlice:
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

    def probe(self, row: ManagedLedgerInfo.LedgerInfo, first: int, last: int, max_bytes: int) -> EntrySlice:
        """The same for a search for a position, which is not a read by a consumer.

        The cheapest copy serves whatever the read priority, and the entries are not counted as read.

        Raises:
            LedgerMissing: No copy can be read.
            AfterglowError: They cannot be read.
        """
        ...

    def narrow(self, row: ManagedLedgerInfo.LedgerInfo, entries: range, time_ms: int, *, stamped: bool) -> range:
        """Some of these entries: if any of them was written at or after a moment, the first such is among those.

        Uses what is known without reading entries one by one. Returns all of them where nothing is known.

        Args:
            row: The ledger, as the newest list has it; not to be changed.
            entries: Ids of its entries; at least one.
            time_ms: The moment, epoch milliseconds.
            stamped: Entries are searched by broker time, and the last one has a broker time at or after the moment. If
                False they are searched by broker time or else publish time; an empty range then means that none of
                them was written at or after the moment.

        Raises:
            StoreUnavailable: The tier has the only copy and cannot be reached.
        """
        ...


Sources: TypeAlias = "Callable[[str], EntrySource]"
"""Gives the source of a topic by its managed-ledger name."""


class HotSource:
    """Reads the hot log and nothing else."""

    def __init__(self, name: str, hot: HotLog) -> None:
        self._name = name
        self._hot = hot

    def read(self, row: ManagedLedgerInfo.LedgerInfo, first: int, last: int, max_bytes: int) -> EntrySlice:
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

    probe = read

    def narrow(self, _row: ManagedLedgerInfo.LedgerInfo, entries: range, _time_ms: int, *, stamped: bool) -> range:
        """All entries: a probe of the hot log costs next to nothing."""
        del stamped
        return entries


def read_hot(hot: HotLog, ledger_id: int, first: int, last: int, max_bytes: int) -> EntrySlice:
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
    return EntrySlice(first, run)
