"""History of rates and lags of open topics over the last minutes, so that plots show the past when they are opened.

Samples are taken from counters once per interval: there is no cost per message. Memory is bounded: each series is a
ring of numbers, 2 KiB, and only a limited number of topics have one, besides that of all topics together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from afterglow.pipeline.metrics.overview import totals

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from afterglow.pipeline.metrics.overview import Overview, TopicRow

INTERVAL_S: Final = 10.0
"""Time between two samples."""
SAMPLES: Final = 90
"""Samples of a series: fifteen minutes."""
MAX_TOPICS: Final = 1000
"""Topics with a series; the first to be open keep theirs."""

FIELDS: Final[Mapping[str, str]] = {
    "messages_in": "messages_in_per_second",
    "bytes_in": "bytes_in_per_second",
    "messages_out": "messages_out_per_second",
    "bytes_out": "bytes_out_per_second",
    "lag_bytes": "lag_bytes",
    "lag_seconds": "lag_seconds",
}
"""Names in samples, and fields of :class:`TopicRow`."""
_ALL: Final = ""
"""The series of all topics together."""


class RateHistory:
    """Keeps the history of a server. Belongs to the event loop's thread.

    Args:
        overview: Measures the open topics.
        max_topics: Topics with a series.
    """

    def __init__(self, overview: Overview, max_topics: int = MAX_TOPICS) -> None:
        self._overview = overview
        self._max_topics = max_topics
        self._times: list[int] = []
        self._series: dict[str, NDArray[np.float32]] = {}

    async def sample(self) -> None:
        """Take a sample of all open topics. To be called once per interval."""
        now_ms, rows = await self._overview.open_topics()
        self._add(now_ms, {row.topic: row for row in rows}, totals(rows))

    def samples(self, topic: str | None = None) -> list[dict[str, float | None]]:
        """The samples of a topic, or of all together, oldest first; empty if it has none.

        Args:
            topic: Its full name; None: all topics together.
        """
        series = self._series.get(_ALL if topic is None else topic)
        if series is None:
            return []
        rows = zip(self._times, series[-len(self._times) :].tolist(), strict=True) if self._times else ()
        return [
            {"at_ms": at_ms, **{name: _known(value) for name, value in zip(FIELDS, values, strict=True)}}
            for at_ms, values in rows
            if not all(map(np.isnan, values))
        ]

    def _add(self, now_ms: int, rows: Mapping[str, TopicRow], summed: Mapping[str, float]) -> None:
        self._times = [*self._times, now_ms][-SAMPLES:]
        kept = {name: series for name, series in self._series.items() if name in rows or name == _ALL}
        empty = np.full((SAMPLES, len(FIELDS)), np.nan, np.float32)
        kept.setdefault(_ALL, empty.copy())
        new = [name for name in rows if name not in kept][: max(self._max_topics + 1 - len(kept), 0)]
        kept |= {name: empty.copy() for name in new}
        for name, series in kept.items():
            series[:-1] = series[1:]
            series[-1] = [summed.get(field, np.nan) if name == _ALL else _number(rows[name], field) for field in _NAMES]
        self._series = kept


_NAMES: Final = tuple(FIELDS.values())


def _number(row: TopicRow, field: str) -> float:
    value = getattr(row, field)
    return np.nan if value is None else float(value)


def _known(value: float) -> float | None:
    return None if np.isnan(value) else value
