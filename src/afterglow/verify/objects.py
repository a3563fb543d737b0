"""Verification of one object against its metadata. Calls are independent, so many can run in parallel.

Objects of external offload drivers are verified through the driver, since only the driver can parse them: every entry
that metadata promises, in order, each against its own checksum. The verifier cannot list orphans of such a driver.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from afterglow.errors import BucketMissing, FormatError, ObjectMissing
from afterglow.verify.blocks import verify_blocks
from afterglow.verify.entries import EntryVerifier
from afterglow.verify.findings import Finding, FindingKind, format_position
from afterglow.verify.index import parse_index
from afterglow.verify.topic_records import INDEX_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping
    from typing import TypeVar

    from afterglow.storage.store import ObjectInfo, ObjectStore
    from afterglow.verify.blocks import ByteRange
    from afterglow.verify.index import IndexedLedger, ParsedIndex
    from afterglow.verify.topic_metadata import ParsedLocation, ParsedSegment

    _R = TypeVar("_R")

INSTANCE: Final = "afterglowinstance"
_VERSION_KEY: Final = "s3managedledgeroffloaderformatversion"
_VERSION: Final = "1"
_HEADER_BYTES: Final = 128
_FRAME_BYTES: Final = 12


@dataclass(frozen=True, slots=True)
class HeldRange:
    """Range of entries of one ledger that a committed object holds, according to metadata."""

    ledger_id: int
    first: int
    """Inclusive."""
    last: int | None
    """Inclusive; None if metadata does not have the length of the ledger."""


@dataclass(frozen=True, slots=True)
class CommittedObject:
    """A committed object, with all that its verification needs. Picklable."""

    topic: str
    """``persistent://…``."""
    location: ParsedLocation
    key: str
    """Of the data object; that of the index has the suffix ``-index``."""
    version: int
    """1: a ledger's own object. 2: a segment."""
    ranges: tuple[HeldRange, ...]
    """Ascending, without ledgers that were trimmed from the ledger list."""
    record: ParsedSegment | None = None
    """Of a segment, if it has one."""
    size_bytes: int = 0
    """Approximate length, by metadata; 0 if it is not known."""


def verify_object(
    store: ObjectStore | DriverCopies, target: CommittedObject, *, instance: str, byte_range: ByteRange | None = None
) -> Generator[Finding, None, int]:
    """Verify one object and its index.

    Args:
        store: Holds both, or is the external driver that holds them.
        target: The object, as metadata describes it.
        instance: The instance of this server.
        byte_range: The blocks to read in full; None: no block is read. Findings about the object as a whole are
            reported with the range that contains its beginning.

    Returns:
        Bytes of the object that no checksum covers, in the blocks that were read.

    Raises:
        StorageError: The store fails, which is not a finding: the state of the object is unknown.
    """
    if isinstance(store, DriverCopies):
        return verify_copies(store, target, byte_range)
    return _ObjectVerification(store, target, instance).findings(byte_range)


