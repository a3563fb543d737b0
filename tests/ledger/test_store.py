from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
from tests.support.crash_points import Crashed
from tests.support.faults import Fault, FaultRule, FaultyMetadataStore
from tests.support.ledgers import TOPIC, Receipts, World, settings

from afterglow.config.choices import DamagePolicy
from afterglow.errors import (
    CorruptMetadata,
    HotLogError,
    InvalidName,
    LedgerMissing,
    MetadataUnavailable,
    TopicClosed,
    TopicMissing,
)
from afterglow.format.entry import split_broker_metadata
from afterglow.format.metadata_envelope import parse_managed_ledger, serialize_managed_ledger
from afterglow.format.position import EARLIEST, Position
from afterglow.format.proto.managed_ledger_pb2 import KeyValue, ManagedLedgerInfo
from afterglow.ledger.entry_source import EntrySlice
from afterglow.ledger.ledger_list import LedgerEnd, finish_ledger
from afterglow.ledger.offload_hooks import NoOffloadHooks
from afterglow.ledger.reader import ReadOrigin, ReadResult
from afterglow.ledger.retention import Retention
from afterglow.metadata.memory import MemoryMetadataStore
from afterglow.metadata.names import NamespaceName
from afterglow.metadata.paths import cursor_path, managed_ledger_path
from afterglow.metadata.store import MUST_NOT_EXIST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from afterglow.ledger.managed_ledger import ManagedLedger
    from afterglow.metadata.store import MetadataStore
    from afterglow.testing.memory_hot import MemoryLedger

PATH = managed_ledger_path(TOPIC)


def payloads(ledger: ManagedLedger) -> list[bytes]:
    return [bytes(split_broker_metadata(entry.data)[1]) for entry in ledger.reader.read(EARLIEST, 1000, 1 << 20)]


def topic(world: World, *ledgers: int) -> ManagedLedger:
    """A topic with so many entries in each of its ledgers; entries are numbered from 0."""
    ledger = world.open()
    number = 0
    for at, count in enumerate(ledgers):
        if at:
            ledger.roll()
        for _ in range(count):
            world.append(ledger, b"%d" % number)
            number += 1
    return ledger


# --- opening ----------------------------------------------------------------------------------------------------------


def test_a_topic_is_opened_once_and_created_only_if_asked() -> None:
    world = World()
    with pytest.raises(TopicMissing):
        world.store.open(TOPIC, create=False)
    assert not world.store.exists(TOPIC)
    ledger = world.store.open(TOPIC)
    assert world.store.exists(TOPIC)
    assert world.store.open(TOPIC) is ledger is world.store.opened(TOPIC)
    assert world.store.all_opened() == (ledger,)
    with pytest.raises(InvalidName):
        world.store.open("no/such/form")


def test_topics_of_a_namespace_are_listed() -> None:
    world = World()
    for name in ("b", "a+b", "a-partition-0"):
        world.open(f"public/default/persistent/{name}")
    world.open("public/other/persistent/c")
    listed = world.store.topics(NamespaceName("public", "default"))
    assert [topic.local_name for topic in listed] == ["a b", "a-partition-0", "b"]
    assert world.store.topics(NamespaceName("public", "none")) == ()


def test_a_closed_store_opens_nothing_more() -> None:
    world = World()
    ledger = topic(world, 2)
    world.store.close()
    assert ledger.closed
    with pytest.raises(TopicClosed):
        world.store.open(TOPIC)
    world.crash()
    assert payloads(world.open()) == [b"0", b"1"]


