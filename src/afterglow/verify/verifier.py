"""Verification of all topics and tiers: compares metadata with the contents of the tiers.

``afterglow verify`` and the admin API run it through :mod:`afterglow.pipeline.tier_verifier`.

It only reads, and may run while a server does: before a fault is reported, metadata is read again, and the fault is
dropped if metadata has changed so that it is not one any more.

Coverage, whether all entries of a topic are in some copy, is computed from metadata alone: a ledger's own object holds
all of its entries; segments hold consecutive ranges, in the order of the ledger list; work in progress holds nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from afterglow.errors import ConfigError, MissingDependency, NotSupported
from afterglow.metadata.paths import STANDALONE
from afterglow.verify.deep import LocalVerifier
from afterglow.verify.findings import Finding, FindingKind, format_position, format_topic
from afterglow.verify.objects import CommittedObject, HeldRange
from afterglow.verify.sweep import StrayFinder
from afterglow.verify.topic_records import TopicRecordsReader, add_references, copy_key

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
    from uuid import UUID

    from afterglow.metadata.pulsar_cluster import MetadataReader
    from afterglow.storage.store import ObjectStore
    from afterglow.verify.deep import ObjectVerifier
    from afterglow.verify.objects import DriverCopies
    from afterglow.verify.topic_metadata import ParsedLedger, ParsedLocation, ParsedSegment
    from afterglow.verify.topic_records import References, TopicRecords

_MAX_READS: Final = 10
"""Times that a topic which keeps changing is read again before its findings are reported."""
_OBJECTS_AT_ONCE: Final = 10_000
"""Objects that are verified together: enough work for many machines, and some megabytes of memory."""


def verify(
    metadata: MetadataReader,
    stores: Callable[[ParsedLocation], ObjectStore | DriverCopies],
    *,
    tiers: Iterable[ObjectStore],
    instance: str,
    cluster: str = STANDALONE,
    now_ms: int,
    grace_ms: int,
    deep: bool = False,
    hot: Callable[[int], bool] | None = None,
    object_verifier: ObjectVerifier | None = None,
) -> Iterator[Finding]:
    """Verify all topics, then search the tiers for objects that no topic names. Findings are yielded as they are made.

    Memory holds the keys of all committed objects, the records of one topic, the metadata of up to
    ``_OBJECTS_AT_ONCE`` objects, and one page of a listing.

    Args:
        metadata: The store; only read.
        stores: Gives the store of each tier location that metadata names, or the external driver that holds its
            objects. Objects of a location that it refuses are ``unchecked``.
        tiers: The stores to list for orphans and unfinished uploads; iterated after all topics are verified.
        instance: The instance of this server, as its objects carry it.
        cluster: Name of the cluster whose records are verified.
        now_ms: The time by the stores' clocks, epoch milliseconds.
        grace_ms: Orphans and uploads that are not older are ``pending``.
        deep: Read every byte of every committed object.
        hot: Whether the hot log has a ledger, by its id; None if that is not known.
        object_verifier: Verifies the objects; ``deep`` is ignored then. None: this process does.

    Raises:
        FormatError: A metadata value cannot be parsed, so the objects that it names are unknown.
        MetadataError: Metadata cannot be read.
        StorageError: A store fails.
        AfterglowError: What ``stores`` raises.
    """
    reader = TopicRecordsReader(metadata, cluster)
    references: References = {}
    object_verifier = object_verifier or LocalVerifier(stores, instance, deep=deep)
    due: dict[CommittedObject, str] = {}  # with the managed-ledger name of the topic that names the object
    for name in reader.names():
        records = reader.topic(name)
        add_references(references, records)
        yield from _stable_coverage(reader, records, hot)
        objects = committed_objects(records)
        obstacles = {
            location: _obstacle(location, stores) for location in dict.fromkeys(target.location for target in objects)
        }
        yield from _unverifiable(objects, obstacles)
        due |= {target: name for target in objects if obstacles[target.location] is None}
        if len(due) >= _OBJECTS_AT_ONCE:
            yield from _verify_objects(reader, object_verifier, due)
            due.clear()
    yield from _verify_objects(reader, object_verifier, due)
    strays = StrayFinder(reader, references, instance=instance, now_ms=now_ms, grace_ms=grace_ms)
    for tier in tiers:
        for stray in strays.find(tier):
            yield stray.finding


def _obstacle(location: ParsedLocation, stores: Callable[[ParsedLocation], ObjectStore | DriverCopies]) -> str | None:
    """The reason why the objects of a location cannot be verified; None if they can."""
    if not location.blocks:
        return f"the verifier does not read MapFiles of Pulsar's own file-system driver, here below {location.bucket}"
    try:
        stores(location)
    except (ConfigError, MissingDependency, NotSupported) as error:
        return str(error)
    return None


def _unverifiable(
    objects: Sequence[CommittedObject], obstacles: Mapping[ParsedLocation, str | None]
) -> Iterator[Finding]:
    """One finding for all objects of a topic that cannot be verified for the same reason."""
    by_reason: dict[str, list[CommittedObject]] = {}
    for target in objects:
        if (reason := obstacles[target.location]) is not None:
            by_reason.setdefault(reason, []).append(target)
    for reason, found in by_reason.items():
        more = f" and {len(found) - 1} more objects" if len(found) > 1 else ""
        detail = f"{found[0].key}{more} cannot be verified: {reason}"
        yield Finding(FindingKind.UNCHECKED, found[0].topic, found[0].key, None, detail)


def _verify_objects(
    reader: TopicRecordsReader, object_verifier: ObjectVerifier, due: dict[CommittedObject, str]
) -> Iterator[Finding]:
    if not due:
        return
    for target, findings in object_verifier(tuple(due)):
        has_fault = any(finding.kind.is_fault for finding in findings)
        if has_fault and target not in committed_objects(reader.topic(due[target])):
            continue  # metadata does not name it any more: the fault is its deletion
        yield from findings


def _stable_coverage(
    reader: TopicRecordsReader, records: TopicRecords, hot: Callable[[int], bool] | None
) -> list[Finding]:
    """Holes and overlaps in records that did not change while they were verified."""
    found = list(verify_coverage(records, hot))
    for _ in range(_MAX_READS):
        if not found:
            break
        now = reader.topic(records.name)
        if now == records:
            break
        records = now
        found = list(verify_coverage(records, hot))
    return found


def committed_objects(records: TopicRecords) -> tuple[CommittedObject, ...]:
    """Every object that is complete according to a topic's metadata, once for each ledger list that names it."""
    topic = format_topic(records.name)
    segment_records = {record.uuid: record for record in records.segments}
    found: dict[CommittedObject, None] = {}
    for ledgers in records.ledger_lists:
        for ledger in ledgers:
            if ledger.copy is not None and ledger.complete:
                last = None if ledger.entries is None else ledger.entries - 1
                key = copy_key(ledger.copy, ledger.ledger_id)
                held = (HeldRange(ledger.ledger_id, 0, last),)
                found[CommittedObject(topic, ledger.location, key, 1, held, size_bytes=ledger.size_bytes)] = None
        for uuid, (location, ranges) in _segments(ledgers).items():
            found[_segment_object(topic, uuid, location, ranges, segment_records.get(uuid))] = None
    return tuple(found)


