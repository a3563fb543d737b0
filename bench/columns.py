"""The columns decoder on one core, against memcpy of the same stored bytes into fresh pages."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from afterglow.format.columns import decode_messages
from afterglow.format.compression import Codec
from afterglow.format.frames import scan_frames
from bench.measure import best_seconds, copy_fresh, keep
from bench.samples import batched, unbatched

if TYPE_CHECKING:
    from collections.abc import Sequence

TOTAL = 48 << 20
TWO = ("publish_time", "entry_id")
GOALS = {
    "100 B / memcpy": 0.15,
    "1 KiB / memcpy": 0.5,
    "10 KiB / memcpy": 0.8,
    "1 KiB batches LZ4 / memcpy of the decoded bytes": 0.2,
    "1 KiB two columns / all": 2.0,
    "100 B two columns / all": 2.0,
}


def decode(data: bytes, columns: Sequence[str] | None = None, *, check: bool = False) -> int:
    frames = scan_frames(data, 0)
    return sum(messages.batch.num_rows for messages in decode_messages(data, frames, 1, columns=columns, check=check))


def decoded_bytes(data: bytes) -> int:
    frames = scan_frames(data, 0)
    return sum(messages.batch.nbytes for messages in decode_messages(data, frames, 1))


def main() -> None:
    figures: dict[str, Any] = {}
    for name, data in (
        ("100 B", unbatched(100, TOTAL)),
        ("1 KiB", unbatched(1024, TOTAL)),
        ("10 KiB", unbatched(10_240, TOTAL)),
        ("1 KiB batches", batched(1024, 100, TOTAL, Codec.NONE)),
        ("1 KiB batches LZ4", batched(1024, 100, TOTAL // 2, Codec.LZ4)),
        ("1 KiB batches ZSTD", batched(1024, 100, TOTAL // 4, Codec.ZSTD)),
    ):
        seconds = best_seconds(
            {
                "all": partial(decode, data),
                "two": partial(decode, data, TWO),
                "checked": partial(decode, data, check=True),
                "memcpy": copy_fresh(data),
                "memcpy decoded": copy_fresh(bytes(decoded_bytes(data))),
            }
        )
        figures[f"{name} / memcpy"] = round(seconds["memcpy"] / seconds["all"], 3)
        figures[f"{name} / memcpy of the decoded bytes"] = round(seconds["memcpy decoded"] / seconds["all"], 3)
        figures[f"{name} checked / memcpy"] = round(seconds["memcpy"] / seconds["checked"], 3)
        figures[f"{name} two columns / all"] = round(seconds["all"] / seconds["two"], 2)
        expanded = decoded_bytes(data)
        figures[f"{name} decoded bytes / stored"] = round(expanded / len(data), 2)
        figures[f"{name} MiB/s"] = round(len(data) / seconds["all"] / 2**20)
        figures[f"{name} ns per message"] = round(seconds["all"] / decode(data) * 1e9)
    keep("columns", figures, GOALS)
