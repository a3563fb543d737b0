"""All that metadata says of one topic, read at one time, and the walk over all topics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from afterglow.metadata.paths import MANAGED_LEDGERS, AfterglowPaths, managed_ledger_path
from afterglow.verify.ledgers import parse_ledgers
from afterglow.verify.records import parse_delete, parse_segment, parse_upload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    from afterglow.metadata.pulsar_cluster import MetadataReader
    from afterglow.verify.ledgers import Ledger
    from afterglow.verify.records import DeleteRecord, SegmentRecord, UploadRecord

    _R = TypeVar("_R")

_DOMAIN: Final = "persistent"


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
