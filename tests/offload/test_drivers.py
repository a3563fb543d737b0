"""Drivers: ours, those of others through a real entry point, and none."""

from __future__ import annotations

import asyncio
import sys
import textwrap
from contextlib import nullcontext
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from tests.support import golden
from tests.support.ledgers import TOPIC, settings

from afterglow.config import BrokerConfig
from afterglow.config.choices import ReadPriority
from afterglow.errors import ConfigError, HotLogError, LedgerMissing, MissingDependency, ObjectMissing, StoreUnavailable
from afterglow.format.blocks import Format
from afterglow.format.checks import open_block
from afterglow.format.frames import iter_entries
from afterglow.format.index import decode_index
from afterglow.format.objects import ledger_uuid, parse_key
from afterglow.metadata.paths import AfterglowPaths
from afterglow.offload import environment
from afterglow.offload.block_offloader import BlockOffloader
from afterglow.offload.drivers import offloader_of
from afterglow.offload.explain import LedgerState
from afterglow.offload.offloader import LedgerOffloader, OffloadedLedger, extra_metadata
from afterglow.offload.segments.listing import SegmentStatus
from afterglow.offload.task import run_task
from afterglow.policy import validation
from afterglow.read.copies import StorageTier
from afterglow.read.counters import ReadCounters
from afterglow.read.entry_source import TieredEntrySource
from afterglow.read.ranges import ObjectLocator
from afterglow.read.tier_reader import TierReader
from afterglow.server.process import Server, summarize
from afterglow.storage.memory import MemoryStore
from afterglow.testing.memory_hot import MemoryLog
from afterglow.tier import drivers
from afterglow.tier.locations import TierLocation, Tiers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.support.offloads import OffloadWorld

    from afterglow.testing.memory_hot import MemoryLedger

OWN = TierLocation("memory", "own")


def policy(**changes: object) -> BrokerConfig:
    return BrokerConfig(**changes)  # type: ignore[arg-type]  # settings by name


def sealed(entries: list[bytes]) -> MemoryLedger:
    ledger = MemoryLog().create()
    for entry in entries:
        ledger.append((entry,), lambda _error: None)
    ledger.close()
    return ledger


# --- which one --------------------------------------------------------------------------------------------------------


def test_without_a_driver_the_servers_own_tier_is_used() -> None:
    found = offloader_of(policy(), OWN, Tiers())
    assert isinstance(found, BlockOffloader)
    assert found.location == OWN


def test_without_a_tier_there_is_no_offloader_and_the_error_says_how_to_get_one() -> None:
    with pytest.raises(ConfigError, match=r"managedLedgerOffloadDriver, or start with --tier"):
        offloader_of(policy(), None, Tiers())


@pytest.mark.parametrize(
    ("changes", "url"),
    [
        ({"managed_ledger_offload_driver": "filesystem", "file_system_uri": "file:///tier"}, "file:///tier"),
        ({"managed_ledger_offload_driver": "FileSystem", "file_system_uri": "file:///tier"}, "file:///tier"),
        ({"managed_ledger_offload_driver": "S3", "managed_ledger_offload_bucket": "b"}, "s3://b"),
        ({"managed_ledger_offload_driver": "aws-s3", "s3_managed_ledger_offload_bucket": "b"}, "s3://b"),
        ({"managed_ledger_offload_driver": "aliyun-oss", "managed_ledger_offload_bucket": "b"}, "s3://b"),
    ],
)
def test_our_own_drivers_are_found_by_their_names(changes: dict[str, object], url: str) -> None:
    found = offloader_of(policy(**changes), OWN, Tiers())
    assert isinstance(found, LedgerOffloader)
    assert found.location.url == url


def test_an_unknown_driver_is_refused_with_the_known_ones_and_the_group() -> None:
    for name in ("nowhere", "azureblob", "google-cloud-storage"):
        with pytest.raises(
            ConfigError, match=r"supported here: S3, aliyun-oss, aws-s3, filesystem.*afterglow\.offloaders"
        ):
            offloader_of(policy(managed_ledger_offload_driver=name), OWN, Tiers())


