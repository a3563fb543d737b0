"""Scan of a topic to rows: sequential for a few rows, on all cores for many, in the order of the topic either way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from afterglow.errors import CorruptEntry
from afterglow.read.neighbours import ViewNeighbours
from afterglow.read.parallel import available_cores, run_in_order
from afterglow.read.transactions import Transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    import pyarrow as pa

    from afterglow.config.choices import ReadPriority
    from afterglow.read.messages import EntryBatches, MessageBatches, Neighbours
    from afterglow.read.retained import OnMissing
    from afterglow.read.scan_range import ScanRange
    from afterglow.read.splits import PlannedRange
    from afterglow.read.typed import TypedBatches
    from afterglow.source.partition import PinnedPartition, SourcePartition

    Report: TypeAlias = Callable[[CorruptEntry], None]
    """Called with each message or entry that is skipped."""
    Decoder: TypeAlias = MessageBatches | TypedBatches | EntryBatches
    """Decodes runs of entries to rows."""
    MakeDecoder: TypeAlias = Callable[[SourcePartition, "SharedReadState", Report], Decoder]

RANGE_BYTES: Final = 8 << 20
"""Bytes of blocks per task of a parallel scan: one request, some milliseconds of decoding."""
_EXTRA_RANGES: Final = 1
"""Decoded ranges that may wait for the consumer beside those that threads work on."""


@dataclass(frozen=True, slots=True)
class SharedReadState:
    """State that all decoders of one partition share."""

    neighbours: Neighbours
    transactions: Transactions

    @classmethod
    def of(cls, pinned: PinnedPartition, priority: ReadPriority | None) -> SharedReadState:
        """New state for a pinned partition."""
        neighbours = ViewNeighbours(pinned.reader, priority)
        return cls(neighbours, Transactions(neighbours))


@dataclass(frozen=True, slots=True)
class RowScan:
    """Scan of the partitions of a topic."""

    partitions: Sequence[SourcePartition]
    make_decoder: MakeDecoder
    scan_range: ScanRange
    priority: ReadPriority | None
    report: Report
    """Called in the order of the rows."""
    missing: OnMissing
    """Called for missing positions of the range, before the rows of their partition."""

    def sequential(self) -> Generator[pa.RecordBatch]:
        """The rows, read a few at a time in the thread of the consumer."""
        for partition in self.partitions:
            pinned = partition.pin_for(self.scan_range, self.missing)
            decoder = self.make_decoder(partition, SharedReadState.of(pinned, self.priority), self.report)
            for served in partition.runs(self.scan_range, self.priority, pinned, scan=False):
                yield from decoder.of(served)
            decoder.end()

    def parallel(self) -> Generator[pa.RecordBatch]:
        """The rows, prefetched and decoded on all cores."""
        # More threads than cores: some decode while others wait for a store.
        threads = available_cores() + max((partition.read_threads() for partition in self.partitions), default=0)
        for found in run_in_order(self._tasks(), self._decode, threads=threads, ahead=threads + _EXTRA_RANGES):
            if isinstance(found, CorruptEntry):
                self.report(found)
            else:
                yield found

    def _tasks(self) -> Iterator[_Task]:
        """One task per range of every partition; a partition is pinned when the scan reaches it."""
        for partition in self.partitions:
            pinned = partition.pin_for(self.scan_range, self.missing)
            shared = SharedReadState.of(pinned, self.priority)
            last: PlannedRange | None = None
            for each in partition.ranges(self.scan_range, self.priority, RANGE_BYTES, pinned):
                if last is not None:
                    yield _Task(partition, pinned, shared, last, is_last=False)
                last = each
            if last is not None:
                yield _Task(partition, pinned, shared, last, is_last=True)

    def _decode(self, task: _Task) -> Iterator[pa.RecordBatch | CorruptEntry]:
        """Batches, each after the errors that were reported while it was decoded."""
        errors: list[CorruptEntry] = []
        decoder = self.make_decoder(task.partition, task.shared, errors.append)
        for served in task.pinned.reader.read(task.planned.start, task.planned.end, priority=self.priority):
            for batch in decoder.of(served):
                yield from errors
                errors.clear()
                yield batch
        if task.is_last:
            decoder.end()
        yield from errors


@dataclass(frozen=True, slots=True)
class _Task:
    """A range for one thread."""

    partition: SourcePartition
    pinned: PinnedPartition
    shared: SharedReadState
    planned: PlannedRange
    is_last: bool
    """Whether it is the last range of its partition."""
