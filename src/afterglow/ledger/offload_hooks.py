"""Hooks by which managed ledgers notify the offload, without knowing tiers.

Before ledgers leave a topic's list, the hooks record the deletion of their copies in tiers.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from afterglow.errors import AfterglowError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo


class OffloadHooks(Protocol):
    """Called for each topic, by its managed-ledger name, from any thread. Only :meth:`before_removal` may raise."""

    def is_in_use(self, name: str, ledger_id: int) -> bool:
        """Whether a ledger must stay in the list because it is being offloaded."""
        ...

    def on_ledger_closed(self, name: str) -> None:
        """The list has the end of a ledger."""
        ...

    def before_removal(self, name: str, infos: Sequence[ManagedLedgerInfo.LedgerInfo]) -> None:
        """Record the deletion of the tier copies of ledgers that are about to leave the list. May wait for metadata.

        Called again with the same ledgers if the list could not be changed.

        Raises:
            MetadataError: The intent is not recorded; the ledgers stay in the list.
        """
        ...

    def after_removal(self, name: str) -> None:
        """The list was changed, so that recorded deletions may begin; or changing it failed."""
        ...


@contextmanager
def recorded_removal(hooks: OffloadHooks, name: str, infos: Sequence[ManagedLedgerInfo.LedgerInfo]) -> Iterator[None]:
    """Remove ledgers from the list in the block, between the two calls of the hooks.

    Raises:
        MetadataError: The deletion of the tier copies is not recorded; the block is not entered.
    """
    try:
        hooks.before_removal(name, infos)
        yield
    except AfterglowError:
        hooks.after_removal(name)
        raise
    hooks.after_removal(name)


class NoOffloadHooks:
    """Hooks of a process that does not offload."""

    def is_in_use(self, _name: str, _ledger_id: int) -> bool:
        """False."""
        return False

    def on_ledger_closed(self, _name: str) -> None:
        """Do nothing."""

    def before_removal(self, _name: str, _infos: Sequence[ManagedLedgerInfo.LedgerInfo]) -> None:
        """Do nothing: there are no copies in tiers."""

    def after_removal(self, _name: str) -> None:
        """Do nothing."""
