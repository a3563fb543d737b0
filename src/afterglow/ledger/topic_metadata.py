"""One topic's ``ManagedLedgerInfo``: owned by one opener at a time, changed only by compare-and-set.

Opening raises the owner epoch that stands in the value. From then on every writer that holds an older value meets a
conflict, re-reads, sees an epoch that is not its own, and is fenced: it can change nothing more.

An edit may be applied several times, to newer and newer values, and it may turn out to have been applied when its
caller was told otherwise (``MetadataUnavailable`` after an unknown outcome). So edits depend on nothing but the value
and what they were made with, and change nothing where they have been applied before.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from afterglow.errors import CommitUnknown, Fenced, MetadataError, TopicMissing, VersionConflict
from afterglow.format.compression import Codec
from afterglow.format.metadata_envelope import parse_managed_ledger, serialize_managed_ledger
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
from afterglow.ledger.properties import OWNER_EPOCH, get_number, set_text
from afterglow.metadata.store import FIRST_VERSION, MUST_NOT_EXIST

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from afterglow.config import BrokerConfig
    from afterglow.ledger.environment import Clock
    from afterglow.metadata.store import MetadataStore, Versioned

    Edit: TypeAlias = Callable[[ManagedLedgerInfo], None]
    """Changes the value that it is given; may be called several times, each time with a fresh copy."""

_TRIES: Final = 64
"""Conflicts in a row that are met by reading again. Only writers of one owner can meet so often, and one of them
always gets through, so that only a store that conflicts with nobody comes this far."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The value at one version. Not to be changed."""

    info: ManagedLedgerInfo
    version: int
    """Grows with every change."""


