"""Stretches with chunks or transactions as whole, committed messages.

Chunks and transactions are followed in all that is read; only rows that are wanted are put together. Batches stay as
small as others: one is cut where the values that were put together for it pass ``BATCH_BYTES``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from afterglow.errors import CorruptEntry, IncompleteMessage
from afterglow.format.columns import BATCH_BYTES
from afterglow.read.chunks import ChunkedMessages
from afterglow.read.transactions import Transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from afterglow.format.columns import Messages
    from afterglow.format.compression import BytesLike
    from afterglow.read.chunks import Whole
    from afterglow.read.copies import FrameRun
    from afterglow.read.messages import Around


class WholeMessages:
    """Follows one topic that is read forwards. Not thread-safe.

    Args:
        around: The entries around what is read.
        report: Told of each message whose payload does not expand; None: such a one raises.
        incomplete: Told of each message of which a chunk is missing.
        values: Whether values are wanted.
        transactions: Of the topic, as all its readers know them; None: this one by itself.
    """

    def __init__(
        self,
        around: Around,
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
        """The messages of a stretch of the run that was entered last.

        Args:
            run: The run.
            messages: Of the stretch, with its marks and the column ``entry_id``.
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
        """Tell of messages whose last chunk has not come."""
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
        for place in np.flatnonzero(np.isin(entries, np.fromiter(ends, np.int64))).tolist():
            end = ends[int(entries[place])]
            wanted = values is not None and values[place].is_valid
            value = self._value(end, f"entry {ledger_id}:{entries[place]}", wanted=wanted)
            kept[place] = value is not None
            if value is not None and wanted:
                pieces += [values.slice(done, place - done), _lone(value)]
                done = place + 1
                size_bytes += len(value)
            if size_bytes >= BATCH_BYTES:
                yield from _replaced(batch.slice(begin, done - begin), at, pieces, kept[begin:done])
                pieces, begin, size_bytes = [], done, 0
        if pieces:
            pieces.append(values.slice(done))
        yield from _replaced(batch.slice(begin), at, pieces, kept[begin:])

    def _value(self, end: Whole | IncompleteMessage, where: str, *, wanted: bool) -> BytesLike | None:
        """The value of a message, where it is wanted; None: it is left out, and that was told."""
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
