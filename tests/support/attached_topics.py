"""Attached topics in this process: a cluster of scripted parts, real offload to a directory, and the admin API.

The cluster has bookies, a broker that keeps subscriptions, an admin API and metadata, each of which a test sets as it
needs it. Everything of Afterglow is real; tasks run in this process, without Spark.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self
from uuid import uuid4

from tests.support.bookies import ScriptedCluster
from tests.support.hold_broker import HoldBroker
from tests.support.recorded_admin import recorded_admin
from tests.support.served_topics import eventually

from afterglow.admin.app import ProcessState
from afterglow.admin.attached_app import attached_app
from afterglow.admin.http_server import HttpLimits, serve_http
from afterglow.attach.catalog import AttachedCatalog
from afterglow.attach.cluster import AttachedCluster, ClusterSettings
from afterglow.attach.follower import Follower
from afterglow.attach.hot_ledgers import BrokerLedgers, ClusterLedgers
from afterglow.attach.metrics import AttachMetrics
from afterglow.attach.policies import AttachPolicies, PolicyFile
from afterglow.attach.records import attachment_instance, record_subscription
from afterglow.attach.service import AttachedService, ClusterLink
from afterglow.attach.topics import AttachedTopics
from afterglow.broker.auth import Authenticator
from afterglow.config import BrokerConfig
from afterglow.format.entry import encode_entry
from afterglow.format.position import Position
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
from afterglow.hot.bookkeeper.address import BookKeeperAddress
from afterglow.hot.pulsar import ClusterBrokers, PulsarAddress, SubscriptionHolds
from afterglow.ledger.environment import SystemClock
from afterglow.metadata.address import open_metadata
from afterglow.metadata.admin_client import AdminClient
from afterglow.metadata.cluster_credentials import ClusterCredentials
from afterglow.metadata.memory import MemoryMetadataStore
from afterglow.metadata.names import TopicName
from afterglow.metadata.ownership import take_ownership
from afterglow.metadata.paths import AfterglowPaths
from afterglow.metadata.pulsar_cluster import PulsarCluster
from afterglow.offload.service import OffloadService
from afterglow.offload.task import run_task
from afterglow.pipeline.server_handle import ServerHandle
from afterglow.pipeline.tier_verifier import TierStores, TierVerifier
from afterglow.pipeline.verify_runs import VerifyRuns
from afterglow.tier.locations import Tiers, location_of_url

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from afterglow.errors import Fenced
    from afterglow.metadata.store import MetadataStore
    from afterglow.offload.task import PartResult, Task
    from afterglow.pipeline.tier_verifier import VerifyControl

CLUSTER: Final = "lab"
SUBSCRIPTION: Final = "afterglow"
ENTRY_BYTES: Final = 1000
_WAIT_S: Final = 120.0


class Answer(NamedTuple):
    """What a call was answered."""

    status: int
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def reason(self) -> str:
        assert set(self.json) == {"reason"}
        return str(self.json["reason"])


class TasksHere:
    """Runs tasks in a thread of this process."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="task")

    def prepare(self) -> None:
        """Nothing has to start."""

    def submit(self, tasks: Sequence[Task], done: Callable[[Task, PartResult], None]) -> None:
        for task in tasks:
            self._thread.submit(self._run, task, done)

    def close(self) -> None:
        self._thread.shutdown()

    @staticmethod
    def _run(task: Task, done: Callable[[Task, PartResult], None]) -> None:
        done(task, run_task(task))


