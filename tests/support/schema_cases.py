"""Schemas that clients bring to a topic one after the other, with what Pulsar 4.0 answers under each strategy."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Flag
from typing import TYPE_CHECKING, Any, Final, Protocol

from tests.support.raw_client import ErrorAnswer, RawClient

from afterglow.config.choices import SchemaCompatibilityStrategy as Strategy
from afterglow.format.proto import pulsar_api_pb2 as wire

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


STRATEGIES: Final = tuple(strategy for strategy in Strategy if strategy is not Strategy.UNDEFINED)
REFUSED: Final = "refused"
TAKEN: Final = "taken"
NO_VERSION: Final = "no version"
TENANT: Final = "schemas"
_NONE: Final = wire.Schema.Type.Value("None")


@dataclass(frozen=True, slots=True)
class Step:
    """One client with a schema, or without."""

    role: str
    """``produce``, ``consume``, ``stay`` (a consumer that stays connected), or ``create`` (GET_OR_CREATE_SCHEMA)."""
    schema: wire.Schema | None
    answer: str
    """The number of the version, or one of the words above."""


@dataclass(frozen=True, slots=True)
class Case:
    """What happens to one topic."""

    name: str
    strategy: Strategy
    steps: tuple[Step, ...]


class Server(Protocol):
    """A running broker with its admin API."""

    @property
    def service_url(self) -> str:
        """Where it speaks Pulsar's protocol."""
        ...

    def admin(self, method: str, path: str, body: object = None) -> Any:
        """Call its admin API."""
        ...


def prepare(server: Server, cluster: str) -> None:
    """Make a namespace for each strategy; a topic that is opened later obeys it from the start."""
    server.admin("PUT", f"tenants/{TENANT}", {"allowedClusters": [cluster]})
    for strategy in STRATEGIES:
        server.admin("PUT", f"namespaces/{TENANT}/{strategy}")
        server.admin("PUT", f"namespaces/{TENANT}/{strategy}/schemaCompatibilityStrategy", strategy)


def run(server: Server, number: int, case: Case) -> tuple[str, ...]:
    """Do the steps of a case on a topic of its own; returns the answers."""
    topic = f"persistent://{TENANT}/{case.strategy}/t{number}"
    with RawClient(server.service_url) as client:
        client.lookup(topic)
        return tuple(_answer(client, topic, f"s{at}", step) for at, step in enumerate(case.steps))


def _answer(client: RawClient, topic: str, subscription: str, step: Step) -> str:
    try:
        match step.role:
            case "produce":
                return _number(client.schema_version(topic, step.schema))
            case "create":
                assert step.schema is not None
                return _number(client.get_or_create_schema(topic, step.schema))
            case "consume" | "stay":
                consumer = client.subscribe(topic, subscription, schema=step.schema)
                if step.role == "consume":
                    client.close_consumer(consumer)
                return TAKEN
    except ErrorAnswer:
        return REFUSED
    raise AssertionError(step.role)


def _number(version: bytes) -> str:
    return str(int.from_bytes(version, "big")) if version else NO_VERSION


# --- schemas ---


def schema(definition: Any = None, kind: wire.Schema.Type.ValueType = wire.Schema.Avro) -> wire.Schema:
    """A schema of a definition in JSON, or without any."""
    return wire.Schema(
        name="given", type=kind, schema_data=b"" if definition is None else json.dumps(definition).encode()
    )


def record(*fields: dict[str, Any], name: str = "Order", **rest: Any) -> dict[str, Any]:
    """A definition of Avro."""
    return {"type": "record", "name": name, "fields": list(fields), **rest}


def field(name: str, kind: Any = "int", **rest: Any) -> dict[str, Any]:
    """A field of one."""
    return {"name": name, "type": kind, **rest}


