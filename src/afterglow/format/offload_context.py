"""UUIDs in a managed ledger's offload contexts, where Java keeps them as two signed halves."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo, OffloadContext, OffloadSegment

_HALF = 64
_SIGN = 1 << 63


def get_uuid(holder: OffloadContext | OffloadSegment) -> UUID | None:
    """The UUID of an attempt or a segment; None where none was assigned."""
    if not holder.HasField("uidMsb"):
        return None
    return UUID(int=(holder.uidMsb % (1 << _HALF) << _HALF) | holder.uidLsb % (1 << _HALF))


def set_uuid(holder: OffloadContext | OffloadSegment, uuid: UUID) -> None:
    """Assign a UUID."""
    holder.uidMsb = _signed(uuid.int >> _HALF)
    holder.uidLsb = _signed(uuid.int % (1 << _HALF))


def ledger_uuid(row: ManagedLedgerInfo.LedgerInfo) -> UUID | None:
    """The UUID of a ledger's own object, whole or attempted; None where it has none, or is in segments.

    A ledger in segments repeats the UUID of its first one at this place.
    """
    return None if row.offloadContext.offloadSegment else get_uuid(row.offloadContext)


def named_uuids(info: ManagedLedgerInfo) -> set[UUID]:
    """Every UUID that a list names: of whole ledgers and of segments, complete or not."""
    found = {get_uuid(row.offloadContext) for row in info.ledgerInfo}
    found.update(get_uuid(segment) for row in info.ledgerInfo for segment in row.offloadContext.offloadSegment)
    return {uuid for uuid in found if uuid is not None}


def _signed(half: int) -> int:
    return half - 2 * _SIGN if half & _SIGN else half
