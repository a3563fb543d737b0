from __future__ import annotations

import random
import threading
from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import pytest
from tests.support.faults import Fault, FaultRule, FaultyStore
from tests.support.ledgers import settings
from tests.support.streams import StreamWorld, streaming

from afterglow.errors import CorruptBlock, HandleClosed, InvalidPosition, ObjectExists, StoreUnavailable
from afterglow.format.blocks import HEADER_BYTES
from afterglow.format.frames import FRAME_BYTES, frame_entries, scan_frames
from afterglow.format.index import decode_index
from afterglow.format.objects import INDEX_SUFFIX
from afterglow.format.position import Position
from afterglow.offload.block_assembler import BlockAssembler
from afterglow.offload.block_handle import BlockHandle, SegmentLimits
from afterglow.offload.block_offloader import BlockOffloader
from afterglow.offload.offloader import OffloadResult
from afterglow.offload.segments.part_planner import Sizes, plan_parts
from afterglow.offload.segments.uncovered import EntryRange, PositionRange
from afterglow.read.inspect import inspect_object
from afterglow.storage.memory import MemoryStore
from afterglow.tier.locations import MEMORY, TierLocation, Tiers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from afterglow.storage.store import Data, ObjectStore, Part, Upload

UUID_1 = UUID(int=1)
BEGIN = Position(3, 5)
SMALL = Sizes(256, 512)
METADATA: Mapping[str, str] = {"role": "data", "afterglowinstance": "us"}


def handle(
    store: ObjectStore,
    *,
    uuid: UUID = UUID_1,
    sizes: Sizes = SMALL,
    max_bytes: int = 1 << 20,
    buffer_bytes: int = 1 << 20,
    uploads: int = 2,
) -> BlockHandle:
    limits = SegmentLimits(sizes=sizes, max_bytes=max_bytes, buffer_bytes=buffer_bytes, uploads=uploads)
    return BlockHandle(store, uuid, limits=limits, data_metadata=METADATA, index_metadata={**METADATA, "role": "index"})


def held(store: ObjectStore, key: str) -> list[tuple[int | None, int, bytes]]:
    inspection = inspect_object(store, key)
    found = [(ledger_id, entry_id, bytes(data)) for ledger_id, entry_id, data in inspection.entries()]
    assert not inspection.damage
    return found


class GatedStore(MemoryStore):
    """Uploads no part before the gate opens."""

    def __init__(self) -> None:
        super().__init__(f"gated-{uuid4()}")
        self.gate = threading.Event()
        self.uploading = threading.Semaphore(0)

    def upload_part(self, upload: Upload, number: int, data: Data) -> Part:
        self.uploading.release()
        assert self.gate.wait(30)
        return super().upload_part(upload, number, data)


# --- the same bytes as the server's own segments ----------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_the_same_entries_give_the_same_object_and_index_as_tasks_write(seed: int) -> None:
    choose = random.Random(seed)
    world = StreamWorld(streaming(max_offload_segment_size_in_bytes=1 << 20))
    for _ in range(choose.randrange(1, 5)):
        world.append(
            *(
                choose.randbytes(choose.choice([0, 20, 52, 52, 115, 116, 117, 700]))
                for _ in range(choose.randrange(1, 25))
            )
        )
        world.ledger.roll()
    world.stream.close_at(world.ledger.layout.last)
    world.settle()
    (uuid,) = {info.key.removesuffix(INDEX_SUFFIX) for info in world.store.list()}

    store = MemoryStore(f"handle-{seed}-{uuid4()}")
    spans = list(world.ledger.layout.ranges(world.ledger.layout.first))
    with handle(store, uuid=UUID(uuid), sizes=world.sizes) as mine:
        for span in spans:
            hot = world.world.hot.open(span.ledger_id)
            for first in range(0, span.last + 1, 4):
                last = min(first + 3, span.last)
                if choose.random() < 0.5:
                    framed = frame_entries(hot.read(first, last), first)
                    assert (
                        mine.offer_range(framed, Position(span.ledger_id, first), last - first + 1) == last - first + 1
                    )
                else:
                    for entry_id, entry in enumerate(hot.read(first, last), first):
                        assert mine.offer_entry(span.ledger_id, entry_id, entry)
        result = mine.result()

    assert result == OffloadResult(UUID(uuid), Position(spans[0].ledger_id, 0), world.ledger.layout.last)
    for key in (uuid, uuid + INDEX_SUFFIX):
        assert bytes(store.get(key)) == bytes(world.store.get(key))
        assert store.head(key).metadata == world.store.head(key).metadata
    assert store.list_uploads() == ()


