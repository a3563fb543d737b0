"""Why each ledger of a topic that streams is where it is: what segments hold of it, and what the next one waits for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from afterglow.errors import HotLogError
from afterglow.format.blocks import HEADER_BYTES
from afterglow.ledger.ledger_list import covered_entries
from afterglow.offload.explain import Explanation, LedgerState, with_outage
from afterglow.offload.segments import records
from afterglow.offload.segments.cutting import frame_bytes
from afterglow.offload.segments.listing import list_uploads
from afterglow.offload.segments.stream import run_between
from afterglow.offload.wording import joined, span, times
from afterglow.read.places import place_of_record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from afterglow.config import BrokerConfig
    from afterglow.format.proto.afterglow_pb2 import UploadRecord
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.hot.log import HotLog
    from afterglow.ledger.managed_ledger import ManagedLedger
    from afterglow.offload.environment import OffloadEnvironment
    from afterglow.offload.explain import Work
    from afterglow.offload.segments.work import StreamWork
    from afterglow.storage.health import Outage

_SHORT: Final = 8
"""Characters of a UUID that tell a segment from the few others of a topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamView:
    """What is known of a topic's stream."""

    policy: BrokerConfig
    uploads: Sequence[UploadRecord]
    """Of segments on their way, in the order of positions."""
    entries_of: Callable[[int], int | None]
    """How many entries of a ledger readers may see; None where nobody knows."""
    writing_to: int | None
    """The ledger that takes appends."""
    filled_bytes: int | None
    """Of the segment that has no end yet: from its first entry to the last that was written; None: not known."""
    error: str | None
    """Why the stream did not go on; None where it did."""
    retry_ms: int
    """When it is tried again, epoch milliseconds; 0: at the next look."""
    obstacle: str | None
    """Why no tier can be used; None where one can."""
    whole: frozenset[int]
    """Ledgers that are being offloaded whole, which is waited for."""
    outage: Outage | None
    """Of the tier that the policy names."""
    outage_of: Callable[[str], Outage | None]
    """Of any tier."""
    now_ms: int


def view_stream(
    name: str,
    env: OffloadEnvironment,
    stream: StreamWork,
    *,
    policy: BrokerConfig,
    obstacle: str | None,
    work: Work,
) -> StreamView:
    """Look at a topic's stream. Waits for metadata and the hot log.

    Args:
        name: The managed-ledger name.
        env: Where records and ledgers are.
        stream: What this process does for the topic.
        policy: The topic's.
        obstacle: Why no tier can be used; None where one can.
        work: What this process does with whole ledgers.

    Raises:
        CorruptMetadata: A record does not parse.
        MetadataUnavailable: The store cannot be reached.
    """
    uploads = list_uploads(env.metadata, env.paths, name)
    opened = env.store.opened(name)
    return StreamView(
        policy=policy,
        uploads=uploads,
        entries_of=(lambda _ledger_id: None) if opened is None else opened.layout.entries_of,
        writing_to=None if opened is None else opened.writing_to,
        filled_bytes=None if opened is None else _filled_bytes(opened, uploads, env.store.hot),
        error=str(stream.error) if stream.error is not None and stream.retry_ms else None,
        retry_ms=stream.retry_ms,
        obstacle=obstacle,
        whole=work.running,
        outage=work.outage,
        outage_of=env.tiers.health.outage,
        now_ms=env.clock.now_ms(),
    )


def _filled_bytes(ledger: ManagedLedger, uploads: Sequence[UploadRecord], hot: HotLog) -> int | None:
    if not uploads or uploads[-1].HasField("end"):
        return None
    run = run_between(ledger.layout, records.position_of(uploads[-1].begin), ledger.last_confirmed)
    try:
        return sum(
            frame_bytes(piece, piece.last, lambda id_, *ends: hot.open(id_).offsets(*ends)) for piece in run.stretches
        )
    except (HotLogError, IndexError):
        return None


def explain_streamed(view: StreamView, row: ManagedLedgerInfo.LedgerInfo) -> Explanation | None:
    """Why a ledger that is not wholly in the tier is where it is; None where segments have nothing to do with it."""
    streams = view.policy.streaming_offload_enabled
    mine = [upload for upload in view.uploads if _touches(upload, row.ledgerId)]
    if row.offloadContext.complete or not (streams or mine or row.offloadContext.offloadSegment):
        return None
    count = row.entries if row.HasField("entries") else view.entries_of(row.ledgerId)
    if not count:
        if row.HasField("entries") and row.ledgerId != view.writing_to:
            return None
        return Explanation(row.ledgerId, LedgerState.OPEN, "It is being written, and has no entries yet.")
    covered = covered_entries(row)
    planned = sum(_planned(upload, row.ledgerId, count) for upload in mine)
    rest = max(count - covered - planned, 0)
    cause = _of_segments(view, mine) if mine else _of_none(view, row) if rest else _Cause("It is being written.")
    sentence = f"{_shares(count, covered, planned, rest)} {cause.sentence}"
    if row.ledgerId != view.writing_to:
        sentence += " Its hot copy stays until all of it is in committed segments."
    state = cause.state or (LedgerState.IN_SEGMENTS if covered or mine else LedgerState.STREAMING)
    told = Explanation(row.ledgerId, state, sentence, cause.next_ms, cause.error)
    return with_outage(told, _outage(view, mine) if planned + rest else None, view.now_ms)


