"""Verification of one object against what metadata says of it; calls are independent, so that many can run at once.

Objects of external offload drivers are verified through the driver, since only it knows their bytes: every entry that
metadata says is there, in order, and each against its own checksum. Whether the driver stores anything that metadata
does not name is not known.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from afterglow.errors import BucketMissing, FormatError, ObjectMissing
from afterglow.verify.blocks import check_blocks
from afterglow.verify.entries import EntryChecks
from afterglow.verify.findings import Finding, Kind, position_text
from afterglow.verify.index import parse_index
from afterglow.verify.state import INDEX_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping
    from typing import TypeVar

    from afterglow.storage.store import ObjectInfo, ObjectStore
    from afterglow.verify.blocks import Share
    from afterglow.verify.index import Group, Index
    from afterglow.verify.topic_metadata import ParsedLocation, SegmentRecord

    _R = TypeVar("_R")

INSTANCE: Final = "afterglowinstance"
_VERSION_KEY: Final = "s3managedledgeroffloaderformatversion"
_VERSION: Final = "1"
_HEADER_BYTES: Final = 128
_FRAME_BYTES: Final = 12


@dataclass(frozen=True, slots=True)
class Stretch:
    """Entries of one ledger that a committed object holds, by metadata."""

    ledger_id: int
    first: int
    """Inclusive."""
    last: int | None
    """Inclusive; None where metadata does not say how long the ledger is."""


@dataclass(frozen=True, slots=True)
class ObjectCheck:
    """A committed object that is to be checked: all that the check needs, and picklable."""

    topic: str
    """As people write it."""
    location: ParsedLocation
    key: str
    """Of the data object; the index has the same with ``-index`` behind it."""
    version: int
    """1: a ledger's own object. 2: a segment."""
    stretches: tuple[Stretch, ...]
    """Ascending. Ledgers that the object holds and that have left the list are not among them."""
    record: SegmentRecord | None = None
    """Of a segment, where there is one."""
    size_bytes: int = 0
    """About how long the object is, by metadata; 0 where that does not say."""


@dataclass(frozen=True, slots=True)
class _Opened:
    """An object whose index can be used."""

    size_bytes: int
    index: Index


def check_object(
    store: ObjectStore | DriverCopies, check: ObjectCheck, *, instance: str, share: Share | None = None
) -> Generator[Finding, None, int]:
    """Check one object and its index.

    Args:
        store: Where they are, or the external driver that has them.
        check: What metadata says.
        instance: Our own.
        share: The blocks of the object to read byte by byte; None: none of them. What is to be told of the object as a
            whole, whoever reads its beginning tells.

    Returns:
        Bytes of the object that no checksum covers, in the blocks that were read.

    Raises:
        StorageError: The store fails. That is no finding: nothing is known about the object.
    """
    if isinstance(store, DriverCopies):
        return check_copies(store, check, share)
    return _Object(store, check, instance).findings(share)


