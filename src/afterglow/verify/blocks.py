"""Every byte of one data object, block by block: header, frames, padding, checksums.

Nothing of the object is held but one window of :data:`WINDOW_BYTES`, however large its blocks are.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from afterglow.errors import FormatError
from afterglow.verify.entries import BlockWalk, EntryChecks
from afterglow.verify.findings import Finding, Kind, position_text

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from afterglow.storage.store import ObjectStore
    from afterglow.verify.index import Block, Group, Index, Statistics, Stripe

WINDOW_BYTES: Final = 8 << 20
"""Fetched at once: large enough for a store's bandwidth, small enough for a worker's memory."""

_MAGICS: Final = {1: 0xFBDBABCB, 2: 0x26A66D32}
_HEADER: Final = struct.Struct(">Iqqq")
_LEDGER: Final = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class Share:
    """Which blocks of an object to read: those that begin here."""

    start: int
    """Offset in the object, inclusive."""
    end: int | None
    """Exclusive; None: to the object's end."""

    def __contains__(self, offset: int) -> bool:
        return self.start <= offset and (self.end is None or offset < self.end)


WHOLE: Final = Share(0, None)


@dataclass(frozen=True, slots=True)
class _Defect:
    """What is wrong with a block."""

    entry_id: int
    """First entry that is affected."""
    detail: str


class Window:
    """An object's bytes, read once from its beginning to its end in large requests."""

    def __init__(self, store: ObjectStore, key: str, size_bytes: int) -> None:
        self._store = store
        self._key = key
        self._size_bytes = size_bytes
        self._start = 0
        self._data = memoryview(b"")

    def pieces(self, start: int, end: int) -> Iterator[memoryview]:
        """The bytes ``[start, end)`` in pieces, as far as the object goes."""
        while start < min(end, self._size_bytes):
            if not self._start <= start < self._start + len(self._data):
                self._start = start
                self._data = self._store.get(self._key, start, min(start + WINDOW_BYTES, self._size_bytes))
            piece = self._data[start - self._start : end - self._start]
            start += len(piece)
            yield piece


def check_blocks(
    store: ObjectStore,
    key: str,
    size_bytes: int,
    index: Index,
    *,
    topic: str | None,
    ledger_id: int,
    ends: Mapping[int, int],
    share: Share = WHOLE,
) -> Generator[Finding, None, int]:
    """Read a data object and tell each block that is damaged.

    Args:
        store: Where it is.
        key: Its key.
        size_bytes: Its length; where that is not what the index says, the caller has told so.
        index: Its index, which makes sense as far as the caller has checked.
        topic: For the findings.
        ledger_id: The ledger of a V1 object.
        ends: Last entry that the object must hold, by ledger.
        share: The blocks to read.

    Returns:
        Bytes of entries in these blocks that no checksum covers, neither the index's nor their own.

    Raises:
        ObjectMissing: The object has gone meanwhile.
        StorageError: The store fails.
    """
    window = Window(store, key, size_bytes)
    uncovered_bytes = 0
    order = index.blocks
    stripes = {id(group): _stripes(group) for group in index.groups}
    for ordinal, (group, number) in enumerate(order):
        block = group.blocks[number]
        ledger = ledger_id if group.ledger_id is None else group.ledger_id
        end = size_bytes if ordinal + 1 == len(order) else block.end
        if block.offset >= size_bytes:
            break  # the object is cut short before it: told by its length
        if block.offset not in share:
            continue
        last = ends.get(ledger) if number + 1 == len(group.blocks) else group.blocks[number + 1].first_entry_id - 1
        entries = EntryChecks(None if group.statistics is None else group.statistics.bounds[number])
        defects = list(
            _check_block(
                window, index, group, number, end=end, stripes=stripes[id(group)][number], last=last, entries=entries
            )
        )
        if group.statistics is None:
            uncovered_bytes += entries.uncovered_bytes
        if defects:
            first = min(defect.entry_id for defect in defects)
            detail = f"block {ordinal + 1} at {block.offset}: " + "; ".join(defect.detail for defect in defects)
            yield Finding(Kind.DAMAGED_BLOCK, topic, key, position_text(ledger, first), detail)
    return uncovered_bytes


def _stripes(group: Group) -> tuple[tuple[Stripe, ...], ...]:
    none: tuple[tuple[Stripe, ...], ...] = ((),) * len(group.blocks)
    if group.statistics is None:
        return none
    try:
        return group.statistics.split([block.end - block.offset for block in group.blocks])
    except FormatError:  # told with the index
        return none


