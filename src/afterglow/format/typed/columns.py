"""Decoding of message values to typed columns with compiled programs, without a Python object per message.

The number of items and the size of texts are known only at the end, so columns grow: the kernel stops at the row that
does not fit, the column grows, and the kernel continues with that row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from afterglow.format._kernels import calls
from afterglow.format._kernels import typed_layout as v

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

NULL_ROW: Final = v.NULL_ROW
"""Value of ``which`` for a null row."""

MAX_BYTES: Final = 256 << 20
"""Maximum size of the columns of one call. Even a row of nulls takes bytes in every column."""

_MAX_TEXT_BYTES: Final = 1 << 30
"""Bytes of one text column: Arrow's 32-bit offsets end at two gigabytes."""

REASONS: Final = {
    v.TRUNCATED: "it ends too early",
    v.TRAILING_BYTES: "bytes are left behind its end",
    v.OUT_OF_RANGE: "a number is out of range",
    v.UNKNOWN_BRANCH: "it names a branch that the union does not have",
    v.UNKNOWN_SYMBOL: "it names a symbol that the enum does not have",
    v.INVALID_UTF8: "a text is not UTF-8",
    v.TOO_MANY_ITEMS: "it claims more items than it has bytes",
    v.TYPE_MISMATCH: "it is of another type than the column",
    v.WRONG_LENGTH: "it does not have the length of its type",
    v.INVALID_JSON: "it is not JSON",
    v.DUPLICATE_FIELD: "the field is there twice",
    v.TOO_DEEP: f"it is nested more than {v.MAX_DEPTH} deep",
    v.INVALID_ESCAPE: "an escape in a text stands for no character",
    v.INVALID_BASE64: "bytes are not given as base64",
    v.TOO_LARGE: f"it takes more than {MAX_BYTES >> 20} MiB",
}


@dataclass(frozen=True, slots=True)
class Column:
    """One node of a type: a column with its validity, and its child columns."""

    number: int
    """Index in the kernel's table."""
    kind: int
    type: pa.DataType
    children: tuple[Column, ...]
    """Fields of a struct; the item of a list; key and item of a map."""

    @property
    def nulls(self) -> tuple[int, ...]:
        """The columns that get a null with this one, itself first: fields of a struct have the same length as it."""
        below = self.children if self.kind == v.STRUCT else ()
        return (self.number, *(number for child in below for number in child.nulls))

    def walk(self) -> Iterator[Column]:
        """Yield this column and its descendants, by number."""
        yield self
        for child in self.children:
            yield from child.walk()


def lay_out(kind: pa.DataType, number: int = 0) -> Column:
    """Return the columns of a type, numbered from ``number``."""
    children: list[Column] = []
    if pa.types.is_struct(kind):
        below = [field.type for field in kind]
    elif pa.types.is_map(kind):
        below = [kind.key_type, kind.item_type]
    elif pa.types.is_list(kind):
        below = [kind.value_type]
    else:
        return Column(number, _leaf_kind(kind), kind, ())
    behind = number + 1
    for child in below:
        children.append(lay_out(child, behind))
        behind += sum(1 for _ in children[-1].walk())
    return Column(number, v.STRUCT if pa.types.is_struct(kind) else v.LIST, kind, tuple(children))


