from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from afterglow.catalog import avro_compatibility
from afterglow.catalog.schema_registry import (
    MAX_SCHEMA_BYTES,
    MAX_VERSIONS,
    NO_VERSION,
    SchemaPolicies,
    SchemaRegistry,
    decode_version,
    encode_version,
)
from afterglow.config.choices import SchemaCompatibilityStrategy as Strategy
from afterglow.errors import CommitUnknown, CorruptMetadata
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.wire import Refused
from afterglow.metadata.memory import MemoryMetadataStore
from afterglow.metadata.names import TopicName
from afterglow.metadata.paths import AfterglowPaths

if TYPE_CHECKING:
    from collections.abc import Callable

S = wire.Schema
TOPIC = TopicName.parse("acme/sales/orders")
PATHS = AfterglowPaths()
NO_UPDATES = SchemaPolicies(Strategy.ALWAYS_COMPATIBLE, updates=False)
NODE = PATHS.schemas(TOPIC.managed_ledger_name)


def field(name: str, kind: Any = "int", **rest: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **rest}


def record(*fields: dict[str, Any], name: str = "Order", **rest: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **rest}


def schema(definition: Any = None, kind: S.Type.ValueType = S.Json, **properties: str) -> S:
    data = b"" if definition is None else json.dumps(definition).encode()
    return raw(data, kind, **properties)


def raw(data: bytes, kind: S.Type.ValueType = S.Json, **properties: str) -> S:
    pairs = [wire.KeyValue(key=key.replace("__", "."), value=value) for key, value in properties.items()]
    return S(name="given", type=kind, schema_data=data, properties=pairs)


def key_value(key: S, value: S) -> S:
    def named(kind: S.Type.ValueType) -> str:
        return {S.Json: "JSON", S.Avro: "AVRO", S.String: "STRING", S.Int32: "INT32"}[kind]

    data = b"".join(len(side.schema_data).to_bytes(4, "big") + side.schema_data for side in (key, value))
    types = {"key__schema__type": named(key.type), "value__schema__type": named(value.type)}
    return raw(data, S.KeyValue, **types)


@pytest.fixture
def metadata() -> MemoryMetadataStore:
    return MemoryMetadataStore()


@pytest.fixture
def registry(metadata: MemoryMetadataStore) -> SchemaRegistry:
    return SchemaRegistry(metadata, PATHS, lambda: 1_700_000_000_000)


def refused(call: Callable[[], object], code: wire.ServerError.ValueType = wire.IncompatibleSchema) -> str:
    with pytest.raises(Refused) as caught:
        call()
    assert caught.value.code == code
    return str(caught.value)


# --- versions ---


def test_versions_count_from_0_in_eight_bytes(registry: SchemaRegistry) -> None:
    assert registry.get_or_create(TOPIC, schema(record(field("a")))) == bytes(8)
    optional = schema(record(field("a"), field("b", default=1)))
    assert registry.get_or_create(TOPIC, optional) == b"\0\0\0\0\0\0\0\1"
    assert [decode_version(found.version) for found in registry.versions(TOPIC)] == [0, 1]


def test_a_version_of_another_length_is_refused(registry: SchemaRegistry) -> None:
    for version in (b"", b"\0", bytes(9)):
        with pytest.raises(Refused, match="8 bytes"):
            registry.get(TOPIC, version)


def test_a_stored_schema_is_returned_unchanged(registry: SchemaRegistry) -> None:
    text = b'{ "type":"record", "name":"Order","fields":[] }'
    registry.get_or_create(TOPIC, raw(text, S.Avro, owner="sales"))
    found = registry.get(TOPIC)
    assert found is not None
    assert found.version == encode_version(0)
    assert found.created_ms == 1_700_000_000_000
    assert found.schema == S(
        name="orders", type=S.Avro, schema_data=text, properties=[wire.KeyValue(key="owner", value="sales")]
    )
    assert registry.get(TOPIC, encode_version(0)) == found


def test_binary_definitions_come_back_too(registry: SchemaRegistry) -> None:
    registry.get_or_create(TOPIC, raw(b"\xff\x00\xfe", S.External))
    found = registry.get(TOPIC)
    assert found is not None
    assert found.schema.schema_data == b"\xff\x00\xfe"


