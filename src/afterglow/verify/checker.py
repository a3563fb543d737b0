"""Verification of all topics and tiers: compares what metadata says with what is in the tiers.

It reads only. It may run beside a server: a fault is reported only if metadata, read again after it was seen, still
says what makes it one.

Coverage, whether all entries of a topic are in some copy, is pure arithmetic over what metadata says: each ledger's own
object holds all of it; segments hold it in the order of the list, each from behind the one before; work in progress
holds nothing yet.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from afterglow.errors import ConfigError, MissingDependency, NotSupported
from afterglow.metadata.paths import STANDALONE
from afterglow.verify.deep import CheckHere
from afterglow.verify.findings import Finding, Kind, position_text, topic_text
from afterglow.verify.objects import ObjectCheck, Stretch
from afterglow.verify.state import StateReader, add_names, copy_key
from afterglow.verify.sweep import Strays

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
    from uuid import UUID

    from afterglow.metadata.pulsar_cluster import MetadataReader
    from afterglow.storage.store import ObjectStore
    from afterglow.verify.deep import ObjectChecker
    from afterglow.verify.objects import DriverCopies
    from afterglow.verify.state import Naming, TopicState
    from afterglow.verify.topic_metadata import Ledger, ParsedLocation, SegmentRecord

_SETTLING: Final = 10
"""How often a topic that changes meanwhile is read again before it is judged as it is."""
_AT_ONCE: Final = 10_000
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
    checker: ObjectChecker | None = None,
) -> Iterator[Finding]:
    """Check all topics, then the tiers for what no topic names. Findings come as they are made.

    Kept in memory are the names of all committed objects, the state of one topic, what metadata says of some thousand
    objects, and one page of a listing.

    Args:
        metadata: The store; only read.
        stores: Gives the store of each place that metadata names, or the external driver that has its objects, as
            often as it is asked. What it cannot give is ``unchecked``.
        tiers: The stores to list for orphans and unfinished uploads; asked for when all topics are checked.
        instance: Our own, as objects carry it.
        cluster: Whose records of ours are meant.
        now_ms: The time by the stores' clocks, epoch milliseconds.
        grace_ms: Orphans and uploads that are not older are ``pending``.
        deep: Read and check every byte of every committed object.
        hot: Whether the hot log has a ledger, by its id; None where nobody can tell.
        checker: Checks objects instead of this process, as deep as it does.

    Raises:
        FormatError: A value of metadata cannot be read, so that nobody knows what it names.
        MetadataError: Metadata cannot be read.
        StorageError: A store fails.
        AfterglowError: What ``stores`` raises.
    """
    reader = StateReader(metadata, cluster)
    naming: Naming = {}
    checker = checker or CheckHere(stores, instance, deep=deep)
    due: dict[ObjectCheck, str] = {}
    for name in reader.names():
        state = reader.topic(name)
        add_names(naming, state)
        yield from _settled_coverage(reader, state, hot)
        checks = committed_objects(state)
        obstacles = {
            location: _obstacle(location, stores) for location in dict.fromkeys(check.location for check in checks)
        }
        yield from _unchecked(checks, obstacles)
        due |= {check: name for check in checks if obstacles[check.location] is None}
        if len(due) >= _AT_ONCE:
            yield from _check_objects(reader, checker, due)
            due.clear()
    yield from _check_objects(reader, checker, due)
    strays = Strays(reader, naming, instance=instance, now_ms=now_ms, grace_ms=grace_ms)
    for tier in tiers:
        for stray in strays.find(tier):
            yield stray.finding


def _obstacle(location: ParsedLocation, stores: Callable[[ParsedLocation], ObjectStore | DriverCopies]) -> str | None:
    """Why the objects of a place cannot be checked; None where they can."""
    if not location.blocks:
        return f"MapFiles of Pulsar's own file-system driver below {location.bucket}, which are not read here"
    try:
        stores(location)
    except (ConfigError, MissingDependency, NotSupported) as error:
        return str(error)
    return None


def _unchecked(checks: Sequence[ObjectCheck], obstacles: Mapping[ParsedLocation, str | None]) -> Iterator[Finding]:
    """One finding for all objects of a topic that cannot be checked for the same reason."""
    by_reason: dict[str, list[ObjectCheck]] = {}
    for check in checks:
        if (reason := obstacles[check.location]) is not None:
            by_reason.setdefault(reason, []).append(check)
    for reason, found in by_reason.items():
        more = f" and {len(found) - 1} more objects" if len(found) > 1 else ""
        detail = f"{found[0].key}{more} cannot be checked: {reason}"
        yield Finding(Kind.UNCHECKED, found[0].topic, found[0].key, None, detail)


def _check_objects(reader: StateReader, checker: ObjectChecker, due: dict[ObjectCheck, str]) -> Iterator[Finding]:
    """Check objects, each with the managed-ledger name of the topic that names it."""
    if not due:
        return
    for check, found in checker(tuple(due)):
        if any(finding.kind.is_fault for finding in found) and check not in committed_objects(reader.topic(due[check])):
            continue  # it was named before and is not any more: its deletion is what we have seen
        yield from found


def _settled_coverage(reader: StateReader, state: TopicState, hot: Callable[[int], bool] | None) -> list[Finding]:
    """Holes and overlaps that are there in a state which did not change while they were looked for."""
    found = list(check_coverage(state, hot))
    for _ in range(_SETTLING):
        if not found:
            break
        now = reader.topic(state.name)
        if now == state:
            break
        state = now
        found = list(check_coverage(state, hot))
    return found


def committed_objects(state: TopicState) -> tuple[ObjectCheck, ...]:
    """Every object that a topic's metadata says is complete, each once per list that names it."""
    topic = topic_text(state.name)
    records = {record.uuid: record for record in state.segments}
    found: dict[ObjectCheck, None] = {}
    for ledgers in state.lists:
        for ledger in ledgers:
            if ledger.copy is not None and ledger.complete:
                last = None if ledger.entries is None else ledger.entries - 1
                key = copy_key(ledger.copy, ledger.ledger_id)
                held = (Stretch(ledger.ledger_id, 0, last),)
                found[ObjectCheck(topic, ledger.location, key, 1, held, size_bytes=ledger.size_bytes)] = None
        for uuid, (location, stretches) in _segments(ledgers).items():
            found[_segment_check(topic, uuid, location, stretches, records.get(uuid))] = None
    return tuple(found)


