"""Collected values of metrics, merged by labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from afterglow.pipeline.metrics.definitions import METRICS, Merge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afterglow.pipeline.metrics.definitions import Metric
    from afterglow.read.counters import LatencySummary


class Samples:
    """Values by metric and labels. Values with the same labels are merged by the rule of the metric.

    Args:
        without: Labels to leave out; values that differ in them only are merged.
        hidden: Names of metrics to leave out.
    """

    def __init__(self, without: frozenset[str] = frozenset(), hidden: frozenset[str] = frozenset()) -> None:
        self._without = without
        self._hidden = hidden
        self._values: dict[str, dict[tuple[str, ...], float]] = {}

    def add(self, name: str, value: float, *labels: str) -> None:
        """Add a value of a metric, unless it is hidden.

        Args:
            name: Name of a defined metric.
            value: The current value.
            labels: Values of its labels, in the order of the definition.
        """
        if name in self._hidden:
            return
        metric = METRICS[name]
        kept = tuple(given for label, given in zip(metric.labels, labels, strict=True) if label not in self._without)
        values = self._values.setdefault(name, {})
        known = values.get(kept)
        if known is None:
            values[kept] = value
        else:
            values[kept] = max(known, value) if metric.merge is Merge.MAX else known + value

    def add_summary(self, name: str, summary: LatencySummary, *labels: str) -> None:
        """Add the series of a summary, unless it is empty."""
        if not summary.count:
            return
        for quantile, took_us in summary.quantiles.items():
            self.add(name, took_us, *labels, str(quantile))
        self.add(f"{name}_sum", summary.sum_us, *labels)
        self.add(f"{name}_count", summary.count, *labels)

    def labels_of(self, metric: Metric) -> tuple[str, ...]:
        """The labels of a metric, without those left out."""
        return tuple(label for label in metric.labels if label not in self._without)

    def __iter__(self) -> Iterator[tuple[Metric, dict[tuple[str, ...], float]]]:
        """All metrics with values, in the order of the definitions, with their values by labels."""
        for name, metric in METRICS.items():
            if name in self._values:
                yield metric, self._values[name]
