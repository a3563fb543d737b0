"""The rows of a topic: few of them by one thread, many on all cores, in order either way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from afterglow.errors import CorruptEntry
from afterglow.read.neighbours import ViewNeighbours
from afterglow.read.parallel import cores, in_order
from afterglow.read.transactions import Transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

    from afterglow.config.choices import ReadPriority
    from afterglow.read.messages import EntryBatches, MessageBatches, Neighbours
    from afterglow.read.retained import OnMissing
    from afterglow.read.splits import PlannedRange
    from afterglow.read.typed import TypedBatches
    from afterglow.read.window import Window
    from afterglow.source.partition import Part, Pinned

    Told: TypeAlias = CorruptEntry
    """What is left out, and why."""
    Report: TypeAlias = Callable[[Told], None]
    Make: TypeAlias = Callable[[Part, "Beside", Report], MessageBatches | TypedBatches | EntryBatches]
    """What turns runs of a part into rows; the report is told what is left out."""

RANGE_BYTES: Final = 8 << 20
"""Of blocks that one thread takes at a time: one request, some milliseconds of decoding."""
_AHEAD: Final = 1
"""Ranges beside those at work that may wait, decoded, for whoever takes the rows."""


@dataclass(frozen=True, slots=True)
class Beside:
    """What all who read one part share of it."""

    around: Neighbours
    transactions: Transactions

    @classmethod
    def of(cls, pinned: Pinned, priority: ReadPriority | None) -> Beside:
        """What stands in a pinned view."""
        around = ViewNeighbours(pinned.reader, priority)
        return cls(around, Transactions(around))


@dataclass(frozen=True, slots=True)
class Rows:
    """What is wanted of some parts of a topic."""

    parts: Sequence[Part]
    make: Make
    window: Window
    priority: ReadPriority | None
    report: Report
    """Told, in the order of the rows, of what is left out."""
    missing: OnMissing
    """Told of positions of the window that are not there, before the rows of their part."""

    def by_one(self) -> Iterator[pa.RecordBatch]:
        """The rows, read a few at a time by whoever takes them."""
        for part in self.parts:
            pinned = part.pin_for(self.window, self.missing)
            rows = self.make(part, Beside.of(pinned, self.priority), self.report)
            for served in part.runs(self.window, self.priority, pinned, scan=False):
                yield from rows.of(served)
            rows.end()

    def on_all_cores(self) -> Iterator[pa.RecordBatch]:
        """The rows, read and decoded ahead of whoever takes them."""
        # While some wait for a store, others decode.
        threads = cores() + max((part.read_threads() for part in self.parts), default=0)
        for found in in_order(self._tasks(), self._rows, threads=threads, ahead=threads + _AHEAD):
            if isinstance(found, CorruptEntry):
                self.report(found)
            else:
                yield found

    def _tasks(self) -> Iterator[_Task]:
        """One task per range of every part; the view of a part is pinned when its turn comes."""
        for part in self.parts:
            pinned = part.pin_for(self.window, self.missing)
            beside = Beside.of(pinned, self.priority)
            last: PlannedRange | None = None
            for each in part.ranges(self.window, self.priority, RANGE_BYTES, pinned):
                if last is not None:
                    yield _Task(part, pinned, beside, last, ends=False)
                last = each
            if last is not None:
                yield _Task(part, pinned, beside, last, ends=True)

    def _rows(self, task: _Task) -> Iterable[pa.RecordBatch | Told]:
        told: list[Told] = []
        reader = task.pinned.reader
        rows = self.make(task.part, task.beside, told.append)
        for served in reader.read(task.wanted.start, task.wanted.end, priority=self.priority):
            for batch in rows.of(served):
                yield from _taken(told)
                yield batch
        if task.ends:
            rows.end()
        yield from _taken(told)


@dataclass(frozen=True, slots=True)
class _Task:
    """A range for one thread."""

    part: Part
    pinned: Pinned
    beside: Beside
    wanted: PlannedRange
    ends: bool
    """Whether it is the last of its part."""


def _taken(told: list[Told]) -> Iterator[Told]:
    """What was told, which is forgotten here."""
    yield from told
    told.clear()