def test_versions_are_found_by_number_and_the_newest_is_the_default(registry: SchemaRegistry) -> None:
    definitions = [record(*(field(f"f{i}", default=0) for i in range(count))) for count in range(1, 4)]
    for definition in definitions:
        registry.get_or_create(TOPIC, schema(definition))
    for number, definition in enumerate(definitions):
        found = registry.get(TOPIC, encode_version(number))
        assert found is not None
        assert json.loads(found.schema.schema_data) == definition
    newest = registry.get(TOPIC)
    assert newest is not None
    assert newest.version == encode_version(2)


def test_a_missing_version_is_none(registry: SchemaRegistry) -> None:
    assert registry.get(TOPIC) is None
    assert registry.get(TOPIC, encode_version(0)) is None
    assert registry.versions(TOPIC) == ()
    registry.get_or_create(TOPIC, schema(record()))
    assert registry.get(TOPIC, encode_version(1)) is None
    assert registry.get(TOPIC, b"\xff" * 8) is None


def test_partitions_share_the_schema_of_their_topic(registry: SchemaRegistry) -> None:
    registry.get_or_create(TOPIC.partition(3), schema(record()))
    assert registry.get(TOPIC) == registry.get(TOPIC.partition(0)) is not None
    assert registry.get(TopicName.parse("acme/sales/others")) is None


def test_raw_bytes_have_a_version_as_in_pulsar(registry: SchemaRegistry) -> None:
    bare = raw(b"", S.Type.Value("None"))
    assert registry.get_or_create(TOPIC, bare) == registry.get_or_create(TOPIC, bare) == encode_version(0)
    assert registry.check_consumer(TOPIC, bare) == encode_version(0)
    refused(lambda: registry.get_or_create(TOPIC, schema(record())))


def test_auto_consume_is_for_consumers_and_is_not_stored(registry: SchemaRegistry) -> None:
    wish = raw(b"", S.AutoConsume)
    assert registry.check_consumer(TOPIC, wish) == NO_VERSION
    assert "AUTO_CONSUME" in refused(lambda: registry.get_or_create(TOPIC, wish))
    assert registry.get(TOPIC) is None


# --- the same schema ---


def test_the_same_definition_written_otherwise_is_the_same_version(registry: SchemaRegistry) -> None:
    registry.get_or_create(TOPIC, raw(b'{"type":"record","name":"Order","fields":[]}'))
    again = raw(b'{\n  "fields": [],\n  "name": "Order", "type": "record" }')
    assert registry.get_or_create(TOPIC, again) == encode_version(0)


def test_an_old_version_is_found_again_even_if_it_would_not_follow_the_newest(registry: SchemaRegistry) -> None:
    first, second, third = (
        schema(record(field("a", default=0))),
        schema(record()),
        schema(record(field("a", "string", default=""))),
    )
    for number, each in enumerate((first, second, third)):
        assert registry.get_or_create(TOPIC, each) == encode_version(number)
    assert registry.get_or_create(TOPIC, first) == encode_version(0)
    assert len(registry.versions(TOPIC)) == 3


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (record(field("a", "boolean", default=True)), record(field("a", "boolean", default=1))),
        (record(field("a", "double", default=1)), record(field("a", "double", default=1.0))),
    ],
)
def test_values_that_python_considers_equal_are_different(registry: SchemaRegistry, one: Any, other: Any) -> None:
    assert registry.get_or_create(TOPIC, schema(one)) != registry.get_or_create(TOPIC, schema(other))


def test_other_properties_make_another_version_and_their_order_does_not(registry: SchemaRegistry) -> None:
    plain = record()
    assert registry.get_or_create(TOPIC, schema(plain, a="1", b="2")) == encode_version(0)
    assert registry.get_or_create(TOPIC, schema(plain, b="2", a="1")) == encode_version(0)
    assert registry.get_or_create(TOPIC, schema(plain, a="1")) == encode_version(1)


# --- compatible schemas ---


