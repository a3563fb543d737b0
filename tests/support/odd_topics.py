"""Random topics with chunked messages and transactions, and a plain reading of them to hold the fast one against.

Producers write beside each other. Some lose their connection in the middle of a chunked message and send chunks again,
from any chunk on, or never finish it; transactions are committed, aborted or left open, and their markers stand
anywhere behind their messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tests.support.oracle import decode_rows

from afterglow.errors import CorruptEntry
from afterglow.format.compression import Codec, compress, decompress
from afterglow.format.entry import decode_entry, encode_batch, encode_broker_metadata, encode_entry
from afterglow.format.frames import frame_entries, scan_frames
from afterglow.format.position import Position
from afterglow.format.proto.pulsar_api_pb2 import (
    CompressionType,
    EncryptionKeys,
    MessageMetadata,
    SingleMessageMetadata,
)
from afterglow.read.copies import FrameRun, ServedRun, StorageTier

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from tests.support.oracle import Row

_COMMIT: Final = 21
_ABORT: Final = 22


@dataclass(frozen=True, slots=True)
class OddTopic:
    """A topic in memory, as entries by ledger; all of it is around any part of it."""

    ledgers: dict[int, list[bytes]]
    """Ascending by id."""
    run_entries: int = 3
    """In a run, at most."""

    @property
    def positions(self) -> list[Position]:
        """Of all entries, in order."""
        return [Position(ledger, entry) for ledger, entries in self.ledgers.items() for entry in range(len(entries))]

    def runs(self, start: Position, end: Position) -> Iterator[ServedRun]:
        """The entries from ``start`` on that stand before ``end``."""
        for ledger_id, entries in self.ledgers.items():
            low = max(start.entry_id, 0) if ledger_id == start.ledger_id else 0
            high = min(end.entry_id, len(entries)) if ledger_id == end.ledger_id else len(entries)
            if not start.ledger_id <= ledger_id <= end.ledger_id:
                continue
            for first in range(low, high, self.run_entries):
                data = frame_entries(entries[first : min(first + self.run_entries, high)], first)
                yield ServedRun(FrameRun(ledger_id, memoryview(data), scan_frames(data, first)), StorageTier.HOT)

    def before(self, position: Position) -> Iterator[ServedRun]:
        """The entries before a position, the nearest run first."""
        return reversed(list(self.runs(Position(-1, -1), position)))

    def after(self, position: Position) -> Iterator[ServedRun]:
        """The entries from a position on."""
        return self.runs(position, Position(2**62, 0))

    def rows(self) -> list[Row]:
        """What a stock consumer would see, were there no undecided transactions that hold it up."""
        entries = [
            (Position(ledger, entry), data) for ledger, held in self.ledgers.items() for entry, data in enumerate(held)
        ]
        parsed = [(position, data, _metadata(data)) for position, data in entries]
        fates = {
            _transaction(metadata): metadata.marker_type == _COMMIT
            for _, _, metadata in parsed
            if metadata is not None and metadata.HasField("marker_type")
        }
        found: list[Row] = []
        begun: dict[Any, list[bytes]] = {}
        for position, data, metadata in parsed:
            if metadata is None or not fates.get(_transaction(metadata), _transaction(metadata) is None):
                continue
            rows = decode_rows(data, position.ledger_id, position.entry_id)
            if metadata.num_chunks_from_msg > 1:
                rows = _last_chunk(begun, metadata, rows[0])
            found += rows
        return found


def odd_topic(rng: random.Random, *, messages: int = 12, damaged: float = 0.0, stamped: float = 0.5) -> OddTopic:
    """A random topic.

    Args:
        rng: Where all its chances come from.
        messages: How many each of its producers sends, at most.
        damaged: Part of its entries whose checksum is wrong.
        stamped: Part of its entries that have a broker time.
    """
    transactions = [(rng.choice([0, 1, 2**64 - 1]), number) for number in range(rng.randint(0, 4))]
    streams = [
        _stream(rng, f"producer-{number}", rng.randint(0, messages), transactions)
        for number in range(rng.randint(1, 3))
    ]
    merged: list[tuple[tuple[int, int] | None, bytes]] = []
    while any(streams):
        stream = rng.choice([stream for stream in streams if stream])
        merged.append(stream.pop(0))
    for transaction in transactions:
        mine = [location for location, (owner, _) in enumerate(merged) if owner == transaction]
        if rng.random() < 0.8:
            location = rng.randint(mine[-1] + 1 if mine else 0, len(merged))
            merged.insert(location, (None, _marker(transaction, rng.choice([_COMMIT, _COMMIT, _ABORT]))))
    ledgers: dict[int, list[bytes]] = {}
    ledger_id = rng.randint(0, 5)
    for _, entry in merged:
        if rng.random() < 0.1:
            ledger_id += rng.randint(1, 3)
        stored = entry[:-1] + bytes([entry[-1] ^ 1]) if rng.random() < damaged else entry
        if rng.random() < stamped:
            stored = encode_broker_metadata(rng.randint(0, 10_000), None) + stored
        ledgers.setdefault(ledger_id, []).append(stored)
    return OddTopic(ledgers, rng.randint(1, 6))


def chunks(
    payload: bytes, count: int, codec: Codec = Codec.NONE, *, uuid: str = "p-1", encrypted: bool = False, **fields: Any
) -> list[bytes]:
    """The entries of a message in chunks."""
    stored = compress(codec, payload)
    size = -(-len(stored) // count)
    entries = []
    for number in range(count):
        metadata = MessageMetadata(
            **{"producer_name": "p", "sequence_id": 1, "publish_time": 1_000, **fields},
            uuid=uuid,
            num_chunks_from_msg=count,
            chunk_id=number,
            total_chunk_msg_size=len(stored),
            compression=CompressionType.ValueType(int(codec)),
            uncompressed_size=len(payload),
        )
        if encrypted:
            metadata.encryption_keys.append(EncryptionKeys(key="k", value=b"v"))
        entries.append(encode_entry(metadata, stored[number * size : (number + 1) * size]))
    return entries


def _stream(
    rng: random.Random, producer: str, messages: int, transactions: list[tuple[int, int]]
) -> list[tuple[tuple[int, int] | None, bytes]]:
    """The entries of one producer in the order in which it sends them, each with its transaction."""
    found: list[tuple[tuple[int, int] | None, bytes]] = []
    for sequence_id in range(messages):
        transaction = rng.choice([None, None, *transactions])
        fields: dict[str, Any] = {
            "producer_name": producer,
            # Now and then a producer has begun anew, with the numbers that it had before.
            "sequence_id": sequence_id if rng.random() < 0.9 else 0,
            "publish_time": rng.randint(1, 10_000),
        }
        if transaction is not None:
            fields |= {"txnid_most_bits": transaction[0], "txnid_least_bits": transaction[1]}
        found += [(transaction, entry) for entry in _message(rng, fields)]
    return found


def _message(rng: random.Random, fields: dict[str, Any]) -> list[bytes]:
    payload = rng.randbytes(rng.randint(0, 8)) * rng.randint(1, 20)
    kind = rng.choice(["plain", "batch", "chunked", "chunked", "chunked"])
    if kind == "plain":
        return [encode_entry(MessageMetadata(**fields, null_value=rng.random() < 0.1), payload)]
    if kind == "batch":
        count = rng.randint(1, 3)
        batch = encode_batch((SingleMessageMetadata(), payload) for _ in range(count))
        return [encode_entry(MessageMetadata(**fields, num_messages_in_batch=count), batch)]
    uuid = f"{fields['producer_name']}-{fields['sequence_id']}"
    sent = chunks(
        payload,
        rng.randint(2, 4),
        rng.choice(list(Codec)),
        uuid=uuid,
        encrypted=rng.random() < 0.2,
        **fields,
    )
    fate = rng.random()
    if fate < 0.3:  # the connection broke, and chunks were sent again
        broke = rng.randint(1, len(sent))
        return [*sent[:broke], *sent[rng.randint(0, broke) :]]
    if fate < 0.5:  # some never came
        return [entry for entry in sent if rng.random() < 0.7]
    return sent


def _marker(transaction: tuple[int, int], kind: int) -> bytes:
    most, least = transaction
    metadata = MessageMetadata(
        producer_name="pulsar.txn.marker",
        sequence_id=0,
        publish_time=1,
        marker_type=kind,
        txnid_most_bits=most,
        txnid_least_bits=least,
    )
    return encode_entry(metadata, b"")


def _metadata(entry: bytes) -> MessageMetadata | None:
    try:
        return decode_entry(entry).metadata
    except CorruptEntry:
        return None


def _transaction(metadata: MessageMetadata) -> tuple[int, int] | None:
    if metadata.HasField("txnid_most_bits") and metadata.HasField("txnid_least_bits"):
        return metadata.txnid_most_bits, metadata.txnid_least_bits
    return None


def _last_chunk(begun: dict[Any, list[bytes]], metadata: MessageMetadata, row: Row) -> list[Row]:
    """The row of a message whose last chunk this is; none where it is another one, or chunks are missing."""
    key = (metadata.uuid, _transaction(metadata))
    number = metadata.chunk_id
    shape = (metadata.num_chunks_from_msg, metadata.total_chunk_msg_size)
    held = [] if number == 0 else begun.pop((*key, shape), [])
    for stale in [other for other in begun if other[:2] == key]:
        del begun[stale]
    payload = decode_payload(row)
    if 0 < number < len(held):  # it is there already
        begun[*key, shape] = held
        return []
    if number != len(held):
        return []
    held = [*held, payload]
    if number < metadata.num_chunks_from_msg - 1:
        begun[*key, shape] = held
        return []
    value = b"".join(held)
    if not row["encrypted"]:
        value = bytes(decompress(metadata.compression, value, metadata.uncompressed_size))
    return [row | {"value": value}]


def decode_payload(row: Row) -> bytes:
    """The payload of a chunk's row."""
    value: bytes = row["value"]
    return value