@pytest.mark.parametrize("seed", range(30))
def test_blocks_and_parts_are_cut_as_they_are_planned_where_sizes_are_known(seed: int) -> None:
    choose = random.Random(seed)
    entries = {
        ledger_id: [bytes(choose.choice([0, 20, 52, 115, 116, 117, 700])) for _ in range(choose.randrange(1, 30))]
        for ledger_id in range(choose.randrange(1, 5))
    }
    framed = {ledger_id: frame_entries(found) for ledger_id, found in entries.items()}
    offsets = {ledger_id: scan_frames(data, 0).offsets for ledger_id, data in framed.items()}
    run = PositionRange(
        tuple(EntryRange(at, 0, len(found) - 1, closed=True) for at, found in entries.items()), growing=False
    )
    planned = plan_parts(
        run, lambda at, first, last: offsets[at][first : last + 2], SMALL, number=1, offset=0, closing=True
    )

    assembler = BlockAssembler(SMALL.block_bytes, SMALL.part_bytes)
    parts: list[bytearray] = []
    for ledger_id, data in framed.items():
        at = 0
        while at < len(entries[ledger_id]):
            stop = min(at + choose.choice([1, 1, 2, 9]), len(entries[ledger_id]))
            parts += assembler.add(ledger_id, at, memoryview(data), offsets[ledger_id][at : stop + 1])
            at = stop
    if last := assembler.close():
        parts.append(last)

    assert [len(part) for part in parts] == [part.size_bytes for part in planned]
    assert [plan.header for _, plans, _ in assembler.ledgers() for plan in plans] == [
        plan.header for part in planned for plan in part.plans
    ]


# --- entries ----------------------------------------------------------------------------------------------------------


def test_what_was_offered_is_in_the_object_over_several_ledgers() -> None:
    store = MemoryStore(f"ledgers-{uuid4()}")
    with handle(store) as segment:
        assert segment.last_offered() is None
        assert segment.offer_entry(3, 5, b"a")
        assert segment.offer_entry(3, 6, b"")
        assert segment.offer_range(frame_entries([b"c", b"d"]), Position(7, 0), 2) == 2
        assert segment.last_offered() == Position(7, 1)
        assert segment.result() == OffloadResult(UUID_1, BEGIN, Position(7, 1))
        assert segment.result() == OffloadResult(UUID_1, BEGIN, Position(7, 1))
    assert held(store, segment.key) == [(3, 5, b"a"), (3, 6, b""), (7, 0, b"c"), (7, 1, b"d")]


@pytest.mark.parametrize(
    ("taken", "offered"),
    [
        ([Position(3, 5)], Position(3, 5)),
        ([Position(3, 5)], Position(3, 7)),
        ([Position(3, 5)], Position(4, 1)),
        ([Position(3, 5)], Position(2, 0)),
        ([Position(3, 5), Position(4, 0)], Position(3, 6)),
    ],
)
def test_an_entry_that_does_not_follow_the_last_one_is_refused_and_changes_nothing(
    taken: Sequence[Position], offered: Position
) -> None:
    store = MemoryStore(f"order-{uuid4()}")
    with handle(store) as segment:
        for position in taken:
            assert segment.offer_entry(position.ledger_id, position.entry_id, b"x")
        before = segment.last_offered()
        with pytest.raises(InvalidPosition, match=f"offered entry {offered}"):
            segment.offer_entry(offered.ledger_id, offered.entry_id, b"y")
        with pytest.raises(InvalidPosition):
            segment.offer_range(frame_entries([b"y"], offered.entry_id), offered, 1)
        assert segment.last_offered() == before


