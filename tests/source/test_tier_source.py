"""Topics read from a tier alone: a directory or a bucket of objects, without metadata."""

from __future__ import annotations

import os
import random
import sqlite3
from itertools import chain
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from tests.support import golden
from tests.support.homes import CLUSTER, INSTANCE, ServerHome
from tests.support.ledgers import message
from tests.support.oracle import batch_rows
from tests.support.servers import start_moto

import afterglow
from afterglow.errors import (
    BucketMissing,
    ConfigError,
    CorruptIndex,
    EntriesMissing,
    MetadataUnavailable,
    NotSupported,
    TopicMissing,
    WrongLength,
)
from afterglow.format.objects import INDEX_SUFFIX, ObjectKey, user_metadata
from afterglow.format.position import Position
from afterglow.read.ranges import offloaded_ranges_from
from afterglow.source.listing_cache import ListingCache, cache_file
from afterglow.source.tier_ledgers import topic_of_objects
from afterglow.source.tier_objects import ListedObject, ObjectExtent
from afterglow.storage import open_store
from afterglow.storage.wrapper import CountingStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from afterglow.storage import ObjectStore

CASES = {name: case for name, case in golden.cases().items() if name != "fs_mapfile"}
WHOLE = [name for name, case in CASES.items() if case.about and name != "oversize"]
SEGMENTS = "streaming_v2_small"
BUCKET = "only-objects"
TOPIC = "persistent://public/default/t"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AFTERGLOW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[ServerHome]:
    with ServerHome(tmp_path) as home:
        yield home


def tier_of(home: ServerHome) -> tuple[str, ObjectStore]:
    address = (home.path / "tier").as_uri()
    return address, open_store(address)


def put_golden(store: ObjectStore, name: str) -> None:
    for item in CASES[name].listing:
        named = {"ManagedLedgerName": f"public/default/persistent/{name}"} if name == SEGMENTS else {}
        store.put(item.key, CASES[name].objects[item.key], metadata={**item.user_metadata, **named})


def values(address: str, topic: str = TOPIC, **asked: Any) -> list[bytes]:
    with afterglow.connect(address) as source:
        found: list[bytes] = source.topic(topic).scan(columns=["value"], **asked).read_all()["value"].to_pylist()
    return found


def numbered(*ledgers: int) -> list[list[bytes]]:
    """Entries of ledgers with so many each, numbered over all."""
    numbers = iter(range(sum(ledgers)))
    return [[message(b"%d" % next(numbers)) for _ in range(count)] for count in ledgers]


def payloads(*numbers: range) -> list[bytes]:
    return [b"%d" % number for number in chain(*numbers)]