def test_a_list_that_pulsar_wrote_is_taken_over() -> None:
    world = World()
    for _ in range(3):
        world.hot.create()
    for ledger_id in (1, 2):
        world.hot.open(ledger_id).append((b"%d" % ledger_id,), lambda _error: None)
        world.hot.open(ledger_id).close()
    info = ManagedLedgerInfo(properties=[KeyValue(key="index", value="41"), KeyValue(key="theirs", value="kept")])
    for ledger_id in (3, 1, 2):  # in no order; the last is open
        info.ledgerInfo.add(ledgerId=ledger_id)
    for ledger_id in (1, 2):
        finish_ledger(info, LedgerEnd(ledger_id, 1, 1, None), 5)
    world.metadata.put(PATH, serialize_managed_ledger(info), MUST_NOT_EXIST)
    ledger = world.open()
    assert payloads(ledger) == [b"1", b"2"]
    world.append(ledger, b"3")
    assert ledger.last_stamp.index == 42
    assert KeyValue(key="theirs", value="kept") in ledger.info.properties
    assert [record.ledger_id for record in ledger.ledgers] == [1, 2, 4], "the empty ledger was removed"


def test_the_ledger_that_was_written_must_be_there_unless_damage_is_to_be_skipped() -> None:
    world = World()
    topic(world, 1, 2)
    world.crash()
    del world.hot.ledgers_by_id[2]
    with pytest.raises(LedgerMissing, match="damagedDataPolicy"):
        world.open()
    world.config = settings(damaged_data_policy=DamagePolicy.SKIP_AND_REPORT)
    world.crash()
    ledger = world.open()
    assert payloads(ledger) == [b"0"]
    assert world.append(ledger, b"on") == [Position(3, 0)]


def test_metadata_that_does_not_parse_is_reported() -> None:
    world = World()
    world.metadata.put(PATH, b"\xff\xff", MUST_NOT_EXIST)
    with pytest.raises(CorruptMetadata):
        world.open()


def test_metadata_that_cannot_be_reached_keeps_a_topic_closed_until_it_can() -> None:
    store = FaultyMetadataStore(MemoryMetadataStore(), [FaultRule(Fault.ERROR_BEFORE, times=3)])
    world = World(metadata=store)
    for _ in range(3):
        with pytest.raises(MetadataUnavailable):
            world.open()
    world.append(world.open(), b"0")


# --- reading ----------------------------------------------------------------------------------------------------------


def test_reading_crosses_ledgers_and_stops_at_either_limit() -> None:
    world = World(settings(managed_ledger_cache_size_mb=0))
    ledger = topic(world, 3, 0, 2)
    everything = ledger.reader.read(EARLIEST, 100, 1 << 20)
    assert [entry.position for entry in everything] == [
        Position(1, 0), Position(1, 1), Position(1, 2), Position(3, 0), Position(3, 1)
    ]  # fmt: skip
    size = len(everything[0].data)
    for first in range(5):
        for count in range(1, 6):
            found = ledger.reader.read(everything[first].position, count, 1 << 20)
            assert found == everything[first : first + count]
    assert ledger.reader.read(EARLIEST, 100, 1) == everything[:1]
    assert len(ledger.reader.read(EARLIEST, 100, 2 * size)) == 2
    assert ledger.reader.read(Position(1, 3), 1, 1) == everything[3:4]
    assert ledger.reader.read(Position(3, 2), 10, 1 << 20) == []
    assert ledger.reader.read(EARLIEST, 0, 1 << 20) == []


@pytest.mark.parametrize("max_entries", [1, 2, 3, 100])
@pytest.mark.parametrize("max_bytes", [1, 80, 1 << 20])
def test_reading_in_pieces_gives_the_same_from_cache_and_from_disk(max_entries: int, max_bytes: int) -> None:
    found: list[list[bytes | memoryview]] = []
    for cache_mb in (0, 1):
        world = World(settings(managed_ledger_cache_size_mb=cache_mb))
        ledger = topic(world, 3, 4, 1)
        read: list[bytes | memoryview] = []
        position = EARLIEST
        while block := ledger.reader.read(position, max_entries, max_bytes):
            read += [entry.data for entry in block]
            position = block[-1].position.next()
        found.append(read)
        assert (world.hot.reads == 0) == (cache_mb == 1)
    assert found[0] == found[1]
    assert len(found[0]) == 8


