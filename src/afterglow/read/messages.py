"""Runs of entries as Arrow batches of messages or of entries, with the columns of the outside contract.

No Python object per message: columns are decoded, filtered and handed on whole. Where entries around a range are at
hand, messages in chunks are one row at the place of their last chunk, and those of transactions that were not committed
are left out; stretches that have neither go by as they are. Markers give no row.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from afterglow.errors import CorruptEntry
from afterglow.format.columns import BATCH_BYTES, decode_messages
from afterglow.format.entry_column import entry_column
from afterglow.format.position import LATEST
from afterglow.format.schema import ENTRIES, MESSAGES, TIME, choose
from afterglow.read.whole_messages import WholeMessages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from afterglow.errors import IncompleteMessage
    from afterglow.format.position import Position
    from afterglow.read.copies import FrameRun, ServedRun
    from afterglow.read.transactions import Transactions
    from afterglow.read.window import Window

log = logging.getLogger(__name__)

_BROUGHT = ("topic", "tier")
"""Columns that the bytes do not know."""
_TIMES = ("broker_time", "publish_time")
_PLACES = ("entry_id", "batch_index")
_SHARED_ROWS = 16_384
"""Longest column of one text that is kept, a megabyte or so; 4 MiB of usual messages are fewer."""


class Around(Protocol):
    """The entries of one topic around those that are read, as it was when it was pinned.

    Asked only where a chunked message began before what is read, or a transaction ended behind it. Whoever cannot reach
    as far as the topic does raises where it ends, and tells the cure: an end without an error is that of the topic.
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
        report: Told of each entry that cannot be read and is left out; None: such an entry raises.
        around: The entries around the runs. None: chunks come as they are, and transactions are not looked at.
        incomplete: Told of each message of which a chunk is missing, and which is left out.
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
        around: Around | None = None,
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
        """Tell of messages whose last chunk has not come. To be called behind the topic's last run, if at all."""
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
