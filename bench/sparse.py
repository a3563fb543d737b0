"""Topics of many gibibytes that take little room: only those blocks of their objects are real that are read.

Everything that tells where entries are is as a server writes it: the list, a record for each segment, an index with
statistics for each object. The data objects are files of the right length with holes.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from tests.support.assemble import assemble_blocks

from afterglow.format.blocks import HEADER_BYTES, V2_BLOCK_BYTES, plan_v2
from afterglow.format.entry import encode_broker_metadata, encode_entry
from afterglow.format.frames import FRAME_BYTES, frame_entries, scan_frames
from afterglow.format.index import encode_index, index_v2
from afterglow.format.objects import INDEX_SUFFIX
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
from afterglow.format.proto.pulsar_api_pb2 import MessageMetadata
from afterglow.format.statistics import BlockStatistics
from bench.samples import TIME_MS
from bench.topics import MESSAGE, SEGMENT, TopicWriter, user

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from bench.offload import Target
    from bench.topics import Topic

APART_MS = 2  # between two entries: half a megabyte a second
LEDGER = 32  # segments in a ledger: it rolls over at 2 GiB
FIRST_INDEX = 1 << 40  # so that all entries have the same length


def entry(number: int) -> bytes:
    """An entry of the topic, by its number in it."""
    head = encode_broker_metadata(time_of(number), FIRST_INDEX + number)
    metadata = MessageMetadata(producer_name="standalone-0-12", sequence_id=1, publish_time=TIME_MS)
    return head + encode_entry(metadata, bytes(MESSAGE))


def time_of(number: int) -> int:
    """Broker time of an entry."""
    return TIME_MS + number * APART_MS


ENTRY = len(entry(0))
FRAME = ENTRY + FRAME_BYTES
PER_BLOCK = (V2_BLOCK_BYTES - HEADER_BYTES) // FRAME
BLOCKS = SEGMENT // (HEADER_BYTES + PER_BLOCK * FRAME)
PER_SEGMENT = PER_BLOCK * BLOCKS


def sparse_topic(home: Path, directory: Path, target: Target, segments: int, wanted: Iterable[int]) -> Topic:
    """A topic whose real blocks are those that hold the wanted entries.

    Args:
        home: A directory that is not there yet.
        directory: That of the tier.
        target: The tier: a local one.
        segments: How many.
        wanted: Numbers of entries in the topic.
    """
    writer = TopicWriter(home, target)
    blocks = {number // PER_BLOCK for number in wanted}
    offsets = np.arange(PER_SEGMENT + 1) * FRAME
    for segment in range(segments):
        ledger, at = divmod(segment, LEDGER)
        first = at * PER_SEGMENT
        begin, end = segment * PER_SEGMENT, (segment + 1) * PER_SEGMENT
        plans = plan_v2(offsets, ledger + 1, first)
        real = {}
        measured = []
        for number, plan in enumerate(plans):
            start = begin + number * PER_BLOCK
            statistics = BlockStatistics(
                PER_BLOCK, PER_BLOCK * ENTRY, 0, time_of(start), time_of(start + PER_BLOCK - 1), TIME_MS, TIME_MS,
                FIRST_INDEX + start, FIRST_INDEX + start + PER_BLOCK - 1,
            )  # fmt: skip
            if start // PER_BLOCK in blocks:
                real[plan.offset], statistics = block(start, ledger + 1, plan.header.first_entry_id)
            measured.append(statistics)
        size = plans[-1].offset + plans[-1].header.block_bytes
        row = ManagedLedgerInfo.LedgerInfo(ledgerId=ledger + 1, entries=first + PER_SEGMENT, size=1)
        index = encode_index(index_v2([(row, plans, measured)]))
        put = partial(write, writer, directory, real, size, index)
        writer.location(ledger + 1, first, first + PER_SEGMENT - 1, size, (time_of(begin), time_of(end - 1)), put)
        if at == LEDGER - 1 or segment == segments - 1:
            writer.ledger(ledger + 1)
    return writer.finish(segments * PER_SEGMENT)


def block(start: int, ledger_id: int, first: int) -> tuple[bytes, BlockStatistics]:
    """A real block, of the entries from a number on."""
    frames = frame_entries([entry(start + at) for at in range(PER_BLOCK)], first)
    offsets = scan_frames(frames, first).offsets
    data, (statistics,) = assemble_blocks(frames, offsets, plan_v2(offsets, ledger_id, first))
    return bytes(data), statistics


def write(  # noqa: PLR0917 - what an object has
    writer: TopicWriter, directory: Path, real: dict[int, bytes], size: int, index: bytes, key: str
) -> None:
    """Write a data object with holes, and its index."""
    writer.store.put(key, b"", metadata=user("data"))
    writer.store.put(key + INDEX_SUFFIX, index, metadata=user("index"))
    with (directory / key).open("r+b") as file:
        file.truncate(size)
        for offset, data in real.items():
            os.pwrite(file.fileno(), data, offset)