class _Object:
    def __init__(self, store: ObjectStore, check: ObjectCheck, instance: str) -> None:
        self._store = store
        self._check = check
        self._instance = instance
        self._index_key = check.key + INDEX_SUFFIX

    def findings(self, share: Share | None) -> Generator[Finding, None, int]:
        """See :func:`check_object`."""
        if share is None or 0 in share:
            opened = yield from self._as_a_whole(unread=share is None)
        else:
            opened = _result(self._as_a_whole(unread=False))
        if share is None or opened is None:
            return 0
        try:
            return (
                yield from check_blocks(
                    self._store,
                    self._check.key,
                    opened.size_bytes,
                    opened.index,
                    topic=self._check.topic,
                    ledger_id=self._check.stretches[0].ledger_id,
                    ends=self._ends(opened.index),
                    share=share,
                )
            )
        except ObjectMissing:  # it went while it was read
            yield self._missing()
            return 0

    def _as_a_whole(self, *, unread: bool) -> Generator[Finding, None, _Opened | None]:
        """All that can be told without reading its bytes; returns it if they can be read.

        Args:
            unread: Whether nobody will read them.
        """
        check = self._check
        data = self._head(check.key)
        if data is None:
            yield self._missing()
            return None
        index_info = self._head(self._index_key)
        if index_info is None:
            yield self._index_finding(Kind.MISSING_INDEX, f"{self._store.url} has no such object")
            return None
        yield from self._check_metadata(data, index_info)
        try:
            index = parse_index(bytes(self._store.get(self._index_key)))
            self._check_shape(index)
        except FormatError as error:
            yield self._index_finding(Kind.DAMAGED_BLOCK, f"the index is damaged: {error}")
            return None
        except ObjectMissing:  # it went between the two requests
            yield self._index_finding(Kind.MISSING_INDEX, f"{self._store.url} has no such object")
            return None
        right_length = data.size_bytes == index.data_bytes
        if not right_length:
            yield self._wrong_length(index, data.size_bytes, f"the index says {index.data_bytes}")
        if check.record is not None and check.record.bytes != data.size_bytes:
            yield self._wrong_length(index, data.size_bytes, f"the segment's record says {check.record.bytes}")
        yield from self._check_coverage(index)
        yield from self._check_record(index)
        uncovered = yield from self._check_statistics(index, right_length=right_length)
        if uncovered and unread:
            yield self._finding(Kind.UNCHECKED, f"no checksum covers {uncovered} bytes: the index has no statistics")
        return _Opened(data.size_bytes, index)

    # --- the object from outside ---

    def _head(self, key: str) -> ObjectInfo | None:
        try:
            return self._store.head(key)
        except (ObjectMissing, BucketMissing):
            return None

    def _check_metadata(self, *infos: ObjectInfo) -> Iterator[Finding]:
        for info in infos:
            # An object without any was copied by somebody who dropped it; the bytes are none the worse.
            version = info.metadata.get(_VERSION_KEY) if info.metadata else _VERSION
            if version != _VERSION:
                detail = f"its format version is {version!r}, not {_VERSION!r}: readers refuse it"
                yield self._finding(Kind.DAMAGED_BLOCK, detail, key=info.key)
        others = {info.metadata.get(INSTANCE) for info in infos} - {self._instance}
        if others:
            found = " and ".join(sorted("no instance" if name is None else f"instance {name}" for name in others))
            yield self._finding(Kind.FOREIGN, f"metadata names it, but it carries {found}: a sweep will never take it")

    # --- the index ---

    def _check_shape(self, index: Index) -> None:
        """Insist on what every writer of the format promises.

        Raises:
            FormatError: The index breaks one of these promises.
        """
        if index.version != self._check.version:
            raise FormatError(f"it has the layout V{index.version} where V{self._check.version} belongs")
        if index.header_bytes != _HEADER_BYTES:
            raise FormatError(f"it says that block headers have {index.header_bytes} bytes")
        if not index.groups or not all(group.blocks for group in index.groups):
            raise FormatError("it names a ledger without blocks")
        ledgers = [group.ledger_id for group in index.groups]
        if len(set(ledgers)) != len(ledgers):
            raise FormatError("it names a ledger twice")
        blocks = [group.blocks[number] for group, number in index.blocks]
        if blocks[0].offset != 0:
            raise FormatError(f"its first block begins at {blocks[0].offset}")
        if [block.part_id for block in blocks] != list(range(1, len(blocks) + 1)):
            raise FormatError("its blocks are not numbered from 1")
        for before, block in pairwise(blocks):
            if block.offset - before.offset < _HEADER_BYTES:
                raise FormatError(f"its blocks at {before.offset} and {block.offset} leave no room for a header")
        for group in index.groups:
            ids = [block.first_entry_id for block in group.blocks]
            if ids != sorted(set(ids)) or [block.offset for block in group.blocks] != sorted(
                block.offset for block in group.blocks
            ):
                raise FormatError(f"the blocks of ledger {group.ledger_id} do not ascend")
        if index.version == 1:
            self._check_v1_shape(index)

    @staticmethod
    def _check_v1_shape(index: Index) -> None:
        """All blocks but the last are padded to the same length.

        Raises:
            FormatError: They are not, or the first lacks entry 0.
        """
        blocks = index.groups[0].blocks
        if blocks[0].first_entry_id != 0:
            raise FormatError(f"its first block begins with entry {blocks[0].first_entry_id}")
        sizes = {after.offset - block.offset for block, after in pairwise(blocks)}
        if len(sizes) > 1:
            raise FormatError(f"its blocks but the last have different lengths: {sorted(sizes)}")

    def _check_coverage(self, index: Index) -> Iterator[Finding]:
        """Whether the object holds the entries that metadata says."""
        for stretch in self._check.stretches:
            group = _group_of(index, stretch.ledger_id)
            if group is None:
                yield self._gap(Kind.HOLE, stretch, stretch.first, "its index does not know the ledger")
                continue
            first = group.blocks[0].first_entry_id
            if first > stretch.first:
                yield self._gap(Kind.HOLE, stretch, stretch.first, f"its index begins with entry {first}")
            if first < stretch.first:
                yield self._gap(Kind.OVERLAP, stretch, first, f"entries {first} to {stretch.first - 1} are also before")
            last, exact = _last_entry(index, group)
            if stretch.last is None:
                continue
            if last < stretch.last:
                yield self._gap(Kind.HOLE, stretch, last + 1, f"its index ends with entry {last}")
            if exact and last > stretch.last:
                detail = f"its index goes on to entry {last}, metadata to {stretch.last}"
                yield self._gap(Kind.OVERLAP, stretch, stretch.last + 1, detail)

    def _check_record(self, index: Index) -> Iterator[Finding]:
        record = self._check.record
        if record is None:
            return
        blocks = sum(len(group.blocks) for group in index.groups)
        told = [group.statistics for group in index.groups]
        entries = sum(sum(table.entries) for table in told if table is not None)
        if blocks != record.blocks or (None not in told and entries != record.entries):
            detail = (
                f"the index has {blocks} blocks and {entries} entries, "
                f"the segment's record {record.blocks} and {record.entries}"
            )
            yield self._index_finding(Kind.DAMAGED_BLOCK, detail)

    def _check_statistics(self, index: Index, *, right_length: bool) -> Generator[Finding, None, int]:
        """Hold the statistics against the rest of the index; returns how many bytes of blocks have none."""
        uncovered = 0
        for group in index.groups:
            if group.statistics is None:
                uncovered += sum(block.end - block.offset for block in group.blocks)
                continue
            try:
                _check_group_statistics(index, group, right_length=right_length)
            except FormatError as error:
                yield self._index_finding(Kind.DAMAGED_BLOCK, f"the index is damaged: {error}")
        return uncovered

    # --- findings ---

    def _missing(self) -> Finding:
        detail = f"{self._store.url} has no such object"
        return self._finding(Kind.MISSING_OBJECT, detail, self._check.stretches[0].first)

    def _ends(self, index: Index) -> Mapping[int, int]:
        """The last entry that each ledger must have here, for the blocks to be held against."""
        ends = {
            group.ledger_id: _last_entry(index, group)[0]
            for group in index.groups
            if group.ledger_id is not None and _last_entry(index, group)[1]
        }
        if index.version == 1:
            ends[self._check.stretches[0].ledger_id] = index.groups[0].last_entry_id
        told = {stretch.ledger_id: stretch.last for stretch in self._check.stretches if stretch.last is not None}
        return {**told, **ends}

    def _wrong_length(self, index: Index, size_bytes: int, detail: str) -> Finding:
        """Name the first entry that may be out of reach."""
        for group, number in index.blocks:
            block = group.blocks[number]
            if block.end > size_bytes:
                ledger = self._check.stretches[0].ledger_id if group.ledger_id is None else group.ledger_id
                position: str | None = position_text(ledger, block.first_entry_id)
                break
        else:
            position = None
        text = f"it has {size_bytes} bytes, {detail}"
        return Finding(Kind.WRONG_LENGTH, self._check.topic, self._check.key, position, text)

    def _gap(self, kind: Kind, stretch: Stretch, entry_id: int, detail: str) -> Finding:
        position = position_text(stretch.ledger_id, entry_id)
        last = "its end" if stretch.last is None else stretch.last
        text = f"{detail}, where it holds the entries {stretch.first} to {last} of ledger {stretch.ledger_id}"
        return Finding(kind, self._check.topic, self._check.key, position, text)

    def _finding(self, kind: Kind, detail: str, first: int | None = None, *, key: str | None = None) -> Finding:
        position = None if first is None else position_text(self._check.stretches[0].ledger_id, first)
        return Finding(kind, self._check.topic, key or self._check.key, position, detail)

    def _index_finding(self, kind: Kind, detail: str) -> Finding:
        return self._finding(kind, detail, self._check.stretches[0].first, key=self._index_key)


