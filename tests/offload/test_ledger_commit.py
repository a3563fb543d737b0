"""The commit protocol: what is in metadata and in the tier when all goes well, and when it does not."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import pytest
from tests.support.faults import Fault, FaultRule, FaultyMetadataStore, FaultyStore
from tests.support.ledgers import TOPIC, settings
from tests.support.offloads import INSTANCE, OffloadWorld

from afterglow import __version__
from afterglow.errors import ObjectExists, ObjectMissing, PartMismatch, StoreUnavailable, UploadMissing, WrongLength
from afterglow.format.frames import frame_entries
from afterglow.format.index import decode_index
from afterglow.format.objects import INDEX_SUFFIX, ledger_uuid, set_uuid
from afterglow.format.position import LATEST
from afterglow.metadata.memory import MemoryMetadataStore
from afterglow.metadata.paths import managed_ledger_path
from afterglow.offload.block_offloader import BlockOffloader, CopyRequest
from afterglow.offload.explain import LedgerState
from afterglow.offload.ledger_commit import LedgerContext, give_up
from afterglow.offload.offloader import OffloadedLedger
from afterglow.offload.task import PartTask, run_part
from afterglow.storage.store import PAGE_SIZE
from afterglow.storage.wrapper import StoreWrapper

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from afterglow.config import BrokerConfig
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.storage.store import ObjectPage, ObjectStore, Part, Upload

    NewWorld = Callable[..., OffloadWorld]


def at_once(**changes: object) -> BrokerConfig:
    """Every ledger is offloaded when it closes, and its hot copy stays."""
    return settings(
        managed_ledger_offload_threshold_in_bytes=0, managed_ledger_offload_deletion_lag_in_millis=None, **changes
    )


def row(world: OffloadWorld, ledger_id: int = 1) -> ManagedLedgerInfo.LedgerInfo:
    return next(row for row in world.info().ledgerInfo if row.ledgerId == ledger_id)


def test_a_ledger_of_one_part_becomes_an_object_and_its_index(new_world: NewWorld) -> None:
    world = new_world(at_once())
    world.topic(3)
    frames = bytes(world.hot.open(1).read_frames(0, 1 << 20)[0])
    world.run()

    context = row(world).offloadContext
    key = f"{ledger_uuid(row(world))}-ledger-1"
    assert context.complete
    assert context.timestamp == world.clock.now_ms()
    assert context.driverMetadata.name == "memory"
    assert ("bucket", world.own.bucket) in [(pair.key, pair.value) for pair in context.driverMetadata.properties]
    assert world.objects() == [key, f"{key}-index"]
    data = world.tier.get(key)
    index = decode_index(world.tier.get(f"{key}-index"))
    assert index.data_bytes == data.nbytes
    assert index.groups[0].last_entry_id == 2
    assert bytes(data[128 : 128 + len(frames)]) == frames
    assert world.tier.list_uploads() == ()


@pytest.mark.parametrize(("entries", "tasks"), [(3, 1), (20, 4)])
def test_both_objects_say_who_wrote_them(new_world: NewWorld, entries: int, tasks: int) -> None:
    world = new_world(at_once())
    world.topic(entries)
    world.run()

    assert [len(job) for job in world.runner.jobs] == [tasks]
    for key in world.objects():
        assert world.tier.head(key).metadata == {
            "s3managedledgeroffloaderformatversion": "1",
            "s3managedledgeroffloadersoftwareversion": __version__,
            "s3managedledgeroffloadersoftwaregitsha": "",
            "pulsarclustername": "standalone",
            "role": "index" if key.endswith("-index") else "data",
            "managedledgername": TOPIC,
            "afterglowinstance": INSTANCE,
        }


def test_parts_may_end_in_any_order(new_world: NewWorld) -> None:
    world = new_world(at_once())
    world.topic(20)
    frames = world.hot.open(1).read_frames(0, 1 << 20)[0]
    world.service.tick()
    world.settle()
    while world.runner.waiting:
        world.runner.run_one(len(world.runner.waiting) - 1)
    world.settle()

    assert world.offloaded() == [1]
    copy = world._offloader(world.config, world.own, world.tiers).read_offloaded(1, _context(world))
    read = [entry for run in copy.scan(0, 19) for entry in run.entries()]
    assert frame_entries(read) == bytes(frames)


def _context(world: OffloadWorld) -> OffloadedLedger:
    uuid = ledger_uuid(row(world))
    assert uuid is not None
    return OffloadedLedger(uuid)


def test_the_uuid_is_on_record_before_anything_is_uploaded(new_world: NewWorld) -> None:
    world = new_world(at_once())
    world.topic(20)
    world.service.tick()
    world.settle()

    uuid = ledger_uuid(row(world))
    assert uuid is not None
    assert not row(world).offloadContext.complete
    assert [upload.key for upload in world.tier.list_uploads()] == [f"{uuid}-ledger-1"]
    assert world.objects() == []
    world.run()


def test_a_failed_part_fails_the_ledger_and_the_next_try_has_another_uuid(new_world: NewWorld) -> None:
    world = new_world(at_once(offload_retry_min_backoff_millis=5000))
    world.topic(20, 3)
    world.service.tick()
    world.settle()
    first = ledger_uuid(row(world))
    world.runner.fail_one(StoreUnavailable("no route"))
    world.run()

    assert world.offloaded() == [2]
    assert ledger_uuid(row(world)) == first
    explained = world.service.explain(TOPIC)[0]
    assert (explained.state, explained.error) == (LedgerState.FAILED, "no route")
    assert explained.next_ms == world.clock.now_ms() + 5000
    assert "in 5 s" in explained.sentence

    world.clock.advance(5)
    world.run()

    assert world.offloaded() == [1, 2]
    assert ledger_uuid(row(world)) != first
    assert not [key for key in world.objects() if str(first) in key]
    assert world.tier.list_uploads() == ()
    world.run_late()
    assert world.intents() == ()


def test_tries_come_less_and_less_often(new_world: NewWorld) -> None:
    world = new_world(
        at_once(offload_retry_min_backoff_millis=1000, offload_retry_max_backoff_millis=3000),
        wrap=lambda store: FaultyStore(store, [FaultRule(Fault.ERROR_BEFORE, frozenset({"upload_part"}), times=None)]),
    )
    world.topic(3)
    waits = []
    for _ in range(4):
        world.run()
        next_ms = world.service.explain(TOPIC)[0].next_ms
        assert next_ms is not None
        waits.append(next_ms - world.clock.now_ms())
        world.clock.advance(waits[-1] / 1000)
    assert waits == [1000, 2000, 3000, 3000]
    assert world.objects() == []


def test_a_task_that_runs_long_after_its_attempt_was_replaced_writes_nothing(new_world: NewWorld) -> None:
    """Promises 3 and 9, for a ledger of one part: its task waits in a queue for longer than intents are kept."""
    world = new_world(at_once())
    world.topic(3)
    world.service.tick()
    world.settle()
    (late, _), replaced = world.runner.waiting[0], ledger_uuid(row(world))
    world.crash()
    world.run()
    world.run_late()
    assert world.offloaded() == [1]
    assert world.intents() == ()

    hot = world.hot.open(1)
    assert isinstance(late, PartTask)
    result = run_part(late, open_ledger=lambda _: nullcontext(hot), open_store=lambda *_: world.tier)
    assert isinstance(result.error, UploadMissing)
    assert ledger_uuid(row(world)) != replaced
    assert world.objects() == [f"{ledger_uuid(row(world))}-ledger-1", f"{ledger_uuid(row(world))}-ledger-1-index"]


def test_objects_of_an_attempt_that_a_crash_ended_are_deleted_by_the_next(new_world: NewWorld) -> None:
    world = new_world(at_once())
    world.topic(20)
    world.service.tick()
    world.settle()
    world.runner.run_one()
    first = ledger_uuid(row(world))
    world.crash()
    world.run()

    assert world.offloaded() == [1]
    assert world.tier.list_uploads() == ()
    assert not [key for key in world.objects() if str(first) in key]


@pytest.mark.parametrize("operation", ["create_upload", "complete_upload", "head", "put"])
@pytest.mark.parametrize("fault", [Fault.ERROR_BEFORE, Fault.ERROR_AFTER])
def test_an_error_at_any_request_of_the_owner_costs_a_try_at_most(
    new_world: NewWorld, operation: str, fault: Fault
) -> None:
    rule = FaultRule(fault, frozenset({operation}))
    spoilt: list[FaultyStore] = []

    def wrap(store: ObjectStore) -> ObjectStore:
        spoilt.append(FaultyStore(store, [rule]))
        return spoilt[-1]

    world = new_world(at_once(), wrap=wrap)
    world.topic(20)
    world.run()
    world.clock.advance(60)
    world.run()

    assert world.offloaded() == [1]
    assert len(world.objects()) == 2
    assert world.tier.list_uploads() == ()
    world.run_late()
    assert world.intents() == ()


def test_a_completion_of_unknown_outcome_is_detected(new_world: NewWorld) -> None:
    world = new_world(
        at_once(), wrap=lambda store: FaultyStore(store, [FaultRule(Fault.ERROR_AFTER, frozenset({"complete_upload"}))])
    )
    world.topic(20)
    world.run()
    assert world.offloaded() == [1]
    assert world.service.statistics(TOPIC).last_failure_ms == 0


def test_another_uuid_in_the_list_is_a_conflict_and_our_objects_go(new_world: NewWorld) -> None:
    world = new_world(at_once())
    ledger = world.topic(3)
    world.service.tick()
    world.settle()

    def take(info: ManagedLedgerInfo) -> None:
        set_uuid(info.ledgerInfo[0].offloadContext, UUID(int=7))

    ours = ledger_uuid(row(world))
    ledger.update(take)
    world.runner.run_all()
    world.settle()

    assert world.offloaded() == []
    assert f"{ours}-ledger-1" in world.objects()
    assert world.intents() == (str(ours),)

    world.run()
    assert not [key for key in world.objects() if str(ours) in key]
    assert world.offloaded() == [1]


def test_an_unknown_outcome_of_the_commit_deletes_nothing_and_is_settled(new_world: NewWorld) -> None:
    """The change was made, its outcome is unknown, and metadata is unavailable for some time."""
    for fault in (Fault.ERROR_AFTER, Fault.LOST):
        inner = MemoryMetadataStore()
        world = new_world(at_once(), inner)
        world.topic(3)
        world.service.tick()
        world.settle()
        world.runner.run_all()
        path = managed_ledger_path(TOPIC)
        rules = [
            FaultRule(fault, frozenset({"put"}), path),
            FaultRule(Fault.ERROR_BEFORE, frozenset({"get"}), path),
        ]
        faulty = FaultyMetadataStore(inner, rules)
        opened = world.store.opened(TOPIC)
        assert opened is not None
        opened._metadata._store = faulty
        world.settle()

        assert len(world.objects()) == 2
        assert world.intents() == ()
        assert world.service.is_in_use(TOPIC, 1)
        assert world.service.explain(TOPIC)[0].state in {LedgerState.OFFLOADING, LedgerState.OFFLOADED}

        world.clock.advance(1)
        world.run()
        assert world.offloaded() == [1]
        assert len(world.objects()) == 2
        assert not world.service.is_in_use(TOPIC, 1)


def test_a_fenced_owner_commits_nothing_and_deletes_nothing(new_world: NewWorld) -> None:
    world = new_world(at_once())
    world.topic(3)
    world.service.tick()
    world.settle()
    before = world.objects()
    other = new_world(at_once(), world.metadata)
    other.hot = world.hot
    other.tier, other.own, other.tiers = world.tier, world.own, world.tiers
    other.boot()
    other.store.open(TOPIC)
    world.runner.run_all()
    world.settle()
    world.run()

    assert before == []
    assert len(world.objects()) == 2
    assert world.intents() == ()
    assert world.offloaded() == []
    assert not world.service.is_in_use(TOPIC, 1)

    other.run()
    assert other.offloaded() == [1]
    assert len(other.objects()) == 2


def test_a_ledger_that_cannot_be_planned_leaves_no_trace(new_world: NewWorld, caplog: pytest.LogCaptureFixture) -> None:
    world = new_world(at_once())
    world.topic(1, size_bytes=1000)
    world.topic(2)
    with caplog.at_level(logging.WARNING):
        world.run()

    explained = world.service.explain(TOPIC)[0]
    assert explained.state is LedgerState.FAILED
    assert "managedLedgerOffloadMaxBlockSizeInBytes" in (explained.error or "")
    assert ledger_uuid(row(world)) is None
    assert world.offloaded() == [2]
    assert "ledger 1" in caplog.text


def test_the_hot_log_is_written_back_before_tasks_go_out(new_world: NewWorld) -> None:
    world = new_world(at_once())
    world.topic(3)
    assert world.flushes == 0
    world.run()
    assert world.flushes == 1


def test_a_ledger_that_ends_early_in_the_hot_log_is_refused(new_world: NewWorld) -> None:
    world = new_world(at_once())
    ledger = world.topic(3)
    lost = world.hot.open(1).entries.pop()
    world.run()
    assert "should have 3 entries" in (world.service.explain(TOPIC)[0].error or "")
    assert world.offloaded() == []
    world.hot.open(1).entries.append(lost)
    assert ledger.ledgers[0].entries == 3


def test_an_upload_that_the_store_creates_after_its_attempt_was_replaced_is_aborted(new_world: NewWorld) -> None:
    """Promises 3, 4 and 9: the request of an owner that has ended may reach the store after the next one's listing."""
    world = new_world(at_once())
    world.topic(20)
    world.service.tick()
    world.settle()
    (upload,) = world.tier.list_uploads()
    world.runner.waiting.clear()
    world.crash()
    world.run()
    assert world.offloaded() == [1]
    assert world.tier.list_uploads() == ()
    world.tier.create_upload(upload.key)
    world.run_late()
    assert world.tier.list_uploads() == ()
    assert world.intents() == ()
    assert world.findings() == []


