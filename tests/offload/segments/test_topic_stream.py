from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from tests.support.crash_points import Crashed, CrashingMetadataStore, CrashPoint
from tests.support.faults import Fault, FaultRule, FaultyMetadataStore, FaultyStore
from tests.support.ledgers import World
from tests.support.streams import LOCATION, StreamWorld, streaming

from afterglow.errors import (
    CommitUnknown,
    CorruptIndex,
    Fenced,
    MetadataUnavailable,
    OffloadConflict,
    PartMismatch,
    StoreUnavailable,
    WrongLength,
)
from afterglow.format.index import decode_index
from afterglow.format.objects import INDEX_SUFFIX
from afterglow.format.position import Position
from afterglow.format.proto import afterglow_pb2 as proto
from afterglow.metadata.memory import MemoryMetadataStore
from afterglow.offload.segments import edits, records
from afterglow.offload.segments.part_planner import Sizes
from afterglow.offload.segments.topic_stream import MAX_ASSIGNED, TopicStream
from afterglow.offload.segments.uncovered import range_between
from afterglow.offload.segments.upload import SegmentUpload
from afterglow.offload.segments.upload_record import UploadRecordNode
from afterglow.read.inspect import inspect_object
from afterglow.storage.wrapper import StoreWrapper

if TYPE_CHECKING:
    from afterglow.metadata.store import MetadataStore
    from afterglow.storage.store import Upload


def held(world: StreamWorld) -> list[bytes]:
    """Every entry of every committed segment, in the order of the list, as their objects hold it."""
    found: dict[tuple[int, int], bytes] = {}
    uuids = dict.fromkeys(
        str(record.uuid)
        for path in world.world.metadata.children(world.paths.segments(world.ledger.name))
        if (node := world.world.metadata.get(f"{world.paths.segments(world.ledger.name)}/{path}")) is not None
        for record in [proto.SegmentRecord.FromString(node.value)]
    )
    for uuid in uuids:
        inspection = inspect_object(world.store, uuid)
        for ledger_id, entry_id, data in inspection.entries():
            assert ledger_id is not None
            assert (ledger_id, entry_id) not in found, "an entry is in one segment only"
            found[ledger_id, entry_id] = bytes(data)
        assert not inspection.damage
    return [found[at] for at in sorted(found)]


def payload(number: int) -> bytes:
    return b"%05d" % number * 15


@pytest.fixture(autouse=True, params=[False, True], ids=["planned", "cut"])
def _who_cuts_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StreamWorld, "tasks_cut_blocks", request.param)


# --- what closes a segment --------------------------------------------------------------------------------------------


def test_parts_flow_while_the_segment_fills_and_only_the_last_is_missing_at_its_end() -> None:
    world = StreamWorld(streaming(max_offload_segment_size_in_bytes=4000))
    for number in range(20):
        world.append(payload(number))
        world.advance()
        world.run()
    world.advance()
    assert world.covered() == []
    upload = world.stream.uploads[0]
    assert upload.record.upload_id
    assert len(upload.record.done) == len(upload.record.planned) >= 2
    world.stream.close_at(world.ledger.layout.last)
    assert world.advance() == 1
    world.run()
    world.advance()
    assert world.covered() == ["1:19"]
    assert world.is_idle
    assert held(world) == world.entries()


def test_a_segment_closes_by_size_exactly_where_its_frames_fill_it() -> None:
    world = StreamWorld(streaming(max_offload_segment_size_in_bytes=1000))
    world.append(*map(payload, range(60)))
    world.settle()
    sizes = [
        sum(len(entry) + 12 for entry in world.entries()[int(begin) : int(end) + 1])
        for begin, end in zip(
            [0, *(int(name.split(":")[1]) + 1 for name in world.covered())],
            (name.split(":")[1] for name in world.covered()),
            strict=False,
        )
    ]
    entry = len(world.entries()[0]) + 12
    assert all(1000 - entry < size <= 1000 for size in sizes)
    assert held(world) == world.entries()[: len(held(world))]


