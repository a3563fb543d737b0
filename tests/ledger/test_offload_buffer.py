"""The offload buffer: what it admits, what it refuses, and what it gives back."""

from __future__ import annotations

import threading
import tracemalloc
from dataclasses import dataclass, field

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.support.framed import together
from tests.support.ledgers import World, settings

from afterglow.format.frames import FramedEntries
from afterglow.format.position import Position
from afterglow.ledger.cache import TailCache, cached_bytes
from afterglow.ledger.held_entries import memory_bytes
from afterglow.ledger.offload_buffer import BufferStatistics, OffloadBuffer
from afterglow.ledger.reader import ReadOrigin

SIZE = 10
COST = memory_bytes(FramedEntries.one(0, bytes(SIZE)))
CACHE_COST = cached_bytes(FramedEntries.one(0, bytes(SIZE)))


def entry(number: int) -> bytes:
    return b"%010d" % number


def buffer_for(entries: int) -> OffloadBuffer:
    """A buffer of which a single topic may fill so many entries, and leaves as many free."""
    return OffloadBuffer(2 * entries * COST)


def wanting(entries: int, *topics: str) -> OffloadBuffer:
    """The same, with topics that stream; that of index ``i`` has ledger ``i + 1``."""
    buffer = buffer_for(entries)
    for number, name in enumerate(topics or ("t",), 1):
        buffer.hold_from(name, Position(number, 0), (number,))
    return buffer


def offer(buffer: OffloadBuffer, ledger_id: int, *numbers: int) -> None:
    for number in numbers:
        buffer.offer(ledger_id, FramedEntries.one(number, entry(number)))


def held(buffer: OffloadBuffer, ledger_id: int = 1, count: int = 100) -> list[int]:
    return [at for at in range(count) if buffer.get_range(ledger_id, at, at, 1)]


# --- behind the tail cache --------------------------------------------------------------------------------------------


def test_entries_that_the_cache_evicts_wait_in_the_buffer() -> None:
    buffer = wanting(9)
    cache = TailCache(2 * CACHE_COST, buffer)
    for number in range(5):
        cache.put(1, FramedEntries.one(number, entry(number)))
    assert held(buffer) == [0, 1, 2]
    assert buffer.get_range(1, 1, 9, 1 << 20) == [entry(1), entry(2)]
    assert buffer.get_range(1, 0, 9, 19) == [entry(0)]
    assert buffer.get_range(1, 3, 9, 1 << 20) == []


def test_without_a_cache_all_entries_are_offered_to_the_buffer() -> None:
    buffer = wanting(3)
    cache = TailCache(0, buffer)
    for number in range(3):
        cache.put(1, FramedEntries.one(number, entry(number)))
    assert held(buffer) == [0, 1, 2]


def test_an_entry_too_large_for_the_cache_is_a_gap() -> None:
    buffer = wanting(900)
    cache = TailCache(2 * CACHE_COST, buffer)
    for number in range(9):
        cache.put(1, FramedEntries.one(number, bytes(3 * CACHE_COST) if number == 3 else entry(number)))
    assert held(buffer) == [0, 1, 2]
    buffer.hold_from("t", Position(1, 3), ())
    cache.put(1, FramedEntries.one(9, entry(9)))
    assert held(buffer) == [7]


def test_a_deleted_ledger_leaves_cache_and_buffer() -> None:
    buffer = wanting(9)
    cache = TailCache(2 * CACHE_COST, buffer)
    for number in range(8):
        cache.put(1, FramedEntries.one(number, entry(number)))
    assert held(buffer) == list(range(6))
    cache.drop_ledger(1)
    assert buffer.statistics == BufferStatistics(dropped=6)
    assert cache.statistics.entries == 0


# --- what is admitted -------------------------------------------------------------------------------------------------


def test_entries_of_topics_that_do_not_stream_are_not_held() -> None:
    buffer = buffer_for(9)
    offer(buffer, 1, 0, 1)
    assert buffer.statistics == BufferStatistics()


def test_entries_that_are_offloaded_already_are_neither_held_nor_refused() -> None:
    buffer = wanting(9)
    buffer.hold_from("t", Position(1, 3), ())
    offer(buffer, 1, 0, 1, 2, 3, 4)
    assert held(buffer) == [3, 4]
    assert buffer.statistics.refused == 0


