"""Ledger list of a topic from the objects of a tier. Pure functions.

Several objects may have the same entries: attempts of which only one was committed, or a whole ledger beside segments
of it. Entries never change, so that any sound object serves. A whole ledger is preferred to segments, and of segments
the one that reaches furthest.

A list begins each ledger at entry 0. Entries that no object has are segments that are not complete: a reader skips them
as :attr:`TierTopic.missing`, and never takes them for read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from afterglow.errors import ConfigError, CorruptIndex
from afterglow.format.objects import set_uuid
from afterglow.format.position import LedgerRange
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from afterglow.errors import AfterglowError
    from afterglow.source.tier_objects import ListedObject, ObjectExtent

    LedgerInfo = ManagedLedgerInfo.LedgerInfo

_MAX_NAMES: Final = 5
"""Names in a message; more are counted."""


@dataclass(frozen=True, slots=True)
class TierTopic:
    """A topic as the objects of a tier describe it."""

    info: ManagedLedgerInfo
    """Its ledger list. The last ledger is open if it is in segments: more may follow."""
    missing: tuple[LedgerRange, ...] = ()
    """Entries between others that no object has."""
    findings: tuple[str, ...] = ()
    """What is odd about its objects."""
    error: AfterglowError | None = None
    """Why the list may be incomplete: a damaged object has entries that no other object has."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """An object that has entries of a ledger."""

    listed: ListedObject
    extent: ObjectExtent

    @property
    def is_sound(self) -> bool:
        return self.listed.error is None

    @property
    def preference(self) -> tuple[bool, int, bool, int, str]:
        """The greatest is read."""
        listed = self.listed
        return self.is_sound, self.extent.last, listed.has_statistics, listed.modified_ms, str(listed.key)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Consecutive entries of a ledger, and the object that serves them; None: no object has them."""

    first: int
    last: int
    candidate: _Candidate | None


@dataclass(slots=True)
class _Building:
    """A ledger list that is built."""

    info: ManagedLedgerInfo = field(default_factory=ManagedLedgerInfo)
    missing: list[LedgerRange] = field(default_factory=list)
    used: set[tuple[str, int, int, int]] = field(default_factory=set)
    """Extents that serve wholly: object, ledger, first and last entry."""


def topic_of_objects(name: str, objects: Sequence[ListedObject], where: str) -> TierTopic:
    """The ledger list of a topic.

    Args:
        name: The topic, for messages.
        objects: All its objects.
        where: The tier, for messages.
    """
    conflict = _conflict(name, objects, where)
    by_ledger: dict[int, list[_Candidate]] = {}
    for listed in objects:
        for extent in listed.extents:
            by_ledger.setdefault(extent.ledger_id, []).append(_Candidate(listed, extent))
    building = _Building()
    newest = max(by_ledger, default=-1)
    for ledger_id in sorted(by_ledger):
        _add_ledger(building, ledger_id, by_ledger[ledger_id], may_grow=ledger_id == newest)
    unreadable = [listed for listed in objects if not listed.extents]
    needed = [listed for listed in unreadable if not _has_whole(by_ledger.get(listed.key.ledger_id or -1, ()))]
    return TierTopic(
        building.info,
        tuple(building.missing),
        tuple(_findings(name, objects, building)),
        conflict or _unreadable(name, needed, where),
    )


def names(keys: Iterable[object]) -> str:
    """Some names, and the number of the others, for a message."""
    found = [str(key) for key in keys]
    more = f" and {len(found) - _MAX_NAMES} more" if len(found) > _MAX_NAMES else ""
    return ", ".join(found[:_MAX_NAMES]) + more


def _has_whole(candidates: Iterable[_Candidate]) -> bool:
    return any(each.is_sound and each.listed.key.ledger_id is not None for each in candidates)


