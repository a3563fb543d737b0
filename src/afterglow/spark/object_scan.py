"""Reading whole offloaded objects in a Spark job: one task per block, each with its own connection to the tier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from afterglow.format import schema
from afterglow.format.checks import open_block
from afterglow.format.columns import BLOCK_COLUMNS, decode_messages
from afterglow.format.frames import check_whole
from afterglow.format.index import decode_index
from afterglow.format.objects import INDEX_SUFFIX, parse_key
from afterglow.storage import open_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class BlockTask:
    """One block to read; all that a task needs."""

    tier: str
    key: str
    ledger_id: int
    first_entry_id: int
    start: int
    """Offset of the block in its object."""
    end: int


def read_objects(
    session: SparkSession, tier: str, keys: Iterable[str], columns: tuple[str, ...] | None = None
) -> pa.Table:
    """Read the messages of whole objects, in the order of the keys.

    The driver reads the indexes, the tasks read and decode the blocks. Batches come back through Spark, so this suits
    results that the driver can hold.

    Raises:
        FormatError: An object is damaged.
    """
    store = open_store(tier)
    tasks = [task for key in keys for task in _tasks(store.url, key, store.get(key + INDEX_SUFFIX))]
    names = columns or BLOCK_COLUMNS
    context = session.sparkContext
    context.setJobDescription(f"read {len(tasks)} blocks from {tier}")
    results = context.parallelize(tasks, max(len(tasks), 1)).map(lambda task: run_task(task, names)).collect()
    batches = [batch for result in results for batch in pa.ipc.open_stream(result)]
    return pa.Table.from_batches(batches, schema.choose(schema.MESSAGES, names))


def run_task(task: BlockTask, columns: tuple[str, ...]) -> bytes:
    """Read and decode one block; its messages as an Arrow stream.

    Raises:
        FormatError: The block or an entry in it is damaged.
    """
    data = open_store(task.tier).get(task.key, task.start, task.end)
    block = open_block(data, task.first_entry_id)
    check_whole(block.frames, f"object {task.key} at {task.start}")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema.choose(schema.MESSAGES, columns)) as writer:
        for messages in decode_messages(data, block.frames, task.ledger_id, columns=columns, check=True, strict=True):
            writer.write_batch(messages.batch)
    return bytes(sink.getvalue())


def _tasks(tier: str, key: str, index_bytes: memoryview) -> Iterator[BlockTask]:
    for group, number, start, end in decode_index(index_bytes).extents():
        ledger_id = parse_key(key).ledger_id if group.ledger_id is None else group.ledger_id
        assert ledger_id is not None
        yield BlockTask(tier, key, ledger_id, group.blocks[number].first_entry_id, start, end)
