"""The metrics endpoint for Prometheus.

As in Pulsar, every client that reaches the port may scrape, and so reads the names of all topics, unless
``authenticateMetricsEndpoint`` is set: then a scrape needs the proof of a role that every other call needs.
"""

from __future__ import annotations

import time
from itertools import chain, groupby, starmap
from typing import TYPE_CHECKING, Final

from prometheus_client.core import Metric as Family
from prometheus_client.core import Sample
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector
from starlette.responses import Response

from afterglow.admin.resource import Resources

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from afterglow.admin.access import Access
    from afterglow.admin.call import Call
    from afterglow.pipeline.metrics.collector import MetricsCollector
    from afterglow.pipeline.metrics.definitions import Metric
    from afterglow.pipeline.metrics.samples import Samples


_AT_ONCE: Final = 50
"""Samples that are written before the event loop may have the interpreter, if it wants it: a third of a millisecond.
Otherwise it would wait for its turn for five, at each of its steps."""


def resources(collector: MetricsCollector, access: Access) -> Resources:
    """The resource that gives the metrics of a collector, to callers with that access."""
    found = Resources("")

    @found.on("GET", "/metrics", access)
    async def get_metrics(call: Call) -> Response:
        samples = await collector.collect()
        body = await call.blocking(exposition, samples, call.service.config.cluster_name)
        return Response(body, media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return found


def exposition(samples: Samples, cluster: str) -> bytes:
    """Samples in the text format of Prometheus."""
    return generate_latest(_Families(samples, cluster))


class _Families(Collector):
    """Samples as families of the library.

    A family makes its samples while they are written, and lets go of each: tens of thousands that live at a time would
    make Python look through all its objects for garbage, which holds up every thread.
    """

    def __init__(self, samples: Samples, cluster: str) -> None:
        self._samples = samples
        self._cluster = cluster

    def collect(self) -> Iterator[Family]:
        """Every metric that has a value."""
        for name, series in groupby(self._samples, lambda each: each[0].family or each[0].name):
            members = list(series)
            metric = members[0][0]
            family = Family(name.removesuffix("_total"), metric.help, str(metric.kind))
            family.samples = chain.from_iterable(starmap(self._written, members))  # type: ignore[assignment]  # gone through once
            yield family

    def _written(self, metric: Metric, values: Mapping[tuple[str, ...], float]) -> Iterator[Sample]:
        labels = self._samples.labels_of(metric)
        for number, (given, value) in enumerate(values.items()):
            if number % _AT_ONCE == _AT_ONCE - 1:
                time.sleep(0)
            yield Sample(metric.name, {"cluster": self._cluster, **dict(zip(labels, given, strict=True))}, value)
