"""Upload record of one segment: changed only by compare-and-set, and only by the topic's owner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from afterglow.errors import CommitUnknown, Fenced, MetadataError, VersionConflict
from afterglow.format.proto.afterglow_pb2 import UploadRecord
from afterglow.metadata.store import FIRST_VERSION, MUST_NOT_EXIST
from afterglow.offload.segments.records import parse_upload

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.metadata.store import MetadataStore


_TRIES: Final = 16


class UploadRecordNode:
    """A record and the version at which it is known here. Not thread-safe: a topic's work is serial.

    Args:
        metadata: The store.
        path: Of the node.
        owner_epoch: Under which the topic is owned here.
    """

    def __init__(self, metadata: MetadataStore, path: str, owner_epoch: int) -> None:
        self._metadata = metadata
        self._path = path
        self._epoch = owner_epoch
        self._version = MUST_NOT_EXIST
        self._stale = False
        self.record = UploadRecord()
        """As it was last known. Not to be changed: use :meth:`update`."""

    def create(self, record: UploadRecord) -> None:
        """Write the record for the first time.

        Raises:
            MetadataError: The store failed; the record may be there.
        """
        self._put(record)

    def take_over(self, check_owner: Callable[[], object]) -> bool:
        """Read the record, and set its epoch to ours, so that an earlier owner can change it no more.

        A higher epoch than ours is that of a later owner, or of an owner of the topic's earlier life: epochs begin with
        the time of day, which may have been set back before the topic was created anew. A later owner has raised the
        epoch of the topic before that of the record.

        Args:
            check_owner: Reads the topic's own epoch; raises where it is not ours.

        Returns:
            Whether there is a record.

        Raises:
            Fenced: A later owner has it.
            CorruptMetadata: It does not parse.
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
        """Read the record again where the outcome of its last change is unknown.

        Raises:
            Fenced: Another owner has taken over, or the record is gone.
            MetadataError: The store failed.
        """
        if self._stale and not self._read():
            raise Fenced(f"{self._path} is gone: the segment was finished or given up by another owner")

    def update(self, edit: Callable[[UploadRecord], None]) -> None:
        """Change the record.

        Args:
            edit: Changes a copy; called again with a newer one where an outcome was unknown, and then must change
                nothing that it has changed before.

        Raises:
            Fenced: Another owner has taken over, or the record is gone. Nothing was changed.
            MetadataError: The store failed. The change may have been made, and shows at the next call.
        """
        self.refresh()
        for _ in range(_TRIES):
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
                    raise Fenced(f"{self._path} is gone: another owner has finished or given up the segment") from None
            else:
                return
        raise VersionConflict(f"{self._path} was not changed: others changed it {_TRIES} times meanwhile")

    def delete(self) -> None:
        """Remove the record; one that is gone is no error.

        Raises:
            Fenced: Another owner has taken over.
            MetadataError: The store failed.
        """
        for _ in range(_TRIES):
            if self._stale and not self._read():
                return
            self._check_owner()
            try:
                self._metadata.delete(self._path, self._version)
            except (VersionConflict, CommitUnknown):
                self._stale = True
            else:
                return
        raise VersionConflict(f"{self._path} was not deleted: others changed it {_TRIES} times meanwhile")

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
        """Put a value, and settle an unknown outcome by reading."""
        value = record.SerializeToString(deterministic=True)
        for _ in range(_TRIES):
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
        raise CommitUnknown(f"{self._path} was not changed: {_TRIES} tries in a row had no known outcome")


def _with_epoch(record: UploadRecord, epoch: int) -> UploadRecord:
    raised = UploadRecord()
    raised.CopyFrom(record)
    raised.owner_epoch = epoch
    return raised
