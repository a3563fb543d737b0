"""Explanations of the offload state of each ledger of a topic: a sentence for people, a state for programs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final

from afterglow.errors import AfterglowError, HotLogError
from afterglow.ledger.ledger_list import covered_entries, is_fully_offloaded
from afterglow.metadata.names import TopicName
from afterglow.offload import planner
from afterglow.offload.environment import frame_end
from afterglow.offload.segments import records
from afterglow.offload.segments.listing import list_uploads
from afterglow.offload.segments.part_planner import frame_bytes
from afterglow.offload.segments.uncovered import range_between
from afterglow.tier.locations import location_of_record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from afterglow.config import BrokerConfig
    from afterglow.format.proto.afterglow_pb2 import UploadRecord
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.offload.backoff import LedgerFailure
    from afterglow.offload.environment import OffloadEnvironment
    from afterglow.offload.topic_offload import TopicOffload
    from afterglow.offload.topics import HotLedgers, OffloadTopic
    from afterglow.storage.health import Outage


class LedgerState(StrEnum):
    """Offload state of a ledger."""

    OPEN = "open"
    EMPTY = "empty"
    SYSTEM_TOPIC = "system-topic"
    NO_TIER = "no-tier"
    STREAMING = "streaming"
    IN_SEGMENTS = "in-segments"
    NOT_TRIGGERED = "not-triggered"
    WAITING = "waiting"
    DUE = "due"
    OFFLOADING = "offloading"
    FAILED = "failed"
    OFFLOADED = "offloaded"
    WAITING_FOR_LAG = "waiting-for-lag"
    TO_BE_FREED = "to-be-freed"
    FREED = "freed"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Explanation of the state of a ledger."""

    ledger_id: int
    state: LedgerState
    sentence: str
    """For people, with numbers and settings."""
    next_ms: int | None = None
    """Time of the next change of state, epoch milliseconds; None if it is not known."""
    error: str | None = None
    """Error of the last attempt."""


@dataclass(frozen=True, slots=True)
class OffloadActivity:
    """Whole-ledger offload of a topic in this process."""

    running: frozenset[int] = frozenset()
    """Ledgers that are being offloaded now."""
    failures: Mapping[int, LedgerFailure] | None = None
    """By ledger."""
    manual_before: int | None = None
    """A manual offload covers ledgers with a smaller id."""
    outage: Outage | None = None
    """Outage of the tier that the policy names."""


def explain(
    name: str,
    info: ManagedLedgerInfo,
    *,
    writing_to: int | None,
    policy: BrokerConfig,
    obstacle: str | None,
    work: OffloadActivity,
    now_ms: int,
    streamed: Callable[[ManagedLedgerInfo.LedgerInfo], Explanation | None] = lambda _ledger_info: None,
) -> tuple[Explanation, ...]:
    """Explain the state of each ledger, oldest first.

    Args:
        name: The managed-ledger name.
        info: The topic's ledger list.
        writing_to: The ledger that is being written, if any.
        policy: The topic's effective policy.
        obstacle: The reason why no tier can be used; None if one can.
        work: Whole-ledger offload in this process.
        now_ms: Epoch milliseconds.
        streamed: Explains a ledger that segments hold, or will hold; returns None for other ledgers.
    """
    system = planner.is_system_topic(TopicName.from_managed_ledger_name(name))
    due = planner.due(info, writing_to=writing_to, policy=policy, now_ms=now_ms, manual_before=work.manual_before)
    kept = planner.kept_bytes(info, writing_to)
    found = []
    for ledger in sorted(info.ledgerInfo, key=lambda ledger: ledger.ledgerId):
        answer = _in_tier(ledger, policy, work, now_ms)
        if answer is None and not system:
            answer = streamed(ledger)
        if answer is None:
            answer = _not_a_candidate(ledger, writing_to, obstacle, system=system)
        if answer is None:
            answer = _in_progress(ledger, work, now_ms)
            if answer is None and ledger.ledgerId in due:
                answer = Explanation(ledger.ledgerId, LedgerState.DUE, "It is due and waits for its turn.")
            answer = (
                _waiting(ledger, policy, kept, now_ms) if answer is None else with_outage(answer, work.outage, now_ms)
            )
        found.append(answer)
    return tuple(found)