def _check_block(
    window: Window,
    index: Index,
    group: Group,
    number: int,
    *,
    end: int,
    stripes: tuple[Stripe, ...],
    last: int | None,
    entries: EntryChecks,
) -> Iterator[_Defect]:
    block, statistics = group.blocks[number], group.statistics
    stripe_bytes = statistics.stripe_bytes if statistics is not None and stripes else 0
    walk = BlockWalk(end - block.offset, index.header_bytes, block.first_entry_id, stripe_bytes, entries)
    header = b""
    for piece in window.pieces(block.offset, end):
        if len(header) < index.header_bytes:
            header += bytes(piece[: index.header_bytes - len(header)])
        walk.feed(piece)
    walk.end()
    problem = _header_problem(header, index, group, block, end - block.offset)
    if problem:
        yield _Defect(block.first_entry_id, problem)
    if walk.damage:
        yield _Defect(walk.next_entry_id, walk.damage)
    elif last is not None and walk.next_entry_id <= last:
        yield _Defect(walk.next_entry_id, f"it lacks the entries {walk.next_entry_id} to {last}")
    elif last is not None and walk.next_entry_id > last + 1:
        yield _Defect(last + 1, f"entries {last + 1} to {walk.next_entry_id - 1} stand behind its last")
    elif index.version == 1 and number + 1 == len(group.blocks) and walk.frames_end != end - block.offset:
        yield _Defect(walk.next_entry_id - 1, "the last block of a ledger has no padding, but this one has")
    if entries.wrong.count:
        yield _Defect(entries.wrong.first, f"the bytes of {entries.wrong} are not those that its own checksum is of")
    if entries.torn.count:
        yield _Defect(entries.torn.first, f"the broker's metadata of {entries.torn} passes its end")
    if statistics is None and entries.odd.count and entries.covered:
        yield _Defect(entries.odd.first, f"{entries.odd} cannot be read as a message, as the others of the block can")
    if entries.outside.count:
        yield _Defect(
            entries.outside.first, f"the times of {entries.outside} are not between those that the index says"
        )
    if statistics is not None:
        yield from _against_statistics(walk, block, number, statistics, stripes)


def _header_problem(header: bytes, index: Index, group: Group, block: Block, block_bytes: int) -> str | None:
    fields = _HEADER.size + (_LEDGER.size if index.version == 2 else 0)
    if len(header) < index.header_bytes or index.header_bytes < fields:
        return "its header is cut short"
    magic, header_bytes, length, first = _HEADER.unpack_from(header)
    if magic != _MAGICS[index.version]:
        return f"its header begins with {magic:08x}"
    if header_bytes != index.header_bytes:
        return f"its header says that it has {header_bytes} bytes"
    if length != block_bytes:
        return f"its header says {length} bytes, there are {block_bytes}"
    if first != block.first_entry_id:
        return f"its header says that it begins with entry {first}"
    if index.version == 2 and (ledger := _LEDGER.unpack_from(header, _HEADER.size)[0]) != group.ledger_id:
        return f"its header says ledger {ledger}"
    if any(header[fields:]):
        return "the rest of its header is not zero"
    return None


def _against_statistics(
    walk: BlockWalk, block: Block, number: int, statistics: Statistics, stripes: tuple[Stripe, ...]
) -> Iterator[_Defect]:
    first = block.first_entry_id
    bad = [i for i, stripe in enumerate(stripes) if stripe.crc32c != _at(walk.stripe_crc32c, i)]
    if walk.crc32c != statistics.crc32c[number]:
        detail = f"CRC32C {walk.crc32c:08x}, the index says {statistics.crc32c[number]:08x}"
        if bad:
            detail += f", stripes {', '.join(map(str, bad))} of {statistics.stripe_bytes} bytes"
        affected = _first_entry_of(walk, first, bad[0]) if bad else first
        known = walk.entries.wrong
        yield _Defect(known.first if known.count else affected, detail)
    elif bad:
        yield _Defect(first, f"the block is whole, but the index has other checksums of its stripes {bad}")
    if walk.damage is not None:
        return
    if walk.next_entry_id - first != statistics.entries[number]:
        yield _Defect(first, f"{walk.next_entry_id - first} entries, the index says {statistics.entries[number]}")
    wrong = [
        i
        for i, (stripe, location) in enumerate(zip(stripes, walk.stripe_places, strict=False))
        if stripe.entries_before not in {None, location[0]} or stripe.first_frame not in {None, location[1]}
    ]
    if wrong:
        yield _Defect(first, f"the index misplaces the first entry of stripes {', '.join(map(str, wrong))}")


def _first_entry_of(walk: BlockWalk, first_entry_id: int, stripe: int) -> int:
    """The first entry that has bytes in a stripe, as far as the frames could be followed."""
    if stripe >= len(walk.stripe_places):
        return walk.next_entry_id
    before, frame = walk.stripe_places[stripe]
    return first_entry_id + (before - 1 if before and frame else before)


def _at(values: list[int], i: int) -> int | None:
    return values[i] if i < len(values) else None
