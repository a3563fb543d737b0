"""Decoding of a block's bytes to Arrow columns, one row per message, without a Python object per message.

Only the requested columns are decoded. An entry whose requested columns cannot be read is reported with its id; the
others are decoded. Markers of transactions have no row. A chunk, and an encrypted entry, is one row with its payload as
stored: readers of the whole topic assemble messages from their marks.

The columns are those of the public message schema except ``topic`` and ``tier``, which blocks do not contain.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from afterglow.errors import CorruptEntry
from afterglow.format import schema
from afterglow.format._kernels import calls, layout
from afterglow.format.compression import MAX_UNCOMPRESSED_BYTES, decompress
from afterglow.format.frames import FRAME_BYTES, as_bytes_array
from afterglow.format.marks import marks_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from afterglow.format.frames import Frames
    from afterglow.format.marks import Marks


BLOCK_COLUMNS = tuple(name for name in schema.MESSAGES.names if name not in {"topic", "tier"})
"""Columns that the bytes of a block contain."""

BATCH_BYTES = 4 << 20
"""Stored bytes per record batch: Spark's transport is fastest with batches of 1 to 4 MiB."""

_BLOCK_SCHEMA = schema.choose(schema.MESSAGES, BLOCK_COLUMNS)

_BATCH_BYTES_MAX = 1 << 30
"""The texts of this many stored bytes, expanded, still fit Arrow's 32-bit offsets."""

_EXPANDED_MAX = MAX_UNCOMPRESSED_BYTES
"""Expanded bytes, and bytes of repeated names, per record batch: with ``MAX_MESSAGES`` bounds the memory of a batch."""

_KEPT_BYTES = 64 << 20
"""Scratch memory that a thread keeps: the usual expansion of 8 MiB of batches."""

REASONS = {
    layout.TORN_BROKER_METADATA: "its broker metadata reaches beyond the entry",
    layout.CORRUPT_BROKER_METADATA: "its broker metadata does not parse",
    layout.TORN_CHECKSUM: "it ends inside its checksum",
    layout.WRONG_CHECKSUM: "its CRC32C does not match its bytes",
    layout.TORN_METADATA: "its message metadata reaches beyond the entry",
    layout.CORRUPT_METADATA: "its message metadata does not parse",
    layout.MISSING_FIELD: "its message metadata lacks producer name, sequence id or publish time",
    layout.INVALID_BATCH_SIZE: "it claims more messages than its bytes, or one record batch, can hold",
    layout.UNKNOWN_CODEC: "it is compressed by an unknown codec",
    layout.CORRUPT_COMPRESSION: "its payload does not expand to the size it claims",
    layout.TORN_BATCH: "a message of its batch reaches beyond the payload",
    layout.CORRUPT_MESSAGE_METADATA: "the metadata of a message in its batch does not parse",
    layout.INVALID_KEY: "its key is not valid base64",
    layout.INVALID_PROPERTY: "one of its properties lacks a key or a value",
}

_LONGS = {
    "entry_id": layout.OUT_ENTRY_ID,
    "sequence_id": layout.OUT_SEQUENCE_ID,
    "publish_time": layout.OUT_PUBLISH_TIME,
    "event_time": layout.OUT_EVENT_TIME,
    "broker_time": layout.OUT_BROKER_TIME,
    "index": layout.OUT_INDEX,
}
_PLAIN = {**_LONGS, "batch_index": layout.OUT_BATCH_INDEX, "encrypted": layout.OUT_ENCRYPTED}
_VALID = {
    "event_time": layout.OUT_EVENT_VALID,
    "broker_time": layout.OUT_BROKER_VALID,
    "index": layout.OUT_INDEX_VALID,
    "key": layout.OUT_KEY_VALID,
    "ordering_key": layout.OUT_ORDERING_VALID,
    "schema_version": layout.OUT_SCHEMA_VALID,
    "value": layout.OUT_VALUE_VALID,
    "replicated_from": layout.OUT_REPLICATED_VALID,
    "schema_id": layout.OUT_SCHEMA_ID_VALID,
}
_TEXTS = {
    "producer": layout.OUT_PRODUCER,
    "key": layout.OUT_KEY,
    "ordering_key": layout.OUT_ORDERING,
    "schema_version": layout.OUT_SCHEMA,
    "value": layout.OUT_VALUE,
    "replicated_from": layout.OUT_REPLICATED,
    "schema_id": layout.OUT_SCHEMA_ID,
}