def pair(key: wire.Schema, value: wire.Schema) -> wire.Schema:
    """A schema of key and value."""
    names = {
        wire.Schema.String: "STRING",
        wire.Schema.Int32: "INT32",
        wire.Schema.Avro: "AVRO",
        wire.Schema.Json: "JSON",
    }
    sides = {"key": key, "value": value}
    return wire.Schema(
        name="given",
        type=wire.Schema.KeyValue,
        schema_data=b"".join(len(side.schema_data).to_bytes(4, "big") + side.schema_data for side in sides.values()),
        properties=[wire.KeyValue(key=f"{part}.schema.type", value=names[side.type]) for part, side in sides.items()],
    )


def _enum(*symbols: str, name: str = "E", **rest: Any) -> dict[str, Any]:
    return record(field("a", {"type": "enum", "name": name, "symbols": list(symbols), **rest}))


def _fixed(size: int, name: str = "F") -> dict[str, Any]:
    return record(field("a", {"type": "fixed", "name": name, "size": size}))


def _inner(kind: str, name: str = "In", **rest: Any) -> dict[str, Any]:
    return record(field("x", kind), name=name, **rest)


class Reads(Flag):
    """Which of two definitions can read what is written with the other."""

    NEITHER = 0
    NEW = 1
    OLD = 2
    BOTH = 3


PAIRS: Final[tuple[tuple[str, Any, Any, Reads], ...]] = (
    # What changes, the old definition, the new one, which of them reads the other.
    ("a field with a default comes", record(field("a")), record(field("a"), field("b", default=0)), Reads.BOTH),
    ("a field with a default goes", record(field("a"), field("b", default=0)), record(field("a")), Reads.BOTH),
    ("a field without a default comes", record(field("a")), record(field("a"), field("b")), Reads.OLD),
    ("a field without a default goes", record(field("a"), field("b")), record(field("a")), Reads.NEW),
    ("a field that may be null comes", record(), record(field("a", ["null", "int"], default=None)), Reads.BOTH),
    ("fields change places", record(field("a"), field("b")), record(field("b"), field("a")), Reads.BOTH),
    ("a field gets another name", record(field("a")), record(field("b")), Reads.NEITHER),
    ("a field gets another name and an alias", record(field("a")), record(field("b", aliases=["a"])), Reads.NEW),
    ("another name", record(field("a")), record(field("a"), name="Invoice"), Reads.BOTH),
    ("another namespace", record(field("a")), record(field("a"), namespace="com.acme"), Reads.BOTH),
    (
        "another name of a record within",
        record(field("a", _inner("int"))),
        record(field("a", _inner("int", name="Other"))),
        Reads.BOTH,
    ),
    (
        "another name of a record in a union",
        record(field("a", ["null", _inner("int")])),
        record(field("a", ["null", _inner("int", name="Other")])),
        Reads.BOTH,
    ),
    (
        "another name and another field of a record in a union",
        record(field("a", ["null", _inner("int")])),
        record(field("a", ["null", record(field("y"), name="Other")])),
        Reads.NEITHER,
    ),
    ("a wider type", record(field("a", "int")), record(field("a", "long")), Reads.NEW),
    ("a narrower type", record(field("a", "double")), record(field("a", "float")), Reads.OLD),
    ("another type", record(field("a", "int")), record(field("a", "string")), Reads.NEITHER),
    ("bytes become text", record(field("a", "bytes")), record(field("a", "string")), Reads.BOTH),
    ("null comes", record(field("a", "int")), record(field("a", ["null", "int"])), Reads.NEW),
    ("null goes", record(field("a", ["null", "int"])), record(field("a", "int")), Reads.OLD),
    ("a branch comes", record(field("a", ["null", "int"])), record(field("a", ["null", "int", "string"])), Reads.NEW),
    ("a branch is promoted", record(field("a", ["null", "int"])), record(field("a", ["null", "long"])), Reads.NEW),
    ("branches change places", record(field("a", ["null", "int"])), record(field("a", ["int", "null"])), Reads.BOTH),
    ("a symbol comes", _enum("A"), _enum("A", "B"), Reads.BOTH),
    ("a symbol goes", _enum("A", "B"), _enum("A"), Reads.BOTH),
    ("an enum gets another name", _enum("A"), _enum("A", name="Other"), Reads.NEITHER),
    ("an enum gets another name and an alias", _enum("A"), _enum("A", name="Other", aliases=["E"]), Reads.NEW),
    ("another size", _fixed(4), _fixed(8), Reads.NEITHER),
    ("a fixed type gets another name", _fixed(4), _fixed(4, "Other"), Reads.NEITHER),
    (
        "items become wider",
        record(field("a", {"type": "array", "items": "int"})),
        record(field("a", {"type": "array", "items": "long"})),
        Reads.NEW,
    ),
    (
        "values become others",
        record(field("a", {"type": "map", "values": "int"})),
        record(field("a", {"type": "map", "values": "string"})),
        Reads.NEITHER,
    ),
    (
        "a record that holds itself gets a field",
        record(field("next", ["null", "Order"])),
        record(field("next", ["null", "Order"]), field("a", default=0)),
        Reads.BOTH,
    ),
    (
        "a type deep within",
        record(field("a", {"type": "array", "items": _inner("int")})),
        record(field("a", {"type": "array", "items": _inner("long")})),
        Reads.NEW,
    ),
    ("a record becomes a number", record(field("a")), "int", Reads.NEITHER),
    (
        "a logical type",
        record(field("a", "long")),
        record(field("a", {"type": "long", "logicalType": "timestamp-millis"})),
        Reads.BOTH,
    ),
)