def verify_coverage(records: TopicRecords, hot: Callable[[int], bool] | None = None) -> Iterator[Finding]:
    """Holes and overlaps in the metadata of a topic; ``hot`` as of :func:`verify`."""
    topic = format_topic(records.name)
    segment_records = {record.uuid: record for record in records.segments}
    for ledgers in records.ledger_lists:
        streamed = [ledger.ledger_id for ledger in ledgers if any(segment.complete for segment in ledger.segments)]
        reported: set[int] = set()
        for ledger in ledgers:
            between = bool(streamed) and streamed[0] <= ledger.ledger_id < streamed[-1]
            for finding in _verify_ledger(topic, ledger, hot, between=between):
                reported.add(ledger.ledger_id)
                yield finding
        without_findings = {ledger.ledger_id for ledger in ledgers} - reported
        yield from _compare_records(topic, ledgers, segment_records, without_findings)


def _verify_ledger(
    topic: str, ledger: ParsedLedger, hot: Callable[[int], bool] | None, *, between: bool
) -> Iterator[Finding]:
    def at(kind: FindingKind, entry_id: int, detail: str, key: str | None = None) -> Finding:
        return Finding(kind, topic, key, format_position(ledger.ledger_id, entry_id), detail)

    end = 0  # behind the last entry that committed copies hold
    gap_start: int | None = None  # first entry of a segment that is not committed yet
    for segment in ledger.segments:
        if not segment.complete:
            gap_start = end if gap_start is None else gap_start
            continue
        if gap_start is not None:
            yield at(
                FindingKind.HOLE, gap_start, "a segment was committed before the one in front of it", str(segment.uuid)
            )
            gap_start = None
        if segment.end_entry_id is None:
            yield at(FindingKind.HOLE, end, "the ledger list has no end of the segment", str(segment.uuid))
        elif segment.end_entry_id < end:
            detail = f"the segment ends with entry {segment.end_entry_id}, before its beginning at {end}"
            yield at(FindingKind.OVERLAP, segment.end_entry_id, detail, str(segment.uuid))
        else:
            end = segment.end_entry_id + 1
    if ledger.copy is not None and ledger.complete:
        end = ledger.entries or 0
    if ledger.entries is not None and end > ledger.entries:
        yield at(
            FindingKind.OVERLAP, ledger.entries, f"segments hold {end} entries of a ledger that has {ledger.entries}"
        )
    if ledger.left_to_cluster or (ledger.entries is not None and end >= ledger.entries):
        return
    if ledger.hot_deleted:
        yield at(FindingKind.HOLE, end, f"the hot copy was deleted, and committed copies hold only {end} entries")
    elif between:
        yield at(FindingKind.HOLE, end, "later ledgers are in segments, but the rest of this one is not")
    elif hot is not None and not hot(ledger.ledger_id):
        yield at(FindingKind.HOLE, end, f"the hot log has no such ledger, and committed copies hold only {end} entries")


