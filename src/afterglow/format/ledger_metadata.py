"""The ledger's metadata inside an index, with the statistics of its blocks in a place that stock readers pass over.

V1 holds BookKeeper's ``LedgerMetadataFormat``, V2 the managed ledger's ``LedgerInfo``.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from afterglow.errors import CorruptIndex
from afterglow.format import statistics as stats
from afterglow.format.blocks import Format
from afterglow.format.proto.bookkeeper_pb2 import LedgerMetadataFormat
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from afterglow.format.index import IndexBlock
    from afterglow.format.statistics import BlockStatistics


@dataclass(frozen=True, slots=True)
class ClosedLedger:
    """A closed ledger as a V1 index describes it."""

    last_entry_id: int
    length_bytes: int
    """Bytes of all entries, without frames."""
    created_ms: int
    managed_ledger: str
    """Name of the managed ledger."""
    bookies: tuple[str, ...] = ("127.0.0.1:3181",)
    """Stock readers want an ensemble; nothing is read from it."""
    custom: Mapping[str, bytes] = field(default_factory=dict)


def ledger_metadata(ledger: ClosedLedger, blocks: Sequence[BlockStatistics] = ()) -> bytes:
    """Metadata for a V1 index."""
    quorum = len(ledger.bookies)
    proto = LedgerMetadataFormat(
        quorumSize=quorum,
        ensembleSize=quorum,
        length=ledger.length_bytes,
        lastEntryId=ledger.last_entry_id,
        state=LedgerMetadataFormat.CLOSED,
        segment=[LedgerMetadataFormat.Segment(ensembleMember=ledger.bookies, firstEntryId=0)],
        digestType=LedgerMetadataFormat.CRC32C,
        ackQuorumSize=quorum,
        ctime=ledger.created_ms,
    )
    custom = {
        "application": b"pulsar",
        "component": b"managed-ledger",
        "pulsar/managed-ledger": ledger.managed_ledger.encode(),
        **ledger.custom,
    }
    if blocks:
        custom[stats.KEY] = stats.encode_statistics(blocks)
    for key, value in custom.items():
        proto.customMetadata.add(key=key, value=value)
    return proto.SerializeToString(deterministic=True)


def ledger_info(info: ManagedLedgerInfo.LedgerInfo, blocks: Sequence[BlockStatistics] = ()) -> bytes:
    """Metadata for one ledger of a V2 index: the managed ledger's own record of it, and our statistics."""
    proto = ManagedLedgerInfo.LedgerInfo()
    proto.CopyFrom(info)
    if blocks:
        proto.properties.add(key=stats.KEY, value=base64.b64encode(stats.encode_statistics(blocks)).decode())
    return proto.SerializeToString(deterministic=True)


def read_metadata(
    version: Format, metadata: bytes, blocks: Sequence[IndexBlock], data_bytes: int
) -> tuple[int, tuple[BlockStatistics, ...] | None]:
    """Last entry id and, where there are any, the statistics of a group.

    Raises:
        CorruptIndex: The metadata does not parse, or its statistics do not fit the blocks.
    """
    table: bytes | None
    proto: LedgerMetadataFormat | ManagedLedgerInfo.LedgerInfo
    try:
        if version is Format.V1:
            proto = ledger = LedgerMetadataFormat.FromString(metadata)
            last_entry_id = ledger.lastEntryId if ledger.HasField("lastEntryId") else -1
            table = next((pair.value for pair in ledger.customMetadata if pair.key == stats.KEY), None)
        else:
            proto = info = ManagedLedgerInfo.LedgerInfo.FromString(metadata)
            last_entry_id = info.entries - 1
            text = next((pair.value for pair in info.properties if pair.key == stats.KEY), None)
            table = None if text is None else base64.b64decode(text, validate=True)
    except (DecodeError, ValueError) as error:  # ValueError: what stands for base64 is none, or not even ASCII
        raise CorruptIndex(f"the ledger's metadata of {len(metadata)} bytes does not parse: {error}") from error
    if not proto.IsInitialized():  # the parser itself lets required fields be absent; Java's does not
        raise CorruptIndex(f"the ledger's metadata of {len(metadata)} bytes lacks a required field")
    if table is None:
        return last_entry_id, None
    # Stripes are counted in V1 alone, whose one ledger has all blocks of the object.
    ends = [block.offset for block in blocks[1:]] + [data_bytes]
    sizes = [max(end - block.offset, 0) for block, end in zip(blocks, ends, strict=bool(blocks))]
    return last_entry_id, stats.decode_statistics(table, sizes)