def _follows(strategy: Strategy, reads: Reads) -> bool:
    match strategy:
        case Strategy.ALWAYS_COMPATIBLE:
            return True
        case Strategy.ALWAYS_INCOMPATIBLE:
            return False
        case Strategy.BACKWARD | Strategy.BACKWARD_TRANSITIVE:
            return Reads.NEW in reads
        case Strategy.FORWARD | Strategy.FORWARD_TRANSITIVE:
            return Reads.OLD in reads
    return reads is Reads.BOTH


def _is_let_in(strategy: Strategy, reads: Reads) -> bool:
    if strategy in {Strategy.ALWAYS_COMPATIBLE, Strategy.ALWAYS_INCOMPATIBLE, Strategy.FULL_TRANSITIVE}:
        return _follows(strategy, reads)
    return Reads.NEW in reads


def _pairs(
    name: str, old: wire.Schema, new: wire.Schema, reads: Reads, strategies: Iterable[Strategy]
) -> Iterator[Case]:
    for strategy in strategies:
        let_in = TAKEN if _is_let_in(strategy, reads) else REFUSED
        number = "1" if _follows(strategy, reads) else REFUSED
        steps = (Step("produce", old, "0"), Step("consume", new, let_in), Step("produce", new, number))
        yield Case(f"{name}, {wire.Schema.Type.Name(old.type)}", strategy, (*steps, Step("produce", old, "0")))


