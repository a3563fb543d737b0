"""What a real Apache Pulsar has offloaded, as DataFrames: by a scan, by Spark once, and by Spark as a stream.

The ledger lists are in a ZooKeeper as the cluster stored them, the objects in an S3 server; no broker runs.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.support import golden
from tests.support.oracle import batch_rows
from tests.support.recorded_admin import recorded_admin
from tests.support.servers import start_moto
from tests.support.zookeeper import ZooKeeperServer, spark_jars

import afterglow
from afterglow.metadata.names import TopicName
from afterglow.metadata.paths import managed_ledger_path
from afterglow.metadata.zookeeper import ZooKeeperMetadataStore
from afterglow.spark.session import local_session
from afterglow.storage import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import TypeAlias

    from pyspark.sql import SparkSession
    from tests.support.golden import GoldenCase
    from tests.support.shared_spark import SharedSpark

    from afterglow.read.split_reader import Include
    from afterglow.source.addresses import Hot

    Way: TypeAlias = Callable[..., pa.Table]
    """Reads a topic, with the options of the data source."""

pytest.importorskip("pyspark", reason="the extra pulsar-afterglow[spark] is not installed")


class Defect(NamedTuple):
    """What is wrong with a case."""

    error: str
    kept: int
    """Entries before it."""


pytestmark = pytest.mark.own_spark
CASES = golden.cases()
MAPFILES = "fs_mapfile"
DEFECTS = {
    # The index names a block that was never written.
    "oversize": Defect("its block begins at 5242880 and does not fit in an object", 0),
    # Blocks behind the first are not where the index says.
    "streaming_v2_manyblocks": Defect("it has 15826956 bytes, its index says 15766956", 88),
}
WHOLE = [name for name in CASES if name not in DEFECTS]
BUCKET = "pulsar-golden"


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where a cluster's metadata and objects are."""

    source: str
    bucket: str
    directory: str
    """Has the MapFiles."""

    def tier(self, case: GoldenCase) -> str:
        """Where the objects of a case are."""
        return self.directory if case.name == MAPFILES else self.bucket


def topic_of(case: GoldenCase) -> str:
    topic: str = case.about.get("topic", f"persistent://public/default/golden-{case.name}")
    return topic


def include_of(case: GoldenCase) -> Include:
    return "messages" if case.entries() is None else "entries"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    mapfiles = tmp_path_factory.mktemp("mapfiles")
    with (
        start_moto() as server,
        ZooKeeperServer(spark_jars(), tmp_path_factory.mktemp("zookeeper")) as zookeeper,
        pytest.MonkeyPatch.context() as patch,
    ):
        server.create_bucket(BUCKET)
        bucket = open_store(f"s3://{BUCKET}", **server.options())
        metadata = ZooKeeperMetadataStore(zookeeper.hosts)
        for case in CASES.values():
            path = managed_ledger_path(TopicName.parse(topic_of(case)).managed_ledger_name)
            assert case.about.get("zk_path", path) == path
            metadata.put(path, case.stored_list(), -1)
            if case.name == MAPFILES:
                case.unpack(mapfiles)
            else:
                for item in case.listing:
                    bucket.put(item.key, case.objects[item.key], metadata=item.user_metadata)
        metadata.close()
        patch.setenv("AFTERGLOW_CONF_s3ManagedLedgerOffloadServiceEndpoint", server.endpoint)
        patch.setenv("AFTERGLOW_CONF_s3ManagedLedgerOffloadRegion", server.region)
        patch.setenv("ACCESS_KEY_ID", server.access_key)
        patch.setenv("ACCESS_KEY_SECRET", server.secret_key)
        yield Cluster(f"zk://{zookeeper.hosts}", f"s3://{BUCKET}", mapfiles.as_uri())


@pytest.fixture(scope="module")
def spark(cluster: Cluster, shared_spark: SharedSpark) -> Iterator[SparkSession]:
    """A session of its own: tasks inherit the environment that names the bucket."""
    shared_spark.end()
    with local_session("local[2,1]") as session:  # a retry would not succeed here
        yield session