_VALUE_TEXT = layout.TEXTS + layout.OUT_VALUE

_PLAIN_TEXT_BYTES = 256
"""Bytes for each text but the value, on average over a batch, of messages that are decoded in one pass."""

_PLAIN_TEXTS_MAX = 8 << 20
"""The same for all texts of a column in a batch."""


@dataclass(frozen=True, slots=True)
class UnreadableEntry:
    """An entry that could not be decoded."""

    entry_id: int
    reason: str
    """Completes a message that begins with the entry."""


@dataclass(frozen=True, slots=True)
class Messages:
    """The messages of consecutive entries."""

    batch: pa.RecordBatch
    unreadable: tuple[UnreadableEntry, ...]
    """Entries of this range that could not be read, in order."""

    first_entry_id: int
    end_entry_id: int
    """Id after the last entry of the range."""

    marks: Marks | None = None
    """Marks of the readable entries, if requested and present."""


def decode_messages(
    data: Buffer,
    frames: Frames,
    ledger_id: int,
    *,
    columns: Iterable[str] | None = None,
    start: int | None = None,
    end: int | None = None,
    check: bool = False,
    strict: bool = False,
    batch_bytes: int = BATCH_BYTES,
    marked: Iterable[str] | None = None,
    skip_empty: bool = False,
) -> Iterator[Messages]:
    """Decode the messages of the entries in ``frames``.

    Args:
        data: The bytes that ``frames`` refers to.
        frames: Frames of the entries.
        ledger_id: The ledger of the entries.
        columns: Names from ``BLOCK_COLUMNS``, in the requested order; all of them for None.
        start: First entry id, inclusive; the first of ``frames`` for None.
        end: End entry id, exclusive; the end of ``frames`` for None.
        check: Verify each entry's own CRC32C if it has one.
        strict: Raise for an unreadable entry instead of reporting it.
        batch_bytes: Stored bytes per record batch, at most 1 GiB; at least one entry.
        marked: Columns instead of ``columns`` for batches with chunks or transactions, which then have marks. None: no
            marks. Batches without chunks and transactions cost the same either way.
        skip_empty: Skip entries without any byte, in place of which a broker delivered none, instead of reporting them.

    Raises:
        ConfigError: A column is unknown or duplicate.
        ValueError: The frames exceed the data.
        CorruptEntry: With ``strict``, an entry is unreadable; raised when it is reached.
    """
    chosen = schema.choose(_BLOCK_SCHEMA, columns)
    array = as_bytes_array(data)
    if int(frames.offsets[0]) < 0 or frames.end > array.size:
        raise ValueError(f"frames up to offset {frames.end} exceed the data of {array.size} bytes")
    low = max((start if start is not None else frames.first_entry_id) - frames.first_entry_id, 0)
    high = min((end if end is not None else frames.end_entry_id) - frames.first_entry_id, len(frames))
    marked_chosen = None if marked is None else schema.choose(_BLOCK_SCHEMA, marked)
    decoder = _BatchDecoder(array, frames, ledger_id, chosen, marked_chosen, check=check, skip_empty=skip_empty)
    return _decode(decoder, low, high, min(batch_bytes, _BATCH_BYTES_MAX), strict=strict)