def explain_topic(topic: TopicOffload, env: OffloadEnvironment, policy: BrokerConfig) -> tuple[Explanation, ...]:
    """Explain the state of each ledger of a topic, oldest first. May wait for metadata.

    Args:
        topic: State of the topic in this process.
        env: Services shared by all topics.
        policy: The topic's effective policy.

    Raises:
        TopicMissing: No such topic exists.
        MetadataError: Its metadata cannot be read.
    """
    opened = env.store.opened(topic.name)
    obstacle = outage = None
    try:
        outage = env.tiers.health.outage(str(env.offloaders(policy, env.own, env.tiers).location))
    except AfterglowError as error:
        obstacle = str(error)
    work = replace(topic.activity, outage=outage)
    view = view_stream(topic, env, policy=policy, obstacle=obstacle, work=work)
    return explain(
        topic.name,
        env.store.info(topic.name),
        writing_to=None if opened is None else opened.writing_to,
        policy=policy,
        obstacle=obstacle,
        work=work,
        now_ms=env.clock.now_ms(),
        streamed=partial(explain_streamed, view),
    )


def with_outage(answer: Explanation, outage: Outage | None, now_ms: int) -> Explanation:
    """Add the outage of the tier that a ledger waits for, if any."""
    if outage is None:
        return answer
    reason = outage.sentence(now_ms)
    sentence = f"{answer.sentence} {reason}; failed work is retried as soon as it is available."
    return replace(answer, state=LedgerState.FAILED, sentence=sentence, error=f"{reason}: {outage.error}")


def _in_tier(
    ledger: ManagedLedgerInfo.LedgerInfo, policy: BrokerConfig, work: OffloadActivity, now_ms: int
) -> Explanation | None:
    if not is_fully_offloaded(ledger):
        return None
    count = len(ledger.offloadContext.offloadSegment)
    in_tier = f"It is in the tier, in {count} segment{'' if count == 1 else 's'}" if count else "It is in the tier"
    if ledger.offloadContext.bookkeeperDeleted:
        return Explanation(ledger.ledgerId, LedgerState.FREED, f"{in_tier}, and its hot copy is deleted.")
    free_ms = planner.freed_at_ms(policy, ledger)
    if free_ms is None:
        return Explanation(
            ledger.ledgerId,
            LedgerState.OFFLOADED,
            f"{in_tier}; its hot copy is kept, since managedLedgerOffloadDeletionLagInMillis is not set.",
        )
    if now_ms <= free_ms:
        return Explanation(
            ledger.ledgerId,
            LedgerState.WAITING_FOR_LAG,
            f"{in_tier}; its hot copy is deleted at {at(free_ms)}, in {span(free_ms - now_ms)}, "
            f"managedLedgerOffloadDeletionLagInMillis={policy.managed_ledger_offload_deletion_lag_in_millis} after the "
            "offload.",
            free_ms + 1,
        )
    failure = (work.failures or {}).get(ledger.ledgerId)
    if failure is not None:
        return Explanation(
            ledger.ledgerId,
            LedgerState.TO_BE_FREED,
            f"{in_tier}, but its hot copy is kept until that has been verified: {failure.error}. "
            f"Retried in {span(failure.retry_at_ms - now_ms)}.",
            failure.retry_at_ms,
            failure.error,
        )
    return Explanation(
        ledger.ledgerId,
        LedgerState.TO_BE_FREED,
        f"{in_tier}; its hot copy is deleted once that has been verified.",
    )


