"""Interface of offload drivers: PIP-17 for whole ledgers, PIP-76 for segments.

A driver implements :class:`LedgerOffloader` and registers a factory in the entry point group ``afterglow.offloaders``;
:mod:`afterglow.offload.drivers` describes the factory, and ``docs/offloaders.md`` shows a complete driver. A driver
does not access metadata: a UUID is recorded before the driver receives it, and ``delete_offloaded`` removes what a
failed attempt has stored.

A task may run twice with the same UUID, since its worker died or is only slow. So every operation is idempotent by
UUID: a second call with the same entries stores the same data under the same name, also while the first call is in
progress, and aborting one attempt never removes what the other has stored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from afterglow import __version__
from afterglow.errors import InvalidPosition, NotSupported
from afterglow.format.frames import check_whole, iter_entries, scan_frames
from afterglow.format.objects import INSTANCE_KEY
from afterglow.read.copies import FrameRun, LedgerCopy, frame_run
from afterglow.read.driver_copies import OffloadedLedger
from afterglow.tier.drivers import unsupported
from afterglow.tier.locations import TierLocation, is_built_in

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from typing_extensions import Buffer

    from afterglow.format.position import Position
    from afterglow.hot.log import ReadableLedger

__all__ = [
    "FrameRun",
    "LedgerCopy",
    "LedgerOffloader",
    "OffloadHandle",
    "OffloadResult",
    "OffloadedLedger",
    "TierLocation",
    "check_follows",
    "frame_run",
]

NAME_KEY = "ManagedLedgerName"
CLUSTER_KEY = "pulsarclustername"
VERSION_KEY = "softwareVersion"
EXTRA_KEYS = (NAME_KEY, VERSION_KEY, CLUSTER_KEY, INSTANCE_KEY)
"""Keys of :func:`extra_metadata`."""


def extra_metadata(managed_ledger: str, *, cluster: str, instance: str) -> dict[str, str]:
    """User metadata that names the writer of an object, for operators and for a sweep."""
    return {NAME_KEY: managed_ledger, VERSION_KEY: __version__, CLUSTER_KEY: cluster, INSTANCE_KEY: instance}


@dataclass(frozen=True, slots=True)
class OffloadResult:
    """A segment that is durable in the tier."""

    uuid: UUID
    begin: Position
    """Its first entry, inclusive."""
    end: Position
    """Its last entry, inclusive."""


def check_follows(uuid: UUID, last: Position | None, offered: Position) -> None:
    """Check that an entry that is offered to a segment follows the last accepted entry.

    Args:
        uuid: UUID of the segment.
        last: The last accepted entry; None: none, and any entry may be the first.
        offered: The entry: the next of its ledger, or the first of a later ledger.

    Raises:
        InvalidPosition: The entry does not follow.
    """
    if last is None or offered == last.next() or (offered.ledger_id > last.ledger_id and offered.entry_id == 0):
        return
    raise InvalidPosition(
        f"segment {uuid} was offered entry {offered}; its next is {last.next()}, or the first of a later ledger"
    )


@runtime_checkable
class OffloadHandle(Protocol):
    """A segment being written: entries are offered in order, and :meth:`result` ends it. One call at a time.

    A driver derives from this class, which implements :meth:`offer_range` and :meth:`wait` for drivers that accept
    every entry, one by one.
    """

    def can_offer(self, size: int) -> bool:
        """Whether an entry of ``size`` bytes would be accepted now."""
        ...

    def offer_entry(self, ledger_id: int, entry_id: int, data: Buffer) -> bool:
        """Offer the entry that follows the last one: the next of its ledger, or the first of a later ledger.

        The first accepted entry is the segment's begin. The caller may reuse the data when this returns.

        Returns:
            Whether it was accepted. If not, :meth:`wait`, and offer it again.

        Raises:
            HandleClosed: The segment has ended, or the handle was aborted.
            InvalidPosition: The entry does not follow the last one.
            StorageError: The segment cannot be written; the handle must be aborted.
        """
        ...

    def offer_range(self, buffer: Buffer, first_id: Position, count: int) -> int:
        """Offer consecutive entries of one ledger, framed as in hot ledgers and blocks, without gaps.

        Args:
            buffer: The frames ``[length:int32][entry id:int64][data]``, big-endian, and nothing else.
            first_id: Position of the first entry.
            count: Number of entries.

        Returns:
            Number of accepted entries, from the first on.

        Raises:
            CorruptBlock: The buffer does not hold the frames of these entries.
            AfterglowError: As :meth:`offer_entry`.
        """
        frames = scan_frames(buffer, first_id.entry_id)
        check_whole(frames, f"the range offered from entry {first_id} on")
        taken = 0
        for entry_id, data in iter_entries(buffer, frames):
            if taken == count or not self.offer_entry(first_id.ledger_id, entry_id, data):
                break
            taken += 1
        return taken

    def last_offered(self) -> Position | None:
        """The last accepted entry; None: none."""
        ...

    def wait(self) -> bool:
        """Wait until a refused entry may be accepted.

        Returns:
            Whether to offer it again; False: no upload is in progress that would free buffer space.

        Raises:
            StorageError: The segment cannot be written any more.
        """
        return False

    def result(self) -> OffloadResult:
        """End the segment with the last accepted entry, and wait until all of it is durable in the tier.

        Further calls return the same result. A segment of the same UUID that another attempt has stored is the same
        segment.

        Raises:
            HandleClosed: The handle was aborted, or failed before.
            InvalidPosition: No entry was accepted; a segment cannot be empty.
            StorageError: The segment could not be stored.
        """
        ...

    def abort(self) -> None:
        """Abort this attempt, and release its memory, threads and temporary files. Never fails.

        Data that another attempt of the same UUID has stored is kept: ``delete_offloaded`` deletes it.
        """
        ...


@runtime_checkable
class LedgerOffloader(Protocol):
    """Copies entries to one tier location, reads them back, and deletes them. Thread-safe.

    Every method may wait for the tier, and raises ``StorageError`` if the tier fails. A driver may derive from this
    class: without an own :meth:`streaming_offload` it supports whole ledgers only.
    """

    @property
    def location(self) -> TierLocation:
        """Tier location of new objects; its ``driver`` is the registered name of the driver."""
        ...

    def driver_metadata(self) -> Mapping[str, str]:
        """Properties that find the objects again after a change of policy; kept with every ledger and segment.

        They are passed to reads and deletes. They must not contain secrets: they are kept in metadata and displayed.
        """
        ...

    def offload(self, ledger: ReadableLedger, uuid: UUID, extra_metadata: Mapping[str, str]) -> None:
        """Copy all confirmed entries of a closed ledger; all are durable in the tier when this returns.

        Args:
            ledger: The ledger; the caller closes it.
            uuid: UUID of this offload.
            extra_metadata: Metadata for the objects, for operators: name of the managed ledger, version, instance.
        """
        ...

    @unsupported
    def streaming_offload(self, uuid: UUID, driver_metadata: Mapping[str, str]) -> OffloadHandle:  # noqa: ARG002
        """Begin a segment.

        Args:
            uuid: UUID of this segment.
            driver_metadata: The result of :meth:`driver_metadata` when the segment was assigned, together with the
                ``extra_metadata`` that :meth:`offload` gets.

        Raises:
            NotSupported: The driver supports whole ledgers only.
        """
        raise NotSupported(
            f"the offload driver {self.location.driver} takes whole ledgers only and cannot write segment {uuid}: set "
            "streamingOffloadEnabled=false, or managedLedgerOffloadDriver to a driver that streams"
        )

    def read_offloaded(self, ledger_id: int, context: OffloadedLedger) -> LedgerCopy:
        """The copy of a ledger in the tier, or of its entries in a segment.

        Called in any process that reads: the context has all properties that find the copy, and credentials come from
        the environment of that process or from its policy.

        Raises:
            ObjectMissing: The copy does not exist.
        """
        ...

    def delete_offloaded(self, ledger_id: int | None, uuid: UUID, driver_metadata: Mapping[str, str]) -> None:
        """Delete all data of a UUID in the tier, complete or not. Missing data is not an error.

        Args:
            ledger_id: The ledger that was offloaded whole; None for a segment.
            uuid: UUID of the ledger's offload, or of the segment.
            driver_metadata: The result of :meth:`driver_metadata` when it was assigned.
        """
        ...


def recorded_location(offloader: LedgerOffloader) -> TierLocation:
    """Tier location of an offloader, with the properties by which its driver finds objects again."""
    location = offloader.location
    if is_built_in(location.driver):
        return location
    return replace(location, properties=tuple(sorted(offloader.driver_metadata().items())))
