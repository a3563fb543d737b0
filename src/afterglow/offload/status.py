"""Offload status of a topic: manual offloads, one at a time for each topic, and statistics."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from afterglow.errors import AccessDenied, BucketMissing, ConfigError, HotLogError, InvalidPosition, NotSupported
from afterglow.format.frames import FRAME_BYTES
from afterglow.format.position import EARLIEST, LATEST, Position
from afterglow.ledger.ledger_list import covered_entries, first_unoffloaded, is_fully_offloaded

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from threading import RLock

    from afterglow.errors import AfterglowError
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.hot.log import HotLog
    from afterglow.ledger.layout import Layout
    from afterglow.ledger.managed_ledger import ManagedLedger
    from afterglow.offload.segments.stream import TopicStream
    from afterglow.offload.task import RouteBytes
    from afterglow.offload.topic_offload import TopicOffload
    from afterglow.read.counters import LatencySummary


class OffloadState(StrEnum):
    """State of a manual offload, in Pulsar's words."""

    NOT_RUN = "NOT_RUN"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"


@dataclass(frozen=True, slots=True)
class OffloadStatus:
    """How the last manual offload went, in this process."""

    state: OffloadState = OffloadState.NOT_RUN
    last_error: str = ""
    """The first error of it; empty where there was none."""
    first_unoffloaded: Position = EARLIEST
    """After it ended: the first position that is not in the tier."""


@dataclass(slots=True)
class ManualOffload:
    """Running manual offload of whole ledgers. Each gets one attempt; the first error is reported at the end."""

    before: int
    """Ledgers with a smaller id are wanted."""
    left: set[int]
    """Ledgers that have not ended."""
    untried: set[int] = field(init=False)
    """Those of them that wait for their attempt, whatever failed before."""
    error: AfterglowError | None = None
    """The first."""

    def __post_init__(self) -> None:
        self.untried = set(self.left)

    def tried(self, ledger_ids: Iterable[int]) -> None:
        """Ledgers have got their attempt."""
        self.untried.difference_update(ledger_ids)

    def keep(self, ledger_ids: Collection[int]) -> None:
        """Ask only for these any more: the others are in the tier, or have left the list."""
        self.left.intersection_update(ledger_ids)

    def ended(self, ledger_id: int, error: AfterglowError | None) -> None:
        """Take note of how a ledger went. A failure of an attempt from before does not count: another follows."""
        if ledger_id in self.left and (error is None or ledger_id not in self.untried):
            self.left.discard(ledger_id)
            self.error = self.error or error

    def fail(self, error: AfterglowError) -> None:
        """End it: nothing more can be done."""
        self.left.clear()
        self.error = self.error or error

    def status(self, info: ManagedLedgerInfo | None) -> OffloadStatus:
        """How it went, given the list as it is now where it can be had."""
        first = EARLIEST if info is None else first_unoffloaded(info)
        if self.error is not None:
            return OffloadStatus(OffloadState.ERROR, str(self.error), first)
        return OffloadStatus(OffloadState.SUCCESS, "", first)