class _ObjectVerification:
    def __init__(self, store: ObjectStore, target: CommittedObject, instance: str) -> None:
        self._store = store
        self._target = target
        self._instance = instance
        self._index_key = target.key + INDEX_SUFFIX

    def findings(self, byte_range: ByteRange | None) -> Generator[Finding, None, int]:
        """See :func:`verify_object`."""
        if byte_range is None or 0 in byte_range:
            readable = yield from self._verify_whole(report_uncovered=byte_range is None)
        else:
            readable = _result(self._verify_whole(report_uncovered=False))
        if byte_range is None or readable is None:
            return 0
        size_bytes, index = readable
        try:
            return (
                yield from verify_blocks(
                    self._store,
                    self._target.key,
                    size_bytes,
                    index,
                    topic=self._target.topic,
                    ledger_id=self._target.ranges[0].ledger_id,
                    ends=self._ends(index),
                    byte_range=byte_range,
                )
            )
        except ObjectMissing:  # deleted while it was read
            yield self._missing()
            return 0

    def _verify_whole(self, *, report_uncovered: bool) -> Generator[Finding, None, tuple[int, ParsedIndex] | None]:
        """Verify user metadata, index and length; returns length and index if the blocks can be read.

        Args:
            report_uncovered: Report bytes without a checksum, since the blocks will not be read.
        """
        target = self._target
        data = self._head(target.key)
        if data is None:
            yield self._missing()
            return None
        index_info = self._head(self._index_key)
        if index_info is None:
            yield self._missing_index()
            return None
        yield from self._verify_user_metadata(data, index_info)
        try:
            index = parse_index(bytes(self._store.get(self._index_key)))
            self._require_valid_structure(index)
        except FormatError as error:
            yield self._index_finding(FindingKind.DAMAGED_BLOCK, f"the index is damaged: {error}")
            return None
        except ObjectMissing:  # deleted between the two requests
            yield self._missing_index()
            return None
        length_matches = data.size_bytes == index.data_bytes
        if not length_matches:
            yield self._wrong_length(index, data.size_bytes, f"the index says {index.data_bytes}")
        if target.record is not None and target.record.bytes != data.size_bytes:
            yield self._wrong_length(index, data.size_bytes, f"the segment's record says {target.record.bytes}")
        yield from self._verify_entries(index)
        yield from self._compare_record(index)
        uncovered = yield from self._verify_statistics(index, length_matches=length_matches)
        if uncovered and report_uncovered:
            yield self._finding(
                FindingKind.UNCHECKED, f"no checksum covers {uncovered} bytes: the index has no statistics"
            )
        return data.size_bytes, index

    def _head(self, key: str) -> ObjectInfo | None:
        try:
            return self._store.head(key)
        except (ObjectMissing, BucketMissing):
            return None

    def _verify_user_metadata(self, *infos: ObjectInfo) -> Iterator[Finding]:
        for info in infos:
            # An object without user metadata was copied by a tool that drops it; its bytes are still valid.
            version = info.metadata.get(_VERSION_KEY) if info.metadata else _VERSION
            if version != _VERSION:
                detail = f"its format version is {version!r}, not {_VERSION!r}: readers refuse it"
                yield self._finding(FindingKind.DAMAGED_BLOCK, detail, key=info.key)
        others = {info.metadata.get(INSTANCE) for info in infos} - {self._instance}
        if others:
            found = " and ".join(sorted("no instance" if name is None else f"instance {name}" for name in others))
            yield self._finding(FindingKind.FOREIGN, f"metadata names it, but it carries {found}: no sweep deletes it")

    # --- the index ---

    def _require_valid_structure(self, index: ParsedIndex) -> None:
        """Verify the invariants of the format.

        Raises:
            FormatError: The index violates one of them.
        """
        if index.version != self._target.version:
            raise FormatError(f"it has the layout V{index.version}, not V{self._target.version}")
        if index.header_bytes != _HEADER_BYTES:
            raise FormatError(f"it says that block headers have {index.header_bytes} bytes")
        if not index.ledgers or not all(ledger.blocks for ledger in index.ledgers):
            raise FormatError("it names a ledger without blocks")
        ledgers = [ledger.ledger_id for ledger in index.ledgers]
        if len(set(ledgers)) != len(ledgers):
            raise FormatError("it names a ledger twice")
        blocks = [ledger.blocks[number] for ledger, number in index.blocks]
        if blocks[0].offset != 0:
            raise FormatError(f"its first block begins at {blocks[0].offset}")
        if [block.part_id for block in blocks] != list(range(1, len(blocks) + 1)):
            raise FormatError("its blocks are not numbered from 1")
        for before, block in pairwise(blocks):
            if block.offset - before.offset < _HEADER_BYTES:
                raise FormatError(f"its blocks at {before.offset} and {block.offset} are too close for a header")
        for ledger in index.ledgers:
            ids = [block.first_entry_id for block in ledger.blocks]
            if ids != sorted(set(ids)) or [block.offset for block in ledger.blocks] != sorted(
                block.offset for block in ledger.blocks
            ):
                raise FormatError(f"the blocks of ledger {ledger.ledger_id} do not ascend")
        if index.version == 1:
            self._require_v1_structure(index)

    @staticmethod
    def _require_v1_structure(index: ParsedIndex) -> None:
        """Verify that the object begins with entry 0, and that all blocks but the last are padded to one length.

        Raises:
            FormatError: One of these is not so.
        """
        blocks = index.ledgers[0].blocks
        if blocks[0].first_entry_id != 0:
            raise FormatError(f"its first block begins with entry {blocks[0].first_entry_id}")
        sizes = {after.offset - block.offset for block, after in pairwise(blocks)}
        if len(sizes) > 1:
            raise FormatError(f"its blocks before the last have different lengths: {sorted(sizes)}")

    def _verify_entries(self, index: ParsedIndex) -> Iterator[Finding]:
        """Compare the entries in the index with those that metadata promises."""
        for held in self._target.ranges:
            ledger = _ledger_of(index, held.ledger_id)
            if ledger is None:
                yield self._gap(FindingKind.HOLE, held, held.first, "its index does not have the ledger")
                continue
            first = ledger.blocks[0].first_entry_id
            if first > held.first:
                yield self._gap(FindingKind.HOLE, held, held.first, f"its index begins with entry {first}")
            if first < held.first:
                detail = f"entries {first} to {held.first - 1} are in an earlier object too"
                yield self._gap(FindingKind.OVERLAP, held, first, detail)
            last, is_exact = _last_entry(index, ledger)
            if held.last is None:
                continue
            if last < held.last:
                yield self._gap(FindingKind.HOLE, held, last + 1, f"its index ends with entry {last}")
            if is_exact and last > held.last:
                detail = f"its index ends with entry {last}, metadata with {held.last}"
                yield self._gap(FindingKind.OVERLAP, held, held.last + 1, detail)

    def _compare_record(self, index: ParsedIndex) -> Iterator[Finding]:
        record = self._target.record
        if record is None:
            return
        blocks = sum(len(ledger.blocks) for ledger in index.ledgers)
        tables = [ledger.statistics for ledger in index.ledgers]
        entries = sum(sum(table.entries) for table in tables if table is not None)
        if blocks != record.blocks or (None not in tables and entries != record.entries):
            detail = (
                f"the index has {blocks} blocks and {entries} entries, "
                f"the segment's record {record.blocks} and {record.entries}"
            )
            yield self._index_finding(FindingKind.DAMAGED_BLOCK, detail)

    def _verify_statistics(self, index: ParsedIndex, *, length_matches: bool) -> Generator[Finding, None, int]:
        """Compare the statistics with the rest of the index; returns the bytes of blocks without statistics."""
        uncovered = 0
        for ledger in index.ledgers:
            if ledger.statistics is None:
                uncovered += sum(block.end - block.offset for block in ledger.blocks)
                continue
            try:
                _require_consistent_statistics(index, ledger, length_matches=length_matches)
            except FormatError as error:
                yield self._index_finding(FindingKind.DAMAGED_BLOCK, f"the index is damaged: {error}")
        return uncovered

    # --- findings ---

    def _missing(self) -> Finding:
        detail = f"no such object in {self._store.url}"
        return self._finding(FindingKind.MISSING_OBJECT, detail, self._target.ranges[0].first)

    def _missing_index(self) -> Finding:
        return self._index_finding(FindingKind.MISSING_INDEX, f"no such object in {self._store.url}")

    def _ends(self, index: ParsedIndex) -> Mapping[int, int]:
        """The last entry of each ledger that the blocks must hold."""
        ends = {
            ledger.ledger_id: _last_entry(index, ledger)[0]
            for ledger in index.ledgers
            if ledger.ledger_id is not None and _last_entry(index, ledger)[1]
        }
        if index.version == 1:
            ends[self._target.ranges[0].ledger_id] = index.ledgers[0].last_entry_id
        promised = {held.ledger_id: held.last for held in self._target.ranges if held.last is not None}
        return {**promised, **ends}

    def _wrong_length(self, index: ParsedIndex, size_bytes: int, detail: str) -> Finding:
        """A finding at the first entry that may lie behind the end of the object."""
        position = None
        for ledger, number in index.blocks:
            block = ledger.blocks[number]
            if block.end > size_bytes:
                ledger_id = self._target.ranges[0].ledger_id if ledger.ledger_id is None else ledger.ledger_id
                position = format_position(ledger_id, block.first_entry_id)
                break
        text = f"it has {size_bytes} bytes, {detail}"
        return Finding(FindingKind.WRONG_LENGTH, self._target.topic, self._target.key, position, text)

    def _gap(self, kind: FindingKind, held: HeldRange, entry_id: int, detail: str) -> Finding:
        position = format_position(held.ledger_id, entry_id)
        last = "its end" if held.last is None else held.last
        text = f"{detail}; by metadata it holds the entries {held.first} to {last} of ledger {held.ledger_id}"
        return Finding(kind, self._target.topic, self._target.key, position, text)

    def _finding(self, kind: FindingKind, detail: str, first: int | None = None, *, key: str | None = None) -> Finding:
        position = None if first is None else format_position(self._target.ranges[0].ledger_id, first)
        return Finding(kind, self._target.topic, key or self._target.key, position, detail)

    def _index_finding(self, kind: FindingKind, detail: str) -> Finding:
        return self._finding(kind, detail, self._target.ranges[0].first, key=self._index_key)


