"""A topic's list of ledgers, as ``ManagedLedgerInfo`` holds it, by field number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from afterglow.errors import CorruptMetadata, FormatError
from afterglow.verify.envelope import open_envelope
from afterglow.verify.places import place_of_driver
from afterglow.verify.wire import Message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afterglow.verify.places import Place

_HALF = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Stub:
    """What one ledger says of one segment that holds entries of it."""

    uuid: UUID
    complete: bool
    """Committed; otherwise on its way."""
    end_entry_id: int | None
    """Last entry of this ledger in the segment, inclusive; None where it is not known yet."""
    place: Place | None
    """None where only the segment's record tells it."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """One ledger of the list."""

    ledger_id: int
    entries: int | None
    """None while it is open, or was when its owner died."""
    size_bytes: int
    """Of its entries; 0 where the list does not say."""
    uuid: UUID | None
    """Of its own object (V1), complete or not, or of its first segment; None where no offload was begun."""
    complete: bool
    """Whether its own object is committed."""
    hot_deleted: bool
    """Whether the hot copy is gone, and only the tier has it."""
    place: Place
    """Of its own object."""
    stubs: tuple[Stub, ...]
    """Its segments, in the order of the list: each begins behind the one before, the first with entry 0."""

    @property
    def copy(self) -> UUID | None:
        """The UUID of its own object, complete or being written; None where it has none, or has segments instead."""
        return None if self.stubs else self.uuid


def parse_ledgers(value: bytes, path: str) -> tuple[Ledger, ...]:
    """The ledgers of a topic, ascending by id; none where the value is empty.

    Raises:
        CorruptMetadata: The value does not parse, or names a ledger twice. Nothing may be concluded from the rest.
    """
    try:
        found = [_ledger(Message(row)) for row in Message(open_envelope(value)).values(1)]
    except FormatError as error:
        raise CorruptMetadata(f"the managed ledger at {path} does not parse: {error}; restore it") from error
    found.sort(key=lambda ledger: ledger.ledger_id)  # Pulsar writes the list from a hash map
    if len({ledger.ledger_id for ledger in found}) != len(found):
        raise CorruptMetadata(f"the managed ledger at {path} names a ledger twice; restore it")
    return tuple(found)


def _ledger(row: Message) -> Ledger:
    if not row.has(1):
        raise FormatError("a ledger without id")
    context = row.message(5)
    return Ledger(
        ledger_id=row.integer(1),
        entries=row.integer_or_none(2),
        size_bytes=max(row.integer(3), 0),
        uuid=_uuid(context),
        complete=context.flag(3),
        hot_deleted=context.flag(4),
        place=place_of_driver(context.message(6)),
        stubs=tuple(_stubs(context)),
    )


def _stubs(context: Message) -> Iterator[Stub]:
    for segment in context.messages(7):
        uuid = _uuid(segment)
        if uuid is None:
            raise FormatError("a segment without UUID")
        place = place_of_driver(segment.message(7)) if segment.has(7) else None
        yield Stub(uuid, segment.flag(3), segment.integer_or_none(6), place)


def _uuid(message: Message) -> UUID | None:
    if not (message.has(1) and message.has(2)):
        return None
    return UUID(int=(message.integer(1) & _HALF) << 64 | message.integer(2) & _HALF)
