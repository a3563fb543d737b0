"""Copies that external offload drivers have written, read through the driver."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from afterglow.errors import AfterglowError, ConfigError, MissingDependency, StorageError
from afterglow.format.objects import parse_key
from afterglow.tier.drivers import driver_factory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from uuid import UUID

    from afterglow.config import BrokerConfig
    from afterglow.read.copies import FrameRun, LedgerCopy
    from afterglow.read.objects import Located
    from afterglow.tier.locations import TierLocation, Tiers


@dataclass(frozen=True, slots=True)
class OffloadedLedger:
    """What metadata says of the copy of a ledger that is to be read."""

    uuid: UUID
    """Of the offloaded ledger, or of the segment that holds entries of it."""
    driver_metadata: Mapping[str, str] = field(default_factory=dict)
    """What the driver gave when it was written."""
    segment: bool = False
    """Whether it is a segment, which may hold only a part of the ledger, and parts of other ledgers."""


class OffloadReader(Protocol):
    """The reading half of an offloader; see :class:`~afterglow.offload.offloader.LedgerOffloader`."""

    def read_offloaded(self, ledger_id: int, context: OffloadedLedger) -> LedgerCopy:
        """The copy of a ledger, or of the part of it that a segment holds."""
        ...

    @property
    def location(self) -> TierLocation:
        """The tier location that objects are written to."""
        ...


def open_driver_copy(located: Located, ledger_id: int, policy: BrokerConfig, tiers: Tiers) -> LedgerCopy:
    """What an external driver has stored of a ledger.

    Args:
        located: The object: its place names the driver and what the driver gave for it.
        ledger_id: The ledger.
        policy: Configuration and credentials for the driver.
        tiers: Opens stores, for drivers that use them.

    Raises:
        MissingDependency: The driver is not installed, or its package cannot be imported.
        AfterglowError: What the driver raises.
    """
    location, key = located.location, parse_key(located.key)
    try:
        factory = driver_factory(location.driver)
    except ConfigError as error:  # no setting of the reader's is wrong: metadata names the driver
        raise MissingDependency(str(error)) from error
    reader = factory(replace(policy, managed_ledger_offload_driver=location.driver), None, tiers)
    context = OffloadedLedger(key.uuid, dict(location.properties), segment=key.ledger_id is None)
    with _errors_of(location.driver):
        return _DriverCopy(location.driver, reader.read_offloaded(ledger_id, context))


class _DriverCopy:
    """A copy whose driver may raise anything: readers are told in errors that they know how to handle."""

    def __init__(self, driver: str, copy: LedgerCopy) -> None:
        self._driver = driver
        self._copy = copy

    def read(self, first: int, last: int, max_bytes: int) -> FrameRun:
        """Some entries; see :class:`~afterglow.read.copies.LedgerCopy`."""
        with _errors_of(self._driver):
            return self._copy.read(first, last, max_bytes)

    def scan(self, first: int, last: int) -> Iterator[FrameRun]:
        """All entries; see :class:`~afterglow.read.copies.LedgerCopy`."""
        with _errors_of(self._driver):
            yield from self._copy.scan(first, last)


@contextmanager
def _errors_of(driver: str) -> Iterator[None]:
    try:
        yield
    except AfterglowError:
        raise
    except Exception as error:
        raise StorageError(f"offload driver {driver} failed with {error!r}") from error
