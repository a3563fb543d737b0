"""Batches of messages with their values, and the keys of pairs, as typed columns.

What cannot be decoded is null, and the column ``_corrupt`` says why; a column that stays bytes has the bytes all the
same. No Python object per message: rows differ by little more than the version of their schema, of which a batch has
one or two.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from afterglow.errors import CorruptMetadata
from afterglow.format.schema import MESSAGES, choose
from afterglow.format.typed.columns import NOTHING, Values, decode, reason
from afterglow.read.typed.pairs import KEY_VALUE, is_separated, sides
from afterglow.read.typed.sides import Side, Way

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from afterglow.format.schema_version import SchemaVersion
    from afterglow.format.typed.columns import Decoded
    from afterglow.read.typed.sides import Name

    Longs = NDArray[np.int64]

CORRUPT: Final = "_corrupt"
"""The column that says why a row could not be decoded; null where it could."""

_ENCRYPTED: Final = "the message is encrypted"
_NO_VERSION: Final = "the message carries no schema version"
_NO_PAIR: Final = "the value is no pair: its lengths of key and value do not fit it"


class _Form(IntEnum):
    """Where key and value of a message are."""

    WHOLE = 0
    """There is no pair: the value is all."""
    INLINE = 1
    SEPARATED = 2


@dataclass(frozen=True, slots=True)
class _Case:
    """How the messages of one version are decoded."""

    name: str
    """The version, in a reason."""
    form: _Form
    value: Way
    key: Way


class TypedColumns:
    """Types the columns of messages. Immutable; made anew, from the same schemas, wherever it is needed.

    Args:
        schemas: By the name of a topic all versions of its schema, oldest first. Several topics share one type.
        columns: Names of columns in the order wanted, ``_corrupt`` among them; for None all, and ``_corrupt`` last.

    Raises:
        ConfigError: A column is unknown or named twice.
    """

    def __init__(self, schemas: Mapping[str, Sequence[SchemaVersion]], columns: Iterable[str] | None = None) -> None:
        self._schemas = {topic: {version.version: version for version in found} for topic, found in schemas.items()}
        self._broken: dict[Name, str] = {}
        values, keys = self._split()
        self._value = Side("value", values)
        self._key = Side("key", keys) if keys else None
        types = {"value": self._value.type, CORRUPT: pa.string()}
        if self._key is not None:
            types["key"] = self._key.type
        whole = pa.schema(
            [pa.field(field.name, types.get(field.name, field.type)) for field in MESSAGES]
            + [pa.field(CORRUPT, pa.string())]
        )
        self.schema: pa.Schema = choose(whole, columns)
        """Of the batches that come out."""
        self.needed: tuple[str, ...] = self._needed(self.schema.names)
        """Columns that batches must have which go in."""
        self._cases: dict[tuple[str, bytes | None], _Case] = {}

    def of(self, batch: pa.RecordBatch, topic: str) -> Iterator[pa.RecordBatch]:
        """A batch of messages of one topic with typed columns, in as many pieces as memory takes."""
        if not batch.num_rows:
            return
        if "value" not in self.needed:
            yield batch.select(self.schema.names)
            return
        coded = batch.column("schema_version").dictionary_encode()
        versions = coded.dictionary.to_pylist()
        cases = [self._case(topic, version or None) for version in (*versions, None)]
        rows = coded.indices.fill_null(len(versions)).to_numpy()
        forms = np.array([case.form for case in cases])[rows]
        borders = (np.flatnonzero(np.diff(forms)) + 1).tolist()
        for first, end in pairwise([0, *borders, batch.num_rows]):
            yield from self._typed(batch.slice(first, end - first), rows[first:end], cases, _Form(forms[first]))

    def _typed(self, batch: pa.RecordBatch, rows: Longs, cases: list[_Case], form: _Form) -> Iterator[pa.RecordBatch]:
        """The rows of a batch that have key and value in the same places."""
        reasons = _Reasons(rows, [case.name for case in cases], paired=form is not _Form.WHOLE)
        for number, case in enumerate(cases):
            reasons.tell(rows == number, case.value.reason or case.key.reason)
        value_ways = np.array([case.value.which for case in cases])[rows]
        key_ways = np.array([case.key.which for case in cases])[rows]
        values = Values.of(batch.column("value"))
        encrypted = batch.column("encrypted").to_numpy(zero_copy_only=False)
        if form is not _Form.SEPARATED:
            reasons.tell(values.lengths < 0, None)
        if encrypted.any():
            reasons.tell(encrypted, _ENCRYPTED)
            value_ways[encrypted] = self._value.raw if form is _Form.WHOLE else NOTHING
            key_ways[encrypted] = NOTHING
        keys = Values(values.data, values.places, np.full(len(rows), -1))
        if form is _Form.INLINE:
            keys, values, damaged = values.pairs()
            reasons.tell(damaged & ~encrypted, _NO_PAIR)
        elif form is _Form.SEPARATED and "key" in self.needed:
            keys = Values.of(batch.column("key"))
        first = 0
        while first < len(rows):
            value, key = self._decode(values, value_ways, keys, key_ways, first)
            end = first + len(value.array)
            made = {"value": value.array}
            if self._key is not None and key is not None:
                made["key"] = key.array
                reasons.note(first, key.wrong, self._key)
            reasons.note(first, value.wrong, self._value)
            made[CORRUPT] = reasons.column(first, end)
            piece = batch.slice(first, end - first)
            columns = [made[name] if name in made else piece.column(name) for name in self.schema.names]
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)
            first = end

    def _decode(
        self, values: Values, value_ways: Longs, keys: Values, key_ways: Longs, first: int
    ) -> tuple[Decoded, Decoded | None]:
        """As many rows from ``first`` on as memory takes."""
        end = len(value_ways)
        while True:
            value = decode(self._value.program, values.rows(first, end), value_ways[first:end])
            if self._key is None:
                return value, None
            end = first + len(value.array)
            key = decode(self._key.program, keys.rows(first, end), key_ways[first:end])
            if len(key.array) == len(value.array):
                return value, key
            end = first + len(key.array)

    def _split(self) -> tuple[dict[Name, SchemaVersion], dict[Name, SchemaVersion]]:
        """The schemas of values and of keys."""
        values: dict[Name, SchemaVersion] = {}
        keys: dict[Name, SchemaVersion] = {}
        for topic, versions in self._schemas.items():
            for name, version in versions.items():
                if version.type != KEY_VALUE:
                    values[topic, name] = version
                    continue
                try:
                    keys[topic, name], values[topic, name] = sides(version)
                except CorruptMetadata as error:
                    self._broken[topic, name] = str(error)
        return values, keys

    def _needed(self, names: Sequence[str]) -> tuple[str, ...]:
        plain = [name for name in names if name != CORRUPT]
        typed = {"value", CORRUPT} if self._key is None else {"value", "key", CORRUPT}
        if not typed.intersection(names):
            return tuple(plain)
        separated = any(is_separated(version) for found in self._schemas.values() for version in found.values())
        more = ["value", "schema_version", "encrypted", *(["key"] if self._key is not None and separated else [])]
        return tuple(dict.fromkeys([*plain, *more]))

    def _case(self, topic: str, version: bytes | None) -> _Case:
        key = (topic, version)
        if key not in self._cases:
            self._cases[key] = self._find(topic, version)
        return self._cases[key]

    def _find(self, topic: str, version: bytes | None) -> _Case:
        known = self._schemas.get(topic, {})
        nothing = Way(NOTHING, None)
        if version is None:
            why = _NO_VERSION if known else None
            return _Case("no schema version", _Form.WHOLE, Way(self._value.raw, why), nothing)
        number = int.from_bytes(version, "big")
        named = f"schema version {number}"
        way = self._value.way(topic, version)
        if way is None:
            why = self._broken.get((topic, version)) or f"the topic has no {named}"
            return _Case(named, _Form.WHOLE, Way(self._value.raw, why), nothing)
        side = None if self._key is None else self._key.way(topic, version)
        if side is None:
            return _Case(named, _Form.WHOLE, way, nothing)
        return _Case(named, _Form.SEPARATED if is_separated(known[version]) else _Form.INLINE, way, side)


class _Reasons:
    """Why rows of a batch cannot be decoded: a number per row, and each reason once."""

    def __init__(self, rows: Longs, names: list[str], *, paired: bool) -> None:
        self._rows = rows
        self._names = names
        self._paired = paired
        self._why = np.zeros(len(rows), np.int64)
        self._numbers: dict[str | None, int] = {None: 0}

    def tell(self, which: NDArray[np.bool_], text: str | None) -> None:
        """Give some rows a reason; None takes it away."""
        self._why[which] = self._number(text)

    def note(self, first: int, wrong: Longs, side: Side) -> None:
        """Give the rows from ``first`` on the reasons that came with their decoding."""
        bad = np.flatnonzero(wrong)
        if not bad.size:
            return
        # Few differ: what is wrong, where in the program, and under which version.
        found = np.stack([wrong[bad], self._rows[first + bad]])
        kinds, which = np.unique(found, axis=1, return_inverse=True)
        begin = f"{side.name}: " if self._paired else ""
        told = [self._number(f"{self._names[row]}: {begin}{reason(side.program, int(code))}") for code, row in kinds.T]
        self._why[first + bad] = np.array(told)[which.ravel()]

    def column(self, first: int, end: int) -> pa.Array:
        """The reasons of some rows."""
        return pa.array(list(self._numbers), pa.string()).take(pa.array(self._why[first:end]))

    def _number(self, text: str | None) -> int:
        return self._numbers.setdefault(text, len(self._numbers))
