"""The ``ManagedLedgerInfo`` of a topic: owned by one process at a time, changed only by compare-and-set.

Opening a topic raises the owner epoch in the value. From then on every writer with an older value gets a conflict,
re-reads, sees an epoch that is not its own, and is fenced: it can change nothing more.

An edit may be applied several times, to newer values, and may have been applied although its caller got an error
(``MetadataUnavailable`` after an unknown outcome). So edits depend only on the value and their arguments, and are
idempotent.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from afterglow.errors import CommitUnknown, Fenced, MetadataError, TopicMissing, VersionConflict
from afterglow.events import log_event
from afterglow.format.compression import Codec
from afterglow.format.metadata_envelope import parse_managed_ledger, serialize_managed_ledger
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
from afterglow.ledger.properties import OWNER_EPOCH, get_number, set_text
from afterglow.metadata.paths import MANAGED_LEDGERS, topic_label
from afterglow.metadata.store import FIRST_VERSION, MUST_NOT_EXIST

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from afterglow.config import BrokerConfig
    from afterglow.ledger.environment import Clock
    from afterglow.metadata.store import MetadataStore

    Edit: TypeAlias = Callable[[ManagedLedgerInfo], None]
    """Changes the value passed to it; may be called several times, each time with a fresh copy."""

_log = logging.getLogger(__name__)

_MAX_ATTEMPTS: Final = 64
"""Conflicts in a row that are retried after reading again. Only writers of one owner conflict repeatedly, and one of
them always succeeds, so that only a faulty store gets this far."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The value at one version; not to be changed."""

    info: ManagedLedgerInfo
    version: int
    """Grows with every change."""


class TopicMetadata:
    """The metadata of one topic.

    Args:
        store: The metadata store.
        path: Path of the topic's node.
        config: Compression of the value.
        clock: Source of a new topic's first epoch.
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
        """Path of the topic's node."""
        return self._path

    @property
    def owner_epoch(self) -> int:
        """The epoch under which this process owns the topic; 0 before :meth:`open`."""
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
        """Whether a change had an unknown outcome, so that the value must be read again."""
        return self._stale

    def open(self, *, create: bool) -> Snapshot:
        """Take ownership of the topic, and fence its earlier owner.

        1. Read the value. *Crash: nothing was changed.*
        2. Put it back with a higher epoch, or create it. *Crash: the earlier owner is fenced, and the topic has no
           owner until the epoch is raised again.*

        The epoch of a new topic is the wall-clock time, so that a topic that was deleted and created anew never gets
        the epoch of an earlier owner.

        Args:
            create: Whether to create a missing topic.

        Raises:
            TopicMissing: The topic does not exist, and is not to be created.
            CorruptMetadata: The value does not parse.
            MetadataError: The store failed; the earlier owner may be fenced.
        """
        with self._lock:
            for _ in range(_MAX_ATTEMPTS):
                found = self._store.get(self._path)
                if found is None and not create:
                    raise TopicMissing(f"no topic found at {self._path}; create it first")
                info = ManagedLedgerInfo() if found is None else parse_managed_ledger(found.value)
                epoch = max((get_number(info, OWNER_EPOCH) or 0) + 1, self._clock.now_ms())
                set_text(info, OWNER_EPOCH, str(epoch))
                try:
                    snapshot = self._put(info, MUST_NOT_EXIST if found is None else found.version)
                except VersionConflict:
                    continue
                self._epoch = epoch
                if found is None:
                    is_ours = self._path.startswith(f"{MANAGED_LEDGERS}/")
                    log_event(_log, "topic created" if is_ours else "topic attached", topic=topic_label(self._path))
                return snapshot
            raise VersionConflict(f"{self._path} was not opened: {_MAX_ATTEMPTS} conflicts in a row")

    def update(self, edit: Edit) -> Snapshot:
        """Apply an edit; returns the new value.

        1. Apply the edit to a copy of the newest known value; if that changes nothing, return.
        2. Put the copy with the version it was read at. *Crash: the edit is applied entirely or not at all.*
        3. On a conflict read again: with the same epoch, apply the edit to the newer value; with another one, fenced.
        4. On an unknown outcome read again: our bytes, done; the expected version, retry; otherwise a conflict.

        Raises:
            Fenced: Another process owns the topic, or it was deleted. Nothing was changed.
            MetadataUnavailable: The store cannot be reached. After an unknown outcome the edit may have been applied,
                which the next call finds out.
            MetadataError: The store refused the change.
        """
        with self._lock:
            if self._stale:
                self._refresh()
            for _ in range(_MAX_ATTEMPTS):
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
            raise VersionConflict(f"{self._path} was not changed: {_MAX_ATTEMPTS} conflicts in a row")

    def check_owner(self) -> Snapshot:
        """Read the value again.

        Raises:
            Fenced: Another process owns the topic, or it was deleted.
            MetadataUnavailable: The store cannot be reached.
        """
        with self._lock:
            return self._refresh()

    def remove(self) -> None:
        """Delete the node, which must have no children. A missing node is not an error.

        Raises:
            Fenced: Another process owns the topic.
            MetadataError: The store failed.
        """
        with self._lock:
            if self._stale:
                self._refresh()
            for _ in range(_MAX_ATTEMPTS):
                try:
                    self._store.delete(self._path, self.snapshot.version)
                except (VersionConflict, CommitUnknown):
                    if self._store.get(self._path) is None:
                        return
                    self._refresh()
                else:
                    return
            raise VersionConflict(f"{self._path} was not deleted: {_MAX_ATTEMPTS} conflicts in a row")

    def _put(self, info: ManagedLedgerInfo, version: int) -> Snapshot:
        """Put a value, and resolve an unknown outcome by reading."""
        value = serialize_managed_ledger(info, self._codec, self._threshold_bytes)
        for _ in range(_MAX_ATTEMPTS):
            try:
                self._snapshot = Snapshot(info, self._store.put(self._path, value, version))
            except CommitUnknown:
                self._stale = True  # until a read has resolved it
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
        raise CommitUnknown(f"{self._path} was not changed: {_MAX_ATTEMPTS} attempts in a row had an unknown outcome")

    def _refresh(self) -> Snapshot:
        found = self._store.get(self._path)
        info = None if found is None else parse_managed_ledger(found.value)
        epoch = None if info is None else get_number(info, OWNER_EPOCH)
        if found is None or info is None or epoch != self._epoch:
            owner = "was deleted" if found is None else f"is owned by epoch {epoch}"
            raise Fenced(f"{self._path} {owner}, not by epoch {self._epoch} of this process; open the topic again")
        self._snapshot = Snapshot(info, found.version)
        self._stale = False
        return self._snapshot


def _following(version: int) -> int:
    return FIRST_VERSION if version == MUST_NOT_EXIST else version + 1