def test_two_owners_in_turn_leave_one_object(new_world: NewWorld) -> None:
    world = new_world(at_once())
    world.topic(20, 3)
    for _ in range(3):
        world.service.tick()
        world.settle()
        world.runner.run_one()
        world.settle()
        world.crash()
    world.run()
    assert world.offloaded() == [1, 2]
    assert len(world.objects()) == 4
    assert world.tier.list_uploads() == ()
    world.run_late()
    assert world.intents() == ()


def test_objects_of_a_given_up_attempt_are_deleted(new_world: NewWorld) -> None:
    """Nobody tries again by himself where no threshold asks for the ledger."""
    world = new_world()
    world.topic(20)
    world.service.offload_prefix(TOPIC, LATEST)
    world.service.tick()
    world.settle()
    assert world.runner.run_one()
    world.runner.fail_one(StoreUnavailable("no route"))
    assert world.tier.list_uploads()
    world.run()
    assert world.offloaded() == []
    assert ledger_uuid(row(world)) is None
    assert world.tier.list_uploads() == ()
    assert world.objects() == []


def test_a_ledger_that_is_complete_by_now_is_not_given_up(new_world: NewWorld) -> None:
    world = new_world(at_once())
    ledger = world.topic(2)
    world.run()
    assert world.offloaded() == [1]
    context = LedgerContext(TOPIC, world.hot, world.service._pending_deletes, world.config, world.own)
    give_up(context, ledger, [1])
    assert world.offloaded() == [1]
    world.run()
    assert len(world.objects()) == 2


