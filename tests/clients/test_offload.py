"""Stock client to ``serve`` to the tier and back: every message once, in order, byte-equal, the hot copies gone."""

from __future__ import annotations

import contextlib
import json
import os
import time
import urllib.error
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.serving import serving

from afterglow.format.metadata_envelope import parse_managed_ledger
from afterglow.metadata.address import open_metadata
from afterglow.metadata.names import TopicName
from afterglow.metadata.paths import managed_ledger_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.serving import Served

    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo

pulsar = pytest.importorskip("pulsar", reason="the stock client is not installed: pip install pulsar-client")
pytest.importorskip("pyspark", reason="the extra pulsar-afterglow[spark] is not installed")

CONF = """
managedLedgerMaxEntriesPerLedger=25
managedLedgerMinLedgerRolloverTimeMinutes=0
managedLedgerOffloadDeletionLagInMillis=1
managedLedgerCacheSizeMB=0
defaultRetentionTimeInMinutes=-1
defaultRetentionSizeInMB=-1
offloadTickIntervalMillis=100
"""
COUNT = 110
ANSWER_S = 300.0


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "broker.conf").write_text(CONF)
    return tmp_path / "home"


def options(home: Path, **settings: str) -> tuple[str, ...]:
    conf = home.with_name("broker.conf")
    lines = "".join(f"{key}={value}\n" for key, value in settings.items())
    conf.write_text(CONF + lines)
    return ("--conf", str(conf), "--master", "local[2]")


