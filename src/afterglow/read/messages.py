"""Arrow batches of messages, or of raw entries, from runs of entries, with the columns of the outside contract.

No Python object per message: columns are decoded, filtered and passed on whole. Markers give no row.

Where the entries before and after the runs can be read (:class:`Neighbours`), a chunked message is one row at the
position of its last chunk, and messages of transactions that were not committed are left out. Chunks and transactions
are followed through all that is read, but only wanted rows are assembled; a batch is cut where the values assembled for
it pass ``BATCH_BYTES``. Runs without chunks and transactions take the direct path.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from afterglow.errors import CorruptEntry, IncompleteMessage
from afterglow.format.columns import BATCH_BYTES, decode_messages, entry_column
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
    from afterglow.read.chunks import Whole
    from afterglow.read.copies import FrameRun, ServedRun
    from afterglow.read.window import Window


log = logging.getLogger(__name__)

_BROUGHT = ("topic", "tier")
"""Columns that the bytes do not know."""
_TIMES = ("broker_time", "publish_time")
_PLACES = ("entry_id", "batch_index")
_SHARED_ROWS = 16_384
"""Longest column of one text that is kept, a megabyte or so; 4 MiB of usual messages are fewer."""


class Neighbours(Protocol):
    """The entries of one pinned topic before and after those that are read.

    Read only where a chunked message began before what is read, or a transaction ended behind it. An implementation
    that does not reach to the end of the topic raises there: an end without an error is that of the topic.
    """

    def before(self, position: Position) -> Iterator[ServedRun]:
        """The entries that stand before a position, in runs: the nearest run first, the entries of a run ascending.

        Raises:
            AfterglowError: They cannot be read, or not from here; runs before that are good.
        """
        ...

    def after(self, position: Position) -> Iterator[ServedRun]:
        """The entries from a position on, in order.

        Raises:
            AfterglowError: They cannot be read, or not from here; runs before that are good.
        """
        ...


def warn(error: CorruptEntry) -> None:
    """Report an entry that was left out."""
    log.warning("left out: %s", error)


class MessageBatches:
    """Turns the runs of one topic, in its order, into messages. Not thread-safe.

    Args:
        topic: Its full name, for the column.
        window: Which messages are wanted.
        columns: Names of columns in the order wanted; all of them for None.
        report: Called with each entry that cannot be read and is left out; None: such an entry raises.
        around: The entries around the runs. None: chunks come as they are, and transactions are ignored.
        incomplete: Called with each message that lacks a chunk and is left out.
        transactions: Of the topic, as all its readers know them; None: this one by itself.
        batch_bytes: Stored bytes of a batch, unless a single entry is larger.

    Raises:
        ConfigError: A column is unknown or named twice.
    """

    def __init__(
        self,
        topic: str,
        window: Window,
        columns: Iterable[str] | None = None,
        report: Callable[[CorruptEntry], None] | None = None,
        around: Neighbours | None = None,
        *,
        incomplete: Callable[[IncompleteMessage], None] = warn,
        transactions: Transactions | None = None,
        batch_bytes: int = BATCH_BYTES,
    ) -> None:
        self._batch_bytes = batch_bytes
        self.schema = choose(MESSAGES, columns)
        self._topic = topic
        self._window = window
        self._report = report
        self._own = [name for name in self.schema.names if name not in _BROUGHT]
        self._whole = None
        if around is not None:
            values = "value" in self._own
            self._whole = WholeMessages(
                around, report=report, incomplete=incomplete, values=values, transactions=transactions
            )

    def of(self, served: ServedRun) -> Iterator[pa.RecordBatch]:
        """The wanted messages of a run, in order; each entry's own checksum is verified.

        Raises:
            CorruptEntry: An entry cannot be read, and nobody takes the report.
            AfterglowError: An entry around the run is needed and cannot be read.
        """
        run = served.run
        needed = [*self._own]
        if self._window.timed:
            needed += [name for name in _TIMES if name not in needed]
        if self._at_a_border(run):
            needed += [name for name in _PLACES if name not in needed]
        marked = None
        if self._whole is not None:
            self._whole.enter(run)
            marked = needed if "entry_id" in needed else [*needed, "entry_id"]
        for messages in decode_messages(
            run.data,
            run.frames,
            run.ledger_id,
            columns=needed,
            check=True,
            strict=self._report is None,
            batch_bytes=self._batch_bytes,
            marked=marked,
        ):
            if self._report is not None:
                for bad in messages.bad:
                    self._report(CorruptEntry(f"entry {run.ledger_id}:{bad.entry_id}: {bad.reason}"))
            batch = messages.batch
            wanted = self._wanted(batch, run)
            tier = str(served.tier)
            if self._whole is not None and messages.marks is not None:
                yield from (self._chosen(whole, tier) for whole in self._whole.of(run, messages, wanted))
                continue
            if wanted is not None:
                batch = batch.filter(wanted)
            if batch.num_rows:
                yield self._chosen(batch, tier)

    def end(self) -> None:
        """Report messages whose last chunk has not come. To be called after the topic's last run, if at all."""
        if self._whole is not None and self._window.end == LATEST and not self._window.timed:
            self._whole.end()

    def _chosen(self, batch: pa.RecordBatch, tier: str) -> pa.RecordBatch:
        rows = batch.num_rows
        brought = {"topic": self._topic, "tier": tier}
        columns = {
            name: _repeated(brought[name], rows) if name in brought else batch.column(name)
            for name in self.schema.names
        }
        return _batch(columns, rows)

    def _at_a_border(self, run: FrameRun) -> bool:
        """Whether a run has an entry of which not all messages are wanted."""
        window = self._window
        borders = ((window.start, window.start_batch), (window.end, window.end_batch))
        return any(
            batch
            and run.ledger_id == at.ledger_id
            and run.frames.first_entry_id <= at.entry_id < run.frames.end_entry_id
            for at, batch in borders
        )

    def _wanted(self, batch: pa.RecordBatch, run: FrameRun) -> Any:
        """Which rows are in the window; None: all."""
        window = self._window
        conditions = []
        if window.timed:
            time = pc.coalesce(*(batch.column(name) for name in _TIMES))
            if window.since_ms is not None:
                conditions.append(pc.greater_equal(time, _moment(window.since_ms)))
            if window.until_ms is not None:
                conditions.append(pc.less(time, _moment(window.until_ms)))
        if self._at_a_border(run):
            entry, number = (batch.column(name) for name in _PLACES)
            if window.start_batch and run.ledger_id == window.start.ledger_id:
                first = pc.equal(entry, window.start.entry_id)
                conditions.append(pc.invert(pc.and_(first, pc.less(number, window.start_batch))))
            if window.end_batch and run.ledger_id == window.end.ledger_id:
                last = pc.equal(entry, window.end.entry_id)
                conditions.append(pc.invert(pc.and_(last, pc.greater_equal(number, window.end_batch))))
        wanted = None
        for condition in conditions:
            wanted = condition if wanted is None else pc.and_(wanted, condition)
        return wanted


