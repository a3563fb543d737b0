from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from threading import Event
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.faults import Fault, FaultRule, FaultyMetadataStore
from tests.support.ledgers import TOPIC, World, settings

from afterglow.errors import CursorMissing, InvalidName, InvalidPosition, MetadataUnavailable
from afterglow.format.compression import Codec
from afterglow.format.metadata_envelope import parse_managed_cursor, serialize_managed_cursor
from afterglow.format.position import EARLIEST, LATEST, LedgerRange, Position
from afterglow.format.proto.managed_ledger_pb2 import ManagedCursorInfo
from afterglow.ledger.acks import to_words
from afterglow.ledger.cursor_codec import (
    CursorRecord,
    decode_snapshot,
    decode_state,
    encode_snapshot,
    encode_state,
)
from afterglow.metadata.memory import MemoryMetadataStore
from afterglow.metadata.paths import cursor_path

if TYPE_CHECKING:
    from afterglow.ledger.cursor import Cursor
    from afterglow.ledger.managed_ledger import ManagedLedger

PUT = frozenset({"put"})
BATCH = 70  # messages; more than one word
EVERY = to_words((1 << BATCH) - 1)


def topic(*ledgers: int, **changes: object) -> tuple[World, ManagedLedger]:
    """A topic with so many entries in each of its ledgers."""
    world = World(settings(managed_ledger_default_mark_delete_rate_limit=0.0, **changes))
    ledger = world.open()
    for number, count in enumerate(ledgers):
        if number:
            ledger.roll()
        if count:
            world.append(ledger, *[b"x"] * count)
    return world, ledger


def positions(ledger: ManagedLedger) -> list[Position]:
    return [entry.position for entry in ledger.reader.read(EARLIEST, 1000, 1 << 20)]


def unread(cursor: Cursor) -> list[Position]:
    cursor.rewind()
    return [entry.position for entry in cursor.read(1000, 1 << 20)]


def readers(ledger: ManagedLedger) -> int:
    return len(ledger.cursors.readers)


def test_a_cursor_begins_at_either_end_or_between() -> None:
    _, ledger = topic(3, 2)
    assert unread(ledger.cursors.create("first", EARLIEST)) == positions(ledger)
    assert unread(ledger.cursors.create("last", LATEST)) == []
    assert unread(ledger.cursors.create("between", Position(1, 2))) == positions(ledger)[2:]
    assert unread(ledger.cursors.create("behind", Position(1, 99))) == positions(ledger)[3:]
    assert unread(ledger.cursors.create_reader("r", Position(2, 1))) == positions(ledger)[4:]


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4)), max_size=6),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6), st.integers(0, 6)), max_size=4),
)
def test_a_range_is_acknowledged_as_its_entries_are(
    singles: list[tuple[int, int]], spans: list[tuple[int, int, int]]
) -> None:
    _, ledger = topic(4, 5, 3)
    one, other = ledger.cursors.create("one", EARLIEST), ledger.cursors.create("other", EARLIEST)
    for cursor in (one, other):
        cursor.ack([(Position(*at), None) for at in singles])
    one.ack_ranges(LedgerRange(id_, first, last) for id_, first, last in spans)
    other.ack([(Position(id_, at), None) for id_, first, last in spans for at in range(first, last + 1)])
    assert unread(one) == unread(other)
    assert (one.mark_delete, one.backlog) == (other.mark_delete, other.backlog)
    assert one.individually_acked == other.individually_acked


def test_a_cursor_at_the_end_of_an_empty_topic_reads_all_later_entries() -> None:
    world, ledger = topic()
    first, last = ledger.cursors.create("first", EARLIEST), ledger.cursors.create("last", LATEST)
    world.append(ledger, b"a", b"b")
    assert unread(first) == unread(last) == positions(ledger)
    assert first.backlog == last.backlog == 2