def _cases() -> Iterator[Case]:
    for name, old, new, reads in PAIRS:
        yield from _pairs(name, schema(old), schema(new), reads, STRATEGIES)
        json_type = wire.Schema.Json
        yield from _pairs(name, schema(old, json_type), schema(new, json_type), reads, [Strategy.FULL])
    text, number = schema(kind=wire.Schema.String), schema(kind=wire.Schema.Int32)
    bare = schema(record(field("a")))
    wider, other = schema(record(field("a", "long"))), schema(record(field("a", "string")))
    message, changed = (schema(record(field(name)), wire.Schema.Protobuf) for name in ("a", "b"))
    yield from _pairs(
        "another type of schema", bare, schema(record(field("a")), wire.Schema.Json), Reads.NEITHER, STRATEGIES
    )
    yield from _pairs("a primitive type becomes another", text, number, Reads.NEITHER, STRATEGIES)
    yield from _pairs("a record becomes a primitive type", bare, text, Reads.NEITHER, STRATEGIES)
    yield from _pairs("raw bytes become a record", schema(kind=_NONE), bare, Reads.NEITHER, STRATEGIES)
    yield from _pairs("a record becomes raw bytes", bare, schema(kind=_NONE), Reads.NEITHER, STRATEGIES)
    yield from _pairs("protobuf is not compared", message, changed, Reads.BOTH, STRATEGIES)
    yield from _pairs("a wider value", pair(text, bare), pair(text, wider), Reads.NEW, STRATEGIES)
    yield from _pairs("a wider key", pair(bare, text), pair(wider, text), Reads.NEW, STRATEGIES)
    yield from _pairs("another value", pair(text, bare), pair(text, other), Reads.NEITHER, STRATEGIES)
    yield from _pairs("another type of value", pair(text, bare), pair(text, text), Reads.NEITHER, STRATEGIES)
    for strategy in STRATEGIES:
        never = strategy is Strategy.ALWAYS_INCOMPATIBLE
        own = REFUSED if never else TAKEN
        for name, same in (
            ("a record", bare),
            ("text", text),
            ("raw bytes", schema(kind=_NONE)),
            ("a pair", pair(text, bare)),
        ):
            yield Case(
                f"{name} comes again",
                strategy,
                (Step("produce", same, "0"), Step("produce", same, "0"), Step("consume", same, own)),
            )
        yield Case(
            "clients without a schema, and with the wish for any",
            strategy,
            (
                Step("produce", bare, "0"),
                Step("produce", None, NO_VERSION),
                Step("consume", None, TAKEN),
                Step("consume", schema(kind=wire.Schema.AutoConsume), TAKEN),
                Step("produce", schema(kind=wire.Schema.AutoConsume), REFUSED),
                Step("create", schema(kind=_NONE), NO_VERSION),
                Step("create", bare, "0"),
            ),
        )
        yield Case(
            "the first schema is a consumer's",
            strategy,
            (Step("consume", bare, TAKEN), Step("produce", bare, "0"), Step("produce", bare, "0")),
        )
        yield Case(
            "a consumer's schema on a topic in use without one",
            strategy,
            (
                Step("stay", None, TAKEN),
                Step("consume", bare, TAKEN if strategy is Strategy.ALWAYS_COMPATIBLE else REFUSED),
                Step("produce", bare, "0"),
            ),
        )
        yield Case(
            "a consumer's schema beside a consumer that takes any",
            strategy,
            (Step("stay", schema(kind=wire.Schema.AutoConsume), TAKEN), Step("consume", bare, TAKEN)),
        )
        yield _transitive(strategy)


def _transitive(strategy: Strategy) -> Case:
    """A field goes, and comes back with another type: each version follows the one before, but not the first."""
    versions = [
        schema(record(field("a", "int", default=0))),
        schema(record()),
        schema(record(field("a", "string", default=""))),
    ]
    if strategy is Strategy.ALWAYS_INCOMPATIBLE:
        answers = ("0", REFUSED, REFUSED, REFUSED)
    elif strategy in {Strategy.BACKWARD_TRANSITIVE, Strategy.FULL_TRANSITIVE}:
        answers = ("0", "1", REFUSED, REFUSED)
    elif strategy is Strategy.FORWARD_TRANSITIVE:
        answers = ("0", "1", TAKEN, REFUSED)
    else:
        answers = ("0", "1", TAKEN, "2")
    roles = ("produce", "produce", "consume", "produce")
    given = (*versions, versions[2])
    steps = (Step(role, each, answer) for role, each, answer in zip(roles, given, answers, strict=True))
    return Case("the first version is not followed", strategy, tuple(steps))


CASES: Final = tuple(_cases())
