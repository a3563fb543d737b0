"""Schema registry: all versions of the topics' schemas, in the metadata store.

The versions of a topic are one JSON node, changed only by compare-and-set; partitions share those of their topic. On
the wire a version is its number from 0 as eight bytes, big-endian. A number is never reused while the topic exists,
since messages carry the version that they were written with.

The constants below limit sizes, so that no client can fill the metadata store or occupy a thread for long.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from afterglow.catalog.schema_compatibility import (
    check_follows,
    check_valid,
    definition_digest,
    digest,
    is_any,
    rule_for,
)
from afterglow.config.choices import SchemaCompatibilityStrategy as Strategy
from afterglow.errors import CommitUnknown, CorruptMetadata, ValueTooLarge, VersionConflict
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.wire import Refused
from afterglow.metadata.store import MUST_NOT_EXIST, wall_clock_ms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afterglow.config import BrokerConfig
    from afterglow.metadata.names import TopicName
    from afterglow.metadata.paths import AfterglowPaths
    from afterglow.metadata.store import MetadataStore, NowMs

    Json = dict[str, Any]
    Rows = list[Json | None]
    """Versions of a topic by number; None for deleted ones."""

MAX_SCHEMA_BYTES: Final = 128 << 10
"""Of one schema, data and properties; eight of this size fill a node of the store."""

MAX_VERSIONS: Final = 1_000
"""Of one topic: a client that exceeds it makes a new schema for every message."""

NO_VERSION: Final = b""
"""The version where no schema is stored, and of AUTO_CONSUME."""


@dataclass(frozen=True, slots=True)
class SchemaPolicies:
    """Effective schema policies of a topic."""

    strategy: Strategy
    """Never UNDEFINED."""
    updates: bool = True
    """Whether clients may add schemas."""
    validation: bool = False
    """Whether producers without a schema are refused once the topic has one."""

    @classmethod
    def of(cls, policy: BrokerConfig) -> SchemaPolicies:
        """Schema policies of a topic's effective policy."""
        given = policy.schema_compatibility_strategy
        return cls(
            Strategy.FULL if given is Strategy.UNDEFINED else given,
            updates=policy.is_allow_auto_update_schema_enabled,
            validation=policy.is_schema_validation_enforced,
        )


_DEFAULT_POLICIES: Final = SchemaPolicies(Strategy.FULL)

_ATTEMPTS: Final = 100
"""Of a compare-and-set. A conflict means that another change succeeded; a hundred in a row are a defect."""


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """One version of a topic's schema."""

    version: bytes
    """Eight bytes, big-endian."""
    schema: wire.Schema
    created_ms: int
    """Time of storing, epoch milliseconds."""


def encode_version(number: int) -> bytes:
    """The wire format of a version number."""
    return number.to_bytes(8, "big")


def decode_version(version: bytes) -> int:
    """The number of a version in wire format.

    Raises:
        Refused: It does not have eight bytes.
    """
    if len(version) != 8:
        raise Refused(wire.IncompatibleSchema, f"a schema version has 8 bytes, not {len(version)}")
    return int.from_bytes(version, "big")