def test_mark_delete_runs_over_acknowledged_entries_and_across_ledgers() -> None:
    _, ledger = topic(2, 3)
    cursor = ledger.cursors.create("s", EARLIEST)
    for position in (Position(2, 0), Position(1, 1), Position(2, 2)):
        cursor.ack([(position, None)])
    assert cursor.mark_delete < Position(1, 0)
    assert cursor.individually_acked == ((1, 1, 1), (2, 0, 0), (2, 2, 2))
    assert [(span.ledger_id, span.first, span.last) for span in cursor.unacked()] == [(1, 0, 0), (2, 1, 1)]
    assert cursor.backlog == 2
    assert cursor.ack([(Position(1, 0), None), (Position(1, 0), None)]) == 1
    assert cursor.mark_delete == Position(2, 0)
    assert cursor.ack([(Position(2, 1), None)]) == 1
    assert cursor.mark_delete == Position(2, 2)
    assert cursor.backlog == len(cursor.individually_acked) == len(cursor.unacked()) == 0


def test_what_is_not_in_the_topic_is_not_acknowledged() -> None:
    world, ledger = topic(2)
    cursor = ledger.cursors.create("s", EARLIEST)
    for position in (Position(1, 2), Position(7, 0), Position(1, -1), EARLIEST, LATEST):
        assert cursor.ack([(position, None)]) == 0
    with pytest.raises(InvalidPosition):
        cursor.ack_through(Position(1, 2))
    world.append(ledger, b"later")
    assert not cursor.is_acked(Position(1, 2))
    assert cursor.backlog == 3


def test_a_cumulative_ack_does_not_reach_what_a_ledger_may_hold_later() -> None:
    world, ledger = topic(2, 1)
    cursor = ledger.cursors.create("s", EARLIEST)
    cursor.ack_through(Position(1, 77))
    assert cursor.mark_delete == Position(1, 1)
    cursor.ack_through(Position(1, 0))  # never back
    assert cursor.mark_delete == Position(1, 1)
    world.append(ledger, b"x")
    assert unread(cursor) == [Position(2, 0), Position(2, 1)]


def test_a_batch_is_acknowledged_message_by_message() -> None:
    _, ledger = topic(2)
    cursor = ledger.cursors.create("s", EARLIEST)
    position = Position(1, 0)
    without_first = to_words((1 << BATCH) - 2)
    assert cursor.ack([(position, without_first)]) == 0
    assert cursor.ack_set(position) == without_first
    assert not cursor.is_acked(position)
    assert cursor.backlog == 2
    assert cursor.ack([(position, to_words(1))]) == 1  # all but the first, which is acknowledged already
    assert cursor.ack_set(position) is None
    assert cursor.mark_delete == position


def test_a_cumulative_ack_within_a_batch_leaves_the_rest_of_it() -> None:
    _, ledger = topic(3)
    cursor = ledger.cursors.create("s", EARLIEST)
    cursor.ack([(Position(1, 0), to_words(0b110))])
    cursor.ack_through(Position(1, 1), to_words(0b100))
    assert cursor.mark_delete == Position(1, 0)
    assert cursor.ack_set(Position(1, 0)) is None
    assert cursor.ack_set(Position(1, 1)) == (0b100,)
    cursor.ack_through(Position(1, 1), ())
    assert cursor.mark_delete == Position(1, 1)


def test_reading_continues_where_it_stopped_and_skips_acknowledged_entries() -> None:
    world, ledger = topic(3, 3)
    cursor = ledger.cursors.create("s", EARLIEST)
    everything = positions(ledger)
    cursor.ack([(everything[1], None), (everything[2], None)])
    assert [entry.position for entry in cursor.read(2, 1 << 20)] == [everything[0]]
    assert [entry.position for entry in cursor.read(2, 1 << 20)] == [everything[3]]
    assert [entry.position for entry in cursor.read(9, 1)] == [everything[4]]
    assert [entry.position for entry in cursor.read(9, 1 << 20)] == [everything[5]]
    assert cursor.read(9, 1 << 20) == []
    (new,) = world.append(ledger, b"x")
    assert [entry.position for entry in cursor.read(9, 1 << 20)] == [new]
    assert cursor.mark_delete < everything[0]


