"""The block writer from a contiguous range, statistics and checksums included, against memcpy into fresh pages."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.support.assemble import assemble_blocks, encode_block_into

from afterglow.format.blocks import BlockPlan, plan_v1, plan_v2
from afterglow.format.frames import scan_frames
from bench.measure import best_seconds, copy_fresh, keep
from bench.samples import unbatched

TOTAL = 48 << 20
GOALS = {"V2 blocks of 1 KiB / memcpy": 0.8}


def write(data: bytes, plans: tuple[BlockPlan, ...], out: bytearray) -> None:
    view = memoryview(data)
    target = memoryview(out)
    at = 0
    for plan in plans:
        at = encode_block_into(target, at, plan.header, view[plan.start : plan.end])


def main() -> None:
    figures: dict[str, Any] = {}
    for name, data in (("100 B", unbatched(100, TOTAL)), ("1 KiB", unbatched(1024, TOTAL))):
        frames = scan_frames(data, 0)
        v1, v2 = plan_v1(frames.offsets), plan_v2(frames.offsets, 1, 0)
        out = bytearray(sum(plan.header.block_bytes for plan in v2))
        seconds = best_seconds(
            {
                "write": partial(write, data, v2, out),
                "v2": partial(assemble_blocks, data, frames.offsets, v2),
                "v1": partial(assemble_blocks, data, frames.offsets, v1),
                "memcpy": copy_fresh(data),
            }
        )
        figures[f"V2 blocks of {name} / memcpy"] = round(seconds["memcpy"] / seconds["write"], 3)
        figures[f"V2 measured {name} / memcpy"] = round(seconds["memcpy"] / seconds["v2"], 3)
        figures[f"V1 measured {name} / memcpy"] = round(seconds["memcpy"] / seconds["v1"], 3)
    keep("blocks", figures, GOALS)
