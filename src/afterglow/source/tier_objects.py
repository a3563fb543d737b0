"""Objects of a tier as a listing and their indexes describe them, without metadata.

An object names its managed ledger in its user metadata, and the index of a V1 object names it too. The index has the
ledgers and entries. Both are read once per object: keys are never reused, so that the result can be cached.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from afterglow.errors import (
    CorruptBlock,
    CorruptIndex,
    InvalidName,
    ObjectMissing,
    WrongLength,
    WrongVersion,
)
from afterglow.format.blocks import Format
from afterglow.format.checks import index_problems, open_block
from afterglow.format.index import decode_index
from afterglow.format.objects import INDEX_SUFFIX, INSTANCE_KEY, ObjectKey, check_version, parse_key
from afterglow.format.proto.bookkeeper_pb2 import LedgerMetadataFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from afterglow.errors import FormatError
    from afterglow.format.index import LedgerGroup, ObjectIndex
    from afterglow.storage import ObjectStore
    from afterglow.storage.store import ObjectInfo

_log = logging.getLogger(__name__)

_NAME_KEY: Final = "managedledgername"
_CLUSTER_KEY: Final = "pulsarclustername"
_INDEX_NAME_KEY: Final = "pulsar/managed-ledger"
"""Key of the managed ledger's name in a V1 index."""
_THREADS: Final = 16
"""Objects that are read at once."""
_REPORT_AFTER_S: Final = 5.0
"""Interval between two lines about progress."""


@dataclass(frozen=True, slots=True)
class ObjectExtent:
    """The entries of one ledger in an object."""

    ledger_id: int
    first: int
    """First entry, inclusive."""
    last: int
    """Last entry, inclusive."""
    size_bytes: int
    """Bytes of the entries; in V2 without statistics, of their blocks."""


@dataclass(frozen=True, slots=True)
class ListedObject:
    """A data object with an index."""

    key: ObjectKey
    size_bytes: int
    modified_ms: int
    managed_ledger: str
    """Name of its managed ledger; empty if neither user metadata nor index has it."""
    cluster: str
    """Name of the cluster; empty if the user metadata does not have it."""
    instance: str
    """Id of the Afterglow instance that wrote it; empty if Pulsar did."""
    extents: tuple[ObjectExtent, ...] = ()
    """By ledger; empty if the index cannot be read."""
    has_statistics: bool = False
    """Whether the index has statistics of its blocks."""
    error: FormatError | None = None
    """Why it cannot be read, or not wholly; None if index and length are sound."""


@dataclass(frozen=True, slots=True)
class IncompleteObject:
    """A data object without an index, or an index without its data object."""

    key: ObjectKey
    missing: str
    """Key of the part that is missing."""
    modified_ms: int
    """When the other part was written."""


@dataclass(frozen=True, slots=True)
class TierListing:
    """Objects of a tier at one moment."""

    objects: Mapping[str, ListedObject]
    """By key of the data object."""
    incomplete: tuple[IncompleteObject, ...] = ()
    foreign: tuple[str, ...] = ()
    """Keys that are not those of offloaded objects."""


@dataclass(frozen=True, slots=True)
class _Listed:
    """The two parts of an object in a listing."""

    data: ObjectInfo | None = None
    index: ObjectInfo | None = None

    @property
    def tag(self) -> str:
        """Changes if one of the parts does; empty if one of them is not listed."""
        if self.data is None or self.index is None:
            return ""
        return f"{self.data.etag} {self.data.size_bytes} {self.index.etag} {self.index.size_bytes}"


def list_objects(
    store: ObjectStore,
    known: Mapping[str, tuple[str, ListedObject]],
    learn: Callable[[Mapping[str, tuple[str, ListedObject]]], None],
) -> TierListing:
    """List a tier, and read the objects that are not known yet.

    Args:
        store: The tier.
        known: Objects by key, each with its tag, that need not be read again.
        learn: Called with sound objects that were read, by key, each with its tag.

    Raises:
        StorageError: A request failed.
    """
    listed: dict[ObjectKey, _Listed] = {}
    foreign: list[str] = []
    for info in store.list():
        try:
            key = parse_key(info.key)
        except InvalidName:
            foreign.append(info.key)
            continue
        data_key = ObjectKey(key.uuid, key.ledger_id)
        parts = listed.get(data_key, _Listed())
        listed[data_key] = _Listed(parts.data, info) if key.index else _Listed(info, parts.index)
    found: dict[str, ListedObject] = {}
    unread: dict[ObjectKey, _Listed] = {}
    for data_key, parts in listed.items():
        tag, cached = known.get(str(data_key), ("", None))
        if cached is not None and tag and tag == parts.tag:
            found[str(data_key)] = cached
        else:
            unread[data_key] = parts
    incomplete = []
    for data_key, read in _read_all(store, unread, learn):
        if isinstance(read, ListedObject):
            found[str(data_key)] = read
        elif read is not None:
            incomplete.append(read)
    return TierListing(found, tuple(incomplete), tuple(foreign))