def test_a_full_buffer_keeps_the_oldest_and_refuses_new_entries() -> None:
    buffer = wanting(3)
    offer(buffer, 1, *range(8))
    assert held(buffer) == [0, 1, 2]
    assert buffer.statistics == BufferStatistics(3, 3 * COST, refused=5, refused_bytes=5 * SIZE)


def test_after_a_gap_nothing_is_admitted_until_all_buffered_entries_are_offloaded() -> None:
    buffer = wanting(3)
    offer(buffer, 1, *range(5))  # 3 and 4 are refused
    buffer.hold_from("t", Position(1, 2), ())
    offer(buffer, 1, 5)
    assert held(buffer) == [2], "there is space, but 3 is missing"
    buffer.hold_from("t", Position(1, 3), ())
    offer(buffer, 1, 6, 7, 8, 9)
    assert held(buffer) == [6, 7, 8], "from the first entry that came once there was nothing before the gap"


def test_a_topic_that_holds_nothing_is_admitted_as_soon_as_there_is_room() -> None:
    buffer = wanting(1, "a", "b")
    offer(buffer, 1, 0)
    offer(buffer, 2, 0)
    assert held(buffer, 2) == [], "the free half is too small to leave as much"
    buffer.hold_from("a", Position(1, 1), ())
    offer(buffer, 2, 1)
    assert held(buffer, 2) == [1]


def test_an_entry_of_more_than_half_the_budget_is_refused() -> None:
    buffer = wanting(3)
    buffer.offer(1, FramedEntries.one(0, bytes(3 * COST)))
    offer(buffer, 1, 1)
    assert held(buffer) == [1]


def test_the_overhead_that_is_counted_is_no_less_than_what_is_taken() -> None:
    data = [bytes([number % 251]) * 100 for number in range(20_000)]
    buffer = OffloadBuffer(1 << 30)
    buffer.hold_from("t", Position(1, 0), (1,))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number, each in enumerate(data):
            buffer.offer(1, FramedEntries.one(number, each))
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.5 * buffer.statistics.bytes_held < taken <= buffer.statistics.bytes_held


# --- many topics ------------------------------------------------------------------------------------------------------


def test_a_topic_that_makes_no_progress_leaves_room_for_others() -> None:
    buffer = wanting(300, "stalled", "live")
    offer(buffer, 1, *range(1_000))
    assert len(held(buffer, 1, 1_000)) == 300
    offer(buffer, 2, *range(100))
    for begin in range(100, 3_000, 100):  # each hundred is offloaded before the next has come whole
        offer(buffer, 2, *range(begin, begin + 50))
        buffer.hold_from("live", Position(2, begin), ())
        offer(buffer, 2, *range(begin + 50, begin + 100))
    assert len(held(buffer, 2, 3_000)) == 100
    assert len(held(buffer, 1, 1_000)) == 300
    assert buffer.statistics.refused == 700, "of the stalled topic"


def test_topics_that_all_make_no_progress_have_equal_shares_and_leave_one() -> None:
    for count in (2, 3, 7):
        buffer = wanting(500, *(f"t{number}" for number in range(count)))
        for number in range(1_000):
            for ledger_id in range(1, count + 1):
                offer(buffer, ledger_id, number)
        shares = [len(held(buffer, ledger_id, 1_000)) for ledger_id in range(1, count + 1)]
        assert all(abs(share - 1_000 / (count + 1)) <= 1 for share in shares)


# --- rolling over, going back, ending ---------------------------------------------------------------------------------


def test_offloaded_entries_are_released_across_ledgers() -> None:
    buffer = buffer_for(9)
    buffer.hold_from("t", Position(1, 0), (1, 2, 3))
    for ledger_id in (1, 2, 3):
        offer(buffer, ledger_id, 0, 1)
    buffer.hold_from("t", Position(2, 1), (2, 3))
    assert [held(buffer, ledger_id) for ledger_id in (1, 2, 3)] == [[], [1], [0, 1]]
    buffer.hold_from("t", Position(4, 0), (4,))
    assert buffer.statistics == BufferStatistics()


def test_the_next_ledger_is_held_from_its_first_entry_on() -> None:
    buffer = wanting(9)
    offer(buffer, 1, 0, 1)
    buffer.add_ledger(1, 7)
    offer(buffer, 7, 0, 1)
    buffer.hold_from("t", Position(1, 1), (1,))  # by a list that does not have the new ledger yet
    offer(buffer, 7, 2)
    assert (held(buffer), held(buffer, 7)) == ([1], [0, 1, 2])


