"""The interface of offload drivers: PIP-17 for whole ledgers, PIP-76 for segments.

A driver implements :class:`LedgerOffloader` and registers what makes it in the entry point group
``afterglow.offloaders``; :mod:`afterglow.offload.drivers` says how, and ``docs/offloaders.md`` shows a whole one. A
driver knows nothing of metadata: a UUID is recorded before the driver sees it, and what an attempt leaves behind is
given to ``delete_offloaded``.

A task may run twice with the same UUID: its worker died, or is only slow. So everything here is idempotent by UUID: a
second call with the same entries stores the same under the same name, also while the first one is still under way, and
giving up one attempt never takes away what the other has stored.
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
"""What :func:`extra_metadata` gives."""


def extra_metadata(managed_ledger: str, *, cluster: str, instance: str) -> dict[str, str]:
    """User metadata that names the writers of an object, for operators and for a sweep."""
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
    """Insist that an entry that is offered to a segment follows the last one that was taken.

    Args:
        uuid: Of the segment.
        last: The last entry that was taken; None: none was, and any entry may be the first.
        offered: The entry: the next of its ledger, or the first of a later ledger.

    Raises:
        InvalidPosition: It does not follow.
    """
    if last is None or offered == last.next() or (offered.ledger_id > last.ledger_id and offered.entry_id == 0):
        return
    raise InvalidPosition(
        f"segment {uuid} was offered entry {offered}; its next is {last.next()}, or the first of a later ledger"
    )


@runtime_checkable
class OffloadHandle(Protocol):
    """One segment that is being written: entries are offered in order, and the result ends it. One call at a time.

    A driver derives from this class, which implements :meth:`offer_range` and :meth:`wait` for drivers that take
    entries one by one and always have room.
    """

    def can_offer(self, size: int) -> bool:
        """Whether an entry of so many bytes would be taken now."""
        ...

    def offer_entry(self, ledger_id: int, entry_id: int, data: Buffer) -> bool:
        """Offer the entry that follows the last one: the next of its ledger, or the first of a later ledger.

        The first entry that is taken is the segment's begin. The data belongs to the caller again when this returns.

        Returns:
            Whether it was taken. If not, :meth:`wait`, and offer it again.

        Raises:
            HandleClosed: The result was asked for, or the handle was aborted.
            InvalidPosition: The entry does not follow the last one.
            StorageError: The segment cannot be written: nothing becomes of this handle but :meth:`abort`.
        """
        ...

    def offer_range(self, buffer: Buffer, first_id: Position, count: int) -> int:
        """Offer consecutive entries of one ledger as hot ledgers and blocks hold them: framed, and without gaps.

        Args:
            buffer: The frames ``[length:int32][entry id:int64][data]``, big-endian, and nothing else.
            first_id: Ledger and entry of the first of them.
            count: How many there are.

        Returns:
            How many were taken, from the first on.

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
        """The last entry that was taken; None: none was."""
        ...

    def wait(self) -> bool:
        """Wait until an entry that was refused may be taken.

        Returns:
            Whether it is worth offering again; False: nothing is under way that would make room.

        Raises:
            StorageError: The segment cannot be written any more.
        """
        return False

    def result(self) -> OffloadResult:
        """End the segment with the last entry that was taken, and wait until all of it is durable in the tier.

        Asked again, it gives the same. A segment of the same UUID that another attempt has stored is the same segment.

        Raises:
            HandleClosed: The handle was aborted, or failed before.
            InvalidPosition: No entry was taken, and there are no empty segments.
            StorageError: The segment could not be stored.
        """
        ...

    def abort(self) -> None:
        """Give this attempt up and release what it holds: memory, threads, files that it alone knows. Never fails.

        What another attempt of the same UUID has stored stays: deleting is left to ``delete_offloaded``.
        """
        ...


@runtime_checkable
class LedgerOffloader(Protocol):
    """Copies entries to one place of a tier, reads them back, and deletes them. Thread-safe.

    Every method may wait for the tier, and raises ``StorageError`` where that fails. A driver may derive from this
    class: one that does not override :meth:`streaming_offload` takes whole ledgers only.
    """

    @property
    def location(self) -> TierLocation:
        """Where objects go; its ``driver`` is the name that the driver is registered by."""
        ...

    def driver_metadata(self) -> Mapping[str, str]:
        """What must be known to find the objects again after a change of policy; kept with every ledger and segment.

        Reading and deleting get it back. Secrets do not belong here: it is kept in metadata and shown to people.
        """
        ...

    def offload(self, ledger: ReadableLedger, uuid: UUID, extra_metadata: Mapping[str, str]) -> None:
        """Copy all confirmed entries of a closed ledger; all are durable in the tier when this returns.

        Args:
            ledger: To be read and not to be closed.
            uuid: Of this offload.
            extra_metadata: For the objects, for people to look at: name of the managed ledger, version, instance.
        """
        ...

    @unsupported
    def streaming_offload(self, uuid: UUID, driver_metadata: Mapping[str, str]) -> OffloadHandle:  # noqa: ARG002
        """Begin a segment that entries are offered to.

        Args:
            uuid: Of this segment.
            driver_metadata: What :meth:`driver_metadata` gave when the segment was assigned, together with what
                ``extra_metadata`` of :meth:`offload` holds.

        Raises:
            NotSupported: The driver takes whole ledgers only.
        """
        raise NotSupported(
            f"the offload driver {self.location.driver} takes whole ledgers only and cannot write segment {uuid}: set "
            "streamingOffloadEnabled=false, or managedLedgerOffloadDriver to a driver that streams"
        )

    def read_offloaded(self, ledger_id: int, context: OffloadedLedger) -> LedgerCopy:
        """The copy of a ledger in the tier, or of the part of it that a segment holds.

        Called in any process that reads: what must be known to find the copy is in the context, and credentials come
        from the environment of that process or from its policy.

        Raises:
            ObjectMissing: It is not there.
        """
        ...

    def delete_offloaded(self, ledger_id: int | None, uuid: UUID, driver_metadata: Mapping[str, str]) -> None:
        """Delete everything of a UUID in the tier, whether or not it was completed. What is not there is no error.

        Args:
            ledger_id: The ledger that was offloaded whole; None for a segment.
            uuid: Of the ledger's offload, or of the segment.
            driver_metadata: What :meth:`driver_metadata` gave when it was assigned.
        """
        ...


def recorded_location(offloader: LedgerOffloader) -> TierLocation:
    """Where objects of an offloader go, with all that its driver needs to find them again."""
    location = offloader.location
    if is_built_in(location.driver):
        return location
    return replace(location, properties=tuple(sorted(offloader.driver_metadata().items())))