def _result(work: Generator[Finding, None, _R]) -> _R:
    """What a generator returns; what it gives is passed over."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            found: _R = end.value
            return found


def _group_of(index: Index, ledger_id: int) -> Group | None:
    if index.version == 1:
        return index.groups[0]
    return next((group for group in index.groups if group.ledger_id == ledger_id), None)


def _last_entry(index: Index, group: Group) -> tuple[int, bool]:
    """The last entry of a ledger in the object by its index, and whether that is exact or only the most it can be."""
    if index.version == 1:
        return group.last_entry_id, True
    if group.statistics is not None:
        return group.blocks[-1].first_entry_id + group.statistics.entries[-1] - 1, True
    return group.last_entry_id, False


def _check_group_statistics(index: Index, group: Group, *, right_length: bool) -> None:
    """Hold a ledger's statistics against the rest of the index.

    Raises:
        FormatError: They contradict it.
    """
    table = group.statistics
    assert table is not None
    whole = index.version == 1
    ids = [block.first_entry_id for block in group.blocks]
    for number, (first, after) in enumerate(pairwise(ids)):
        if table.entries[number] != after - first:
            raise FormatError(f"block {number} has {table.entries[number]} entries, but {after} follows {first}")
    if whole and ids[-1] + table.entries[-1] - 1 != group.last_entry_id:
        raise FormatError(
            f"its last block ends with entry {ids[-1] + table.entries[-1] - 1}, the ledger with {group.last_entry_id}"
        )
    if whole and group.length_bytes is not None and sum(table.payload_bytes) != group.length_bytes:
        raise FormatError(
            f"its blocks have {sum(table.payload_bytes)} bytes of entries, the ledger {group.length_bytes}"
        )
    if not right_length:
        return  # the last block's length is not known then
    table.split([block.end - block.offset for block in group.blocks])
    for number, block in enumerate(group.blocks):
        used = _HEADER_BYTES + _FRAME_BYTES * table.entries[number] + table.payload_bytes[number]
        exact = whole and number + 1 == len(group.blocks)
        if used > block.end - block.offset or (exact and used != block.end - block.offset):
            raise FormatError(f"block {number} needs {used} bytes and has {block.end - block.offset}")


@runtime_checkable
class DriverCopies(Protocol):
    """Objects of an external driver in one tier location. Picklable: Spark tasks read them in other processes."""

    @property
    def url(self) -> str:
        """The tier location, for messages."""
        ...

    def entries(self, key: str, ledger_id: int, first: int, last: int) -> Iterator[tuple[int, memoryview]]:
        """Id and data of the entries ``first`` to ``last``, both inclusive, as the driver gives them.

        Raises:
            ObjectMissing: The driver has no such object.
            FormatError: The driver finds it damaged.
            AfterglowError: The driver cannot be asked.
        """
        ...


def check_copies(copies: DriverCopies, check: ObjectCheck, share: Share | None) -> Generator[Finding, None, int]:
    """Check one object through its driver.

    Args:
        copies: Reads it.
        check: What metadata says.
        share: The part of its bytes whose entries are to be read, by the size that metadata says; None: only the first
            and the last entry of each ledger are.

    Returns:
        Bytes of entries that no checksum of their own covers, among those that were read.

    Raises:
        AfterglowError: The driver cannot be asked. That is no finding: nothing is known about the object.
    """
    uncovered_bytes = 0
    for ledger_id, first, last in _ranges(check, share):
        expected, checks = first, EntryChecks()
        try:
            for entry_id, data in copies.entries(check.key, ledger_id, first, last):
                if entry_id != expected:
                    break
                checks.whole(entry_id, data)
                expected += 1
        except ObjectMissing as error:
            yield _finding(check, Kind.MISSING_OBJECT, ledger_id, expected, f"{copies.url} has no such object: {error}")
            break
        except FormatError as error:
            yield _finding(check, Kind.DAMAGED_BLOCK, ledger_id, expected, f"{copies.url}: {error}")
            continue
        if expected <= last:
            detail = f"{copies.url} gives the entries {first} to {expected - 1}, where it holds {first} to {last}"
            yield _finding(check, Kind.HOLE, ledger_id, expected, detail)
        for told, problem in ((checks.wrong, "does not match its checksum"), (checks.torn, "is torn")):
            if told.count:
                yield _finding(check, Kind.DAMAGED_BLOCK, ledger_id, told.first, f"{copies.url}: {told} {problem}")
        uncovered_bytes += checks.uncovered_bytes
    return 0 if share is None else uncovered_bytes


def _ranges(check: ObjectCheck, share: Share | None) -> Iterator[tuple[int, int, int]]:
    """What is to be read: ledger, first and last entry, both inclusive."""
    known = [(held.ledger_id, held.first, held.first if held.last is None else held.last) for held in check.stretches]
    if share is None:
        for ledger_id, first, last in known:
            yield ledger_id, first, first
            if last > first:
                yield ledger_id, last, last
        return
    total = sum(last - first + 1 for _, first, last in known)
    size = max(check.size_bytes, 1)
    low, high = total * share.start // size, total if share.end is None else total * share.end // size
    before = 0
    for ledger_id, first, last in known:
        begin, end = max(low - before, 0), min(high - before, last - first + 1)
        if begin < end:
            yield ledger_id, first + begin, first + end - 1
        before += last - first + 1


def _finding(check: ObjectCheck, kind: Kind, ledger_id: int, entry_id: int, detail: str) -> Finding:
    return Finding(kind, check.topic, check.key, position_text(ledger_id, entry_id), detail)
