"""What goes wrong between ``afterglow attach`` and a real Pulsar: refused before anything changes, or survived."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import jwt
import pytest
from tests.support.live_attach import (
    SUBSCRIPTION,
    AttachedProcess,
    attach_options,
    backlog_of,
    is_untouched,
    ledgers_of,
    unfinished_of,
    verified,
    wait_for_tier,
)
from tests.support.pulsar_standalone import PulsarStandalone, broker_class_path
from tests.support.served_topics import eventually
from tests.support.servers import start_moto
from tests.support.zookeeper import ZooKeeperServer

import afterglow
from afterglow.attach.ledger_merge import LEFT_TO_CLUSTER
from afterglow.errors import MissingDependency
from afterglow.ledger.properties import get_text
from afterglow.metadata.zookeeper import ZooKeeperMetadataStore
from afterglow.storage import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.servers import S3Server

pulsar = pytest.importorskip("pulsar", reason="the stock client is not installed: pip install pulsar-client")
pytest.importorskip("pyspark", reason="the extra pulsar-afterglow[spark] is not installed")
pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(900)]

SECRET = bytes(range(32))
CLUSTER = "standalone"
WAIT_S = 300.0
SIZE = 1_000


def token(role: str, secret: bytes = SECRET) -> str:
    return jwt.encode({"sub": role}, secret, algorithm="HS256")


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    """Moto's: versitygw refuses the ``Date`` header that Pulsar's S3 library signs with."""
    with start_moto() as server:
        for bucket in ("attached", "offloaded"):
            server.create_bucket(bucket)
        yield server


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory, s3: S3Server) -> Iterator[PulsarStandalone]:
    """A Pulsar that asks for tokens, and trims and checks quotas at once; its own offloader is set up."""
    directory = tmp_path_factory.mktemp("pulsar")
    key = directory / "secret"
    key.write_bytes(SECRET)
    settings = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
        "tokenSecretKey": f"file://{key}",
        "superUserRoles": "admin",
        "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
        "brokerClientAuthenticationParameters": f"token:{token('admin')}",
        "defaultRetentionTimeInMinutes": "0",
        "defaultRetentionSizeInMB": "0",
        "managedLedgerMaxEntriesPerLedger": "50",
        "backlogQuotaCheckIntervalInSeconds": "1",
        "brokerDeleteInactiveTopicsEnabled": "false",
        "managedLedgerOffloadDriver": "S3",
        "managedLedgerOffloadBucket": "offloaded",
        "managedLedgerOffloadServiceEndpoint": s3.endpoint,
        "managedLedgerOffloadRegion": s3.region,
    }
    credentials = {"ACCESS_KEY_ID": s3.access_key, "ACCESS_KEY_SECRET": s3.secret_key}
    started = PulsarStandalone(directory, settings, credentials, token=token("admin"))
    try:
        started.start()
    except MissingDependency as error:
        pytest.skip(str(error))
    try:
        yield started
    finally:
        started.stop()


class World:
    """One topic in a namespace of its own, and how ``afterglow attach`` is started for it."""

    def __init__(self, name: str, standalone: PulsarStandalone, s3: S3Server, directory: Path) -> None:
        self.standalone = standalone
        self.s3 = s3
        self.directory = directory
        self.namespace = f"public/{name}"
        self.topic = f"persistent://{self.namespace}/t"
        self.path = self.topic.replace("://", "/")
        self.metadata = f"sqlite:{directory / 'attach.db'}"
        self.tier = f"s3://attached/{name}"
        self.sent = 0
        self.processes: list[AttachedProcess] = []
        standalone.admin("PUT", f"namespaces/{self.namespace}")
        standalone.admin("PUT", self.path)

    def attach(self, *options: str, **given: str) -> AttachedProcess:
        """A process that is not started yet; it is killed at the end of the test."""
        process = AttachedProcess(
            self.standalone.admin_url,
            given.get("topics", f"{self.namespace}/.*"),
            given.get("tier", self.tier),
            self.metadata,
            *("--master", "local[2]", "--token", given.get("token", token(given.get("role", "admin")))),
            *attach_options(
                self.s3, {"offloadRetryMaxBackoffMillis": "1s"}, segment_s=int(given.get("segment_s", "2"))
            ),
            *options,
        )
        self.processes.append(process)
        return process

    def attached(self, *options: str, **given: str) -> AttachedProcess:
        """A process that holds the subscription."""
        process = self.attach(*options, **given)
        process.start()
        eventually(lambda: backlog_of(self.standalone, self.topic) is not None, lambda: process.lines[-30:])
        return process

    def refused(self, *options: str, **given: str) -> str:
        """The error of a process that must not start, and must not have changed anything."""
        before = self.subscriptions()
        error = self.attach(*options, **given).refused()
        assert self.subscriptions() == before
        assert is_untouched(self.directory / "attach.db")
        return error

    def subscriptions(self) -> list[str]:
        found: list[str] = self.standalone.admin("GET", f"{self.path}/subscriptions")
        return found

    def client(self) -> Any:
        return pulsar.Client(
            self.standalone.service_url,
            authentication=pulsar.AuthenticationToken(token("admin")),
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )

    def value(self, number: int) -> bytes:
        return b"%06d:" % number + bytes([number % 251]) * SIZE

    def publish(self, count: int) -> None:
        """Send further messages and wait for their receipts."""
        client = self.client()
        try:
            producer = client.create_producer(self.topic, batching_enabled=False, block_if_queue_full=True)
            for _ in range(count):
                producer.send(self.value(self.sent))
                self.sent += 1
        finally:
            client.close()

    def in_tier(self) -> list[int]:
        """Numbers of the messages that are read without the cluster's own entries, in order."""
        with afterglow.connect(
            self.standalone.admin_url, metadata=self.metadata, hot="skip", token=token("admin")
        ) as source:
            values = source.topic(self.topic).scan(columns=["value"]).read_all().column("value").to_pylist()
        numbers = [int(value[:6]) for value in values]
        assert values == [self.value(number) for number in numbers]
        return numbers

    def settle(self) -> None:
        """Wait until nothing is held back, and nothing is under way."""
        wait_for_tier(self.standalone, [self.topic], WAIT_S)
        self.wait_for_uploads()

    def wait_for_uploads(self) -> None:
        def left() -> list[str]:
            return unfinished_of(self.metadata, self.topic, CLUSTER)

        eventually(lambda: not left(), left, WAIT_S)

    def verify(self) -> None:
        options = ("--deep", "--token", token("admin"))
        assert "no faults" in verified(self.standalone.admin_url, self.metadata, self.s3, *options)

    def set_quota(self, policy: str, limit_bytes: int) -> None:
        quota = {"limitSize": limit_bytes, "limitTime": -1, "policy": policy}
        kind = "backlogQuotaType=destination_storage"
        self.standalone.admin("POST", f"namespaces/{self.namespace}/backlogQuota?{kind}", quota)