def _add_ledger(building: _Building, ledger_id: int, candidates: Sequence[_Candidate], *, may_grow: bool) -> None:
    wholes = [each for each in candidates if each.listed.key.ledger_id is not None]
    segments = [each for each in candidates if each.listed.key.ledger_id is None]
    chosen = _cover(segments)
    ledger = building.info.ledgerInfo.add(ledgerId=ledger_id, timestamp=0)
    whole = max(wholes, key=lambda each: each.preference, default=None)
    if whole is not None and (whole.is_sound or not _serves(chosen, whole.extent.last)):
        context = ledger.offloadContext
        context.complete = context.bookkeeperDeleted = True
        set_uuid(context, whole.listed.key.uuid)
        ledger.entries, ledger.size = whole.extent.last + 1, whole.extent.size_bytes
        building.used.add((str(whole.listed.key), ledger_id, 0, whole.extent.last))
        return
    has_gaps = False
    for each in chosen:
        segment = ledger.offloadContext.offloadSegment.add(endEntryId=each.last, complete=each.candidate is not None)
        if each.candidate is None:
            has_gaps = True
            building.missing.append(LedgerRange(ledger_id, each.first, each.last))
        else:
            set_uuid(segment, each.candidate.listed.key.uuid)
            building.used.add((str(each.candidate.listed.key), ledger_id, each.first, each.last))
    ledger.offloadContext.bookkeeperDeleted = not has_gaps
    if has_gaps or not may_grow:
        ledger.entries = chosen[-1].last + 1
        ledger.size = sum(each.candidate.extent.size_bytes for each in chosen if each.candidate is not None)


def _serves(chosen: Sequence[_Chosen], last: int) -> bool:
    """Whether sound segments have every entry up to ``last``."""
    return (
        bool(chosen)
        and chosen[-1].last >= last
        and all(each.candidate is not None and each.candidate.is_sound for each in chosen)
    )


def _cover(candidates: Sequence[_Candidate]) -> list[_Chosen]:
    """Cover a ledger from entry 0 on with as few objects as possible; a damaged one only serves what no other has."""
    chosen: list[_Chosen] = []
    first = 0
    end = max((each.extent.last for each in candidates), default=-1)
    while first <= end:
        serving = [each for each in candidates if each.extent.first <= first <= each.extent.last]
        best = max(serving, key=lambda each: each.preference, default=None)
        last = end if best is None else best.extent.last
        if best is None or not best.is_sound:
            starts = (each.extent.first for each in candidates if each.is_sound or best is None)
            last = min([last, *(start - 1 for start in starts if start > first)])
        chosen.append(_Chosen(first, last, best))
        first = last + 1
    return chosen


def _findings(name: str, objects: Sequence[ListedObject], building: _Building) -> Iterable[str]:
    duplicates = [
        listed.key
        for listed in objects
        if listed.extents
        and any(
            (str(listed.key), each.ledger_id, each.first, each.last) not in building.used for each in listed.extents
        )
    ]
    if duplicates:
        yield (
            f"{name}: objects overlap others, whose copies of the entries are read: "
            f"{names(sorted(map(str, duplicates)))}"
        )
    damaged = [f"{listed.key} ({listed.error})" for listed in objects if listed.error is not None]
    if damaged:
        yield f"{name}: objects are damaged: {names(sorted(damaged))}"
    if building.missing:
        yield f"{name}: entries are in no object, and are skipped: {names(building.missing)}"


def _conflict(name: str, objects: Sequence[ListedObject], where: str) -> AfterglowError | None:
    """An error if the objects cannot be those of one topic."""
    cure = "give the metadata of one of them as the source, and this address as its tier"
    clusters = sorted({listed.cluster for listed in objects if listed.cluster})
    if len(clusters) > 1:
        return ConfigError(f"{where} has objects of {name} of several clusters: {names(clusters)}; {cure}")
    instances = sorted({listed.instance for listed in objects if listed.instance})
    if len(instances) > 1:
        return ConfigError(
            f"{where} has objects of {name} that several instances of Afterglow wrote: {names(instances)}; {cure}"
        )
    known: dict[int, tuple[int, ListedObject]] = {}
    for listed in objects:
        for extent in listed.extents if listed.key.ledger_id is not None and listed.error is None else ():
            last, other = known.setdefault(extent.ledger_id, (extent.last, listed))
            if last != extent.last:
                return ConfigError(
                    f"{where} has two different ledgers {extent.ledger_id} of {name}, {other.key} with {last + 1} and "
                    f"{listed.key} with {extent.last + 1} entries: they are of several clusters; {cure}"
                )
    return None


def _unreadable(name: str, objects: Sequence[ListedObject], where: str) -> AfterglowError | None:
    if not objects:
        return None
    damaged = names(sorted(f"{listed.key} ({listed.error})" for listed in objects))
    return CorruptIndex(
        f"{name}: the entries of damaged objects in {where} are not known: {damaged}; restore them from a copy, or set "
        "damagedDataPolicy=skip-and-report to read the others"
    )