class ManualSegments:
    """Manual offload of a topic that streams: all entries up to a target are to be committed. Thread-safe.

    Args:
        name: The managed-ledger name.
        lock: Guards it.
    """

    def __init__(self, name: str, lock: RLock) -> None:
        self._name = name
        self._lock = lock
        self._status: OffloadStatus | None = None
        self.target: Position | None = None
        """The last entry of a running one; None where none is running."""

    @property
    def status(self) -> OffloadStatus | None:
        """How the last one went, or that one is running; None where there was none."""
        with self._lock:
            return OffloadStatus(OffloadState.RUNNING) if self.target is not None else self._status

    def begin(self, target: Position | None, info: ManagedLedgerInfo) -> bool:
        """Begin one, unless one is running; returns whether none was.

        Args:
            target: The last entry to be committed; None: there is none, which has succeeded already.
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
        """End a running one with an error."""
        with self._lock:
            if self.target is not None:
                self.target = None
                self._status = OffloadStatus(OffloadState.ERROR, str(error))

    def fail_switched_off(self) -> None:
        """End a running one because the topic does not stream any more."""
        self.fail(NotSupported(f"{self._name} does not stream any more: streamingOffloadEnabled was switched off"))

    def settle(self, stream: TopicStream, target: Position | None, ledger: ManagedLedger) -> None:
        """End a running one that the stream knew of when it last advanced: earlier errors say nothing of it."""
        if target is None:
            return
        if stream.error is not None and _is_lasting(stream.error, stream.failures):
            self.fail(stream.error)
        elif stream.leaves_out(target):
            self.fail_switched_off()
        elif stream.committed_to(target):
            with self._lock:
                self.target = None
                self._status = OffloadStatus(OffloadState.SUCCESS, "", first_unoffloaded(ledger.info))


_ATTEMPTS: Final = 3
"""A store may refuse once or twice in passing."""


def _is_lasting(error: AfterglowError, failures: int) -> bool:
    """Whether an operator must fix something before a stream can go on, so that no caller should wait for it."""
    refused = isinstance(error, BucketMissing | AccessDenied) and failures >= _ATTEMPTS
    return refused or isinstance(error, ConfigError | NotSupported)


def check_position(topic: str, ids: Collection[int], layout: Layout, position: Position) -> None:
    """Refuse what cannot be a position of a topic.

    An offload may be asked for up to any entry, right behind the last entry of any ledger, and up to ``latest``.

    Args:
        topic: Its name, for the message.
        ids: Its ledgers.
        layout: Where its entries are.
        position: What lies before it is to be offloaded.

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
    """The last entry that stands before a position; None where none does."""
    entries = layout.rank(position.previous())
    return layout.at_rank(entries - 1) if entries else None


@dataclass(frozen=True, slots=True)
class OffloadStatistics:
    """What is in the tier of one topic, and what this process is doing about the rest."""

    offloaded_bytes: int
    """Of entries in the tier: of whole ledgers, and of others as far as committed segments reach."""
    last_ledger_id: int
    """The newest that is in the tier as a whole; 0: none is."""
    last_success_ms: int
    """When an offload last succeeded in this process, epoch milliseconds; 0: none has."""
    last_failure_ms: int
    """When one last failed; 0: none has."""
    running: tuple[int, ...]
    """Ledgers that are being offloaded."""
    stalled: tuple[int, ...]
    """Those of them that have made no progress for ``offloadStallWarningSeconds``."""
    read_bytes: RouteBytes
    """What tasks have read and uploaded in this process."""
    failed_tasks: int
    """Tries of tasks that failed in this process."""
    failed_writes: int
    """Those of them that the store has failed."""
    read_latency: LatencySummary
    """What tasks took to read a part from the hot log, and to check and measure it."""
    deletions_done: int
    """Objects that this process has deleted."""
    deletions_failed: int
    """Tries of that which failed; each is repeated."""
    failed_segments: int
    """Segments on their way whose last attempt failed, as far as this process knows."""
    failing: bool
    """Whether an offload failed in this process and has not succeeded since."""


def statistics_of(topic: TopicOffload, info: ManagedLedgerInfo, hot: HotLog) -> OffloadStatistics:
    """The numbers of a topic, given its list and where its hot ledgers are. May wait for a disk."""
    rows = [row for row in info.ledgerInfo if is_fully_offloaded(row)]
    partly = [row for row in info.ledgerInfo if row.offloadContext.offloadSegment and not is_fully_offloaded(row)]
    attempts = topic.window.attempts
    return OffloadStatistics(
        offloaded_bytes=sum(row.size for row in rows) + sum(_covered_bytes(row, hot) for row in partly),
        last_ledger_id=max((row.ledgerId for row in rows), default=0),
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
        failing=topic.failing,
    )


def _covered_bytes(row: ManagedLedgerInfo.LedgerInfo, hot: HotLog) -> int:
    """Bytes of the entries of a ledger that committed segments hold; 0 where the hot log cannot be read."""
    last = covered_entries(row) - 1
    if last < 0:
        return 0
    try:
        return int(hot.open(row.ledgerId).offsets(last, last)[1]) - FRAME_BYTES * (last + 1)
    except (HotLogError, IndexError):
        return 0