def _outage(view: StreamView, mine: Sequence[UploadRecord]) -> Outage | None:
    """Of the first tier that segments of a ledger go to; of that of the policy where there are none."""
    found = (view.outage_of(str(place_of_record(upload.place))) for upload in mine)
    return next((outage for outage in found if outage is not None), None) if mine else view.outage


@dataclass(frozen=True, slots=True)
class _Cause:
    """What the rest of a ledger waits for."""

    sentence: str
    state: LedgerState | None = None
    """Where the cause decides it."""
    next_ms: int | None = None
    error: str | None = None


def _of_segments(view: StreamView, mine: Sequence[UploadRecord]) -> _Cause:
    """What segments wait for that hold entries of a ledger."""
    failed = next((upload for upload in mine if upload.last_error), None)
    if failed is not None:
        return _failure(view, f"Segment {_name(failed)} failed {times(failed.attempts)}", failed.last_error)
    last = mine[-1]
    if not last.HasField("end"):
        return _of_live(view, last)
    before = [upload for upload in view.uploads if records.position_of(upload.begin) < records.position_of(last.begin)]
    order = f", and {len(before)} before it are committed first" if before else ""
    return _Cause(f"Segment {_name(last)} ends with {records.end_of(last)}: {_parts(last)}{order}.")


def _of_live(view: StreamView, live: UploadRecord) -> _Cause:
    """What the segment waits for that has no end yet."""
    policy = view.policy
    if not policy.streaming_offload_enabled:
        return _Cause(
            f"Segment {_name(live)} is open: {_parts(live)}. streamingOffloadEnabled is not set any more, so that it "
            "ends with the ledger that was being written."
        )
    most_bytes, most_s = policy.max_offload_segment_size_in_bytes, policy.max_offload_segment_rollover_time_in_seconds
    headers = HEADER_BYTES * sum(len(part.block_bytes) for part in live.planned)
    filled = records.planned_bytes(live) - headers if view.filled_bytes is None else view.filled_bytes
    closes_ms = live.first_entry_ms + 1000 * most_s
    return _Cause(
        f"Segment {_name(live)} is open: {_parts(live)}. It closes with {max(most_bytes - filled, 0)} more bytes "
        f"(maxOffloadSegmentSizeInBytes={most_bytes}), or in {span(closes_ms - view.now_ms)} "
        f"(maxOffloadSegmentRolloverTimeInSeconds={most_s}).",
        next_ms=closes_ms,
    )


def _of_none(view: StreamView, row: ManagedLedgerInfo.LedgerInfo) -> _Cause:
    """What entries wait for that are in no segment yet, and whose ledger is in none on its way."""
    if view.obstacle is not None:
        return _Cause(f"It cannot be streamed: {view.obstacle}", LedgerState.NO_TIER, error=view.obstacle)
    if view.error is not None:
        return _failure(view, "No segment could be begun", view.error)
    if view.whole:
        return _Cause(f"It waits for the offload of whole ledgers that is under way: {joined(sorted(view.whole))}.")
    if view.uploads:
        return _Cause(f"It follows the segments that are on their way, of which there are {len(view.uploads)}.")
    if view.policy.streaming_offload_enabled:
        return _Cause("The next look begins a segment with it.")
    if row.ledgerId == view.writing_to:
        return _Cause(
            "streamingOffloadEnabled is not set any more: the rest goes into a last segment when the ledger is closed."
        )
    return _Cause("streamingOffloadEnabled is not set any more, but what is partly in segments ends in segments.")


def _failure(view: StreamView, what: str, error: str) -> _Cause:
    again = f"in {span(view.retry_ms - view.now_ms)}" if view.retry_ms else "at the next look"
    return _Cause(f"{what}: {error}. Tried again {again}.", LedgerState.FAILED, view.retry_ms or None, error)


def _touches(upload: UploadRecord, ledger_id: int) -> bool:
    """Whether a segment on its way holds entries of a ledger, or will."""
    last = records.end_of(upload) or records.planned_end(upload)
    return upload.begin.ledger_id <= ledger_id <= max(upload.begin.ledger_id, -1 if last is None else last.ledger_id)


def _planned(upload: UploadRecord, ledger_id: int, count: int) -> int:
    """How many entries of a ledger are in a segment on its way, as far as that is decided."""
    last = records.end_of(upload) or records.planned_end(upload)
    if last is None:
        return 0
    first = upload.begin.entry_id if upload.begin.ledger_id == ledger_id else 0
    return (last.entry_id + 1 if last.ledger_id == ledger_id else count) - first


def _shares(count: int, covered: int, planned: int, rest: int) -> str:
    """Where the entries of a ledger are."""
    named = ((covered, "in committed segments"), (planned, "in segments on their way"), (rest, "in none yet"))
    shares = [(share, where) for share, where in named if share]
    has = "It has 1 entry" if count == 1 else f"It has {count} entries"
    if len(shares) == 1:
        return f"{has}, {'' if count == 1 else 'all '}{shares[0][1]}."
    return f"{has}: {joined([f'{share} {where}' for share, where in shares])}."


def _parts(upload: UploadRecord) -> str:
    return (
        f"{len(upload.done)} of {len(upload.planned)} parts are uploaded" if upload.planned else "no part is full yet"
    )


def _name(upload: UploadRecord) -> str:
    return upload.uuid[:_SHORT]
