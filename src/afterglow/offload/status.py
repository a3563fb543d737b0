"""Offload status of a topic: its manual offload, at most one at a time, and statistics."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from afterglow.errors import AccessDenied, BucketMissing, ConfigError, HotLogError, InvalidPosition, NotSupported
from afterglow.format.frames import FRAME_BYTES
from afterglow.format.position import EARLIEST, LATEST, Position
from afterglow.ledger.ledger_list import covered_entries, first_unoffloaded, is_fully_offloaded
from afterglow.offload.environment import frame_end

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from threading import RLock

    from afterglow.errors import AfterglowError
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.ledger.layout import Layout
    from afterglow.offload.segments.topic_stream import TopicStream
    from afterglow.offload.task import RouteBytes
    from afterglow.offload.topic_offload import TopicOffload
    from afterglow.offload.topics import HotLedgers, OffloadTopic
    from afterglow.read.counters import LatencySummary


class OffloadState(StrEnum):
    """State of a manual offload, in Pulsar's words."""

    NOT_RUN = "NOT_RUN"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"


@dataclass(frozen=True, slots=True)
class OffloadStatus:
    """Status of the last manual offload in this process."""

    state: OffloadState = OffloadState.NOT_RUN
    last_error: str = ""
    """Its first error; empty if there was none."""
    first_unoffloaded: Position = EARLIEST
    """The first position that is not in the tier, once it has ended."""


@dataclass(slots=True)
class ManualOffload:
    """Running manual offload of whole ledgers. Each gets one attempt; the first error is reported at the end."""

    before: int
    """Ledgers with a smaller id are to be offloaded."""
    left: set[int]
    """Ledgers that have not ended."""
    untried: set[int] = field(init=False)
    """Ledgers that wait for their attempt, also if earlier attempts failed."""
    error: AfterglowError | None = None
    """The first error."""

    def __post_init__(self) -> None:
        self.untried = set(self.left)

    def tried(self, ledger_ids: Iterable[int]) -> None:
        """Count the attempt of each of these ledgers as begun."""
        self.untried.difference_update(ledger_ids)

    def keep(self, ledger_ids: Collection[int]) -> None:
        """Drop all other ledgers: they are in the tier, or not in the ledger list."""
        self.left.intersection_update(ledger_ids)

    def ended(self, ledger_id: int, error: AfterglowError | None) -> None:
        """Record the result of an attempt. The failure of an earlier attempt does not count: another one follows."""
        if ledger_id in self.left and (error is None or ledger_id not in self.untried):
            self.left.discard(ledger_id)
            self.error = self.error or error

    def fail(self, error: AfterglowError) -> None:
        """End it with an error."""
        self.left.clear()
        self.error = self.error or error

    def status(self, info: ManagedLedgerInfo | None) -> OffloadStatus:
        """Its status after it has ended, given the current ledger list; None if that cannot be read."""
        first = EARLIEST if info is None else first_unoffloaded(info)
        if self.error is not None:
            return OffloadStatus(OffloadState.ERROR, str(self.error), first)
        return OffloadStatus(OffloadState.SUCCESS, "", first)


class ManualSegments:
    """Manual offload of a topic that streams: commits all entries up to a target. Thread-safe.

    Args:
        name: The managed-ledger name.
        lock: Guards it.
    """

    def __init__(self, name: str, lock: RLock) -> None:
        self._name = name
        self._lock = lock
        self._status: OffloadStatus | None = None
        self.target: Position | None = None
        """The last entry to be committed; None if no manual offload is running."""

    @property
    def status(self) -> OffloadStatus | None:
        """Status of the last manual offload; None if there was none."""
        with self._lock:
            return OffloadStatus(OffloadState.RUNNING) if self.target is not None else self._status

    def begin(self, target: Position | None, info: ManagedLedgerInfo) -> bool:
        """Begin a manual offload, unless one is running; returns whether it was begun.

        Args:
            target: The last entry to be committed; None: no such entry, so that the offload has succeeded already.
            info: The topic's ledger list.
        """
        with self._lock:
            if self.target is not None:
                return False
            if target is None:
                self._status = OffloadStatus(OffloadState.SUCCESS, "", first_unoffloaded(info))
            self.target = target
            return True

    def fail(self, error: AfterglowError) -> None:
        """End a running manual offload with an error."""
        with self._lock:
            if self.target is not None:
                self.target = None
                self._status = OffloadStatus(OffloadState.ERROR, str(error))

    def fail_disabled(self) -> None:
        """End a running manual offload because the topic does not stream any more."""
        self.fail(NotSupported(f"{self._name} does not stream any more: streamingOffloadEnabled was switched off"))

    def settle(self, stream: TopicStream, target: Position | None, ledger: OffloadTopic) -> None:
        """End a manual offload whose target the stream had when it last advanced: earlier errors do not count."""
        if target is None:
            return
        if stream.error is not None and _is_permanent(stream.error, stream.failures):
            self.fail(stream.error)
        elif stream.is_out_of_reach(target):
            self.fail_disabled()
        elif stream.is_committed_to(target):
            with self._lock:
                self.target = None
                self._status = OffloadStatus(OffloadState.SUCCESS, "", first_unoffloaded(ledger.info))