def test_a_range_that_is_not_the_frames_of_its_entries_is_refused() -> None:
    with handle(MemoryStore(f"range-{uuid4()}")) as segment:
        framed = frame_entries([b"a", b"b"], 5)
        with pytest.raises(CorruptBlock, match="has 2 entries, not 3"):
            segment.offer_range(framed, BEGIN, 3)
        with pytest.raises(CorruptBlock):
            segment.offer_range(framed[:-1], BEGIN, 2)
        with pytest.raises(CorruptBlock):
            segment.offer_range(frame_entries([b"a"], 6), BEGIN, 1)
        assert segment.last_offered() is None


def test_there_is_no_segment_without_entries() -> None:
    store = MemoryStore(f"empty-{uuid4()}")
    with handle(store) as segment, pytest.raises(InvalidPosition, match="has no entry: offer one"):
        segment.result()
    assert list(store.list()) == []


# --- how much ---------------------------------------------------------------------------------------------------------


def test_a_segment_takes_what_its_size_allows_and_a_single_entry_whatever_its_size() -> None:
    store = MemoryStore(f"size-{uuid4()}")
    with handle(store, max_bytes=3 * (10 + FRAME_BYTES)) as segment:
        assert segment.offer_range(frame_entries([b"0123456789"] * 5, 5), BEGIN, 5) == 3
        assert not segment.can_offer(10)
        assert not segment.can_hold(0)
        assert not segment.offer_entry(3, 8, b"0123456789")
        assert segment.result().end == Position(3, 7)
    with handle(store, max_bytes=100, uuid=UUID(int=2)) as segment:
        assert segment.can_offer(1000)
        assert segment.offer_entry(3, 5, bytes(1000))
        assert not segment.can_offer(0)
        assert segment.result().end == BEGIN
    assert held(store, segment.key) == [(3, 5, bytes(1000))]


def test_parts_are_uploaded_while_entries_come_and_the_buffer_is_bounded() -> None:
    store = GatedStore()
    with handle(store, buffer_bytes=2000) as segment:
        number = 5
        while segment.can_offer(100):
            assert segment.offer_entry(3, number, bytes(100))
            number += 1
        assert store.uploading.acquire(timeout=30)  # before the segment has ended
        assert number - 5 == 2000 // (HEADER_BYTES + FRAME_BYTES + 100)
        assert not segment.offer_entry(3, number, bytes(100))
        assert segment.offer_range(frame_entries([bytes(100)], number), Position(3, number), 1) == 0
        store.gate.set()
        while not segment.can_offer(100):
            segment.wait()
        assert segment.offer_entry(3, number, bytes(100))
        segment.result()
    assert [entry_id for _, entry_id, _ in held(store, segment.key)] == list(range(5, number + 1))


def test_an_entry_larger_than_the_buffer_is_accepted_once_no_upload_is_in_progress() -> None:
    store = GatedStore()
    with handle(store, buffer_bytes=1000) as segment:
        assert segment.offer_entry(3, 5, bytes(600))
        assert segment.offer_entry(3, 6, bytes(10))  # ends the block, which fills a part
        assert not segment.offer_entry(3, 7, bytes(5000))
        store.gate.set()
        while not segment.can_offer(5000):
            segment.wait()
        assert segment.offer_entry(3, 7, bytes(5000))
        segment.result()
    assert [len(data) for *_, data in held(store, segment.key)] == [600, 10, 5000]


def test_a_segment_of_one_part_needs_no_upload() -> None:
    store = FaultyStore(MemoryStore(f"one-{uuid4()}"), [FaultRule(Fault.ERROR_BEFORE, frozenset({"create_upload"}))])
    with handle(store) as segment:
        segment.offer_entry(3, 5, b"a")
        segment.result()
    assert len(list(store.list())) == 2


# --- the end ----------------------------------------------------------------------------------------------------------


def test_a_handle_that_has_ended_takes_nothing_more() -> None:
    store = MemoryStore(f"ended-{uuid4()}")
    segment = handle(store)
    segment.offer_entry(3, 5, b"a")
    segment.result()
    assert not segment.can_offer(0)
    with pytest.raises(HandleClosed):
        segment.offer_entry(3, 6, b"b")
    segment.abort()
    assert held(store, segment.key) == [(3, 5, b"a")]

    given_up = handle(store, uuid=UUID(int=2))
    given_up.offer_entry(3, 5, b"a")
    given_up.abort()
    with pytest.raises(HandleClosed):
        given_up.offer_range(frame_entries([b"b"], 6), Position(3, 6), 1)
    with pytest.raises(HandleClosed):
        given_up.result()


