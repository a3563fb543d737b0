"""Offloaded objects, opened for reading: the index parsed, the head checked, and pieces fetched and verified.

One request fetches adjacent pieces; the checksum of each is verified by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from crc32c import crc32c

from afterglow.errors import (
    CorruptBlock,
    CorruptIndex,
    DamagedPiece,
    IndexMissing,
    ObjectMissing,
    StorageError,
    WrongLength,
)
from afterglow.format.blocks import decode_header
from afterglow.format.checks import index_problems
from afterglow.format.frames import FRAME, FRAME_BYTES, scan_frames
from afterglow.format.index import decode_index
from afterglow.format.objects import INDEX_SUFFIX, ObjectKey, check_version
from afterglow.read.pieces import LedgerPieces

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    import numpy as np
    from numpy.typing import NDArray

    from afterglow.read.counters import ReadCounters
    from afterglow.read.pieces import BlockSpan
    from afterglow.storage import ObjectStore
    from afterglow.tier.locations import TierLocation


_BASE_BYTES = 2_000
"""Of memory, for what an opened object holds beside its tables."""


@dataclass(frozen=True, slots=True)
class Located:
    """An object by its tier location and key. Keys are never reused, so it names the same bytes for ever."""

    location: TierLocation
    key: str
    """Of the data object, without the location's prefix."""

    def __str__(self) -> str:
        return f"object {self.key} in {self.location}"


def data_key(uuid: UUID, ledger_id: int | None) -> str:
    """Key of a data object: of one ledger (V1), or of a segment (V2)."""
    return str(ObjectKey(uuid, ledger_id))


@dataclass(frozen=True, slots=True)
class OpenObject:
    """What a reader must know of an object. Small, and the same for all readers."""

    located: Located
    size_bytes: int
    """Length of the data object in the store."""
    index_bytes: int
    """Length of the data object by its index."""
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
        store: The store of its tier location.
        located: The object.
        buffer_bytes: What a reader fetches at once from blocks without checksums.

    Raises:
        ObjectMissing: It does not exist.
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


@dataclass(frozen=True, slots=True)
class Fetched:
    """What one request has brought."""

    start: int
    """Of the bytes in the object."""
    data: memoryview
    damage: Mapping[int, DamagedPiece]
    """What is wrong, by the number of the piece."""


@dataclass(frozen=True, slots=True)
class LedgerObject:
    """A ledger in an opened object, with all that is needed to fetch from it."""

    store: ObjectStore
    opened: OpenObject
    ledger_id: int
    pieces: LedgerPieces
    counters: ReadCounters

    def describe(self, block: BlockSpan) -> str:
        """Names the object and a block, for messages."""
        return (
            f"{self.opened.located}: block {block.number} at {block.start}, "
            f"from entry {self.ledger_id}:{block.first_entry_id} on"
        )

    def adjacent(self, piece: int, max_bytes: int, *, one_block: bool = False) -> range:
        """This piece and those right behind it in the object that together fit into ``max_bytes``; at least one."""
        block = self.pieces.block_of_piece(piece)
        start, end = block.bounds(piece - block.first_piece)
        number = piece + 1
        while number < self.pieces.pieces:
            if number >= block.first_piece + block.pieces:
                if one_block:
                    break
                block = self.pieces.block_of_piece(number)
            next_start, next_end = block.bounds(number - block.first_piece)
            if next_start != end or next_end - start > max_bytes:
                break
            end = next_end
            number += 1
        return range(piece, number)

    def fetch(self, wanted: range) -> Fetched:
        """Adjacent pieces by one request, each checked.

        Raises:
            ObjectMissing: The object is gone.
            StorageError: The store does not give them.
        """
        start = self._bounds(wanted[0])[0]
        end = min(self._bounds(wanted[-1])[1], self.opened.size_bytes)
        data = memoryview(b"")
        if start < end:
            began_s = perf_counter()
            try:
                data = self.store.get(self.opened.located.key, start, end)
            except StorageError as error:
                self.counters.failed()
                if isinstance(error, ObjectMissing):
                    raise ObjectMissing(f"{self.opened.located}: {error}") from error
                raise
            self.counters.fetched(data.nbytes, perf_counter() - began_s)
        damage = {piece: found for piece in wanted if (found := self._problem(data, start, piece))}
        return Fetched(start, data, damage)

    def _bounds(self, number: int) -> tuple[int, int]:
        block = self.pieces.block_of_piece(number)
        return block.bounds(number - block.first_piece)

    def _problem(self, fetched: memoryview, origin: int, number: int) -> DamagedPiece | None:
        block = self.pieces.block_of_piece(number)
        start, end = block.bounds(number - block.first_piece)
        data = fetched[start - origin : end - origin]
        if data.nbytes < end - start:
            return self._damaged(block, number, f"the object ends at {self.opened.size_bytes}, within them")
        known = self.pieces.crc32c(number)
        if known is not None and (found := crc32c(data)) != known:
            return self._damaged(block, number, f"they have CRC32C {found:08x}, the index says {known:08x}")
        return None

    def _damaged(self, block: BlockSpan, number: int, what: str) -> DamagedPiece:
        piece = number - block.first_piece
        start, end = block.bounds(piece)
        return DamagedPiece(
            f"{self.describe(block)}: bytes {start} to {end} are damaged: {what}",
            self.pieces.end_of_damage(block, piece),
        )

    def broken(self, block: BlockSpan, entry: int, what: str) -> DamagedPiece:
        """An error that names an entry behind which a block cannot be read on, whatever its checksums say."""
        following = self.pieces.end_of_damage(block, block.pieces - 1)
        return DamagedPiece(f"{self.describe(block)}: entry {block.first_entry_id + entry}: {what}", following)

    def check_header(self, block: BlockSpan, data: memoryview) -> None:
        """Insist that a block's first bytes are the header that the index describes.

        Raises:
            DamagedPiece: They are not.
        """
        try:
            header = decode_header(data)
        except CorruptBlock as error:
            raise self.broken(block, 0, str(error)) from error
        expected = (block.end - block.start, block.first_entry_id)
        if (header.block_bytes, header.first_entry_id) != expected or header.ledger_id not in {None, self.ledger_id}:
            raise self.broken(block, 0, f"the index describes another block than {header}")


@dataclass(frozen=True, slots=True)
class Cut:
    """The frames in some consecutive bytes of a block."""

    offsets: NDArray[np.int64]
    """Of each whole frame in the bytes, and behind the last."""
    torn: bool
    """Whether another frame begins there and ends behind the bytes."""
    ended: bool
    """Whether padding begins there: the block has no more frames."""


def cut_frames(data: memoryview, first_entry_id: int, start: int) -> Cut | str:
    """Find the frames from ``start`` on; or say why the bytes are not frames."""
    frames = scan_frames(data, first_entry_id, start)
    left = data.nbytes - frames.end
    if frames.damage is None:
        return Cut(frames.offsets, torn=False, ended=left > 0)
    if left < FRAME_BYTES:
        # Padding of so few bytes would have been known by its first one.
        return Cut(frames.offsets, torn=True, ended=False)
    length, entry_id = FRAME.unpack_from(data, frames.end)
    if length >= 0 and length > left - FRAME_BYTES and entry_id == frames.end_entry_id:
        return Cut(frames.offsets, torn=True, ended=False)
    return frames.damage