def _compare_records(
    topic: str, ledgers: Sequence[ParsedLedger], records: Mapping[UUID, ParsedSegment], without_findings: Container[int]
) -> Iterator[Finding]:
    """Compare each segment's own record with the ledger list.

    ``without_findings`` are the ledgers of the list without findings so far. A trimmed ledger is not a hole.
    """
    for uuid, (_, ranges) in _segments(ledgers).items():
        record = records.get(uuid)
        if record is None:
            continue
        first, last = ranges[0], ranges[-1]
        begin = (first.ledger_id, first.first)
        end = (last.ledger_id, record.end[1] if last.last is None else last.last)
        detail = (
            f"the segment's record says {format_position(*record.begin)} to {format_position(*record.end)}, "
            f"the ledger list {format_position(*begin)} to {format_position(*end)}"
        )
        for kind, position in _differences(record, begin, end, without_findings):
            yield Finding(kind, topic, record.key, format_position(*position), detail)


def _differences(
    record: ParsedSegment, begin: tuple[int, int], end: tuple[int, int], without_findings: Container[int]
) -> Iterator[tuple[FindingKind, tuple[int, int]]]:
    if record.begin > begin:
        yield FindingKind.HOLE, begin
    elif record.begin[0] == begin[0] and record.begin < begin:
        yield FindingKind.OVERLAP, record.begin
    elif record.begin[0] < begin[0] and record.begin[0] in without_findings:
        yield FindingKind.HOLE, record.begin  # the list does not name the segment in that ledger
    if record.end < end:
        yield FindingKind.HOLE, (record.end[0], record.end[1] + 1)
    elif record.end[0] == end[0] and record.end > end:
        yield FindingKind.OVERLAP, (end[0], end[1] + 1)
    elif record.end[0] > end[0] and record.end[0] in without_findings:
        yield FindingKind.HOLE, (record.end[0], 0)


def _segments(ledgers: Sequence[ParsedLedger]) -> dict[UUID, tuple[ParsedLocation, list[HeldRange]]]:
    """The committed segments of a ledger list: their locations by the list, and the ranges that each holds."""
    found: dict[UUID, tuple[ParsedLocation, list[HeldRange]]] = {}
    for ledger in ledgers:
        begin = 0
        for segment in ledger.segments:
            if not segment.complete:
                continue
            last = segment.end_entry_id
            _, ranges = found.setdefault(segment.uuid, (segment.location or ledger.location, []))
            ranges.append(HeldRange(ledger.ledger_id, begin, last))
            begin = begin if last is None else max(last + 1, begin)
    return found


def _segment_object(
    topic: str, uuid: UUID, location: ParsedLocation, ranges: list[HeldRange], record: ParsedSegment | None
) -> CommittedObject:
    if record is None:
        return CommittedObject(topic, location, str(uuid), 2, tuple(ranges))
    # _compare_records reports where record and list differ; the object is compared with its record only.
    held = list(ranges)
    if held[0].ledger_id == record.begin[0]:
        held[0] = replace(held[0], first=record.begin[1])
    if held[-1].ledger_id == record.end[0]:
        held[-1] = replace(held[-1], last=record.end[1])
    return CommittedObject(topic, record.location, record.key, 2, tuple(held), record, record.bytes)