def _result(work: Generator[Finding, None, _R]) -> _R:
    """The return value of a generator; what it yields is dropped."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            found: _R = end.value
            return found


def _ledger_of(index: ParsedIndex, ledger_id: int) -> IndexedLedger | None:
    if index.version == 1:
        return index.ledgers[0]
    return next((ledger for ledger in index.ledgers if ledger.ledger_id == ledger_id), None)


def _last_entry(index: ParsedIndex, ledger: IndexedLedger) -> tuple[int, bool]:
    """The last entry of a ledger in the object by its index, and whether that is exact or an upper bound."""
    if index.version == 1:
        return ledger.last_entry_id, True
    if ledger.statistics is not None:
        return ledger.blocks[-1].first_entry_id + ledger.statistics.entries[-1] - 1, True
    return ledger.last_entry_id, False


def _require_consistent_statistics(index: ParsedIndex, ledger: IndexedLedger, *, length_matches: bool) -> None:
    """Compare a ledger's statistics with the rest of the index.

    Raises:
        FormatError: They contradict each other.
    """
    table = ledger.statistics
    assert table is not None
    whole = index.version == 1
    ids = [block.first_entry_id for block in ledger.blocks]
    for number, (first, after) in enumerate(pairwise(ids)):
        if table.entries[number] != after - first:
            raise FormatError(f"block {number} has {table.entries[number]} entries, but {after} follows {first}")
    if whole and ids[-1] + table.entries[-1] - 1 != ledger.last_entry_id:
        raise FormatError(
            f"its last block ends with entry {ids[-1] + table.entries[-1] - 1}, the ledger with {ledger.last_entry_id}"
        )
    if whole and ledger.length_bytes is not None and sum(table.payload_bytes) != ledger.length_bytes:
        raise FormatError(
            f"its blocks have {sum(table.payload_bytes)} bytes of entries, the ledger {ledger.length_bytes}"
        )
    if not length_matches:
        return  # the length of the last block is not known
    table.split([block.end - block.offset for block in ledger.blocks])
    for number, block in enumerate(ledger.blocks):
        used = _HEADER_BYTES + _FRAME_BYTES * table.entries[number] + table.payload_bytes[number]
        is_exact = whole and number + 1 == len(ledger.blocks)
        if used > block.end - block.offset or (is_exact and used != block.end - block.offset):
            raise FormatError(f"block {number} needs {used} bytes and has {block.end - block.offset}")


@runtime_checkable
class DriverCopies(Protocol):
    """Objects of an external offload driver in one tier location. Picklable: Spark tasks read them elsewhere."""

    @property
    def url(self) -> str:
        """The tier location, for messages."""
        ...

    def entries(self, key: str, ledger_id: int, first: int, last: int) -> Iterator[tuple[int, memoryview]]:
        """Id and data of the entries ``first`` to ``last``, both inclusive, as the driver gives them.

        Raises:
            ObjectMissing: The driver has no such object.
            FormatError: The driver reports it as damaged.
            AfterglowError: The driver fails.
        """
        ...


def verify_copies(
    copies: DriverCopies, target: CommittedObject, byte_range: ByteRange | None
) -> Generator[Finding, None, int]:
    """Verify one object through its driver.

    Args:
        copies: Reads it.
        target: The object, as metadata describes it.
        byte_range: Selects a proportional part of the entries, by the size in metadata; None: only the first and the
            last entry of each ledger are read.

    Returns:
        Bytes of entries that no checksum of their own covers, among those that were read.

    Raises:
        AfterglowError: The driver fails, which is not a finding: the state of the object is unknown.
    """
    uncovered_bytes = 0
    for ledger_id, first, last in _ranges(target, byte_range):
        expected, verifier = first, EntryVerifier()
        try:
            for entry_id, data in copies.entries(target.key, ledger_id, first, last):
                if entry_id != expected:
                    break
                verifier.verify(entry_id, data)
                expected += 1
        except ObjectMissing as error:
            detail = f"no such object in {copies.url}: {error}"
            yield _finding(target, FindingKind.MISSING_OBJECT, ledger_id, expected, detail)
            break
        except FormatError as error:
            yield _finding(target, FindingKind.DAMAGED_BLOCK, ledger_id, expected, f"{copies.url}: {error}")
            continue
        if expected <= last:
            detail = f"{copies.url} returns the entries {first} to {expected - 1}, not {first} to {last}"
            yield _finding(target, FindingKind.HOLE, ledger_id, expected, detail)
        defects = (verifier.wrong_checksum, "does not match its checksum"), (verifier.truncated, "is truncated")
        for affected, problem in defects:
            if affected:
                detail = f"{copies.url}: {affected} {problem}"
                yield _finding(target, FindingKind.DAMAGED_BLOCK, ledger_id, affected.first, detail)
        uncovered_bytes += verifier.uncovered_bytes
    return 0 if byte_range is None else uncovered_bytes


def _ranges(target: CommittedObject, byte_range: ByteRange | None) -> Iterator[tuple[int, int, int]]:
    """Entries to read: ledger, first and last entry, both inclusive."""
    known = [(held.ledger_id, held.first, held.first if held.last is None else held.last) for held in target.ranges]
    if byte_range is None:
        for ledger_id, first, last in known:
            yield ledger_id, first, first
            if last > first:
                yield ledger_id, last, last
        return
    total = sum(last - first + 1 for _, first, last in known)
    size = max(target.size_bytes, 1)
    low, high = total * byte_range.start // size, total if byte_range.end is None else total * byte_range.end // size
    before = 0
    for ledger_id, first, last in known:
        begin, end = max(low - before, 0), min(high - before, last - first + 1)
        if begin < end:
            yield ledger_id, first + begin, first + end - 1
        before += last - first + 1


def _finding(target: CommittedObject, kind: FindingKind, ledger_id: int, entry_id: int, detail: str) -> Finding:
    return Finding(kind, target.topic, target.key, format_position(ledger_id, entry_id), detail)