COMPATIBLE = {
    "a field with a default comes": (record(field("a")), record(field("a"), field("b", default=0))),
    "a field with a default goes": (record(field("a"), field("b", default=0)), record(field("a"))),
    "fields change places": (record(field("a"), field("b")), record(field("b"), field("a"))),
    "a field that may be null comes": (record(), record(field("a", ["null", "int"], default=None))),
    "bytes and text": (record(field("a", "bytes")), record(field("a", "string"))),
    "a name gets a package": (record(), record(namespace="com.acme")),
    "documentation": (record(), record(doc="An order.")),
    "a logical type": (
        record(field("a", "long")),
        record(field("a", {"type": "long", "logicalType": "timestamp-weeks"})),
    ),
    "a type in a type": (record(field("a", "string")), record(field("a", {"type": {"type": "string"}}))),
    "a record within itself": (
        record(field("next", ["null", "Order"])),
        record(field("next", ["null", "Order"]), field("a", default=0)),
    ),
    "a class in a class": (record(name="Shop$Order"), record(field("a", default=0), name="Shop$Order")),
    "a default that is not needed": (
        record(field("a", ["null", "string"])),
        record(field("a", ["null", "string"], default="x")),
    ),
    "another name": (record(name="Order"), record(name="Invoice")),
    "another name of a record in a union": tuple(
        record(field("a", ["null", record(field("x"), name=name)])) for name in ("In", "Other")
    ),
    "a symbol comes": tuple(
        record(field("a", {"type": "enum", "name": "E", "symbols": symbols})) for symbols in (["A"], ["A", "B"])
    ),
    "a symbol goes": tuple(
        record(field("a", {"type": "enum", "name": "E", "symbols": symbols})) for symbols in (["A", "B"], ["A"])
    ),
}
INCOMPATIBLE = {
    "a field without a default comes": (record(field("a")), record(field("a"), field("b"))),
    "a field without a default goes": (record(field("a"), field("b")), record(field("a"))),
    "another type": (record(field("a", "int")), record(field("a", "string"))),
    "a wider type": (record(field("a", "int")), record(field("a", "long"))),
    "a narrower type": (record(field("a", "long")), record(field("a", "int"))),
    "another name of an enum": tuple(
        record(field("a", {"type": "enum", "name": name, "symbols": ["A"]})) for name in ("E", "Other")
    ),
    "a default of another type": (record(), record(field("a", ["null", "string"], default="x"))),
    "a default that lacks a field": (
        record(),
        record(field("a", record(field("x"), field("y"), name="In"), default={"x": 1})),
    ),
    "null comes": (record(field("a", "int")), record(field("a", ["null", "int"]))),
    "null goes": (record(field("a", ["null", "int"])), record(field("a", "int"))),
    "another size": tuple(record(field("a", {"type": "fixed", "name": "F", "size": size})) for size in (4, 8)),
    "items": tuple(record(field("a", {"type": "array", "items": items})) for items in ("int", "string")),
    "values": tuple(record(field("a", {"type": "map", "values": values})) for values in ("int", "string")),
    "deep within": tuple(
        record(field("a", {"type": "array", "items": record(field("x", kind), name="In")}))
        for kind in ("int", "string")
    ),
}


@pytest.mark.parametrize("kind", [S.Json, S.Avro])
@pytest.mark.parametrize("case", COMPATIBLE)
def test_a_schema_that_both_sides_can_read_is_accepted(
    registry: SchemaRegistry, case: str, kind: S.Type.ValueType, recwarn: pytest.WarningsRecorder
) -> None:
    old, new = COMPATIBLE[case]
    registry.get_or_create(TOPIC, schema(old, kind))
    assert registry.get_or_create(TOPIC, schema(new, kind)) == encode_version(1)
    assert not recwarn.list


@pytest.mark.parametrize("kind", [S.Json, S.Avro])
@pytest.mark.parametrize("case", INCOMPATIBLE)
def test_a_schema_that_one_side_cannot_read_is_refused(
    registry: SchemaRegistry, case: str, kind: S.Type.ValueType
) -> None:
    old, new = INCOMPATIBLE[case]
    registry.get_or_create(TOPIC, schema(old, kind))
    refused(lambda: registry.get_or_create(TOPIC, schema(new, kind)))
    assert len(registry.versions(TOPIC)) == 1


