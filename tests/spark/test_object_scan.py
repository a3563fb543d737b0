"""What a task does with its block, without Spark: the demo runs it inside."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from afterglow.engine import demo
from afterglow.engine.sample import sample_entries, sample_messages
from afterglow.errors import CorruptBlock
from afterglow.format.columns import BLOCK_COLUMNS
from afterglow.format.frames import frame_entries, scan_frames
from afterglow.spark.object_scan import BlockTask, run_task
from afterglow.storage import open_store

if TYPE_CHECKING:
    from pathlib import Path


def task(directory: Path) -> BlockTask:
    store = open_store(directory.as_uri())
    data = frame_entries(sample_entries(sample_messages(30, 3), 3))
    key = demo._write_v2(store, data, scan_frames(data, 0))
    return BlockTask(store.url, key, 1, 0, 0, store.head(key).size_bytes)


def test_a_whole_block_gives_its_messages(tmp_path: Path) -> None:
    assert pa.ipc.open_stream(run_task(task(tmp_path), BLOCK_COLUMNS)).read_all().num_rows == 30


def test_a_block_whose_frames_are_torn_is_an_error_not_fewer_messages(tmp_path: Path) -> None:
    wanted = task(tmp_path)
    path = tmp_path / wanted.key
    data = bytearray(path.read_bytes())
    second = int(scan_frames(data, 0, 128).offsets[1])
    data[second + 11] ^= 1  # the id of the second entry
    path.write_bytes(data)
    with pytest.raises(CorruptBlock, match="entry 1 should follow"):
        run_task(wanted, BLOCK_COLUMNS)