def test_a_segment_closes_when_its_first_entry_is_old_enough_and_none_begins_without_entries() -> None:
    world = StreamWorld()
    world.settle()
    assert world.segments() == []
    world.append(b"a")
    world.settle()
    world.world.clock.advance(599)
    world.settle()
    assert world.covered() == []
    world.world.clock.advance(1)
    assert world.stream.is_due(world.world.clock.now_ms())
    world.settle()
    assert world.covered() == ["1:0"]
    world.world.clock.advance(10_000)
    assert not world.stream.is_due(world.world.clock.now_ms())
    world.settle()
    assert len(world.segments()) == 1


def test_a_small_segment_is_one_put_and_its_index() -> None:
    world = StreamWorld()
    world.append(b"a", b"b")
    world.stream.close_at(world.ledger.layout.last)
    world.settle()
    assert len(list(world.store.list())) == 2
    assert world.world.metadata.children(world.paths.uploads(world.ledger.name)) == ()


def test_a_segment_spans_ledgers_and_a_ledger_spans_segments() -> None:
    world = StreamWorld(streaming(max_offload_segment_size_in_bytes=700))
    for number in range(40):
        world.append(payload(number))
        if number % 7 == 6:
            world.ledger.roll()
        if number % 3 == 0:
            world.advance()
            world.run()
    world.stream.close_at(world.ledger.layout.last)
    world.settle()
    assert held(world) == world.entries()
    by_ledger = [name.split(":")[0] for name, _, _ in world.segments()]
    by_uuid = [uuid for _, uuid, _ in world.segments()]
    assert len(set(by_ledger)) < len(by_ledger)
    assert len(set(by_uuid)) < len(by_uuid)
    for row in world.ledger.info.ledgerInfo:
        ends = [item.endEntryId for item in row.offloadContext.offloadSegment]
        assert ends == sorted(ends)
        assert not row.offloadContext.complete


def test_the_record_has_the_content_and_location_of_the_object() -> None:
    world = StreamWorld()
    world.append(b"a", b"b")
    world.ledger.roll()
    world.append(b"c")
    world.stream.close_at(world.ledger.layout.last)
    world.settle()
    path = world.paths.segments(world.ledger.name)
    (name,) = world.world.metadata.children(path)
    node = world.world.metadata.get(f"{path}/{name}")
    assert node is not None
    record = proto.SegmentRecord.FromString(node.value)
    assert (record.entries, record.blocks) == (3, 2)
    assert records.position_of(record.begin) == Position(1, 0)
    assert records.position_of(record.end) == Position(2, 0)
    assert record.location.bucket == LOCATION.bucket
    assert record.bytes == world.store.head(name).size_bytes
    index = decode_index(world.store.get(name + INDEX_SUFFIX))
    assert [group.ledger_id for group in index.groups] == [1, 2]


# --- history ----------------------------------------------------------------------------------------------------------


