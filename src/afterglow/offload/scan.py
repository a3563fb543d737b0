"""Scan of a tier for objects of whole ledgers, and whether metadata names them.

A quick report for operators, as Pulsar has it. Segments, blocks and orphans are for :mod:`afterglow.verify`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from afterglow.errors import InvalidName, TopicMissing
from afterglow.format.objects import ledger_uuid, parse_key
from afterglow.ledger.ledger_list import is_fully_offloaded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from afterglow.format.objects import ObjectKey
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.storage.store import ObjectStore

OK: Final = "OK"
UNKNOWN: Final = "UNKNOWN"
"""Of another cluster, or without a word on whose it is."""
_NOT_FOUND: Final = "NOT-FOUND"
_NOT_OFFLOADED: Final = "NOT-OFFLOADED"
_BAD_UUID: Final = "BAD-UUID"


@dataclass(frozen=True, slots=True)
class Scan:
    """Result of a scan."""

    ledgers: tuple[ScannedLedger, ...]
    complete: bool
    """False: there may be more."""


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
    """Whose ledger it says it is."""
    status: str
    """Pulsar's word for what metadata says of it."""
    entries: int | None
    """Of the ledger, where metadata has it."""
    offloaded: bool | None
    """Whether metadata says that the ledger is in the tier, as this object or otherwise, where it has it."""


def scan_ledgers(
    store: ObjectStore,
    cluster: str,
    info_of: Callable[[str], ManagedLedgerInfo],
    *,
    most: int,
    expired: Callable[[], bool],
) -> Scan:
    """Scan the objects that hold a ledger; one request for each.

    Args:
        store: The tier.
        cluster: The cluster whose objects are looked up in metadata.
        info_of: A topic's metadata, by managed-ledger name; raises ``TopicMissing``.
        most: Number of objects at which the scan ends.
        expired: Whether time is up. A tier may hold millions of objects of another kind, which are passed one by one.

    Raises:
        StoreError: The tier cannot be read.
        MetadataError: Metadata cannot be read.
    """
    ledgers: list[ScannedLedger] = []
    for listed in store.list():
        if expired():
            return Scan(tuple(ledgers), complete=False)
        key = _ledger_key(listed.key)
        if key is None or key.ledger_id is None:
            continue
        if len(ledgers) == most:
            return Scan(tuple(ledgers), complete=False)
        found = store.head(listed.key)
        metadata = {name.lower(): value for name, value in found.metadata.items()}
        name = metadata.get("managedledgername")
        row = None
        status = UNKNOWN
        if name is not None and metadata.get("pulsarclustername") == cluster:
            row = _row(info_of, name, key.ledger_id)
            status = _status(row, key)
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
                entries=None if row is None else row.entries,
                offloaded=None if row is None else is_fully_offloaded(row),
            )
        )
    return Scan(tuple(ledgers), complete=True)


def _ledger_key(text: str) -> ObjectKey | None:
    try:
        key = parse_key(text)
    except InvalidName:
        return None
    return None if key.index else key


def _row(info_of: Callable[[str], ManagedLedgerInfo], name: str, ledger_id: int) -> ManagedLedgerInfo.LedgerInfo | None:
    try:
        info = info_of(name)
    except TopicMissing:
        return None
    return next((row for row in info.ledgerInfo if row.ledgerId == ledger_id), None)


def _status(row: ManagedLedgerInfo.LedgerInfo | None, key: ObjectKey) -> str:
    if row is None:
        return _NOT_FOUND
    if not row.offloadContext.complete:
        return _NOT_OFFLOADED
    return OK if ledger_uuid(row) == key.uuid else _BAD_UUID
