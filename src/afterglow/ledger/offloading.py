"""The seam between a topic's ledgers and whoever copies them out of the hot log.

The ledgers know nothing of tiers. They tell what happens to them, and before one leaves the list they wait until what
is outside the hot log is on record as to be deleted.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from afterglow.errors import AfterglowError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo


class Offloading(Protocol):
    """Told about every topic by its managed-ledger name. Called from any thread; only ``leaving`` may raise."""

    def in_use(self, name: str, ledger_id: int) -> bool:
        """Whether a ledger must stay in the list for now, since it is being copied."""
        ...

    def ended(self, name: str) -> None:
        """A ledger was closed and is on record."""
        ...

    def leaving(self, name: str, rows: Sequence[ManagedLedgerInfo.LedgerInfo]) -> None:
        """Ledgers are about to leave the list: put on record that their copies are to go. May wait for metadata.

        Called again with the same ledgers where the list could not be changed after all.

        Raises:
            MetadataError: It is not on record; then the ledgers stay.
        """
        ...

    def left(self, name: str) -> None:
        """What was leaving is off the list, so that its copies may go; or it could not be taken off after all."""
        ...


@contextmanager
def told(offloading: Offloading, name: str, rows: Sequence[ManagedLedgerInfo.LedgerInfo]) -> Iterator[None]:
    """Take ledgers off the list, in the block, between the two calls that this needs.

    Raises:
        MetadataError: It is not on record that their copies are to go; the block does not begin.
    """
    try:
        offloading.leaving(name, rows)
        yield
    except AfterglowError:
        offloading.left(name)
        raise
    offloading.left(name)


class NoOffloading:
    """Nobody copies ledgers out of the hot log."""

    def in_use(self, _name: str, _ledger_id: int) -> bool:
        """No."""
        return False

    def ended(self, _name: str) -> None:
        """Nobody wants to know."""

    def leaving(self, _name: str, _rows: Sequence[ManagedLedgerInfo.LedgerInfo]) -> None:
        """Nothing is outside the hot log."""

    def left(self, _name: str) -> None:
        """Nothing is outside the hot log."""
