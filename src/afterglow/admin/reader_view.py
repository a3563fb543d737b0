"""What readers elsewhere must know of a topic, beyond what Pulsar's own answers tell. Pure functions."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from afterglow.format.offload_context import get_uuid
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
from afterglow.read.places import driver_metadata, place_of_record

if TYPE_CHECKING:
    from collections.abc import Iterable

    from afterglow.format.proto.afterglow_pb2 import Place, SegmentRecord
    from afterglow.format.proto.managed_ledger_pb2 import OffloadDriverMetadata
    from afterglow.ledger.layout import Layout

    Json = dict[str, Any]


def reader_view(info: ManagedLedgerInfo, segments: Iterable[SegmentRecord], layout: Layout) -> Json:
    """The list of ledgers as it is stored, with the place of every segment; all in base64.

    Args:
        info: The topic's list.
        segments: Records of its segments.
        layout: Where its entries stand, looked at after the list: it knows every ledger that the list leaves open.
    """
    records = {record.uuid: record for record in segments}
    placed = ManagedLedgerInfo()
    placed.CopyFrom(info)
    for row in placed.ledgerInfo:
        for segment in row.offloadContext.offloadSegment:
            record = records.get(str(get_uuid(segment)))
            if record is not None and not segment.HasField("driverMetadata"):
                _set_driver(segment.driverMetadata, record.place)
    written = [row.ledgerId for row in info.ledgerInfo if not row.HasField("entries")]
    return {
        "info": _text(placed.SerializeToString()),
        "segments": [_text(record.SerializeToString()) for record in records.values()],
        "written": {str(ledger_id): layout.entries_of(ledger_id) or 0 for ledger_id in written},
    }


def _set_driver(driver: OffloadDriverMetadata, place: Place) -> None:
    driver.name = place.driver
    for key, value in driver_metadata(place_of_record(place)).items():
        driver.properties.add(key=key, value=value)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
