"""Messages with typed values and keys, decoded by all versions of their topic's schema.

A value that cannot be decoded is null, and the column ``_corrupt`` says why; a column that stays bytes has the bytes
nevertheless. No Python object per message: rows differ by little more than the version of their schema, of which a
batch has one or two.

A schema of type ``KEY_VALUE`` holds two schemas; its properties say of which types, and whether the key is in the value
or is the key of the message.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from afterglow.errors import CorruptMetadata
from afterglow.format.schema import MESSAGES, SchemaVersion, choose
from afterglow.format.typed.columns import NOTHING, Values, decode, reason
from afterglow.format.typed.definitions import read_definition
from afterglow.format.typed.nodes import BYTES, PLAIN, Leaf, Undecodable, ValueKind, arrow_type, column_form, merge
from afterglow.format.typed.programs import Compiler

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from afterglow.format.typed.columns import Decoded
    from afterglow.format.typed.nodes import Node
    from afterglow.read.copies import ServedRun
    from afterglow.read.messages import MessageBatches

    Name = tuple[str, bytes]
    """A topic and a version of its schema."""
    Longs = NDArray[np.int64]

KEY_VALUE: Final = "KEY_VALUE"
"""The type of such a schema."""

_LENGTH: Final = struct.Struct(">i")


def is_separated(schema: SchemaVersion) -> bool:
    """Whether the key of a pair is the key of the message, and not inside its value."""
    return schema.properties.get("kv.encoding.type") == "SEPARATED"


def sides(schema: SchemaVersion) -> tuple[SchemaVersion, SchemaVersion]:
    """The schemas of key and value.

    Raises:
        CorruptMetadata: The definition does not hold two.
    """
    parts = []
    at = 0
    for side in ("key", "value"):
        head = schema.definition[at : at + _LENGTH.size]
        length = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else -2
        at += _LENGTH.size
        definition = schema.definition[at : at + max(length, 0)]  # -1: there is none
        if length < -1 or len(definition) < length:
            number = int.from_bytes(schema.version, "big")
            raise CorruptMetadata(f"schema version {number} ends within the definition of its {side}")
        at += len(definition)
        kind = schema.properties.get(f"{side}.schema.type", "BYTES")
        parts.append(SchemaVersion(schema.version, kind, definition, _properties(schema, side)))
    return parts[0], parts[1]


def _properties(schema: SchemaVersion, side: str) -> dict[str, str]:
    try:
        found = json.loads(schema.properties.get(f"{side}.schema.properties") or "{}")
    except ValueError:
        return {}
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}


_JAVA: Final = "__jsr310ConversionEnabled"
"""A property that Java's client gives its schemas: it writes bytes in JSON as base64, where Python's writes text."""


@dataclass(frozen=True, slots=True)
class Way:
    """How the values of one version are decoded."""

    which: int
    """The part of the program; NOTHING where they cannot be decoded."""
    reason: str | None
    """Why they are not; a column of bytes has them all the same."""


@dataclass(frozen=True, slots=True)
class _Read:
    """What a version says of its values."""

    node: Node | None
    """None: they cannot be decoded."""
    as_json: bool
    reason: str | None


class Side:
    """One column under all versions.

    Args:
        name: The column.
        versions: Oldest first.
    """

    def __init__(self, name: str, versions: Mapping[Name, SchemaVersion]) -> None:
        read = {key: _read(version) for key, version in versions.items()}
        target: Node | None = None
        for found in read.values():
            formed = None if found.node is None else column_form(found.node)
            if formed is not None:
                target = formed if target is None else merge(target, formed)
        if target is None:
            target = BYTES
        compiler = Compiler(target)
        raw = compiler.avro(BYTES) if isinstance(target, Leaf) and target.kind is ValueKind.BYTES else None
        begun = {
            key: raw if found.node is None else compiler.avro(found.node)
            for key, found in read.items()
            if not found.as_json
        }
        self.name = name
        self.type: pa.DataType = arrow_type(target)
        self.program = program = compiler.program()
        self.raw = NOTHING if raw is None else program.by_instruction(raw)
        """How values are given of which nothing is known."""
        self._ways = {}
        for key, found in read.items():
            number = begun.get(key)
            which = NOTHING if number is None else program.by_instruction(number)
            self._ways[key] = Way(program.by_json if found.as_json else which, found.reason)

    def way(self, topic: str, version: bytes) -> Way | None:
        """How values of a version are decoded; None: there is no such version."""
        return self._ways.get((topic, version))


def _read(version: SchemaVersion) -> _Read:
    named = f"schema version {int.from_bytes(version.version, 'big')}"
    try:
        if version.type in {"JSON", "AVRO"}:
            as_json = version.type == "JSON"
            node = read_definition(version.definition, as_json=as_json, base64=_JAVA in version.properties)
            if column_form(node) is not None:
                return _Read(node, as_json, None)
            return _Read(None, as_json=False, reason=f"{named} has nothing but null")
    except Undecodable as error:
        return _Read(None, as_json=False, reason=f"{named} cannot be decoded: {error}")
    if version.type in PLAIN:
        return _Read(PLAIN[version.type], as_json=False, reason=None)
    return _Read(None, as_json=False, reason=f"{named} is of the type {version.type}, which is not decoded")


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
            reasons.set(rows == number, case.value.reason or case.key.reason)
        value_ways = np.array([case.value.which for case in cases])[rows]
        key_ways = np.array([case.key.which for case in cases])[rows]
        values = Values.of(batch.column("value"))
        encrypted = batch.column("encrypted").to_numpy(zero_copy_only=False)
        if form is not _Form.SEPARATED:
            reasons.set(values.lengths < 0, None)
        if encrypted.any():
            reasons.set(encrypted, _ENCRYPTED)
            value_ways[encrypted] = self._value.raw if form is _Form.WHOLE else NOTHING
            key_ways[encrypted] = NOTHING
        keys = Values(values.data, values.places, np.full(len(rows), -1))
        if form is _Form.INLINE:
            keys, values, damaged = values.pairs()
            reasons.set(damaged & ~encrypted, _NO_PAIR)
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

    def set(self, which: NDArray[np.bool_], text: str | None) -> None:
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
        numbers = [
            self._number(f"{self._names[row]}: {begin}{reason(side.program, int(code))}") for code, row in kinds.T
        ]
        self._why[first + bad] = np.array(numbers)[which.ravel()]

    def column(self, first: int, end: int) -> pa.Array:
        """The reasons of some rows."""
        return pa.array(list(self._numbers), pa.string()).take(pa.array(self._why[first:end]))

    def _number(self, text: str | None) -> int:
        return self._numbers.setdefault(text, len(self._numbers))


class TypedBatches:
    """What :class:`~afterglow.read.messages.MessageBatches` gives, with typed columns.

    Args:
        messages: Gives the columns that ``typed`` needs.
        typed: Types them.
        topic: The name that the topic's schemas are known by.
    """

    def __init__(self, messages: MessageBatches, typed: TypedColumns, topic: str) -> None:
        self.schema = typed.schema
        self._messages = messages
        self._typed = typed
        self._topic = topic

    def of(self, served: ServedRun) -> Iterator[pa.RecordBatch]:
        """The wanted messages of a run, in order.

        Raises:
            CorruptEntry: An entry cannot be read, and nobody takes the report.
        """
        for batch in self._messages.of(served):
            yield from self._typed.of(batch, self._topic)

    def end(self) -> None:
        """Say that no more runs come."""
        self._messages.end()