def test_a_refusal_says_which_side_fails_on_what(registry: SchemaRegistry) -> None:
    registry.get_or_create(TOPIC, schema(record(field("a"))))
    message = refused(lambda: registry.get_or_create(TOPIC, schema(record(field("a"), field("price")))))
    assert "cannot read the topic's data" in message
    assert "default" in message
    assert "price" in message


def test_only_the_newest_version_counts(registry: SchemaRegistry) -> None:
    registry.get_or_create(TOPIC, schema(record(field("a", "int", default=0))))
    registry.get_or_create(TOPIC, schema(record()))
    assert registry.get_or_create(TOPIC, schema(record(field("a", "string", default="")))) == encode_version(2)


def test_another_type_is_refused(registry: SchemaRegistry) -> None:
    registry.get_or_create(TOPIC, schema(record(), S.Json))
    message = refused(lambda: registry.get_or_create(TOPIC, schema(record(), S.Avro)))
    assert "JSON" in message
    assert "AVRO" in message
    refused(lambda: registry.get_or_create(TOPIC, raw(b"", S.String)))


def test_key_and_value_follow_their_own_rules(registry: SchemaRegistry) -> None:
    text = raw(b"", S.String)
    registry.get_or_create(TOPIC, key_value(text, schema(record(field("a")))))
    grown = key_value(text, schema(record(field("a"), field("b", default=0))))
    assert registry.get_or_create(TOPIC, grown) == encode_version(1)
    assert "value" in refused(lambda: registry.get_or_create(TOPIC, key_value(text, schema(record(field("c"))))))
    other_key = key_value(raw(b"", S.Int32), schema(record(field("a"))))
    assert "key" in refused(lambda: registry.get_or_create(TOPIC, other_key))


def test_key_value_schemas_that_differ_only_in_their_types_are_not_the_same(registry: SchemaRegistry) -> None:
    text, number = raw(b"", S.String), raw(b"", S.Int32)
    registry.get_or_create(TOPIC, key_value(text, number))
    refused(lambda: registry.get_or_create(TOPIC, key_value(number, text)))


def test_the_root_message_of_a_protobuf_must_stay(registry: SchemaRegistry) -> None:
    def native(root: str, descriptors: str) -> S:
        return schema({"fileDescriptorSet": descriptors, "rootMessageTypeName": root}, S.ProtobufNative)

    registry.get_or_create(TOPIC, native("acme.Order", "AAAA"))
    assert registry.get_or_create(TOPIC, native("acme.Order", "BBBB")) == encode_version(1)
    assert "acme.Invoice" in refused(lambda: registry.get_or_create(TOPIC, native("acme.Invoice", "AAAA")))


# --- strategies ---


@pytest.mark.parametrize("policies", [SchemaPolicies(Strategy.ALWAYS_INCOMPATIBLE), NO_UPDATES])
@pytest.mark.parametrize(
    "same",
    [
        schema(record(field("a")), __jsr310ConversionEnabled="false"),
        schema(record(field("a"), doc="An order.", aliases=["Purchase"])),
        schema(record(field("a", doc="A number.", aliases=["b"]))),
    ],
)
def test_the_same_definition_is_accepted_under_always_incompatible(
    registry: SchemaRegistry, policies: SchemaPolicies, same: S
) -> None:
    assert registry.get_or_create(TOPIC, schema(record(field("a")))) == encode_version(0)
    assert registry.get_or_create(TOPIC, same, policies) == encode_version(0)
    refused(lambda: registry.get_or_create(TOPIC, schema(record(field("b", default=0))), policies))
    assert len(registry.versions(TOPIC)) == 1


def test_a_default_with_words_of_documentation_is_part_of_the_definition(registry: SchemaRegistry) -> None:
    first, second = (
        schema(record(field("a", {"type": "map", "values": "string"}, default={"doc": text}))) for text in ("x", "y")
    )
    registry.get_or_create(TOPIC, first)
    refused(lambda: registry.get_or_create(TOPIC, second, NO_UPDATES))