def test_what_is_aborted_leaves_neither_object_nor_upload() -> None:
    store = MemoryStore(f"aborted-{uuid4()}")
    with suppress(ZeroDivisionError), handle(store) as segment:
        offer(segment, 35)
        while not store.list_uploads():
            segment.wait()
        _ = 1 // 0  # the source fails
    assert store.list_uploads() == ()
    assert list(store.list()) == []


def test_a_part_that_fails_is_reported_at_the_next_offer_and_the_rest_can_be_cleaned_up() -> None:
    inner = MemoryStore(f"failing-{uuid4()}")
    store = FaultyStore(inner, [FaultRule(Fault.ERROR_BEFORE, frozenset({"upload_part"}), skip=1)])
    segment = handle(store, uploads=1)
    with pytest.raises(StoreUnavailable):
        offer(segment, 500)
    with pytest.raises(HandleClosed):
        segment.result()
    segment.abort()
    assert inner.list_uploads() == ()
    assert list(inner.list()) == []


def offer(segment: BlockHandle, count: int) -> None:
    """Entries from the first on, waiting for uploads that are under way."""
    for number in range(count):
        assert segment.offer_entry(3, 5 + number, bytes(100))
        segment.wait()


def test_a_failure_at_the_end_is_raised_and_what_may_be_whole_is_not_deleted() -> None:
    inner = MemoryStore(f"last-{uuid4()}")
    store = FaultyStore(inner, [FaultRule(Fault.ERROR_AFTER, frozenset({"complete_upload"}))])
    segment = handle(store)
    offer(segment, 25)
    with pytest.raises(StoreUnavailable):
        segment.result()
    segment.abort()
    assert inner.list_uploads() == ()
    assert [found.key for found in inner.list()] == [str(UUID_1)]


@pytest.mark.parametrize("count", [1, 25])
def test_two_attempts_of_one_segment_end_with_the_same_objects_whichever_gives_up(count: int) -> None:
    store = MemoryStore(f"twice-{uuid4()}")
    slow, zombie, quick = handle(store), handle(store), handle(store)
    for segment in (slow, zombie, quick):
        offer(segment, count)
    done = quick.result()
    objects = {found.key: bytes(store.get(found.key)) for found in store.list()}
    zombie.abort()
    assert slow.result() == done
    assert {found.key: bytes(store.get(found.key)) for found in store.list()} == objects
    assert store.list_uploads() == ()


def test_a_key_that_another_instance_has_taken_is_not_the_segment() -> None:
    store = MemoryStore(f"taken-{uuid4()}")
    segment = handle(store)
    offer(segment, 1)
    store.put(segment.key, bytes(HEADER_BYTES + FRAME_BYTES + 100), metadata={"afterglowinstance": "them"})
    with pytest.raises(ObjectExists, match="another instance"):
        segment.result()


# --- from an offloader ------------------------------------------------------------------------------------------------


def test_an_offloader_of_ours_begins_segments_as_its_policy_says() -> None:
    policy = settings(max_offload_segment_size_in_bytes=4000, streaming_offload_block_size_in_bytes=1024)
    tiers = Tiers()
    location = TierLocation(MEMORY, f"driver-{uuid4()}")
    offloader = BlockOffloader(location, policy, tiers)
    given = {**offloader.driver_metadata(), "ManagedLedgerName": "a/b/persistent/c"}
    with offloader.streaming_offload(UUID_1, given) as segment:
        number = 5
        while segment.offer_entry(3, number, bytes(88)):
            number += 1
        assert segment.result() == OffloadResult(UUID_1, BEGIN, Position(3, 44))
    store = tiers.store(location, policy)
    index = decode_index(store.get(str(UUID_1) + INDEX_SUFFIX))
    assert [block.first_entry_id for block in index.groups[0].blocks] == [5, 13, 21, 29, 37]
    assert store.head(str(UUID_1)).metadata["role"] == "data"