def test_entries_in_memory_are_distinguished_from_others() -> None:
    world = World()
    ledger = topic(world, 2)
    found = ledger.reader.read_memory(Position(1, 1), 9, 1 << 20)
    assert found is not None
    assert found.entries == ledger.reader.read(Position(1, 1), 9, 1 << 20)
    assert found.origins == [(ReadOrigin.CACHE, 1)]
    assert ledger.reader.read_memory(Position(1, 2), 9, 1 << 20) == ReadResult([], [])
    first = ledger.reader.read_memory(EARLIEST, 1, 1 << 20)
    assert first is not None
    assert len(first.entries) == 1
    world.crash()
    assert world.open().reader.read_memory(EARLIEST, 9, 1 << 20) is None


def test_positions_are_walked_and_counted() -> None:
    ledger = topic(World(), 2, 1)
    assert ledger.layout.first == Position(1, 0)
    assert ledger.layout.last == Position(2, 0)
    walked = [EARLIEST]
    while walked[-1] != ledger.layout.last:
        following = ledger.layout.at_or_after(walked[-1].next())
        assert following is not None
        walked.append(following)
    assert walked[1:] == [Position(1, 0), Position(1, 1), Position(2, 0)]
    assert ledger.layout.at_or_after(Position(2, 1)) is None
    assert ledger.layout.entries_between(Position(1, 0), Position(2, 0)) == 2
    assert ledger.layout.total_entries == 3


class Copies:
    """Holds copies of ledgers."""

    def __init__(self, ledgers: dict[int, list[bytes]]) -> None:
        self.ledgers = ledgers
        self.asked: list[tuple[int, int, int]] = []

    def read(self, ledger_info: ManagedLedgerInfo.LedgerInfo, first: int, last: int, max_bytes: int) -> EntrySlice:
        self.asked.append((ledger_info.ledgerId, first, last))
        return EntrySlice(first, self.ledgers[ledger_info.ledgerId][first : last + 1])

    def probe(self, ledger_info: ManagedLedgerInfo.LedgerInfo, first: int, last: int, max_bytes: int) -> EntrySlice:
        return self.read(ledger_info, first, last, max_bytes)

    def narrow(self, _row: ManagedLedgerInfo.LedgerInfo, entries: range, _time_ms: int, *, stamped: bool) -> range:
        del stamped
        return entries


def test_entries_that_are_not_cached_are_read_from_the_topics_source() -> None:
    world = World(settings(managed_ledger_cache_size_mb=0))
    topic(world, 2, 1)
    copies = Copies({ledger_id: list(world.hot.open(ledger_id).entries) for ledger_id in (1, 2)})
    asked: list[str] = []
    world.sources = lambda name: asked.append(name) or copies  # type: ignore[func-returns-value]
    world.crash()
    assert payloads(world.open()) == [b"0", b"1", b"2"]
    assert copies.asked == [(1, 0, 1), (2, 0, 0)]
    assert asked == [TOPIC]


def test_damaged_entries_that_a_source_leaves_out_are_passed_over() -> None:
    class Damaged(Copies):
        def read(self, ledger_info: ManagedLedgerInfo.LedgerInfo, first: int, last: int, max_bytes: int) -> EntrySlice:
            if ledger_info.ledgerId == 2:
                return EntrySlice(last + 1, [])
            if ledger_info.ledgerId == 1 and first < 2:
                return EntrySlice(2, self.ledgers[1][2:])
            return super().read(ledger_info, first, last, max_bytes)

    world = World(settings(managed_ledger_cache_size_mb=0))
    topic(world, 4, 1, 1)
    damaged = Damaged({ledger_id: list(world.hot.open(ledger_id).entries) for ledger_id in (1, 3)})
    world.sources = lambda _name: damaged
    world.crash()
    assert payloads(world.open()) == [b"2", b"3", b"5"]