@pytest.fixture
def world(
    request: pytest.FixtureRequest,
    standalone: PulsarStandalone,
    s3: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[World]:
    monkeypatch.setenv("ACCESS_KEY_ID", s3.access_key)
    monkeypatch.setenv("ACCESS_KEY_SECRET", s3.secret_key)
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name.removeprefix("test_"))[:60]
    world = World(name, standalone, s3, tmp_path)
    yield world
    for process in world.processes:
        process.kill()
        print("output of afterglow attach:", *process.lines[-100:], sep="\n")  # noqa: T201 - shown if the test fails


# --- refused ----------------------------------------------------------------------------------------------------------


def test_a_token_of_another_key_is_refused(world: World) -> None:
    error = world.refused(token=token("admin", b"x" * 32))
    assert "AFTERGLOW_TOKEN" in error


def test_a_role_without_permission_is_refused_with_what_it_lacks(world: World) -> None:
    assert "AFTERGLOW_TOKEN" in world.refused(role="stranger")
    named = ("--zookeeper", world.standalone.zookeeper, "--cluster-name", CLUSTER)
    error = world.refused(*named, role="stranger")
    assert "--accept-risk" in error or "AFTERGLOW_TOKEN" in error


def test_message_ttl_is_refused(world: World) -> None:
    world.standalone.admin("POST", f"namespaces/{world.namespace}/messageTTL", 3600)
    error = world.refused()
    assert "messageTTL=3600 s" in error
    assert "remove-message-ttl" in error
    assert "--accept-risk" in error


