"""Records of topics in metadata, read together, and the object keys that they name.

Keys are compared by their last component only, whatever the store: UUIDs are never reused, and an object that metadata
names anywhere is not an orphan, even if the same bucket is also reached by another address.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from afterglow.metadata.paths import MANAGED_LEDGERS, AfterglowPaths, managed_ledger_path
from afterglow.verify.topic_metadata import parse_delete, parse_ledgers, parse_segment, parse_upload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    from afterglow.metadata.pulsar_cluster import MetadataReader
    from afterglow.verify.topic_metadata import ParsedDelete, ParsedLedger, ParsedSegment, ParsedUpload

    _R = TypeVar("_R")

_DOMAIN: Final = "persistent"
INDEX_SUFFIX: Final = "-index"


@dataclass(frozen=True, slots=True)
class TopicRecords:
    """Records of one topic."""

    name: str
    """Of its managed ledger."""
    ledger_lists: tuple[tuple[ParsedLedger, ...], ...]
    """Its ledger list at Pulsar's own path, and, if attached to a cluster, our own copy of it."""
    segments: tuple[ParsedSegment, ...]
    uploads: tuple[ParsedUpload, ...]
    deletes: tuple[ParsedDelete, ...]


class TopicRecordsReader:
    """Reads the records of topics.

    Every method raises ``CorruptMetadata`` or ``WrongVersion`` if a value cannot be parsed: the objects that it names
    would be unknown, so neither verification nor sweep may continue.
    """

    def __init__(self, metadata: MetadataReader, cluster: str) -> None:
        self._metadata = metadata
        self._paths = AfterglowPaths(cluster)

    def names(self) -> tuple[str, ...]:
        """Managed-ledger names of all topics, also of deleted ones that have records left; ascending."""
        root = self._paths.root
        roots = (MANAGED_LEDGERS, *(f"{root}/{kind}" for kind in ("managed-ledgers", "segments", "uploads", "deletes")))
        return tuple(sorted({name for root in roots for name in self._names_below(root)}))

    def topic(self, name: str) -> TopicRecords:
        """The current records of a topic.

        The reads are not atomic; their order makes up for it. An upload's record is deleted after the commit: since
        uploads are read before the ledger list, one of the two names the object. A segment's record is written before
        the commit, and a pending delete before the list drops the ledger: read after the list, neither is missed.
        """
        uploads = self._records(self._paths.uploads(name), parse_upload)
        ledger_lists = []
        for path in (managed_ledger_path(name), self._paths.managed_ledger(name)):
            node = self._metadata.get(path)
            if node is not None:
                ledger_lists.append(parse_ledgers(node.value, path))
        segments = self._records(self._paths.segments(name), parse_segment)
        deletes = self._records(self._paths.deletes(name), parse_delete)
        return TopicRecords(name, tuple(ledger_lists), segments, uploads, deletes)

    def _records(self, parent: str, parse: Callable[[bytes, str], _R]) -> tuple[_R, ...]:
        found = []
        for child in self._metadata.children(parent):
            path = f"{parent}/{child}"
            node = self._metadata.get(path)
            if node is not None:
                found.append(parse(node.value, path))
        return tuple(found)

    def _names_below(self, root: str) -> Iterator[str]:
        """``tenant/namespace/persistent/topic``; legacy names have a cluster as second component."""
        children = self._metadata.children
        for tenant in children(root):
            for second in children(f"{root}/{tenant}"):
                below = f"{tenant}/{second}"
                for third in children(f"{root}/{below}"):
                    if third == _DOMAIN:
                        parent = f"{below}/{third}"
                    elif _DOMAIN in children(f"{root}/{below}/{third}"):
                        parent = f"{below}/{third}/{_DOMAIN}"
                    else:
                        continue
                    for name in children(f"{root}/{parent}"):
                        yield f"{parent}/{name}"


@dataclass(frozen=True, slots=True)
class KeyReference:
    """The reference of a topic's metadata to an object key."""

    ledger_name: str
    """Managed-ledger name of the topic."""
    in_progress: bool
    """Whether the object is being written or deleted, maybe by uploads without a record."""
    upload_id: str = ""
    """The one upload that it needs, if that is on record."""

    def needs(self, upload_id: str) -> bool:
        """Whether an unfinished upload of the key may be needed: a finished object needs none."""
        return self.in_progress or upload_id == self.upload_id


References: TypeAlias = dict[str, KeyReference]
"""By :func:`base_key`."""


def copy_key(uuid: object, ledger_id: int) -> str:
    """Key of a ledger's own object (V1)."""
    return f"{uuid}-ledger-{ledger_id}"


def base_key(key: str) -> str:
    """The key in :data:`References` for the key of a data object, of its index, or of an upload."""
    return key.rpartition("/")[2].removesuffix(INDEX_SUFFIX)


def add_references(references: References, records: TopicRecords) -> None:
    """Add the keys that a topic's records name. Work in progress takes precedence over committed objects.

    A segment's record alone is not a reference: until the commit the upload's record names the object, then the list.
    """
    committed, in_progress = KeyReference(records.name, in_progress=False), KeyReference(records.name, in_progress=True)
    for ledgers in records.ledger_lists:
        for ledger in ledgers:
            if ledger.copy is not None:
                references[copy_key(ledger.copy, ledger.ledger_id)] = committed if ledger.complete else in_progress
            for segment in ledger.segments:
                references[str(segment.uuid)] = committed if segment.complete else in_progress
    for upload in records.uploads:
        known = KeyReference(records.name, in_progress=False, upload_id=upload.upload_id)
        references[base_key(upload.key)] = known if upload.upload_id else in_progress
    for delete in records.deletes:
        references[base_key(delete.key)] = in_progress


def read_references(reader: TopicRecordsReader) -> References:
    """The keys that the records of all topics name."""
    references: References = {}
    for name in reader.names():
        add_references(references, reader.topic(name))
    return references