def _decode(decoder: _BatchDecoder, low: int, high: int, batch_bytes: int, *, strict: bool) -> Iterator[Messages]:
    offsets = decoder.frames.offsets
    try:
        while low < high:
            # As many entries as fit in batch_bytes, but at least one.
            stop = int(np.searchsorted(offsets, offsets[low] + batch_bytes, side="right")) - 1
            stop = min(max(stop, low + 1), high)
            for messages in decoder.run(low, stop):
                if strict and messages.unreadable:
                    bad = messages.unreadable[0]
                    raise CorruptEntry(f"entry {decoder.ledger_id}:{bad.entry_id}: {bad.reason}")
                yield messages
            low = stop
    finally:
        decoder.end()


class _Scratch:
    """Scratch memory, reused from batch to batch: new pages would cost more than parsing into them."""

    def __init__(self) -> None:
        self.rows = np.empty((0, layout.COLUMNS), np.int64)
        self.arena = np.empty(0, np.uint8)
        self.texts = np.empty((len(_TEXTS) - 1, 0), np.uint8)


_NOTHING = np.empty(0, np.uint8)
_NO_OUTPUTS = np.zeros(layout.OUTPUTS, np.int64)
_idle = threading.local()
"""Unused scratch memory of each thread."""


class _BatchDecoder:
    """Decodes a range of entries to one record batch, or to two halves if one would be too large."""

    def __init__(
        self,
        data: NDArray[np.uint8],
        frames: Frames,
        ledger_id: int,
        chosen: pa.Schema,
        marked: pa.Schema | None,
        *,
        check: bool,
        skip_empty: bool,
    ) -> None:
        self.data = data
        self.frames = frames
        self.ledger_id = ledger_id
        self.chosen = chosen
        self.marked = marked
        self._check = layout.CHECK_LATER if check else layout.CHECK_NEVER
        self.skip_empty = skip_empty
        self._scratch: _Scratch = _idle.__dict__.pop("scratch", None) or _Scratch()

    def end(self) -> None:
        """Keep the scratch memory for the next decoder in this thread, unless it is too large."""
        scratch = self._scratch
        if scratch.rows.nbytes + scratch.arena.nbytes + scratch.texts.nbytes <= _KEPT_BYTES:
            _idle.scratch = scratch

    def run(self, low: int, high: int) -> Iterator[Messages]:
        batch = self._plain(low, high)
        if batch is None:
            yield from self._any(low, high)
        else:
            first = self.frames.first_entry_id
            yield Messages(batch, (), first + low, first + high)

    def _plain(self, low: int, high: int) -> pa.RecordBatch | None:
        """Decode entries in one pass over their bytes; None if one of them is not a plain message by itself."""
        offsets = self.frames.offsets[low : high + 1]
        first = self.frames.first_entry_id + low
        if high - low > layout.MAX_MESSAGES:
            return None
        if not calls.decode_plain(self.data, offsets[:2], first, _NO_OUTPUTS, check=layout.CHECK_NEVER):
            return None
        size = int(offsets[-1] - offsets[0])
        text_bytes = min(size, _PLAIN_TEXT_BYTES * (high - low), _PLAIN_TEXTS_MAX)
        if self._scratch.texts.shape[1] < text_bytes:
            self._scratch.texts = np.empty((len(_TEXTS) - 1, text_bytes), np.uint8)  # without the value
        outputs = _Outputs(self.chosen, _Capacity(high - low, size), self._scratch.texts)
        if calls.decode_plain(self.data, offsets, first, outputs.addresses, check=self._check) < high - low:
            return None
        return self._batch(self.chosen, outputs, _NOTHING, high - low)

    def _any(self, low: int, high: int) -> Iterator[Messages]:
        """Decode entries of any kind, with a pass for each step."""
        first = self.frames.first_entry_id + low
        scratch = self._scratch
        if len(scratch.rows) < high - low:
            scratch.rows = np.empty((high - low, layout.COLUMNS), np.int64)
        rows = scratch.rows[: high - low]
        flags = calls.parse_entries(self.data, self.frames.offsets[low : high + 1], rows, check=self._check)
        marked = self.marked if flags & layout.MARKED else None
        chosen = self.chosen if marked is None else marked
        want_value = "value" in chosen.names
        planned = calls.plan_payloads(self.data, rows, _EXPANDED_MAX, want_value=want_value)
        expanded, repeated, others, payload_bytes = planned
        much = max(expanded, repeated) > _EXPANDED_MAX or calls.count_messages(rows) > layout.MAX_MESSAGES
        if much and high - low > 1:
            yield from self._halves(low, high)
            return
        if scratch.arena.size < expanded:
            scratch.arena = np.empty(expanded, np.uint8)
        arena = scratch.arena
        if expanded > layout.SLACK:
            calls.expand_lz4(self.data, rows, arena)
        if others:
            # After LZ4, which may overwrite some bytes after each payload.
            self._unpack(rows, arena)
        batch = self._fill(chosen, rows, arena, _Capacity(calls.count_messages(rows), payload_bytes), first)
        if batch is None:
            if high - low > 1:
                yield from self._halves(low, high)
                return
            rows[0, layout.STATUS] = layout.INVALID_BATCH_SIZE
            batch = self._fill(chosen, rows, arena, _Capacity(0, 0), first)
        marks = None if marked is None else marks_of(self.data, rows, first)
        bad = _bad_entries(rows, first)
        if bad and self.skip_empty:
            sizes = self.frames.ends[low:high] - self.frames.offsets[low:high]
            bad = tuple(each for each in bad if sizes[each.entry_id - first] > FRAME_BYTES)
        yield Messages(batch, bad, first, first + high - low, marks)

    def _halves(self, low: int, high: int) -> Iterator[Messages]:
        middle = (low + high) // 2
        yield from self._any(low, middle)
        yield from self._any(middle, high)

    def _unpack(self, rows: NDArray[np.int64], arena: NDArray[np.uint8]) -> None:
        """Expand the payloads of the codecs other than LZ4; one library call per entry, most of them batches."""
        view = self.data.data
        planned = (
            (rows[:, layout.STATUS] == layout.GOOD)
            & (rows[:, layout.EXPANDED_AT] >= 0)
            & (rows[:, layout.CODEC] != layout.LZ4)
        )
        for i in np.flatnonzero(planned):
            row = rows[i]
            at, to, size = int(row[layout.PAYLOAD_AT]), int(row[layout.EXPANDED_AT]), int(row[layout.UNCOMPRESSED])
            try:
                payload = decompress(int(row[layout.CODEC]), view[at : at + int(row[layout.PAYLOAD_LEN])], size)
            except CorruptEntry:
                row[layout.STATUS] = layout.CORRUPT_COMPRESSION
            else:
                arena[to : to + size] = as_bytes_array(payload)

    def _fill(
        self, chosen: pa.Schema, rows: NDArray[np.int64], arena: NDArray[np.uint8], capacity: _Capacity, first_id: int
    ) -> Any:
        """Return the record batch, or None if a column would be too long."""
        outputs = _Outputs(chosen, capacity)
        n = calls.fill_rows(self.data, arena, rows, first_id, outputs.addresses)
        return None if n == layout.TOO_LONG else self._batch(chosen, outputs, arena, n)

    def _batch(self, chosen: pa.Schema, outputs: _Outputs, arena: NDArray[np.uint8], n: int) -> pa.RecordBatch:
        columns = [self._column(field, outputs, arena, n) for field in chosen]
        if not columns:  # only a struct array can have a number of rows without columns
            return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), n, [None]))
        return pa.RecordBatch.from_arrays(columns, schema=chosen)

    def _column(self, field: pa.Field, outputs: _Outputs, arena: NDArray[np.uint8], n: int) -> pa.Array:
        name = field.name
        validity = outputs.buffers.get(_VALID.get(name, -1))
        if name == "ledger_id":
            return long_array(np.full(n, self.ledger_id, np.int64))
        if name == "properties":
            return self._properties(outputs, arena, n)
        if name in _TEXTS:
            column = _TEXTS[name]
            ends = outputs.array(column, np.int32)[: n + 1]
            coded = outputs.array(layout.OUT_KEY_CODED, np.uint8)[:n] if name == "key" else None
            text = outputs.text(name, int(ends[-1]))
            if text is None:
                text = self._gather(arena, outputs.array(column + 1, np.int64)[:n], ends, coded)
            return _texts(field.type, n, validity, outputs.buffers[column], text)
        column = _PLAIN[name]
        return pa.Array.from_buffers(field.type, n, [validity, outputs.buffers[column]])

    def _properties(self, outputs: _Outputs, arena: NDArray[np.uint8], n: int) -> pa.Array:
        counts = outputs.array(layout.OUT_PROPERTIES, np.int32)[: n + 1]
        spans = outputs.array(layout.OUT_PROPERTY_SPANS, np.int64)[: 3 * n].reshape(n, 3)
        total = int(counts[n])
        places = np.empty((2, total), np.int64)
        ends = [pa.allocate_buffer(4 * (total + 1)) for _ in range(2)]
        keys, values = (np.frombuffer(buffer, np.int32) for buffer in ends)
        keys[0] = values[0] = 0
        calls.note_properties(self.data, arena, spans, counts, places, keys, values)
        texts = [
            _texts(pa.string(), total, None, ends[i], self._gather(arena, places[i], (keys, values)[i]))
            for i in range(2)
        ]
        kind = schema.MESSAGES.field("properties").type
        pairs = pa.StructArray.from_arrays(texts, fields=[kind.key_field, kind.item_field])
        return pa.Array.from_buffers(kind, n, [None, outputs.buffers[layout.OUT_PROPERTIES]], children=[pairs])

    def _gather(
        self,
        arena: NDArray[np.uint8],
        places: NDArray[np.int64],
        ends: NDArray[np.int32],
        coded: NDArray[np.uint8] | None = None,
    ) -> pa.Buffer:
        buffer = pa.allocate_buffer(int(ends[-1]))
        out = np.frombuffer(buffer, np.uint8)
        if coded is not None and coded.any():
            calls.gather_keys(self.data, arena, places, ends, coded, out)
        else:
            calls.gather(self.data, arena, places, ends, out)
        return buffer


