"""Parsers of a topic's metadata: its ledger list, and our records of segments, uploads and pending deletes.

All are parsed by field number, with :mod:`afterglow.verify.wire`:

- ``ManagedLedgerInfo``, in Pulsar's compression envelope: ``0x4778`` · header size (int32) · header {1: codec,
  2: uncompressed size} · compressed value; big-endian. A value that does not begin with the magic is plain: no such
  message can begin with those bytes.
- Our own records, each of which begins with {1: version, 2: uuid}. An unknown version is refused.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

import pyarrow as pa

from afterglow.errors import CorruptMetadata, FormatError, WrongVersion
from afterglow.verify.wire import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    _R = TypeVar("_R")

_FILESYSTEM: Final = "filesystem"
_LEFT_TO_CLUSTER: Final = "afterglow.left-to-cluster"
_MAGIC: Final = b"\x47\x78"
_HEAD: Final = struct.Struct(">2si")
_NONE, _LZ4, _ZLIB, _ZSTD, _SNAPPY = range(5)
_ARROW: Final = {_LZ4: "lz4_raw", _ZSTD: "zstd", _SNAPPY: "snappy"}
_MAX_BYTES: Final = 256 << 20
"""Most bytes of a plain value; a node holds 1 MB compressed."""
_MAX_EXPANSION: Final = {_LZ4: 255, _ZLIB: 1032, _ZSTD: 32768, _SNAPPY: 22}
"""Most bytes that one compressed byte can expand to: a larger claim is damage, and must not cost memory."""
_HALF = (1 << 64) - 1
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class ParsedLocation:
    """Tier location of an object."""

    driver: str = ""
    """As in the offload policy; empty: not recorded, so it is the server's own tier."""
    bucket: str = ""
    """The bucket, the container, or the root directory."""
    region: str = ""
    endpoint: str = ""
    prefix: str = ""
    """Prefix of every key, without slashes at its ends."""
    blocks: bool = True
    """Whether objects have the block format; False: Hadoop's MapFile, by Pulsar's own file-system driver."""
    properties: tuple[tuple[str, str], ...] = ()
    """The driver's metadata, sorted by key; an external driver finds its objects by these."""


def location_of_driver(driver: Message) -> ParsedLocation:
    """Parse an ``OffloadDriverMetadata`` {1: name, 2: properties {1: key, 2: value}}."""
    name = driver.text(1)
    properties = {pair.text(1): pair.text(2) for pair in driver.messages(2)}
    root = "storageBasePath" if name == _FILESYSTEM else "bucket"
    return ParsedLocation(
        name,
        properties.get(root, ""),
        properties.get("region", ""),
        properties.get("serviceEndpoint", ""),
        properties.get("afterglowPrefix", ""),
        blocks=name != _FILESYSTEM or properties.get("afterglowFormat") == "blocks",
        properties=tuple(sorted(properties.items())),
    )


def location_of_record(location: Message) -> tuple[ParsedLocation, str]:
    """Parse an ``ObjectLocation`` {1: driver … 6: prefix, 7: driver metadata} into location and key."""
    driver, bucket, region, endpoint, key, prefix = (location.text(number) for number in range(1, 7))
    properties = tuple(sorted((pair.text(1), pair.text(2)) for pair in location.messages(7)))
    return ParsedLocation(driver, bucket, region, endpoint, prefix, properties=properties), key


def open_envelope(value: bytes) -> bytes:
    """The plain value.

    Raises:
        FormatError: The envelope is cut short, or does not hold what it claims.
    """
    if not value.startswith(_MAGIC):
        return value
    if len(value) < _HEAD.size:
        raise FormatError(f"a compressed value ends after {len(value)} bytes, within its envelope")
    size = _HEAD.unpack_from(value)[1]
    if not 0 <= size <= len(value) - _HEAD.size:
        raise FormatError(f"a compressed value of {len(value)} bytes claims a header of {size}")
    header = Message(value[_HEAD.size : _HEAD.size + size])
    codec, plain_bytes = header.integer(1), header.integer(2)
    data = value[_HEAD.size + size :]
    if not 0 <= plain_bytes <= min(_MAX_BYTES, len(data) * _MAX_EXPANSION.get(codec, 1)):
        raise FormatError(f"a compressed value of {len(data)} bytes claims {plain_bytes} bytes, which it cannot hold")
    plain = _decompress(codec, data, plain_bytes)
    if len(plain) != plain_bytes:
        raise FormatError(f"a compressed value claims {plain_bytes} bytes and holds {len(plain)}")
    return plain


