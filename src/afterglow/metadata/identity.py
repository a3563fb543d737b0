"""Identity records: a node names what the other records belong to, so that they are never used with anything else.

Ledger ids are unique within one hot log. Records of ledgers that are used with another one would name its ledgers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from afterglow.errors import CommitUnknown, VersionConflict
from afterglow.metadata.store import MUST_NOT_EXIST

if TYPE_CHECKING:
    from afterglow.metadata.pulsar_cluster import MetadataReader
    from afterglow.metadata.store import MetadataStore


def read_identity(metadata: MetadataReader, path: str) -> str:
    """The recorded identity; empty if none is recorded.

    Raises:
        MetadataUnavailable: The store cannot be reached.
    """
    found = metadata.get(path)
    return "" if found is None else found.value.decode("utf-8", "replace").strip()


def record_identity(metadata: MetadataStore, path: str, identity: str) -> None:
    """Record an identity unless one is recorded; for the owner of the records.

    Raises:
        Fenced: Another process has become the owner.
        MetadataError: The store failed.
    """
    while True:
        found = metadata.get(path)
        if found is not None and found.value:
            return
        try:
            metadata.put(path, identity.encode(), MUST_NOT_EXIST if found is None else found.version)
        except (VersionConflict, CommitUnknown):
            continue