@contextlib.contextmanager
def client_of(served: Served) -> Iterator[Any]:
    client = pulsar.Client(
        served.service_url, operation_timeout_seconds=30, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    try:
        yield client
    finally:
        client.close()


def payloads(count: int, seed: int = 0) -> list[bytes]:
    return [b"%d/%d/" % (seed, number) + os.urandom(200) for number in range(count)]


def produce(client: Any, topic: str, values: list[bytes]) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    for value in values:
        producer.send(value)
    producer.close()


def consume(client: Any, topic: str, count: int) -> list[bytes]:
    """Everything from the earliest message on, by a subscription of its own."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    values = [reader.read_next(timeout_millis=30_000).data() for _ in range(count)]
    assert not reader.has_message_available()
    reader.close()
    return values


def eventually(holds: Callable[[], bool], what: Callable[[], object]) -> None:
    deadline = time.monotonic() + ANSWER_S
    while not holds():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


def rows_of(home: Path, topic: str) -> list[ManagedLedgerInfo.LedgerInfo]:
    with contextlib.closing(open_metadata(f"sqlite:{home / 'metadata.db'}")) as metadata:
        found = metadata.get(managed_ledger_path(TopicName.parse(topic).managed_ledger_name))
        assert found is not None
        return list(parse_managed_ledger(found.value).ledgerInfo)


def hot_ledgers(home: Path) -> set[int]:
    return {int(path.stem) for path in (home / "hot/ledgers").glob("*.ledger")}


def wait_until_freed(home: Path, topic: str) -> list[int]:
    """Wait until of every closed ledger only the object is left; gives their ids."""

    def freed() -> bool:
        rows = rows_of(home, topic)[:-1]
        return all(row.offloadContext.bookkeeperDeleted for row in rows) and not hot_ledgers(home) & {
            row.ledgerId for row in rows
        }

    eventually(freed, lambda: (rows_of(home, topic), hot_ledgers(home)))
    return [row.ledgerId for row in rows_of(home, topic)[:-1]]


def test_what_a_stock_client_wrote_comes_back_from_the_tier_also_after_a_restart(home: Path) -> None:
    topic = "persistent://public/default/by-size"
    sent = payloads(COUNT)
    threshold = {"managedLedgerOffloadThresholdInBytes": "0"}
    with serving(home, *options(home, **threshold)) as served:
        summary = f"tier {(home / 'tier').as_uri()}, offload of closed ledgers on close, retention for ever"
        eventually(lambda: summary in served.lines, lambda: served.lines)
        with client_of(served) as client:
            produce(client, topic, sent)
            freed = wait_until_freed(home, topic)
            assert len(freed) > 1
            assert consume(client, topic, COUNT) == sent
        assert served.stop() == 0

    with serving(home, *options(home, **threshold)) as served, client_of(served) as client:
        more = payloads(30, seed=1)
        assert consume(client, topic, COUNT) == sent
        produce(client, topic, more)
        assert consume(client, topic, COUNT + len(more)) == sent + more
        wait_until_freed(home, topic)
        assert consume(client, topic, COUNT + len(more)) == sent + more
    rows = rows_of(home, topic)
    assert not any(row.offloadContext.offloadSegment for row in rows)
    assert all(row.offloadContext.complete for row in rows[:-1])


def test_a_subscription_that_goes_back_moves_from_tier_to_hot_to_tail(home: Path) -> None:
    topic = "persistent://public/default/by-hand"
    sent = payloads(60)
    with serving(home, *options(home)) as served, client_of(served) as client:
        produce(client, topic, sent)
        assert not any(row.offloadContext.complete for row in rows_of(home, topic))
        offload_all(served, home, "by-hand")
        freed = wait_until_freed(home, topic)
        late = payloads(40, seed=1)
        produce(client, topic, late[:30])  # closed ledgers that nobody asked to offload: hot

        consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
        received = [consumer.receive(timeout_millis=30_000) for _ in range(len(sent) + 30)]
        produce(client, topic, late[30:])
        received += [consumer.receive(timeout_millis=30_000) for _ in range(10)]

        assert [message.data() for message in received] == sent + late
        assert {message.message_id().ledger_id() for message in received[:50]} == set(freed)
        for message in received:
            consumer.acknowledge(message)
        consumer.seek(pulsar.MessageId.earliest)
        assert consumer.receive(timeout_millis=30_000).data() == sent[0]


def offload_all(served: Served, home: Path, name: str) -> None:
    """Offload by REST every ledger that is closed, and wait for it."""
    path = f"persistent/public/default/{name}"
    full = f"persistent://public/default/{name}"
    eventually(lambda: len(rows_of(home, full)) > 1, lambda: rows_of(home, full))  # a full ledger is closed in a while
    served.admin("PUT", f"{path}/offload", {"ledgerId": rows_of(home, full)[-1].ledgerId, "entryId": 0})
    eventually(
        lambda: served.admin("GET", f"{path}/offload")["status"] != "RUNNING",
        lambda: served.admin("GET", f"{path}/offload"),
    )
    assert served.admin("GET", f"{path}/offload")["status"] == "SUCCESS"


def test_a_second_offload_by_hand_is_refused_while_the_first_runs(home: Path) -> None:
    topic = "persistent://public/default/twice"
    with serving(home, *options(home)) as served, client_of(served) as client:
        produce(client, topic, payloads(30))
        path = "persistent/public/default/twice/offload"
        last = rows_of(home, topic)[-1].ledgerId
        served.admin("PUT", path, {"ledgerId": last, "entryId": 0})  # takes seconds: Spark starts
        with pytest.raises(urllib.error.HTTPError, match="409") as refused:
            served.admin("PUT", path, {"ledgerId": last, "entryId": 0})
        assert "in progress" in json.loads(refused.value.read())["reason"]


@pytest.mark.parametrize("end", ["terminated", "killed"])
def test_a_server_that_ends_while_spark_works_leaves_no_process_behind(home: Path, end: str) -> None:
    topic = "persistent://public/default/ended"
    with serving(home, *options(home, managedLedgerOffloadThresholdInBytes="0")) as served:
        with client_of(served) as client:
            produce(client, topic, payloads(30))
            wait_until_freed(home, topic)
            processes = descendants(served.process.pid)
            assert any("java" in name for name in processes.values())
            produce(client, topic, payloads(30))  # more work on its way
        if end == "killed":
            served.kill()
        else:
            started = time.monotonic()
            assert served.stop() == 0
            assert time.monotonic() - started < 20
            assert not [line for line in served.lines if " ERROR " in line]
    eventually(lambda: not alive(processes), lambda: alive(processes))


def test_a_tier_that_does_not_answer_holds_up_neither_other_topics_nor_the_end(home: Path) -> None:
    cold, hot = "persistent://public/default/cold", "persistent://public/default/hot"
    with serving(home, *options(home)) as served, client_of(served) as stuck, client_of(served) as client:
        produce(client, cold, payloads(30))
        offload_all(served, home, "cold")
        wait_until_freed(home, cold)
        produce(client, cold, payloads(1))  # so that the last message, which readers ask for, is hot
        (index,) = (home / "tier").rglob("*-index")
        index.unlink()
        os.mkfifo(index)  # opening it waits for a writer that never comes
        readers = [stuck.create_reader(cold, pulsar.MessageId.earliest) for _ in range(10)]
        eventually(lambda: waits_for_pipe(served.process.pid), lambda: "no reader waits")

        sent = payloads(60, seed=1)
        produce(client, hot, sent)
        assert consume(client, hot, 60) == sent
        assert all(reader.has_message_available() for reader in readers)
        for reader in readers:
            with pytest.raises(pulsar.Timeout):
                reader.read_next(timeout_millis=1)

        started = time.monotonic()
        assert served.stop() == 0
        assert time.monotonic() - started < 20


def waits_for_pipe(pid: int) -> bool:
    """Whether a thread of a process waits for the other end of a pipe; True where the system does not tell."""
    locations = {(thread / "wchan").read_text() for thread in Path(f"/proc/{pid}/task").iterdir()}
    return bool(locations & {"wait_for_partner", "fifo_open"}) or locations == {"0"}


def descendants(pid: int) -> dict[int, str]:
    """Processes below one, by id, with what they run."""
    found: dict[int, str] = {}
    waiting = [pid]
    while waiting:
        for thread in _threads(waiting.pop()):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # one may end while we look
                for child in map(int, (thread / "children").read_text().split()):
                    found[child] = Path(f"/proc/{child}/comm").read_text().strip()
                    waiting.append(child)
    return found


def _threads(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except FileNotFoundError:
        return []


def alive(processes: dict[int, str]) -> list[int]:
    return [pid for pid in processes if Path(f"/proc/{pid}").exists()]
