"""Scans that are filtered, limited and counted, and tables of other libraries."""

from __future__ import annotations

import pydoc
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.support.homes import APART_MS, ServerHome, batch
from tests.support.ledgers import message

import afterglow
from afterglow.errors import ConfigError, MissingDependency
from afterglow.read.counters import ReadCounters

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from afterglow import SourceTopic

TOPIC = "persistent://public/default/t"
VALUES = [b"%d" % number for number in range(10)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten messages in two ledgers, the first of them in the tier."""
    path = tmp_path_factory.mktemp("home")
    with ServerHome(path) as server:
        first, _ = server.write(TOPIC, [batch(VALUES[:3]), *map(message, VALUES[3:6])], list(map(message, VALUES[6:])))
        server.offload(TOPIC, first)
    return path


@pytest.fixture
def topic(home: Path) -> Iterator[SourceTopic]:
    with afterglow.connect(home) as source:
        yield source.topic(TOPIC)


# --- scans ------------------------------------------------------------------------------------------------------------


def test_one_column_may_be_named_without_a_list(topic: SourceTopic) -> None:
    assert topic.scan(columns="value").read_all().to_pydict() == {"value": VALUES}
    assert next(topic.messages(columns="value")).schema.names == ["value"]
    with pytest.raises(ConfigError, match="unknown column 'valeu'"):
        topic.scan(columns="valeu")


@pytest.mark.parametrize("scan", [True, False])
def test_a_filter_selects_rows(topic: SourceTopic, scan: bool) -> None:  # noqa: FBT001 - parametrized
    chosen = pc.field("value") > b"6"
    found = topic.scan(columns=["value", "tier"], filter=chosen, scan=scan).read_all()
    assert found.to_pydict() == {"value": [b"7", b"8", b"9"], "tier": ["hot"] * 3}


@pytest.mark.parametrize("bad", [pc.field("key") == b"x", "value > 6", pc.field("value") > 6])
def test_a_filter_that_cannot_be_evaluated_is_refused_before_anything_is_read(topic: SourceTopic, bad: object) -> None:
    with pytest.raises(ConfigError, match=r"cannot be evaluated over the columns value: .*name its columns"):
        topic.scan(columns="value", filter=bad)


@pytest.mark.parametrize("limit", [0, 1, 4, 10, 11, 5_000])
def test_a_limit_ends_a_scan(topic: SourceTopic, limit: int) -> None:
    assert topic.scan(columns="value", limit=limit).read_all()["value"].to_pylist() == VALUES[:limit]


def test_a_limit_counts_rows_that_match(topic: SourceTopic) -> None:
    found = topic.scan(columns="value", filter=pc.field("value") > b"3", limit=2).read_all()
    assert found["value"].to_pylist() == [b"4", b"5"]


def test_a_scan_reads_nothing_after_its_limit(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[int] = []
    monkeypatch.setattr(ReadCounters, "served", lambda *counted: served.append(counted[2]))
    with afterglow.connect(home) as source:
        assert source.topic(TOPIC).scan(limit=2).read_all().num_rows == 2
    assert sum(served) < len(VALUES)


def test_a_negative_limit_is_refused(topic: SourceTopic) -> None:
    with pytest.raises(ConfigError, match="limit=-1 is negative"):
        topic.scan(limit=-1)


def test_a_scan_is_a_reader_of_pyarrow(topic: SourceTopic) -> None:
    assert isinstance(topic.scan(limit=1), pa.RecordBatchReader)


def test_messages_are_counted(topic: SourceTopic) -> None:
    assert topic.count() == len(VALUES)
    ledgers = topic.ledgers()
    assert topic.count(start=f"{ledgers[0].ledger_id}:0:1", end=f"{ledgers[1].ledger_id}:1") == 6
    times = topic.scan(columns="broker_time").read_all()["broker_time"].to_pylist()
    assert topic.count(since=times[-1]) == 1
    assert (times[-1] - times[-2]).total_seconds() * 1000 == APART_MS


# --- other libraries --------------------------------------------------------------------------------------------------


def test_rows_become_tables_of_other_libraries(topic: SourceTopic) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("polars")
    pytest.importorskip("duckdb")
    assert topic.to_pandas(columns=["value", "tier"])["value"].tolist() == VALUES
    everything = topic.to_polars()
    assert everything["value"].to_list() == VALUES
    assert everything.columns == topic.scan().schema.names
    relation = topic.to_duckdb(columns="tier")
    for _ in range(2):
        assert sorted(relation.aggregate("tier, count(*)").fetchall()) == [("hot", 4), ("tiered", 6)]
    assert topic.to_polars(columns="value", start="latest").height == 0


@pytest.mark.parametrize("library", ["pandas", "polars", "duckdb"])
def test_a_library_that_is_not_installed_is_named_with_the_command_that_installs_it(
    topic: SourceTopic, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingDependency, match=f"{library} cannot be imported.*pip install {library}"):
        getattr(topic, f"to_{library}")()


# --- names ------------------------------------------------------------------------------------------------------------


def test_every_public_name_is_listed_and_can_be_imported() -> None:
    program = """
import afterglow, sys
assert not {"pyarrow", "numpy", "pyspark"} & set(sys.modules), "importing the package imports little"
assert set(afterglow.__all__) <= set(dir(afterglow))
for name in afterglow.__all__:
    assert getattr(afterglow, name) is not None
try:
    afterglow.conect
except AttributeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == "module 'afterglow' has no attribute 'conect'\n"


def test_help_shows_the_functions_classes_and_errors() -> None:
    shown = pydoc.plain(pydoc.render_doc(afterglow))
    assert [name for name in afterglow.__all__ if name not in shown] == ["__version__"], "shown as VERSION"
    assert "Connect to a source of topics." in shown


def test_errors_at_the_top_are_those_of_the_tree() -> None:
    for name in afterglow.__all__:
        found = getattr(afterglow, name)
        if isinstance(found, type) and issubclass(found, Exception):
            assert found is getattr(afterglow.errors, name)
            assert issubclass(found, afterglow.AfterglowError)
