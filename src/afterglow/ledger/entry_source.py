"""Sources of entries that are not in memory: the seam between managed ledgers and the tier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from afterglow.errors import LedgerMissing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.hot.log import HotLog

EntryData: TypeAlias = bytes | memoryview
"""An entry as stored, with the broker entry metadata in front."""


@dataclass(frozen=True, slots=True)
class EntrySlice:
    """Consecutive entries of one ledger."""

    first: int
    """Id of the first; above the requested one if damaged entries were skipped."""
    entries: Sequence[EntryData]
    """Empty only if damaged entries were skipped up to the end of the requested range."""
    tiered: bool = False
    """Whether a tier served them, rather than the hot log."""


class EntrySource(Protocol):
    """Reads the ledgers of one topic. Thread-safe."""

    def read(self, info: ManagedLedgerInfo.LedgerInfo, first: int, last: int, max_bytes: int) -> EntrySlice:
        """Entries from ``first`` to ``last``, both inclusive: at least one, further ones while within ``max_bytes``.

        Args:
            info: The ledger, as the newest list has it; not to be changed.
            first: First requested entry.
            last: Last requested entry; it is confirmed.
            max_bytes: Bound for all entries but the first.

        Raises:
            LedgerMissing: No copy can be read.
            AfterglowError: They cannot be read.
        """
        ...

    def probe(self, info: ManagedLedgerInfo.LedgerInfo, first: int, last: int, max_bytes: int) -> EntrySlice:
        """As :meth:`read`, for a search by time rather than a consumer.

        The cheapest copy serves it regardless of the read priority, and the entries are not counted as read.

        Raises:
            LedgerMissing: No copy can be read.
            AfterglowError: They cannot be read.
        """
        ...

    def narrow(self, info: ManagedLedgerInfo.LedgerInfo, entries: range, time_ms: int, *, stamped: bool) -> range:
        """A part of these entries that contains the first one written at or after a time, if any is.

        Uses indexes, without reading entries one by one. Returns all of them if no index helps.

        Args:
            info: The ledger, as the newest list has it; not to be changed.
            entries: Ids of its entries; at least one.
            time_ms: The time, epoch milliseconds.
            stamped: Whether entries are searched by broker time, and the last one's is at or after ``time_ms``. If
                False they are searched by broker time or else publish time; an empty range then means that none of
                them was written at or after that time.

        Raises:
            StoreUnavailable: The tier has the only copy and cannot be reached.
        """
        ...


Sources: TypeAlias = "Callable[[str], EntrySource]"
"""Gives the source of a topic by its managed-ledger name."""


class HotSource:
    """An :class:`EntrySource` that reads the hot log only."""

    def __init__(self, name: str, hot: HotLog) -> None:
        self._name = name
        self._hot = hot

    def read(self, info: ManagedLedgerInfo.LedgerInfo, first: int, last: int, max_bytes: int) -> EntrySlice:
        """Entries of one ledger; see the protocol."""
        if not info.offloadContext.bookkeeperDeleted:
            try:
                return read_hot(self._hot, info.ledgerId, first, last, max_bytes)
            except LedgerMissing:
                pass
        raise LedgerMissing(
            f"cannot read {info.ledgerId}:{first} of {self._name}: the hot copy of the ledger is gone and no tier is "
            "configured; set managedLedgerOffloadDriver"
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
        CorruptBlock: A stored entry is damaged.
    """
    ledger = hot.open(ledger_id)
    try:
        # Offsets of frames, which are a few bytes longer than the entries: a little less than max_bytes is read.
        ends = ledger.offsets(first, last)
    except IndexError as error:
        raise LedgerMissing(f"the hot copy of ledger {ledger_id} ends before entry {last}") from error
    fitting = int((ends[1:] - ends[0]).searchsorted(max_bytes, side="right"))
    entries = ledger.read(first, min(last, first + max(fitting, 1) - 1))
    if not entries:
        raise LedgerMissing(f"the hot copy of ledger {ledger_id} has no entry {first}")
    return EntrySlice(first, entries)
