"""Typed values and keys of messages, decoded by all versions of their topic's schema.

A value that cannot be decoded is null, and the column ``_corrupt`` has the reason; a column of bytes has the bytes all
the same. No Python object per message: rows are grouped by the version of their schema, of which a batch has one or
two.

A schema of type ``KEY_VALUE`` holds two schemas; its properties have their types, and whether the key is in the value
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
from afterglow.format.typed.columns import NULL_ROW, Values, decode, reason
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

    SchemaKey = tuple[str, bytes]
    """A topic and a schema version."""
    Int64s = NDArray[np.int64]

KEY_VALUE: Final = "KEY_VALUE"
"""Schema type of key-value pairs."""

_LENGTH: Final = struct.Struct(">i")


def is_separated(schema: SchemaVersion) -> bool:
    """Whether the key of a pair is the key of the message, and not in its value."""
    return schema.properties.get("kv.encoding.type") == "SEPARATED"


def key_value_schemas(schema: SchemaVersion) -> tuple[SchemaVersion, SchemaVersion]:
    """The schemas of key and value of a ``KEY_VALUE`` schema.

    Raises:
        CorruptMetadata: The definition does not hold two schemas.
    """
    parts = []
    at = 0
    for side in ("key", "value"):
        head = schema.definition[at : at + _LENGTH.size]
        length = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else -2
        at += _LENGTH.size
        definition = schema.definition[at : at + max(length, 0)]  # -1: no definition
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


_JAVA_PROPERTY: Final = "__jsr310ConversionEnabled"
"""Property of schemas of the Java client, which writes bytes in JSON as base64; the Python client writes text."""


@dataclass(frozen=True, slots=True)
class ValueDecoding:
    """Decoding of the values of one schema version."""

    program_part: int
    """The part of the program; NULL_ROW: they cannot be decoded."""
    reason: str | None
    """Why they cannot be decoded; a column of bytes has them all the same."""


@dataclass(frozen=True, slots=True)
class _ParsedSchema:
    """The definition of one schema version."""

    node: Node | None
    """None: values cannot be decoded."""
    as_json: bool
    reason: str | None


class SchemaColumn:
    """Value or key column, decoded by all schema versions.

    Args:
        name: The column.
        versions: Schema versions, oldest first.
    """

    def __init__(self, name: str, versions: Mapping[SchemaKey, SchemaVersion]) -> None:
        read = {key: _parse_schema(version) for key, version in versions.items()}
        target: Node | None = None
        for found in read.values():
            form = None if found.node is None else column_form(found.node)
            if form is not None:
                target = form if target is None else merge(target, form)
        if target is None:
            target = BYTES
        compiler = Compiler(target)
        raw = compiler.avro(BYTES) if isinstance(target, Leaf) and target.kind is ValueKind.BYTES else None
        compiled = {
            key: raw if found.node is None else compiler.avro(found.node)
            for key, found in read.items()
            if not found.as_json
        }
        self.name = name
        self.type: pa.DataType = arrow_type(target)
        self.program = program = compiler.program()
        self.raw = NULL_ROW if raw is None else program.by_instruction(raw)
        """Part of the program for values without a known schema."""
        self._decodings = {}
        for key, found in read.items():
            number = compiled.get(key)
            program_part = NULL_ROW if number is None else program.by_instruction(number)
            self._decodings[key] = ValueDecoding(program.by_json if found.as_json else program_part, found.reason)

    def decoding(self, topic: str, version: bytes) -> ValueDecoding | None:
        """Decoding of a version; None: the version does not exist."""
        return self._decodings.get((topic, version))


def _parse_schema(version: SchemaVersion) -> _ParsedSchema:
    named = f"schema version {int.from_bytes(version.version, 'big')}"
    try:
        if version.type in {"JSON", "AVRO"}:
            as_json = version.type == "JSON"
            node = read_definition(version.definition, as_json=as_json, base64=_JAVA_PROPERTY in version.properties)
            if column_form(node) is not None:
                return _ParsedSchema(node, as_json, None)
            return _ParsedSchema(None, as_json=False, reason=f"{named} has nothing but null")
    except Undecodable as error:
        return _ParsedSchema(None, as_json=False, reason=f"{named} cannot be decoded: {error}")
    if version.type in PLAIN:
        return _ParsedSchema(PLAIN[version.type], as_json=False, reason=None)
    return _ParsedSchema(None, as_json=False, reason=f"{named} is of the type {version.type}, which is not decoded")


CORRUPT: Final = "_corrupt"
"""Column with the reason why a row could not be decoded; null if it could."""

_ENCRYPTED: Final = "the message is encrypted"
_NO_VERSION: Final = "the message carries no schema version"
_INVALID_PAIR: Final = "the value is not a valid key-value pair: the lengths of key and value do not match its size"


class _PairEncoding(IntEnum):
    """Encoding of key and value of a message."""

    WHOLE = 0
    """Not a pair: the value is the whole payload."""
    INLINE = 1
    SEPARATED = 2


@dataclass(frozen=True, slots=True)
class _VersionDecoding:
    """Decoding of the messages of one schema version."""

    name: str
    """The version, for error messages."""
    form: _PairEncoding
    value: ValueDecoding
    key: ValueDecoding


class TypedColumns:
    """Decodes value and key columns of messages. Each process builds its own from the same schemas.

    Args:
        schemas: All schema versions of each topic, oldest first. The topics share one Arrow type.
        columns: Names of columns in the wanted order, with ``_corrupt``; None: all columns, ``_corrupt`` last.

    Raises:
        ConfigError: A column is unknown or named twice.
    """

    def __init__(self, schemas: Mapping[str, Sequence[SchemaVersion]], columns: Iterable[str] | None = None) -> None:
        self._schemas = {topic: {version.version: version for version in found} for topic, found in schemas.items()}
        self._broken: dict[SchemaKey, str] = {}
        values, keys = self._split_pairs()
        self._value = SchemaColumn("value", values)
        self._key = SchemaColumn("key", keys) if keys else None
        types = {"value": self._value.type, CORRUPT: pa.string()}
        if self._key is not None:
            types["key"] = self._key.type
        whole = pa.schema(
            [pa.field(field.name, types.get(field.name, field.type)) for field in MESSAGES]
            + [pa.field(CORRUPT, pa.string())]
        )
        self.schema: pa.Schema = choose(whole, columns)
        """Schema of the returned batches."""
        self.needed: tuple[str, ...] = self._needed(self.schema.names)
        """Columns that batches given to :meth:`of` must have."""
        self._versions: dict[tuple[str, bytes | None], _VersionDecoding] = {}

    def of(self, batch: pa.RecordBatch, topic: str) -> Iterator[pa.RecordBatch]:
        """A batch of messages of one topic with typed columns, in several batches if the values are large."""
        if not batch.num_rows:
            return
        if "value" not in self.needed:
            yield batch.select(self.schema.names)
            return
        coded = batch.column("schema_version").dictionary_encode()
        versions = coded.dictionary.to_pylist()
        decodings = [self._version_decoding(topic, version or None) for version in (*versions, None)]
        rows = coded.indices.fill_null(len(versions)).to_numpy()
        forms = np.array([each.form for each in decodings])[rows]
        borders = (np.flatnonzero(np.diff(forms)) + 1).tolist()
        for first, end in pairwise([0, *borders, batch.num_rows]):
            yield from self._typed(
                batch.slice(first, end - first), rows[first:end], decodings, _PairEncoding(forms[first])
            )

    def _typed(
        self, batch: pa.RecordBatch, rows: Int64s, decodings: list[_VersionDecoding], form: _PairEncoding
    ) -> Iterator[pa.RecordBatch]:
        """Decode rows with the same pair encoding."""
        reasons = _Reasons(rows, [each.name for each in decodings], paired=form is not _PairEncoding.WHOLE)
        for number, each in enumerate(decodings):
            reasons.set(rows == number, each.value.reason or each.key.reason)
        value_parts = np.array([each.value.program_part for each in decodings])[rows]
        key_parts = np.array([each.key.program_part for each in decodings])[rows]
        values = Values.of(batch.column("value"))
        encrypted = batch.column("encrypted").to_numpy(zero_copy_only=False)
        if form is not _PairEncoding.SEPARATED:
            reasons.set(values.lengths < 0, None)
        if encrypted.any():
            reasons.set(encrypted, _ENCRYPTED)
            value_parts[encrypted] = self._value.raw if form is _PairEncoding.WHOLE else NULL_ROW
            key_parts[encrypted] = NULL_ROW
        keys = Values(values.data, values.places, np.full(len(rows), -1))
        if form is _PairEncoding.INLINE:
            keys, values, damaged = values.pairs()
            reasons.set(damaged & ~encrypted, _INVALID_PAIR)
        elif form is _PairEncoding.SEPARATED and "key" in self.needed:
            keys = Values.of(batch.column("key"))
        first = 0
        while first < len(rows):
            value, key = self._decode(values, value_parts, keys, key_parts, first)
            end = first + len(value.array)
            made = {"value": value.array}
            if self._key is not None and key is not None:
                made["key"] = key.array
                reasons.add_errors(first, key.wrong, self._key)
            reasons.add_errors(first, value.wrong, self._value)
            made[CORRUPT] = reasons.column(first, end)
            part = batch.slice(first, end - first)
            columns = [made[name] if name in made else part.column(name) for name in self.schema.names]
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)
            first = end

    def _decode(
        self, values: Values, value_parts: Int64s, keys: Values, key_parts: Int64s, first: int
    ) -> tuple[Decoded, Decoded | None]:
        """Decode as many rows from ``first`` on as the size limit of a column allows."""
        end = len(value_parts)
        while True:
            value = decode(self._value.program, values.rows(first, end), value_parts[first:end])
            if self._key is None:
                return value, None
            end = first + len(value.array)
            key = decode(self._key.program, keys.rows(first, end), key_parts[first:end])
            if len(key.array) == len(value.array):
                return value, key
            end = first + len(key.array)

    def _split_pairs(self) -> tuple[dict[SchemaKey, SchemaVersion], dict[SchemaKey, SchemaVersion]]:
        """The schemas of values, and those of keys."""
        values: dict[SchemaKey, SchemaVersion] = {}
        keys: dict[SchemaKey, SchemaVersion] = {}
        for topic, versions in self._schemas.items():
            for name, version in versions.items():
                if version.type != KEY_VALUE:
                    values[topic, name] = version
                    continue
                try:
                    keys[topic, name], values[topic, name] = key_value_schemas(version)
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

    def _version_decoding(self, topic: str, version: bytes | None) -> _VersionDecoding:
        key = (topic, version)
        if key not in self._versions:
            self._versions[key] = self._find(topic, version)
        return self._versions[key]

    def _find(self, topic: str, version: bytes | None) -> _VersionDecoding:
        known = self._schemas.get(topic, {})
        nothing = ValueDecoding(NULL_ROW, None)
        if version is None:
            why = _NO_VERSION if known else None
            return _VersionDecoding(
                "no schema version", _PairEncoding.WHOLE, ValueDecoding(self._value.raw, why), nothing
            )
        number = int.from_bytes(version, "big")
        named = f"schema version {number}"
        decoding = self._value.decoding(topic, version)
        if decoding is None:
            why = self._broken.get((topic, version)) or f"the topic has no {named}"
            return _VersionDecoding(named, _PairEncoding.WHOLE, ValueDecoding(self._value.raw, why), nothing)
        side = None if self._key is None else self._key.decoding(topic, version)
        if side is None:
            return _VersionDecoding(named, _PairEncoding.WHOLE, decoding, nothing)
        return _VersionDecoding(
            named, _PairEncoding.SEPARATED if is_separated(known[version]) else _PairEncoding.INLINE, decoding, side
        )


class _Reasons:
    """Reasons why rows of a batch cannot be decoded: a number per row, each reason once."""

    def __init__(self, rows: Int64s, names: list[str], *, paired: bool) -> None:
        self._rows = rows
        self._names = names
        self._paired = paired
        self._why = np.zeros(len(rows), np.int64)
        self._numbers: dict[str | None, int] = {None: 0}

    def set(self, rows: NDArray[np.bool_], text: str | None) -> None:
        """Set the reason of rows; None removes it."""
        self._why[rows] = self._number(text)

    def add_errors(self, first: int, wrong: Int64s, side: SchemaColumn) -> None:
        """Set the reasons of the rows from ``first`` on, from the error codes of decoding."""
        bad = np.flatnonzero(wrong)
        if not bad.size:
            return
        # There are few distinct reasons: error code with place in the program, and version.
        found = np.stack([wrong[bad], self._rows[first + bad]])
        kinds, inverse = np.unique(found, axis=1, return_inverse=True)
        begin = f"{side.name}: " if self._paired else ""
        numbers = [
            self._number(f"{self._names[row]}: {begin}{reason(side.program, int(code))}") for code, row in kinds.T
        ]
        self._why[first + bad] = np.array(numbers)[inverse.ravel()]

    def column(self, first: int, end: int) -> pa.Array:
        """The reasons of a range of rows."""
        return pa.array(list(self._numbers), pa.string()).take(pa.array(self._why[first:end]))

    def _number(self, text: str | None) -> int:
        return self._numbers.setdefault(text, len(self._numbers))


class TypedBatches:
    """Messages with typed columns.

    Args:
        messages: Decodes the columns that ``typed`` needs.
        typed: Decodes values and keys.
        topic: Name of the topic in the schemas.
    """

    def __init__(self, messages: MessageBatches, typed: TypedColumns, topic: str) -> None:
        self.schema = typed.schema
        self._messages = messages
        self._typed = typed
        self._topic = topic

    def of(self, served: ServedRun) -> Iterator[pa.RecordBatch]:
        """The messages of a run, in order; see :meth:`~afterglow.read.messages.MessageBatches.of`.

        Raises:
            CorruptEntry: An entry is corrupt.
        """
        for batch in self._messages.of(served):
            yield from self._typed.of(batch, self._topic)

    def end(self) -> None:
        """Report messages whose last chunk is missing."""
        self._messages.end()