def test_without_updates_not_even_the_first_schema_comes_from_a_client(registry: SchemaRegistry) -> None:
    assert "isAllowAutoUpdateSchema" in refused(lambda: registry.get_or_create(TOPIC, schema(record()), NO_UPDATES))
    refused(lambda: registry.check_consumer(TOPIC, schema(record()), NO_UPDATES))
    assert registry.get(TOPIC) is None


def test_strategies_start_again_where_schemas_were_cleared(registry: SchemaRegistry) -> None:
    never = SchemaPolicies(Strategy.ALWAYS_INCOMPATIBLE)
    registry.get_or_create(TOPIC, schema(record()))
    registry.clear(TOPIC)
    assert registry.get_or_create(TOPIC, raw(b"", S.String), never) == encode_version(1)
    transitive = SchemaPolicies(Strategy.FULL_TRANSITIVE)
    assert registry.get_or_create(TOPIC, raw(b"", S.String), transitive) == encode_version(1)


def test_definitions_that_lead_from_record_to_record_too_deep_are_refused(registry: SchemaRegistry) -> None:
    def chain(name: str) -> S:
        # Each record names the one before: the definition is flat, and what it describes is not.
        links = [field(f"l{at}", record(field("next", f"R{at - 1}"), name=f"R{at}")) for at in range(1, 1200)]
        everything = record(field("l0", record(name="R0")), *links, name="All")
        return schema(record(field(name, ["null", everything], default=None), field("last", "R1199")))

    registry.get_or_create(TOPIC, chain("old"))
    assert "too deep" in refused(lambda: registry.get_or_create(TOPIC, chain("new")))


# --- consumers ---


def test_a_consumer_that_can_read_the_newest_version_is_accepted_and_stores_nothing(registry: SchemaRegistry) -> None:
    registry.get_or_create(TOPIC, schema(record(field("a", "int"))))
    wider = schema(record(field("a", "long")))
    assert registry.check_consumer(TOPIC, wider) == encode_version(0)
    assert len(registry.versions(TOPIC)) == 1
    refused(lambda: registry.get_or_create(TOPIC, wider))


def test_a_consumer_that_could_not_read_the_newest_is_refused(registry: SchemaRegistry) -> None:
    registry.get_or_create(TOPIC, schema(record(field("a", "long"))))
    refused(lambda: registry.check_consumer(TOPIC, schema(record(field("a", "int")))))
    refused(lambda: registry.check_consumer(TOPIC, raw(b"", S.String)))


def test_the_first_schema_of_a_topic_may_be_a_consumers(registry: SchemaRegistry) -> None:
    assert registry.check_consumer(TOPIC, schema(record())) == encode_version(0)
    assert len(registry.versions(TOPIC)) == 1


# --- definitions that are none ---


@pytest.mark.parametrize("kind", [S.Json, S.Avro, S.Protobuf])
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        b"\xff\xfe",
        b"{}",
        b"7",
        b'"nothing"',
        b'{"type":"record"}',
        b'{"type":"record","name":"a","fields":7}',
        b'{"type":"record","name":"a","fields":[7]}',
        b'{"type":"record","name":"a","fields":[{"name":"x","type":"unheard"}]}',
        b'{"type":"enum","name":"a","symbols":[[]]}',
        b'{"type":"record","name":"a","fields":[],"default":NaN}',
        b'{"type":"object","properties":{}}',
        b"[" * 100_000,
        b'{"type":"array","items":' * 500 + b'"int"' + b"}" * 500,
        b'{"type":"fixed","name":"a","size":' + b"9" * 10_000 + b"}",
    ],
)
def test_a_definition_that_is_not_valid_avro_is_refused(
    registry: SchemaRegistry, kind: S.Type.ValueType, data: bytes
) -> None:
    refused(lambda: registry.get_or_create(TOPIC, raw(data, kind)))
    assert registry.get(TOPIC) is None