@pytest.mark.parametrize(
    ("to", "lands"),
    [
        (EARLIEST, Position(1, 0)),
        (Position(1, 1), Position(1, 1)),
        (Position(1, 9), Position(2, 0)),
        (Position(2, 1), Position(2, 1)),
        (LATEST, Position(2, 2)),
        (Position(2, 50), Position(2, 2)),
    ],
)
def test_a_reset_makes_an_entry_the_next_one_and_drops_later_acks(to: Position, lands: Position) -> None:
    world, ledger = topic(2, 2)
    cursor = ledger.cursors.create("s", EARLIEST)
    cursor.ack([(Position(2, 1), None)])
    cursor.ack_through(Position(1, 0))
    assert cursor.reset(to) == lands == cursor.read_position
    remaining = [position for position in positions(ledger) if position >= lands]
    assert unread(cursor) == remaining
    assert cursor.backlog == len(remaining)
    world.crash()
    assert unread(world.open().cursors.get("s")) == remaining


def test_a_reset_into_a_batch_keeps_which_of_its_messages_are_left() -> None:
    _, ledger = topic(2)
    cursor = ledger.cursors.create("s", LATEST)
    cursor.reset(Position(1, 1), (0b100,))
    assert cursor.ack_set(Position(1, 1)) == (0b100,)
    cursor.reset(Position(1, 1))
    assert cursor.ack_set(Position(1, 1)) is None


ACKS = st.lists(
    st.tuples(
        st.sampled_from(["one", "through", "batch", "reset", "crash", "append", "roll"]),
        st.integers(0, 30),
        st.sets(st.integers(0, BATCH - 1), max_size=BATCH),
    ),
    max_size=30,
)


@given(ACKS)
def test_a_cursor_is_a_set_of_acknowledged_messages(steps: list[tuple[str, int, set[int]]]) -> None:
    """The model: which messages of which entries are not acknowledged. Everything is persisted at once."""
    world, ledger = topic(2, 2)
    cursor: Cursor = ledger.cursors.create("s", EARLIEST)
    left = {position: set(range(BATCH)) for position in positions(ledger)}
    for kind, number, messages in steps:
        entries = sorted(left)
        chosen = entries[number % len(entries)]
        if kind == "one":
            cursor.ack([(chosen, None)])
            left[chosen] = set()
        elif kind == "through":
            cursor.ack_through(chosen)
            left.update({position: set() for position in entries if position <= chosen})
        elif kind == "batch":
            cursor.ack([(chosen, to_words(sum(1 << bit for bit in range(BATCH) if bit not in messages)))])
            left[chosen] -= messages
        elif kind == "reset":
            cursor.reset(chosen)
            left = {position: set() if position < chosen else set(range(BATCH)) for position in entries}
        elif kind == "append":
            left.update({position: set(range(BATCH)) for position in world.append(ledger, b"x")})
        elif kind == "roll":
            ledger.roll()
        else:
            world.crash()
            ledger = world.open()
            cursor = ledger.cursors.get("s")
        for position, remaining in left.items():
            assert cursor.is_acked(position) == (not remaining)
            words = cursor.ack_set(position)
            if remaining:
                assert (EVERY if words is None else words) == to_words(sum(1 << bit for bit in remaining))
            else:
                assert words is None
        unacked = [position for position in sorted(left) if left[position]]
        assert cursor.backlog == len(unacked)
        assert unread(cursor) == unacked
        assert not unacked or cursor.mark_delete < unacked[0]
        # It is right before the first unacknowledged entry, with no acknowledged one between.
        following = ledger.layout.at_or_after(cursor.mark_delete.next())
        assert following == (unacked[0] if unacked else None)


def test_only_entries_with_unpersisted_acks_are_delivered_again() -> None:
    world, ledger = topic(4)
    cursor = ledger.cursors.create("s", EARLIEST)
    cursor.ack([(Position(1, 0), None), (Position(1, 2), None)])
    world.hot.held = True
    cursor.ack([(Position(1, 3), None)])
    world.crash()
    assert unread(world.open().cursors.get("s")) == [Position(1, 1), Position(1, 3)]


