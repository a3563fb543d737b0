"""Decoding of single messages for people: metadata, key, properties, and the value by its schema, as bounded text.

Everything in a message is untrusted. A payload is not decompressed beyond ``maxMessageSize``, a batch is not split
beyond ``_MAX_BATCH`` messages, and texts are cut, so that no message costs more than a few megabytes. A message that
cannot be decoded keeps its position and states the reason.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from afterglow.admin.entry_headers import payload_of
from afterglow.admin.errors import AdminError
from afterglow.errors import CorruptEntry
from afterglow.format.entry import decode_entry, iter_batch
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.schema import MESSAGES
from afterglow.read.jsonl import plain
from afterglow.read.typed import CORRUPT, KEY_VALUE, TypedColumns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from afterglow.format.compression import BytesLike
    from afterglow.format.entry import Entry
    from afterglow.format.proto.pulsar_api_pb2 import MessageMetadata, SingleMessageMetadata
    from afterglow.format.schema import SchemaVersion
    from afterglow.ledger.reader import ReadOrigin, StoredEntry

_MAX_BATCH: Final = 10_000
"""Messages of one entry that are shown; clients put up to 1,000 into a batch."""
_MAX_VALUE: Final = 16 << 10
"""Bytes, or characters, of a value that are shown."""
_MAX_TEXT: Final = 1 << 10
"""Characters of a key, a name or a property that are shown."""
_MAX_PROPERTIES: Final = 100
_MAX_DECODED: Final = 256 << 10
"""Bytes of a value that is decoded by its schema, or parsed as JSON."""
_MAX_COLUMNS: Final = 4 << 20
"""Bytes of a decoded value: short values expand, such as an array of an enum with long symbols."""
_BASE64: Final = 4 << 10
"""Bytes of a value that is not text which are shown."""
_UNSIGNED: Final = 1 << 63
_TOPIC: Final = "topic"
"""The only topic of the schemas of one version."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message as it is shown; a time or number that it lacks is None."""

    ledger_id: int
    entry_id: int
    batch_index: int
    """-1 for a message that is not in a batch."""
    origin: str
    """The copy that served it: ``hot``, ``tier``, or the memory of the broker: ``cache``, ``buffer``."""
    publish_ms: int | None = None
    event_ms: int | None = None
    broker_ms: int | None = None
    deliver_ms: int | None = None
    index: int | None = None
    """Number of the message in the topic, from 0."""
    producer: str | None = None
    sequence_id: int | None = None
    key: str | None = None
    """Text, or base64 if it is not UTF-8."""
    ordering_key: str | None = None
    """Base64."""
    properties: tuple[tuple[str, str], ...] = ()
    schema_version: int | None = None
    compression: str | None = None
    encrypted: bool = False
    chunk: str | None = None
    """Of a chunked message, whose parts are shown apart: ``2 of 5``."""
    transaction: bool = False
    value_bytes: int | None = None
    """Size of the value; None for a null value."""
    value: str | None = None
    """The decoded value, or the text; None if there is neither."""
    value_base64: str | None = None
    """The first bytes of a value that is not text."""
    format: str = "bytes"
    """Form of ``value``: the type of its schema, ``JSON``, ``text`` or ``bytes``."""
    truncated: bool = False
    """Whether the value, the key or properties are shown in part."""
    problem: str | None = None
    """The reason why the message, or its value, could not be decoded."""

    def contains(self, text: str) -> bool:
        """Whether the key, a property or the value contains a text, which is case-folded."""
        parts = [self.key, self.value, *(part for pair in self.properties for part in pair)]
        return any(part is not None and text in part.casefold() for part in parts)

    @property
    def shown_bytes(self) -> int:
        """About the size of the message in an answer."""
        texts = [self.key, self.value, self.value_base64, *(part for pair in self.properties for part in pair)]
        return 500 + sum(len(text) for text in texts if text)


@dataclass(frozen=True, slots=True)
class UndecodedMessage:
    """A message of an entry, of which the value is not decoded yet."""

    stored: StoredEntry
    origin: ReadOrigin
    batch_index: int = -1
    entry: Entry | None = None
    """None: the entry is not a valid message."""
    single: SingleMessageMetadata | None = None
    """Metadata in a batch."""
    value: BytesLike | None = None
    """None: it is null, or cannot be read."""
    problem: str | None = None


