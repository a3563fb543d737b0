"""Scan of a tier for objects of whole ledgers, each compared with metadata.

A quick report for operators, as in Pulsar. Segments, blocks and orphans are verified by :mod:`afterglow.verify`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from afterglow.errors import InvalidName, TopicMissing
from afterglow.format.objects import ledger_uuid, parse_key
from afterglow.ledger.ledger_list import is_fully_offloaded
from afterglow.offload.segments.uncovered import find_ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from afterglow.format.objects import ObjectKey
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.storage.store import ObjectStore

OK: Final = "OK"
UNKNOWN: Final = "UNKNOWN"
"""The object belongs to another cluster, or its metadata does not name one."""
_NOT_FOUND: Final = "NOT-FOUND"
_NOT_OFFLOADED: Final = "NOT-OFFLOADED"
_BAD_UUID: Final = "BAD-UUID"


@dataclass(frozen=True, slots=True)
class LedgerScan:
    """Result of a scan."""

    ledgers: tuple[ScannedLedger, ...]
    complete: bool
    """False: the scan ended early, and there may be more."""


@dataclass(frozen=True, slots=True)
class ScannedLedger:
    """One object that holds a ledger."""

    ledger_id: int
    key: str
    uuid: str
    size_bytes: int
    modified_ms: int
    metadata: Mapping[str, str]
    managed_ledger: str | None
    """The managed ledger that its user metadata names."""
    status: str
    """Result of the comparison with metadata, in Pulsar's words."""
    entries: int | None
    """Entries of the ledger; None if metadata does not have the ledger."""
    offloaded: bool | None
    """Whether the ledger is in the tier, in this object or another; None if metadata does not have the ledger."""


def scan_ledgers(
    store: ObjectStore,
    cluster: str,
    info_of: Callable[[str], ManagedLedgerInfo],
    *,
    limit: int,
    is_expired: Callable[[], bool],
) -> LedgerScan:
    """Scan the objects that hold a ledger; one request for each.

    Args:
        store: The tier.
        cluster: The cluster whose objects are compared with metadata.
        info_of: Returns a topic's ledger list, by managed-ledger name; raises ``TopicMissing``.
        limit: Number of objects at which the scan ends.
        is_expired: Whether the deadline has passed. A tier may hold millions of other objects, which the scan skips.

    Raises:
        StoreError: The tier cannot be read.
        MetadataError: Metadata cannot be read.
    """
    ledgers: list[ScannedLedger] = []
    for listed in store.list():
        if is_expired():
            return LedgerScan(tuple(ledgers), complete=False)
        key = _ledger_key(listed.key)
        if key is None or key.ledger_id is None:
            continue
        if len(ledgers) == limit:
            return LedgerScan(tuple(ledgers), complete=False)
        found = store.head(listed.key)
        metadata = {name.lower(): value for name, value in found.metadata.items()}
        name = metadata.get("managedledgername")
        ledger = None
        status = UNKNOWN
        if name is not None and metadata.get("pulsarclustername") == cluster:
            with suppress(TopicMissing):
                ledger = find_ledger(info_of(name), key.ledger_id)
            status = _status(ledger, key)
        ledgers.append(
            ScannedLedger(
                ledger_id=key.ledger_id,
                key=listed.key,
                uuid=str(key.uuid),
                size_bytes=found.size_bytes,
                modified_ms=found.modified_ms,
                metadata=metadata,
                managed_ledger=name,
                status=status,
                entries=None if ledger is None else ledger.entries,
                offloaded=None if ledger is None else is_fully_offloaded(ledger),
            )
        )
    return LedgerScan(tuple(ledgers), complete=True)


def _ledger_key(text: str) -> ObjectKey | None:
    try:
        key = parse_key(text)
    except InvalidName:
        return None
    return None if key.index else key


def _status(ledger: ManagedLedgerInfo.LedgerInfo | None, key: ObjectKey) -> str:
    if ledger is None:
        return _NOT_FOUND
    if not ledger.offloadContext.complete:
        return _NOT_OFFLOADED
    return OK if ledger_uuid(ledger) == key.uuid else _BAD_UUID
