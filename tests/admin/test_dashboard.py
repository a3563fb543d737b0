from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulsar
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.support.served_topics import eventually

from afterglow.errors import ObjectMissing
from afterglow.pipeline.metrics.definitions import GROUPS
from afterglow.pipeline.tier_verifier import VerifyRequest
from afterglow.read.copies import StorageTier
from afterglow.read.counters import ReadCounters
from afterglow.storage import CountingStore, MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.admin.conftest import Admin

FOLDER = Path(__file__).parents[2] / "dashboards"
DASHBOARD = FOLDER / "grafana.json"
ALERTS = FOLDER / "alerts.yml"

_STRING = re.compile(r'"[^"]*"')
_GROUPING = re.compile(r"\b(?:by|on) \(([^)]*)\)")
_NAME = re.compile(r"\b(?:pulsar|brk|afterglow)_\w+")


def queries(node: Any) -> Iterator[str]:
    """Every query of the dashboard, of panels and of variables."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in {"expr", "query"} and isinstance(value, str) and value != "prometheus":
                yield value
            else:
                yield from queries(value)
    elif isinstance(node, list):
        for value in node:
            yield from queries(value)


@pytest.fixture
def emitted(start: Callable[..., Admin]) -> dict[str, set[str]]:
    """The labels of every metric that a broker emits to which everything has happened once."""
    admin = start(offload=True, streaming_offload_enabled=True)
    reads = ReadCounters()
    reads.served(StorageTier.TIERED, 1, 100)
    reads.fell_back(StorageTier.TIERED, "denied")
    reads.skipped(1, "damaged")
    reads.fetched(100, 0.001)
    reads.opened(0.001)
    admin.server.read_counts = lambda _name: reads.counts()
    store = CountingStore(MemoryStore())
    with pytest.raises(ObjectMissing):
        store.get("missing")
    admin.server.tier_requests = store.counts
    client = pulsar.Client(admin.service.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    client.subscribe("t", "s")
    client.create_producer("t").send(b"x")
    assert admin.call("PUT", "persistent/public/default/t/offload", "latest").status == 204
    admin.offloading.begin()
    admin.offloading.finish()
    run = admin.offloading.verify_runs.start(VerifyRequest(), lambda: None)
    eventually(lambda: run.result is not None, lambda: run.control.current)
    try:
        text = admin.call("GET", "/metrics").body.decode()
    finally:
        client.close()
    return {
        sample.name: set(sample.labels) for family in text_string_to_metric_families(text) for sample in family.samples
    }


def test_every_metric_that_is_declared_is_emitted_with_its_labels(emitted: dict[str, set[str]]) -> None:
    of_broker = [metric for group in GROUPS if not group.attached for metric in group.metrics]
    assert emitted == {metric.name: {"cluster", *metric.labels} for metric in of_broker}


@pytest.mark.parametrize(("file", "least"), [(DASHBOARD, 30), (ALERTS, 7)], ids=["dashboard", "alerts"])
def test_every_query_asks_for_what_is_emitted(file: Path, least: int, emitted: dict[str, set[str]]) -> None:
    # JSON is also YAML. `up` is a metric of Prometheus itself.
    found = [query for query in queries(yaml.safe_load(file.read_text("utf-8"))) if not query.startswith("up{")]
    assert len(found) >= least
    for query in found:
        bare = _STRING.sub('""', query)
        names = set(_NAME.findall(bare))
        assert names, query
        assert names <= set(emitted), query
        for name in names:
            (selector,) = set(re.findall(rf"\b{name}\{{([^}}]*)\}}", bare)) or {""}
            asked = set(re.findall(r"(\w+)(?==~|!=|=)", selector))
            grouped = {label.strip() for group in _GROUPING.findall(bare) for label in group.split(",")}
            assert asked | grouped <= emitted[name], (query, name)


def test_every_alert_names_only_labels_of_its_metric_and_what_to_do(emitted: dict[str, set[str]]) -> None:
    (group,) = yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]
    for rule in group["rules"]:
        first = _NAME.findall(rule["expr"])[:1]
        labels = emitted[first[0]] if first else {"job", "instance"}
        text = " ".join(rule["annotations"].values())
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= labels, rule["alert"]
        assert set(rule["annotations"]) == {"summary", "action"}
        assert rule["labels"]["severity"] in {"critical", "warning"}


def test_the_scrape_configuration_loads_the_alerts_and_names_their_job() -> None:
    found = yaml.safe_load((FOLDER / "prometheus.yml").read_text("utf-8"))
    assert found["rule_files"] == [ALERTS.name]
    jobs = {job["job_name"] for job in found["scrape_configs"]}
    assert set(re.findall(r'job="(\w+)"', ALERTS.read_text("utf-8"))) <= jobs


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    panels = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
