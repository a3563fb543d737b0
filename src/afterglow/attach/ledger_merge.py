"""Merge of the ledger list of a cluster's topic into our own copy, and what follows from it. Pure functions.

Our copy has the same ledgers, with our segments. Ledgers that the cluster has offloaded, or is offloading, are left to
it. Ledgers that the cluster has trimmed stay while they are in segments, so that the tier may keep them for longer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from afterglow.errors import CorruptMetadata
from afterglow.format.objects import ledger_uuid
from afterglow.format.position import LedgerRange, Position
from afterglow.hot.pulsar.hold_state import SkippedRange
from afterglow.ledger.ledger_list import covered_entries
from afterglow.ledger.properties import get_number, get_text, raise_number, set_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo

LEFT_TO_CLUSTER: Final = "afterglow.left-to-cluster"
"""Property of a ledger that the cluster itself offloads."""

REMOVED_THROUGH: Final = "afterglow.removed-through"
"""Property of our copy: ledgers with ids up to this one were removed from it, and are not taken again."""

LOST: Final = "afterglow.lost"
"""Property of a ledger of which the cluster has trimmed entries that are in no segment: their range, inclusive."""

LOST_RANGES: Final = "afterglow.lost-ranges"
"""Property of our copy: all ranges that the cluster has trimmed and that are in no segment, ``LEDGER:FIRST-LAST``."""

RELEASED: Final = "afterglow.released"
"""Property of our copy: the last range whose hold was given up before it was in the tier, ``AFTER-THROUGH``."""

_MAX_LOST_RANGES: Final = 1_000
"""The newest ones are kept, so that the value stays small."""
_RANGE: Final = re.compile(r"(\d+):(\d+)-(\d+)")
_RELEASE: Final = re.compile(r"(-?\d+):(-?\d+)-(\d+):(-?\d+)")


@dataclass(frozen=True, slots=True)
class Tail:
    """The ledger of a topic that is being written."""

    ledger_id: int
    entries: int
    """Number of confirmed entries, as far as they are known here."""


def merge_ledgers(own: ManagedLedgerInfo, cluster: ManagedLedgerInfo) -> None:
    """Take the ledgers of a cluster's list into our copy; an edit that is idempotent.

    Args:
        own: Our copy, which is changed.
        cluster: The cluster's list.
    """
    _record_lost(own, lost_ranges(own, cluster))
    known = {ledger.ledgerId: ledger for ledger in own.ledgerInfo}
    removed = get_number(own, REMOVED_THROUGH)
    for given in cluster.ledgerInfo:
        ledger = known.get(given.ledgerId)
        if ledger is None and removed is not None and given.ledgerId <= removed:
            continue  # the cluster's list was read before it was trimmed, or from a server that lags behind
        if ledger is None:
            ledger = own.ledgerInfo.add(ledgerId=given.ledgerId)
        if given.HasField("entries") and not ledger.HasField("entries"):
            ledger.entries, ledger.size, ledger.timestamp = given.entries, given.size, given.timestamp
        is_offloaded = given.offloadContext.complete or ledger_uuid(given) is not None
        if is_offloaded and not ledger.offloadContext.offloadSegment:
            # Without a UUID: the object is the cluster's, and is never read or deleted by this name.
            ledger.offloadContext.complete = True
            set_text(ledger, LEFT_TO_CLUSTER, "true")
    existing = {given.ledgerId for given in cluster.ledgerInfo}
    kept = [ledger for ledger in own.ledgerInfo if ledger.ledgerId in existing or _keep_trimmed(ledger)]
    kept.sort(key=lambda ledger: ledger.ledgerId)
    if kept != list(own.ledgerInfo):
        copies = [type(ledger).FromString(ledger.SerializeToString()) for ledger in kept]
        del own.ledgerInfo[:]
        own.ledgerInfo.extend(copies)
    if cluster.HasField("terminatedPosition"):
        own.terminatedPosition.CopyFrom(cluster.terminatedPosition)
    else:
        own.ClearField("terminatedPosition")  # of an earlier life of the topic


def remove_ledgers(own: ManagedLedgerInfo, ledger_ids: Collection[int]) -> None:
    """Remove ledgers that the cluster has trimmed from our copy; an edit that is idempotent."""
    kept = [ledger for ledger in own.ledgerInfo if ledger.ledgerId not in ledger_ids]
    if len(kept) == len(own.ledgerInfo):
        return
    raise_number(own, REMOVED_THROUGH, max(ledger_ids))
    copies = [type(ledger).FromString(ledger.SerializeToString()) for ledger in kept]
    del own.ledgerInfo[:]
    own.ledgerInfo.extend(copies)


def _keep_trimmed(ledger: ManagedLedgerInfo.LedgerInfo) -> bool:
    """Record that the cluster has trimmed a ledger; returns whether it stays in our list."""
    context = ledger.offloadContext
    if get_text(ledger, LEFT_TO_CLUSTER) is not None or not context.offloadSegment:
        return False
    covered = covered_entries(ledger)
    if any(not segment.complete for segment in context.offloadSegment):
        return True  # its segment is still to be committed: bookies keep entries for some time
    if covered < ledger.entries and get_text(ledger, LOST) is None:
        set_text(ledger, LOST, f"{covered}-{ledger.entries - 1}")
    if not ledger.HasField("entries") or covered < ledger.entries:
        ledger.entries = covered
    context.bookkeeperDeleted = True
    return covered > 0


def lost_ranges(own: ManagedLedgerInfo, cluster: ManagedLedgerInfo) -> tuple[LedgerRange, ...]:
    """Entries that the cluster has trimmed and that are in no segment, by our copy before the merge."""
    existing = {given.ledgerId for given in cluster.ledgerInfo}
    found = []
    for ledger in own.ledgerInfo:
        if ledger.ledgerId in existing or get_text(ledger, LEFT_TO_CLUSTER) is not None:
            continue
        covered = covered_entries(ledger)
        if ledger.HasField("entries") and covered < ledger.entries and get_text(ledger, LOST) is None:
            found.append(LedgerRange(ledger.ledgerId, covered, ledger.entries - 1))
    return tuple(found)


def delivered_ledgers(own: ManagedLedgerInfo, cluster: ManagedLedgerInfo, last: Position | None) -> ManagedLedgerInfo:
    """A cluster's list up to the last entry that its brokers deliver, whose ledger counts as being written. Pure.

    Entries behind it are markers, or of transactions that have not ended: brokers may still deliver those.

    Args:
        own: Our copy. What it has already is not left out.
        cluster: The cluster's list.
        last: The last entry that is delivered; None: none is, or it is not known.
    """
    known = {ledger.ledgerId: ledger for ledger in own.ledgerInfo}
    found = type(cluster)()
    found.CopyFrom(cluster)
    del found.ledgerInfo[:]
    is_cut = False
    for given in cluster.ledgerInfo:
        ledger = known.get(given.ledgerId)
        is_known = ledger is not None and (ledger.HasField("entries") or bool(ledger.offloadContext.offloadSegment))
        is_behind = last is None or given.ledgerId > last.ledger_id
        if is_behind and not is_known and (is_cut or given.entries):
            is_cut = True
            continue
        found.ledgerInfo.add().CopyFrom(given)
        is_last = last is not None and given.ledgerId == last.ledger_id and given.entries > last.entry_id + 1
        if (is_behind or is_last) and given.entries and not (ledger is not None and ledger.HasField("entries")):
            found.ledgerInfo[-1].ClearField("entries")
            is_cut = True
    return found


def _record_lost(own: ManagedLedgerInfo, lost: Iterable[LedgerRange]) -> None:
    known = (get_text(own, LOST_RANGES) or "").split()
    found = known + [f"{each.ledger_id}:{each.first}-{each.last}" for each in lost]
    if found != known:
        set_text(own, LOST_RANGES, " ".join(found[-_MAX_LOST_RANGES:]))


def recorded_lost(own: ManagedLedgerInfo) -> tuple[LedgerRange, ...]:
    """The ranges that the cluster has trimmed before they were in the tier, in the order in which they were found.

    Raises:
        CorruptMetadata: The record is not valid.
    """
    found = []
    for word in (get_text(own, LOST_RANGES) or "").split():
        match = _RANGE.fullmatch(word)
        if match is None:
            raise _invalid(LOST_RANGES, word)
        ledger_id, first, last = map(int, match.groups())
        found.append(LedgerRange(ledger_id, first, last))
    return tuple(found)


def record_release(own: ManagedLedgerInfo, released: SkippedRange) -> None:
    """Record that the hold of a range is given up; one that joins the recorded range extends it. An edit."""
    before = recorded_release(own)
    start = before.after if before is not None and released.after <= before.through else released.after
    set_text(own, RELEASED, f"{start}-{released.through}")


def recorded_release(own: ManagedLedgerInfo) -> SkippedRange | None:
    """The last range whose hold was given up; None: no hold was.

    Raises:
        CorruptMetadata: The record is not valid.
    """
    text = get_text(own, RELEASED)
    if text is None:
        return None
    found = _RELEASE.fullmatch(text)
    if found is None:
        raise _invalid(RELEASED, text)
    ledger, entry, through_ledger, through_entry = map(int, found.groups())
    return SkippedRange(Position(ledger, entry), Position(through_ledger, through_entry))


def _invalid(key: str, text: str) -> CorruptMetadata:
    return CorruptMetadata(f"property {key} of a managed ledger is not valid: {text[:80]!r}")


def tail_of(cluster: ManagedLedgerInfo, last_confirmed: Position | None, before: Tail | None) -> Tail | None:
    """The ledger that is being written, with its confirmed entries; None if the cluster's list has none.

    Args:
        cluster: The cluster's list, read before ``last_confirmed``.
        last_confirmed: The last confirmed entry, if it is known.
        before: The tail as it was known before; confirmed entries stay confirmed.
    """
    open_ids = [given.ledgerId for given in cluster.ledgerInfo if not given.HasField("entries")]
    if not open_ids:
        return None
    ledger_id = max(open_ids)
    entries = before.entries if before is not None and before.ledger_id == ledger_id else 0
    if last_confirmed is not None and last_confirmed.ledger_id == ledger_id:
        entries = max(entries, last_confirmed.entry_id + 1)
    return Tail(ledger_id, entries)


def committed_end(ledgers: Iterable[ManagedLedgerInfo.LedgerInfo]) -> Position | None:
    """The last entry up to which all entries are in segments or left to the cluster; None: none is.

    The subscription that holds back trimming is acknowledged up to it.
    """
    end: Position | None = None
    for ledger in sorted(ledgers, key=lambda ledger: ledger.ledgerId):
        if ledger.HasField("entries") and not ledger.entries:
            continue
        whole = ledger.offloadContext.complete and ledger.HasField("entries")
        covered = ledger.entries if whole else covered_entries(ledger)
        if covered:
            end = Position(ledger.ledgerId, covered - 1)
        if not ledger.HasField("entries") or covered < ledger.entries:
            break
    return end