class MessageDecoder:
    """Decodes messages of one topic. Not thread-safe; runs on a thread, since it may read schemas.

    Args:
        schema: Reads one version of the topic's schema; None if it does not exist.
        max_bytes: Limit of a decompressed payload.
    """

    def __init__(self, schema: Callable[[bytes], SchemaVersion | None], max_bytes: int) -> None:
        self._schema = schema
        self._max_bytes = max_bytes
        self._columns: dict[bytes, tuple[TypedColumns, str] | str] = {}

    def split(self, stored: StoredEntry, origin: ReadOrigin) -> tuple[list[UndecodedMessage], int]:
        """The messages of an entry, and the bytes of its decompressed payload. Markers give no message."""
        try:
            entry = decode_entry(stored.data)
        except CorruptEntry as error:
            return [UndecodedMessage(stored, origin, problem=f"not a valid message: {error}")], 0
        metadata = entry.metadata
        if metadata.HasField("marker_type"):
            return [], 0
        try:
            payload = payload_of(entry, self._max_bytes)
        except (AdminError, CorruptEntry) as error:
            return [UndecodedMessage(stored, origin, entry=entry, problem=str(error))], 0
        if metadata.encryption_keys:
            problem = f"the payload of {len(payload)} bytes is encrypted"
            return [UndecodedMessage(stored, origin, entry=entry, problem=problem)], len(payload)
        if not metadata.HasField("num_messages_in_batch"):
            value = None if metadata.null_value else payload
            return [UndecodedMessage(stored, origin, entry=entry, value=value)], len(payload)
        return list(self._split_batch(stored, origin, entry, payload)), len(payload)

    def _split_batch(
        self, stored: StoredEntry, origin: ReadOrigin, entry: Entry, payload: BytesLike
    ) -> Iterable[UndecodedMessage]:
        count = entry.metadata.num_messages_in_batch
        number = 0
        problem = None
        try:
            for single, value in iter_batch(payload, min(count, _MAX_BATCH)):
                yield UndecodedMessage(stored, origin, number, entry, single, None if single.null_value else value)
                number += 1
        except CorruptEntry as error:
            problem = f"the rest of the batch is not valid: {error}"
        if count > _MAX_BATCH and problem is None:
            problem = f"the batch has {count} messages, of which the first {_MAX_BATCH} are shown: use a client"
        if problem is not None:
            yield UndecodedMessage(stored, origin, number, entry, problem=problem)

    def decode(self, messages: Sequence[UndecodedMessage]) -> list[Message]:
        """Decode messages; values of one schema version are decoded together."""
        decoded: dict[int, _Value] = {}
        by_version: dict[bytes, list[int]] = {}
        for number, message in enumerate(messages):
            version = None if message.entry is None else message.entry.metadata.schema_version
            if version and message.value is not None and len(message.value) <= _MAX_DECODED and not _is_chunk(message):
                by_version.setdefault(version, []).append(number)
        for version, numbers in by_version.items():
            found = self._typed(version, [messages[number] for number in numbers])
            decoded.update(zip(numbers, found, strict=True))
        return [_message(message, decoded.get(number)) for number, message in enumerate(messages)]

    def _typed(self, version: bytes, messages: Sequence[UndecodedMessage]) -> list[_Value]:
        """The values of messages by one version of the schema."""
        columns = self._of_version(version)
        if isinstance(columns, str):
            return [_Value(_untyped(message.value), problem=columns) for message in messages]
        typed, kind = columns
        given = {
            "value": [bytes(message.value) if message.value is not None else None for message in messages],
            "schema_version": [version] * len(messages),
            "encrypted": [False] * len(messages),
            "key": [_key(message) for message in messages],
        }
        schema = pa.schema([MESSAGES.field(name) for name in typed.needed])
        batch = pa.RecordBatch.from_pydict({name: given[name] for name in typed.needed}, schema=schema)
        values: list[_Value] = []
        for part in typed.of(batch, _TOPIC):
            keys = part.column("key") if kind == KEY_VALUE else None
            for row, (value, reason) in enumerate(zip(part.column("value"), part.column(CORRUPT), strict=True)):
                problem = reason.as_py()
                size_bytes = part.slice(row, 1).nbytes
                if problem is None and size_bytes > _MAX_COLUMNS:
                    problem = f"the decoded value takes {size_bytes} bytes, above the limit of {_MAX_COLUMNS}"
                if problem is not None or kind in {"BYTES", "NONE"}:
                    values.append(_Value(_untyped(messages[len(values)].value), problem=problem))
                    continue
                content = plain(value.as_py())
                if keys is not None:
                    content = {"key": plain(keys[row].as_py()), "value": content}
                values.append(_Value((kind, _shown(content)), decoded=True))
        return values

    def _of_version(self, version: bytes) -> tuple[TypedColumns, str] | str:
        """The columns of a version and its type, or the reason why it has none."""
        if version not in self._columns:
            found = self._schema(version)
            if found is None:
                number = int.from_bytes(version, "big")
                self._columns[version] = f"the topic has no schema version {number}"
            else:
                names = ("value", CORRUPT, "key") if found.type == KEY_VALUE else ("value", CORRUPT)
                self._columns[version] = TypedColumns({_TOPIC: [found]}, names), found.type
        return self._columns[version]


@dataclass(frozen=True, slots=True)
class _Value:
    """A value by its schema."""

    shown: tuple[str, str] | None
    """Its form and text; None: it is not text."""
    decoded: bool = False
    problem: str | None = None


