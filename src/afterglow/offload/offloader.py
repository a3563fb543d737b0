"""The interface of PIP-17: whoever copies ledgers to a tier, reads them back, and deletes them.

A driver implements :class:`LedgerOffloader` and registers what makes it in the entry point group
``afterglow.offloaders``; see :mod:`afterglow.offload.drivers`. A driver needs to know nothing of metadata: UUIDs are
recorded before ``offload`` is called, and what an attempt leaves behind is given to ``delete_offloaded``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn, Protocol, runtime_checkable

from afterglow import __version__
from afterglow.errors import ConfigError
from afterglow.format.objects import INSTANCE_KEY

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from afterglow.offload.parts import ReadableLedger
    from afterglow.read.copies import LedgerCopy
    from afterglow.read.places import TierPlace

NAME_KEY = "ManagedLedgerName"
CLUSTER_KEY = "pulsarclustername"
VERSION_KEY = "softwareVersion"


def extra_metadata(managed_ledger: str, *, cluster: str, instance: str) -> dict[str, str]:
    """What an object carries of those who wrote it, for people and for a sweep."""
    return {NAME_KEY: managed_ledger, VERSION_KEY: __version__, CLUSTER_KEY: cluster, INSTANCE_KEY: instance}


@dataclass(frozen=True, slots=True)
class OffloadedLedger:
    """What metadata tells of an offloaded ledger."""

    uuid: UUID
    """Of the attempt that succeeded."""
    driver_metadata: Mapping[str, str] = field(default_factory=dict)
    """What the driver gave for it then."""


@runtime_checkable
class LedgerOffloader(Protocol):
    """Copies closed ledgers to one place of a tier. Thread-safe.

    Every method may wait for the tier, and raises ``StorageError`` where that fails.
    """

    @property
    def place(self) -> TierPlace:
        """Where objects go; its ``driver`` is the name that the driver is registered by."""
        ...

    def driver_metadata(self) -> Mapping[str, str]:
        """What must be known to find the objects again after a change of policy; kept with every ledger."""
        ...

    def offload(self, ledger: ReadableLedger, uuid: UUID, extra_metadata: Mapping[str, str]) -> None:
        """Copy all confirmed entries of a closed ledger; all are durable in the tier when this returns.

        Args:
            ledger: To be read and not to be closed.
            uuid: Of this attempt; no two have the same.
            extra_metadata: For the objects, for people to look at: name of the managed ledger, version, instance.
        """
        ...

    def read_offloaded(self, ledger_id: int, context: OffloadedLedger) -> LedgerCopy:
        """The copy of a ledger in the tier.

        Raises:
            ObjectMissing: It is not there.
        """
        ...

    def delete_offloaded(self, ledger_id: int, uuid: UUID, driver_metadata: Mapping[str, str]) -> None:
        """Delete what an attempt has left in the tier, succeeded or not. What is not there is no error."""
        ...


class NullOffloader:
    """Stands where there is no tier, and refuses every use."""

    @property
    def place(self) -> TierPlace:
        """There is none."""
        self._refuse()

    def driver_metadata(self) -> Mapping[str, str]:
        """There is none."""
        self._refuse()

    def offload(self, ledger: ReadableLedger, uuid: UUID, extra_metadata: Mapping[str, str]) -> None:  # noqa: ARG002
        """There is nowhere to go."""
        self._refuse()

    def read_offloaded(self, ledger_id: int, context: OffloadedLedger) -> LedgerCopy:  # noqa: ARG002
        """There is nothing to read."""
        self._refuse()

    def delete_offloaded(self, ledger_id: int, uuid: UUID, driver_metadata: Mapping[str, str]) -> None:  # noqa: ARG002
        """There is nothing to delete."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise ConfigError("there is no tier to offload to: set managedLedgerOffloadDriver, or start with --tier")