# --- ours -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in golden.cases() if not n.startswith(("streaming", "fs_", "oversize"))])
def test_a_whole_ledger_becomes_the_bytes_that_pulsar_writes(name: str) -> None:
    case = golden.cases()[name]
    for key in [key for key in map(parse_key, case.objects) if not key.index]:
        data = case.objects[str(key)]
        theirs = decode_index(case.objects[f"{key}-index"])
        entries = [
            bytes(entry)
            for group, number, start, end in theirs.extents()
            for block in [open_block(data[start:end], group.blocks[number].first_entry_id)]
            for _, entry in iter_entries(data[start:end], block.frames)
        ]
        ledger = sealed(entries)
        store = MemoryStore()
        location = TierLocation("memory", store.url.removeprefix("memory://"))
        obeyed = policy(managed_ledger_offload_max_block_size_in_bytes=5 << 20)
        offloader = BlockOffloader(location, obeyed, Tiers())

        offloader.offload(ledger, key.uuid, extra_metadata("t/n/persistent/x", cluster="c", instance="i"))

        ours = f"{key.uuid}-ledger-{ledger.ledger_id}"
        assert [found.key for found in store.list()] == [ours, f"{ours}-index"]
        assert store.get(ours) == data
        index = decode_index(store.get(f"{ours}-index"))
        assert (index.format, index.data_bytes, index.header_bytes) == (
            Format.V1,
            theirs.data_bytes,
            theirs.header_bytes,
        )
        assert index.groups[0].blocks == theirs.groups[0].blocks
        assert index.groups[0].last_entry_id == theirs.groups[0].last_entry_id
        wanted = {pair.lower() for item in case.listing for pair in item.user_metadata} - {"pulsarclustername"}
        assert wanted <= set(store.head(ours).metadata)


def test_a_copy_is_read_back_and_deleted() -> None:
    entries = [b"%d" % number * 30 for number in range(40)]
    store = MemoryStore()
    location = TierLocation("memory", store.url.removeprefix("memory://"))
    offloader = BlockOffloader(location, policy(), Tiers(), block_bytes=500, part_bytes=1000)
    offloader.offload(sealed(entries), UUID(int=5), {})

    for given in ({}, offloader.driver_metadata()):
        copy = offloader.read_offloaded(1, OffloadedLedger(UUID(int=5), given))
        assert [bytes(entry) for run in copy.scan(0, 39) for entry in run.entries()] == entries
        assert [bytes(entry) for entry in copy.read(7, 7, 1).entries()] == entries[7:8]

    store.create_upload(f"{UUID(int=5)}-ledger-1")
    offloader.delete_offloaded(1, UUID(int=5), offloader.driver_metadata())
    offloader.delete_offloaded(1, UUID(int=5), offloader.driver_metadata())
    assert list(store.list()) == []
    assert store.list_uploads() == ()
    with pytest.raises(ObjectMissing):
        offloader.read_offloaded(1, OffloadedLedger(UUID(int=5)))


# --- of others --------------------------------------------------------------------------------------------------------