def test_states_are_written_at_the_configured_rate_and_the_rest_with_the_next_tick() -> None:
    world = World(settings(managed_ledger_default_mark_delete_rate_limit=1.0))
    ledger = world.open()
    world.append(ledger, *[b"x"] * 10)
    cursor = ledger.cursors.create("s", EARLIEST)
    written: list[str] = []
    world.hot.before = written.append
    for entry_id in range(10):
        cursor.ack([(Position(1, entry_id), None)])
    assert written == ["put_state"]
    ledger.tick()
    assert len(written) == 1
    world.clock.advance(1)
    ledger.tick()
    ledger.tick()
    assert len(written) == 2
    world.crash()
    assert world.open().cursors.get("s").backlog == 0


def test_a_seek_back_is_durable_at_once_whatever_the_rate() -> None:
    """If a crash lost the seek, the consumer would not get the entries again."""
    world = World(settings(managed_ledger_default_mark_delete_rate_limit=1.0))
    ledger = world.open()
    world.append(ledger, *[b"x"] * 10)
    cursor = ledger.cursors.create("s", EARLIEST)
    cursor.ack_through(Position(1, 8))  # takes the second's one state
    assert cursor.reset(Position(1, 3)) == Position(1, 3)
    world.crash()
    assert unread(world.open().cursors.get("s")) == [Position(1, entry_id) for entry_id in range(3, 10)]


def test_one_state_at_a_time_is_in_flight_and_waiters_are_notified_of_theirs() -> None:
    world, ledger = topic(5)
    cursor = ledger.cursors.create("s", EARLIEST)
    world.hot.held = True
    results: list[int] = []
    for entry_id in range(5):
        cursor.ack([(Position(1, entry_id), None)])
        cursor.flush(lambda error, number=entry_id: results.append(number if error is None else -1))  # type: ignore[misc]
    assert len(world.hot.queue) == 1
    world.hot.complete(1)
    assert results == []
    assert len(world.hot.queue) == 1, "all that came meanwhile goes together"
    world.hot.complete()
    assert results == list(range(5))


def test_a_failed_state_is_reported_and_retried() -> None:
    world, ledger = topic(1)
    cursor = ledger.cursors.create("s", EARLIEST)
    world.hot.full = True
    results: list[object] = []
    cursor.ack([(Position(1, 0), None)])
    cursor.flush(results.append)
    assert results[0] is not None
    world.hot.full = False
    world.clock.advance(1)
    ledger.tick()
    world.crash()
    assert world.open().cursors.get("s").backlog == 0


def test_a_snapshot_is_written_periodically_and_at_closing() -> None:
    world, ledger = topic(3)
    cursor = ledger.cursors.create("s", EARLIEST)
    path = cursor_path(TOPIC, "s")

    def stored() -> Position:
        found = world.metadata.get(path)
        assert found is not None
        info = parse_managed_cursor(found.value)
        assert info.cursorsLedgerId == -1
        return Position(info.markDeleteLedgerId, info.markDeleteEntryId)

    cursor.ack_through(Position(1, 0))
    ledger.tick()
    assert stored() == Position(1, -1)
    world.clock.advance(61)
    ledger.tick()
    assert stored() == Position(1, 0)
    cursor.ack_through(Position(1, 1))
    ledger.close()
    assert stored() == Position(1, 1)
    world.hot.values.clear()  # the log of states is lost: the snapshot remains
    world.crash()
    assert world.open().cursors.get("s").mark_delete == Position(1, 1)


def test_the_newer_of_state_and_snapshot_wins() -> None:
    world, ledger = topic(3)
    cursor = ledger.cursors.create("s", EARLIEST)
    cursor.ack_through(Position(1, 0))
    old = dict(world.hot.values)
    cursor.ack_through(Position(1, 1))
    cursor.snapshot()
    world.hot.values = old
    world.crash()
    assert world.open().cursors.get("s").mark_delete == Position(1, 1)


