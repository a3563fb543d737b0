"""Our own records of segments, uploads and deletions, by field number.

Every one begins with {1: version, 2: uuid}. A version that is not known is refused, never guessed at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

from afterglow.errors import CorruptMetadata, FormatError, WrongVersion
from afterglow.verify.places import place_of_record
from afterglow.verify.wire import Message

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from afterglow.verify.places import Place

    _R = TypeVar("_R")

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """A committed segment, or one about to be."""

    uuid: UUID
    place: Place
    key: str
    """Of the data object."""
    begin: tuple[int, int]
    """Ledger and entry of the first entry, inclusive."""
    end: tuple[int, int]
    """Of the last one, inclusive."""
    bytes: int
    """Length of the data object."""
    entries: int
    blocks: int


@dataclass(frozen=True, slots=True)
class UploadRecord:
    """A segment on its way."""

    uuid: UUID
    place: Place
    key: str
    """Of the data object to be."""
    upload_id: str
    """The store's identity of the multipart upload; empty: not created yet, as far as is known."""


@dataclass(frozen=True, slots=True)
class DeleteRecord:
    """An object that is to go, with its index and any unfinished upload of its key."""

    uuid: UUID
    place: Place
    key: str
    """Of the data object."""


def parse_segment(value: bytes, path: str) -> SegmentRecord:
    """Read a segment's record.

    Raises:
        CorruptMetadata: It does not parse, or stands at another path than its UUID's.
        WrongVersion: A newer release wrote it.
    """

    def read(uuid: UUID, record: Message) -> SegmentRecord:
        place, key = place_of_record(record.message(3))
        begin, end = record.message(4), record.message(5)
        return SegmentRecord(
            uuid=uuid,
            place=place,
            key=key or str(uuid),
            begin=(begin.integer(1), begin.integer(2)),
            end=(end.integer(1), end.integer(2)),
            bytes=record.unsigned(6),
            entries=record.unsigned(7),
            blocks=record.unsigned(8),
        )

    return _parse(value, path, read)


def parse_upload(value: bytes, path: str) -> UploadRecord:
    """Read the record of a segment on its way; raises as :func:`parse_segment`."""

    def read(uuid: UUID, record: Message) -> UploadRecord:
        place, key = place_of_record(record.message(4))
        return UploadRecord(uuid, place, key or str(uuid), record.text(5))

    return _parse(value, path, read)


def parse_delete(value: bytes, path: str) -> DeleteRecord:
    """Read an intent to delete; raises as :func:`parse_segment`."""

    def read(uuid: UUID, record: Message) -> DeleteRecord:
        place, key = place_of_record(record.message(3))
        ledger_id = record.integer_or_none(7)
        return DeleteRecord(uuid, place, key or (str(uuid) if ledger_id is None else f"{uuid}-ledger-{ledger_id}"))

    return _parse(value, path, read)


def _parse(value: bytes, path: str, read: Callable[[UUID, Message], _R]) -> _R:
    try:
        record = Message(value)
        version, text = record.unsigned(1), record.text(2)
        uuid = UUID(text)
    except ValueError as error:  # FormatError, and what UUID raises
        raise CorruptMetadata(f"the record at {path} does not parse: {error}; restore it") from error
    if version != _VERSION:
        raise WrongVersion(f"the record at {path} has version {version}, this release knows {_VERSION}: upgrade it")
    if text != path.rpartition("/")[2]:
        raise CorruptMetadata(f"the record at {path} is that of {text}; restore it")
    try:
        return read(uuid, record)
    except FormatError as error:
        raise CorruptMetadata(f"the record at {path} does not parse: {error}; restore it") from error