def test_a_gap_continues_in_the_next_ledger() -> None:
    buffer = wanting(2)
    offer(buffer, 1, 0, 1, 2)
    buffer.add_ledger(1, 2)
    buffer.hold_from("t", Position(1, 1), ())
    offer(buffer, 2, 0)
    assert (held(buffer), held(buffer, 2)) == ([1], [])
    buffer.hold_from("t", Position(1, 2), ())
    offer(buffer, 2, 1)
    assert held(buffer, 2) == [1]


def test_a_ledger_of_a_topic_that_does_not_stream_is_followed_by_none() -> None:
    buffer = wanting(9)
    buffer.add_ledger(5, 6)
    offer(buffer, 6, 0)
    assert buffer.statistics == BufferStatistics()


def test_an_upload_that_begins_anew_does_not_bring_back_what_was_released() -> None:
    buffer = wanting(9)
    offer(buffer, 1, *range(4))
    buffer.hold_from("t", Position(1, 2), ())
    buffer.hold_from("t", Position(1, 0), ())
    offer(buffer, 1, 4)
    assert held(buffer) == [2, 3, 4]


def test_a_topic_that_streams_no_more_holds_nothing() -> None:
    buffer = wanting(9, "t", "other")
    offer(buffer, 1, 0, 1)
    offer(buffer, 2, 0)
    buffer.drop_topic("t")
    buffer.drop_topic("t")
    offer(buffer, 1, 2)
    assert (held(buffer), held(buffer, 2)) == ([], [0])
    assert buffer.statistics == BufferStatistics(1, COST, dropped=2)


def test_entries_of_a_deleted_ledger_are_not_held_again() -> None:
    buffer = wanting(2)
    buffer.add_ledger(1, 2)
    offer(buffer, 1, 0, 1, 2)
    buffer.drop_ledger(1)
    offer(buffer, 1, 3)
    offer(buffer, 2, 0)
    assert (held(buffer), held(buffer, 2)) == ([], [0])
    buffer.drop_ledger(9)


# --- against a model --------------------------------------------------------------------------------------------------


@dataclass
class ModelEntry:
    position: Position
    data: bytes
    came_with: Position
    """The last of the entries that were appended together."""
    cost: int
    """Memory of all these."""
    held: bool = False
    refused: bool = False


@dataclass
class ModelTopic:
    """One topic by its whole log, of which each question goes over every entry."""

    name: str
    ledgers: list[int]
    begin: Position | None = None
    """None where it does not stream."""
    deleted: set[int] = field(default_factory=set)
    log: list[ModelEntry] = field(default_factory=list)

    @property
    def end(self) -> Position:
        last = [each.position for each in self.log if each.position.ledger_id == self.ledgers[-1]]
        return last[-1].next() if last else Position(self.ledgers[-1], 0)

    @property
    def held(self) -> list[ModelEntry]:
        return [each for each in self.log if each.held]

    @property
    def bytes_held(self) -> int:
        return sum({each.came_with: each.cost for each in self.held}.values())

    @property
    def has_gap(self) -> bool:
        """Whether an entry was refused behind one that is held."""
        marks = [each.held for each in self.log if each.held or each.refused]
        return True in marks and False in marks[marks.index(True) :]

    def release(self, *, before: Position | None = None, ledger_id: int | None = None) -> int:
        gone = [
            each
            for each in self.held
            if (before is None or each.came_with < before) and ledger_id in {None, each.position.ledger_id}
        ]
        for each in gone:
            each.held = False
        if not self.held:
            for each in self.log:
                each.refused = False
        return len(gone)