def _read_all(
    store: ObjectStore,
    unread: Mapping[ObjectKey, _Listed],
    learn: Callable[[Mapping[str, tuple[str, ListedObject]]], None],
) -> Iterator[tuple[ObjectKey, ListedObject | IncompleteObject | None]]:
    """Read objects on several threads; what was read is kept even if a request fails."""
    learned: dict[str, tuple[str, ListedObject]] = {}
    reported_s = time.monotonic()
    executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="afterglow-listing")
    try:
        results = executor.map(lambda item: read_object(store, item[0], item[1].data, item[1].index), unread.items())
        for number, ((data_key, parts), read) in enumerate(zip(unread.items(), results, strict=True), 1):
            if isinstance(read, ListedObject) and read.error is None and parts.tag:
                learned[str(data_key)] = (parts.tag, read)
            if time.monotonic() - reported_s > _REPORT_AFTER_S:
                reported_s = time.monotonic()
                _log.info("%s: read the indexes of %d of %d objects", store.url, number, len(unread))
            yield data_key, read
    finally:
        executor.shutdown(cancel_futures=True)
        if learned:
            learn(learned)


def read_object(
    store: ObjectStore, key: ObjectKey, data: ObjectInfo | None, index: ObjectInfo | None
) -> ListedObject | IncompleteObject | None:
    """Read the user metadata and the index of an object; None if it was deleted meanwhile.

    A listing may lag, so that parts that it lacks are requested too.

    Args:
        store: The tier.
        key: Key of the data object.
        data: The data object in the listing; None if it is not listed.
        index: The index in the listing; None if it is not listed.

    Raises:
        StorageError: A request failed.
    """
    name = str(key)
    try:
        head = store.head(name)
    except ObjectMissing:
        head = None
    try:
        content = store.get(name + INDEX_SUFFIX)
    except ObjectMissing:
        content = None
    if head is None or content is None:
        if head is None and content is None:
            return None
        written = head or index or data
        modified_ms = 0 if written is None else written.modified_ms
        return IncompleteObject(key, name if head is None else name + INDEX_SUFFIX, modified_ms)
    metadata = {each.lower(): value for each, value in head.metadata.items()}
    listed = ListedObject(
        key,
        head.size_bytes,
        head.modified_ms,
        metadata.get(_NAME_KEY, ""),
        metadata.get(_CLUSTER_KEY, ""),
        metadata.get(INSTANCE_KEY, ""),
    )
    try:
        check_version(name, head.metadata)
        parsed = _sound_index(content)
        listed = replace(
            listed,
            managed_ledger=listed.managed_ledger or _name_in_index(parsed),
            extents=tuple(_extents(store, key, parsed)),
            has_statistics=all(group.statistics is not None for group in parsed.groups),
        )
    except (CorruptIndex, CorruptBlock, WrongVersion) as error:
        return replace(listed, error=error)
    if head.size_bytes != parsed.data_bytes:
        length = WrongLength(f"it has {head.size_bytes} bytes, its index says {parsed.data_bytes}")
        return replace(listed, error=length)
    return listed


def _sound_index(content: memoryview) -> ObjectIndex:
    """Decode an index.

    Raises:
        CorruptIndex: It is damaged, or contradicts itself.
    """
    parsed = decode_index(content)
    problem = next(index_problems(parsed), None)
    if problem is not None:
        raise CorruptIndex(str(problem))
    return parsed


def _name_in_index(index: ObjectIndex) -> str:
    if index.format is not Format.V1:
        return ""
    metadata = LedgerMetadataFormat.FromString(index.groups[0].metadata)
    names = (pair.value for pair in metadata.customMetadata if pair.key == _INDEX_NAME_KEY)
    return next(names, b"").decode("utf-8", "replace")


def _extents(store: ObjectStore, key: ObjectKey, index: ObjectIndex) -> Iterator[ObjectExtent]:
    """The entries of each ledger.

    Raises:
        CorruptBlock: The last block of a ledger is damaged, and only it has the last entry.
    """
    bounds = {(id(group), number): (start, end) for group, number, start, end in index.extents()}
    for group in index.groups:
        sizes = [bounds[id(group), number] for number in range(len(group.blocks))]
        ledger_id = group.ledger_id if key.ledger_id is None else key.ledger_id
        assert ledger_id is not None
        last = _last_entry(store, key, group, *sizes[-1])
        size_bytes = (
            sum(end - start for start, end in sizes)
            if group.statistics is None
            else sum(block.payload_bytes for block in group.statistics)
        )
        yield ObjectExtent(ledger_id, group.blocks[0].first_entry_id, last, size_bytes)


def _last_entry(store: ObjectStore, key: ObjectKey, group: LedgerGroup, start: int, end: int) -> int:
    """The last entry of a ledger in an object, whose last block has these bounds."""
    if key.ledger_id is not None:
        return group.last_entry_id
    block = group.blocks[-1]
    if group.statistics is not None:
        return block.first_entry_id + group.statistics[-1].entries - 1
    # The index of a V2 object of Pulsar has the last entry of the ledger, which may be after that of the object.
    frames = open_block(store.get(str(key), start, end), block.first_entry_id, group.ledger_id).frames
    if frames.damage:
        raise CorruptBlock(f"its block at {start}: {frames.damage}")
    return frames.end_entry_id - 1