def check_coverage(state: TopicState, hot: Callable[[int], bool] | None = None) -> Iterator[Finding]:
    """Holes and overlaps in what metadata says.

    Args:
        state: The topic.
        hot: Whether the hot log has a ledger; None where nobody can tell.
    """
    topic = topic_text(state.name)
    records = {record.uuid: record for record in state.segments}
    for ledgers in state.lists:
        streamed = [ledger.ledger_id for ledger in ledgers if any(stub.complete for stub in ledger.stubs)]
        told: set[int] = set()
        for ledger in ledgers:
            between = bool(streamed) and streamed[0] <= ledger.ledger_id < streamed[-1]
            for finding in _check_ledger(topic, ledger, hot, between=between):
                told.add(ledger.ledger_id)
                yield finding
        untold = {ledger.ledger_id for ledger in ledgers} - told
        yield from _check_records(topic, ledgers, records, untold)


def _check_ledger(topic: str, ledger: Ledger, hot: Callable[[int], bool] | None, *, between: bool) -> Iterator[Finding]:
    def at(kind: Kind, entry_id: int, detail: str, key: str | None = None) -> Finding:
        return Finding(kind, topic, key, position_text(ledger.ledger_id, entry_id), detail)

    end = 0  # behind the last entry that committed copies hold
    waiting: int | None = None  # where a segment on its way begins
    for stub in ledger.stubs:
        if not stub.complete:
            waiting = end if waiting is None else waiting
            continue
        if waiting is not None:
            yield at(Kind.HOLE, waiting, "a segment was committed before the one in front of it", str(stub.uuid))
            waiting = None
        if stub.end_entry_id is None:
            yield at(Kind.HOLE, end, "the list does not say where the segment ends", str(stub.uuid))
        elif stub.end_entry_id < end:
            detail = f"the segment ends with entry {stub.end_entry_id}, before its beginning at {end}"
            yield at(Kind.OVERLAP, stub.end_entry_id, detail, str(stub.uuid))
        else:
            end = stub.end_entry_id + 1
    if ledger.copy is not None and ledger.complete:
        end = ledger.entries or 0
    if ledger.entries is not None and end > ledger.entries:
        yield at(Kind.OVERLAP, ledger.entries, f"segments hold {end} entries of a ledger that has {ledger.entries}")
    if ledger.entries is not None and end >= ledger.entries:
        return
    if ledger.hot_deleted:
        yield at(Kind.HOLE, end, f"the hot copy is gone, and committed copies hold only the {end} entries before")
    elif between:
        yield at(Kind.HOLE, end, "later ledgers are in segments, but the rest of this one is not")
    elif hot is not None and not hot(ledger.ledger_id):
        yield at(Kind.HOLE, end, f"the hot log has no such ledger, and committed copies only the {end} entries before")