class BufferAgainstModel(RuleBasedStateMachine):
    @initialize(budget=st.integers(0, 3_000))
    def start(self, budget: int) -> None:
        self.budget = budget
        self.buffer = OffloadBuffer(budget)
        self.ledgers = 0
        self.refused = self.refused_bytes = self.dropped = 0
        self.topics = [ModelTopic(f"t{number}", [self.new_ledger()]) for number in range(3)]

    def new_ledger(self) -> int:
        self.ledgers += 1
        return self.ledgers

    @rule(which=st.integers(0, 2), sizes=st.lists(st.integers(0, 400), min_size=1, max_size=6), apart=st.booleans())
    def append(self, which: int, sizes: list[int], apart: bool) -> None:  # noqa: FBT001
        for each in [[size] for size in sizes] if apart else [sizes]:
            self.append_together(self.topics[which], each)

    def append_together(self, topic: ModelTopic, sizes: list[int]) -> None:
        first = topic.end
        last = Position(first.ledger_id, first.entry_id + len(sizes) - 1)
        data = [bytes([(len(topic.log) + number) % 251]) * size for number, size in enumerate(sizes)]
        framed = FramedEntries.one(first.entry_id, data[0]) if len(data) == 1 else together(first.entry_id, data)
        cost = memory_bytes(framed)
        free = self.budget - sum(other.bytes_held for other in self.topics) - cost
        is_held = not topic.has_gap and topic.bytes_held + cost <= free
        was_empty = not topic.held
        for number, each in enumerate(data):
            entry = ModelEntry(Position(first.ledger_id, first.entry_id + number), each, came_with=last, cost=cost)
            if topic.begin is not None and last >= topic.begin:
                entry.held = is_held
                entry.refused = not is_held and not was_empty
                self.refused += not is_held
                self.refused_bytes += 0 if is_held else len(each)
            topic.log.append(entry)
        self.buffer.offer(first.ledger_id, framed)

    @rule(which=st.integers(0, 2))
    def roll(self, which: int) -> None:
        topic = self.topics[which]
        topic.ledgers.append(self.new_ledger())
        self.buffer.add_ledger(topic.ledgers[-2], topic.ledgers[-1])

    @rule(which=st.integers(0, 2), taken=st.floats(0, 1))
    def stream(self, which: int, taken: float) -> None:
        """Parts up to some entry are uploaded; or an upload is lost, and the stream goes back."""
        topic = self.topics[which]
        positions = [each.position for each in topic.log if each.position.ledger_id not in topic.deleted]
        begin = [*positions, topic.end][int(taken * len(positions))]
        topic.begin = begin
        topic.release(before=begin)
        ids = [each for each in topic.ledgers if each not in topic.deleted and each >= begin.ledger_id]
        self.buffer.hold_from(topic.name, begin, ids)

    @rule(which=st.integers(0, 2))
    def stop_streaming(self, which: int) -> None:
        topic = self.topics[which]
        topic.begin = None
        self.dropped += topic.release()
        self.buffer.drop_topic(topic.name)

    @precondition(lambda self: any(len(topic.ledgers) > len(topic.deleted) + 1 for topic in self.topics))
    @rule(which=st.integers(0, 2))
    def delete_oldest_ledger(self, which: int) -> None:
        topic = self.topics[which]
        there = [each for each in topic.ledgers if each not in topic.deleted]
        if len(there) > 1:
            topic.deleted.add(there[0])
            self.dropped += topic.release(ledger_id=there[0])
            self.buffer.drop_ledger(there[0])

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        for topic in self.topics:
            expected = {each.position: each.data for each in topic.held}
            found = {
                each.position: data
                for each in topic.log
                for data in self.buffer.get_range(each.position.ledger_id, each.position.entry_id, 1 << 40, 0)
            }
            assert found == expected
            assert topic.bytes_held <= self.budget / 2
        expected_entries = sum(len(topic.held) for topic in self.topics)
        expected_bytes = sum(topic.bytes_held for topic in self.topics)
        assert expected_bytes <= self.budget
        assert self.buffer.statistics == BufferStatistics(
            expected_entries, expected_bytes, self.refused, self.refused_bytes, self.dropped
        )

    @invariant()
    def holds_one_range_of_each_topic(self) -> None:
        for topic in self.topics:
            marks = [each.held for each in topic.log if each.position.ledger_id not in topic.deleted]
            if True in marks:
                first = marks.index(True)
                assert all(marks[first : first + sum(marks)])
                assert topic.begin is not None
                assert topic.held[0].came_with >= topic.begin

    @invariant()
    def gives_runs_up_to_their_end(self) -> None:
        for topic in self.topics:
            for ledger_id in topic.ledgers:
                expected = [each for each in topic.held if each.position.ledger_id == ledger_id]
                if expected:
                    run = self.buffer.get_range(ledger_id, expected[0].position.entry_id, 1 << 40, 1 << 40)
                    assert run == [each.data for each in expected]


BufferAgainstModel.TestCase.settings = hypothesis_settings(max_examples=150, stateful_step_count=40, deadline=None)
TestBufferAgainstModel = BufferAgainstModel.TestCase