class EntryBatches:
    """Turns the runs of one topic into raw entries.

    Args:
        topic: Its full name, for the column.
        window: Which are wanted: entries of which a message is.
        columns: Names of columns in the order wanted; all of them for None.

    Raises:
        ConfigError: A column is unknown or named twice.
    """

    def __init__(self, topic: str, window: Window, columns: Iterable[str] | None = None) -> None:
        self.schema = choose(ENTRIES, columns)
        self._times = MessageBatches(topic, window, ("entry_id",), lambda _: None) if window.timed else None
        self._topic = topic

    def of(self, served: ServedRun) -> Iterator[pa.RecordBatch]:
        """The wanted entries of a run, in order."""
        frames = served.run.frames
        low, count = 0, len(frames)
        timely = None if self._times is None else _united(self._times.of(served))
        while low < count:
            high = int(np.searchsorted(frames.offsets, frames.offsets[low] + BATCH_BYTES, side="right")) - 1
            high = min(max(high, low + 1), count)
            batch = self._batch(served, low, high)
            if timely is not None:
                ids = pa.array(np.arange(frames.first_entry_id + low, frames.first_entry_id + high))
                batch = batch.filter(pc.is_in(ids, value_set=timely))
            if batch.num_rows:
                yield batch
            low = high

    def end(self) -> None:
        """Nothing is left open: entries are whole."""

    def _batch(self, served: ServedRun, low: int, high: int) -> pa.RecordBatch:
        run = served.run
        first = run.frames.first_entry_id
        made: dict[str, Callable[[], pa.Array]] = {
            "topic": lambda: _repeated(self._topic, high - low),
            "ledger_id": lambda: pa.array(np.full(high - low, run.ledger_id, np.int64)),
            "entry_id": lambda: pa.array(np.arange(first + low, first + high)),
            "data": lambda: entry_column(run.data, run.frames, low, high),
            "tier": lambda: _repeated(str(served.tier), high - low),
        }
        return _batch({name: made[name]() for name in self.schema.names}, high - low)


def _united(batches: Iterable[pa.RecordBatch]) -> pa.Array:
    """The only column of some batches, as one."""
    return pa.concat_arrays([pa.array([], pa.int64()), *(batch.column(0) for batch in batches)])


def _repeated(text: str, rows: int) -> pa.Array:
    """A text so many times. All batches of a topic have the same ones: the memory is shared."""
    room = 1 << max(rows - 1, 0).bit_length()
    return (_shared(text, room) if room <= _SHARED_ROWS else pa.repeat(pa.scalar(text), rows)).slice(0, rows)


@lru_cache(maxsize=32)
def _shared(text: str, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(text), rows)


def _batch(columns: dict[str, pa.Array], rows: int) -> pa.RecordBatch:
    if not columns:  # a batch without columns still has rows; only a struct can carry their number
        return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), rows, [None]))
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _moment(time_ms: int) -> pa.Scalar:
    return pa.scalar(time_ms * 1000, pa.int64()).cast(TIME)


