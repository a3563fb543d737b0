"""Upload record of one segment in metadata: changed only by compare-and-set, and only by the topic's owner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from afterglow.errors import CommitUnknown, Fenced, MetadataError, VersionConflict
from afterglow.format.proto.afterglow_pb2 import UploadRecord
from afterglow.metadata.store import FIRST_VERSION, MUST_NOT_EXIST
from afterglow.offload.segments.records import parse_upload

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.metadata.store import MetadataStore


_MAX_ATTEMPTS: Final = 16


class UploadRecordNode:
    """A record and its known version. Not thread-safe: the work of a topic is serial.

    Args:
        metadata: The metadata store.
        path: Path of the node.
        owner_epoch: Epoch in which this process owns the topic.
    """

    def __init__(self, metadata: MetadataStore, path: str, owner_epoch: int) -> None:
        self._metadata = metadata
        self._path = path
        self._epoch = owner_epoch
        self._version = MUST_NOT_EXIST
        self._stale = False
        self.record = UploadRecord()
        """The record as it was last read or put. Must not be changed: use :meth:`update`."""

    def create(self, record: UploadRecord) -> None:
        """Write the record for the first time.

        Raises:
            MetadataError: The store failed; the record may exist.
        """
        self._put(record)

    def take_over(self, check_owner: Callable[[], object]) -> bool:
        """Read the record, and set its epoch to ours, so that an earlier owner cannot change it any more.

        A higher epoch than ours belongs to a later owner, or to an owner of a deleted topic of the same name: epochs
        begin with the time of day, which may have been set back before the topic was created again. A later owner has
        raised the epoch of the topic before that of the record.

        Args:
            check_owner: Reads the topic's own epoch; raises if it is not ours.

        Returns:
            Whether the record exists.

        Raises:
            Fenced: The topic has a later owner.
            CorruptMetadata: The record cannot be parsed.
            MetadataError: The store failed.
        """
        if not self._read_any():
            return False
        if self.record.owner_epoch > self._epoch:
            check_owner()
        if self.record.owner_epoch != self._epoch:
            self._put(_with_epoch(self.record, self._epoch))
        return True

    def refresh(self) -> None:
        """Read the record again if the outcome of its last change is unknown.

        Raises:
            Fenced: The topic has a new owner, or the record is deleted.
            MetadataError: The store failed.
        """
        if self._stale and not self._read():
            raise self._deleted()

    def update(self, edit: Callable[[UploadRecord], None]) -> None:
        """Change the record.

        Args:
            edit: Changes a copy; called again with a newer copy after an unknown outcome. Must be idempotent.

        Raises:
            Fenced: The topic has a new owner, or the record is deleted. Nothing was changed.
            MetadataError: The store failed. The change may have been made; the next call reads the record again.
        """
        self.refresh()
        for _ in range(_MAX_ATTEMPTS):
            self._check_owner()
            edited = UploadRecord()
            edited.CopyFrom(self.record)
            edit(edited)
            if edited == self.record:
                return
            try:
                self._put(edited)
            except VersionConflict:
                if not self._read():
                    raise self._deleted() from None
            else:
                return
        raise VersionConflict(f"{self._path} was not changed: it was changed {_MAX_ATTEMPTS} times meanwhile")

    def delete(self) -> None:
        """Delete the record, if it exists.

        Raises:
            Fenced: The topic has a new owner.
            MetadataError: The store failed.
        """
        for _ in range(_MAX_ATTEMPTS):
            if self._stale and not self._read():
                return
            self._check_owner()
            try:
                self._metadata.delete(self._path, self._version)
            except (VersionConflict, CommitUnknown):
                self._stale = True
            else:
                return
        raise VersionConflict(f"{self._path} was not deleted: it was changed {_MAX_ATTEMPTS} times meanwhile")

    def _deleted(self) -> Fenced:
        return Fenced(f"{self._path} is deleted: another owner has finished or given up the segment")

    def _check_owner(self) -> None:
        if self.record.owner_epoch > self._epoch:
            raise Fenced(f"{self._path} is owned by epoch {self.record.owner_epoch}, not by our {self._epoch}")

    def _read(self) -> bool:
        if not self._read_any():
            return False
        self._check_owner()
        return True

    def _read_any(self) -> bool:
        found = self._metadata.get(self._path)
        if found is None:
            self._version = MUST_NOT_EXIST
            return False
        self.record = parse_upload(found.value, self._path)
        self._version = found.version
        self._stale = False
        return True

    def _put(self, record: UploadRecord) -> None:
        """Put a value; after an unknown outcome, read it to find out."""
        value = record.SerializeToString(deterministic=True)
        for _ in range(_MAX_ATTEMPTS):
            try:
                self._version = self._metadata.put(self._path, value, self._version)
            except CommitUnknown:
                self._stale = True
                found = self._metadata.get(self._path)
                following = FIRST_VERSION if self._version == MUST_NOT_EXIST else self._version + 1
                if found is not None and found.value == value and found.version == following:
                    self._version = found.version
                elif (MUST_NOT_EXIST if found is None else found.version) == self._version:
                    continue
                else:
                    raise VersionConflict(f"{self._path} was changed by another owner") from None
            except MetadataError:
                self._stale = True
                raise
            self.record = record
            self._stale = False
            return
        raise CommitUnknown(f"{self._path}: the outcome of {_MAX_ATTEMPTS} changes in a row is unknown")


def _with_epoch(record: UploadRecord, epoch: int) -> UploadRecord:
    raised = UploadRecord()
    raised.CopyFrom(record)
    raised.owner_epoch = epoch
    return raised