def _not_a_candidate(
    ledger: ManagedLedgerInfo.LedgerInfo, writing_to: int | None, obstacle: str | None, *, system: bool
) -> Explanation | None:
    """Explain a ledger that cannot be offloaded as a whole."""
    if not planner.is_closed(ledger, writing_to):
        return Explanation(
            ledger.ledgerId,
            LedgerState.OPEN,
            "It is being written; whole ledgers are offloaded once they are closed.",
        )
    if not ledger.entries:
        return Explanation(ledger.ledgerId, LedgerState.EMPTY, "It has no entries.")
    if system:
        return Explanation(ledger.ledgerId, LedgerState.SYSTEM_TOPIC, "System topics are never offloaded.")
    if obstacle is not None:
        return Explanation(ledger.ledgerId, LedgerState.NO_TIER, f"It cannot be offloaded: {obstacle}", error=obstacle)
    return None


def _in_progress(ledger: ManagedLedgerInfo.LedgerInfo, work: OffloadActivity, now_ms: int) -> Explanation | None:
    if ledger.ledgerId in work.running:
        return Explanation(ledger.ledgerId, LedgerState.OFFLOADING, "It is being offloaded now.")
    failure = (work.failures or {}).get(ledger.ledgerId)
    if failure is None:
        return None
    return Explanation(
        ledger.ledgerId,
        LedgerState.FAILED,
        f"The offload failed {times(failure.attempts)}: {failure.error}. "
        f"Retried in {span(failure.retry_at_ms - now_ms)} if it is still due.",
        failure.retry_at_ms,
        failure.error,
    )


def _waiting(
    ledger: ManagedLedgerInfo.LedgerInfo, policy: BrokerConfig, kept: Mapping[int, int], now_ms: int
) -> Explanation:
    threshold = policy.managed_ledger_offload_threshold_in_bytes
    at_ms = planner.due_at_ms(policy, ledger)
    reasons = []
    if threshold >= 0:
        reasons.append(
            f"it and the closed ledgers after it have {size(kept[ledger.ledgerId])}, and "
            f"managedLedgerOffloadThresholdInBytes={size(threshold)} keeps that many out of the tier"
        )
    if at_ms is not None:
        reasons.append(
            f"managedLedgerOffloadThresholdInSeconds={policy.managed_ledger_offload_threshold_in_seconds} after its "
            f"close is reached at {at(at_ms)}, in {span(at_ms - now_ms)}"
        )
    if not reasons:
        return Explanation(
            ledger.ledgerId,
            LedgerState.NOT_TRIGGERED,
            "Neither managedLedgerOffloadThresholdInBytes nor managedLedgerOffloadThresholdInSeconds is set: only a "
            "manual offload offloads it.",
        )
    return Explanation(ledger.ledgerId, LedgerState.WAITING, f"It waits: {'; '.join(reasons)}.", at_ms)


_SHORT: Final = 8
"""Characters of a UUID that distinguish the few segments of a topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamView:
    """Snapshot of a topic's stream."""

    policy: BrokerConfig
    uploads: Sequence[UploadRecord]
    """Records of assigned segments, in the order of positions."""
    entries_of: Callable[[int], int | None]
    """Number of entries of a ledger that readers may see; None if it is not known."""
    writing_to: int | None
    """The ledger that is being written."""
    filled_bytes: int | None
    """Bytes from the first entry of the live segment to the last entry of the topic; None: not known."""
    error: str | None
    """Error of the stream; None if it makes progress."""
    retry_ms: int
    """Time of its retry, epoch milliseconds; 0: at the next poll."""
    obstacle: str | None
    """The reason why no tier can be used; None if one can."""
    whole: frozenset[int]
    """Ledgers that are being offloaded whole; the stream waits for them."""
    outage: Outage | None
    """Outage of the tier that the policy names."""
    outage_of: Callable[[str], Outage | None]
    """Outage of any tier."""
    now_ms: int


