"""A cluster read through its ZooKeeper: with and without its brokers, and with segments of an attached Afterglow."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.homes import ServerHome
from tests.support.ledgers import message
from tests.support.servers import free_port
from tests.support.serving import serving
from tests.support.zookeeper import ZooKeeperServer, spark_jars

import afterglow
from afterglow.errors import ConfigError, CorruptMetadata, HotLogUnavailable, TopicMissing
from afterglow.format.metadata_envelope import parse_managed_ledger
from afterglow.metadata.names import TopicName
from afterglow.metadata.paths import AfterglowPaths, managed_ledger_path
from afterglow.metadata.sqlite import SqliteMetadataStore
from afterglow.metadata.store import MUST_NOT_EXIST
from afterglow.metadata.zookeeper import ZooKeeperMetadataStore
from afterglow.pipeline.tier_verifier import VerifyRequest, open_verifier

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.serving import Served

    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo

TOPIC = "persistent://public/default/t"
NAME = TopicName.parse(TOPIC).managed_ledger_name
EACH = 4
LEDGERS = 5
BROKER = "/loadbalance/brokers/127.0.0.1:8080"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five ledgers: the first offloaded whole, the next two in segments, the last two hot."""
    path: Path = tmp_path_factory.mktemp("home")
    with ServerHome(path) as server:
        ids = server.write(TOPIC, *[[message(b"%d" % (n * EACH + i)) for i in range(EACH)] for n in range(LEDGERS)])
        server.offload(TOPIC, ids[0])
        server.offload_segment(TOPIC, (ids[1], 0, EACH - 1), (ids[2], 0, 1))
        server.offload_segment(TOPIC, (ids[2], 2, EACH - 1))
    return path


