"""Metrics endpoint for Prometheus.

As in Pulsar, every client that reaches the port may scrape, and so read the names of all topics. With
``authenticateMetricsEndpoint`` a scrape is authenticated like every other call.
"""

from __future__ import annotations

import time
from itertools import chain, groupby, starmap
from typing import TYPE_CHECKING, Final

from prometheus_client.core import Metric as Family
from prometheus_client.core import Sample
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector
from starlette.responses import Response

from afterglow.admin.resource import SharedResources

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from afterglow.admin.access import Access
    from afterglow.admin.call import Call
    from afterglow.pipeline.metrics.collector import MetricsCollector
    from afterglow.pipeline.metrics.definitions import Metric
    from afterglow.pipeline.metrics.samples import Samples

_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""What ``generate_latest`` writes here: the library's own constant names a later version of the format since 0.22."""

_SAMPLES_PER_TURN: Final = 50
"""Samples between two releases of the interpreter: 0.3 ms. Else the event loop would wait 5 ms, Python's switch
interval, at each of its steps."""


def resources(collector: MetricsCollector, access: Access) -> SharedResources:
    """The resource of a collector's metrics, for callers with that right."""
    found = SharedResources("")

    @found.on("GET", "/metrics", access)
    async def get_metrics(call: Call) -> Response:
        samples = await collector.collect()
        body = await call.blocking(exposition, samples, call.service.config.cluster_name)
        return Response(body, media_type=_CONTENT_TYPE)

    return found


def exposition(samples: Samples, cluster: str) -> bytes:
    """Encode samples in Prometheus' text format."""
    return generate_latest(_Families(samples, cluster))


class _Families(Collector):
    """Samples as metric families of the library.

    Samples are made while they are written, and freed one by one: tens of thousands of live objects would trigger full
    garbage collections, which stop every thread.
    """

    def __init__(self, samples: Samples, cluster: str) -> None:
        self._samples = samples
        self._cluster = cluster

    def collect(self) -> Iterator[Family]:
        """Every metric that has a value."""
        for name, series in groupby(self._samples, lambda each: each[0].family or each[0].name):
            members = list(series)
            metric = members[0][0]
            family = Family(name.removesuffix("_total"), metric.help, str(metric.type))
            family.samples = chain.from_iterable(starmap(self._samples_of, members))  # type: ignore[assignment]  # iterated once
            yield family

    def _samples_of(self, metric: Metric, values: Mapping[tuple[str, ...], float]) -> Iterator[Sample]:
        labels = self._samples.labels_of(metric)
        for number, (given, value) in enumerate(values.items()):
            if number % _SAMPLES_PER_TURN == _SAMPLES_PER_TURN - 1:
                time.sleep(0)
            yield Sample(metric.name, {"cluster": self._cluster, **dict(zip(labels, given, strict=True))}, value)