def _decompress(codec: int, data: bytes, plain_bytes: int) -> bytes:
    try:
        if codec == _NONE:
            return data
        if codec == _ZLIB:
            # Java ends the stream with a sync flush, without the final block: a plain decompress would refuse it.
            return zlib.decompressobj().decompress(data, plain_bytes + 1)
        if codec in _ARROW:
            if codec == _SNAPPY and _snappy_bytes(data) != plain_bytes:
                raise FormatError(f"a value with codec {codec} holds {_snappy_bytes(data)} bytes, not {plain_bytes}")
            if codec == _LZ4 and plain_bytes and _fits(data, plain_bytes - 1):
                raise FormatError(f"a value with codec {codec} holds fewer than {plain_bytes} bytes")
            plain: bytes = pa.decompress(data, decompressed_size=plain_bytes, codec=_ARROW[codec], asbytes=True)
            return plain
    except (zlib.error, pa.ArrowInvalid, OSError) as error:
        raise FormatError(f"a value with codec {codec} does not decompress: {error}") from error
    raise FormatError(f"a compressed value has the unknown codec {codec}")


def _snappy_bytes(data: bytes) -> int:
    """The length at the start of a Snappy block. The decoder trusts it, and leaves the rest of its buffer unwritten."""
    length = 0
    for i, byte in enumerate(data[:5]):
        length |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            break
    return length


def _fits(data: bytes, plain_bytes: int) -> bool:
    """Whether an LZ4 block fits into so many bytes. Neither the block nor the decoder states its plain length."""
    try:
        pa.decompress(data, decompressed_size=plain_bytes, codec=_ARROW[_LZ4], asbytes=True)
    except OSError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class LedgerSegment:
    """An ``OffloadSegment`` in a row of the ledger list: a segment that holds entries of the ledger."""

    uuid: UUID
    complete: bool
    """Whether it is committed; otherwise it is being written."""
    end_entry_id: int | None
    """Last entry of this ledger in the segment, inclusive; None if it is not known yet."""
    location: ParsedLocation | None
    """None if only the segment's record has it."""


@dataclass(frozen=True, slots=True)
class ParsedLedger:
    """One ledger of the ledger list."""

    ledger_id: int
    entries: int | None
    """None if it is open, or was open when its owner crashed."""
    size_bytes: int
    """Of its entries; 0 if the list does not have it."""
    uuid: UUID | None
    """Of its own object (V1), complete or not, or of its first segment; None if no offload was begun."""
    complete: bool
    """Whether its own object is committed."""
    hot_deleted: bool
    """Whether the hot copy was deleted, so that only the tier has it."""
    location: ParsedLocation
    """Of its own object."""
    segments: tuple[LedgerSegment, ...]
    """Its segments, in the order of the list: each begins behind the one before, the first with entry 0."""
    left_to_cluster: bool = False
    """Whether the cluster itself offloads it, so that none of its entries has to be in an object of ours."""

    @property
    def copy(self) -> UUID | None:
        """The UUID of its own object, complete or being written; None if it has none, or has segments instead."""
        return None if self.segments else self.uuid


def parse_ledgers(value: bytes, path: str) -> tuple[ParsedLedger, ...]:
    """Parse a ledger list; the ledgers are ascending by id.

    Raises:
        CorruptMetadata: The value does not parse, or names a ledger twice.
    """
    try:
        found = [_ledger(Message(row)) for row in Message(open_envelope(value)).values(1)]
    except FormatError as error:
        raise CorruptMetadata(f"the managed ledger at {path} does not parse: {error}; restore it") from error
    found.sort(key=lambda ledger: ledger.ledger_id)  # Pulsar writes the list from a hash map
    if len({ledger.ledger_id for ledger in found}) != len(found):
        raise CorruptMetadata(f"the managed ledger at {path} names a ledger twice; restore it")
    return tuple(found)