class TopicMetadata:
    """The metadata of one topic.

    Args:
        store: Where it is.
        path: Of its node.
        config: How it is compressed.
        clock: The first epoch of a topic comes from it.
    """

    def __init__(self, store: MetadataStore, path: str, config: BrokerConfig, clock: Clock) -> None:
        self._store = store
        self._path = path
        self._codec = Codec[config.managed_ledger_info_compression_type.name]
        self._threshold_bytes = config.managed_ledger_info_compression_threshold_in_bytes
        self._clock = clock
        self._lock = threading.RLock()
        self._snapshot: Snapshot | None = None
        self._stale = False
        self._epoch = 0

    @property
    def path(self) -> str:
        """Of the node."""
        return self._path

    @property
    def owner_epoch(self) -> int:
        """The epoch under which this opener owns the topic; 0 before :meth:`open`."""
        return self._epoch

    @property
    def snapshot(self) -> Snapshot:
        """The newest value known here."""
        snapshot = self._snapshot
        if snapshot is None:
            raise AssertionError(f"{self._path} was not opened")
        return snapshot

    @property
    def stale(self) -> bool:
        """Whether a change had no known outcome, so that only reading again tells what the value is."""
        return self._stale

    def exists(self) -> bool:
        """Whether the topic is there.

        Raises:
            MetadataUnavailable: The store cannot be reached.
        """
        return self._store.get(self._path) is not None

    def open(self, *, create: bool) -> Snapshot:
        """Take the topic over from whoever had it.

        1. Read the value. *Crash: nothing was changed.*
        2. Put it back with a higher epoch, or create it. *Crash: the old owner is fenced, and nobody owns the topic
           until the next opener raises the epoch again.*

        The epoch of a new topic is the time of day, so that a topic deleted and created anew never meets the epoch of
        an owner of its earlier life.

        Args:
            create: Whether to create the topic if there is none.

        Raises:
            TopicMissing: There is none, and it is not to be created.
            CorruptMetadata: The value does not parse.
            MetadataError: The store failed; the topic may have been taken over from its owner.
        """
        with self._lock:
            for _ in range(_TRIES):
                found = self._store.get(self._path)
                if found is None and not create:
                    raise TopicMissing(f"there is no topic at {self._path}: create it first")
                info = ManagedLedgerInfo() if found is None else parse_managed_ledger(found.value)
                epoch = max((get_number(info, OWNER_EPOCH) or 0) + 1, self._clock.now_ms())
                set_text(info, OWNER_EPOCH, str(epoch))
                try:
                    snapshot = self._put(info, MUST_NOT_EXIST if found is None else found.version)
                except VersionConflict:
                    continue
                self._epoch = epoch
                return snapshot
            raise VersionConflict(f"{self._path} was not taken over: others changed it {_TRIES} times meanwhile")

    def update(self, edit: Edit) -> Snapshot:
        """Apply an edit, and return the value with it.

        1. Apply the edit to a copy of the newest value known here; if that changes nothing, all is done.
        2. Put the copy with the version it was read at. *Crash: the edit is made or not, never half.*
        3. On a conflict read again: the same epoch, apply the edit to the newer value; another, fenced.
        4. On an unknown outcome read again: our bytes, done; the version we expected, try again; else a conflict.

        Raises:
            Fenced: Another owner has taken over, or the topic was deleted. Nothing was changed.
            MetadataUnavailable: The store cannot be reached. If an outcome was unknown before that, the edit may have
                been applied, and shows at the next call.
            MetadataError: The store refused the change.
        """
        with self._lock:
            if self._stale:
                self._refresh()
            for _ in range(_TRIES):
                snapshot = self.snapshot
                edited = ManagedLedgerInfo()
                edited.CopyFrom(snapshot.info)
                edit(edited)
                if edited == snapshot.info:
                    return snapshot
                try:
                    return self._put(edited, snapshot.version)
                except VersionConflict:
                    self._refresh()
            raise VersionConflict(f"{self._path} was not changed: others changed it {_TRIES} times meanwhile")

    def check_owner(self) -> Snapshot:
        """Read the value again.

        Raises:
            Fenced: Another owner has taken over, or the topic was deleted.
            MetadataUnavailable: The store cannot be reached.
        """
        with self._lock:
            return self._refresh()

    def remove(self) -> None:
        """Delete the node; it must have no children. A node that is gone is no error.

        Raises:
            Fenced: Another owner has taken over.
            MetadataError: The store failed.
        """
        with self._lock:
            if self._stale:
                self._refresh()
            for _ in range(_TRIES):
                try:
                    self._store.delete(self._path, self.snapshot.version)
                except (VersionConflict, CommitUnknown):
                    if self._store.get(self._path) is None:
                        return
                    self._refresh()
                else:
                    return
            raise VersionConflict(f"{self._path} was not deleted: others changed it {_TRIES} times meanwhile")

    def _put(self, info: ManagedLedgerInfo, version: int) -> Snapshot:
        """Put a value, and settle an unknown outcome by reading."""
        value = serialize_managed_ledger(info, self._codec, self._threshold_bytes)
        for _ in range(_TRIES):
            try:
                self._snapshot = Snapshot(info, self._store.put(self._path, value, version))
            except CommitUnknown:
                self._stale = True  # until a read has settled it
                found = self._store.get(self._path)
                if found is not None and found.value == value and found.version == _following(version):
                    self._snapshot = Snapshot(info, found.version)
                    self._stale = False
                    return self._snapshot
                if (MUST_NOT_EXIST if found is None else found.version) != version:
                    raise VersionConflict(f"{self._path} was changed by another writer") from None
            except MetadataError:
                self._stale = self._snapshot is not None
                raise
            else:
                self._stale = False
                return self._snapshot
        raise CommitUnknown(f"{self._path} was not changed: {_TRIES} tries in a row had no known outcome")

    def _refresh(self) -> Snapshot:
        found = self._store.get(self._path)
        info = None if found is None else parse_managed_ledger(found.value)
        epoch = None if info is None else get_number(info, OWNER_EPOCH)
        if found is None or info is None or epoch != self._epoch:
            raise Fenced(f"{self._path} {_whose(found, epoch)}, not by our epoch {self._epoch}: stop, and open it anew")
        self._snapshot = Snapshot(info, found.version)
        self._stale = False
        return self._snapshot


def _following(version: int) -> int:
    return FIRST_VERSION if version == MUST_NOT_EXIST else version + 1


def _whose(found: Versioned | None, epoch: int | None) -> str:
    return "was deleted" if found is None else f"is owned by epoch {epoch}"
