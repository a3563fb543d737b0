"""The messages of the demo: made from their numbers, and remembered as a digest of what a consumer can see of them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from afterglow.format.schema import TIME

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MEAN_BYTES: Final = 3_000
"""Of a value."""

_EVENT_MS: Final = 1_790_000_000_000
_DIGEST_BYTES: Final = 16

COLUMNS: Final = (
    "ledger_id",
    "entry_id",
    "batch_index",
    "broker_time",
    "event_time",
    "key",
    "properties",
    "value",
    "tier",
)
"""What a digest is made from, and what says where it came from."""

DIGESTS: Final = pa.schema(
    [
        pa.field("ledger_id", pa.int64()),
        pa.field("entry_id", pa.int64()),
        pa.field("batch_index", pa.int32()),
        pa.field("digest", pa.binary()),
        pa.field("broker_time", TIME),
        pa.field("value_bytes", pa.int32()),
        pa.field("tier", pa.string()),
    ]
)
"""What is left of messages once they are digested."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message as an application sends it."""

    key: str | None
    properties: Mapping[str, str]
    event_time_ms: int
    """0 where it has none."""
    value: bytes

    @property
    def digest(self) -> bytes:
        """Of all that it says."""
        key = None if self.key is None else self.key.encode()
        return _digest(key, self.properties, self.event_time_ms, self.value)


def make_message(number: int) -> Message:
    """The message of a number: half of its value can be compressed; some have keys, properties, event times."""
    draw = random.Random(number)  # noqa: S311 - reproducible, not secret
    return Message(
        key=f"key-{number % 97}" if number % 3 else None,
        properties={"number": str(number), "source": "demo"} if number % 5 == 0 else {},
        event_time_ms=_EVENT_MS + number if number % 2 else 0,
        value=draw.randbytes(draw.randrange(MEAN_BYTES)) + b"." * draw.randrange(MEAN_BYTES),
    )


def digest_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Digest messages that came back, in the task that has read them: the driver needs no more to compare."""
    return map(digest_batch, batches)


def digest_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """What is left of some messages."""
    values = batch.column("value")
    rows = zip(
        batch.column("key").to_pylist(),
        batch.column("properties").to_pylist(),
        batch.column("event_time").cast(pa.int64()).to_pylist(),
        values.to_pylist(),
        strict=True,
    )
    digests = [
        _digest(key, dict(properties), (event_us or 0) // 1000, value) for key, properties, event_us, value in rows
    ]
    made = {
        "digest": pa.array(digests, DIGESTS.field("digest").type),
        "value_bytes": pa.compute.binary_length(values),
    }
    columns = [made[name] if name in made else batch.column(name) for name in DIGESTS.names]
    return pa.RecordBatch.from_arrays(columns, schema=DIGESTS)


def _digest(key: bytes | None, properties: Mapping[str, str], event_time_ms: int, value: bytes | None) -> bytes:
    # The form of a tuple tells every two messages apart: absent from empty, one property from two.
    said = (key, tuple(sorted(properties.items())), event_time_ms, value)
    return blake2b(repr(said).encode(), digest_size=_DIGEST_BYTES).digest()
