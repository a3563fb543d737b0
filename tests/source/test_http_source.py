"""Topics of a server, read through its admin API and its binary port, and errors if these do not answer."""

from __future__ import annotations

import base64
import json
import pickle
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.homes import ServerHome, batch
from tests.support.ledgers import message
from tests.support.servers import free_port
from tests.support.serving import serving

import afterglow
from afterglow.cli import main
from afterglow.config import BrokerConfig
from afterglow.errors import ConfigError, HotLogUnavailable, MetadataUnavailable, NotSupported, TopicMissing
from afterglow.read.split_reader import SplitReader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.serving import Served

    from afterglow.source.connect import Source

TOPIC = "persistent://public/default/t"
PARTS = "persistent://public/default/parts"
EACH = 5


def entry(number: int) -> bytes:
    return batch([b"%d.%d" % (number, i) for i in range(3)]) if number % 2 else message(b"%d" % number)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A topic of seven ledgers: one offloaded whole, three in segments of either record, three hot; a partition."""
    path: Path = tmp_path_factory.mktemp("home")
    with ServerHome(path) as server:
        groups = [[entry(ledger * EACH + at) for at in range(EACH)] for ledger in range(7)]
        ids = server.write(TOPIC, *groups)
        server.offload(TOPIC, ids[0])
        server.free(TOPIC, ids[0])
        server.offload_segment(TOPIC, (ids[1], 0, EACH - 1), (ids[2], 0, 2))
        server.offload_segment(TOPIC, (ids[2], 3, EACH - 1), (ids[3], 0, 1), recorded=False)
        for freed in ids[1:3]:
            server.free(TOPIC, freed)
        server.catalog.create_partitioned(server.open(f"{PARTS}-partition-0").topic.base, 2)
        server.write(f"{PARTS}-partition-1", [message(b"one")])
    return path


@pytest.fixture(scope="module")
def served(home: Path) -> Iterator[Served]:
    with serving(home) as served:
        yield served


@pytest.fixture
def source(served: Served) -> Iterator[Source]:
    with afterglow.connect(served.admin_url) as source:
        yield source


def rows(source: Source, topic: str = TOPIC, **scan_range: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = source.topic(topic).scan(**scan_range).read_all().to_pylist()
    return found


def out_bytes(served: Served) -> int:
    stats: dict[str, int] = served.admin("GET", "persistent/public/default/t/stats")
    return stats["bytesOutCounter"]


def test_a_topic_is_the_same_by_its_home_and_by_the_admin_api(home: Path, source: Source) -> None:
    with afterglow.connect(home) as beside:
        expected = rows(beside)
        assert [row["tier"] for row in expected] == [row["tier"] for row in rows(source)]
        assert rows(source) == expected
        assert source.topics() == beside.topics()
        assert source.topic(TOPIC).segments() == beside.topic(TOPIC).segments()
        assert source.topic(TOPIC).ledgers() == beside.topic(TOPIC).ledgers()
        ids = [ledger.ledger_id for ledger in beside.topic(TOPIC).ledgers()]
        scan_range = {"start": f"{ids[2]}:1:2", "end": f"{ids[5]}:2"}
        assert rows(source, **scan_range) == rows(beside, **scan_range)
        assert rows(source, PARTS) == rows(beside, PARTS)


def test_cold_entries_are_read_without_the_broker(served: Served, source: Source) -> None:
    before = out_bytes(served)
    topic = source.topic(TOPIC)
    cold = rows(source, end=f"{topic.ledgers()[3].ledger_id}:2")
    assert {row["tier"] for row in cold} == {"tiered"}
    assert len(cold) == sum(3 if number % 2 else 1 for number in range(3 * EACH + 2))
    assert out_bytes(served) == before
    assert {row["tier"] for row in rows(source, start=f"{topic.ledgers()[4].ledger_id}:0")} == {"hot"}
    assert out_bytes(served) > before


def test_splits_of_the_hot_rest_are_read_over_the_protocol_in_any_process(source: Source) -> None:
    splits = pickle.loads(pickle.dumps(list(source.topic(TOPIC).splits())))
    reader = SplitReader(BrokerConfig())
    found = [row for split in splits for batch in reader.batches(split) for row in batch.to_pylist()]
    reader.close()
    assert found == rows(source)


def test_splits_of_a_home_that_is_not_on_this_machine_are_read_from_its_engine(home: Path, served: Served) -> None:
    with afterglow.connect(home) as beside:
        expected = rows(beside)
        splits = list(beside.topic(TOPIC).splits())
    reader = SplitReader(BrokerConfig())
    locations: list[dict[str, Any]] = [{"home": "/on/another/machine"}, {"home": str(home.parent)}]
    for elsewhere in locations:
        remote = [replace(split, hot=split.hot and replace(split.hot, **elsewhere)) for split in splits]
        assert [row for split in remote for batch in reader.batches(split) for row in batch.to_pylist()] == expected
    # Another server's home at the same path, and another server at the same address: never read for this one's.
    strangers: list[dict[str, Any]] = [{"instance": "0" * 32}, {"home": "/on/another/machine", "instance": "0" * 32}]
    for wrong in strangers:
        last = replace(splits[-1], hot=splits[-1].hot and replace(splits[-1].hot, **wrong))
        with pytest.raises(NotSupported, match="0000"):
            list(reader.batches(last))
    alone = replace(splits[-1], hot=splits[-1].hot and replace(splits[-1].hot, home="/nowhere", service_url=""))
    with pytest.raises(HotLogUnavailable, match="hot=skip"):
        list(reader.batches(alone))
    reader.close()


def test_hot_skip_skips_entries_that_no_tier_has(served: Served) -> None:
    with afterglow.connect(served.admin_url, hot="skip") as source, afterglow.connect(served.admin_url) as whole:
        assert rows(source) == [row for row in rows(whole) if row["tier"] == "tiered"]
        assert [ledger.entries for ledger in source.topic(TOPIC).ledgers()] == [EACH, EACH, EACH, 2]
    with pytest.raises(ConfigError, match="hot='never' is unknown; use read or skip"):
        afterglow.connect(served.admin_url, hot="never")  # type: ignore[arg-type]


def test_the_command_line_reads_by_the_admin_api(
    served: Served, source: Source, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["read", served.admin_url, "t", "--format", "jsonl", "--hot", "skip"])
    assert ended.value.code == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    expected = [row for row in rows(source) if row["tier"] == "tiered"]
    assert [base64.b64decode(row["value_base64"]) for row in printed] == [row["value"] for row in expected]


def test_a_missing_topic_is_reported_with_similar_names(source: Source) -> None:
    with pytest.raises(TopicMissing, match=r"no topic persistent://public/default/tt; did you mean .*default/t or"):
        source.topic("tt")


def test_a_source_that_does_not_answer_is_reported_with_the_fix() -> None:
    with (
        afterglow.connect(f"http://127.0.0.1:{free_port()}") as source,
        pytest.raises(MetadataUnavailable, match=r"does not respond: .*zk://HOST:2181"),
    ):
        source.topics()
