"""Arrow batches of messages, or of raw entries, from runs of entries, with the columns of the public interface.

No Python object per message: whole columns are decoded, filtered and passed on. Markers give no row.

If the entries before and after the runs can be read (:class:`Neighbours`), a chunked message is one row at the position
of its last chunk, and messages of transactions that were not committed are skipped. Chunks and transactions of all runs
are tracked, but only rows of the scan range are assembled; a batch ends when its assembled values exceed
``BATCH_BYTES``. Runs without chunks and transactions take the direct path.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from afterglow.errors import CorruptEntry, IncompleteMessage
from afterglow.format.columns import BATCH_BYTES, decode_messages, entry_column, long_array
from afterglow.format.frames import FRAME_BYTES
from afterglow.format.position import LATEST
from afterglow.format.schema import ENTRIES, MESSAGES, TIME, choose
from afterglow.read.chunks import ChunkedMessages
from afterglow.read.transactions import Transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from afterglow.format.columns import Messages
    from afterglow.format.compression import BytesLike
    from afterglow.format.position import Position
    from afterglow.read.chunks import CompleteMessage
    from afterglow.read.copies import FrameRun, ServedRun
    from afterglow.read.scan_range import ScanRange


_log = logging.getLogger(__name__)

_ADDED_COLUMNS = ("topic", "tier")
"""Columns that are not in the stored bytes."""
_TIME_COLUMNS = ("broker_time", "publish_time")
_POSITION_COLUMNS = ("entry_id", "batch_index")
_SHARED_ROWS = 16_384
"""Longest cached column of one text, about a megabyte; 4 MiB of usual messages have fewer rows."""


class Neighbours(Protocol):
    """The entries of one pinned topic before and after those that are read.

    They are needed only if a chunked message began before the first run, or a transaction ended after the last. An
    implementation that cannot read up to the end of the topic raises ``OutOfReach``: an end without an error is the end
    of the topic.
    """

    def before(self, position: Position) -> Iterator[ServedRun]:
        """The entries before a position, in runs: the nearest run first, the entries of a run ascending.

        Raises:
            AfterglowError: They cannot be read; the runs before are valid.
        """
        ...

    def after(self, position: Position) -> Iterator[ServedRun]:
        """The entries from a position on, in order.

        Raises:
            AfterglowError: They cannot be read; the runs before are valid.
        """
        ...


def log_skipped(error: CorruptEntry) -> None:
    """Log an entry or a message that was skipped."""
    _log.warning("skipped: %s", error)


class MessageBatches:
    """Decodes the runs of one topic, in order, to messages. Not thread-safe.

    Args:
        topic: Its full name, for the column.
        scan_range: The messages to return.
        columns: Names of columns in the wanted order; None: all columns.
        on_corrupt: Called with each corrupt entry, which is skipped; None: a corrupt entry raises.
        neighbours: The entries around the runs. None: chunks are rows of their own, and transactions are ignored.
        on_incomplete: Called with each message that lacks a chunk, which is skipped.
        transactions: Outcomes shared by all readers of the topic; None: not shared.
        batch_bytes: Stored bytes of a batch, unless a single entry is larger.

    Raises:
        ConfigError: A column is unknown or named twice.
    """

    def __init__(
        self,
        topic: str,
        scan_range: ScanRange,
        columns: Iterable[str] | None = None,
        on_corrupt: Callable[[CorruptEntry], None] | None = None,
        neighbours: Neighbours | None = None,
        *,
        on_incomplete: Callable[[IncompleteMessage], None] = log_skipped,
        transactions: Transactions | None = None,
        batch_bytes: int = BATCH_BYTES,
    ) -> None:
        self._batch_bytes = batch_bytes
        self.schema = choose(MESSAGES, columns)
        self._topic = topic
        self._scan_range = scan_range
        self._on_corrupt = on_corrupt
        self._own = [name for name in self.schema.names if name not in _ADDED_COLUMNS]
        self._assembler = None
        if neighbours is not None:
            values = "value" in self._own
            self._assembler = MessageAssembler(
                neighbours, on_corrupt=on_corrupt, on_incomplete=on_incomplete, values=values, transactions=transactions
            )

    def of(self, served: ServedRun) -> Iterator[pa.RecordBatch]:
        """The messages of a run, in order; the checksum of each entry is verified.

        Raises:
            CorruptEntry: An entry is corrupt, and there is no ``on_corrupt``.
            AfterglowError: An entry around the run is needed and cannot be read.
        """
        run = served.run
        needed = [*self._own]
        if self._scan_range.has_times:
            needed += [name for name in _TIME_COLUMNS if name not in needed]
        if self._is_at_edge(run):
            needed += [name for name in _POSITION_COLUMNS if name not in needed]
        marked = None
        if self._assembler is not None:
            self._assembler.enter(run)
            marked = needed if "entry_id" in needed else [*needed, "entry_id"]
        for messages in decode_messages(
            run.data,
            run.frames,
            run.ledger_id,
            columns=needed,
            check=True,
            strict=self._on_corrupt is None,
            batch_bytes=self._batch_bytes,
            marked=marked,
            skip_empty=run.markers_stripped,
        ):
            if self._on_corrupt is not None:
                for bad in messages.unreadable:
                    self._on_corrupt(CorruptEntry(f"entry {run.ledger_id}:{bad.entry_id}: {bad.reason}"))
            batch = messages.batch
            wanted = self._row_filter(batch, run)
            tier = str(served.tier)
            if self._assembler is not None and messages.marks is not None:
                yield from (self._select(assembled, tier) for assembled in self._assembler.of(run, messages, wanted))
                continue
            if wanted is not None:
                batch = batch.filter(wanted)
            if batch.num_rows:
                yield self._select(batch, tier)

    def end(self) -> None:
        """Report messages whose last chunk is missing. May be called after the last run of the topic."""
        if self._assembler is not None and self._scan_range.end == LATEST and not self._scan_range.has_times:
            self._assembler.end()

    def _select(self, batch: pa.RecordBatch, tier: str) -> pa.RecordBatch:
        rows = batch.num_rows
        added = {"topic": self._topic, "tier": tier}
        columns = {
            name: _repeat(added[name], rows) if name in added else batch.column(name) for name in self.schema.names
        }
        return _batch(columns, rows)

    def _is_at_edge(self, run: FrameRun) -> bool:
        """Whether a run has an entry of which only some messages are in the range."""
        scan_range = self._scan_range
        edges = ((scan_range.start, scan_range.start_batch), (scan_range.end, scan_range.end_batch))
        return any(
            batch
            and run.ledger_id == at.ledger_id
            and run.frames.first_entry_id <= at.entry_id < run.frames.end_entry_id
            for at, batch in edges
        )

    def _row_filter(self, batch: pa.RecordBatch, run: FrameRun) -> Any:
        """Mask of the rows that are in the range; None: all."""
        scan_range = self._scan_range
        conditions = []
        if scan_range.has_times:
            time = pc.coalesce(*(batch.column(name) for name in _TIME_COLUMNS))
            if scan_range.since_ms is not None:
                conditions.append(pc.greater_equal(time, _timestamp(scan_range.since_ms)))
            if scan_range.until_ms is not None:
                conditions.append(pc.less(time, _timestamp(scan_range.until_ms)))
        if self._is_at_edge(run):
            entry, number = (batch.column(name) for name in _POSITION_COLUMNS)
            if scan_range.start_batch and run.ledger_id == scan_range.start.ledger_id:
                first = pc.equal(entry, scan_range.start.entry_id)
                conditions.append(pc.invert(pc.and_(first, pc.less(number, scan_range.start_batch))))
            if scan_range.end_batch and run.ledger_id == scan_range.end.ledger_id:
                last = pc.equal(entry, scan_range.end.entry_id)
                conditions.append(pc.invert(pc.and_(last, pc.greater_equal(number, scan_range.end_batch))))
        wanted = None
        for condition in conditions:
            wanted = condition if wanted is None else pc.and_(wanted, condition)
        return wanted


class EntryBatches:
    """Raw entries of the runs of one topic.

    Args:
        topic: Its full name, for the column.
        scan_range: The range; an entry is in it if one of its messages is.
        columns: Names of columns in the wanted order; None: all columns.

    Raises:
        ConfigError: A column is unknown or named twice.
    """

    def __init__(self, topic: str, scan_range: ScanRange, columns: Iterable[str] | None = None) -> None:
        self.schema = choose(ENTRIES, columns)
        self._times = MessageBatches(topic, scan_range, ("entry_id",), lambda _: None) if scan_range.has_times else None
        self._topic = topic

    def of(self, served: ServedRun) -> Iterator[pa.RecordBatch]:
        """The entries of a run, in order."""
        frames = served.run.frames
        low, count = 0, len(frames)
        matching = None if self._times is None else _concat_ids(self._times.of(served))
        while low < count:
            high = int(np.searchsorted(frames.offsets, frames.offsets[low] + BATCH_BYTES, side="right")) - 1
            high = min(max(high, low + 1), count)
            batch = self._batch(served, low, high)
            if matching is not None:
                ids = long_array(np.arange(frames.first_entry_id + low, frames.first_entry_id + high))
                batch = batch.filter(pc.is_in(ids, value_set=matching))
            elif served.run.markers_stripped:  # matching entries are messages, which are not empty
                batch = batch.filter(pa.array(frames.ends[low:high] - frames.offsets[low:high] > FRAME_BYTES))
            if batch.num_rows:
                yield batch
            low = high

    def end(self) -> None:
        """Do nothing: entries are always complete."""

    def _batch(self, served: ServedRun, low: int, high: int) -> pa.RecordBatch:
        run = served.run
        first = run.frames.first_entry_id
        made: dict[str, Callable[[], pa.Array]] = {
            "topic": lambda: _repeat(self._topic, high - low),
            "ledger_id": lambda: long_array(np.full(high - low, run.ledger_id, np.int64)),
            "entry_id": lambda: long_array(np.arange(first + low, first + high)),
            "data": lambda: entry_column(run.data, run.frames, low, high),
            "tier": lambda: _repeat(str(served.tier), high - low),
        }
        return _batch({name: made[name]() for name in self.schema.names}, high - low)


def _concat_ids(batches: Iterable[pa.RecordBatch]) -> pa.Array:
    """The only column of batches, concatenated."""
    return pa.concat_arrays([pa.array([], pa.int64()), *(batch.column(0) for batch in batches)])


def _repeat(text: str, rows: int) -> pa.Array:
    """A column of one text. All batches of a topic have the same text, so that the memory is shared."""
    capacity = 1 << max(rows - 1, 0).bit_length()
    return (_shared(text, capacity) if capacity <= _SHARED_ROWS else pa.repeat(pa.scalar(text), rows)).slice(0, rows)


@lru_cache(maxsize=32)
def _shared(text: str, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(text), rows)


def _batch(columns: dict[str, pa.Array], rows: int) -> pa.RecordBatch:
    if not columns:  # only a struct array can carry the row count of a batch without columns
        return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), rows, [None]))
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _timestamp(time_ms: int) -> pa.Scalar:
    return pa.scalar(time_ms * 1000, pa.int64()).cast(TIME)


class MessageAssembler:
    """Assembles chunked messages and filters transactions of one topic that is read forwards. Not thread-safe.

    Args:
        neighbours: The entries around the runs.
        on_corrupt: Called with each message whose payload cannot be decompressed; None: such a message raises.
        on_incomplete: Called with each message that lacks a chunk.
        values: Whether the column ``value`` is read.
        transactions: Outcomes shared by all readers of the topic; None: not shared.
    """

    def __init__(
        self,
        neighbours: Neighbours,
        *,
        on_corrupt: Callable[[CorruptEntry], None] | None,
        on_incomplete: Callable[[IncompleteMessage], None],
        values: bool,
        transactions: Transactions | None = None,
    ) -> None:
        self._on_corrupt = on_corrupt
        self._on_incomplete = on_incomplete
        self._chunks = ChunkedMessages(neighbours, payloads=values)
        self._transactions = transactions or Transactions(neighbours)

    def enter(self, run: FrameRun) -> None:
        """Advance to a run, in the order of the topic.

        Raises:
            AfterglowError: Entries before it are needed and cannot be read.
        """
        self._chunks.enter(run)

    def of(self, run: FrameRun, messages: Messages, wanted: Any) -> Iterator[pa.RecordBatch]:
        """The messages of some entries of the run that was entered last.

        Args:
            run: The run.
            messages: Decoded messages of the entries, with their marks and the column ``entry_id``.
            wanted: Mask of the rows to return; None: all.

        Raises:
            CorruptEntry: A payload cannot be decompressed, and there is no ``on_corrupt``.
            AfterglowError: Entries around the run are needed and cannot be read.
        """
        marks, batch, first = messages.marks, messages.batch, messages.first_entry_id
        assert marks is not None
        counts = np.ones(messages.end_entry_id - first, bool)
        ends = self._chunks.add(run, marks)
        counts[marks.chunk_entries() - first] = False
        counts[np.fromiter(ends, np.int64) - first] = True
        counts[self._transactions.skipped(run, marks) - first] = False
        if not counts.all():
            of_entries = pa.array(counts[batch.column("entry_id").to_numpy() - first])
            wanted = of_entries if wanted is None else pc.and_(wanted, of_entries)
        if wanted is not None:
            batch = batch.filter(wanted)
        if ends:
            yield from self._insert_values(batch, ends, run.ledger_id)
        elif batch.num_rows:
            yield batch

    def end(self) -> None:
        """Report messages whose last chunk is missing."""
        for error in self._chunks.incomplete():
            self._on_incomplete(error)

    def _insert_values(
        self, batch: pa.RecordBatch, ends: dict[int, CompleteMessage | IncompleteMessage], ledger_id: int
    ) -> Iterator[pa.RecordBatch]:
        """The batch with the values of assembled messages, in several batches if the values are large."""
        entries = batch.column("entry_id").to_numpy()
        at = batch.schema.get_field_index("value")
        values: Any = None if at < 0 else batch.column(at)
        kept = np.ones(batch.num_rows, bool)
        arrays: list[pa.Array] = []
        begin = done = size_bytes = 0
        for row in np.flatnonzero(np.isin(entries, np.fromiter(ends, np.int64))).tolist():
            end = ends[int(entries[row])]
            wanted = values is not None and values[row].is_valid
            value = self._value(end, f"entry {ledger_id}:{entries[row]}", wanted=wanted)
            kept[row] = value is not None
            if value is not None and wanted:
                arrays += [values.slice(done, row - done), _single_value(value)]
                done = row + 1
                size_bytes += len(value)
            if size_bytes >= BATCH_BYTES:
                yield from _replace_values(batch.slice(begin, done - begin), at, arrays, kept[begin:done])
                arrays, begin, size_bytes = [], done, 0
        if arrays:
            arrays.append(values.slice(done))
        yield from _replace_values(batch.slice(begin), at, arrays, kept[begin:])

    def _value(self, end: CompleteMessage | IncompleteMessage, where: str, *, wanted: bool) -> BytesLike | None:
        """The value of a message, empty unless wanted; None: it was reported and is skipped."""
        if isinstance(end, IncompleteMessage):
            self._on_incomplete(end)
            return None
        try:
            return end.value() if wanted else b""
        except IncompleteMessage as error:
            self._on_incomplete(IncompleteMessage(f"{where}: {error}"))
        except CorruptEntry as error:
            corrupt = CorruptEntry(f"{where}: {error}")
            if self._on_corrupt is None:
                raise corrupt from error
            self._on_corrupt(corrupt)
        return None


def _single_value(value: BytesLike) -> pa.Array:
    """A column of one value, without a copy."""
    offsets = pa.py_buffer(np.array([0, len(value)], np.int32))
    return pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(value)])


def _replace_values(
    batch: pa.RecordBatch, at: int, arrays: list[pa.Array], kept: NDArray[np.bool_]
) -> Iterator[pa.RecordBatch]:
    """The rows of a batch that are kept, if any, with the column at ``at`` replaced by arrays, if any."""
    filled = [array for array in arrays if len(array)]
    if filled:
        values = filled[0] if len(filled) == 1 else pa.concat_arrays(filled)
        columns = [*batch.columns[:at], values, *batch.columns[at + 1 :]]
        # RecordBatch.set_column does the same since Arrow 16.
        batch = pa.RecordBatch.from_arrays(columns, schema=batch.schema.set(at, pa.field("value", values.type)))
    if not kept.all():
        batch = batch.filter(pa.array(kept))
    if batch.num_rows:
        yield batch