@dataclass(frozen=True, slots=True)
class Queries:
    """Reads topics by Spark, many at once: a query costs more to begin than all of these cost to read."""

    spark: SparkSession
    checkpoints: Path

    def by_batch(self, **options: str) -> pa.Table:
        return self.spark.read.format("afterglow").options(**options).load().toArrow()

    def by_stream(self, **options: str) -> pa.Table:
        frame = self.spark.readStream.format("afterglow").options(**options, maxEntriesPerTrigger="500").load()
        batches: list[pa.Table] = []
        query = (
            frame.writeStream.foreachBatch(lambda batch, _: batches.append(batch.toArrow()))
            .option("checkpointLocation", str(self.checkpoints / str(uuid4())))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return pa.concat_tables(batches)


def by_scan(
    source: str, tier: str, topic: str, include: Include = "messages", decode: str = "false", *, hot: Hot = "read"
) -> pa.Table:
    with afterglow.connect(source, tier, hot=hot) as connected:
        topics = [connected.topic(name) for name in topic.split(",")]
        return pa.concat_tables(each.scan(include=include, decode=decode == "true").read_all() for each in topics)


@pytest.fixture(scope="module", params=["scan", "batch", "stream"])
def way(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Way:
    if request.param == "scan":
        return by_scan
    queries = Queries(request.getfixturevalue("spark"), tmp_path_factory.mktemp("checkpoints"))
    return queries.by_batch if request.param == "batch" else queries.by_stream


@pytest.fixture(scope="module")
def whole(way: Way, cluster: Cluster) -> Callable[[GoldenCase], pa.Table]:
    """Gives a topic that is as it should be; those of one tier are read together."""

    @cache
    def together(tier: str, include: Include) -> pa.Table:
        cases = [CASES[name] for name in WHOLE]
        topics = [topic_of(case) for case in cases if (cluster.tier(case), include_of(case)) == (tier, include)]
        return way(source=cluster.source, tier=tier, topic=",".join(topics), include=include)

    def read(case: GoldenCase) -> pa.Table:
        table = together(cluster.tier(case), include_of(case))
        return table.filter(pc.equal(table["topic"], topic_of(case)))

    return read


def messages(table: pa.Table) -> list[dict[str, Any]]:
    assert set(table["tier"].to_pylist()) <= {"tiered"}
    return [golden.as_manifest(row) for row in batch_rows(table)]


def digests(table: pa.Table) -> list[dict[str, Any]]:
    return [
        {
            "ledgerId": row["ledger_id"],
            "entryId": row["entry_id"],
            "size": len(row["data"]),
            "sha256": hashlib.sha256(row["data"]).hexdigest(),
        }
        for row in table.to_pylist()
    ]


@pytest.mark.parametrize("name", WHOLE)
def test_every_message_is_what_pulsars_reader_saw(name: str, whole: Callable[[GoldenCase], pa.Table]) -> None:
    case = CASES[name]
    if include_of(case) == "messages":
        assert messages(whole(case)) == case.seen()
    else:
        assert digests(whole(case)) == case.entries()


@pytest.mark.parametrize("name", DEFECTS)
def test_defects_that_pulsar_wrote_are_errors(name: str, way: Way, cluster: Cluster) -> None:
    case = at_hand(name)
    with pytest.raises(Exception, match=DEFECTS[name].error) as failed:
        way(source=cluster.source, tier=cluster.bucket, topic=topic_of(case), include=include_of(case))
    assert min(case.objects) in str(failed.value)


@pytest.mark.parametrize("name", DEFECTS)
def test_rows_before_a_defect_are_read_if_damage_is_skipped(
    name: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    case, kept = at_hand(name), DEFECTS[name].kept
    monkeypatch.setenv("AFTERGLOW_CONF_damagedDataPolicy", "skip-and-report")
    # Damage is not skipped while bookies that cannot be reached may have a copy.
    left = by_scan(cluster.source, cluster.bucket, topic=topic_of(case), include=include_of(case), hot="skip")
    assert "are skipped" in caplog.text
    assert min(case.objects) in caplog.text
    known = case.entries()
    if known is None:
        assert messages(left) == case.seen()
    else:
        assert digests(left)[:kept] == known[:kept]
        assert all(each in known for each in digests(left))


@pytest.mark.parametrize("name", ["json_schema", "kv_inline"])
def test_values_are_decoded_to_what_the_producer_sent(name: str, way: Way, cluster: Cluster) -> None:
    case = at_hand(name)
    with recorded_admin([case]) as admin:  # has the schemas, which a ZooKeeper does not
        table = way(source=admin.url, tier=cluster.bucket, topic=topic_of(case), decode="true")
    assert table["_corrupt"].null_count == len(table)
    columns = ("ledger_id", "entry_id", "batch_index", "key", "value")
    found = list(zip(*(table[column].to_pylist() for column in columns), strict=True))
    assert found == [sent_of(item) for item in case.seen()]
    names = {":".join(map(str, row[:3])): row[-1]["name"] for row in found}
    for item in case.sent() or ():
        where = item.get("id") or "{ledgerId}:{entryId}:{batchIndex}".format_map(item)
        assert names.pop(where) == (item.get("value") or json.loads(base64.b64decode(item["payloadB64"]))["name"])


def sent_of(item: dict[str, Any]) -> tuple[Any, ...]:
    """Position, key and value of a message, as Pulsar's reader saw it."""
    payload = base64.b64decode(item["payloadB64"])
    key: Any = base64.b64decode(item["keyBytesB64"]) if "keyBytesB64" in item else None
    if payload[:1] != b"{":  # the key, a string, and the value, each behind its length
        size = int.from_bytes(payload[:4], "big")
        key, payload = payload[4 : 4 + size].decode(), payload[8 + size :]
    value = {name: json.loads(payload).get(name) for name in ("name", "age", "tags", "score")}
    return item["ledgerId"], item["entryId"], item["batchIndex"], key, value


def at_hand(name: str) -> GoldenCase:
    if name not in CASES:
        pytest.skip(f"{golden.ENVIRONMENT} names the directory of the full set, which has {name}")
    return CASES[name]