def finish_anew(
    world: OffloadWorld,
    *,
    damage: Callable[[str, Upload], None],
    ledger_id: int = 1,
    entries: int = 20,
    parts: slice = slice(None),
) -> None:
    """Copy a ledger step by step, with something done to its object before the last step."""
    offloader = world._offloader(world.config, world.own, world.tiers)
    assert isinstance(offloader, BlockOffloader)
    request = CopyRequest(ledger_id, entries, 1, uuid4(), {"afterglowinstance": "us"})
    with nullcontext(world.hot.open(ledger_id)) as hot:
        copy = offloader.begin(request, offloader.plan(hot, request.entries))
        results = [
            run_part(task, open_ledger=lambda _: nullcontext(hot), open_store=lambda *_: world.tier)
            for task in copy.tasks
        ]
    damage(request.key, copy.upload)
    offloader.finish(copy, results[parts])


def test_an_object_that_is_not_our_completed_upload_is_not_finished() -> None:
    world = OffloadWorld()
    world.topic(20)
    size = 0

    def lose(key: str, upload: Upload) -> None:
        nonlocal size
        size = sum(part.size_bytes for part in world.tier.list_parts(upload))
        world.tier.abort_upload(upload)

    def replace_by_another(key: str, upload: Upload) -> None:
        lose(key, upload)
        world.tier.put(key, b"x" * size, metadata={"afterglowinstance": "them"})

    def replace_by_longer(key: str, upload: Upload) -> None:
        lose(key, upload)
        world.tier.put(key, b"x" * (size + 1), metadata={"afterglowinstance": "us"})

    for damage, error in (
        (lose, ObjectMissing),
        (replace_by_another, UploadMissing),
        (replace_by_longer, UploadMissing),
    ):
        with pytest.raises(error):
            finish_anew(world, damage=damage)
    assert not [key for key in world.objects() if key.endswith("-index")]


