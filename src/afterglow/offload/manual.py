"""Offloads that were asked for by hand: one at a time for each topic, and how the last one went."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from afterglow.errors import InvalidPosition
from afterglow.format.position import EARLIEST, LATEST, Position
from afterglow.ledger.ledger_list import first_unoffloaded

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from afterglow.errors import AfterglowError
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.ledger.layout import Layout


class OffloadState(StrEnum):
    """How far an offload by hand has come, in Pulsar's words."""

    NOT_RUN = "NOT_RUN"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"


@dataclass(frozen=True, slots=True)
class OffloadStatus:
    """How the last offload by hand went, in this process."""

    state: OffloadState = OffloadState.NOT_RUN
    last_error: str = ""
    """The first error of it; empty where there was none."""
    first_unoffloaded: Position = EARLIEST
    """After it ended: the first position that is not in the tier."""


@dataclass(slots=True)
class ManualOffload:
    """One that is running. Each ledger gets one attempt; the first error is told when all have ended."""

    before: int
    """Ledgers with a smaller id are wanted."""
    left: set[int]
    """Ledgers that have not ended."""
    untried: set[int] = field(init=False)
    """Those of them that wait for their attempt, whatever failed before."""
    error: AfterglowError | None = None
    """The first."""

    def __post_init__(self) -> None:
        self.untried = set(self.left)

    def tried(self, ledger_ids: Iterable[int]) -> None:
        """Ledgers have got their attempt."""
        self.untried.difference_update(ledger_ids)

    def keep(self, ledger_ids: Collection[int]) -> None:
        """Ask only for these any more: the others are in the tier, or have left the list."""
        self.left.intersection_update(ledger_ids)

    def ended(self, ledger_id: int, error: AfterglowError | None) -> None:
        """Take note of how a ledger went. A failure of an attempt from before does not count: another follows."""
        if ledger_id in self.left and (error is None or ledger_id not in self.untried):
            self.left.discard(ledger_id)
            self.error = self.error or error

    def fail(self, error: AfterglowError) -> None:
        """End it: nothing more can be done."""
        self.left.clear()
        self.error = self.error or error

    def status(self, info: ManagedLedgerInfo | None) -> OffloadStatus:
        """How it went, given the list as it is now where it can be had."""
        first = EARLIEST if info is None else first_unoffloaded(info)
        if self.error is not None:
            return OffloadStatus(OffloadState.ERROR, str(self.error), first)
        return OffloadStatus(OffloadState.SUCCESS, "", first)


def check_position(topic: str, ids: Collection[int], layout: Layout, position: Position) -> None:
    """Refuse what cannot be a position of a topic.

    An offload may be asked for up to any entry, right behind the last entry of any ledger, and up to ``latest``.

    Args:
        topic: Its name, for the message.
        ids: Its ledgers.
        layout: Where its entries are.
        position: What lies before it is to be offloaded.

    Raises:
        InvalidPosition: The topic has no such ledger, or the ledger no such entry.
    """
    if position == LATEST:
        return
    entries = layout.entries_of(position.ledger_id) or 0
    if position.ledger_id not in ids:
        reason = f"the topic has no ledger {position.ledger_id}"
    elif not 0 <= position.entry_id <= entries:
        reason = f"ledger {position.ledger_id} has {entries} {'entry' if entries == 1 else 'entries'}"
    else:
        return
    valid = "latest"
    if ids:
        end = layout.last.next() if layout.total_entries else Position(max(ids), 0)
        valid = f"a position from {Position(min(ids), 0)} to {end}, or latest"
    raise InvalidPosition(f"cannot offload {topic} up to {position}: {reason}; give {valid}")


def last_entry_before(layout: Layout, position: Position) -> Position | None:
    """The last entry that stands before a position; None where none does."""
    entries = layout.rank(position.previous())
    return layout.at_rank(entries - 1) if entries else None
