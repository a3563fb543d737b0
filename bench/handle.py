"""Writing a segment in one process: planned parts, as the built-in drivers do, and through an offload handle.

Both read the same ledger file and give the same bytes to a store that takes a checksum of them and keeps nothing.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from crc32c import crc32c

from afterglow.format.compression import Codec
from afterglow.format.frames import iter_entries, scan_frames
from afterglow.format.position import Position
from afterglow.hot.local import LocalLog
from afterglow.hot.local.shared_ledger import open_shared
from afterglow.offload.block_handle import BlockHandle, SegmentLimits
from afterglow.offload.segments.part_planner import Sizes, plan_parts
from afterglow.offload.segments.uncovered import EntryRange, PositionRange
from afterglow.offload.task import PartTask, run_part
from afterglow.storage.memory import MemoryStore
from afterglow.storage.store import ObjectInfo, Part
from bench.measure import best_seconds, keep
from bench.samples import batched, unbatched

if TYPE_CHECKING:
    from collections.abc import Sequence

    from afterglow.storage.store import Data, Upload

TOTAL = 96 << 20
SIZES = Sizes(1 << 20, 8 << 20)
READ_BYTES = 1 << 20
GOALS: dict[str, float] = {}


class ForgetfulStore(MemoryStore):
    """Takes a checksum of every part, as real stores do, and keeps none."""

    def __init__(self) -> None:
        super().__init__(f"forgetful-{uuid4()}")
        self.taken = 0

    def upload_part(self, upload: Upload, number: int, data: Data) -> Part:  # noqa: ARG002, D102
        self.taken += memoryview(data).nbytes
        return Part(number, memoryview(data).nbytes, str(number), crc32c(data))

    def complete_upload(self, upload: Upload, parts: Sequence[Part]) -> None:  # noqa: D102
        pass

    def head(self, key: str) -> ObjectInfo:  # noqa: D102
        return ObjectInfo(key, self.taken, "", 0)


def write_ledger(home: Path, frames: bytes) -> tuple[int, int]:
    """One closed ledger; its id and how many entries it has."""
    with LocalLog(home) as log:
        ledger = log.create()
        found = scan_frames(frames, 0)
        for _, entry in iter_entries(frames, found):
            ledger.append((entry,), lambda _error: None)
        ledger.close()
        log.flush()
        return ledger.ledger_id, len(found)


def by_parts(home: Path, ledger_id: int, count: int) -> None:
    store = ForgetfulStore()
    with open_shared(home, ledger_id) as ledger:
        run = PositionRange((EntryRange(ledger_id, 0, count - 1, closed=True),), growing=False)
        parts = plan_parts(
            run, lambda _id, first, last: ledger.offsets(first, last), SIZES, number=1, offset=0, closing=True
        )
    for part in parts:
        task = PartTask(
            topic="t",
            key="key",
            number=part.number,
            upload_id="upload",
            url="",
            options=(),
            home=str(home),
            instance="",
            ledgers=part.ledgers,
        )
        result = run_part(task, open_ledger=partial(open_shared, home), open_store=lambda *_: store)
        assert result.error is None, result.error


def by_handle(home: Path, ledger_id: int, count: int) -> None:
    limits = SegmentLimits(sizes=SIZES, max_bytes=1 << 40, buffer_bytes=64 << 20, uploads=1)
    handle = BlockHandle(ForgetfulStore(), UUID(int=1), limits=limits, data_metadata={}, index_metadata={})
    with handle, open_shared(home, ledger_id) as ledger:
        first = 0
        while first < count:
            frames, read = ledger.read_frames(first, READ_BYTES)
            taken = handle.offer_range(frames, Position(ledger_id, first), read)
            first += taken
            if taken < read:
                handle.wait()
        handle.result()


def main() -> None:
    figures = {}
    samples = {"unbatched": unbatched(1024, TOTAL), "batched": batched(1024, 100, TOTAL, Codec.NONE)}
    for name, frames in samples.items():
        with tempfile.TemporaryDirectory(prefix="bench-handle-") as directory:
            home = Path(directory)
            ledger_id, count = write_ledger(home, frames)
            seconds = best_seconds(
                {
                    "parts": partial(by_parts, home, ledger_id, count),
                    "handle": partial(by_handle, home, ledger_id, count),
                }
            )
        figures[f"{name}: handle / planned parts"] = round(seconds["parts"] / seconds["handle"], 3)
        figures[f"{name}: planned parts MiB/s"] = round(len(frames) / seconds["parts"] / 2**20)
    keep("handle", figures, GOALS)