def test_without_a_tier_a_missing_hot_copy_is_a_clear_error() -> None:
    world = World(settings(managed_ledger_cache_size_mb=0))
    ledger = topic(world, 2, 1)
    world.hot.delete(1)
    with pytest.raises(LedgerMissing, match=r"1:0.*managedLedgerOffloadDriver"):
        ledger.reader.read(EARLIEST, 10, 1000)
    assert len(ledger.reader.read(Position(2, 0), 10, 1000)) == 1


def test_waiting_readers_are_woken_after_they_can_see_more() -> None:
    world = World()
    ledger = world.open()
    seen: list[Position] = []
    end = ledger.on_append(lambda: seen.append(ledger.layout.last))
    world.append(ledger, b"a")
    world.append(ledger, b"b")
    assert seen == [Position(1, 0), Position(1, 1)]
    end()
    world.append(ledger, b"c")
    assert len(seen) == 2


# --- trimming ---------------------------------------------------------------------------------------------------------


def test_consumed_ledgers_go_when_the_next_is_in_use() -> None:
    world = World(settings(default_retention_time_in_minutes=0, default_retention_size_in_mb=0))
    ledger = world.open()
    slow, fast = ledger.cursors.create("slow", EARLIEST), ledger.cursors.create("fast", EARLIEST)
    for _ in range(3):
        world.append(ledger, b"x")
        ledger.roll()
    fast.clear_backlog()
    assert ledger.trim() == ()
    slow.ack_through(Position(2, 0))
    assert ledger.trim() == (1, 2)
    assert world.hot.ledgers() == (3, 4)
    assert ledger.layout.first == Position(3, 0)
    assert (slow.backlog, fast.backlog) == (1, 0)
    ledger.cursors.delete("slow")
    assert ledger.trim() == (3,)
    assert world.store.cache.get_range(3, 0, 0, 1) == []
    assert ledger.layout.total_entries == 0