@pytest.mark.parametrize(
    ("policy", "consequence"),
    [
        ("consumer_backlog_eviction", "drops entries"),
        ("producer_request_hold", "blocks producers"),
        ("producer_exception", "blocks producers"),
    ],
)
def test_each_backlog_quota_is_refused(world: World, policy: str, consequence: str) -> None:
    world.set_quota(policy, 1_000_000)
    error = world.refused()
    assert "backlogQuota[destination_storage]" in error
    assert policy in error
    assert consequence in error


def test_a_missing_bucket_is_refused(world: World) -> None:
    assert "create the bucket" in world.refused(tier="s3://missing/prefix")


def test_a_tier_that_does_not_respond_is_refused(world: World) -> None:
    begin = time.monotonic()
    error = world.refused("--set", "s3ManagedLedgerOffloadServiceEndpoint=http://127.0.0.1:9")
    assert "127.0.0.1:9" in error
    assert time.monotonic() - begin < 60


def test_metadata_of_another_cluster_is_refused(world: World, tmp_path: Path) -> None:
    directory = tmp_path / "zookeeper"
    directory.mkdir()
    with ZooKeeperServer(broker_class_path(), directory) as other:
        store = ZooKeeperMetadataStore(other.hosts)
        store.put("/admin/clusters/other", b"{}", -1)
        store.close()
        error = world.refused("--zookeeper", f"zk://{other.hosts}")
    assert "cluster other" in error
    assert "--zookeeper" in error


def test_a_pattern_that_matches_nothing_is_refused(world: World) -> None:
    error = world.refused(topics="public/nothing/.*")
    assert "'public/nothing/.*'" in error
    assert "public/default/orders" in error


# --- survived ---------------------------------------------------------------------------------------------------------


def test_a_quota_that_evicts_while_attach_is_stopped_loses_what_it_names_and_the_topic_goes_on(world: World) -> None:
    world.set_quota("consumer_backlog_eviction", 60 * SIZE)
    process = world.attached("--accept-risk")
    for _ in range(3):
        world.publish(40)
        world.settle()
    assert process.stop() == 0
    world.publish(200)
    ledgers = {ledger.ledgerId for ledger in ledgers_of(world.metadata, world.topic, CLUSTER)}
    kept = f"{world.path}/internalStats"

    def first_kept() -> int:
        return int(world.standalone.admin("GET", kept)["ledgers"][0]["ledgerId"])

    eventually(lambda: first_kept() > max(ledgers), lambda: (first_kept(), ledgers), WAIT_S)
    process = world.attached("--accept-risk")
    world.publish(60)
    world.settle()
    found = world.in_tier()
    assert found[:120] == list(range(120))
    assert found[-60:] == list(range(320, 380))
    assert found == sorted(found)
    assert len(found) < 380
    world.verify()


def test_a_quota_that_holds_producers_lets_them_go_on_once_attach_is_back(world: World) -> None:
    world.set_quota("producer_request_hold", 60 * SIZE)
    process = world.attached("--accept-risk")
    world.publish(20)
    world.settle()
    assert process.stop() == 0
    ended = threading.Event()

    def publish() -> None:
        world.publish(300)
        ended.set()

    thread = threading.Thread(target=publish, daemon=True)
    thread.start()
    stats = f"{world.path}/stats"
    eventually(
        lambda: (backlog_of(world.standalone, world.topic) or 0) >= 60, lambda: world.standalone.admin("GET", stats)
    )
    process = world.attached("--accept-risk")
    assert ended.wait(WAIT_S), process.lines[-30:]
    thread.join()
    world.settle()
    found = world.in_tier()
    assert list(dict.fromkeys(found)) == list(range(320)), "what had no receipt was sent again"
    world.verify()