DRIVER = """
    from afterglow.errors import ConfigError, ObjectMissing
    from afterglow.format.frames import frame_entries, scan_frames
    from afterglow.format.position import Position
    from afterglow.offload.offloader import OffloadHandle, OffloadResult
    from afterglow.read.copies import FrameRun
    from afterglow.tier.locations import TierLocation

    SHELF = {}
    ABORTED = []
    LEAKY = set()


    class Shelf:
        def __init__(self, policy, own, tiers):
            self._shelf = dict(policy.managed_ledger_extra_configurations).get("Shelf", "top")
            if self._shelf == "attic":
                raise ConfigError("the attic is locked")

        @property
        def location(self):
            return TierLocation("shelf", self._shelf)

        def driver_metadata(self):
            return {"bucket": self._shelf, "colour": "green"}

        def offload(self, ledger, uuid, extra_metadata):
            entries = [bytes(entry) for entry in ledger.read(0, ledger.confirmed)]
            SHELF[self._shelf, ledger.ledger_id, uuid] = (entries, dict(extra_metadata))

        def read_offloaded(self, ledger_id, context):
            if context.uuid in LEAKY:
                raise ZeroDivisionError("a fault of the driver's own")
            segment = None if context.segment else ledger_id
            found = SHELF.get((context.driver_metadata["bucket"], segment, context.uuid))
            if found is None:
                raise ObjectMissing("nothing on the shelf")
            if not context.segment:
                return Copy(ledger_id, dict(enumerate(found[0])))
            return Copy(ledger_id, {entry: data for ledger, entry, data in found[0] if ledger == ledger_id})

        def delete_offloaded(self, ledger_id, uuid, driver_metadata):
            assert driver_metadata["colour"] == "green"
            SHELF.pop((driver_metadata["bucket"], ledger_id, uuid), None)


    class StreamingShelf(Shelf):
        @property
        def location(self):
            return TierLocation("streaming-shelf", self._shelf)

        def streaming_offload(self, uuid, driver_metadata):
            assert driver_metadata["colour"] == "green"
            return Handle(uuid, driver_metadata)


    class Handle(OffloadHandle):
        def __init__(self, uuid, driver_metadata):
            self._uuid, self._given, self._entries = uuid, dict(driver_metadata), []
            self._turn = 0

        def can_offer(self, size):
            return True

        def offer_entry(self, ledger_id, entry_id, data):
            self._turn += 1
            if self._turn % 5 == 0:
                return False
            self._entries.append((ledger_id, entry_id, bytes(data)))
            return True

        def last_offered(self):
            return Position(*self._entries[-1][:2]) if self._entries else None

        def result(self):
            SHELF[self._given["bucket"], None, self._uuid] = (self._entries, self._given)
            return OffloadResult(self._uuid, Position(*self._entries[0][:2]), self.last_offered())

        def abort(self):
            ABORTED.append(self._uuid)


    class Copy:
        def __init__(self, ledger_id, entries):
            self._ledger_id, self._entries = ledger_id, entries

        def read(self, first, last, max_bytes):
            wanted = [self._entries[number] for number in range(first, last + 1)]
            data = memoryview(frame_entries(wanted, first))
            return FrameRun(self._ledger_id, data, scan_frames(data, first))

        def scan(self, first, last):
            yield self.read(first, last, 1 << 30)
"""


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[object, object]]:
    """A distribution with a driver, installed as far as Python is concerned."""
    (tmp_path / "shelf_driver.py").write_text(textwrap.dedent(DRIVER))
    info = tmp_path / "shelf_driver-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shelf-driver\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[afterglow.offloaders]\nshelf = shelf_driver:Shelf\n"
        "streaming-shelf = shelf_driver:StreamingShelf\nbroken = shelf_driver:Nothing\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    validation.drivers.cache_clear()
    import shelf_driver  # type: ignore[import-not-found]

    yield shelf_driver.SHELF
    sys.modules.pop("shelf_driver", None)
    drivers._loaded.pop("shelf", None)
    drivers._loaded.pop("streaming-shelf", None)
    validation.drivers.cache_clear()


def test_a_driver_of_others_offloads_frees_and_deletes(
    new_world: Callable[..., OffloadWorld], shelf: dict[tuple[str, int, UUID], tuple[list[bytes], dict[str, str]]]
) -> None:
    world = new_world(
        settings(
            managed_ledger_offload_threshold_in_bytes=0,
            managed_ledger_offload_deletion_lag_in_millis=1000,
            managed_ledger_offload_driver="shelf",
            managed_ledger_extra_configurations=(("Shelf", "lower"),),
        )
    )
    ledger = world.topic(3, 20)
    entries = world.hot.open(2).entries
    world.run()

    assert world.offloaded() == [1, 2]
    assert [len(job) for job in world.runner.jobs] == [2]
    row = world.info().ledgerInfo[1]
    uuid = ledger_uuid(row)
    assert uuid is not None
    stored, extra = shelf["lower", 2, uuid]
    assert stored == entries
    assert extra["ManagedLedgerName"] == TOPIC
    assert row.offloadContext.driverMetadata.name == "shelf"
    assert world.objects() == []

    kept = shelf.pop(("lower", 2, uuid))
    world.clock.advance(2)
    world.run()
    assert world.hot.ledgers() == (2, 3)
    assert world.service.explain(TOPIC)[1].state is LedgerState.TO_BE_FREED
    shelf["lower", 2, uuid] = kept
    world.clock.advance(60)
    world.run()
    assert world.hot.ledgers() == (3,)
    tiers = TierReader(world.tiers, world.config)
    source = TieredEntrySource(TOPIC, world.hot, tiers, lambda: world.config, ReadCounters())
    run = source.read(world.info().ledgerInfo[1], 5, 7, 1 << 20)
    assert [bytes(entry) for entry in run.entries] == entries[5:8]
    assert source.counters.counts().entries[StorageTier.TIERED] == 3
    tiers.close()

    ledger.trimmer.truncate()
    world.run()
    assert shelf == {}
    assert world.intents() == ()


