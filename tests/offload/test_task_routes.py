"""Tasks over the protocol of a real server, held against the same tasks over its files."""

from __future__ import annotations

import base64
import pickle
import ssl
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import jwt
import pytest
from tests.support.certificates import write_certificate
from tests.support.faults import Fault, FaultRule, FaultyStore
from tests.support.raw_client import RawClient, encode_send
from tests.support.served_topics import eventually
from tests.support.serving import serving, start

from afterglow.config import BrokerConfig, load_conf
from afterglow.errors import AccessDenied, CorruptBlock, HotLogUnavailable, LedgerMissing, NotSupported
from afterglow.format.blocks import plan_v1, plan_v2
from afterglow.format.entry import encode_entry
from afterglow.format.objects import INSTANCE_KEY
from afterglow.format.position import LedgerRange
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.hot.local import open_shared, read_instance
from afterglow.hot.pulsar import PulsarAddress, RemoteLedgers
from afterglow.metadata.names import TopicName
from afterglow.offload.task import LedgerPart, LedgerTask, PartTask, Route, RouteBytes, run_part, run_task
from afterglow.pipeline.task_access import TaskAccess
from afterglow.storage.memory import MemoryStore
from afterglow.tier.locations import location_of_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray
    from tests.support.serving import Served

    from afterglow.hot.pulsar import RemoteLedger
    from afterglow.offload.task import OpenLedger, PartResult

TOPIC = "persistent://public/default/far"
NAME = TopicName.parse(TOPIC).managed_ledger_name
KEEP = "defaultRetentionTimeInMinutes=-1\ndefaultRetentionSizeInMB=-1\n"
SMALL_LEDGERS = f"managedLedgerMaxEntriesPerLedger=25\nmanagedLedgerMinLedgerRolloverTimeMinutes=0\n{KEEP}"


class RunningServer(NamedTuple):
    """A running server with a topic of several ledgers."""

    served: Served
    home: Path
    entry_ranges: tuple[LedgerRange, ...]

    @property
    def instance(self) -> str:
        return read_instance(self.home) or ""

    def offsets(self, entry_range: LedgerRange) -> NDArray[np.int64]:
        with open_shared(self.home, entry_range.ledger_id) as ledger:
            eventually(lambda: ledger.confirmed >= entry_range.last, lambda: ledger.confirmed)
            return ledger.offsets(entry_range.first, entry_range.last)

    def task(self, *ledgers: LedgerPart, **changes: Any) -> PartTask:
        return PartTask(
            **{
                "topic": NAME,
                "key": "object",
                "number": 1,
                "upload_id": "upload",
                "url": "",
                "options": (),
                "home": str(self.home),
                "instance": self.instance,
                "ledgers": ledgers,
                **changes,
            }
        )


