"""Offloaded objects opened for reading: index parsed, length compared, stripes fetched and verified.

One request fetches adjacent stripes; the checksum of each is verified by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from crc32c import crc32c

from afterglow.errors import (
    CorruptBlock,
    CorruptIndex,
    DamagedStripe,
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
from afterglow.read.stripes import LedgerStripes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    import numpy as np
    from numpy.typing import NDArray

    from afterglow.read.counters import ReadCounters
    from afterglow.read.stripes import BlockSpan
    from afterglow.storage import ObjectStore
    from afterglow.tier.locations import TierLocation


_BASE_BYTES = 2_000
"""Memory of an opened object without its tables, estimated."""


@dataclass(frozen=True, slots=True)
class TierObject:
    """An object by its tier location and key. Keys are never reused, so that it always names the same bytes."""

    location: TierLocation
    key: str
    """Key of the data object, without the location's prefix."""
    markers_stripped: bool = False
    """Whether its entries were read through a broker of Pulsar; see :class:`~afterglow.read.copies.FrameRun`."""

    def __str__(self) -> str:
        return f"object {self.key} in {self.location}"


def data_key(uuid: UUID, ledger_id: int | None) -> str:
    """Key of a data object: of one ledger (V1), or of a segment (V2)."""
    return str(ObjectKey(uuid, ledger_id))


@dataclass(frozen=True, slots=True)
class OpenObject:
    """An object whose index was read. Small, and shared by all readers."""

    tier_object: TierObject
    size_bytes: int
    """Length of the data object in the store."""
    index_bytes: int
    """Length of the data object by its index."""
    ledgers: Mapping[int | None, LedgerStripes]
    """By ledger; the only ledger of a V1 object under None."""

    @property
    def memory_bytes(self) -> int:
        """Memory, estimated."""
        return _BASE_BYTES + sum(stripes.size_bytes for stripes in self.ledgers.values())

    def check_length(self) -> None:
        """Compare the length of the object with its index.

        Raises:
            WrongLength: They differ.
        """
        if self.size_bytes != self.index_bytes:
            raise WrongLength(
                f"{self.tier_object}: it has {self.size_bytes} bytes, its index says {self.index_bytes}; restore it "
                "from a copy"
            )

    def stripes(self, ledger_id: int) -> LedgerStripes:
        """The stripes of a ledger.

        Raises:
            CorruptIndex: The index does not name the ledger.
        """
        found = self.ledgers.get(ledger_id) or self.ledgers.get(None)
        if found is None:
            raise CorruptIndex(f"{self.tier_object}: its index does not name ledger {ledger_id}")
        return found


def open_object(store: ObjectStore, tier_object: TierObject, buffer_bytes: int) -> OpenObject:
    """Open an object with two requests: the head of the data object, and its index.

    Args:
        store: The store of its tier location.
        tier_object: The object.
        buffer_bytes: Length of stripes in blocks without checksums.

    Raises:
        ObjectMissing: It does not exist.
        IndexMissing: The object has no index.
        WrongVersion: A newer release wrote it.
        CorruptIndex: The index is damaged.
        StorageError: A request failed.
    """
    try:
        head = store.head(tier_object.key)
    except ObjectMissing as error:
        raise ObjectMissing(f"{tier_object}: {error}") from error
    check_version(tier_object.key, head.metadata)
    try:
        data = store.get(tier_object.key + INDEX_SUFFIX)
    except ObjectMissing as error:
        raise IndexMissing(f"{tier_object}: its index {tier_object.key}{INDEX_SUFFIX} is missing") from error
    try:
        index = decode_index(data)
    except CorruptIndex as error:
        raise CorruptIndex(f"{tier_object}: its index: {error}") from error
    for problem in index_problems(index):
        raise CorruptIndex(f"{tier_object}: its index: {problem}")
    ledgers = {group.ledger_id: LedgerStripes(index, group, buffer_bytes) for group in index.groups}
    return OpenObject(tier_object, head.size_bytes, index.data_bytes, ledgers)


@dataclass(frozen=True, slots=True)
class Fetched:
    """Adjacent stripes that one request fetched."""

    start: int
    """Offset of the data in the object."""
    data: memoryview
    damage: Mapping[int, DamagedStripe]
    """Damaged stripes, by number."""


