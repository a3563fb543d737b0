"""Typed messages for tests: batches of them, and random Avro definitions with values that fit them."""

from __future__ import annotations

import io
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from avro.io import BinaryEncoder, DatumWriter
from avro.schema import parse

from afterglow.format.schema import MESSAGES
from afterglow.read.typed import TypedColumns

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from afterglow.format.schema import SchemaVersion

TOPIC = "persistent://public/default/typed"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def version(number: int) -> bytes:
    """A version as messages carry it."""
    return number.to_bytes(8, "big")


def messages(
    values: Sequence[bytes | None],
    versions: Sequence[bytes | None] | None = None,
    *,
    keys: Sequence[bytes | None] | None = None,
    encrypted: Sequence[bool] | None = None,
) -> pa.RecordBatch:
    """Messages of which only this is known; by default all are of version 0."""
    count = len(values)
    given = {
        "value": values,
        "schema_version": [version(0)] * count if versions is None else versions,
        "key": [None] * count if keys is None else keys,
        "encrypted": [False] * count if encrypted is None else encrypted,
        "entry_id": range(count),
    }
    columns = [pa.array(given.get(field.name, [None] * count), field.type) for field in MESSAGES]
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGES)


def typed(
    schemas: Sequence[SchemaVersion], batch: pa.RecordBatch, columns: Sequence[str] = ("value", "_corrupt")
) -> list[dict[str, Any]]:
    """The rows of a batch with typed columns; every array is checked to be well-formed."""
    rows: list[dict[str, Any]] = []
    decoder = TypedColumns({TOPIC: schemas}, columns)
    for piece in decoder.of(batch.select(decoder.needed), TOPIC):
        piece.validate(full=True)
        assert piece.schema == decoder.schema
        rows += piece.to_pylist()
    assert len(rows) == batch.num_rows
    return rows


def encode_avro(definition: str, datum: Any) -> bytes:
    """A value in Avro's binary encoding, by Avro's own library."""
    out = io.BytesIO()
    DatumWriter(parse(definition)).write(datum, BinaryEncoder(out))
    return out.getvalue()


class RandomTypes:
    """Random definitions, and random values of them together with what a column is to hold."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._names = 0

    def record(self, depth: int = 3) -> dict[str, Any]:
        """A record with some fields."""
        fields = [{"name": f"f{number}", "type": self._type(depth - 1)} for number in range(self._random.randint(1, 6))]
        return {"type": "record", "name": self._name("Record"), "fields": fields}

    def value(self, kind: Any) -> tuple[Any, Any]:
        """A value as Avro's library writes it, and as a column has it."""
        random = self._random
        if isinstance(kind, list):
            branch = random.randrange(len(kind))
            given, held = self.value(kind[branch])
            members = [f"member_{_named(part)}" for part in kind if part != "null"]
            if len(members) < 2 or kind[branch] == "null":
                return given, held
            chosen = f"member_{_named(kind[branch])}"
            return given, {name: held if name == chosen else None for name in members}
        if isinstance(kind, str):
            kind = {"type": kind}
        match kind["type"], kind.get("logicalType"):
            case "null", _:
                return None, None
            case "int", "date":
                day = date(1970, 1, 1) + timedelta(random.randint(-700_000, 2_900_000))
                return day, day
            case "long", "timestamp-millis":
                moment = _EPOCH + timedelta(milliseconds=random.randint(-(10**12), 10**13))
                return moment, moment
            case "long", "timestamp-micros":
                moment = _EPOCH + timedelta(microseconds=random.randint(-(10**15), 10**16))
                return moment, moment
            case "int", "time-millis":
                clock = time(
                    random.randrange(24), random.randrange(60), random.randrange(60), 1000 * random.randrange(1000)
                )
                return clock, clock
            case "long", "time-micros":
                clock = time(random.randrange(24), random.randrange(60), random.randrange(60), random.randrange(10**6))
                return clock, clock
            case "bytes", "decimal":
                number = random.randint(-(10 ** kind["precision"]) + 1, 10 ** kind["precision"] - 1)
                amount = Decimal((number < 0, tuple(map(int, str(abs(number)))), -kind["scale"]))
                return amount, amount
            case "boolean", _:
                held = random.random() < 0.5
            case "int", _:
                held = random.choice([0, -1, 2**31 - 1, -(2**31), random.randint(-1000, 1000)])
            case "long", _:
                held = random.choice([0, 2**63 - 1, -(2**63), random.randint(-(10**12), 10**12)])
            case "float", _:
                held = random.choice([0.0, -1.5, 2.0**100, random.randint(-1000, 1000) / 8])
            case "double", _:
                held = random.choice([0.0, -0.1, 1e300, random.random()])
            case "string", _:
                held = "".join(random.choice('ab\u00e9\u20ac\U0001f600"\\\n') for _ in range(random.randint(0, 12)))
            case "bytes", _:
                held = random.randbytes(random.randint(0, 20))
            case "fixed", _:
                held = random.randbytes(kind["size"])
            case "enum", _:
                held = random.choice(kind["symbols"])
            case "array", _:
                both = [self.value(kind["items"]) for _ in range(random.choice([0, 1, 2, 5]))]
                return [given for given, _ in both], [held for _, held in both]
            case "map", _:
                entries = {f"k{number}": self.value(kind["values"]) for number in range(random.choice([0, 1, 3]))}
                return {key: given for key, (given, _) in entries.items()}, [
                    (key, held) for key, (_, held) in entries.items()
                ]
            case _:
                pairs = {field["name"]: self.value(field["type"]) for field in kind["fields"]}
                return {name: given for name, (given, _) in pairs.items()}, {
                    name: held for name, (_, held) in pairs.items()
                }
        return held, held

    def _type(self, depth: int) -> Any:
        random = self._random
        if depth > 0 and random.random() < 0.5:
            match random.randrange(5):
                case 0:
                    return {"type": "array", "items": self._type(depth - 1)}
                case 1:
                    return {"type": "map", "values": self._type(depth - 1)}
                case 2:
                    return self.record(depth)
                case 3:
                    return random.choice([["null", "string", "long"], ["double", "null", "boolean"], ["bytes", "int"]])
                case _:
                    inner = self._type(depth - 1)
                    return inner if isinstance(inner, list) else random.choice([["null", inner], [inner, "null"]])
        return random.choice(
            [
                "boolean", "int", "long", "float", "double", "string", "bytes",
                {"type": "int", "logicalType": "date"},
                {"type": "int", "logicalType": "time-millis"},
                {"type": "long", "logicalType": "time-micros"},
                {"type": "long", "logicalType": "timestamp-millis"},
                {"type": "long", "logicalType": "timestamp-micros"},
                {"type": "bytes", "logicalType": "decimal", "precision": random.choice([4, 18, 38]), "scale": 2},
                {"type": "enum", "name": self._name("Enum"), "symbols": ["red", "green", "blue"]},
                {"type": "fixed", "name": self._name("Fixed"), "size": random.choice([1, 16])},
            ]
        )  # fmt: skip

    def _name(self, kind: str) -> str:
        self._names += 1
        return f"{kind}{self._names}"


def _named(part: Any) -> str:
    name = part if isinstance(part, str) else part.get("name", part["type"])
    return str(name).lower()
