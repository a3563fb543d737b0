"""Whether a topic's entries are all somewhere: pure arithmetic over what metadata says.

Each ledger's own object holds all of it. Segments hold it in the order of the list, each from behind the one before.
Work on its way holds nothing yet.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from afterglow.verify.findings import Finding, Kind, position_text, topic_text
from afterglow.verify.names import copy_key
from afterglow.verify.objects import ObjectCheck, Stretch

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping, Sequence
    from uuid import UUID

    from afterglow.verify.ledgers import Ledger
    from afterglow.verify.places import Place
    from afterglow.verify.records import SegmentRecord
    from afterglow.verify.state import TopicState


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
                found[ObjectCheck(topic, ledger.place, key, 1, held, size_bytes=ledger.size_bytes)] = None
        for uuid, (place, stretches) in _segments(ledgers).items():
            found[_segment_check(topic, uuid, place, stretches, records.get(uuid))] = None
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


def _segments(ledgers: Sequence[Ledger]) -> dict[UUID, tuple[Place, list[Stretch]]]:
    """The committed segments of a list: where the list says they are, and the entries that each holds."""
    found: dict[UUID, tuple[Place, list[Stretch]]] = {}
    for ledger in ledgers:
        begin = 0
        for stub in ledger.stubs:
            if not stub.complete:
                continue
            last = stub.end_entry_id
            _, stretches = found.setdefault(stub.uuid, (stub.place or ledger.place, []))
            stretches.append(Stretch(ledger.ledger_id, begin, last))
            begin = begin if last is None else max(last + 1, begin)
    return found


def _segment_check(
    topic: str, uuid: UUID, place: Place, stretches: list[Stretch], record: SegmentRecord | None
) -> ObjectCheck:
    if record is None:
        return ObjectCheck(topic, place, str(uuid), 2, tuple(stretches))
    # Where record and list disagree, that is told once, by them: the object is held against its own record.
    held = list(stretches)
    if held[0].ledger_id == record.begin[0]:
        held[0] = replace(held[0], first=record.begin[1])
    if held[-1].ledger_id == record.end[0]:
        held[-1] = replace(held[-1], last=record.end[1])
    return ObjectCheck(topic, record.place, record.key, 2, tuple(held), record, record.bytes)
