"""Inspection of one data object and its index, without metadata.

Damage is collected, never raised, and everything else is read: if the index is missing or damaged, the headers of the
blocks are used instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from afterglow.errors import CorruptBlock, CorruptIndex, InvalidName, ObjectMissing, WrongVersion
from afterglow.format.blocks import HEADER_BYTES, Format, decode_header
from afterglow.format.checks import Damage, block_problems, index_problems, open_block
from afterglow.format.columns import decode_messages
from afterglow.format.frames import iter_entries
from afterglow.format.index import IndexBlock, LedgerGroup, decode_index
from afterglow.format.objects import INDEX_SUFFIX, check_version, parse_key
from afterglow.format.statistics import measure_block

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from afterglow.format.checks import ParsedBlock
    from afterglow.format.index import ObjectIndex
    from afterglow.format.statistics import BlockStatistics
    from afterglow.storage.store import ObjectInfo, ObjectStore


@dataclass(frozen=True, slots=True)
class InspectedBlock:
    """One block, read and opened."""

    ledger_id: int | None
    """None in a V1 object whose key does not name it."""
    offset: int
    """Offset of its header in the object."""
    data: memoryview
    block: ParsedBlock
    statistics: BlockStatistics
    """From the index, or measured."""


@dataclass(slots=True)
class Inspection:
    """A data object under inspection. ``damage`` is complete after iterating over blocks, entries or messages."""

    store: ObjectStore
    key: str
    info: ObjectInfo
    ledger_id: int | None
    index: ObjectIndex | None
    damage: list[Damage] = field(default_factory=list)

    def blocks(self) -> Iterator[InspectedBlock]:
        """Each block that can be read, in the order of the object."""
        if self.index is None:
            yield from self._blocks_by_headers()
            return
        for group, number, start, end in self.index.extents():
            first = group.blocks[number].first_entry_id
            ledger_id = self.ledger_id if group.ledger_id is None else group.ledger_id
            if not 0 <= start < end <= self.info.size_bytes:
                continue  # reported by index_problems
            data = self.store.get(self.key, start, end)
            try:
                block = open_block(data, first, group.ledger_id)
            except CorruptBlock as error:
                self.damage.append(Damage(ledger_id, first, str(error)))
                continue
            whole = self.index.format is Format.V1
            found = block_problems(data, block, group, number, whole_ledger=whole)
            self.damage.extend(replace(damage, ledger_id=ledger_id) for damage in found)
            known = group.statistics[number] if group.statistics else None
            yield self._inspected(ledger_id, start, data, block, known)

    def entries(self) -> Iterator[tuple[int | None, int, memoryview]]:
        """Each entry: ledger, id, bytes."""
        for block in self.blocks():
            for entry_id, data in iter_entries(block.data, block.block.frames):
                yield block.ledger_id, entry_id, data

    def messages(self) -> Iterator[pa.RecordBatch]:
        """Each message, in batches with all block columns. Entries' own checksums are verified."""
        for block in self.blocks():
            # The column needs a number even if the ledger is not known.
            ledger_id = -1 if block.ledger_id is None else block.ledger_id
            for messages in decode_messages(block.data, block.block.frames, ledger_id, check=True):
                self.damage.extend(Damage(block.ledger_id, each.entry_id, each.reason) for each in messages.unreadable)
                yield messages.batch

    def _blocks_by_headers(self) -> Iterator[InspectedBlock]:
        """The blocks by their headers, without the index."""
        at = 0
        while at < self.info.size_bytes:
            end = min(at + HEADER_BYTES, self.info.size_bytes)
            try:
                header = decode_header(self.store.get(self.key, at, end))
                data = self.store.get(self.key, at, min(at + header.block_bytes, self.info.size_bytes))
                block = open_block(data)
            except CorruptBlock as error:
                self.damage.append(Damage(self.ledger_id, None, f"at {at}: {error}"))
                return
            ledger_id = self.ledger_id if header.ledger_id is None else header.ledger_id
            lone = LedgerGroup(ledger_id, b"", (IndexBlock(header.first_entry_id, 1, at),), -1)
            self.damage.extend(block_problems(data, block, lone, 0, whole_ledger=False))
            yield self._inspected(ledger_id, at, data, block, None)
            at += header.block_bytes

    @staticmethod
    def _inspected(
        ledger_id: int | None, offset: int, data: memoryview, block: ParsedBlock, known: BlockStatistics | None
    ) -> InspectedBlock:
        statistics = known or measure_block(data, data, block.frames.offsets)
        return InspectedBlock(ledger_id, offset, data, block, statistics)


def inspect_object(store: ObjectStore, key: str) -> Inspection:
    """Open a data object for inspection, by its own key or by that of its index.

    Raises:
        ObjectMissing: The data object does not exist.
    """
    key = key.removesuffix(INDEX_SUFFIX)
    info = store.head(key)
    try:
        ledger_id = parse_key(key.rpartition("/")[2]).ledger_id
    except InvalidName:
        ledger_id = None  # the object was renamed; its content is still readable
    inspection = Inspection(store, key, info, ledger_id, None)
    try:
        check_version(key, info.metadata)
        inspection.index = decode_index(store.get(key + INDEX_SUFFIX))
    except ObjectMissing:
        inspection.damage.append(Damage(None, None, f"its index {key}{INDEX_SUFFIX} is missing"))
    except (CorruptIndex, WrongVersion) as error:
        inspection.damage.append(Damage(None, None, f"its index {key}{INDEX_SUFFIX}: {error}"))
    else:
        inspection.damage.extend(index_problems(inspection.index, info.size_bytes, ledger_id))
    return inspection
