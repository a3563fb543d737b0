"""Copies that external offload drivers wrote, read through the driver."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from afterglow.errors import AfterglowError, ConfigError, MissingDependency, StorageError
from afterglow.format.objects import parse_key
from afterglow.tier.drivers import driver_factory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from uuid import UUID

    from afterglow.config import BrokerConfig
    from afterglow.read.copies import FrameRun, LedgerCopy
    from afterglow.read.objects import TierObject
    from afterglow.tier.locations import Tiers


@dataclass(frozen=True, slots=True)
class OffloadedLedger:
    """Metadata of an offloaded copy of a ledger."""

    uuid: UUID
    """Id of the offloaded ledger, or of the segment that holds entries of it."""
    driver_metadata: Mapping[str, str] = field(default_factory=dict)
    """Properties that the driver returned when it wrote the copy."""
    segment: bool = False
    """Whether it is a segment, which may hold only a range of the ledger, and ranges of other ledgers."""


def open_driver_copy(tier_object: TierObject, ledger_id: int, policy: BrokerConfig, tiers: Tiers) -> LedgerCopy:
    """Open the copy of a ledger that an external driver wrote.

    Args:
        tier_object: The object; its location has the driver and the driver's properties.
        ledger_id: The ledger.
        policy: Configuration and credentials for the driver.
        tiers: Opens stores, for drivers that use them.

    Raises:
        MissingDependency: The driver is not installed, or its package cannot be imported.
        AfterglowError: The driver failed.
    """
    location, key = tier_object.location, parse_key(tier_object.key)
    try:
        factory = driver_factory(location.driver)
    except ConfigError as error:  # metadata names the driver, so that no setting of the reader is wrong
        raise MissingDependency(str(error)) from error
    reader = factory(replace(policy, managed_ledger_offload_driver=location.driver), None, tiers)
    context = OffloadedLedger(key.uuid, dict(location.properties), segment=key.ledger_id is None)
    with _errors_of(location.driver):
        return _DriverCopy(location.driver, reader.read_offloaded(ledger_id, context))


class _DriverCopy:
    """A copy that raises ``StorageError`` for any exception of its driver, so that readers can fall back."""

    def __init__(self, driver: str, copy: LedgerCopy) -> None:
        self._driver = driver
        self._copy = copy

    def read(self, first: int, last: int, max_bytes: int) -> FrameRun:
        """Read a few entries; see :class:`~afterglow.read.copies.LedgerCopy`."""
        with _errors_of(self._driver):
            return self._copy.read(first, last, max_bytes)

    def scan(self, first: int, last: int) -> Iterator[FrameRun]:
        """Scan entries; see :class:`~afterglow.read.copies.LedgerCopy`."""
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
