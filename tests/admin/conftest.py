"""A broker with its admin API on a real port, in an event loop of its own, and a plain HTTP client."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import socket
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.clock import ManualExecutor
from tests.support.java_tools import JavaTools

from afterglow.admin.app import ProcessState, admin_app
from afterglow.admin.http_server import HttpLimits, serve_http
from afterglow.broker.auth import Authenticator
from afterglow.broker.service import BrokerService
from afterglow.catalog.catalog import Catalog
from afterglow.catalog.schema_registry import SchemaRegistry
from afterglow.config import BrokerConfig
from afterglow.errors import MissingDependency
from afterglow.format.position import Position
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
from afterglow.hot.local.log import LocalLog
from afterglow.hot.log import call_each
from afterglow.ledger.environment import SystemClock
from afterglow.ledger.properties import OWNER_EPOCH, set_text
from afterglow.ledger.store import LedgerStore
from afterglow.metadata.memory import MemoryMetadataStore
from afterglow.metadata.paths import AfterglowPaths
from afterglow.offload.service import OffloadService
from afterglow.offload.task import run_task
from afterglow.pipeline.server_handle import ServerHandle
from afterglow.pipeline.tier_verifier import TierStores, TierVerifier
from afterglow.pipeline.tiering import TopicSources
from afterglow.pipeline.verify_runs import VerifyRuns
from afterglow.policy.allowed_tiers import AllowedTiers
from afterglow.policy.resolver import Policies
from afterglow.read.ranges import ObjectLocator
from afterglow.read.tier_reader import TierReader
from afterglow.tier.locations import Tiers, location_of_url

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence
    from pathlib import Path

    from afterglow.errors import AfterglowError
    from afterglow.ledger.managed_ledger import ManagedLedger
    from afterglow.offload.task import PartResult, Task
    from afterglow.pipeline.tier_verifier import VerifyControl

_TOPIC_PATH = re.compile("/managed-ledgers/[^/]+/[^/]+/persistent/[^/]+")


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def reason(self) -> str:
        """Why a call was refused; fails where the answer has another form."""
        assert set(self.json) == {"reason"}
        assert isinstance(self.json["reason"], str)
        return str(self.json["reason"])


class Hold:
    """Lets writes of metadata wait until a test has done what is to come between."""

    def __init__(self) -> None:
        self._reached, self._go_on = threading.Event(), threading.Event()

    def wait(self) -> None:
        self._reached.set()
        assert self._go_on.wait(30)

    def reached(self) -> None:
        """Wait until something is held."""
        assert self._reached.wait(30)

    def end(self) -> None:
        self._go_on.set()


class HeldTasks:
    """A runner that queues tasks until a test runs them."""

    def __init__(self) -> None:
        self._held: list[tuple[Task, Callable[[Task, PartResult], None]]] = []

    def prepare(self) -> None:
        """Nothing has to start."""

    def submit(self, tasks: Sequence[Task], done: Callable[[Task, PartResult], None]) -> None:
        self._held += [(task, done) for task in tasks]

    def close(self) -> None:
        self._held.clear()

    def run(self) -> None:
        while self._held:
            task, done = self._held.pop(0)
            done(task, run_task(task))


class Offloading:
    """A real offload service, of which a test decides when something happens."""

    def __init__(
        self, home: Path, *, config: BrokerConfig, hot: LocalLog, metadata: MemoryMetadataStore, catalog: Catalog
    ) -> None:
        self._tasks = HeldTasks()
        self._executor = ManualExecutor()
        self.tier = home / "tier"
        self.instance = hot.instance
        self.tier.mkdir()
        self.policies = Policies(config, catalog)
        paths, tiers = AfterglowPaths(config.cluster_name), Tiers()
        own = self.own = location_of_url(self.tier.as_uri())
        self._tier_reader = TierReader(tiers, config, ObjectLocator(metadata, paths, server_tier=own))
        self.sources = TopicSources(hot, self._tier_reader, self.policies)
        self.service = OffloadService(
            metadata=metadata,
            paths=paths,
            policies=self.policies,
            tiers=tiers,
            own=own,
            runner=self._tasks,
            executor=self._executor,
            clock=SystemClock(),
            instance=hot.instance,
            home=str(home),
            flush=hot.flush,
        )

        def open_verifier(control: VerifyControl) -> TierVerifier:
            stores = TierStores(tiers.store(own, config), config, tiers=tiers, control=control)
            return TierVerifier(home, hot.instance, metadata, stores, config, quiet=False)

        self.verify_runs = VerifyRuns(open_verifier)

    def close(self) -> None:
        self._tier_reader.close()

    def begin(self) -> None:
        """Look for what is due, up to where tasks would run."""
        self.service.start()
        self.service.tick()
        self._executor.run_all()
        self.service.tick()
        self._executor.run_all()

    def finish(self) -> None:
        """Run the tasks, and commit what they wrote."""
        self._tasks.run()
        self._executor.run_all()


class Admin:
    """A running broker and a client of its admin API."""

    def __init__(
        self,
        server: ServerHandle[BrokerService],
        metadata: MemoryMetadataStore,
        loop: asyncio.AbstractEventLoop,
        offloading: Offloading | None,
    ) -> None:
        self.server = server
        self.service = server.service
        self._offloading = offloading
        self.metadata = metadata
        self.port = 0
        self.process: ProcessState
        self._loop = loop

    @property
    def offloading(self) -> Offloading:
        """What drives offload, in a broker that does."""
        assert self._offloading is not None
        return self._offloading

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run something in the broker's event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def call(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> Answer:
        """Call below ``/admin/v2``; a path that begins with a slash is whole."""
        data = None if body is None else json.dumps(body).encode()
        return self.send(method, path if path.startswith("/") else f"/admin/v2/{path}", data, headers)

    def send(self, method: str, path: str, data: bytes | None, headers: dict[str, str] | None = None) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, data, headers or {})
            found = connection.getresponse()
            return Answer(found.status, found.read(), {key.lower(): value for key, value in found.getheaders()})
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """The JSON of a call that must succeed."""
        answer = self.call("GET", path)
        assert answer.status == 200, answer
        return answer.json

    def do(self, method: str, path: str, body: object = None) -> None:
        """A call that must succeed without content."""
        answer = self.call(method, path, body)
        assert (answer.status, answer.body) == (204, b""), answer

    def refused(self, status: int, method: str, path: str, body: object = None) -> str:
        """The reason of a call that must be refused."""
        answer = self.call(method, path, body)
        assert answer.status == status, answer
        return answer.reason

    def write_ledgers(self, count: int, topic: str = "public/default/persistent/t") -> list[int]:
        """Write ledgers of one entry each and close them; returns their ids."""
        ledger = self.service.store.open(topic, create=False)
        return [_write_ledger(ledger) for _ in range(count)]

    def write_entries(self, count: int, topic: str = "public/default/persistent/t") -> None:
        """Write entries of 100 bytes into the ledger that is open."""
        ledger = self.service.store.open(topic, create=False)
        for _ in range(count):
            _write_entry(ledger)

    def write(self, entry: bytes, topic: str = "public/default/persistent/t") -> None:
        """Write one entry, as a producer sends it."""
        _write_entry(self.service.store.open(topic, create=False), entry)

    def raw(self, method: str, path: str) -> bytes:
        """The bytes of an answer, as they come over the wire."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as connection:
            connection.sendall(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            return b"".join(iter(lambda: connection.recv(1 << 16), b""))

    @contextmanager
    def held(self, ending: str) -> Iterator[Hold]:
        """Hold writes to nodes whose path ends so."""
        hold, put = Hold(), self.metadata.put

        def held_put(path: str, value: bytes, expected_version: int, *, guard: str | None = None) -> int:
            if path.endswith(ending):
                hold.wait()
            return put(path, value, expected_version, guard=guard)

        self.metadata.put = held_put  # type: ignore[method-assign]
        try:
            yield hold
        finally:
            hold.end()
            del self.metadata.put

    def state(self) -> dict[str, bytes]:
        """All metadata: what a refused call must not change. Who owns a topic is left out: opening it changes that."""
        found: dict[str, bytes] = {}

        def walk(path: str) -> None:
            for name in self.metadata.children(path or "/"):
                child = f"{path}/{name}"
                stored = self.metadata.get(child)
                found[child] = b"" if stored is None else _without_owner(child, stored.value)
                walk(child)

        walk("")
        return found


def _without_owner(path: str, value: bytes) -> bytes:
    if _TOPIC_PATH.fullmatch(path) is None or not value:
        return value
    info = ManagedLedgerInfo.FromString(value)
    set_text(info, OWNER_EPOCH, None)
    return info.SerializeToString()


def _write_ledger(ledger: ManagedLedger) -> int:
    ledger_id = _write_entry(ledger)
    ledger.roll()
    return ledger_id


def _write_entry(ledger: ManagedLedger, entry: bytes = bytes(100)) -> int:
    ended: Future[Position] = Future()

    def done(outcome: Position | AfterglowError) -> None:
        if isinstance(outcome, Position):
            ended.set_result(outcome)
        else:
            ended.set_exception(outcome)

    ledger.append([entry], 1, done)
    return ended.result(30).ledger_id


@contextmanager
def running(home: Path, *, offload: bool = False, **settings: Any) -> Iterator[Admin]:
    with ExitStack() as stack:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="broker")
        thread.start()
        stack.callback(loop.close)
        stack.callback(thread.join)
        stack.callback(loop.call_soon_threadsafe, loop.stop)
        config = BrokerConfig(**settings)
        pool = ThreadPoolExecutor(4)
        stack.callback(pool.shutdown)
        hot = LocalLog(home, deliver=lambda dones, error: loop.call_soon_threadsafe(call_each, dones, error))
        stack.callback(hot.close)
        metadata = MemoryMetadataStore()
        catalog = Catalog(metadata, config.cluster_name)
        catalog.ensure_defaults()
        offloading = None
        if offload:
            offloading = Offloading(home, config=config, hot=hot, metadata=metadata, catalog=catalog)
            stack.callback(offloading.close)
        store = LedgerStore(
            hot=hot,
            states=hot,
            metadata=metadata,
            config=config,
            executor=pool,
            sources=offloading.sources if offloading else None,
            offloading=offloading.service if offloading else None,
        )
        if offloading:
            offloading.service.attach(store)
        stack.callback(store.close)
        service = BrokerService(
            config=config,
            store=store,
            catalog=catalog,
            policies=offloading.policies if offloading else Policies(config, catalog),
            schemas=SchemaRegistry(metadata, AfterglowPaths(config.cluster_name)),
            authenticator=Authenticator.from_config(config),
            pool=pool,
            instance="test",
            allowed_tiers=AllowedTiers(config, offloading.own if offloading else None),
        )
        server = ServerHandle(service)
        if offloading:
            server = ServerHandle(service, offloading.service, offloading.verify_runs, offloading.sources.counts)
        admin = Admin(server, metadata, loop, offloading)
        stack.callback(lambda: admin.run(service.close()))
        admin.run(service.listen("127.0.0.1", 0))
        admin.process = ProcessState.of_broker(server)
        app = admin_app(server, admin.process)
        http_server = admin.run(serve_http(app, "127.0.0.1", 0, HttpLimits.of(config)))
        stack.callback(lambda: admin.run(http_server.stop()))
        if offloading:
            stack.callback(offloading.verify_runs.close)
        admin.port = http_server.port
        yield admin


@pytest.fixture(scope="module")
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Admin]:
    """A broker for many examples of one test; with the parameter True one that offloads."""
    home = tmp_path_factory.mktemp("home")
    with running(home, offload=getattr(request, "param", False), max_num_partitions_per_partitioned_topic=3) as admin:
        yield admin


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Admin]]:
    """Starts a broker with settings, and with ``offload=True`` one that offloads."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(running(tmp_path / "home", **settings))


@pytest.fixture
def admin(start: Callable[..., Admin]) -> Admin:
    return start()


@pytest.fixture
def tools(admin: Admin, tmp_path: Path) -> JavaTools:
    """Pulsar's own tools, set up for the broker of a test."""
    try:
        return JavaTools(admin.service.service_url, f"http://127.0.0.1:{admin.port}", tmp_path)
    except MissingDependency as error:
        pytest.skip(str(error))