def test_an_object_is_finished_only_whole_and_with_no_index_of_another() -> None:
    world = OffloadWorld()
    world.topic(20, 1)

    def nothing(_key: str, _upload: Upload) -> None:
        """All is well."""

    def index_before(key: str, _upload: Upload) -> None:
        world.tier.put(key + INDEX_SUFFIX, b"not ours")

    def complete_short(key: str, upload: Upload) -> None:
        """Complete the upload as a request of which no answer came, then truncate the object."""
        world.tier.complete_upload(upload, world.tier.list_parts(upload))
        world.tier.put(key, bytes(world.tier.get(key))[:-1], metadata=world.tier.head(key).metadata)

    with pytest.raises(UploadMissing):
        finish_anew(world, damage=complete_short, ledger_id=2, entries=1)
    short = OffloadWorld(wrap=ShortObjects)
    short.topic(1)
    with pytest.raises(WrongLength):
        finish_anew(short, damage=nothing, entries=1)
    with pytest.raises(PartMismatch, match="has 1 uploaded parts of"):
        finish_anew(world, damage=nothing, parts=slice(1))
    with pytest.raises(ObjectExists):
        finish_anew(world, damage=index_before)
    finish_anew(world, damage=nothing)


class ShortObjects(StoreWrapper):
    """A store that loses the last byte of every object that it completes."""

    def complete_upload(self, upload: Upload, parts: Sequence[Part]) -> None:
        """Complete the upload, then truncate the object."""
        self.inner.complete_upload(upload, parts)
        found = self.inner.head(upload.key)
        self.inner.put(upload.key, bytes(self.inner.get(upload.key))[:-1], metadata=found.metadata)


class StaleListing(StoreWrapper):
    """A store whose listings lag: they go on to show what was deleted, until they catch up."""

    shown: ObjectPage | None = None

    def list_page(self, prefix: str = "", start_after: str = "", limit: int = PAGE_SIZE) -> ObjectPage:
        """What was there before."""
        return super().list_page(prefix, start_after, limit) if self.shown is None else self.shown


def test_an_object_counts_as_deleted_only_once_no_listing_shows_it() -> None:
    """A delete that a store has answered and not done would leave an object that no record names."""
    stores: list[StaleListing] = []

    def wrap(store: ObjectStore) -> ObjectStore:
        stores.append(StaleListing(store))
        return stores[-1]

    world = OffloadWorld(at_once(), wrap=wrap)
    world.topic(3)
    world.run()
    (store,) = stores
    store.shown = store.list_page()
    assert len(store.shown.objects) == 2
    world.store.delete(TOPIC)
    world.run()
    assert world.objects() == []
    assert len(world.intents()) == 1
    store.shown = None
    world.clock.advance(3600)
    world.run()
    assert world.intents() == ()