class _Capacity(NamedTuple):
    """Bounds of a record batch."""

    rows: int
    value_bytes: int
    """Of all values."""


class _Outputs:
    """The buffers of the requested columns that kernels write, and the table of their addresses.

    Args:
        chosen: The columns.
        sizes: Their sizes.
        texts: Scratch for the texts of plain messages, a row for each column; None: they are gathered afterwards.
    """

    def __init__(self, chosen: pa.Schema, sizes: _Capacity, texts: NDArray[np.uint8] | None = None) -> None:
        self.buffers: dict[int, pa.Buffer] = {}
        self._texts: dict[str, NDArray[np.uint8]] = {}
        self.addresses = np.zeros(layout.OUTPUTS, np.int64)
        capacity = sizes.rows
        for name in chosen.names:
            if name in _LONGS:
                self._add(_LONGS[name], 8 * capacity)
            if name in _VALID:
                self._add(_VALID[name], (capacity + 7) // 8)
            if name in _TEXTS:
                self._add(_TEXTS[name], 4 * (capacity + 1), starts_at_zero=True)
                if texts is not None and name != "value":
                    self._texts[name] = text = texts[len(self._texts)]
                    self.addresses[layout.TEXTS + _TEXTS[name]] = text.ctypes.data
                    self.addresses[layout.TEXTS + _TEXTS[name] + 1] = text.size
                else:
                    self._add(_TEXTS[name] + 1, 8 * capacity)
        if "batch_index" in chosen.names:
            self._add(layout.OUT_BATCH_INDEX, 4 * capacity)
        if "encrypted" in chosen.names:
            self._add(layout.OUT_ENCRYPTED, (capacity + 7) // 8)
        if "key" in chosen.names:
            self._add(layout.OUT_KEY_CODED, capacity)
        if "properties" in chosen.names:
            self._add(layout.OUT_PROPERTIES, 4 * (capacity + 1), starts_at_zero=True)
            self._add(layout.OUT_PROPERTY_SPANS, 24 * capacity)
        if "value" in chosen.names:
            self._add(_VALUE_TEXT, sizes.value_bytes)
            self.addresses[_VALUE_TEXT + 1] = sizes.value_bytes

    def _add(self, output: int, size: int, *, starts_at_zero: bool = False) -> None:
        buffer = pa.allocate_buffer(max(size, 8))
        self.buffers[output] = buffer
        self.addresses[output] = buffer.address
        if starts_at_zero:
            np.frombuffer(buffer, np.int32)[0] = 0

    def text(self, name: str, size: int) -> pa.Buffer | None:
        """Return the ``size`` bytes that were copied for a column; None if they were not copied."""
        if name in self._texts:
            return pa.py_buffer(self._texts[name][:size].copy())
        if name != "value":
            return None
        buffer = self.buffers[_VALUE_TEXT]
        if size < buffer.size // 2:  # a consumer that keeps the values would keep all of the buffer
            return pa.py_buffer(np.frombuffer(buffer, np.uint8)[:size].copy())
        return buffer.slice(0, size)

    def array(self, output: int, kind: type[np.generic]) -> NDArray[Any]:
        return np.frombuffer(self.buffers[output], kind)


def long_array(values: NDArray[np.int64]) -> pa.Array:
    """Return an Arrow array of the same memory; ``pa.array`` would import pandas, if it is installed, for a second."""
    assert values.flags.c_contiguous
    assert values.dtype == np.int64
    return pa.Array.from_buffers(pa.int64(), values.size, [None, pa.py_buffer(values)])


def _texts(kind: pa.DataType, n: int, validity: pa.Buffer | None, offsets: pa.Buffer, text: pa.Buffer) -> pa.Array:
    if pa.types.is_string(kind):
        ends = np.frombuffer(offsets, np.int32)[: n + 1]
        if calls.text_kind(np.frombuffer(text, np.uint8), ends) == layout.NOT_UTF8:
            # Clients may send any bytes in a protobuf string; Java's reader shows replacement characters.
            raw = pa.Array.from_buffers(pa.binary(), n, [validity, offsets, text])
            distinct = raw.dictionary_encode()  # the messages of a batch share the name of their producer
            texts = pa.array([value.decode("utf-8", "replace") for value in distinct.dictionary.to_pylist()], kind)
            return texts.take(distinct.indices)
    return pa.Array.from_buffers(kind, n, [validity, offsets, text])


def _bad_entries(rows: NDArray[np.int64], first_id: int) -> tuple[UnreadableEntry, ...]:
    status = rows[:, layout.STATUS]
    return tuple(UnreadableEntry(first_id + int(i), REASONS[int(status[i])]) for i in np.flatnonzero(status))


def entry_column(data: Buffer, frames: Frames, low: int, high: int) -> pa.Array:
    """Return the bytes of some entries, without frame headers.

    Args:
        data: The bytes that ``frames`` refers to.
        frames: Frames of the entries.
        low: Number of the first frame, inclusive.
        high: Number of the last frame, exclusive; the entries together must be below 2 GiB.
    """
    places = frames.offsets[low:high] + FRAME_BYTES
    ends = np.zeros(high - low + 1, np.int32)
    np.cumsum(frames.ends[low:high] - places, out=ends[1:])
    out = pa.allocate_buffer(int(ends[-1]))
    calls.gather(as_bytes_array(data), np.empty(0, np.uint8), places, ends, np.frombuffer(out, np.uint8))
    return pa.Array.from_buffers(pa.binary(), high - low, [None, pa.py_buffer(ends), out])
