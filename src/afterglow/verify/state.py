"""State of a topic: all that metadata says of it, read at one time, the walk over all topics, and the keys they name.

Keys are compared by their last component alone, in whatever store they are met: UUIDs are never reused, and an object
that metadata names anywhere is not an orphan, also where the same bucket is reached under another address.
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
    from afterglow.verify.topic_metadata import DeleteRecord, Ledger, SegmentRecord, UploadRecord

    _R = TypeVar("_R")

_DOMAIN: Final = "persistent"
INDEX_SUFFIX: Final = "-index"


@dataclass(frozen=True, slots=True)
class TopicState:
    """What metadata says of one topic."""

    name: str
    """Of its managed ledger."""
    lists: tuple[tuple[Ledger, ...], ...]
    """Its ledgers: at Pulsar's own path, and, attached to a cluster, in our own copy."""
    segments: tuple[SegmentRecord, ...]
    uploads: tuple[UploadRecord, ...]
    deletes: tuple[DeleteRecord, ...]


class StateReader:
    """Reads states of topics.

    Every method raises ``CorruptMetadata`` or ``WrongVersion`` where a value cannot be read: without it nobody knows
    which objects are named, so that neither a report nor a sweep may go on.

    Args:
        metadata: The store.
        cluster: Whose records of ours are meant.
    """

    def __init__(self, metadata: MetadataReader, cluster: str) -> None:
        self._metadata = metadata
        self._paths = AfterglowPaths(cluster)

    def names(self) -> tuple[str, ...]:
        """Managed-ledger names of all topics, and of those that are gone but have records left; ascending."""
        root = self._paths.root
        roots = (MANAGED_LEDGERS, *(f"{root}/{kind}" for kind in ("managed-ledgers", "segments", "uploads", "deletes")))
        return tuple(sorted({name for root in roots for name in self._names_below(root)}))

    def topic(self, name: str) -> TopicState:
        """What metadata says of a topic now.

        The order of the reads makes up for their not being one. An upload's record goes after the commit: read before
        the list, one of them names the object. A segment's record comes before the commit, and an intent to delete
        before the list lets go: read after the list, none is missed that counts.
        """
        uploads = self._records(self._paths.uploads(name), parse_upload)
        lists = []
        for path in (managed_ledger_path(name), self._paths.managed_ledger(name)):
            node = self._metadata.get(path)
            if node is not None:
                lists.append(parse_ledgers(node.value, path))
        segments = self._records(self._paths.segments(name), parse_segment)
        deletes = self._records(self._paths.deletes(name), parse_delete)
        return TopicState(name, tuple(lists), segments, uploads, deletes)

    def _records(self, parent: str, parse: Callable[[bytes, str], _R]) -> tuple[_R, ...]:
        found = []
        for child in self._metadata.children(parent):
            path = f"{parent}/{child}"
            node = self._metadata.get(path)
            if node is not None:
                found.append(parse(node.value, path))
        return tuple(found)

    def _names_below(self, root: str) -> Iterator[str]:
        """``tenant/namespace/persistent/topic``, or with a cluster second where the name is a legacy one."""
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
class Named:
    """What a topic's metadata says under a key."""

    ledger_name: str
    """Managed-ledger name of the topic."""
    working: bool
    """Whether it is being written or deleted, maybe by uploads that metadata does not know."""
    upload_id: str = ""
    """The one upload that it needs, where that is on record."""

    def needs(self, upload_id: str) -> bool:
        """Whether an unfinished upload of the key may be needed: a finished object needs none."""
        return self.working or upload_id == self.upload_id


Naming: TypeAlias = dict[str, Named]
"""By :func:`base_key`."""


def copy_key(uuid: object, ledger_id: int) -> str:
    """Key of a ledger's own object (V1)."""
    return f"{uuid}-ledger-{ledger_id}"


def base_key(key: str) -> str:
    """What :data:`Naming` knows of the key of a data object, of its index, or of an upload."""
    return key.rpartition("/")[2].removesuffix(INDEX_SUFFIX)


def add_names(naming: Naming, state: TopicState) -> None:
    """Add what a topic's metadata names. Whatever is under way takes precedence over what is committed.

    A segment's record alone names nothing: while the segment is on its way its upload's record does, then the list.
    """
    committed, working = Named(state.name, working=False), Named(state.name, working=True)
    for ledgers in state.lists:
        for ledger in ledgers:
            if ledger.copy is not None:
                naming[copy_key(ledger.copy, ledger.ledger_id)] = committed if ledger.complete else working
            for stub in ledger.stubs:
                naming[str(stub.uuid)] = committed if stub.complete else working
    for upload in state.uploads:
        known = Named(state.name, working=False, upload_id=upload.upload_id)
        naming[base_key(upload.key)] = known if upload.upload_id else working
    for delete in state.deletes:
        naming[base_key(delete.key)] = working


def read_naming(reader: StateReader) -> Naming:
    """What the metadata of all topics names."""
    naming: Naming = {}
    for name in reader.names():
        add_names(naming, reader.topic(name))
    return naming