def test_a_driver_that_cannot_be_loaded_names_its_package(shelf: object) -> None:
    with pytest.raises(MissingDependency, match=r"broken \(shelf_driver:Nothing\).*install the package shelf-driver"):
        offloader_of(policy(managed_ledger_offload_driver="broken"), OWN, Tiers())


def streaming_on_the_shelf(**changes: object) -> BrokerConfig:
    return settings(
        streaming_offload_enabled=True,
        max_offload_segment_size_in_bytes=3000,
        managed_ledger_offload_driver="streaming-shelf",
        managed_ledger_extra_configurations=(("Shelf", "lower"),),
        **changes,
    )


def read_all(world: OffloadWorld, name: str = TOPIC) -> list[tuple[int, int, bytes, StorageTier]]:
    """Every entry by ledger and id, and the tier that served it; the tier first."""
    tiers = TierReader(
        world.tiers, world.config, ObjectLocator(world.metadata, AfterglowPaths(), server_tier=world.own)
    )
    source = TieredEntrySource(name, world.hot, tiers, lambda: world.config, ReadCounters())
    layout = world.open(name).layout
    found = []
    for row in world.info(name).ledgerInfo:
        count = layout.entries_of(row.ledgerId) or 0
        for served in source.scan(row, 0, count - 1, ReadPriority.TIERED_STORAGE_FIRST) if count else ():
            first = served.run.frames.first_entry_id
            found += [(row.ledgerId, first + at, bytes(e), served.tier) for at, e in enumerate(served.run.entries())]
    tiers.close()
    return found


def test_an_external_driver_streams_frees_reads_and_deletes(
    shelf: dict[tuple[str, int | None, UUID], tuple[list[object], dict[str, str]]],
    new_world: Callable[..., OffloadWorld],
) -> None:
    world = new_world(streaming_on_the_shelf(managed_ledger_offload_deletion_lag_in_millis=1000))
    ledger = world.topic(30, 40)
    world.append(ledger, *(b"tail %d" % number for number in range(5)))
    before = [each[:3] for each in read_all(world)]
    world.run()
    assert len(shelf) == 2  # closed by size
    world.clock.advance(3600)
    world.run()  # closed by age

    segments = world.service.segments(TOPIC)
    assert {each.status for each in segments} == {SegmentStatus.OFFLOADED}
    assert {(bucket, ledger_id) for bucket, ledger_id, _ in shelf} == {("lower", None)}
    assert sum(len(entries) for entries, _ in shelf.values()) == 75
    assert all(given["ManagedLedgerName"] == TOPIC and given["colour"] == "green" for _, given in shelf.values())
    records = world.service.segment_records(TOPIC)
    assert all(dict(record.location.driver_metadata) == {"bucket": "lower", "colour": "green"} for record in records)
    assert sum(record.entries for record in records) == 75

    assert [each[:3] for each in read_all(world)] == before
    assert {each[3] for each in read_all(world)} == {StorageTier.TIERED}
    assert world.hot.ledgers() == (3,)  # both closed ledgers were read back before their hot copies were freed
    assert world.objects() == []
    world.check()

    ledger.trimmer.truncate()
    world.run()
    assert [row.ledgerId for row in world.info().ledgerInfo] == [4]
    assert shelf == {}
    assert world.intents() == ()


def test_a_segment_whose_driver_fails_is_written_again_under_the_same_uuid(
    shelf: dict[tuple[str, int | None, UUID], object], new_world: Callable[..., OffloadWorld]
) -> None:
    world = new_world(streaming_on_the_shelf())
    world.topic(60)
    world.settle()
    world.service.tick()
    world.settle()
    uuid = UUID(world.runner.waiting[0][0].key)
    world.runner.fail_one(StoreUnavailable("the shelf is out of reach"))
    world.settle()
    assert world.service.segments(TOPIC)[0].status is SegmentStatus.FAILED
    world.clock.advance(60)
    world.run()
    assert ("lower", None, uuid) in shelf
    assert world.service.segments(TOPIC)[0].status is SegmentStatus.OFFLOADED