def view_stream(
    topic: TopicOffload,
    env: OffloadEnvironment,
    *,
    policy: BrokerConfig,
    obstacle: str | None,
    work: OffloadActivity,
) -> StreamView:
    """Take a snapshot of a topic's stream. Waits for metadata and the hot log.

    Args:
        topic: State of the topic in this process.
        env: Services shared by all topics.
        policy: The topic's effective policy.
        obstacle: The reason why no tier can be used; None if one can.
        work: Whole-ledger offload in this process.

    Raises:
        CorruptMetadata: A record cannot be parsed.
        MetadataUnavailable: The store cannot be reached.
    """
    uploads = list_uploads(env.metadata, env.paths, topic.name)
    opened = env.store.opened(topic.name)
    return StreamView(
        policy=policy,
        uploads=uploads,
        entries_of=(lambda _ledger_id: None) if opened is None else opened.layout.entries_of,
        writing_to=None if opened is None else opened.writing_to,
        filled_bytes=None if opened is None else _filled_bytes(opened, uploads, env.store.hot),
        error=str(error) if (error := topic.stream_error) is not None and topic.stream_retry_ms else None,
        retry_ms=topic.stream_retry_ms,
        obstacle=obstacle,
        whole=work.running,
        outage=work.outage,
        outage_of=env.tiers.health.outage,
        now_ms=env.clock.now_ms(),
    )


def _filled_bytes(ledger: OffloadTopic, uploads: Sequence[UploadRecord], hot: HotLedgers) -> int | None:
    if not uploads or uploads[-1].HasField("end"):
        return None
    entries = range_between(ledger.layout, records.position_of(uploads[-1].begin), ledger.layout.last)
    try:
        return sum(
            frame_bytes(entry_range, entry_range.last, partial(frame_end, hot)) for entry_range in entries.ranges
        )
    except (HotLogError, IndexError):
        return None


def explain_streamed(view: StreamView, ledger: ManagedLedgerInfo.LedgerInfo) -> Explanation | None:
    """Explain a ledger that segments hold in part, or will hold; None for other ledgers."""
    streams = view.policy.streaming_offload_enabled
    mine = [upload for upload in view.uploads if _touches(upload, ledger.ledgerId)]
    if ledger.offloadContext.complete or not (streams or mine or ledger.offloadContext.offloadSegment):
        return None
    count = ledger.entries if ledger.HasField("entries") else view.entries_of(ledger.ledgerId)
    if not count:
        if ledger.HasField("entries") and ledger.ledgerId != view.writing_to:
            return None
        return Explanation(ledger.ledgerId, LedgerState.OPEN, "It is being written, and has no entries yet.")
    covered = covered_entries(ledger)
    planned = sum(_planned(upload, ledger.ledgerId, count) for upload in mine)
    rest = max(count - covered - planned, 0)
    cause = _of_segments(view, mine) if mine else _of_none(view, ledger) if rest else _Cause("It is being written.")
    sentence = f"{_shares(count, covered, planned, rest)} {cause.sentence}"
    if ledger.ledgerId != view.writing_to:
        sentence += " Its hot copy is kept until all of it is in committed segments."
    state = cause.state or (LedgerState.IN_SEGMENTS if covered or mine else LedgerState.STREAMING)
    answer = Explanation(ledger.ledgerId, state, sentence, cause.next_ms, cause.error)
    return with_outage(answer, _outage(view, mine) if planned + rest else None, view.now_ms)


def _outage(view: StreamView, mine: Sequence[UploadRecord]) -> Outage | None:
    """Outage of the tiers of a ledger's segments; without segments, of the tier of the policy."""
    found = (view.outage_of(str(location_of_record(upload.location))) for upload in mine)
    return next((outage for outage in found if outage is not None), None) if mine else view.outage


@dataclass(frozen=True, slots=True)
class _Cause:
    """Reason why the rest of a ledger is not in the tier."""

    sentence: str
    state: LedgerState | None = None
    """The state of the ledger, if the cause determines it."""
    next_ms: int | None = None
    error: str | None = None