# --- golden objects ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["directory", "bucket"])
def golden_tier(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Objects that Pulsar wrote, in both formats."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "directory":
            address = tmp_path_factory.mktemp("objects").as_uri()
            options: dict[str, Any] = {}
            stop = None
        else:
            stop = start_moto()
            server = stop.__enter__()
            server.create_bucket(BUCKET)
            address, options = f"s3://{BUCKET}/some/prefix", server.options()
            patch.setenv("AFTERGLOW_CONF_s3ManagedLedgerOffloadServiceEndpoint", server.endpoint)
            patch.setenv("AFTERGLOW_CONF_s3ManagedLedgerOffloadRegion", server.region)
            patch.setenv("ACCESS_KEY_ID", server.access_key)
            patch.setenv("ACCESS_KEY_SECRET", server.secret_key)
        store = open_store(address, **options)
        for name in CASES:
            put_golden(store, name)
        yield address
        if stop is not None:
            stop.__exit__(None, None, None)


def test_objects_that_pulsar_wrote_are_read_without_its_metadata(golden_tier: str) -> None:
    with afterglow.connect(golden_tier) as source:
        for name in WHOLE:
            case = CASES[name]
            assert case.about["topic"] in source.topics()
            rows = batch_rows(source.topic(case.about["topic"]).scan().read_all())
            assert [golden.as_manifest(row) for row in rows] == case.seen()


def test_segments_that_pulsar_wrote_end_where_their_last_block_does(golden_tier: str) -> None:
    with afterglow.connect(golden_tier) as source:
        topic = source.topic(SEGMENTS)
        found = topic.scan(include="entries").read_all().select(["ledger_id", "entry_id"]).to_pylist()
        (segment,) = topic.segments()
    known = CASES[SEGMENTS].entries() or []
    assert found == [{"ledger_id": each["ledgerId"], "entry_id": each["entryId"]} for each in known]
    assert (segment.begin, segment.end) == (Position(100, 0), Position(101, 14))
    assert segment.entries == len(known)


# --- ours -------------------------------------------------------------------------------------------------------------


def test_whole_ledgers_and_segments_of_one_topic_are_read_in_order(home: ServerHome) -> None:
    first, second, third = home.write(TOPIC, *numbered(5, 5, 5))
    home.offload(TOPIC, first)
    home.offload_segment(TOPIC, (second, 0, 2))
    home.offload_segment(TOPIC, (second, 3, 4), (third, 0, 1))
    address, _ = tier_of(home)
    assert values(address) == payloads(range(12))
    assert values(address, start=f"{second}:1", end=f"{third}:1") == payloads(range(6, 11))
    with afterglow.connect(address) as source:
        ledgers = source.topic("t").ledgers()
        assert [(each.ledger_id, each.entries, each.tiered, each.hot) for each in ledgers] == [
            (first, 5, True, False),
            (second, 5, True, False),
            (third, 2, False, False),
        ]
        assert len(source.topic("t").segments()) == 2


def test_times_select_from_a_tier_as_from_a_home(home: ServerHome) -> None:
    *closed, _ = home.write(TOPIC, *numbered(5, 5, 1))
    for ledger_id in closed:
        home.offload(TOPIC, ledger_id)
    address, _ = tier_of(home)
    with afterglow.connect(home.path) as source:
        times = source.topic(TOPIC).scan(columns=["broker_time"]).read_all()["broker_time"].to_pylist()
    asked = {"since": times[3], "until": times[7]}
    assert values(address, **asked) == payloads(range(3, 7)) == values(str(home.path), **asked)


def test_a_partitioned_topic_has_the_partitions_that_have_objects(home: ServerHome) -> None:
    for partition in (0, 2):
        (ledger,) = home.write(f"{TOPIC}-partition-{partition}", [message(b"%d" % partition)])
        home.offload_segment(f"{TOPIC}-partition-{partition}", (ledger, 0, 0))
    address, _ = tier_of(home)
    assert values(address) == [b"0", b"2"]
    assert values(address, f"{TOPIC}-partition-2") == [b"2"]


def test_a_connected_source_sees_segments_that_a_server_writes_later(
    home: ServerHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("afterglow.source.tier_directory._MIN_AGE_S", 0.0)
    monkeypatch.setattr("afterglow.source.tier_directory._AGE_FACTOR", 0.0)
    (ledger,) = home.write(TOPIC, *numbered(6))
    home.offload_segment(TOPIC, (ledger, 0, 2))
    address, _ = tier_of(home)
    with afterglow.connect(address) as source:
        topic = source.topic(TOPIC)
        started = topic.scan(columns=["value"])
        assert topic.scan(columns=["value"]).read_all()["value"].to_pylist() == payloads(range(3))
        home.offload_segment(TOPIC, (ledger, 3, 5))
        assert topic.scan(columns=["value"]).read_all()["value"].to_pylist() == payloads(range(6))
        assert started.read_all().num_rows in {3, 6}, "a scan is a snapshot from its first batch on"


def test_objects_without_user_metadata_are_found_by_the_name_in_their_index(
    home: ServerHome, caplog: pytest.LogCaptureFixture
) -> None:
    whole, other = home.write(TOPIC, *numbered(3, 3))
    home.offload(TOPIC, whole)
    segment = home.offload_segment(TOPIC, (other, 0, 2))
    for file in (home.path / "tier").glob("*.meta.json"):
        file.unlink()
    address, _ = tier_of(home)
    assert values(address) == payloads(range(3))
    assert f"objects name no topic, and are not read: {segment}" in caplog.text


# --- several objects with the same entries ----------------------------------------------------------------------------


def test_attempts_of_one_ledger_are_read_once_and_reported(home: ServerHome, caplog: pytest.LogCaptureFixture) -> None:
    (ledger,) = home.write(TOPIC, *numbered(6))
    home.offload(TOPIC, ledger)
    home.offload(TOPIC, ledger)
    home.offload_segment(TOPIC, (ledger, 0, 3))
    address, _ = tier_of(home)
    assert values(address) == payloads(range(6))
    assert "objects overlap others" in caplog.text


def test_a_sound_object_is_preferred_to_a_damaged_one(home: ServerHome, caplog: pytest.LogCaptureFixture) -> None:
    (ledger,) = home.write(TOPIC, *numbered(6))
    damaged = home.offload_segment(TOPIC, (ledger, 0, 5))
    home.offload_segment(TOPIC, (ledger, 0, 3))
    address, store = tier_of(home)
    store.put(damaged, bytes(store.get(damaged))[:-1], metadata=store.head(damaged).metadata)
    assert values(address, end=f"{ledger}:4") == payloads(range(4))
    assert damaged in caplog.text
    with pytest.raises(WrongLength, match=damaged):
        values(address)


def test_an_object_whose_index_is_damaged_is_an_error_unless_damage_is_skipped(
    home: ServerHome, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = home.write(TOPIC, *numbered(3, 3))
    home.offload(TOPIC, first)
    damaged = home.offload_segment(TOPIC, (second, 0, 2)) + INDEX_SUFFIX
    address, store = tier_of(home)
    store.put(damaged, bytes(store.get(damaged))[:-1], metadata=store.head(damaged).metadata)
    with pytest.raises(CorruptIndex, match=damaged.removesuffix(INDEX_SUFFIX)):
        values(address)
    monkeypatch.setenv("AFTERGLOW_CONF_damagedDataPolicy", "skip-and-report")
    assert values(address) == payloads(range(3))
    assert damaged.removesuffix(INDEX_SUFFIX) in caplog.text


def test_a_damaged_index_beside_a_whole_ledger_is_only_reported(
    home: ServerHome, caplog: pytest.LogCaptureFixture
) -> None:
    (ledger,) = home.write(TOPIC, *numbered(3))
    home.offload(TOPIC, ledger)
    damaged = home.offload(TOPIC, ledger) + INDEX_SUFFIX
    address, store = tier_of(home)
    store.put(damaged, b"damaged", metadata=store.head(damaged).metadata)
    assert values(address) == payloads(range(3))
    assert damaged.removesuffix(INDEX_SUFFIX) in caplog.text


def test_entries_that_no_object_has_are_skipped_and_reported(
    home: ServerHome, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = home.write(TOPIC, *numbered(8, 2))
    home.offload_segment(TOPIC, (first, 0, 1))
    lost = home.offload_segment(TOPIC, (first, 2, 4))
    home.offload_segment(TOPIC, (first, 5, 7), (second, 0, 1))
    address, store = tier_of(home)
    store.delete([lost, lost + INDEX_SUFFIX])
    assert values(address) == payloads(range(2), range(5, 10))
    assert f"entries are in no object, and are skipped: {first}:2..4" in caplog.text
    assert values(address, scan=False, start=f"{first}:1", end=f"{first}:6") == [b"1", b"5"]
    with pytest.raises(EntriesMissing, match=f"{first}:2..4"):
        values(address, fail_on_data_loss=True)
    assert values(address, start=f"{first}:5", fail_on_data_loss=True) == payloads(range(5, 10))


def test_objects_of_two_clusters_are_never_mixed(home: ServerHome) -> None:
    first, second = home.write(TOPIC, *numbered(3, 3))
    home.offload(TOPIC, first)
    other = home.offload(TOPIC, second)
    address, store = tier_of(home)
    for cluster, instance, reason in (("d", INSTANCE, f"clusters: {CLUSTER}, d"), (CLUSTER, "j", "instances .*: i, j")):
        metadata = user_metadata(
            "data", "public/default/persistent/t", cluster=cluster, instance=instance, software_version="1"
        )
        store.put(other, bytes(store.get(other)), metadata=metadata)
        with pytest.raises(ConfigError, match=reason):
            values(address)


def test_two_ledgers_of_one_id_are_never_mixed() -> None:
    objects = [
        ListedObject(ObjectKey(UUID(int=number), 7), 1, 1, "t", "", "", (ObjectExtent(7, 0, last, 1),))
        for number, last in enumerate((4, 5))
    ]
    assert "two different ledgers 7" in str(topic_of_objects("t", objects, "s3://b").error)


@pytest.mark.parametrize("seed", range(50))
def test_every_entry_of_a_sound_segment_is_served_by_one_that_has_it(seed: int) -> None:
    chosen = random.Random(seed)
    objects = []
    for number in range(chosen.randint(1, 6)):
        first = chosen.randint(0, 20)
        extent = ObjectExtent(3, first, first + chosen.randint(0, 8), 1)
        error = WrongLength("short") if chosen.random() < 0.3 else None
        objects.append(ListedObject(ObjectKey(UUID(int=number)), 1, number, "t", "", "", (extent,), error=error))
    found = topic_of_objects("t", objects, "s3://b")
    (ledger,) = found.info.ledgerInfo
    by_uuid = {listed.key.uuid: listed for listed in objects}
    missing = {entry for each in found.missing for entry in range(each.first, each.last + 1)}
    for entry in range(max(listed.extents[0].last for listed in objects) + 1):
        having = [each for each in objects if each.extents[0].first <= entry <= each.extents[0].last]
        assert (entry in missing) == (not having)
        if having:
            served = next(offloaded_ranges_from(ledger, entry))
            assert served.first <= entry <= served.last
            read = by_uuid[served.uuid]
            assert read in having
            assert (read.error is None) == any(each.error is None for each in having)


# --- other keys -------------------------------------------------------------------------------------------------------


def test_incomplete_and_foreign_objects_are_reported_by_name(
    home: ServerHome, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, third = home.write(TOPIC, *numbered(2, 2, 2))
    home.offload(TOPIC, first)
    without_index, without_data = home.offload(TOPIC, second), home.offload(TOPIC, third)
    address, store = tier_of(home)
    store.put("notes/read me.txt", b"hello")
    store.delete([without_index + INDEX_SUFFIX, without_data])
    assert values(address) == payloads(range(2))
    assert "notes/read me.txt" in caplog.text
    assert f"{without_data} is missing" in caplog.text
    assert without_index not in caplog.text, "its index may still be written"
    os.utime(home.path / "tier" / without_index, (1, 1))
    assert values(address) == payloads(range(2))
    assert f"{without_index}{INDEX_SUFFIX} is missing" in caplog.text


def test_the_prefix_of_objects_below_the_address_is_named(home: ServerHome, caplog: pytest.LogCaptureFixture) -> None:
    (ledger,) = home.write(TOPIC, *numbered(2))
    home.offload(TOPIC, ledger)
    with afterglow.connect(home.path.as_uri()) as source:
        assert source.topics() == ()
        with pytest.raises(TopicMissing, match="has no topic"):
            source.topic(TOPIC)
    assert f"offloaded objects are in {home.path.as_uri()}/tier" in caplog.text


def test_the_errors_of_a_tier_as_source_name_what_to_give(home: ServerHome, tmp_path: Path) -> None:
    (ledger,) = home.write(TOPIC, *numbered(2))
    home.offload(TOPIC, ledger)
    address, _ = tier_of(home)
    given: tuple[dict[str, Any], ...] = ({"tier": address}, {"metadata": "sqlite:x"})
    for options in given:
        with pytest.raises(ConfigError, match="is a tier itself"):
            afterglow.connect(address, **options)
    with afterglow.connect(address) as source, pytest.raises(NotSupported, match="has no schemas"):
        source.topic(TOPIC).schemas()
    with pytest.raises(MetadataUnavailable, match=f"is given as {address}"):
        afterglow.connect(home.path / "tier")
    with afterglow.connect((tmp_path / "absent").as_uri()) as source, pytest.raises(BucketMissing):
        source.topics()


# --- the cache --------------------------------------------------------------------------------------------------------


def counted_listing(address: str) -> tuple[int, list[bytes]]:
    """Number of requests for objects that a fresh connection needs to list a tier; and the values of the topic."""
    counts: list[CountingStore] = []

    def wrapped(url: str, *given: Any, **options: Any) -> ObjectStore:
        counts.append(CountingStore(open_store(url, *given, **options)))
        return counts[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("afterglow.tier.locations.open_store", wrapped)
        with afterglow.connect(address) as source:
            assert source.topics() == (TOPIC,)
            found = counts[0].counts()
            return sum(found[name].requests for name in ("get", "head") if name in found), values(address)


def test_an_object_is_read_once_by_all_processes_of_a_machine(home: ServerHome, cache: Path) -> None:
    first, second = home.write(TOPIC, *numbered(3, 3))
    home.offload(TOPIC, first)
    address, store = tier_of(home)
    keys = {info.key for info in store.list()}
    assert counted_listing(address) == (2, payloads(range(3)))
    assert counted_listing(address) == (0, payloads(range(3)))
    home.offload(TOPIC, second)
    assert counted_listing(address) == (2, payloads(range(6)))
    assert len(keys) == 2
    assert len(tuple(store.list())) == 4, "nothing but objects is in the tier"
    assert [file.parent for file in cache.rglob("*.db")] == [cache / "listings"]


def test_a_replaced_object_is_read_again(home: ServerHome) -> None:
    (ledger,) = home.write(TOPIC, *numbered(3))
    key = home.offload(TOPIC, ledger)
    address, store = tier_of(home)
    assert values(address) == payloads(range(3))
    metadata = {**store.head(key).metadata, "managedledgername": "public/default/persistent/renamed"}
    store.put(key, bytes(store.get(key)), metadata=metadata)
    assert values(address, "renamed") == payloads(range(3))


def test_a_deleted_object_leaves_the_cache(home: ServerHome, cache: Path) -> None:
    first, second = home.write(TOPIC, *numbered(3, 3))
    key = home.offload(TOPIC, first)
    home.offload(TOPIC, second)
    address, store = tier_of(home)
    assert values(address) == payloads(range(6))
    store.delete([key, key + INDEX_SUFFIX])
    assert values(address) == payloads(range(3, 6))
    (file,) = cache.rglob("*.db")
    assert set(ListingCache(file).load()) == {info.key for info in store.list() if not info.key.endswith(INDEX_SUFFIX)}


def test_a_damaged_or_unwritable_cache_is_not_needed(
    home: ServerHome, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ledger,) = home.write(TOPIC, *numbered(3))
    home.offload(TOPIC, ledger)
    address, _ = tier_of(home)
    assert values(address) == payloads(range(3))
    (file,) = cache.rglob("*.db")
    file.write_bytes(b"not a database, and longer than the header of one" * 100)
    assert values(address) == payloads(range(3))
    with sqlite3.connect(file) as database:
        database.execute("UPDATE objects SET record = '[1]'")
    assert values(address) == payloads(range(3))
    monkeypatch.setenv("AFTERGLOW_CACHE", str(file))
    assert values(address) == payloads(range(3))
    monkeypatch.delenv("AFTERGLOW_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    assert cache_file("s3://b") == cache / "afterglow" / "listings" / (cache_file("s3://b") or file).name
    assert cache_file("s3://b") != cache_file("s3://b at http://other")