class WholeMessages:
    """Follows one topic that is read forwards. Not thread-safe.

    Args:
        around: The entries around what is read.
        report: Called with each message whose payload does not expand; None: such a message raises.
        incomplete: Called with each message that lacks a chunk.
        values: Whether values are wanted.
        transactions: Of the topic, as all its readers know them; None: this one by itself.
    """

    def __init__(
        self,
        around: Neighbours,
        *,
        report: Callable[[CorruptEntry], None] | None,
        incomplete: Callable[[IncompleteMessage], None],
        values: bool,
        transactions: Transactions | None = None,
    ) -> None:
        self._report = report
        self._incomplete = incomplete
        self._chunks = ChunkedMessages(around, payloads=values)
        self._transactions = transactions or Transactions(around)

    def enter(self, run: FrameRun) -> None:
        """Go on to a run, in the order of the topic.

        Raises:
            AfterglowError: Entries before it are needed and cannot be read.
        """
        self._chunks.enter(run)

    def of(self, run: FrameRun, messages: Messages, wanted: Any) -> Iterator[pa.RecordBatch]:
        """The messages of some entries of the run that was entered last.

        Args:
            run: The run.
            messages: Of these entries, with their marks and the column ``entry_id``.
            wanted: Which of their rows are; None: all.

        Raises:
            CorruptEntry: A payload does not expand, and nobody takes the report.
            AfterglowError: Entries around it are needed and cannot be read.
        """
        marks, batch, first = messages.marks, messages.batch, messages.first_entry_id
        assert marks is not None
        counts = np.ones(messages.end_entry_id - first, bool)
        ends = self._chunks.take(run, marks)
        counts[marks.chunk_entries() - first] = False
        counts[np.fromiter(ends, np.int64) - first] = True
        counts[self._transactions.left_out(run, marks) - first] = False
        if not counts.all():
            of_entries = pa.array(counts[batch.column("entry_id").to_numpy() - first])
            wanted = of_entries if wanted is None else pc.and_(wanted, of_entries)
        if wanted is not None:
            batch = batch.filter(wanted)
        if ends:
            yield from self._with_values(batch, ends, run.ledger_id)
        elif batch.num_rows:
            yield batch

    def end(self) -> None:
        """Report messages whose last chunk has not come."""
        for error in self._chunks.left_open():
            self._incomplete(error)

    def _with_values(
        self, batch: pa.RecordBatch, ends: dict[int, Whole | IncompleteMessage], ledger_id: int
    ) -> Iterator[pa.RecordBatch]:
        """A batch with the values of messages that were put together, in as many as their size makes of it."""
        entries = batch.column("entry_id").to_numpy()
        at = batch.schema.get_field_index("value")
        values: Any = None if at < 0 else batch.column(at)
        kept = np.ones(batch.num_rows, bool)
        pieces: list[pa.Array] = []
        begin = done = size_bytes = 0
        for location in np.flatnonzero(np.isin(entries, np.fromiter(ends, np.int64))).tolist():
            end = ends[int(entries[location])]
            wanted = values is not None and values[location].is_valid
            value = self._value(end, f"entry {ledger_id}:{entries[location]}", wanted=wanted)
            kept[location] = value is not None
            if value is not None and wanted:
                pieces += [values.slice(done, location - done), _lone(value)]
                done = location + 1
                size_bytes += len(value)
            if size_bytes >= BATCH_BYTES:
                yield from _replaced(batch.slice(begin, done - begin), at, pieces, kept[begin:done])
                pieces, begin, size_bytes = [], done, 0
        if pieces:
            pieces.append(values.slice(done))
        yield from _replaced(batch.slice(begin), at, pieces, kept[begin:])

    def _value(self, end: Whole | IncompleteMessage, where: str, *, wanted: bool) -> BytesLike | None:
        """The value of a message, where it is wanted; None: it is left out, which was reported."""
        if isinstance(end, IncompleteMessage):
            self._incomplete(end)
            return None
        try:
            return end.value() if wanted else b""
        except IncompleteMessage as error:
            self._incomplete(IncompleteMessage(f"{where}: {error}"))
        except CorruptEntry as error:
            bad = CorruptEntry(f"{where}: {error}")
            if self._report is None:
                raise bad from error
            self._report(bad)
        return None


def _lone(value: BytesLike) -> pa.Array:
    """A column of one value, without a copy."""
    offsets = pa.py_buffer(np.array([0, len(value)], np.int32))
    return pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(value)])


def _replaced(
    batch: pa.RecordBatch, at: int, pieces: list[pa.Array], kept: NDArray[np.bool_]
) -> Iterator[pa.RecordBatch]:
    """A batch with another column, if there are pieces of one, and the rows that are kept, if there are any."""
    filled = [piece for piece in pieces if len(piece)]
    if filled:
        batch = batch.set_column(at, "value", filled[0] if len(filled) == 1 else pa.concat_arrays(filled))
    if not kept.all():
        batch = batch.filter(pa.array(kept))
    if batch.num_rows:
        yield batch
