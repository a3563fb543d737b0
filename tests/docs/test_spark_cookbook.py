"""The recipes of docs/spark-cookbook.md run in order in one session; its versions are those that are installed."""

from __future__ import annotations

import json
import re
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.homes import ServerHome
from tests.support.pages import Page, run_python
from tests.support.serving import serving

from afterglow.catalog.schema_registry import SchemaRegistry
from afterglow.format.entry import encode_entry
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.metadata.names import TopicName
from afterglow.metadata.paths import AfterglowPaths

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGE = Page.read(ROOT / "docs" / "spark-cookbook.md")
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "customer", "type": "string"}, {"name": "cents", "type": "int"}],
}
OFFLOADED = 5
"""Days whose orders are in the tier alone."""
RETENTION = "defaultRetentionTimeInMinutes=-1\ndefaultRetentionSizeInMB=-1\n"
DAYS = range(2, 13)
"""Of November: two orders of 100 cents each, and on the last day the last of them once more."""


def fill(home: Path) -> None:
    """Orders on eleven days, a ledger each, the oldest in the tier; and three returns."""
    with ServerHome(home) as server:
        registry = SchemaRegistry(server.metadata, AfterglowPaths(server.config.cluster_name))
        schema = wire.Schema(name="orders", schema_data=json.dumps(ORDER).encode(), type=wire.Schema.Json)
        version = registry.get_or_create(TopicName.parse("orders"), schema)
        written: list[int] = []
        for day in DAYS:
            server.clock.set_now_ms(int(datetime(2026, 11, day, 12, tzinfo=UTC).timestamp() * 1000))
            first, second = order(version, 2 * day, "alice"), order(version, 2 * day + 1, "bob")
            written += server.write("orders", [first, second, *([second] if day == DAYS[-1] else [])])
        for ledger_id in written[:OFFLOADED]:
            server.offload("orders", ledger_id)
            server.free("orders", ledger_id)
        server.write("returns", [order(b"", number, "alice") for number in range(3)])


def order(version: bytes, number: int, customer: str) -> bytes:
    metadata = wire.MessageMetadata(producer_name="p", sequence_id=number, publish_time=1, partition_key=customer)
    metadata.schema_version = version
    return encode_entry(metadata, json.dumps({"customer": customer, "cents": 100}).encode())


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """What all programs of the page print; one process and one session for all, for Spark is slow to start."""
    pytest.importorskip("pyspark", reason="the extra pulsar-afterglow[spark] is not installed")
    location = tmp_path_factory.mktemp("place")
    home = location / "home"
    home.mkdir()
    fill(home)
    (location / "broker.conf").write_text(RETENTION)  # nobody is subscribed: else all but the newest ledger would go
    with serving(home, "--conf", str(location / "broker.conf")) as served:
        text = "\n".join(PAGE.programs).replace("http://pulsar:8080", served.admin_url)
        yield run_python("-c", text, cwd=location, timeout_s=1_200)


@pytest.mark.pulsar
@pytest.mark.timeout(1500)
def test_every_recipe_prints_its_result(said: str) -> None:
    for words in (
        "14 orders in the first week",
        "{'orders': 23, 'returns': 3}",
        "0 could not be decoded",
        "2300 cents in all",
        "| north| 1100|",
        "| south| 1200|",
        "9 orders later on",
        "1 was sent twice",
        "2 customers",
        "True",
        "10 days are closed",
        "23 exported; 23 after a second run",
    ):
        assert words in said
    assert sorted(re.findall(r"\|\s*(hot|tiered)\|\s*(\d+)\|", said)) == [("hot", "13"), ("tiered", "10")]


def test_the_output_of_every_recipe_is_checked() -> None:
    silent = [text for text in PAGE.programs if "print(" not in text and ".show()" not in text]
    assert len(silent) == 1, "only the session itself says nothing"
    assert "getOrCreate" in silent[0]


def test_versions_are_those_that_are_required_and_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lock = (ROOT / "requirements.lock").read_text()
    rows = {cells[0].strip(): cells for cells in (line.strip("|").split("|") for line in PAGE.text.splitlines())}
    needs = " ".join([*project["dependencies"], *project["optional-dependencies"]["spark"]])
    for name, row in (("pyspark", "Spark, PySpark"), ("pyarrow", "pyarrow")):
        assert f"{name}>={rows[row][1].strip()}" in needs
        assert f"{name}=={rows[row][2].strip()}" in lock
    assert f"pandas=={rows['pandas'][2].strip()}" in lock
    assert project["requires-python"] == f">={rows['Python, on driver and executors'][1].strip()}"