def _of_segments(view: StreamView, mine: Sequence[UploadRecord]) -> _Cause:
    """Reason why the assigned segments of a ledger are not committed."""
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
    """Reason why the live segment is open."""
    policy = view.policy
    if not policy.streaming_offload_enabled:
        return _Cause(
            f"Segment {_name(live)} is open: {_parts(live)}. streamingOffloadEnabled is not set any more, so that it "
            "ends with the ledger that is being written."
        )
    most_bytes, most_s = policy.max_offload_segment_size_in_bytes, policy.max_offload_segment_rollover_time_in_seconds
    filled = records.planned_frame_bytes(live) if view.filled_bytes is None else view.filled_bytes
    closes_ms = live.first_entry_ms + 1000 * most_s
    return _Cause(
        f"Segment {_name(live)} is open: {_parts(live)}. It closes with {size(most_bytes - filled)} more "
        f"(maxOffloadSegmentSizeInBytes={size(most_bytes)}), or in {span(closes_ms - view.now_ms)} "
        f"(maxOffloadSegmentRolloverTimeInSeconds={most_s}).",
        next_ms=closes_ms,
    )


def _of_none(view: StreamView, ledger: ManagedLedgerInfo.LedgerInfo) -> _Cause:
    """Reason why uncovered entries are in no segment, for a ledger without an assigned segment."""
    if view.obstacle is not None:
        return _Cause(f"It cannot be streamed: {view.obstacle}", LedgerState.NO_TIER, error=view.obstacle)
    if view.error is not None:
        return _failure(view, "No segment could be assigned", view.error)
    if view.whole:
        return _Cause(f"It waits for the offload of whole ledgers that is in progress: {joined(sorted(view.whole))}.")
    if view.uploads:
        return _Cause(f"It follows the segments that are being uploaded, of which there are {len(view.uploads)}.")
    if view.policy.streaming_offload_enabled:
        return _Cause("The next tick begins a segment with it.")
    if ledger.ledgerId == view.writing_to:
        return _Cause(
            "streamingOffloadEnabled is not set any more: the rest goes into a last segment when the ledger is closed."
        )
    return _Cause("streamingOffloadEnabled is not set any more, but a ledger with segments is completed in segments.")


def _failure(view: StreamView, what: str, error: str) -> _Cause:
    again = f"in {span(view.retry_ms - view.now_ms)}" if view.retry_ms else "at the next tick"
    return _Cause(f"{what}: {error}. Retried {again}.", LedgerState.FAILED, view.retry_ms or None, error)


def _touches(upload: UploadRecord, ledger_id: int) -> bool:
    """Whether an assigned segment holds entries of a ledger, or will."""
    last = records.end_of(upload) or records.planned_end(upload)
    return upload.begin.ledger_id <= ledger_id <= max(upload.begin.ledger_id, -1 if last is None else last.ledger_id)


def _planned(upload: UploadRecord, ledger_id: int, count: int) -> int:
    """Number of a ledger's entries that are planned or will be planned for an assigned segment."""
    last = records.end_of(upload) or records.planned_end(upload)
    if last is None:
        return 0
    first = upload.begin.entry_id if upload.begin.ledger_id == ledger_id else 0
    return (last.entry_id + 1 if last.ledger_id == ledger_id else count) - first


def _shares(count: int, covered: int, planned: int, rest: int) -> str:
    named = (
        (covered, "in committed segments"),
        (planned, "in segments that are being uploaded"),
        (rest, "waiting for a segment"),
    )
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


def at(ms: int) -> str:
    """A time in RFC 3339, from epoch milliseconds."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def span(ms: int) -> str:
    """A duration in seconds; negative ones are shown as 0."""
    return f"{max(ms, 0) / 1000:.0f} s"


_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def size(number: int) -> str:
    """A number of bytes with its unit, to three digits; a negative one is shown as 0."""
    value, unit = float(max(number, 0)), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} {_UNITS[unit]}" if not unit or value >= 100 else f"{value:.3g} {_UNITS[unit]}"


def times(count: int) -> str:
    """A count of events: once, or so many times."""
    return "once" if count == 1 else f"{count} times"


def joined(words: Sequence[object]) -> str:
    """An enumeration in prose."""
    *first, last = map(str, words)
    return f"{', '.join(first)} and {last}" if first else last