def test_history_runs_in_parallel_and_is_committed_in_order_before_the_live_segment_begins() -> None:
    world = StreamWorld(streaming(streaming_offload_enabled=False, max_offload_segment_size_in_bytes=400))
    for number in range(30):
        world.append(payload(number))
        if number % 5 == 4:
            world.ledger.roll()
    world.settle()
    assert world.segments() == []
    world.change(streaming_offload_enabled=True)
    world.advance()
    assert len(world.stream.uploads) == MAX_ASSIGNED
    assert all(upload.end is not None for upload in world.stream.uploads)
    last_first = world.tasks[::-1]
    world.tasks = last_first[: len(last_first) // 2]
    world.run()
    world.advance()
    assert world.covered() == []
    world.tasks = last_first[len(last_first) // 2 :] + world.tasks
    world.settle()
    assert held(world) == world.entries()[: len(held(world))]
    assert sum(upload.end is None for upload in world.stream.uploads) <= 1


def test_ledgers_with_an_object_of_their_own_are_left_as_they_are() -> None:
    world = StreamWorld(streaming(streaming_offload_enabled=False))
    for number in range(3):
        world.append(payload(number))
        world.ledger.roll()
    world.ledger.update(lambda info: setattr(info.ledgerInfo[1].offloadContext, "complete", True))
    world.change(streaming_offload_enabled=True)
    world.stream.close_at(world.ledger.layout.last)
    world.settle()
    assert world.covered() == ["1:0", "3:0"]
    assert not world.ledger.info.ledgerInfo[1].offloadContext.offloadSegment


def test_a_failed_attempt_at_a_whole_ledger_is_given_up_for_segments() -> None:
    world = StreamWorld()
    world.append(b"a")
    world.ledger.update(lambda info: setattr(info.ledgerInfo[0].offloadContext, "uidMsb", 7))
    world.stream.close_at(world.ledger.layout.last)
    world.settle()
    assert world.ledgers_given_up == [1]
    assert world.ledger.info.ledgerInfo[0].offloadContext.uidMsb != 7
    assert world.covered() == ["1:0"]


# --- switching --------------------------------------------------------------------------------------------------------


def test_switching_back_ends_the_last_segment_with_its_ledger() -> None:
    world = StreamWorld()
    world.append(b"a", b"b")
    world.settle()
    world.change(streaming_offload_enabled=False)
    world.settle()
    assert world.covered() == ["1:1"]
    assert world.is_idle
    assert world.ledger.writing_to == 2
    world.append(b"c")
    world.settle()
    assert world.covered() == ["1:1"]
    world.change(streaming_offload_enabled=True)
    world.settle()
    world.stream.close_at(world.ledger.layout.last)
    world.settle()
    assert world.covered() == ["1:1", "2:0"]


def test_switching_back_finishes_a_ledger_that_is_partly_in_segments() -> None:
    world = StreamWorld()
    world.append(b"a")
    world.stream.close_at(world.ledger.layout.last)
    world.settle()
    world.append(b"b")
    world.change(streaming_offload_enabled=False)
    world.settle()
    assert world.covered() == ["1:0", "1:1"]
    assert world.ledger.writing_to == 2


# --- failures ---------------------------------------------------------------------------------------------------------


def test_a_failed_segment_is_resumed_from_its_parts_and_nothing_begins_before() -> None:
    world = StreamWorld(streaming(max_offload_segment_size_in_bytes=10_000))
    world.append(*map(payload, range(30)))
    world.advance()
    world.world.clock.advance(3600)
    assert len(world.tasks) >= 2
    world.run(1)
    rule = FaultRule(Fault.ERROR_BEFORE, frozenset({"upload_part"}), times=None)
    good, world.store = world.store, FaultyStore(world.store, [rule])
    world.run()
    assert world.advance() == 0
    assert type(world.stream.error) is StoreUnavailable
    (upload,) = world.stream.uploads
    assert upload.record.attempts == 1
    assert len(upload.record.done) == 1
    world.world.clock.advance(0.1)
    assert not world.stream.is_due(world.world.clock.now_ms())
    inspects = world.stream.next_poll_ms
    assert inspects is not None
    assert inspects > world.world.clock.now_ms(), "not before it may be tried again, though the segment is old"
    world.store = good
    world.world.clock.advance(60)
    world.stream.close_at(world.ledger.layout.last)
    world.settle()
    assert world.is_idle
    assert not world.stream.error
    assert held(world) == world.entries()


def test_tasks_that_were_found_before_a_failure_go_out_all_the_same() -> None:
    world = StreamWorld(streaming(streaming_offload_enabled=False, max_offload_segment_size_in_bytes=400))
    world.append(*map(payload, range(40)))
    world.ledger.roll()
    world.change(streaming_offload_enabled=True)
    assert world.advance() == MAX_ASSIGNED, "one for each segment"
    world.run(2)
    rule = FaultRule(Fault.ERROR_BEFORE, frozenset({"put"}), key="*-index", skip=1)
    world.store = FaultyStore(world.store, [rule])
    assert world.advance() == 1, "the first was committed and made room, the second failed"
    world.world.clock.advance(60)
    world.stream.close_at(world.ledger.layout.last)
    world.settle()
    assert world.is_idle
    assert held(world) == world.entries()


def test_a_close_of_unknown_outcome_counts_though_another_would_be_planned_now() -> None:
    faulty = FaultyMetadataStore(MemoryMetadataStore())
    config = streaming(max_offload_segment_size_in_bytes=10_000)
    world = StreamWorld(config, World(config, faulty))
    world.append(*map(payload, range(20)))
    world.settle()
    world.change(max_offload_segment_size_in_bytes=1500)
    faulty.set_rules(
        [
            FaultRule(Fault.ERROR_AFTER, frozenset({"put"}), "*/uploads/*"),
            FaultRule(Fault.ERROR_BEFORE, frozenset({"get"}), "*/uploads/*"),
        ]
    )
    world.advance()
    assert len(faulty.injected) == 2
    assert world.stream.uploads[0].end is None, "as far as is known"
    world.change(max_offload_segment_size_in_bytes=10_000)
    world.world.clock.advance(60)
    world.stream.close_at(world.ledger.layout.last)
    world.settle()
    assert world.is_idle
    assert held(world) == world.entries()


def test_an_assignment_of_unknown_outcome_counts() -> None:
    faulty = FaultyMetadataStore(MemoryMetadataStore())
    config = streaming(max_offload_segment_size_in_bytes=1000)
    world = StreamWorld(config, World(config, faulty))
    world.append(*map(payload, range(20)))
    faulty.set_rules(
        [
            FaultRule(Fault.ERROR_AFTER, frozenset({"put"}), "/managed-ledgers/*"),
            FaultRule(Fault.ERROR_BEFORE, frozenset({"get"}), "/managed-ledgers/*"),
        ]
    )
    world.advance()
    assert len(faulty.injected) == 2
    world.world.clock.advance(60)
    world.stream.close_at(world.ledger.layout.last)
    world.settle()
    world.crash()
    world.settle()
    assert world.is_idle
    assert held(world) == world.entries()


class LaggingStore(StoreWrapper):
    """A store whose listings show no upload yet."""

    def list_uploads(self, prefix: str = "") -> tuple[Upload, ...]:
        super().list_uploads(prefix)
        return ()


@pytest.mark.parametrize("crash", [False, True])
def test_an_unrecorded_upload_is_aborted_though_a_listing_does_not_show_it_yet(*, crash: bool) -> None:
    world = StreamWorld(streaming(max_offload_segment_size_in_bytes=10_000))
    good = world.store
    world.store = FaultyStore(LaggingStore(good), [FaultRule(Fault.ERROR_AFTER, frozenset({"create_upload"}))])
    while not good.list_uploads():  # exactly one part is full
        world.append(payload(0))
        world.advance()
    (unheard_of,) = good.list_uploads()
    if crash:
        world.crash()
    world.world.clock.advance(60)
    world.change(max_offload_segment_size_in_bytes=1)  # it closes where it is planned to
    world.settle()
    assert held(world) == world.entries()
    assert good.list_uploads() == (unheard_of,)
    assert UUID(unheard_of.key) in world.given_up, "it is aborted once a listing shows it"


def test_a_store_that_does_not_answer_costs_a_segment_no_uuid_with_every_try() -> None:
    world = StreamWorld(streaming(max_offload_segment_size_in_bytes=10_000))
    world.store = FaultyStore(world.store, [FaultRule(Fault.ERROR_BEFORE, times=None)])
    world.append(*map(payload, range(30)))
    for _ in range(5):
        world.advance()
        world.world.clock.advance(600)
    assert world.given_up == {}


def uploaded(world: StreamWorld, *entries: bytes) -> Upload:
    """Have all parts of a segment uploaded, so that the next step completes it; returns its upload."""
    world.append(*entries)
    world.advance()
    world.run()
    world.stream.close_at(world.ledger.layout.last)
    world.advance()
    world.run()
    (upload,) = world.store.list_uploads()
    return upload


def test_a_commit_of_unknown_outcome_gives_nothing_up_and_is_settled_later() -> None:
    """What the list may name already must not be deleted."""
    for fault in (Fault.LOST, Fault.ERROR_AFTER):
        faulty = FaultyMetadataStore(MemoryMetadataStore())
        config = streaming(max_offload_segment_size_in_bytes=10_000)
        world = StreamWorld(config, World(config, faulty))
        key = uploaded(world, *map(payload, range(20))).key
        path = "/managed-ledgers/*"
        rules = [
            FaultRule(fault, frozenset({"put"}), path),
            FaultRule(Fault.LOST, frozenset({"put"}), path, times=None),
            FaultRule(Fault.ERROR_BEFORE, frozenset({"get"}), path, times=fault is Fault.ERROR_AFTER),
        ]
        faulty.set_rules(rules)
        world.advance()
        assert world.stream.error is not None
        assert world.given_up == {}
        assert [found.key for found in world.store.list()] == [key, key + INDEX_SUFFIX]
        assert world.world.metadata.children(world.paths.uploads(world.ledger.name)) == (key,)
        faulty.set_rules(())
        world.world.clock.advance(60)
        world.settle()
        assert world.covered() == ["1:19"]
        assert world.given_up == {}
        assert held(world) == world.entries()


def test_an_upload_record_is_deleted_only_after_the_pending_delete_is_recorded() -> None:
    world = StreamWorld()
    world.append(b"a")
    world.settle()
    (upload,) = world.stream.uploads
    path = world.paths.upload(world.ledger.name, upload.uuid)

    def unavailable(*_: object) -> None:
        raise MetadataUnavailable("no connection")

    node = UploadRecordNode(world.world.metadata, path, world.ledger.owner_epoch)
    assert node.take_over(world.ledger.check_owner)
    with pytest.raises(MetadataUnavailable):
        SegmentUpload(replace(world.environment(world.ledger), give_up=unavailable), node).give_up("for a test")
    assert world.world.metadata.get(path) is not None


def test_a_part_that_the_store_holds_with_other_bytes_is_uploaded_again() -> None:
    world = StreamWorld(streaming(max_offload_segment_size_in_bytes=10_000))
    upload = uploaded(world, *map(payload, range(31)))
    first, *others = world.store.list_parts(upload)
    assert others
    world.store.upload_part(upload, first.number, b"x" * first.size_bytes)
    world.advance()
    assert type(world.stream.error) is PartMismatch
    world.world.clock.advance(60)
    assert world.advance() == 1
    assert [task.number for task in world.tasks] == [first.number]
    world.settle()
    assert world.covered() == ["1:30"]
    assert held(world) == world.entries()


def test_an_object_of_another_instance_is_not_taken_for_our_completed_upload() -> None:
    world = StreamWorld(streaming(max_offload_segment_size_in_bytes=10_000))
    upload = uploaded(world, *map(payload, range(31)))
    size = sum(part.size_bytes for part in world.store.list_parts(upload))
    world.store.abort_upload(upload)
    world.store.put(upload.key, b"x" * size, metadata={"afterglowinstance": "them"})
    world.advance()
    assert world.covered() == []
    world.world.clock.advance(60)
    world.settle()
    assert world.covered() == ["1:30"]
    assert held(world) == world.entries()


def test_beside_an_object_of_another_length_no_index_is_put() -> None:
    world = StreamWorld(streaming(max_offload_segment_size_in_bytes=10_000))
    upload = uploaded(world, *map(payload, range(31)))
    size = sum(part.size_bytes for part in world.store.list_parts(upload))
    world.store.abort_upload(upload)
    world.store.put(upload.key, b"x" * (size - 1), metadata={"afterglowinstance": "us"})
    world.advance()
    assert type(world.stream.error) is WrongLength
    assert world.covered() == []
    assert [found.key for found in world.store.list()] == [upload.key]


def test_the_entries_of_a_part_are_found_again_in_every_ledger_that_it_touches() -> None:
    world = StreamWorld(streaming(streaming_offload_enabled=False))
    for _ in range(3):
        world.append(b"a", b"b", b"c")
        world.ledger.roll()
    run = range_between(world.ledger.layout, Position(1, 1), Position(3, 1))
    assert [(each.ledger_id, each.first, each.last) for each in run.ranges] == [(1, 1, 2), (2, 0, 2), (3, 0, 1)]


def test_a_segment_whose_index_another_wrote_is_not_committed() -> None:
    world = StreamWorld(streaming(max_offload_segment_size_in_bytes=10_000))
    upload = uploaded(world, *map(payload, range(31)))
    world.store.put(upload.key + INDEX_SUFFIX, b"not ours")
    world.advance()
    assert type(world.stream.error) is CorruptIndex
    assert world.covered() == []
    assert world.given_up == {}


def test_a_resumed_segment_is_cut_by_the_sizes_that_it_began_with() -> None:
    """A reader of its index may rely on one size, and its parts are restored from what is recorded."""
    config = streaming(max_offload_segment_size_in_bytes=10_000, broker_entry_metadata_interceptors=())
    world = StreamWorld(config)
    entry = b"x" * 31
    frame_bytes = len(entry) + 12
    room_bytes = world.sizes.block_bytes - 128  # beside a block's header
    assert (room_bytes + 1) % frame_bytes == 0, "a block that is longer by a byte holds one entry more"
    world.append(*[entry] * 30)
    world.advance()
    world.run(1)
    world.advance()
    assert world.stream.uploads[0].record.done
    world.sizes = Sizes(1000, 2000)
    world.crash()
    world.append(*[entry] * 30)
    world.settle()
    world.stream.close_at(world.ledger.layout.last)
    world.settle()
    (key, _) = [found.key for found in world.store.list()]
    groups = decode_index(world.store.get(key + INDEX_SUFFIX)).groups
    assert [group.ledger_id for group in groups] == [1, 2]
    for group in groups:
        assert group.statistics is not None
        assert max(block.entries for block in group.statistics) == room_bytes // frame_bytes


def test_an_upload_that_the_store_has_lost_starts_again_under_another_name() -> None:
    world = StreamWorld(streaming(max_offload_segment_size_in_bytes=10_000))
    world.append(*map(payload, range(30)))
    world.advance()
    world.run(1)
    lost: tuple[Upload, ...] = world.store.list_uploads()
    for upload in lost:
        world.store.abort_upload(upload)
    world.run()
    world.advance()
    assert [str(uuid) for uuid in world.given_up] == [upload.key for upload in lost]
    world.world.clock.advance(60)
    world.stream.close_at(world.ledger.layout.last)
    world.settle()
    assert held(world) == world.entries()
    assert world.store.list_uploads() == ()


def test_uploads_lost_together_while_metadata_is_unavailable_cost_no_other_segment_its_results() -> None:
    metadata = FaultyMetadataStore(MemoryMetadataStore())
    config = streaming(streaming_offload_enabled=False, max_offload_segment_size_in_bytes=1200)
    world = StreamWorld(config, World(config, metadata))
    world.append(*map(payload, range(60)))
    world.ledger.roll()
    world.change(streaming_offload_enabled=True)
    world.advance()
    begun = world.stream.uploads
    assert len(begun) == MAX_ASSIGNED
    first_two = {upload.key for upload in begun[:2]}
    for upload in world.store.list_uploads():
        if upload.key in first_two:
            world.store.abort_upload(upload)
    world.run()
    out = FaultRule(Fault.ERROR_BEFORE, times=None)
    metadata.set_rules([out])
    world.advance()
    metadata.set_rules(())
    assert [upload.running_parts for upload in begun] == [0] * MAX_ASSIGNED, "no task runs any more"
    for _ in range(3):  # one lost upload is found at a time
        world.world.clock.advance(60)
        world.settle()
    world.stream.close_at(world.ledger.layout.last)
    world.settle()
    assert world.is_idle
    assert held(world) == world.entries()
    assert world.store.list_uploads() == ()


def test_a_zombie_changes_nothing_once_another_owner_has_taken_over() -> None:
    world = StreamWorld(streaming(max_offload_segment_size_in_bytes=10_000))
    world.append(*map(payload, range(30)))
    world.advance()
    zombie, tasks = world.stream, world.tasks
    world.crash()
    world.settle()
    owner, world.stream, world.tasks = world.stream, zombie, tasks
    world.run()
    with pytest.raises(Fenced):
        zombie.advance()
    world.stream, world.tasks = owner, []
    world.stream.close_at(world.ledger.layout.last)
    world.settle()
    assert held(world) == world.entries()
    assert world.given_up == {}


def test_an_owner_that_is_fenced_right_before_it_creates_its_upload_creates_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = StreamWorld(streaming(max_offload_segment_size_in_bytes=10_000))
    world.append(*map(payload, range(30)))
    zombie = world.stream
    create = SegmentUpload._create_upload
    of_the_owner: list[Upload] = []

    def create_late(upload: SegmentUpload) -> None:
        monkeypatch.undo()
        world.world.boot()  # another process, over the same hot log
        world.open()
        world.advance()
        of_the_owner.extend(world.store.list_uploads())
        create(upload)

    monkeypatch.setattr(SegmentUpload, "_create_upload", create_late)
    with pytest.raises(Fenced):
        zombie.advance()
    assert len(of_the_owner) == 1
    assert list(world.store.list_uploads()) == of_the_owner


def test_a_committed_segment_whose_record_stays_for_a_while_is_not_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = StreamWorld()
    world.append(*map(payload, range(3)))
    world.stream.close_at(world.ledger.layout.last)

    def fail(_node: UploadRecordNode) -> None:
        raise MetadataUnavailable("not now")

    monkeypatch.setattr(UploadRecordNode, "delete", fail)
    world.advance()
    world.run()
    world.advance()
    monkeypatch.undo()
    assert isinstance(world.stream.error, MetadataUnavailable)
    (key,) = (found.key for found in world.store.list() if found.key.endswith(INDEX_SUFFIX))
    world.store.delete([key])  # as after a trim, or a roll-back
    world.world.clock.advance(60)
    world.advance()
    assert world.is_idle
    assert key not in [found.key for found in world.store.list()]


class LostAnswer:
    """A store whose next deletion of a node takes effect and is not answered, nor is the read that follows it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, metadata: MetadataStore) -> None:
        self._patch, self._metadata, self._delete = monkeypatch, metadata, metadata.delete
        monkeypatch.setattr(metadata, "delete", self._lose)

    def _lose(self, path: str, version: int) -> None:
        self._delete(path, version)
        self._patch.undo()
        self._patch.setattr(self._metadata, "get", self._fail)
        raise CommitUnknown(path)

    def _fail(self, path: str) -> None:
        self._patch.undo()
        raise MetadataUnavailable(path)


def test_a_record_whose_deletion_had_an_unknown_outcome_is_not_taken_for_another_owners_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Promises 3 and 9: the rightful owner goes on after a commit."""
    world = StreamWorld()
    world.append(*map(payload, range(3)))
    world.stream.close_at(world.ledger.layout.last)
    world.advance()
    world.run()
    LostAnswer(monkeypatch, world.world.metadata)
    world.advance()
    assert isinstance(world.stream.error, MetadataUnavailable)
    world.world.clock.advance(60)
    world.append(payload(3))
    world.stream.close_at(world.ledger.layout.last)
    world.settle()
    assert world.is_idle
    assert all(entry.endswith(payload(number)) for number, entry in enumerate(world.entries()))
    assert len(world.entries()) == 4


def test_a_segment_that_was_given_up_is_not_finished_again_after_an_unknown_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Promises 3, 4 and 9: what is deleted as given up is not written again."""
    world = StreamWorld()
    world.append(*map(payload, range(3)))
    world.stream.close_at(world.ledger.layout.last)
    world.advance()
    world.run()

    def leave(*_args: object, **_kwargs: object) -> None:
        monkeypatch.undo()
        LostAnswer(monkeypatch, world.world.metadata)
        raise OffloadConflict("its ledgers have left the list")

    monkeypatch.setattr(edits, "commit_segment", leave)
    world.advance()
    assert isinstance(world.stream.error, MetadataUnavailable)
    written = {found.key for found in world.store.list()}
    world.store.delete(sorted(written))  # as the intent to delete says
    world.world.clock.advance(60)
    world.advance()
    assert not written & {found.key for found in world.store.list()}


def script(world: StreamWorld) -> None:
    """A life with parts, several ledgers, closing by size, by hand and by a switch back."""
    for number in range(24):
        world.append(payload(number))
        if number == 9:
            world.ledger.roll()
        if number % 4 == 3:
            world.advance()
            world.run()
    world.stream.close_at(world.ledger.layout.last)
    world.settle()
    world.append(payload(24))
    world.settle()
    world.change(streaming_offload_enabled=False)
    world.settle()


def test_after_a_crash_at_any_effect_the_next_owner_ends_with_every_entry_once() -> None:
    def build(point: CrashPoint) -> StreamWorld:
        metadata = CrashingMetadataStore(World().metadata)
        metadata.before = point
        config = streaming(max_offload_segment_size_in_bytes=1400)
        world = StreamWorld(config, World(config, metadata))
        inner = world.store
        for name in ("put", "create_upload", "upload_part", "complete_upload", "abort_upload", "delete"):
            method = getattr(inner, name)

            def counted(*args: object, _name: str = name, _method: object = method, **kwargs: object) -> object:
                point(_name)
                return _method(*args, **kwargs)  # type: ignore[operator]

            setattr(inner, name, counted)
        return world

    count = CrashPoint()
    script(build(count))
    assert len(count.effects) > 50
    for at in range(len(count.effects)):
        point = CrashPoint()
        world = build(point)
        point._at = at
        try:
            script(world)
        except Crashed:
            point._at = None
            world.crash()
            world.change(streaming_offload_enabled=True)
            world.stream.close_at(world.ledger.layout.last)
            world.settle()
        found = held(world)
        assert found == world.entries(), f"crash at {at}: {count.effects[at]}"
        assert world.world.metadata.children(world.paths.uploads(world.ledger.name)) == ()
        named = {uuid for _, uuid, _ in world.segments()}
        for info in world.store.list():
            assert info.key[:8] in named or any(str(uuid) == info.key[:36] for uuid in world.given_up)


@pytest.mark.parametrize("seed", range(20))
def test_any_mix_of_appends_crashes_and_changes_loses_and_repeats_nothing(seed: int) -> None:
    choose = random.Random(seed)
    world = StreamWorld(streaming(max_offload_segment_size_in_bytes=choose.choice([100, 700, 3000])))
    number = 0
    for _ in range(120):
        match choose.randrange(9):
            case 0 | 1 | 2:
                count = choose.randrange(1, 6)
                world.append(*map(payload, range(number, number + count)))
                number += count
            case 3 | 4:
                world.advance()
            case 5:
                world.run(choose.randrange(4))
            case 6:
                world.world.clock.advance(choose.choice([1, 100, 700]))
            case 7:
                if choose.random() < 0.5:
                    world.crash()
                elif world.ledger.layout.total_entries:
                    world.ledger.roll()
            case _:
                world.change(streaming_offload_enabled=choose.random() < 0.7)
    world.change(streaming_offload_enabled=True)
    world.tasks, tasks = [], world.tasks
    del tasks
    world.crash()
    if world.ledger.layout.total_entries:
        world.stream.close_at(world.ledger.layout.last)
    world.settle()
    assert held(world) == world.entries(), f"seed {seed}"
    assert len(world.entries()) == number


def test_polling_an_idle_stream_compares_a_few_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    world = StreamWorld()
    world.append(b"a")
    world.settle()
    monkeypatch.setattr(TopicStream, "_uncovered", None)
    assert not world.stream.is_due(world.world.clock.now_ms())


@pytest.mark.parametrize("size_bytes", range(50, 300, 25))
def test_entries_that_fill_a_part_within_a_block_are_not_due_until_more_arrive(size_bytes: int) -> None:
    world = StreamWorld(streaming(max_offload_segment_size_in_bytes=10_000))
    for _ in range(20):
        world.append(bytes(size_bytes))
        world.settle()
        assert not world.stream.is_due(world.world.clock.now_ms())
