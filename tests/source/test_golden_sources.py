"""Topics that a real Apache Pulsar offloaded, read through its ZooKeeper and through its admin API."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from tests.support import golden
from tests.support.oracle import batch_rows
from tests.support.recorded_admin import recorded_admin
from tests.support.servers import start_moto
from tests.support.zookeeper import ZooKeeperServer, spark_jars

import afterglow
from afterglow.errors import BucketMissing, CorruptIndex, HotLogUnavailable, LedgerMissing, NotSupported
from afterglow.format.metadata_envelope import parse_managed_ledger
from afterglow.metadata.zookeeper import ZooKeeperMetadataStore
from afterglow.storage import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.golden import GoldenCase
    from tests.support.recorded_admin import RecordedAdmin
    from tests.support.servers import S3Server

    from afterglow.source.connect import Source

CASES = {name: case for name, case in golden.cases().items() if case.about}
MAPFILES = "fs_mapfile"
DAMAGED = "oversize"
BUCKET = "pulsar-golden"
WHOLE = [name for name in CASES if name not in {DAMAGED, MAPFILES}]


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Every case's objects, as a cluster's bucket has them."""
    with start_moto() as server, pytest.MonkeyPatch.context() as patch:
        server.create_bucket(BUCKET)
        store = open_store(f"s3://{BUCKET}", **server.options())
        for name, case in CASES.items():
            for item in case.listing if name != MAPFILES else ():
                store.put(item.key, case.objects[item.key], metadata=item.user_metadata)
        patch.setenv("AFTERGLOW_CONF_s3ManagedLedgerOffloadServiceEndpoint", server.endpoint)
        patch.setenv("AFTERGLOW_CONF_s3ManagedLedgerOffloadRegion", server.region)
        patch.setenv("ACCESS_KEY_ID", server.access_key)
        patch.setenv("ACCESS_KEY_SECRET", server.secret_key)
        yield server


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster's metadata with every case's list, exactly as it was stored, below a chroot; no broker runs."""
    with ZooKeeperServer(spark_jars(), tmp_path_factory.mktemp("zookeeper")) as server:
        store = ZooKeeperMetadataStore(server.hosts, chroot="/cluster")
        for case in CASES.values():
            store.put(case.about["zk_path"], (case.path / "mlinfo.bin").read_bytes(), -1)
        store.close()
        yield f"zk://{server.hosts}/cluster"


@pytest.fixture(scope="module")
def admin(bucket: S3Server) -> Iterator[RecordedAdmin]:
    """The cluster's admin API, whose policies name the bucket."""
    policies = {
        "managedLedgerOffloadDriver": "S3",
        "managedLedgerOffloadBucket": BUCKET,
        "managedLedgerOffloadServiceEndpoint": bucket.endpoint,
        "managedLedgerOffloadRegion": bucket.region,
        "s3ManagedLedgerOffloadMaxBlockSizeInBytes": 67108864,
    }
    with recorded_admin() as admin:
        for case in CASES.values():
            admin.add(case, policies)
        yield admin


def found(source: Source, case: GoldenCase, **scan_range: Any) -> list[dict[str, Any]]:
    table = source.topic(case.about["topic"]).scan(**scan_range).read_all()
    assert set(table["tier"].to_pylist()) <= {"tiered"}
    return [golden.as_manifest(row) for row in batch_rows(table)]


@pytest.mark.parametrize("name", WHOLE)
def test_a_cluster_without_brokers_is_read_by_its_zookeeper(name: str, zookeeper: str, bucket: S3Server) -> None:
    with afterglow.connect(zookeeper, tier=f"s3://{BUCKET}") as source:
        assert found(source, CASES[name]) == CASES[name].seen()


@pytest.mark.parametrize("name", WHOLE)
def test_a_cluster_is_read_by_its_admin_api_from_where_its_policies_say(name: str, admin: RecordedAdmin) -> None:
    with afterglow.connect(admin.url) as source:
        assert found(source, CASES[name]) == CASES[name].seen()