def test_an_avro_schema_that_is_a_union_is_refused_as_in_pulsar(registry: SchemaRegistry) -> None:
    refused(lambda: registry.get_or_create(TOPIC, schema(["null", record()], S.Avro)))
    assert registry.get_or_create(TOPIC, schema(["null", record()], S.Json)) == encode_version(0)


@pytest.mark.parametrize(
    ("given", "good"),
    [
        (raw(b"", S.String), True),
        (raw(b"null", S.String), True),
        (raw(b"x", S.String), False),
        (raw(b"", S.Int64), True),
        (raw(b"x", S.Int64), False),
        (raw(b"anything", S.External), True),
        (raw(b"{}", S.ProtobufNative), False),
        (raw(b"[]", S.ProtobufNative), False),
        (raw(bytes(8), S.KeyValue), True),
        (raw(b"\xff\xff\xff\xff" * 2, S.KeyValue), True),
        (raw(bytes(7), S.KeyValue), False),
        (raw(bytes(9), S.KeyValue), False),
        (raw(b"\x7f\xff\xff\xff", S.KeyValue), False),
        (raw(bytes(8), S.KeyValue, key__schema__type="UNHEARD"), False),
        (raw(bytes(8), S.KeyValue, key__schema__type="AUTO_CONSUME"), False),
        (raw(bytes(8), S.KeyValue, key__schema__type="JSON"), False),
    ],
)
def test_each_type_says_what_its_definition_may_be(registry: SchemaRegistry, given: S, *, good: bool) -> None:
    if good:
        assert registry.get_or_create(TOPIC, given) == encode_version(0)
    else:
        refused(lambda: registry.get_or_create(TOPIC, given))


# --- bounds ---


def test_a_schema_that_is_too_large_is_refused(registry: SchemaRegistry) -> None:
    large = schema(record(doc="x" * MAX_SCHEMA_BYTES))
    assert str(MAX_SCHEMA_BYTES) in refused(lambda: registry.get_or_create(TOPIC, large))


def test_versions_are_limited_by_the_metadata_stores_value_size() -> None:
    registry = SchemaRegistry(MemoryMetadataStore(max_value_bytes=2000), PATHS)
    registry.get_or_create(TOPIC, schema(record(doc="x" * 1000)))
    message = refused(lambda: registry.get_or_create(TOPIC, schema(record(doc="y" * 1000))), wire.NotAllowedError)
    assert "2000" in message
    assert len(registry.versions(TOPIC)) == 1


def test_the_number_of_versions_is_bounded(registry: SchemaRegistry, metadata: MemoryMetadataStore) -> None:
    registry.get_or_create(TOPIC, schema(record()))
    stored = metadata.get(NODE)
    assert stored is not None
    (row,) = json.loads(stored.value)["versions"]
    metadata.put(NODE, json.dumps({"versions": [row] * MAX_VERSIONS}).encode(), stored.version)
    refused(lambda: registry.get_or_create(TOPIC, schema(record(doc="new"))), wire.NotAllowedError)
    assert registry.get_or_create(TOPIC, schema(record())) == encode_version(0)


def test_definitions_made_to_be_slow_are_refused_in_time(registry: SchemaRegistry) -> None:
    def wide(letter: str) -> S:
        branches = [record(name=f"{letter}{i}") for i in range(1000)]
        return schema(record(field("a", branches)))

    registry.get_or_create(TOPIC, wide("x"))
    began = time.perf_counter()
    message = refused(lambda: registry.get_or_create(TOPIC, wide("y")))
    assert f"{avro_compatibility.MAX_STEPS:,}" in message
    assert time.perf_counter() - began < 10


# --- the store ---