def publish(url: str, count: int, size: int = 900, **options: Any) -> tuple[LedgerRange, ...]:
    """Publishes entries of different sizes; returns what each ledger has got."""
    with RawClient(url, **options) as client:
        producer = client.open_producer(TOPIC)
        entries = (
            encode_entry(
                wire.MessageMetadata(producer_name="p", sequence_id=number, publish_time=1 + number),
                number.to_bytes(4, "big") * (size // 4 + number % 7),
            )
            for number in range(count)
        )
        # Few at once: a ledger that is full takes what is under way all the same.
        positions = client.publish((encode_send(producer, i, data) for i, data in enumerate(entries)), 5)
    last: dict[int, int] = {}
    for position in positions:
        last[position.ledger_id] = max(position.entry_id, last.get(position.ledger_id, 0))
    return tuple(LedgerRange(ledger_id, 0, entry_id) for ledger_id, entry_id in sorted(last.items()))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    directory = tmp_path_factory.mktemp("server")
    conf = directory / "broker.conf"
    conf.write_text(SMALL_LEDGERS)
    with serving(directory / "home", "--conf", str(conf)) as served:
        yield RunningServer(served, directory / "home", publish(served.service_url, 160))


@pytest.fixture
def address(server: RunningServer) -> PulsarAddress:
    return PulsarAddress(server.served.service_url)


def v1(server: RunningServer, entry_range: LedgerRange) -> LedgerPart:
    return LedgerPart(entry_range.ledger_id, plan_v1(server.offsets(entry_range), 8_000))


def v2(server: RunningServer, entry_ranges: Sequence[LedgerRange]) -> tuple[LedgerPart, ...]:
    parts = []
    at = 0
    for entry_range in entry_ranges:
        plans = plan_v2(
            server.offsets(entry_range), entry_range.ledger_id, entry_range.first, block_bytes=4_000, offset=at
        )
        at = plans[-1].offset + plans[-1].header.block_bytes
        parts.append(LedgerPart(entry_range.ledger_id, plans))
    return tuple(parts)


def upload(task: PartTask, open_ledger: OpenLedger | None = None) -> tuple[PartResult, bytes]:
    """Runs a task that uploads to a store in memory; returns its result and the object, nothing if it failed."""
    store = MemoryStore()
    created = store.create_upload(task.key)
    task = replace(task, upload_id=created.upload_id)
    result = run_part(task, open_ledger=open_ledger, open_store=lambda *_: store)
    if result.part is None:
        assert store.list_parts(created) == ()
        return result, b""
    store.complete_upload(created, [result.part])
    return result, bytes(store.get(task.key))


def both_ways(task: PartTask, address: PulsarAddress) -> None:
    """Runs a task over files and over the protocol, and finds the same bytes, checksums and statistics."""
    found = []
    for task_, route in ((task, Route.FILES), (replace(task, home="", remote=address), Route.PROTOCOL)):
        result, stored = upload(pickle.loads(pickle.dumps(task_)))
        assert (result.error, result.route) == (None, route)
        assert result.file_bytes == (task.entry_bytes if route is Route.FILES else 0)
        assert result.part is not None
        found.append((stored, result.part.crc32c, result.statistics))
    assert found[0] == found[1]
    assert len(found[0][0]) == task.size_bytes


def test_a_ledger_gives_the_same_object_over_the_protocol(server: RunningServer, address: PulsarAddress) -> None:
    assert len(server.entry_ranges) >= 3
    for entry_range in server.entry_ranges:
        both_ways(server.task(v1(server, entry_range)), address)


def test_a_part_of_several_ledgers_gives_the_same_bytes(server: RunningServer, address: PulsarAddress) -> None:
    first, *middle, last = server.entry_ranges
    begin = LedgerRange(first.ledger_id, 10, first.last)
    end = LedgerRange(last.ledger_id, 0, max(last.last - 2, 0))
    task = server.task(*v2(server, [begin, *middle, end]))
    assert sum(len(part.plans) for part in task.ledgers if isinstance(part, LedgerPart)) > len(task.ledgers)
    both_ways(task, address)


def test_a_part_in_the_middle_of_a_ledger_gives_the_same_bytes(server: RunningServer, address: PulsarAddress) -> None:
    entry_range = server.entry_ranges[1]
    both_ways(server.task(*v2(server, [LedgerRange(entry_range.ledger_id, 3, 17)])), address)


def test_a_driver_of_others_reads_whole_ledgers_over_the_protocol(
    server: RunningServer, address: PulsarAddress, tmp_path: Path
) -> None:
    entry_range = server.entry_ranges[0]
    found = []
    for remote in (None, address):
        tier = tmp_path / str(remote is None)
        tier.mkdir()
        task = LedgerTask(
            topic=NAME,
            key="for people",
            ledger_id=entry_range.ledger_id,
            entries=len(entry_range),
            uuid=UUID(int=7),
            size_bytes=1,
            policy=BrokerConfig(),
            own=location_of_url(tier.as_uri()),
            metadata=((INSTANCE_KEY, server.instance),),
            home=str(server.home) if remote is None else "",
            instance=server.instance,
            remote=remote,
        )
        result = run_task(task)
        assert (result.error, result.route) == (None, Route.FILES if remote is None else Route.PROTOCOL)
        assert result.file_bytes == (task.size_bytes if remote is None else 0)
        found.append({path.relative_to(tier): path.read_bytes() for path in tier.rglob("*") if path.is_file()})
    assert found[0]
    assert found[0] == found[1]


def test_a_ledger_over_the_protocol_is_as_its_files_are(server: RunningServer, address: PulsarAddress) -> None:
    entry_range = server.entry_ranges[1]
    with (
        RemoteLedgers(address, TOPIC, server.entry_ranges) as ledgers,
        open_shared(server.home, entry_range.ledger_id) as stored,
    ):
        remote_ledger: RemoteLedger = ledgers.ledger(entry_range.ledger_id)
        assert (remote_ledger.ledger_id, remote_ledger.confirmed, remote_ledger.size_bytes) == (
            stored.ledger_id,
            stored.confirmed,
            stored.size_bytes,
        )
        for first, last in ((0, 99), (5, 8), (24, 24), (3, 2), (99, 100)):
            assert list(map(bytes, remote_ledger.read(first, last))) == list(map(bytes, stored.read(first, last)))
        for first, size in ((0, 1), (7, 3_000), (7, 1 << 30), (24, 5), (99, 5)):
            assert tuple(remote_ledger.read_frames(first, size)) == tuple(stored.read_frames(first, size))
        assert remote_ledger.offsets(4, 20).tolist() == stored.offsets(4, 20).tolist()
        with pytest.raises(IndexError, match="are not in the range"):
            remote_ledger.offsets(0, 99)


def test_files_are_read_only_if_they_are_the_servers(
    server: RunningServer, address: PulsarAddress, tmp_path: Path
) -> None:
    task = server.task(v1(server, server.entry_ranges[0]), remote=address)
    assert upload(task)[0].route is Route.FILES
    (tmp_path / "hot").mkdir()
    (tmp_path / "hot" / "instance").write_text("another")
    for home in ("", str(tmp_path), str(tmp_path / "hot" / "instance"), str(tmp_path / "none")):
        result, _ = upload(replace(task, home=home))
        assert (result.error, result.route) == (None, Route.PROTOCOL)
        alone, _ = upload(replace(task, home=home, remote=None))
        assert isinstance(alone.error, LedgerMissing)
        assert alone.route is None


def test_bytes_read_from_files_count_also_where_their_upload_fails(
    server: RunningServer, address: PulsarAddress
) -> None:
    task = server.task(v1(server, server.entry_ranges[0]))
    with open_shared(server.home, server.entry_ranges[0].ledger_id) as stored:
        assert task.entry_bytes == stored.size_bytes
    full = FaultyStore(MemoryStore(), [FaultRule(Fault.ERROR_BEFORE, times=None)])
    result = run_part(task, open_store=lambda *_: full)
    assert result.error is not None
    assert (result.route, result.file_bytes) == (None, task.entry_bytes)
    assert run_part(replace(task, home="", remote=address), open_store=lambda *_: full).file_bytes == 0
    assert run_part(replace(task, home=""), open_store=lambda *_: full).file_bytes == 0


def test_another_server_at_the_same_address_is_not_read(server: RunningServer, address: PulsarAddress) -> None:
    task = server.task(v1(server, server.entry_ranges[0]), home="", remote=address, instance="of another home")
    result = upload(task)[0]
    assert isinstance(result.error, NotSupported)
    assert f"this server has the hot log {server.instance}, not of another home" in str(result.error)


def test_entries_that_are_not_as_planned_are_not_uploaded(server: RunningServer, address: PulsarAddress) -> None:
    entry_range = server.entry_ranges[0]
    offsets = server.offsets(entry_range).copy()
    offsets[5:] += 1
    task = server.task(LedgerPart(entry_range.ledger_id, plan_v1(offsets, 8_000)), home="", remote=address)
    assert isinstance(upload(task)[0].error, CorruptBlock)


def test_a_server_killed_in_the_middle_of_a_task_is_an_error_to_be_retried(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(SMALL_LEDGERS)
    served = start(tmp_path / "home", "--conf", str(conf))
    try:
        entry_ranges = publish(served.service_url, 200, 256 << 10)  # more than both ends hold in memory
        server = RunningServer(served, tmp_path / "home", entry_ranges)
        task = server.task(*v2(server, entry_ranges), home="", remote=PulsarAddress(served.service_url))
        with RemoteLedgers(PulsarAddress(served.service_url), TOPIC, entry_ranges, deadline_s=1.0) as ledgers:

            def open_ledger(ledger_id: int) -> AbstractContextManager[RemoteLedger]:
                if ledger_id == entry_ranges[1].ledger_id:
                    served.kill()
                return nullcontext(ledgers.ledger(ledger_id))

            result, _ = upload(task, open_ledger)
        assert isinstance(result.error, HotLogUnavailable)
        served = start(tmp_path / "home", "--conf", str(conf))
        both_ways(replace(task, home=str(server.home)), PulsarAddress(served.service_url))
    finally:
        if served.process.poll() is None:
            served.kill()


def test_a_token_and_authorities_travel_with_a_task(tmp_path: Path) -> None:
    secret = bytes(range(32))
    token = jwt.encode({"sub": "server"}, secret, algorithm="HS256")
    certificate, key = write_certificate(tmp_path)
    conf = tmp_path / "broker.conf"
    conf.write_text(
        "authenticationEnabled=true\nauthenticationProviders=token\n"
        f"tokenSecretKey=data:;base64,{base64.b64encode(secret).decode()}\n"
        "brokerServicePort=\nwebServicePort=\nbrokerServicePortTls=0\nwebServicePortTls=0\n"
        f"tlsCertificateFilePath={certificate}\ntlsKeyFilePath={key}\n"
        f"brokerClientAuthenticationParameters=token:{token}\nbrokerClientTrustCertsFilePath={certificate}\n"
        f"offloadTasksReadFiles=false\n{KEEP}"
    )
    with serving(tmp_path / "home", "--conf", str(conf), plain=False) as served:
        tls = ssl.create_default_context(cafile=certificate)
        server = RunningServer(served, tmp_path / "home", publish(served.service_url, 20, token=token, tls=tls))
        access = TaskAccess(load_conf(conf), location_of_url("s3://bucket"))
        access.set_broker_urls("", served.service_url)
        address = access()
        assert address is not None
        task = server.task(v1(server, server.entry_ranges[0]))
        both_ways(task, address)
        assert token not in repr(replace(task, remote=address))
        stranger = replace(address, token=jwt.encode({"sub": "server"}, bytes(32), algorithm="HS256"))
        result = upload(replace(task, home="", remote=stranger))[0]
        assert isinstance(result.error, AccessDenied)


def test_bytes_are_counted_by_route() -> None:
    counted = RouteBytes().plus(Route.FILES, 3).plus(Route.PROTOCOL, 5).plus(Route.FILES, 4).plus(None, 9)
    assert counted == RouteBytes(files=7, protocol=5)