def _check_records(
    topic: str, ledgers: Sequence[Ledger], records: Mapping[UUID, SegmentRecord], untold: Container[int]
) -> Iterator[Finding]:
    """Hold each segment's own record against what the list says of it.

    Args:
        topic: For the findings.
        ledgers: The list.
        records: The segments' records.
        untold: Ledgers of the list that nothing was found about yet. One that has left the list is not missed.
    """
    for uuid, (_, stretches) in _segments(ledgers).items():
        record = records.get(uuid)
        if record is None:
            continue
        first, last = stretches[0], stretches[-1]
        begin = (first.ledger_id, first.first)
        end = (last.ledger_id, record.end[1] if last.last is None else last.last)
        detail = (
            f"the segment's record says {position_text(*record.begin)} to {position_text(*record.end)}, "
            f"the list {position_text(*begin)} to {position_text(*end)}"
        )
        for kind, position in _differences(record, begin, end, untold):
            yield Finding(kind, topic, record.key, position_text(*position), detail)


def _differences(
    record: SegmentRecord, begin: tuple[int, int], end: tuple[int, int], untold: Container[int]
) -> Iterator[tuple[Kind, tuple[int, int]]]:
    if record.begin > begin:
        yield Kind.HOLE, begin
    elif record.begin[0] == begin[0] and record.begin < begin:
        yield Kind.OVERLAP, record.begin
    elif record.begin[0] < begin[0] and record.begin[0] in untold:
        yield Kind.HOLE, record.begin  # the list does not name the segment there
    if record.end < end:
        yield Kind.HOLE, (record.end[0], record.end[1] + 1)
    elif record.end[0] == end[0] and record.end > end:
        yield Kind.OVERLAP, (end[0], end[1] + 1)
    elif record.end[0] > end[0] and record.end[0] in untold:
        yield Kind.HOLE, (record.end[0], 0)


def _segments(ledgers: Sequence[Ledger]) -> dict[UUID, tuple[ParsedLocation, list[Stretch]]]:
    """The committed segments of a list: where the list says they are, and the entries that each holds."""
    found: dict[UUID, tuple[ParsedLocation, list[Stretch]]] = {}
    for ledger in ledgers:
        begin = 0
        for stub in ledger.stubs:
            if not stub.complete:
                continue
            last = stub.end_entry_id
            _, stretches = found.setdefault(stub.uuid, (stub.location or ledger.location, []))
            stretches.append(Stretch(ledger.ledger_id, begin, last))
            begin = begin if last is None else max(last + 1, begin)
    return found


def _segment_check(
    topic: str, uuid: UUID, location: ParsedLocation, stretches: list[Stretch], record: SegmentRecord | None
) -> ObjectCheck:
    if record is None:
        return ObjectCheck(topic, location, str(uuid), 2, tuple(stretches))
    # Where record and list disagree, that is told once, by them: the object is held against its own record.
    held = list(stretches)
    if held[0].ledger_id == record.begin[0]:
        held[0] = replace(held[0], first=record.begin[1])
    if held[-1].ledger_id == record.end[0]:
        held[-1] = replace(held[-1], last=record.end[1])
    return ObjectCheck(topic, record.location, record.key, 2, tuple(held), record, record.bytes)