def test_two_producers_at_once_get_two_versions_or_share_one(metadata: MemoryMetadataStore) -> None:
    registry = SchemaRegistry(metadata, PATHS)
    registry.get_or_create(TOPIC, schema(record()))
    given = [schema(record(field(f"f{i % 4}", default=0))) for i in range(8)]
    versions: list[bytes] = [b""] * len(given)
    ready = threading.Barrier(len(given))

    def produce(index: int) -> None:
        ready.wait()
        versions[index] = registry.get_or_create(TOPIC, given[index])

    threads = [threading.Thread(target=produce, args=(index,)) for index in range(len(given))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert versions[:4] == versions[4:]
    assert sorted(map(decode_version, versions[:4])) == [1, 2, 3, 4]
    for version, each in zip(versions, given, strict=True):
        found = registry.get(TOPIC, version)
        assert found is not None
        assert found.schema.schema_data == each.schema_data


@pytest.mark.parametrize("applied", [True, False])
def test_an_unknown_outcome_is_read_again_and_never_stored_twice(*, applied: bool) -> None:
    class Doubtful(MemoryMetadataStore):
        doubts = 1

        def put(self, path: str, value: bytes, expected_version: int, *, guard: str | None = None) -> int:
            if self.doubts:
                self.doubts -= 1
                if applied:
                    super().put(path, value, expected_version, guard=guard)
                raise CommitUnknown("no answer")
            return super().put(path, value, expected_version, guard=guard)

    registry = SchemaRegistry(Doubtful(), PATHS)
    assert registry.get_or_create(TOPIC, schema(record())) == encode_version(0)
    assert len(registry.versions(TOPIC)) == 1


def test_an_outcome_that_stays_unknown_raises(metadata: MemoryMetadataStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def put(*_args: object) -> int:
        raise CommitUnknown("no answer")

    monkeypatch.setattr(metadata, "put", put)
    with pytest.raises(CommitUnknown):
        SchemaRegistry(metadata, PATHS).get_or_create(TOPIC, schema(record()))


@pytest.mark.parametrize("value", [b"", b"garbage", b"[]", b"{}", b'{"versions":7}', b'{"versions":[{}]}'])
def test_a_corrupt_node_is_named_and_not_changed(
    registry: SchemaRegistry, metadata: MemoryMetadataStore, value: bytes
) -> None:
    metadata.put(NODE, value, -1)
    for call in (
        lambda: registry.get(TOPIC),
        lambda: registry.versions(TOPIC),
        lambda: registry.get_or_create(TOPIC, schema(record())),
    ):
        with pytest.raises(CorruptMetadata, match="acme/sales/orders"):
            call()
    stored = metadata.get(NODE)
    assert stored is not None
    assert stored.value == value


def test_a_corrupt_version_is_named(registry: SchemaRegistry, metadata: MemoryMetadataStore) -> None:
    metadata.put(NODE, b'{"versions":[{"digest":"x","type":"Unheard","data":"","properties":[],"created_ms":0}]}', -1)
    with pytest.raises(CorruptMetadata, match="version 0"):
        registry.get(TOPIC)


def test_deleting_a_topic_deletes_its_schemas(registry: SchemaRegistry, metadata: MemoryMetadataStore) -> None:
    registry.get_or_create(TOPIC, schema(record()))
    registry.delete(TOPIC)
    assert registry.get(TOPIC) is None
    assert metadata.get(NODE) is None
    registry.delete(TOPIC)
    assert registry.get_or_create(TOPIC, raw(b"", S.String)) == encode_version(0)


def test_clearing_deletes_the_schemas_and_keeps_their_numbers(registry: SchemaRegistry) -> None:
    registry.clear(TOPIC)
    registry.get_or_create(TOPIC, schema(record()))
    registry.get_or_create(TOPIC, schema(record(field("a", default=0))))
    registry.clear(TOPIC)
    registry.clear(TOPIC)
    assert registry.get(TOPIC) is None
    assert registry.get(TOPIC, encode_version(0)) is None
    assert registry.versions(TOPIC) == ()
    assert registry.get_or_create(TOPIC, raw(b"", S.String)) == encode_version(2)
    assert registry.get_or_create(TOPIC, raw(b"", S.String)) == encode_version(2)
    assert [found.version for found in registry.versions(TOPIC)] == [encode_version(2)]


def test_deleting_one_partition_keeps_the_schemas(registry: SchemaRegistry) -> None:
    registry.get_or_create(TOPIC.partition(0), schema(record()))
    registry.delete(TOPIC.partition(0))
    assert registry.get(TOPIC.partition(1)) is not None