class Recorder(NoOffloadHooks):
    """Records its calls."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.copying: set[int] = set()
        self.calls: list[tuple[object, ...]] = []
        self.refuses = False

    def is_in_use(self, name: str, ledger_id: int) -> bool:
        return ledger_id in self.copying

    def on_ledger_closed(self, name: str) -> None:
        self.calls.append(("on_ledger_closed", name))

    def before_removal(self, name: str, ledger_infos: Sequence[ManagedLedgerInfo.LedgerInfo]) -> None:
        if self.refuses:
            raise MetadataUnavailable("not now")
        self.calls.append(("before_removal", name, *(ledger_info.ledgerId for ledger_info in ledger_infos)))

    def after_removal(self, name: str) -> None:
        self.calls.append(("after_removal", name, *self.world.hot.ledgers()))


def observed(**changes: object) -> tuple[World, Recorder]:
    world = World(settings(**changes))
    world.offloading = recorder = Recorder(world)
    world.boot()
    return world, recorder


def test_a_ledger_that_is_being_copied_is_not_trimmed() -> None:
    world, recorder = observed(default_retention_time_in_minutes=0, default_retention_size_in_mb=0)
    ledger = world.open()
    recorder.copying = {1}
    world.append(ledger, b"x")
    ledger.roll()
    assert ledger.trim() == ()
    assert ledger.trimmer.truncate() == ()
    recorder.copying = set()
    assert ledger.trim() == (1,)


def test_copies_are_on_record_before_a_ledger_leaves_and_go_after() -> None:
    world, recorder = observed()
    ledger = topic(world, 1, 1)
    recorder.calls.clear()
    recorder.refuses = True
    ledger.retention = Retention.of(0, 0)
    with pytest.raises(MetadataUnavailable):
        ledger.trim()
    assert [record.ledger_id for record in ledger.ledgers] == [1, 2]
    recorder.refuses = False
    ledger.trim()
    assert recorder.calls == [("after_removal", TOPIC, 1, 2), ("before_removal", TOPIC, 1), ("after_removal", TOPIC, 2)]


@pytest.mark.parametrize("opened", [True, False])
def test_deleting_a_topic_reports_all_its_ledgers(opened: bool) -> None:  # noqa: FBT001
    world, recorder = observed()
    topic(world, 1, 1)
    if not opened:
        world.crash()
    recorder.calls.clear()
    world.store.delete(TOPIC)
    assert recorder.calls == [("before_removal", TOPIC, 1, 2), ("after_removal", TOPIC)]


def test_hooks_are_called_when_a_ledger_is_closed() -> None:
    world, recorder = observed(managed_ledger_max_entries_per_ledger=1)
    ledger = world.open()
    world.append(ledger, b"x", b"y")
    assert recorder.calls == [("on_ledger_closed", TOPIC)]
    ledger.terminate()
    assert recorder.calls == [("on_ledger_closed", TOPIC)] * 2


def test_only_a_ledger_that_is_offloaded_whole_is_freed() -> None:
    world = World()
    ledger = topic(world, 2, 2, 2, 2, 1)

    def offload(info: ManagedLedgerInfo) -> None:
        info.ledgerInfo[0].offloadContext.complete = True
        for ledger_info, (end, complete) in zip(info.ledgerInfo[1:4], [(1, True), (0, True), (1, False)], strict=True):
            ledger_info.offloadContext.offloadSegment.add(endEntryId=end, complete=complete)

    ledger.update(offload)
    assert ledger.trimmer.free([1, 2, 3, 4, 5]) == (1, 2)
    assert [record.ledger_id for record in ledger.ledgers if record.hot_deleted] == [1, 2]
    assert world.hot.ledgers() == (3, 4, 5)
    assert ledger.trimmer.free([1]) == (1,)


def test_freeing_continues_after_a_crash_between_its_steps() -> None:
    world = World()
    ledger = topic(world, 2, 1)
    ledger.update(lambda info: setattr(info.ledgerInfo[0].offloadContext, "complete", True))

    def die(effect: str) -> None:
        if effect == "delete":
            raise Crashed(effect)

    world.hot.before = die
    with pytest.raises(Crashed):
        ledger.trimmer.free([1])
    world.crash()
    assert world.hot.ledgers() == (1, 2)
    assert world.open().ledgers[0].hot_deleted
    assert world.hot.ledgers() == (2,)


def test_the_last_ledger_of_an_idle_topic_is_trimmed_too_once_retention_ends() -> None:
    world = World()
    topic(world, 2)
    world.crash()
    ledger = world.open()
    ledger.retention = Retention.of(10, 0)
    before = ledger.layout.last
    world.clock.advance(11 * 60)
    assert ledger.trim() == (1,)
    assert ledger.layout.total_entries == 0
    assert ledger.layout.last > before
    world.append(ledger, b"2")
    assert ledger.last_stamp.index == 2
    ledger.terminate()
    assert ledger.trim() == ()


def test_truncating_acknowledges_and_removes_existing_entries_and_no_later_ones() -> None:
    world = World()
    ledger = topic(world, 2, 2)
    cursor, reader = ledger.cursors.create("s", EARLIEST), ledger.cursors.create_reader("r", EARLIEST)
    assert ledger.trimmer.truncate() == (1, 2)
    assert (ledger.layout.total_entries, cursor.backlog, reader.backlog) == (0, 0, 0)
    assert len(world.hot.ledgers()) == 1
    (new,) = world.append(ledger, b"4")
    assert [entry.position for entry in cursor.read(9, 1 << 20)] == [new]
    assert [entry.position for entry in reader.read(9, 1 << 20)] == [new]
    assert ledger.last_stamp.index == 4
    world.crash()
    assert payloads(world.open()) == [b"4"]
    assert World().open().trimmer.truncate() == ()


def test_a_hot_copy_that_cannot_be_deleted_now_is_deleted_later(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    ledger = topic(world, 1, 1)

    def stuck(_ledger_id: int) -> None:
        raise HotLogError("busy")

    with monkeypatch.context() as patch:
        patch.setattr(world.hot, "delete", stuck)
        assert ledger.trimmer.truncate() == (1, 2)
        assert 1 in world.hot.ledgers()
    assert payloads(ledger) == []
    ledger.trim()
    assert world.hot.ledgers() == (3,)


def test_reading_while_ledgers_are_trimmed_continues_with_the_remaining_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(settings(managed_ledger_cache_size_mb=0))
    ledger = topic(world, 2, 2)
    real = world.hot.open

    def trimmed_meanwhile(ledger_id: int) -> MemoryLedger:
        if ledger_id == 1 and 1 in world.hot.ledgers():
            monkeypatch.setattr(world.hot, "open", real)
            ledger.retention = Retention(0, 0)
            world.clock.advance(1)
            assert ledger.trim() == (1,)
        return real(ledger_id)

    monkeypatch.setattr(world.hot, "open", trimmed_meanwhile)
    assert payloads(ledger) == [b"2", b"3"]


# --- deleting and starting --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opened", [True, False])
def test_a_deleted_topic_leaves_nothing_behind(opened: bool) -> None:  # noqa: FBT001
    world = World()
    ledger = topic(world, 2, 1)
    ledger.cursors.create("s", EARLIEST).clear_backlog()
    if not opened:
        world.crash()
    world.store.delete(TOPIC)
    assert (world.hot.ledgers(), world.hot.values, world.store.exists(TOPIC)) == ((), {}, False)
    assert world.metadata.get(cursor_path(TOPIC, "s")) is None
    with pytest.raises(TopicMissing):
        world.store.delete(TOPIC)
    again = world.open()
    assert (again.layout.total_entries, again.cursors.durable) == (0, {})
    world.append(again, b"new")
    assert again.last_stamp.index == 0


def test_a_topic_that_is_being_deleted_takes_nothing_more() -> None:
    world = World()
    ledger = topic(world, 1)
    cursor = ledger.cursors.create("s", EARLIEST)
    world.store.delete(TOPIC)
    receipts = Receipts()
    ledger.append((b"late",), 1, receipts)
    world.settle()
    assert [type(error) for error in receipts.errors] == [TopicClosed]
    cursor.clear_backlog()
    cursor.flush()
    assert world.hot.values == {}


def test_a_deletion_that_metadata_refuses_leaves_the_topic_as_it_was() -> None:
    world = World()
    ledger = topic(world, 1)
    ledger._metadata._store = _failing(world.metadata)
    with pytest.raises(MetadataUnavailable):
        world.store.delete(TOPIC)
    assert world.open() is ledger
    world.append(ledger, b"1")
    assert payloads(ledger) == [b"0", b"1"]


def _failing(store: MetadataStore) -> FaultyMetadataStore:
    return FaultyMetadataStore(store, [FaultRule(Fault.ERROR_BEFORE, frozenset({"put"}))])


def test_a_deletion_that_the_hot_log_holds_up_is_finished_later(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    topic(world, 1)

    def stuck(_ledger_id: int) -> None:
        raise HotLogError("busy")

    with monkeypatch.context() as patch:
        patch.setattr(world.hot, "delete", stuck)
        with pytest.raises(HotLogError):
            world.store.delete(TOPIC)
    assert not world.store.exists(TOPIC)
    world.crash()
    assert [str(topic) for topic in world.store.start().deleted_topics] == ["persistent://public/default/t"]
    assert world.hot.ledgers() == ()


def test_a_start_sweeps_empty_ledgers_that_no_list_names_and_only_reports_others() -> None:
    world = World()
    topic(world, 1)
    world.hot.create()
    stray = world.hot.create()
    stray.append((b"whose?",), lambda _error: None)
    world.crash()
    fresh = world.hot.create()  # by this process, after it began: none of a crash's leftovers
    report = world.store.start()
    assert (report.swept_ledgers, report.unknown_ledgers) == ((2,), (3,))
    world.settle()
    assert world.hot.ledgers() == (1, 3, fresh.ledger_id)


@pytest.mark.parametrize("crashed", [True, False])
def test_a_list_that_names_a_swept_ledger_only_later_is_opened_without_it(*, crashed: bool) -> None:
    """Promise 1: a roll-over that was on its way when its process ended may reach metadata after a start has swept."""
    world = World()
    topic(world, 1)
    before = world.metadata.get(managed_ledger_path(TOPIC))
    assert before is not None
    stray = world.hot.create()
    world.crash()
    world.store.start()
    world.settle()
    assert stray.ledger_id not in world.hot.ledgers()

    info = parse_managed_ledger(before.value)
    info.ledgerInfo.add(ledgerId=stray.ledger_id)
    world.metadata.put(managed_ledger_path(TOPIC), serialize_managed_ledger(info), before.version)
    if crashed:
        world.crash()
    ledger = world.open()
    assert [(row.ledgerId, row.entries) for row in ledger.info.ledgerInfo] == [(1, 1), (stray.ledger_id, 0)]
    assert world.append(ledger, b"and on") == [Position(3, 0)]
    assert [entry.position for entry in ledger.reader.read(EARLIEST, 10, 1 << 20)][-1] == Position(3, 0)


def test_a_ledger_that_is_lost_and_was_not_swept_is_an_error() -> None:
    world = World()
    ledger = world.open()
    world.append(ledger, b"x")
    world.hot.delete(1)
    world.crash()
    world.store.start()
    world.settle()
    with pytest.raises(LedgerMissing, match="hot log lacks ledger 1"):
        world.open()


def test_a_swept_ledger_that_its_creator_appends_to_meanwhile_is_kept() -> None:
    world = World()
    topic(world, 1)
    stray = world.hot.create()
    world.crash()
    world.store.start()
    reopened = world.hot.open(stray.ledger_id)
    late = world.hot.ledgers_by_id[stray.ledger_id]
    late.entries.append(b"late")
    world.settle()
    assert reopened.confirmed == 0
    assert stray.ledger_id in world.hot.ledgers()


def test_a_start_that_cannot_read_the_lists_sweeps_nothing() -> None:
    world = World()
    topic(world, 1)
    world.hot.create()
    world.metadata = FaultyMetadataStore(
        world.metadata, [FaultRule(Fault.ERROR_BEFORE, frozenset({"get"}), key="*/t", times=None)]
    )
    world.crash()
    with pytest.raises(MetadataUnavailable):
        world.store.start()
    assert world.hot.ledgers() == (1, 2)


def test_legacy_topics_are_found_by_a_start() -> None:
    world = World()
    world.append(world.open("tenant/cluster/ns/persistent/old"), b"x")
    world.crash()
    assert world.store.start().unknown_ledgers == ()


def test_periodic_work_continues_when_one_topic_fails() -> None:
    world = World(settings(managed_ledger_inactive_ledger_rollover_time_seconds=1))
    names = [f"public/default/persistent/{name}" for name in "abc"]
    for name in names:
        world.append(world.open(name), b"x")
    world.clock.advance(2)
    world.open(names[0]).trim = partial(_fail)  # type: ignore[method-assign]
    world.store.tick()
    world.settle()
    world.store.trim()
    assert [len(world.open(name).ledgers) for name in names] == [2, 2, 2]


def _fail() -> tuple[int, ...]:
    raise MetadataUnavailable("not now")


def test_a_trim_with_an_unknown_outcome_is_resolved_at_the_next_tick() -> None:
    rules = [
        FaultRule(Fault.ERROR_AFTER, frozenset({"put"}), key=PATH, skip=0),
        FaultRule(Fault.ERROR_BEFORE, frozenset({"get"}), key=PATH, skip=0),
    ]
    inner = MemoryMetadataStore()
    world = World(settings(managed_ledger_cache_size_mb=0), inner)
    ledger = topic(world, 1, 1)
    ledger.retention = Retention.of(0, 0)
    faulty = FaultyMetadataStore(inner, rules)
    ledger._metadata._store = faulty
    with pytest.raises(MetadataUnavailable):
        ledger.trim()
    assert [record.ledger_id for record in ledger.ledgers] == [1, 2]
    ledger.tick()
    assert [record.ledger_id for record in ledger.ledgers] == [2]
