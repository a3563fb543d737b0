"""Holding what came back against what was sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from afterglow.format.position import Position

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from afterglow.offload.segments.listing import SegmentView

_POSITION: Final = ("ledger_id", "entry_id", "batch_index")
_NAMED: Final = 10
"""Differences of a kind that are named one by one."""


def differences(sent: pa.Table, back: pa.Table) -> list[str]:
    """Where messages that came back differ from those that were sent, in content, place or order.

    Args:
        sent: Positions and digests in the order of sending.
        back: The same columns in the order of reading.
    """
    if sent.num_rows != back.num_rows:
        return [f"{sent.num_rows:,} messages were sent, {back.num_rows:,} came back"]
    moved = np.zeros(sent.num_rows, bool)
    for name in _POSITION:
        moved |= _differ(sent, back, name)
    changed = _differ(sent, back, "digest") & ~moved
    return [
        *_told(moved, "message {} came back from another position than the broker had acknowledged"),
        *_told(changed, "message {} came back changed"),
    ]


def _differ(sent: pa.Table, back: pa.Table, name: str) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = pc.not_equal(sent[name], back[name]).to_numpy()
    return found


def _told(wrong: NDArray[np.bool_], sentence: str) -> list[str]:
    numbers = np.flatnonzero(wrong)
    told = [sentence.format(number) for number in numbers[:_NAMED]]
    if numbers.size > _NAMED:
        told.append(f"so did {numbers.size - _NAMED:,} further ones")
    return told


@dataclass(frozen=True, slots=True)
class EntryTimes:
    """Broker times of all entries, as a plain scan found them."""

    positions: tuple[Position, ...]
    times_ms: NDArray[np.int64]

    @classmethod
    def of(cls, back: pa.Table) -> EntryTimes:
        """From messages in the order of positions."""
        ledgers, entries = (back[name].to_numpy() for name in ("ledger_id", "entry_id"))
        first = np.flatnonzero(np.append(True, (np.diff(ledgers) != 0) | (np.diff(entries) != 0)))
        times_us = back["broker_time"].cast(pa.int64()).to_numpy()
        positions = zip(ledgers[first].tolist(), entries[first].tolist(), strict=True)
        return cls(tuple(Position(*position) for position in positions), times_us[first] // 1000)

    def first_at_or_after(self, moment_ms: int) -> Position:
        """By looking at every entry; where there is none, the position behind the last."""
        found = np.flatnonzero(self.times_ms >= moment_ms)
        return self.positions[found[0]] if found.size else self.positions[-1].next()

    def to_tier_s(self, segments: Iterable[SegmentView]) -> list[float]:
        """Of each segment, the seconds from its last entry in the log to its object in the tier."""
        times = dict(zip(self.positions, self.times_ms.tolist(), strict=True))
        return [
            (segment.offloaded_ms - times[segment.end]) / 1000
            for segment in segments
            if segment.offloaded_ms is not None and segment.end in times
        ]

    def wrong_seeks(self, who: str, moments: Sequence[int], found: Sequence[Position]) -> list[str]:
        """Where seeks did not find what looking at every entry finds."""
        return [
            f"{who} sought {moment} and found {position}, not {expected}"
            for moment, position in zip(moments, found, strict=True)
            if (expected := self.first_at_or_after(moment)) != position
        ]