def test_a_segment_of_an_external_driver_is_resumed_under_its_uuid_after_a_crash(
    shelf: dict[tuple[str, int | None, UUID], object], new_world: Callable[..., OffloadWorld]
) -> None:
    """Promise 3: no upload of ours can be left in a driver's store, and no store of ours can be asked for one."""
    world = new_world(streaming_on_the_shelf())
    world.topic(60)
    world.service.tick()
    world.settle()
    uuid = UUID(world.runner.waiting[0][0].key)
    world.crash()
    world.run()
    assert ("lower", None, uuid) in shelf
    assert world.service.segments(TOPIC)[0].status is SegmentStatus.OFFLOADED


def test_a_fault_of_a_drivers_own_is_a_failed_read_and_the_other_copy_serves(
    shelf: dict[tuple[str, int | None, UUID], object], new_world: Callable[..., OffloadWorld]
) -> None:
    world = new_world(streaming_on_the_shelf())
    world.topic(60)
    world.run()
    leaky = sys.modules["shelf_driver"].LEAKY
    leaky.update(uuid for _, _, uuid in shelf)
    assert {each[3] for each in read_all(world)} == {StorageTier.HOT}
    leaky.clear()


def test_a_task_that_fails_gives_up_its_own_attempt_and_deletes_nothing(
    shelf: dict[tuple[str, int | None, UUID], object], new_world: Callable[..., OffloadWorld]
) -> None:
    world = new_world(streaming_on_the_shelf())
    world.topic(60)
    world.settle()
    world.service.tick()
    world.settle()
    task = world.runner.waiting[0][0]
    done = run_task(task, open_ledger=lambda ledger_id: nullcontext(world.hot.open(ledger_id)))
    assert done.error is None
    kept = dict(shelf)

    def gone(ledger_id: int) -> AbstractContextManager[MemoryLedger]:
        raise LedgerMissing(f"ledger {ledger_id} is gone")

    late = run_task(task, open_ledger=gone)
    assert isinstance(late.error, LedgerMissing)
    assert [UUID(task.key)] == sys.modules["shelf_driver"].ABORTED
    assert dict(shelf) == kept


def test_a_driver_for_whole_ledgers_only_is_named_as_the_reason(
    shelf: object, new_world: Callable[..., OffloadWorld]
) -> None:
    world = new_world(settings(streaming_offload_enabled=True, managed_ledger_offload_driver="shelf"))
    world.topic(3)
    world.run()
    assert "driver shelf takes whole ledgers only" in str(world.service.explain(TOPIC)[0])


def test_a_segment_whose_task_cannot_be_made_is_tried_again(
    shelf: dict[tuple[str, int | None, UUID], object],
    new_world: Callable[..., OffloadWorld],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = new_world(streaming_on_the_shelf())
    world.topic(60)
    made = environment._driver_task
    failures = iter([HotLogError("the ledger cannot be read just now")])

    def fail_once(*args: object) -> object:
        for error in failures:
            raise error
        return made(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(environment, "_driver_task", fail_once)
    world.run()
    assert shelf == {}
    world.clock.advance(60)
    world.run()
    assert len(shelf) == 1


@pytest.mark.usefixtures("shelf")
def test_a_server_starts_with_a_driver_of_others(tmp_path: Path) -> None:
    given = {"bind_address": "127.0.0.1", "broker_service_port": 0, "managed_ledger_offload_driver": "shelf"}

    async def started(config: BrokerConfig) -> str:
        server = await Server.start(tmp_path / "home", config)
        await server.stop()
        return summarize(config, server.tiering.target)

    assert asyncio.run(started(policy(**given))).startswith("tier shelf://")
    with pytest.raises(ConfigError, match=r"offload driver broken .* cannot be loaded"):
        asyncio.run(started(policy(**given | {"managed_ledger_offload_driver": "broken"})))


def test_a_streaming_policy_with_a_driver_that_takes_whole_ledgers_only_is_refused(shelf: object) -> None:
    streams = {"streaming_offload_enabled": True}
    validation.check(policy(managed_ledger_offload_driver="shelf"))
    validation.check(policy(managed_ledger_offload_driver="streaming-shelf", **streams))
    with pytest.raises(ConfigError, match=r"streamingOffloadEnabled.*shelf.*takes whole ledgers only"):
        validation.check(policy(managed_ledger_offload_driver="shelf", **streams))


def test_a_policy_that_its_external_driver_refuses_is_refused_with_the_drivers_reason(shelf: object) -> None:
    extra = (("Shelf", "attic"),)
    with pytest.raises(ConfigError, match="the attic is locked"):
        validation.check(policy(managed_ledger_offload_driver="shelf", managed_ledger_extra_configurations=extra))