class FakeCluster:
    """A Pulsar cluster of scripted parts; a context manager.

    Args:
        path: Directory of its metadata, which tasks open by its address.
    """

    def __init__(self, path: Path) -> None:
        self._stack = ExitStack()
        self.metadata_address = f"sqlite:{path / 'cluster.db'}"
        self.store = self._stack.enter_context(closing(open_metadata(self.metadata_address)))
        self.bookies = self._stack.enter_context(ScriptedCluster(store=self.store))
        self.broker = HoldBroker()
        self._stack.callback(self.broker.close)
        self.admin = self._stack.enter_context(recorded_admin())
        self._lists: dict[str, ManagedLedgerInfo] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def write(self, topic: str, ledger_id: int, entries: int, *, closed: bool = False) -> None:
        """Write the first entries of a ledger of a topic, which is the last one of its list."""
        payloads = [encode_entry(_metadata(number), bytes(ENTRY_BYTES)) for number in range(entries)]
        delivered = self.broker.entries.setdefault(topic, {})
        delivered |= {Position(ledger_id, number): payload for number, payload in enumerate(payloads)}
        self.broker.last = Position(ledger_id, entries - 1)
        self.bookies.write(ledger_id, payloads, {0: ("b0", "b1", "b2")}, 2)
        if closed:
            self.bookies.put_metadata(ledger_id, {0: ("b0", "b1", "b2")}, 2, entries - 1)
        name = TopicName.parse(topic)
        info = self._lists.setdefault(topic, ManagedLedgerInfo())
        ledger = next((each for each in info.ledgerInfo if each.ledgerId == ledger_id), None)
        ledger = info.ledgerInfo.add(ledgerId=ledger_id) if ledger is None else ledger
        if closed:
            ledger.entries, ledger.size, ledger.timestamp = entries, sum(map(len, payloads)), 1_700_000_000_000
        path = f"persistent/{name.namespace}/{name.local_name}"
        self.admin.answers[f"{path}/internalStats"] = {"lastConfirmedEntry": f"{ledger_id}:{entries - 1}"}
        self.bookies.put(f"/managed-ledgers/{name.managed_ledger_name}", info.SerializeToString())

    def trim(self, topic: str, ledger_id: int) -> None:
        """Trim a ledger off the list of a topic."""
        info = self._lists[topic]
        kept = [each for each in info.ledgerInfo if each.ledgerId != ledger_id]
        self._lists[topic] = ManagedLedgerInfo(ledgerInfo=kept)
        path = f"/managed-ledgers/{TopicName.parse(topic).managed_ledger_name}"
        self.bookies.put(path, self._lists[topic].SerializeToString())

    def put_json(self, path: str, value: object) -> None:
        """Store JSON in the metadata, such as policies."""
        self.bookies.put(path, json.dumps(value).encode())