def test_threads_do_not_disturb_each_other() -> None:
    buffer = OffloadBuffer(40 * COST)
    cache = TailCache(10 * CACHE_COST, buffer)

    def work(ledger_id: int) -> None:
        for number in range(2_000):
            if number % 7 == 0:
                buffer.hold_from(str(ledger_id), Position(ledger_id, max(number - 15, 0)), (ledger_id,))
            cache.put(ledger_id, FramedEntries.one(number, entry(number)))
            for data in buffer.get_range(ledger_id, number - 12, number - 12, 1):
                assert data == entry(number - 12)

    threads = [threading.Thread(target=work, args=(id_,)) for id_ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert buffer.statistics.bytes_held <= 40 * COST
    for ledger_id in range(4):
        buffer.drop_topic(str(ledger_id))
    assert buffer.statistics.bytes_held == buffer.statistics.entries == 0


# --- under a topic ----------------------------------------------------------------------------------------------------


class BufferedWorld(World):
    """Topics without a tail cache and with a buffer."""

    def prepare(self) -> None:
        self.buffer = OffloadBuffer(1 << 20)


def test_a_topic_is_read_from_the_buffer_where_the_cache_has_it_no_more() -> None:
    world = BufferedWorld(settings(managed_ledger_cache_size_mb=0))
    assert world.buffer is not None
    ledger = world.open()
    begin, *_ = world.append(ledger, b"before")
    world.buffer.hold_from(ledger.name, begin.next(), ledger.layout.ids)
    world.append(ledger, b"a", b"b", b"c")
    assert ledger.reader.read_memory(begin, 9, 1 << 20) is None
    found = ledger.reader.read_memory(begin.next(), 2, 1 << 20)
    assert found is not None
    assert found.entries == ledger.reader.read(begin.next(), 2, 1 << 20)
    assert found.origins == [(ReadOrigin.BUFFER, 2)]
    reading = ledger.reader.read_with_gaps(begin, 9, 1 << 20)
    assert [bytes(each.data)[-1:] for each in reading.entries] == [b"e", b"a", b"b", b"c"]
    assert reading.origins == [(ReadOrigin.HOT, 1), (ReadOrigin.BUFFER, 3)], "the log is read up to what is in memory"
    world.hot.open(begin.ledger_id).entries[1] = b"not this one"
    found_data = [bytes(each.data) for each in ledger.reader.read(begin.next(), 9, 1 << 20)]
    assert [data[-1:] for data in found_data] == [b"a", b"b", b"c"]


def test_a_read_over_several_ledgers_says_where_each_entry_was() -> None:
    world = BufferedWorld(settings(managed_ledger_cache_size_mb=0))
    assert world.buffer is not None
    ledger = world.open()
    first, *_ = world.append(ledger, b"a", b"b")
    ledger.roll()
    world.settle()
    world.buffer.hold_from(ledger.name, ledger.layout.last.next(), ledger.layout.ids)
    world.append(ledger, b"c")
    ledger.roll()
    world.settle()
    world.append(ledger, b"d", b"e")
    assert ledger.reader.read_with_gaps(first, 9, 1 << 20).origins == [
        (ReadOrigin.HOT, 2),
        (ReadOrigin.BUFFER, 1),
        (ReadOrigin.BUFFER, 2),
    ]
    assert ledger.reader.read_with_gaps(first, 4, 1 << 20).origins[-1] == (ReadOrigin.BUFFER, 1)


def test_each_entry_is_read_from_the_nearest_of_log_buffer_and_cache() -> None:
    world = World(settings(managed_ledger_cache_size_mb=1))
    world.buffer = OffloadBuffer(1 << 20)
    world.boot()
    ledger = world.open()
    entries = [bytes([number]) * 100_000 for number in range(30)]
    first, *_ = world.append(ledger, *entries[:12])
    cached = world.store.cache.statistics.entries
    world.buffer.hold_from(ledger.name, first, ledger.layout.ids)
    world.append(ledger, *entries[12:])
    held_entries = world.buffer.statistics.entries
    assert held_entries == 5, "half of the budget"
    reading = ledger.reader.read_with_gaps(first, 99, 1 << 30)
    assert [bytes(each.data)[-1:] for each in reading.entries] == [entry[-1:] for entry in entries]
    assert reading.origins == [
        (ReadOrigin.HOT, 12 - cached),
        (ReadOrigin.BUFFER, held_entries),
        (ReadOrigin.HOT, 30 - 12 - held_entries),
        (ReadOrigin.CACHE, cached),
    ]