def test_schemas_come_from_the_admin_api(admin: RecordedAdmin) -> None:
    with afterglow.connect(admin.url) as source:
        assert source.topic(CASES["txn"].about["topic"]).schemas() == ()
        (schema,) = source.topic(CASES["kv_inline"].about["topic"]).schemas()
    assert (schema.version, schema.type) == (bytes(8), "KEY_VALUE")
    assert schema.properties["key.schema.type"] == "STRING"
    # No definition of the key, and that of the value, each after its length.
    value = schema.definition[8:]
    assert schema.definition[:8] == bytes(4) + len(value).to_bytes(4, "big")
    assert json.loads(value)["name"] == "Pojo"


@pytest.mark.parametrize("by", ["zookeeper", "admin"])
def test_mapfiles_are_read_from_a_directory(by: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    case = CASES[MAPFILES]
    case.unpack(tmp_path)
    address = request.getfixturevalue(by)
    with afterglow.connect(getattr(address, "url", address), tier=tmp_path.as_uri()) as source:
        everything = found(source, case)
        assert everything == case.seen()
        assert found(source, case, start="194:7", end="196:3") == [
            item for item in everything if (194, 7) <= (item["ledgerId"], item["entryId"]) < (196, 3)
        ]
        few = source.topic(case.about["topic"]).scan(start="194:39", end="196:1", scan=False).read_all()
        assert [golden.as_manifest(row) for row in batch_rows(few)] == [
            item for item in everything if (item["ledgerId"], item["entryId"]) in {(194, 39), (196, 0)}
        ]


def test_mapfiles_are_read_from_the_location_in_the_ledger_metadata(zookeeper: str) -> None:
    with (
        afterglow.connect(zookeeper) as source,
        pytest.raises(BucketMissing, match="/srv/tier/pulsar/data/fsoffload is not a directory"),
    ):
        found(source, CASES[MAPFILES])


def test_topics_and_ledgers_are_listed(zookeeper: str, bucket: S3Server) -> None:
    with afterglow.connect(zookeeper) as source:
        assert source.topics() == tuple(sorted(case.about["topic"] for case in CASES.values()))
        ledgers = source.topic(CASES[MAPFILES].about["topic"]).ledgers()
        assert [(each.ledger_id, each.entries, each.tiered) for each in ledgers] == [
            (194, 40, True),
            (196, 40, True),
            (199, 0, False),
        ]
        with pytest.raises(NotSupported, match="no broker is running"):
            source.topic(CASES["txn"].about["topic"]).schemas()


def test_an_object_that_pulsar_wrote_wrongly_is_an_error(zookeeper: str, bucket: S3Server) -> None:
    if DAMAGED not in CASES:
        pytest.skip(f"{golden.ENVIRONMENT} names the directory of the full set, which has {DAMAGED}")
    with afterglow.connect(zookeeper, tier=f"s3://{BUCKET}") as source, pytest.raises(CorruptIndex):
        found(source, CASES[DAMAGED])


def test_entries_that_only_brokers_have_are_an_error_if_none_is_running(zookeeper: str) -> None:
    case = CASES["txn"]
    topic = "public/default/never-offloaded"
    info = parse_managed_ledger((case.path / "mlinfo.bin").read_bytes())
    for row in info.ledgerInfo:
        row.ClearField("offloadContext")
    hosts, _, _ = zookeeper.removeprefix("zk://").partition("/")
    store = ZooKeeperMetadataStore(hosts, chroot=f"/only-hot-{os.getpid()}")
    store.put("/managed-ledgers/public/default/persistent/never-offloaded", info.SerializeToString(), -1)
    store.close()
    address = f"zk://{hosts}/only-hot-{os.getpid()}"
    reason = r"no bookies are registered.*no broker of .* is running.*hot=skip"
    with afterglow.connect(address) as source, pytest.raises(HotLogUnavailable, match=reason):
        source.topic(topic).scan().read_all()
    reason = r"no broker of .* is running.*hot=skip"
    with afterglow.connect(address, entries="broker") as source, pytest.raises(LedgerMissing, match=reason):
        source.topic(topic).scan().read_all()
    with afterglow.connect(address, hot="skip") as source:
        assert source.topic(topic).scan().read_all().num_rows == 0
