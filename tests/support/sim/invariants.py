"""Invariant checker: inspects every change of metadata, tier and hot log as it is made, and reports broken promises.

It sees what is really stored, below all faults, and reads it with as little of the code under test as can be. What it
finds is kept, not raised: the code under test would take an exception for one of its own.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final
from uuid import UUID

from afterglow.format.metadata_envelope import parse_managed_ledger
from afterglow.metadata.paths import AfterglowPaths, topic_of
from afterglow.storage.wrapper import StoreWrapper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from tests.support.sim.model import TopicModel
    from tests.support.sim.tier import SimTier

    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo, OffloadContext, OffloadSegment
    from afterglow.metadata.memory import MemoryMetadataStore
    from afterglow.metadata.watches import Watch, WatchCallback
    from afterglow.storage.store import Data, Part, Upload

_LISTS: Final = "/managed-ledgers/"
_DEPTH: Final = 5
"""Slashes in the path of a topic's list; a cursor's has one more."""
_UUID_CHARS: Final = 36

OWNER_EPOCH: Final = "afterglow.owner-epoch"
DELETING: Final = "afterglow.deleting"
FOREIGN: Final = "foreign"
"""What keys begin with that are none of ours."""


def uuid_of(holder: OffloadContext | OffloadSegment) -> str | None:
    """The UUID in a ledger list, as text; None if it is unset."""
    return _uuid(holder.uidMsb, holder.uidLsb) if holder.HasField("uidMsb") else None


@lru_cache(maxsize=1024)
def _uuid(most: int, least: int) -> str:
    return str(UUID(int=(most & (1 << 64) - 1) << 64 | least & (1 << 64) - 1))


def text_of(info: ManagedLedgerInfo, key: str) -> str | None:
    """A property of a list."""
    return next((pair.value for pair in info.properties if pair.key == key), None)


def in_tier(row: ManagedLedgerInfo.LedgerInfo) -> bool:
    """Whether a ledger is in the tier from its first entry to its last."""
    context = row.offloadContext
    if not row.entries:
        return False
    ends = [segment.endEntryId for segment in context.offloadSegment if segment.complete]
    return context.complete or (bool(ends) and max(ends) == row.entries - 1)


class InvariantChecker:
    """Keeps the truth of what is stored.

    Args:
        metadata: The store itself.
        tiers: The tiers themselves.
        now_ms: The time of day by the clock of the acting process.
        models: What topics must hold, by managed-ledger name.
        stale: Whether the acting process has lost the topic, or the acting task has no owner that waits for it.
    """

    def __init__(
        self,
        metadata: MemoryMetadataStore,
        tiers: Sequence[SimTier],
        now_ms: Callable[[], int],
        models: Mapping[str, TopicModel],
        stale: Callable[[], bool],
    ) -> None:
        self._metadata = metadata
        self._tiers = tiers
        self._now_ms = now_ms
        self._models = models
        self._stale = stale
        self._paths = AfterglowPaths()
        self.lists: dict[str, ManagedLedgerInfo] = {}
        """The list of each topic as it is stored."""
        self._named: frozenset[str] | None = None
        self.broken: list[str] = []
        """Promises that were broken."""
        self.late: set[str] = set()
        """UUIDs of objects and uploads that a replaced owner, which could not know of that yet, wrote to."""

    # --- metadata -----------------------------------------------------------------------------------------------------

    def stored(self, path: str, value: bytes) -> None:
        """A value was put."""
        if not path.startswith(_LISTS) or path.count("/") != _DEPTH:
            return
        name = topic_of(path).managed_ledger_name
        model = self._models[name]
        old, new = self.lists.get(name), parse_managed_ledger(value)
        if old is None:
            model.created()
        else:
            self._compare(model, old, new)
        self.lists[name] = new
        self._named = None

    def removed(self, path: str) -> None:
        """A node was deleted."""
        if path.startswith(_LISTS) and path.count("/") == _DEPTH:
            name = topic_of(path).managed_ledger_name
            info = self.lists.pop(name)
            self._named = None
            if info.ledgerInfo:
                self.broken.append(f"{name} was deleted while its list still named ledgers")

    def _compare(self, model: TopicModel, old: ManagedLedgerInfo, new: ManagedLedgerInfo) -> None:
        before = {row.ledgerId: row for row in old.ledgerInfo}
        after = {row.ledgerId: row for row in new.ledgerInfo}
        leaving = sorted(before.keys() - after.keys())
        if text_of(new, DELETING) is not None and not model.deletion_wanted:
            self.broken.append(f"{model.name} is deleted, and nobody asked for that")
        for ledger_id in leaving:
            if not model.may_leave(old, before[ledger_id], self._now_ms()):
                self.broken.append(f"{model.name}: ledger {ledger_id} left the list, and nothing allowed that")
            model.left(ledger_id)
            if (
                ledger_id not in model.discarded
                and before[ledger_id].entries
                and any(kept < ledger_id and before[kept].entries for kept in after if kept in before)
            ):
                self.broken.append(f"{model.name}: ledger {ledger_id} left the list before older ones: a hole")
        for ledger_id, row in after.items():
            if (was := before.get(ledger_id)) != row:
                self._compare_rows(model, was, row)

    def _compare_rows(
        self, model: TopicModel, old: ManagedLedgerInfo.LedgerInfo | None, new: ManagedLedgerInfo.LedgerInfo
    ) -> None:
        context = new.offloadContext
        was = None if old is None else old.offloadContext
        if old is not None and old.HasField("entries") and old.entries != new.entries:
            self.broken.append(f"{model.name}: ledger {new.ledgerId} had {old.entries} entries and has {new.entries}")
        if context.complete and (was is None or not was.complete):
            self._check_object(model, new.ledgerId, f"{uuid_of(context)}-ledger-{new.ledgerId}")
            if was is not None and uuid_of(was) != uuid_of(context):
                self.broken.append(f"{model.name}: ledger {new.ledgerId} was committed under a UUID of its own making")
        if was is not None and was.complete and (not context.complete or uuid_of(was) != uuid_of(context)):
            self.broken.append(
                f"{model.name}: ledger {new.ledgerId} was complete as {uuid_of(was)}, and is not any more"
            )
        known = {uuid_of(segment) for segment in was.offloadSegment if segment.complete} if was is not None else set()
        now = {uuid_of(segment) for segment in context.offloadSegment if segment.complete}
        for uuid in now - known:
            self._check_object(model, new.ledgerId, f"{uuid}")
        if known - now - model.taken_out:
            self.broken.append(f"{model.name}: ledger {new.ledgerId} has lost committed segments {known - now}")
        if context.bookkeeperDeleted and not in_tier(new):
            self.broken.append(f"{model.name}: ledger {new.ledgerId} is freed, and not in the tier as a whole")

    def _check_object(self, model: TopicModel, ledger_id: int, key: str) -> None:
        for wanted in (key, f"{key}-index"):
            if not self.has(wanted):
                self.broken.append(f"{model.name}: ledger {ledger_id} was committed, and there is no object {wanted}")

    # --- hot log ------------------------------------------------------------------------------------------------------

    def freed(self, ledger_id: int) -> None:
        """A hot ledger is about to be deleted."""
        for name, info in self.lists.items():
            for row in info.ledgerInfo:
                if row.ledgerId != ledger_id:
                    continue
                if not (row.offloadContext.bookkeeperDeleted and in_tier(row)):
                    self.broken.append(f"{name}: the hot copy of ledger {ledger_id} is deleted, and it is the only one")
                return
        for model in self._models.values():
            if model.acknowledged.get(ledger_id) and ledger_id not in model.gone and model.name in self.lists:
                self.broken.append(
                    f"{model.name}: the hot copy of ledger {ledger_id} is deleted, though its list still names it"
                )

    # --- tier ---------------------------------------------------------------------------------------------------------

    def has(self, key: str) -> bool:
        """Whether an object is there."""
        return any(tier.has(key) for tier in self._tiers)

    def named(self) -> frozenset[str]:
        """Every UUID that a list names."""
        if self._named is None:
            self._named = frozenset(uuid for info in self.lists.values() for uuid in _uuids(info))
        return self._named

    def deleting(self, keys: Iterable[str]) -> None:
        """Objects are about to be deleted."""
        named = self.named()
        for key in keys:
            if key.startswith(FOREIGN):
                self.broken.append(f"foreign object {key} is deleted")
            elif key[:_UUID_CHARS] in named and self.has(key):
                self.broken.append(f"object {key} is deleted, and a list names it")

    def aborting(self, upload: Upload) -> None:
        """An upload is about to be aborted."""
        if upload.key.startswith(FOREIGN):
            self.broken.append(f"foreign upload of {upload.key} is aborted")

    def writing(self, key: str, tier: SimTier | None = None, data: bytes | None = None) -> None:
        """An object or an upload is about to be written."""
        if key.startswith(FOREIGN):
            self.broken.append(f"foreign object {key} is written")
            return
        if tier is not None and self.has(key) and not (tier.has(key) and bytes(tier.get(key)) == data):
            self.broken.append(f"object {key} is written over with other bytes, or in two tiers")
        uuid = key[:_UUID_CHARS]
        if uuid in self.named() or any(self._on_record(name, UUID(uuid)) for name in self._models):
            return
        if not self._stale():
            self.broken.append(f"object {key} is written, and neither a list nor a record names it")
        self.late.add(uuid)

    def uploading(self, key: str) -> None:
        """An upload is about to begin."""
        self.writing(key)
        if self._stale():
            self.late.add(key[:_UUID_CHARS])

    def _on_record(self, name: str, uuid: UUID) -> bool:
        paths = (self._paths.delete(name, uuid), self._paths.upload(name, uuid))
        return any(self._metadata.get(path) is not None for path in paths)


def _uuids(info: ManagedLedgerInfo) -> Iterator[str]:
    for row in info.ledgerInfo:
        found = [uuid_of(row.offloadContext), *map(uuid_of, row.offloadContext.offloadSegment)]
        yield from (uuid for uuid in found if uuid is not None)


class CheckedTier(StoreWrapper):
    """The tier, with a watchman before what changes it."""

    def __init__(self, inner: SimTier, invariants: InvariantChecker) -> None:
        super().__init__(inner)
        self._inner = inner
        self._invariants = invariants
        self.get = inner.get  # type: ignore[method-assign]  # reads pass as they are
        self.head = inner.head  # type: ignore[method-assign]
        self.list_page = inner.list_page  # type: ignore[method-assign]
        self.list_parts = inner.list_parts  # type: ignore[method-assign]
        self.list_uploads = inner.list_uploads  # type: ignore[method-assign]
        self.upload_part = inner.upload_part  # type: ignore[method-assign]

    def put(self, key: str, data: Data, *, metadata: Mapping[str, str] | None = None, if_absent: bool = False) -> None:
        """Write an object."""
        if not (if_absent and self._inner.has(key)):
            self._invariants.writing(key, self._inner, bytes(data))
        self._inner.put(key, data, metadata=metadata, if_absent=if_absent)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects."""
        listed = tuple(keys)
        self._invariants.deleting(listed)
        self._inner.delete(listed)

    def create_upload(self, key: str, *, metadata: Mapping[str, str] | None = None) -> Upload:
        """Begin an upload."""
        self._invariants.uploading(key)
        return self._inner.create_upload(key, metadata=metadata)

    def complete_upload(self, upload: Upload, parts: Sequence[Part]) -> None:
        """Finish an upload."""
        self._inner.complete_upload(upload, parts)
        self._invariants.writing(upload.key)

    def abort_upload(self, upload: Upload) -> None:
        """Discard an upload."""
        self._invariants.aborting(upload)
        self._inner.abort_upload(upload)


class CheckedMetadata:
    """The metadata store, with a watchman behind it."""

    def __init__(self, inner: MemoryMetadataStore, invariants: InvariantChecker) -> None:
        self._inner = inner
        self._invariants = invariants
        self.get = inner.get  # reads pass as they are
        self.children = inner.children

    @property
    def max_value_bytes(self) -> int:
        """The longest value."""
        return self._inner.max_value_bytes

    def put(self, path: str, value: bytes, expected_version: int, *, guard: str | None = None) -> int:
        """Change the node."""
        version = self._inner.put(path, value, expected_version, guard=guard)
        self._invariants.stored(path, value)
        return version

    def delete(self, path: str, expected_version: int, *, guard: str | None = None) -> None:
        """Remove the node."""
        self._inner.delete(path, expected_version, guard=guard)
        self._invariants.removed(path)

    def watch(self, path: str, callback: WatchCallback) -> Watch:
        """Watch the inner store."""
        return self._inner.watch(path, callback)

    def close(self) -> None:
        """Nothing is held."""