def _leaf_kind(kind: pa.DataType) -> int:
    if pa.types.is_boolean(kind):
        return v.BITS
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return v.TEXT
    return {1: v.W1, 2: v.W2, 4: v.W4, 8: v.W8, 16: v.W16}[kind.bit_width // 8]


@dataclass(frozen=True, slots=True)
class Program:
    """The compiled decoding of all schema versions to one column."""

    root: Column
    words: NDArray[np.int64]
    """Instructions, nodes, and the tables that they refer to."""
    texts: NDArray[np.uint8]
    """Names of fields and symbols."""
    nulls: tuple[int, int]
    """Index in ``words`` of the columns of a null row, and their number."""
    json_root: int
    """Index in ``words`` of the node of a whole JSON value."""
    paths: Mapping[int, str]
    """Path in the type of each instruction and node."""

    @staticmethod
    def by_instruction(number: int) -> int:
        """Return the value of ``which`` for values decoded by the instructions from this one on."""
        return 2 * number

    @property
    def by_json(self) -> int:
        """Value of ``which`` for JSON values."""
        return 2 * self.json_root + 1


@dataclass(frozen=True, slots=True)
class Values:
    """The bytes of values, one range per row."""

    data: NDArray[np.uint8]
    places: NDArray[np.int64]
    lengths: NDArray[np.int64]
    """-1 for null."""

    @classmethod
    def of(cls, column: pa.Array) -> Values:
        """Return the values of a binary column, without a copy."""
        _, offsets, text = column.buffers()
        ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
        lengths = np.diff(ends)
        if column.null_count:
            lengths[column.is_null().to_numpy(zero_copy_only=False)] = -1
        data = np.frombuffer(text, np.uint8) if text is not None and text.size else np.zeros(1, np.uint8)
        return cls(data, np.ascontiguousarray(ends[:-1]), lengths)

    def rows(self, first: int, end: int) -> Values:
        """Return a range of rows."""
        return Values(self.data, self.places[first:end], self.lengths[first:end])

    def pairs(self) -> tuple[Values, Values, NDArray[np.bool_]]:
        """Split values that contain key and value; returns both, null in corrupt rows, and which rows are corrupt."""
        found = calls.split_pairs(self.data, self.places, self.lengths)
        damaged = found[0] < 0
        found[0][damaged] = 0
        return Values(self.data, found[0], found[1]), Values(self.data, found[2], found[3]), damaged


@dataclass(frozen=True, slots=True)
class Decoded:
    """Decoded rows."""

    array: pa.Array
    wrong: NDArray[np.int64]
    """Per row 0, or its error: see :func:`reason`."""


def reason(program: Program, wrong: int) -> str:
    """Return the message of a row's error."""
    path = program.paths.get(wrong >> 8, "")
    return f"{path}: {REASONS[wrong & 255]}" if path else REASONS[wrong & 255]


def decode(program: Program, values: Values, which: NDArray[np.int64]) -> Decoded:
    """Decode values, each with the part of the program that ``which`` selects.

    Returns fewer rows if all would take too much memory, but at least one.
    """
    return _Run(program, values, which).decode()


class _Run:
    """One decoding pass over values, and the memory of its columns."""

    def __init__(self, program: Program, values: Values, which: NDArray[np.int64]) -> None:
        self._program = program
        self._values = values
        self._which = which.copy()
        self._columns = list(program.root.walk())
        self._table = np.zeros((len(self._columns), v.WORDS), np.int64)
        self._numbers: list[NDArray[np.uint8]] = []
        self._valid: list[NDArray[np.uint8]] = []
        self._texts: list[NDArray[np.uint8]] = []
        self._state = np.zeros(v.STATE, np.int64)
        given = int(np.maximum(values.lengths, 0).sum())
        # Decoded text is not longer than its source, except for enums, so the limit grows with the input.
        self._limit = max(MAX_BYTES, 4 * given)
        self._begin(len(which), given)
        self._slow = np.empty((0, v.NOTE), np.int64)
        self._grow_slow()

    def _begin(self, rows: int, given: int) -> None:
        """Allocate columns for all rows with one item each, within the limit, and texts of the size of the input."""
        texts = sum(1 for column in self._columns if column.kind == v.TEXT)
        width = sum(_size(column.kind, 8) // 8 + 1 for column in self._columns)
        slots = max(min(rows, self._limit // 2 // width), 1)
        for column in self._columns:
            self._numbers.append(np.zeros(_size(column.kind, slots), np.uint8))
            self._valid.append(np.zeros(slots // 8 + 1, np.uint8))
            self._texts.append(np.empty(given // texts + 64 if column.kind == v.TEXT else 0, np.uint8))
            row = self._table[column.number]
            row[v.KIND] = column.kind
            row[v.CAPACITY] = slots
            if column.kind == v.LIST:
                row[v.CHILD] = column.children[0].number
            self._place(column.number)

    def decode(self) -> Decoded:
        count = len(self._which)
        wrong = np.zeros(count, np.int64)
        row = 0
        while row < count:
            row = calls.decode_values(
                self._values.data,
                self._values.places,
                self._values.lengths,
                self._which,
                row,
                self._program.words,
                self._program.texts,
                self._table,
                self._state,
                self._program.nulls,
                wrong,
            )
            if row == count or self._grow():
                continue
            if row > 0:
                break
            # Too large even alone: it becomes null, which fits.
            self._which[row] = v.NULL_ROW
            wrong[row] = v.TOO_LARGE
        self._read_slow()
        return Decoded(self._array(self._program.root), wrong[:row])

    def _grow(self) -> bool:
        """Grow the full column; False if that would exceed the limit."""
        number, needed = int(self._state[v.FULL_COLUMN]), int(self._state[v.FULL_BYTES])
        if number == v.SLOW:
            self._grow_slow()
            return True
        column, row = self._columns[number], self._table[number]
        slots, text_bytes = int(row[v.CAPACITY]), int(row[v.TEXT_CAPACITY])
        if needed:
            text_bytes += max(text_bytes, needed)
        else:
            slots *= 2
        numbers, valid = _size(column.kind, slots), slots // 8 + 1
        added = numbers - self._numbers[number].size + valid - self._valid[number].size
        added += text_bytes - int(row[v.TEXT_CAPACITY])
        used = sum(map(_bytes, (self._numbers, self._valid, self._texts)))
        if text_bytes > _MAX_TEXT_BYTES or used + added > self._limit:
            return False
        self._numbers[number] = _larger(self._numbers[number], numbers)
        self._valid[number] = _larger(self._valid[number], valid)
        self._texts[number] = _larger(self._texts[number], text_bytes)
        row[v.CAPACITY] = slots
        self._place(number)
        return True

    def _place(self, number: int) -> None:
        row = self._table[number]
        row[v.VALUES] = self._numbers[number].ctypes.data
        row[v.VALID] = self._valid[number].ctypes.data
        row[v.TEXT_CAPACITY] = self._texts[number].size
        row[v.DATA] = self._texts[number].ctypes.data

    def _grow_slow(self) -> None:
        larger = np.empty((2 * len(self._slow) + 64, v.NOTE), np.int64)
        larger[: len(self._slow)] = self._slow
        self._slow = larger
        self._state[v.SLOW_CAPACITY] = len(larger)
        self._state[v.SLOW_NOTES] = larger.ctypes.data

    def _read_slow(self) -> None:
        """Parse the numbers that the kernel left to a library."""
        notes = self._slow[: int(self._state[v.SLOW_COUNT])]
        for number in np.unique(notes[:, 0]):
            mine = notes[notes[:, 0] == number]
            ends = np.concatenate(([0], np.cumsum(mine[:, 3]))).astype(np.int32)
            text = np.empty(int(ends[-1]), np.uint8)
            nothing = np.empty(0, np.uint8)
            calls.gather(self._values.data, nothing, np.ascontiguousarray(mine[:, 2]), ends, text)
            texts = pa.Array.from_buffers(pa.string(), len(mine), [None, pa.py_buffer(ends), pa.py_buffer(text)])
            kind = np.float64 if self._columns[number].kind == v.W8 else np.float32
            self._numbers[number].view(kind)[mine[:, 1]] = _floats(texts)

    def _array(self, column: Column) -> pa.Array:
        row = self._table[column.number]
        count = int(row[v.COUNT])
        valid = pa.py_buffer(self._valid[column.number][: (count + 7) // 8])
        below = [self._array(child) for child in column.children]
        if column.kind == v.STRUCT:
            return pa.Array.from_buffers(column.type, count, [valid], children=below)
        numbers = pa.py_buffer(self._numbers[column.number])
        if column.kind == v.TEXT:
            text = pa.py_buffer(self._texts[column.number][: int(row[v.USED])])
            return pa.Array.from_buffers(column.type, count, [valid, numbers, text])
        if pa.types.is_map(column.type):
            fields = [column.type.key_field, column.type.item_field]
            _ = below[0].null_count  # counts; older releases of Arrow end the process if the number is not known
            below = [pa.StructArray.from_arrays(below, fields=fields)]
        return pa.Array.from_buffers(column.type, count, [valid, numbers], children=below or None)


def _size(kind: int, slots: int) -> int:
    """Return the bytes of the numbers or offsets of a column."""
    if kind == v.STRUCT:
        return 0
    if kind == v.BITS:
        return slots // 8 + 1
    return 4 * (slots + 1) if kind in {v.TEXT, v.LIST} else kind * slots


def _bytes(arrays: list[NDArray[np.uint8]]) -> int:
    return sum(array.size for array in arrays)


def _larger(array: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    if size <= array.size:
        return array
    larger = np.empty(size, np.uint8)
    larger[: array.size] = array
    larger[array.size :] = 0
    return larger


def _floats(texts: pa.Array) -> NDArray[np.float64]:
    """Convert JSON numbers to the nearest doubles; infinity beyond the largest."""
    try:
        found: NDArray[np.float64] = pc.cast(texts, pa.float64()).to_numpy()
    except pa.ArrowInvalid:
        found = np.array([float(text) for text in texts.to_pylist()])
    return found