def test_a_new_cursor_with_the_name_of_a_deleted_one_begins_anew() -> None:
    world, ledger = topic(3)
    ledger.cursors.create("s", EARLIEST).clear_backlog()
    left_behind = dict(world.hot.values)
    ledger.cursors.delete("s")
    with pytest.raises(CursorMissing):
        ledger.cursors.get("s")
    with pytest.raises(CursorMissing):
        ledger.cursors.delete("s")
    assert world.metadata.get(cursor_path(TOPIC, "s")) is None
    world.hot.values = left_behind  # as after a crash before the state was removed
    world.crash()
    ledger = world.open()
    assert ledger.cursors.durable == {}
    assert ledger.cursors.create("s", EARLIEST).backlog == 3
    world.crash()
    assert world.open().cursors.get("s").backlog == 3


def test_states_without_a_cursor_are_swept_at_the_start() -> None:
    world, ledger = topic(1)
    ledger.cursors.create("s", EARLIEST).clear_backlog()
    left_behind = dict(world.hot.values)
    ledger.cursors.delete("s")
    world.hot.values = left_behind
    world.crash()
    world.store.start()
    assert world.hot.values == {}


def test_creating_an_existing_cursor_returns_it_unchanged() -> None:
    _, ledger = topic(3)
    cursor = ledger.cursors.create("s", EARLIEST, {"a": "b"})
    assert ledger.cursors.create("s", LATEST, {"c": "d"}) is cursor
    assert cursor.properties == {"a": "b"}


def test_a_creation_with_an_unknown_outcome_is_found_again() -> None:
    inner = MemoryMetadataStore()
    rules = [
        FaultRule(Fault.ERROR_AFTER, PUT, key="*/s"),
        FaultRule(Fault.ERROR_BEFORE, frozenset({"get"}), key="*/s"),
    ]
    world = World(metadata=FaultyMetadataStore(inner, rules))
    ledger = world.open()
    with pytest.raises(MetadataUnavailable):
        ledger.cursors.create("s", EARLIEST)
    assert ledger.cursors.durable == {}
    assert ledger.cursors.create("s", EARLIEST) in ledger.cursors.durable.values()


@pytest.mark.parametrize("fault", [Fault.ERROR_AFTER, Fault.LOST, Fault.CONFLICT])
def test_snapshots_and_deletions_succeed_despite_faults(fault: Fault) -> None:
    store = FaultyMetadataStore(
        MemoryMetadataStore(),
        [FaultRule(fault, PUT, key="*/s", skip=1), FaultRule(fault, frozenset({"delete"}), key="*/s")],
    )
    world = World(metadata=store)
    ledger = world.open()
    cursor = ledger.cursors.create("s", EARLIEST)
    cursor.set_properties({"k": "v"})
    world.crash()
    ledger = world.open()
    assert ledger.cursors.get("s").properties == {"k": "v"}
    ledger.cursors.delete("s")
    assert len(store.injected) == 2
    world.crash()
    assert world.open().cursors.durable == {}


def test_a_name_that_needs_encoding_is_restored() -> None:
    world, ledger = topic()
    ledger.cursors.create("a b/ü", EARLIEST)
    with pytest.raises(InvalidName):
        ledger.cursors.create("", EARLIEST)
    world.crash()
    assert [cursor.name for cursor in world.open().cursors.durable.values()] == ["a b/ü"]


def test_a_reader_is_in_memory_only_and_dropped_with_its_last_reference() -> None:
    world, ledger = topic(2)
    reader = ledger.cursors.create_reader("r", EARLIEST)
    reader.ack_through(Position(1, 0))
    assert unread(reader) == [Position(1, 1)]
    assert ledger.cursors.durable == {}
    assert readers(ledger) == 1
    del reader
    assert readers(ledger) == 0
    world.crash()
    assert world.open().cursors.durable == {}