class AttachedHere:
    """A process that is attached to such a cluster, with its admin API on a real port; a context manager.

    Args:
        path: Directory of its tier.
        cluster: The cluster.
        metadata: Our metadata; None: a store of its own.
        pattern: Topics to attach.
        policies: The policy file.
        from_brokers: Whether entries are read from the broker, and not from bookies.
        settings: Of the process.
    """

    def __init__(
        self,
        path: Path,
        cluster: FakeCluster,
        *,
        metadata: MetadataStore | None = None,
        pattern: str = ".*",
        policies: PolicyFile | None = None,
        from_brokers: bool = False,
        **settings: Any,
    ) -> None:
        self._from_brokers = from_brokers
        self.cluster = cluster
        self.tier = path / "tier"
        self.metadata: MetadataStore = metadata or MemoryMetadataStore()
        self.paths = AfterglowPaths(CLUSTER)
        self.fenced: list[Fenced] = []
        self.port = 0
        self._policies = policies or PolicyFile()
        self._pattern = pattern
        self._settings = settings
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        stack, cluster = self._stack, self.cluster
        self.tier.mkdir(exist_ok=True)
        config = BrokerConfig(
            cluster_name=CLUSTER,
            **{
                "streaming_offload_enabled": True,
                "max_offload_segment_rollover_time_in_seconds": 3600,
                **self._settings,
            },
        )
        policies = AttachPolicies(config, self._policies)
        clock = SystemClock()
        metadata = take_ownership(self.metadata, self.paths.owners, uuid4())
        instance = attachment_instance(metadata, self.paths)
        record_subscription(metadata, self.paths, SUBSCRIPTION)
        admin = AdminClient(cluster.admin.url, ClusterCredentials.of(None, None))
        view = PulsarCluster(cluster.store)
        settings = ClusterSettings(CLUSTER, cluster.metadata_address)
        attached = AttachedCluster(settings, admin, view, re.compile(self._pattern))
        self.topics = AttachedTopics(
            cluster=attached,
            hot=BrokerLedgers() if self._from_brokers else ClusterLedgers(cluster.bookies.client),
            metadata=metadata,
            paths=self.paths,
            config=policies.config,
            clock=clock,
        )
        runner = TasksHere()
        stack.callback(runner.close)
        threads = ThreadPoolExecutor(4)
        stack.callback(threads.shutdown)
        tiers, location = Tiers(), location_of_url(self.tier.as_uri())
        brokers = PulsarAddress(cluster.broker.url)
        address = ClusterBrokers(brokers) if self._from_brokers else BookKeeperAddress(cluster.metadata_address)
        self.offload = OffloadService(
            metadata=metadata,
            paths=self.paths,
            policies=policies,
            tiers=tiers,
            own=location,
            runner=runner,
            executor=threads,
            clock=clock,
            instance=instance,
            home="",
            remote=lambda: address,
            tasks_cut_blocks=True,
            ledger_list=self.paths.managed_ledger,
            check_undelivered=self.topics.check_listed if self._from_brokers else None,
        )
        self.offload.attach(self.topics)
        stack.callback(self.offload.close)
        self.holds = SubscriptionHolds(brokers, SUBSCRIPTION, has_entries=self.topics.has_entries)
        stack.callback(self.holds.close)
        self.follower = Follower(attached, self.topics, self.holds, clock, self.fenced.append)
        stack.callback(self.follower.close)

        def open_verifier(control: VerifyControl) -> TierVerifier:
            stores = TierStores(tiers.store(location, config), config, tiers=tiers, control=control)
            return TierVerifier(None, instance, metadata, stores, config, quiet=False)

        verify_runs = VerifyRuns(open_verifier)
        stack.callback(verify_runs.close)
        self.service = AttachedService(
            ClusterLink(CLUSTER, cluster.admin.url, SUBSCRIPTION),
            config=policies.config,
            store=self.topics,
            catalog=AttachedCatalog(self.topics, view),
            policies=policies,
            holds=self.holds,
            follower=self.follower,
            authenticator=Authenticator.from_config(config),
            pool=threads,
        )
        self.server = ServerHandle(self.service, self.offload, verify_runs)
        self._serve(config)
        self.offload.start()
        self.follower.start()

    def _serve(self, config: BrokerConfig) -> None:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="admin")
        thread.start()
        self._stack.callback(loop.close)
        self._stack.callback(thread.join)
        self._stack.callback(loop.call_soon_threadsafe, loop.stop)

        def run(work: Any) -> Any:
            found: Future[Any] = asyncio.run_coroutine_threadsafe(work, loop)
            return found.result(_WAIT_S)

        state = ProcessState.of(self.server, AttachMetrics(self.server))
        server = run(serve_http(attached_app(self.server, state), "127.0.0.1", 0, HttpLimits.of(config)))
        self._stack.callback(lambda: run(server.stop()))
        self.port = server.port

    def attached(self, topic: str, entries: int) -> None:
        """Wait until a topic is attached and as many of its entries are known."""
        name = TopicName.parse(topic).managed_ledger_name

        def known() -> int:
            found = self.topics.opened(name)
            return -1 if found is None else found.layout.total_entries

        eventually(lambda: known() == entries, known)

    def in_tier(self, topic: str) -> None:
        """Let the offload work until all entries of a topic that are known are in committed segments."""
        name = TopicName.parse(topic).managed_ledger_name

        def lag() -> int:
            self.offload.tick()
            found = self.topics.opened(name)
            return -1 if found is None else self.service.backlog(found)

        eventually(lambda: lag() == 0, partial(self.offload.explain, name))

    def call(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> Answer:
        """Call below ``/admin/v2``; a path that begins with a slash is whole."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_WAIT_S)
        data = None if body is None else json.dumps(body).encode()
        with closing(connection):
            connection.request(method, path if path.startswith("/") else f"/admin/v2/{path}", data, headers or {})
            found = connection.getresponse()
            return Answer(found.status, found.read())

    def get(self, path: str) -> Any:
        """The JSON of a call that must succeed."""
        answer = self.call("GET", path)
        assert answer.status == 200, answer
        return answer.json


def _metadata(number: int) -> wire.MessageMetadata:
    return wire.MessageMetadata(producer_name="p", sequence_id=number, publish_time=1_700_000_000_000 + number)
