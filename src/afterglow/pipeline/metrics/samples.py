"""Values of declared metrics on their way to whoever shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from afterglow.pipeline.metrics.definitions import METRICS, Merge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afterglow.pipeline.metrics.definitions import Metric
    from afterglow.read.counters import LatencySummary


class Samples:
    """Values by metric and labels. Those of the same labels are merged as the metric says.

    Args:
        without: Labels that are left out, so that what they tell apart becomes one.
        hidden: Names of metrics that are not wanted.
    """

    def __init__(self, without: frozenset[str] = frozenset(), hidden: frozenset[str] = frozenset()) -> None:
        self._without = without
        self._hidden = hidden
        self._values: dict[str, dict[tuple[str, ...], float]] = {}

    def add(self, name: str, value: float, *labels: str) -> None:
        """Add a value of a metric; nothing happens where it is hidden.

        Args:
            name: Of a declared metric.
            value: As of now.
            labels: Values of the labels that are declared, in their order.
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
        """Add the series of a summary; none where nothing was ever measured."""
        if not summary.count:
            return
        for quantile, took_us in summary.quantiles.items():
            self.add(name, took_us, *labels, str(quantile))
        self.add(f"{name}_sum", summary.sum_us, *labels)
        self.add(f"{name}_count", summary.count, *labels)

    def labels_of(self, metric: Metric) -> tuple[str, ...]:
        """The labels that are shown of a metric."""
        return tuple(label for label in metric.labels if label not in self._without)

    def __iter__(self) -> Iterator[tuple[Metric, dict[tuple[str, ...], float]]]:
        """Every metric that has a value, as declared, with its values by labels."""
        for name, metric in METRICS.items():
            if name in self._values:
                yield metric, self._values[name]