def _ledger(row: Message) -> ParsedLedger:
    if not row.has(1):
        raise FormatError("a ledger has no id")
    context = row.message(5)
    return ParsedLedger(
        ledger_id=row.integer(1),
        entries=row.integer_or_none(2),
        size_bytes=max(row.integer(3), 0),
        uuid=_uuid(context),
        complete=context.flag(3),
        hot_deleted=context.flag(4),
        location=location_of_driver(context.message(6)),
        segments=tuple(_segments(context)),
        left_to_cluster=any(pair.text(1) == _LEFT_TO_CLUSTER for pair in row.messages(6)),
    )


def _segments(context: Message) -> Iterator[LedgerSegment]:
    for segment in context.messages(7):
        uuid = _uuid(segment)
        if uuid is None:
            raise FormatError("a segment has no UUID")
        location = location_of_driver(segment.message(7)) if segment.has(7) else None
        yield LedgerSegment(uuid, segment.flag(3), segment.integer_or_none(6), location)


def _uuid(message: Message) -> UUID | None:
    if not (message.has(1) and message.has(2)):
        return None
    return UUID(int=(message.integer(1) & _HALF) << 64 | message.integer(2) & _HALF)


@dataclass(frozen=True, slots=True)
class ParsedSegment:
    """The record of a segment that is committed or about to be."""

    uuid: UUID
    location: ParsedLocation
    key: str
    """Of the data object."""
    begin: tuple[int, int]
    """ParsedLedger and entry of the first entry, inclusive."""
    end: tuple[int, int]
    """Of the last one, inclusive."""
    bytes: int
    """Length of the data object."""
    entries: int
    blocks: int


@dataclass(frozen=True, slots=True)
class ParsedUpload:
    """The record of a segment that is being uploaded."""

    uuid: UUID
    location: ParsedLocation
    key: str
    """Of the future data object."""
    upload_id: str
    """The store's id of the multipart upload; empty: no creation is recorded yet."""


@dataclass(frozen=True, slots=True)
class ParsedDelete:
    """A pending delete of an object, its index, and any unfinished upload of its key."""

    uuid: UUID
    location: ParsedLocation
    key: str
    """Of the data object."""


def parse_segment(value: bytes, path: str) -> ParsedSegment:
    """Parse a segment's record.

    Raises:
        CorruptMetadata: It does not parse, or its path is not that of its UUID.
        WrongVersion: A newer release wrote it.
    """

    def read(uuid: UUID, record: Message) -> ParsedSegment:
        location, key = location_of_record(record.message(3))
        begin, end = record.message(4), record.message(5)
        return ParsedSegment(
            uuid=uuid,
            location=location,
            key=key or str(uuid),
            begin=(begin.integer(1), begin.integer(2)),
            end=(end.integer(1), end.integer(2)),
            bytes=record.unsigned(6),
            entries=record.unsigned(7),
            blocks=record.unsigned(8),
        )

    return _parse(value, path, read)


def parse_upload(value: bytes, path: str) -> ParsedUpload:
    """Parse an upload's record; raises as :func:`parse_segment`."""

    def read(uuid: UUID, record: Message) -> ParsedUpload:
        location, key = location_of_record(record.message(4))
        return ParsedUpload(uuid, location, key or str(uuid), record.text(5))

    return _parse(value, path, read)


def parse_delete(value: bytes, path: str) -> ParsedDelete:
    """Parse a pending delete; raises as :func:`parse_segment`."""

    def read(uuid: UUID, record: Message) -> ParsedDelete:
        location, key = location_of_record(record.message(3))
        ledger_id = record.integer_or_none(7)
        return ParsedDelete(uuid, location, key or (str(uuid) if ledger_id is None else f"{uuid}-ledger-{ledger_id}"))

    return _parse(value, path, read)


def _parse(value: bytes, path: str, read: Callable[[UUID, Message], _R]) -> _R:
    try:
        record = Message(value)
        version, text = record.unsigned(1), record.text(2)
        uuid = UUID(text)
    except ValueError as error:  # FormatError is one, and UUID raises it
        raise CorruptMetadata(f"the record at {path} does not parse: {error}; restore it") from error
    if version != _VERSION:
        raise WrongVersion(f"the record at {path} has version {version}, this release knows {_VERSION}: upgrade it")
    if text != path.rpartition("/")[2]:
        raise CorruptMetadata(f"the record at {path} is of the UUID {text}; restore it")
    try:
        return read(uuid, record)
    except FormatError as error:
        raise CorruptMetadata(f"the record at {path} does not parse: {error}; restore it") from error