_ATTEMPTS: Final = 3
"""Denials in a row that count as permanent: a store may deny one or two requests temporarily."""


def _is_permanent(error: AfterglowError, failures: int) -> bool:
    """Whether an operator must fix something before the stream can succeed, so that no caller should wait for it."""
    refused = isinstance(error, BucketMissing | AccessDenied) and failures >= _ATTEMPTS
    return refused or isinstance(error, ConfigError | NotSupported)


def check_position(topic: str, ids: Collection[int], layout: Layout, position: Position) -> None:
    """Check the position up to which a topic is to be offloaded.

    Valid are any entry, the position after the last entry of any ledger, and ``latest``.

    Args:
        topic: Its name, for the error message.
        ids: Its ledgers.
        layout: Positions of its entries.
        position: The entries before it are to be offloaded.

    Raises:
        InvalidPosition: The topic has no such ledger, or the ledger no such entry.
    """
    if position == LATEST:
        return
    entries = layout.entries_of(position.ledger_id) or 0
    if position.ledger_id not in ids:
        reason = f"the topic has no ledger {position.ledger_id}"
    elif not 0 <= position.entry_id <= entries:
        reason = f"ledger {position.ledger_id} has {entries} {'entry' if entries == 1 else 'entries'}"
    else:
        return
    valid = "latest"
    if ids:
        end = layout.last.next() if layout.total_entries else Position(max(ids), 0)
        valid = f"a position from {Position(min(ids), 0)} to {end}, or latest"
    raise InvalidPosition(f"cannot offload {topic} up to {position}: {reason}; give {valid}")


def last_entry_before(layout: Layout, position: Position) -> Position | None:
    """The last entry before a position; None if none exists."""
    entries = layout.rank(position.previous())
    return layout.at_rank(entries - 1) if entries else None


@dataclass(frozen=True, slots=True)
class OffloadStatistics:
    """Offload statistics of one topic; counts and times are those of this process."""

    offloaded_bytes: int
    """Bytes of entries in the tier: of whole ledgers, and of entries in committed segments."""
    last_ledger_id: int
    """The newest ledger that is completely in the tier; 0: none."""
    last_success_ms: int
    """Time of the last successful offload, epoch milliseconds; 0: none."""
    last_failure_ms: int
    """Time of the last failed offload; 0: none."""
    running: tuple[int, ...]
    """Ledgers that are being offloaded."""
    stalled: tuple[int, ...]
    """Running ledgers that have made no progress for ``offloadStallWarningSeconds``."""
    read_bytes: RouteBytes
    """Bytes that tasks have read and uploaded."""
    failed_tasks: int
    failed_writes: int
    """Tasks that failed with an error of the store."""
    read_latency: LatencySummary
    """Times that tasks took to read, check and measure a part from the hot log."""
    deletions_done: int
    """Deleted objects."""
    deletions_failed: int
    """Failed attempts to delete an object; each is retried."""
    failed_segments: int
    """Assigned segments whose last attempt failed."""
    failing: bool
    """Whether an offload failed and has not succeeded since."""


def statistics_of(topic: TopicOffload, info: ManagedLedgerInfo, hot: HotLedgers) -> OffloadStatistics:
    """The statistics of a topic, given its ledger list and the hot log. May wait for a disk."""
    ledgers = [ledger for ledger in info.ledgerInfo if is_fully_offloaded(ledger)]
    partly = [
        ledger for ledger in info.ledgerInfo if ledger.offloadContext.offloadSegment and not is_fully_offloaded(ledger)
    ]
    attempts = topic.ledgers.attempts
    return OffloadStatistics(
        offloaded_bytes=sum(ledger.size for ledger in ledgers) + sum(_covered_bytes(ledger, hot) for ledger in partly),
        last_ledger_id=max((ledger.ledgerId for ledger in ledgers), default=0),
        last_success_ms=topic.last_success_ms,
        last_failure_ms=topic.last_failure_ms,
        running=tuple(sorted(attempt.ledger_id for attempt in attempts)),
        stalled=tuple(sorted(attempt.ledger_id for attempt in attempts if attempt.stalled)),
        read_bytes=topic.read_bytes,
        failed_tasks=topic.failed_tasks,
        failed_writes=topic.failed_writes,
        read_latency=topic.read_latencies.summary(),
        deletions_done=topic.deletions_done,
        deletions_failed=topic.deletions_failed,
        failed_segments=sum(1 for upload in topic.uploads if upload.record.last_error),
        failing=topic.is_failing,
    )


def _covered_bytes(ledger: ManagedLedgerInfo.LedgerInfo, hot: HotLedgers) -> int:
    """Bytes of the entries of a ledger that are in committed segments; 0 if the hot log cannot be read."""
    last = covered_entries(ledger) - 1
    if last < 0:
        return 0
    try:
        return frame_end(hot, ledger.ledgerId, last) - FRAME_BYTES * (last + 1)
    except (HotLogError, IndexError):
        return 0
