"""An offloaded object, opened: its index read, its head checked, the pieces of each of its ledgers known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from afterglow.errors import CorruptIndex, IndexMissing, ObjectMissing, WrongLength
from afterglow.format.checks import index_problems
from afterglow.format.index import decode_index
from afterglow.format.objects import INDEX_SUFFIX, ObjectKey, check_version
from afterglow.read.pieces import LedgerPieces

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from afterglow.read.places import TierPlace
    from afterglow.storage import ObjectStore

_BASE_BYTES = 2_000
"""Of memory, for what an opened object holds beside its tables."""


@dataclass(frozen=True, slots=True)
class Located:
    """An object by its place and key. Keys are never used twice, so it names the same bytes for ever."""

    place: TierPlace
    key: str
    """Of the data object, without the place's prefix."""

    def __str__(self) -> str:
        return f"object {self.key} in {self.place}"


def data_key(uuid: UUID, ledger_id: int | None) -> str:
    """Key of a data object: of one ledger (V1), or of a segment (V2)."""
    return str(ObjectKey(uuid, ledger_id))


@dataclass(frozen=True, slots=True)
class OpenObject:
    """What a reader must know of an object. Small, and the same for all readers."""

    located: Located
    size_bytes: int
    """Length of the data object as the store tells it."""
    index_bytes: int
    """Length that the index tells."""
    ledgers: Mapping[int | None, LedgerPieces]
    """By ledger; the only one of a V1 object under None."""

    @property
    def memory_bytes(self) -> int:
        """Roughly, of memory."""
        return _BASE_BYTES + sum(pieces.size_bytes for pieces in self.ledgers.values())

    def check_length(self) -> None:
        """Insist that the object is as long as its index says.

        Raises:
            WrongLength: It is not.
        """
        if self.size_bytes != self.index_bytes:
            raise WrongLength(
                f"{self.located}: it has {self.size_bytes} bytes, its index says {self.index_bytes}; bring it back "
                "from a copy"
            )

    def pieces(self, ledger_id: int) -> LedgerPieces:
        """The pieces of a ledger.

        Raises:
            CorruptIndex: The index does not name the ledger.
        """
        found = self.ledgers.get(ledger_id) or self.ledgers.get(None)
        if found is None:
            raise CorruptIndex(f"{self.located}: its index does not name ledger {ledger_id}")
        return found


def open_object(store: ObjectStore, located: Located, buffer_bytes: int) -> OpenObject:
    """Open an object with two requests: the head of the data object, and its index.

    Args:
        store: The store of its place.
        located: The object.
        buffer_bytes: What a reader fetches at once from blocks without checksums.

    Raises:
        ObjectMissing: There is no such object.
        IndexMissing: The object has no index.
        WrongVersion: A newer release wrote it.
        CorruptIndex: The index is damaged.
        StorageError: The store does not give them.
    """
    try:
        head = store.head(located.key)
    except ObjectMissing as error:
        raise ObjectMissing(f"{located}: {error}") from error
    check_version(located.key, head.metadata)
    try:
        data = store.get(located.key + INDEX_SUFFIX)
    except ObjectMissing as error:
        raise IndexMissing(f"{located}: its index {located.key}{INDEX_SUFFIX} is missing") from error
    try:
        index = decode_index(data)
    except CorruptIndex as error:
        raise CorruptIndex(f"{located}: its index: {error}") from error
    for problem in index_problems(index):
        raise CorruptIndex(f"{located}: its index: {problem}")
    ledgers = {group.ledger_id: LedgerPieces(index, group, buffer_bytes) for group in index.groups}
    return OpenObject(located, head.size_bytes, index.data_bytes, ledgers)