@dataclass(frozen=True, slots=True)
class LedgerObject:
    """A ledger in an opened object, with the store to fetch from."""

    store: ObjectStore
    opened: OpenObject
    ledger_id: int
    stripes: LedgerStripes
    counters: ReadCounters

    def describe(self, block: BlockSpan) -> str:
        """The object and a block, for error messages."""
        return (
            f"{self.opened.tier_object}: block {block.number} at {block.start}, "
            f"from entry {self.ledger_id}:{block.first_entry_id} on"
        )

    def adjacent(self, stripe: int, max_bytes: int, *, one_block: bool = False) -> range:
        """A stripe and those right after it in the object that together fit into ``max_bytes``; at least one."""
        block = self.stripes.block_of_stripe(stripe)
        start, end = block.bounds(stripe - block.first_stripe)
        number = stripe + 1
        while number < self.stripes.count:
            if number >= block.first_stripe + block.stripe_count:
                if one_block:
                    break
                block = self.stripes.block_of_stripe(number)
            next_start, next_end = block.bounds(number - block.first_stripe)
            if next_start != end or next_end - start > max_bytes:
                break
            end = next_end
            number += 1
        return range(stripe, number)

    def fetch(self, wanted: range) -> Fetched:
        """Fetch adjacent stripes with one request, and verify each.

        Raises:
            ObjectMissing: The object does not exist any more.
            StorageError: The request failed.
        """
        start = self.stripes.bounds(wanted[0])[0]
        end = min(self.stripes.bounds(wanted[-1])[1], self.opened.size_bytes)
        data = memoryview(b"")
        if start < end:
            began_s = perf_counter()
            try:
                data = self.store.get(self.opened.tier_object.key, start, end)
            except StorageError as error:
                self.counters.failed()
                if isinstance(error, ObjectMissing):
                    raise ObjectMissing(f"{self.opened.tier_object}: {error}") from error
                raise
            self.counters.fetched(data.nbytes, perf_counter() - began_s)
        damage = {stripe: found for stripe in wanted if (found := self._problem(data, start, stripe))}
        return Fetched(start, data, damage)

    def _problem(self, fetched: memoryview, origin: int, number: int) -> DamagedStripe | None:
        block = self.stripes.block_of_stripe(number)
        start, end = block.bounds(number - block.first_stripe)
        data = fetched[start - origin : end - origin]
        if data.nbytes < end - start:
            return self._damaged(block, number, f"the object ends at byte {self.opened.size_bytes}")
        known = self.stripes.crc32c(number)
        if known is not None and (found := crc32c(data)) != known:
            return self._damaged(block, number, f"their CRC32C is {found:08x}, the index says {known:08x}")
        return None

    def _damaged(self, block: BlockSpan, number: int, what: str) -> DamagedStripe:
        stripe = number - block.first_stripe
        start, end = block.bounds(stripe)
        return DamagedStripe(
            f"{self.describe(block)}: bytes {start} to {end} are damaged: {what}",
            self.stripes.end_of_damage(block, stripe),
        )

    def broken(self, block: BlockSpan, entry: int, what: str) -> DamagedStripe:
        """An error for an entry from which on a block cannot be read, although its checksums may be right."""
        following = self.stripes.end_of_damage(block, block.stripe_count - 1)
        return DamagedStripe(f"{self.describe(block)}: entry {block.first_entry_id + entry}: {what}", following)

    def check_header(self, block: BlockSpan, data: memoryview) -> None:
        """Compare a block's header with the index.

        Raises:
            DamagedStripe: They differ, or the header is damaged.
        """
        try:
            header = decode_header(data)
        except CorruptBlock as error:
            raise self.broken(block, 0, str(error)) from error
        expected = (block.end - block.start, block.first_entry_id)
        if (header.block_bytes, header.first_entry_id) != expected or header.ledger_id not in {None, self.ledger_id}:
            raise self.broken(block, 0, f"the block's header {header} contradicts the index")


@dataclass(frozen=True, slots=True)
class FrameOffsets:
    """Frames in consecutive bytes of a block."""

    offsets: NDArray[np.int64]
    """Offset of each complete frame in the bytes, and the end of the last."""
    has_partial: bool
    """Whether another frame begins there and ends after the bytes."""
    has_padding: bool
    """Whether padding begins there: the block has no more frames."""


def locate_frames(data: memoryview, first_entry_id: int, start: int) -> FrameOffsets | str:
    """Find the frames from ``start`` on; a text says why the bytes are not frames."""
    frames = scan_frames(data, first_entry_id, start)
    left = data.nbytes - frames.end
    if frames.damage is None:
        return FrameOffsets(frames.offsets, has_partial=False, has_padding=left > 0)
    if left < FRAME_BYTES:
        # Padding, however short, would have been recognised by its first byte.
        return FrameOffsets(frames.offsets, has_partial=True, has_padding=False)
    length, entry_id = FRAME.unpack_from(data, frames.end)
    if length >= 0 and length > left - FRAME_BYTES and entry_id == frames.end_entry_id:
        return FrameOffsets(frames.offsets, has_partial=True, has_padding=False)
    return frames.damage