def _message(message: UndecodedMessage, typed: _Value | None) -> Message:
    position = message.stored.position
    identity = (position.ledger_id, position.entry_id, message.batch_index, str(message.origin))
    entry, single = message.entry, message.single
    if entry is None:
        return Message(*identity, value_bytes=len(message.stored.data), problem=message.problem)
    metadata = entry.metadata
    of: MessageMetadata | SingleMessageMetadata = metadata if single is None else single
    pairs = [(_cut(pair.key), _cut(pair.value)) for pair in of.properties[:_MAX_PROPERTIES]]
    key = _key(message)
    text = None if key is None else _utf8(key)
    shown_key = text if key is None or text is not None else base64.b64encode(key[:_MAX_TEXT]).decode()
    shown = _shown_value(message, typed)
    return Message(
        *identity,
        publish_ms=_signed(metadata.publish_time),
        event_ms=_signed(of.event_time) or None,
        broker_ms=None if entry.broker is None else _signed(entry.broker.broker_timestamp) or None,
        deliver_ms=_signed(metadata.deliver_at_time) if metadata.HasField("deliver_at_time") else None,
        index=_index(message),
        producer=_cut(metadata.producer_name),
        sequence_id=_sequence_id(message),
        key=None if shown_key is None else _cut(shown_key),
        ordering_key=base64.b64encode(of.ordering_key[:_MAX_TEXT]).decode() if of.HasField("ordering_key") else None,
        properties=tuple(pairs),
        schema_version=int.from_bytes(metadata.schema_version, "big") if metadata.schema_version else None,
        compression=_compression(metadata),
        encrypted=bool(metadata.encryption_keys),
        chunk=f"{metadata.chunk_id + 1} of {metadata.num_chunks_from_msg}" if _is_chunk(message) else None,
        transaction=metadata.HasField("txnid_most_bits"),
        value_bytes=None if message.value is None else len(message.value),
        value=shown.text,
        value_base64=shown.base64,
        format=shown.form,
        truncated=shown.is_cut or len(of.properties) > _MAX_PROPERTIES or (key is not None and len(key) > _MAX_TEXT),
        problem=message.problem or (None if typed is None else typed.problem),
    )


@dataclass(frozen=True, slots=True)
class _Shown:
    form: str
    text: str | None
    base64: str | None
    is_cut: bool


def _shown_value(message: UndecodedMessage, typed: _Value | None) -> _Shown:
    value = message.value
    if value is None:
        return _Shown("bytes", None, None, is_cut=False)
    shown = _untyped(value) if typed is None else typed.shown
    if shown is None:
        return _Shown("bytes", None, base64.b64encode(value[:_BASE64]).decode(), is_cut=len(value) > _BASE64)
    form, text = shown
    is_part = (typed is None or not typed.decoded) and len(value) > _MAX_DECODED
    return _Shown(form, text[:_MAX_VALUE], None, is_cut=is_part or len(text) > _MAX_VALUE)


def _untyped(value: BytesLike | None) -> tuple[str, str] | None:
    """Form and text of a value without a schema; None if it is not text."""
    if value is None:
        return None
    if len(value) > _MAX_DECODED:
        head = bytes(value[:_MAX_DECODED]).decode(errors="ignore")
        return ("text", head) if _utf8(bytes(value)) is not None else None
    text = _utf8(bytes(value))
    if text is None:
        return None
    if text.lstrip()[:1] in {"{", "["}:
        try:
            return "JSON", _shown(json.loads(text))
        except (ValueError, RecursionError):
            pass
    return "text", text


def _shown(content: object) -> str:
    """Decoded content as text: JSON, unless it is text itself."""
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, indent=2)


def _is_chunk(message: UndecodedMessage) -> bool:
    return message.entry is not None and message.entry.metadata.num_chunks_from_msg > 1


def _key(message: UndecodedMessage) -> bytes | None:
    """The bytes of the key; clients send those that are not text as base64."""
    assert message.entry is not None
    of = message.entry.metadata if message.single is None else message.single
    if not of.HasField("partition_key") or of.null_partition_key:
        return None
    key = _bytes(of.partition_key)
    if of.partition_key_b64_encoded:
        try:
            return base64.b64decode(key, validate=True)
        except ValueError:
            return key
    return key


def _index(message: UndecodedMessage) -> int | None:
    """The broker numbers the last message of an entry."""
    assert message.entry is not None
    broker = message.entry.broker
    if broker is None or not broker.HasField("index"):
        return None
    behind = max(message.entry.metadata.num_messages_in_batch, 1) - 1 - max(message.batch_index, 0)
    return _signed(broker.index) - behind


def _sequence_id(message: UndecodedMessage) -> int:
    assert message.entry is not None
    single = message.single
    if single is not None and single.HasField("sequence_id"):
        return _signed(single.sequence_id)
    return _signed(message.entry.metadata.sequence_id) + max(message.batch_index, 0)


def _compression(metadata: MessageMetadata) -> str | None:
    return wire.CompressionType.Name(metadata.compression) if metadata.compression else None


def _cut(text: str | bytes) -> str:
    """A text of a message, cut; the parser returns strings that are not UTF-8 as bytes."""
    return _bytes(text).decode(errors="replace")[:_MAX_TEXT] if isinstance(text, bytes) else text[:_MAX_TEXT]


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode(errors="surrogateescape")


def _utf8(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _signed(value: int) -> int:
    """As Java represents it, which has no unsigned integers."""
    return value - 2 * _UNSIGNED if value >= _UNSIGNED else value