class SchemaRegistry:
    """The schemas of all topics. Thread-safe; every method waits for the metadata store."""

    def __init__(self, metadata: MetadataStore, paths: AfterglowPaths, now_ms: NowMs = wall_clock_ms) -> None:
        self._metadata = metadata
        self._paths = paths
        self._now_ms = now_ms

    def get(self, topic: TopicName, version: bytes | None = None) -> StoredSchema | None:
        """A version of a topic's schema, by default the newest; None if it does not exist.

        Raises:
            Refused: The version is not well-formed.
        """
        number = None if version is None else decode_version(version)
        rows, _ = self._read(topic)
        return _stored(topic, rows, len(rows) - 1 if number is None else number)

    def versions(self, topic: TopicName) -> tuple[StoredSchema, ...]:
        """All versions of a topic's schema, oldest first."""
        rows, _ = self._read(topic)
        found = (_stored(topic, rows, number) for number in range(len(rows)))
        return tuple(stored for stored in found if stored is not None)

    def get_or_create(
        self, topic: TopicName, schema: wire.Schema, policies: SchemaPolicies = _DEFAULT_POLICIES
    ) -> bytes:
        """The version of a producer's schema; a new schema is stored as the newest version.

        Raises:
            Refused: It is not well-formed, not compatible by the topic's strategy, or too large; or it is new, and
                clients may not add schemas, or the topic has too many.
            MetadataError: It could not be stored.
            MissingDependency: Avro's library is not installed.
        """
        size = schema.ByteSize()
        if size > MAX_SCHEMA_BYTES:
            raise Refused(
                wire.IncompatibleSchema, f"the schema of {size} bytes exceeds the limit of {MAX_SCHEMA_BYTES}"
            )
        key = digest(schema)
        for attempt in range(1, _ATTEMPTS + 1):
            rows, version = self._read(topic)
            known = _number_of(rows, key)
            if known is not None:
                return encode_version(known)
            if attempt == 1:
                check_valid(schema)
            try:
                _check_new(topic, rows, schema, policies)
            except Refused:
                # Schemas that differ in properties are different versions, since properties affect decoding. A
                # client whose definition the topic has is accepted all the same.
                same = _number_of_definition(topic, rows, schema)
                if same is None:
                    raise
                return encode_version(same)
            if len(rows) >= MAX_VERSIONS:
                raise Refused(
                    wire.NotAllowedError,
                    f"{topic} has {MAX_VERSIONS} schema versions, the limit: use an existing schema",
                )
            try:
                self._write(topic, [*rows, _row(schema, key, self._now_ms())], version)
            except (VersionConflict, CommitUnknown):
                # Read again: this schema may be stored, by this call or another, or a different one.
                if attempt == _ATTEMPTS:
                    raise
                continue
            return encode_version(len(rows))
        raise AssertionError  # the last attempt returns or raises

    def check_consumer(
        self,
        topic: TopicName,
        schema: wire.Schema,
        policies: SchemaPolicies = _DEFAULT_POLICIES,
        *,
        is_idle: bool = True,
    ) -> bytes:
        """The newest version, if a consumer's schema can read it; the first schema of an idle topic is stored.

        A consumer writes no data, so that its schema need not be readable by others, and only the first is stored.

        Args:
            topic: The topic.
            schema: The consumer's schema.
            policies: Schema policies of the topic.
            is_idle: Whether the topic has no clients and no messages. A topic in use without a schema has raw bytes,
                which no schema describes.

        Raises:
            Refused: The schema cannot read the topic's data, or is not well-formed.
            MetadataError: The first schema could not be stored.
            MissingDependency: Avro's library is not installed.
        """
        if is_any(schema):
            return NO_VERSION
        rows, _ = self._read(topic)
        newest = _stored(topic, rows, len(rows) - 1)
        if newest is None and is_idle:
            return self.get_or_create(topic, schema, policies)
        check_valid(schema)
        if policies.strategy is Strategy.ALWAYS_COMPATIBLE:
            return NO_VERSION if newest is None else newest.version
        if newest is None:
            raise Refused(
                wire.IncompatibleSchema,
                f"{topic} is in use without a schema: let a producer add one, or upload one",
            )
        rule = rule_for(policies.strategy, consumer=True)
        if rule.all_versions or digest(newest.schema) != digest(schema):
            check_follows(rule, _versions(topic, rows, all_versions=rule.all_versions), schema)
        return newest.version

    def clear(self, topic: TopicName) -> None:
        """Delete a topic's schemas while the topic exists: any schema may follow, under the next number.

        Raises:
            MetadataError: They may not be deleted.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            rows, version = self._read(topic)
            if not any(rows):
                return
            try:
                self._write(topic, [None] * len(rows), version)
            except (VersionConflict, CommitUnknown):
                if attempt == _ATTEMPTS:
                    raise

    def delete(self, topic: TopicName) -> None:
        """Delete a topic's schemas with the topic: version numbers start again at 0.

        A partition has no schemas of its own; deleting one does nothing.

        Raises:
            MetadataError: They may not be deleted.
        """
        if topic.partition_index is not None:
            return
        for _ in range(_ATTEMPTS):
            stored = self._metadata.get(self._path(topic))
            if stored is None:
                return
            try:
                self._metadata.delete(self._path(topic), stored.version)
            except VersionConflict:
                continue
            return
        raise VersionConflict(f"schemas of {topic} changed during {_ATTEMPTS} attempts to delete them; try again")

    def _path(self, topic: TopicName) -> str:
        return self._paths.schemas(topic.base.managed_ledger_name)

    def _read(self, topic: TopicName) -> tuple[Rows, int]:
        stored = self._metadata.get(self._path(topic))
        if stored is None:
            return [], MUST_NOT_EXIST
        try:
            rows = json.loads(stored.value)["versions"]
            well_formed = isinstance(rows, list) and all(row is None or isinstance(row["digest"], str) for row in rows)
        except (ValueError, KeyError, TypeError):
            well_formed = False
        if not well_formed:
            raise CorruptMetadata(f"schemas of {topic} at {self._path(topic)} do not parse")
        return rows, stored.version

    def _write(self, topic: TopicName, rows: Rows, version: int) -> None:
        value = json.dumps({"versions": rows}, separators=(",", ":")).encode()
        try:
            self._metadata.put(self._path(topic), value, version)
        except ValueTooLarge as error:
            raise Refused(
                wire.NotAllowedError,
                f"the schema versions of {topic} exceed the limit of the metadata store, "
                f"{self._metadata.max_value_bytes} bytes: use an existing schema",
            ) from error


def _check_new(topic: TopicName, rows: Rows, schema: wire.Schema, policies: SchemaPolicies) -> None:
    """Check that a schema may become the newest version."""
    if not policies.updates:
        raise Refused(
            wire.IncompatibleSchema,
            f"clients may not add schemas to {topic} (isAllowAutoUpdateSchema): upload it, or use an existing schema",
        )
    if policies.strategy is Strategy.ALWAYS_COMPATIBLE or not any(rows):
        return
    rule = rule_for(policies.strategy, consumer=False)
    check_follows(rule, _versions(topic, rows, all_versions=rule.all_versions), schema)


def _versions(topic: TopicName, rows: Rows, *, all_versions: bool) -> Iterator[wire.Schema]:
    """The versions that a new schema is compared with, newest first: most incompatibilities show there."""
    for number in range(len(rows) - 1, -1 if all_versions else len(rows) - 2, -1):
        stored = _stored(topic, rows, number)
        if stored is not None:
            yield stored.schema


def _number_of_definition(topic: TopicName, rows: Rows, schema: wire.Schema) -> int | None:
    wanted = definition_digest(schema)
    stored = (_stored(topic, rows, number) for number in range(len(rows)))
    same = (each for each in stored if each is not None and definition_digest(each.schema) == wanted)
    return next((decode_version(each.version) for each in same), None)


def _number_of(rows: Rows, key: str) -> int | None:
    return next((number for number, row in enumerate(rows) if row and row["digest"] == key), None)


def _row(schema: wire.Schema, key: str, created_ms: int) -> Json:
    row: Json = {
        "type": wire.Schema.Type.Name(schema.type),
        "properties": [[pair.key, pair.value] for pair in schema.properties],
        "digest": key,
        "created_ms": created_ms,
    }
    try:
        row["data"] = schema.schema_data.decode()
    except UnicodeDecodeError:
        row["data_base64"] = base64.b64encode(schema.schema_data).decode()
    return row


def _stored(topic: TopicName, rows: Rows, number: int) -> StoredSchema | None:
    row = rows[number] if 0 <= number < len(rows) else None
    if row is None:
        return None
    try:
        text = row.get("data")
        schema = wire.Schema(
            name=topic.base.local_name,
            type=wire.Schema.Type.Value(row["type"]),
            schema_data=base64.b64decode(row["data_base64"]) if text is None else text.encode(),
            properties=[wire.KeyValue(key=key, value=value) for key, value in row["properties"]],
        )
        return StoredSchema(encode_version(number), schema, int(row["created_ms"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptMetadata(f"version {number} of the schema of {topic} does not parse") from error