@pytest.fixture(scope="module")
def served(home: Path) -> Iterator[Served]:
    with serving(home) as served:
        yield served


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(spark_jars(), tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


class Cluster:
    """What a cluster keeps, below a chroot of the test's own."""

    def __init__(self, hosts: str, chroot: str) -> None:
        self.store = ZooKeeperMetadataStore(hosts, chroot=chroot)
        self.address = f"zk://{hosts}{chroot}"

    def put(self, path: str, value: object) -> None:
        """Store bytes, or anything else as JSON."""
        self.store.put(path, value if isinstance(value, bytes) else json.dumps(value).encode(), MUST_NOT_EXIST)


@pytest.fixture
def cluster(server: ZooKeeperServer, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    cluster = Cluster(server.hosts, "/" + request.node.name.replace("[", "-").rstrip("]"))
    with closing(cluster.store):
        yield cluster


def list_of(home: Path) -> ManagedLedgerInfo:
    with closing(SqliteMetadataStore(home / "metadata.db", read_only=True)) as metadata:
        stored = metadata.get(managed_ledger_path(NAME))
    assert stored is not None
    return parse_managed_ledger(stored.value)


def without_segments(info: ManagedLedgerInfo) -> ManagedLedgerInfo:
    """The list as a cluster has it that knows no segments."""
    for row in info.ledgerInfo:
        if row.offloadContext.offloadSegment:
            row.ClearField("offloadContext")
    return info


def values(address: str, **options: Any) -> list[int]:
    with afterglow.connect(address, **options) as source:
        return [int(value) for value in source.topic(TOPIC).scan(columns=["value"]).read_all()["value"].to_pylist()]


def test_the_hot_rest_comes_from_the_brokers_that_run(home: Path, served: Served, cluster: Cluster) -> None:
    cluster.put(managed_ledger_path(NAME), without_segments(list_of(home)).SerializeToString())
    cluster.put(BROKER, {"webServiceUrl": served.admin_url, "pulsarServiceUrl": served.service_url})
    assert values(cluster.address) == list(range(EACH * LEDGERS))
    assert values(cluster.address, hot="skip") == list(range(EACH))
    with afterglow.connect(cluster.address) as source:
        assert source.topic(TOPIC).schemas() == ()


def test_stopped_brokers_fail_a_read_only_at_their_entries(home: Path, cluster: Cluster) -> None:
    info = without_segments(list_of(home))
    cluster.put(managed_ledger_path(NAME), info.SerializeToString())
    gone = f"http://127.0.0.1:{free_port()}"
    cluster.put(BROKER, {"webServiceUrl": gone, "pulsarServiceUrl": f"pulsar://127.0.0.1:{free_port()}"})
    first = min(row.ledgerId for row in info.ledgerInfo)
    with afterglow.connect(cluster.address) as source:
        cold = source.topic(TOPIC).scan(end=f"{first}:{EACH}", columns=["value"]).read_all()
    assert cold.num_rows == EACH


def test_what_a_cluster_has_offloaded_is_checked(home: Path, cluster: Cluster) -> None:
    info = without_segments(list_of(home))
    del info.ledgerInfo[1:]  # no other is in the tier
    cluster.put(managed_ledger_path(NAME), info.SerializeToString())
    tier = home / "tier"
    (key,) = (path.name for path in tier.iterdir() if path.name.endswith(f"-ledger-{info.ledgerInfo[0].ledgerId}"))

    def found() -> dict[str, set[str | None]]:
        with open_verifier(cluster.address) as verifier:
            findings = [each.finding for each in verifier.run(VerifyRequest(grace_ms=0))]
        return {
            kind: {each.object for each in findings if each.kind == kind} for kind in {each.kind for each in findings}
        }

    sound = found()
    assert sound.keys() == {"foreign"}
    assert key in sound["foreign"]
    (tier / key).rename(tier / "away")
    try:
        assert found()["missing_object"] == {key}
    finally:
        (tier / "away").rename(tier / key)


def test_segments_of_an_attached_afterglow_are_added(home: Path, cluster: Cluster, tmp_path: Path) -> None:
    ours = list_of(home)
    theirs = without_segments(list_of(home))
    trimmed = theirs.ledgerInfo[1]
    assert trimmed.ledgerId == sorted(row.ledgerId for row in theirs.ledgerInfo)[1]
    del theirs.ledgerInfo[:2]  # the cluster's retention has dropped what was offloaded whole, and a ledger in segments
    cluster.put(managed_ledger_path(NAME), theirs.SerializeToString())
    cluster.put("/admin/clusters/pulsar-a", {})
    attached = AfterglowPaths("pulsar-a")
    with (
        closing(SqliteMetadataStore(home / "metadata.db", read_only=True)) as server,
        closing(SqliteMetadataStore(tmp_path / "attached.db")) as metadata,
    ):
        metadata.put(attached.managed_ledger(NAME), ours.SerializeToString(), MUST_NOT_EXIST)
        parent = AfterglowPaths().segments(NAME)
        for child in server.children(parent):
            record = server.get(f"{parent}/{child}")
            assert record is not None
            metadata.put(f"{attached.segments(NAME)}/{child}", record.value, MUST_NOT_EXIST)
    address = f"sqlite:{tmp_path / 'attached.db'}"
    assert values(cluster.address, hot="skip") == []
    assert values(cluster.address, hot="skip", metadata=address) == list(range(EACH * 3))
    with afterglow.connect(cluster.address, metadata=address) as source:
        assert len(source.topic(TOPIC).segments()) == 2
        with pytest.raises(HotLogUnavailable, match=r"no broker of .* is running"):
            source.topic(TOPIC).scan().read_all()


def test_metadata_without_records_of_the_cluster_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    cluster.put("/admin/clusters/pulsar-a", {})
    with closing(SqliteMetadataStore(tmp_path / "other.db")) as metadata:
        metadata.put("/afterglow/pulsar-b/x", b"", MUST_NOT_EXIST)
    with pytest.raises(ConfigError, match="attached to cluster pulsar-a, it has records of pulsar-b"):
        afterglow.connect(cluster.address, metadata=f"sqlite:{tmp_path / 'other.db'}")


@pytest.mark.parametrize("recorded", [True, False])
def test_partitions_are_counted_by_what_is_stored_else_by_names(
    home: Path, cluster: Cluster, *, recorded: bool
) -> None:
    for index in (0, 2):
        name = TopicName.parse(f"parts-partition-{index}").managed_ledger_name
        cluster.put(managed_ledger_path(name), list_of(home).SerializeToString())
    if recorded:
        cluster.put("/admin/partitioned-topics/public/default/persistent/parts", {"partitions": 4})
    with afterglow.connect(cluster.address) as source:
        names = [f"persistent://public/default/parts-partition-{index}" for index in (0, 2)]
        assert source.topics() == tuple(names)
        assert source.topic("parts").partitions == tuple(names)
        with pytest.raises(TopicMissing, match="did you mean persistent://public/default/parts"):
            source.topic("part")


def test_policies_of_the_namespace_say_where_objects_are(home: Path, cluster: Cluster) -> None:
    info = list_of(home)
    del info.ledgerInfo[1:]
    info.ledgerInfo[0].offloadContext.ClearField("driverMetadata")
    cluster.put(managed_ledger_path(NAME), info.SerializeToString())
    with pytest.raises(ConfigError, match="managedLedgerOffloadDriver"):
        values(cluster.address)
    policies = {"managedLedgerOffloadDriver": "filesystem", "fileSystemURI": (home / "tier").as_uri()}
    cluster.put("/admin/policies/public/default", {"offload_policies": policies})
    assert values(cluster.address) == list(range(EACH))


def test_damage_is_reported_with_its_path(cluster: Cluster) -> None:
    cluster.put("/admin/partitioned-topics/public/default/persistent/odd", b"no json")
    with (
        afterglow.connect(cluster.address) as source,
        pytest.raises(CorruptMetadata, match="persistent/odd is not valid JSON"),
    ):
        source.topic("odd")