def test_a_quota_that_refuses_producers_lets_them_go_on_once_attach_is_back(world: World) -> None:
    world.set_quota("producer_exception", 60 * SIZE)
    process = world.attached("--accept-risk")
    world.publish(20)
    world.settle()
    assert process.stop() == 0
    with pytest.raises(pulsar.PulsarException):
        world.publish(2_000)
    written = world.sent
    world.attached("--accept-risk")
    world.settle()
    world.publish(40)
    world.settle()
    found = world.in_tier()
    assert list(dict.fromkeys(found)) == list(range(written + 40)), "what was refused was sent again"
    world.verify()


def test_a_subscription_that_is_deleted_while_attach_runs_is_held_again(world: World) -> None:
    process = world.attached()
    world.publish(120)
    world.settle()
    world.standalone.admin("DELETE", f"{world.path}/subscription/{SUBSCRIPTION}?force=true")
    world.publish(120)
    eventually(lambda: SUBSCRIPTION in world.subscriptions(), lambda: process.lines[-30:], WAIT_S)
    world.publish(120)
    world.settle()
    assert process.is_running
    found = world.in_tier()
    assert found == sorted(set(found))
    assert found[:120] == list(range(120))
    assert found[-120:] == list(range(240, 360))
    world.verify()


def test_ledgers_of_the_clusters_own_offloader_are_left_to_it_and_each_message_is_read_once(world: World) -> None:
    client = world.client()
    other = client.subscribe(world.topic, "keeps")  # else the cluster trims what nobody holds
    world.publish(120)
    world.standalone.admin("PUT", f"{world.path}/offload", last_message_id(world))
    status = f"{world.path}/offload"
    eventually(lambda: world.standalone.admin("GET", status)["status"] == "SUCCESS", lambda: "not offloaded", WAIT_S)
    world.attached()
    world.publish(120)
    world.settle()
    left = [
        ledger.ledgerId
        for ledger in ledgers_of(world.metadata, world.topic, CLUSTER)
        if get_text(ledger, LEFT_TO_CLUSTER) is not None
    ]
    assert left
    with afterglow.connect(world.standalone.admin_url, metadata=world.metadata, token=token("admin")) as source:
        values = source.topic(world.topic).scan(columns=["value"]).read_all().column("value").to_pylist()
    assert values == [world.value(number) for number in range(240)]
    # The cluster offloads what is in segments already.
    world.publish(120)
    world.settle()
    world.standalone.admin("PUT", f"{world.path}/offload", last_message_id(world))
    eventually(lambda: world.standalone.admin("GET", status)["status"] == "SUCCESS", lambda: "not offloaded", WAIT_S)
    world.publish(60)
    world.settle()
    with afterglow.connect(world.standalone.admin_url, metadata=world.metadata, token=token("admin")) as source:
        values = source.topic(world.topic).scan(columns=["value"]).read_all().column("value").to_pylist()
    assert values == [world.value(number) for number in range(420)]
    other.close()
    client.close()
    world.verify()


def last_message_id(world: World) -> dict[str, int]:
    stats = world.standalone.admin("GET", f"{world.path}/internalStats")
    ledger_id, entry_id = map(int, stats["lastConfirmedEntry"].split(":"))
    return {"ledgerId": ledger_id, "entryId": entry_id, "partitionIndex": -1}


def test_a_topic_that_is_deleted_in_the_middle_of_a_segment_leaves_no_upload(world: World) -> None:
    other = f"{world.path}-other"
    world.standalone.admin("PUT", other)
    process = world.attached(segment_s="600")
    world.publish(80)
    eventually(lambda: bool(unfinished_of(world.metadata, world.topic, CLUSTER)), lambda: process.lines[-30:], WAIT_S)
    world.standalone.admin("DELETE", f"{world.path}?force=true")
    world.wait_for_uploads()
    store = open_store(world.tier, **world.s3.options())
    eventually(lambda: store.list_uploads() == (), store.list_uploads, WAIT_S)
    assert process.is_running
    assert any("was deleted in the cluster" in line for line in process.lines)
    assert not any("Traceback" in line for line in process.lines)
    world.verify()