def test_creating_a_cursor_does_not_block_others() -> None:
    class Held(MemoryMetadataStore):
        def __init__(self) -> None:
            super().__init__()
            self.reached, self.go_on = Event(), Event()

        def put(self, path: str, value: bytes, expected_version: int, *, guard: str | None = None) -> int:
            if path == cursor_path(TOPIC, "new"):
                self.reached.set()
                assert self.go_on.wait(30)
            return super().put(path, value, expected_version, guard=guard)

    metadata = Held()
    ledger = World(settings(), metadata).open()
    ledger.cursors.create("old", EARLIEST)

    def peek() -> list[str]:
        ledger.cursors.limit_rate(3.0)
        ledger.cursors.create_reader("r", EARLIEST)
        return [cursor.name for cursor in ledger.cursors.durable.values()]

    with ThreadPoolExecutor(2) as pool:
        making = pool.submit(ledger.cursors.create, "new", EARLIEST)
        assert metadata.reached.wait(30)
        looking = pool.submit(peek)
        done, _ = wait([looking], 5)
        metadata.go_on.set()
        assert done
        assert looking.result() == ["old"]
        assert making.result().name == "new"
    assert {cursor._interval_s for cursor in ledger.cursors.durable.values()} == {1 / 3}


def test_only_so_many_ranges_survive_as_configured() -> None:
    world, ledger = topic(20, managed_ledger_max_unacked_ranges_to_persist=3)
    cursor = ledger.cursors.create("s", EARLIEST)
    cursor.ack([(Position(1, entry_id), None) for entry_id in range(1, 20, 2)])
    world.crash()
    assert world.open().cursors.get("s").individually_acked == ((1, 1, 1), (1, 3, 3), (1, 5, 5))


def test_a_snapshot_that_is_too_large_leaves_the_last_ranges_to_the_state() -> None:
    world = World(
        settings(managed_ledger_default_mark_delete_rate_limit=0.0), MemoryMetadataStore(max_value_bytes=2000)
    )
    ledger = world.open()
    world.append(ledger, *[b"x"] * 400)
    cursor = ledger.cursors.create("s", EARLIEST)
    cursor.ack([(Position(1, entry_id), None) for entry_id in range(1, 400, 2)])
    ledger.close()
    found = world.metadata.get(cursor_path(TOPIC, "s"))
    assert found is not None
    assert 0 < len(parse_managed_cursor(found.value).individualDeletedMessages) < 200
    world.crash()
    assert world.open().cursors.get("s").backlog == 200


def test_numbers_of_the_last_acknowledgement_survive() -> None:
    world, ledger = topic(2)
    cursor = ledger.cursors.create("s", EARLIEST)
    cursor.ack_through(Position(1, 0), position_properties={"n": 5})
    cursor.ack_through(Position(1, 1))
    world.crash()
    assert world.open().cursors.get("s").position_properties == {"n": 5}


POSITION = st.builds(Position, st.integers(-1, 2**40), st.integers(-1, 2**40))
RECORDS = st.builds(
    CursorRecord,
    POSITION,
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(9, 20)), max_size=4).map(tuple),
    st.lists(st.tuples(POSITION, st.sets(st.integers(0, 200)).map(lambda s: to_words(sum(1 << b for b in s))))).map(
        tuple
    ),
    st.dictionaries(st.text(max_size=5), st.integers(-(2**63), 2**63 - 1), max_size=3),
    st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
)


@given(RECORDS)
def test_both_codecs_give_back_what_they_were_given(record: CursorRecord) -> None:
    assert decode_snapshot(encode_snapshot(record, Codec.LZ4, 50)) == record
    state = decode_state(encode_state(record))
    assert state.properties == {}
    assert (state.mark_delete, state.ranges, state.batches) == (record.mark_delete, record.ranges, record.batches)
    assert (state.position_properties, state.cursor_id, state.sequence) == (
        record.position_properties,
        record.cursor_id,
        record.sequence,
    )


def test_a_cursor_that_pulsar_keeps_in_a_ledger_begins_at_its_last_snapshot() -> None:
    with_snapshot = ManagedCursorInfo(cursorsLedgerId=7, markDeleteLedgerId=3, markDeleteEntryId=4)
    assert decode_snapshot(serialize_managed_cursor(with_snapshot)).mark_delete == Position(3, 4)
    assert decode_snapshot(serialize_managed_cursor(ManagedCursorInfo(cursorsLedgerId=7))).mark_delete == EARLIEST
