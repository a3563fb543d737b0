from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from tests.support.crash_points import CrashingMetadataStore
from tests.support.faults import Fault, FaultRule, FaultyMetadataStore
from tests.support.ledgers import TOPIC, Receipts, World, settings
from tests.support.sends import Send, entries_of

from afterglow.config import BrokerConfig
from afterglow.errors import (
    DiskFull,
    Fenced,
    HotLogError,
    LedgerClosed,
    MetadataUnavailable,
    TopicClosed,
    TopicTerminated,
)
from afterglow.format.entry import decode_entry, encode_entry, split_broker_metadata
from afterglow.format.new_entries import EntryTable
from afterglow.format.position import EARLIEST, Position
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
from afterglow.format.proto.pulsar_api_pb2 import MessageMetadata
from afterglow.ledger.ledger_list import LedgerEnd, add_ledger, finish_ledger
from afterglow.ledger.properties import set_text
from afterglow.ledger.store import LedgerStore
from afterglow.metadata.memory import MemoryMetadataStore

if TYPE_CHECKING:
    from afterglow.ledger.managed_ledger import ManagedLedger

PUT = frozenset({"put"})
METADATA = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)


def stamps(ledger: ManagedLedger) -> list[tuple[int, int]]:
    """Broker time and index of every entry."""
    found = []
    for entry in ledger.reader.read(EARLIEST, 10_000, 1 << 30):
        metadata, _ = split_broker_metadata(entry.data)
        assert metadata is not None
        found.append((metadata.broker_timestamp, metadata.index))
    return found


def payloads(ledger: ManagedLedger) -> list[bytes]:
    return [bytes(split_broker_metadata(entry.data)[1]) for entry in ledger.reader.read(EARLIEST, 10_000, 1 << 30)]


def test_opening_a_topic_to_read_it_writes_no_ledger() -> None:
    world = World()
    ledger = world.open()
    assert ledger.reader.read(EARLIEST, 10, 1000) == []
    assert world.hot.ledgers() == ()
    assert ledger.layout.total_entries == 0


def test_entries_are_read_as_sent_after_the_broker_entry_metadata() -> None:
    world = World()
    ledger = world.open()
    assert world.append(ledger, b"one", b"two", b"") == [Position(1, 0), Position(1, 1), Position(1, 2)]
    assert payloads(ledger) == [b"one", b"two", b""]
    assert ledger.size_bytes == sum(len(entry.data) for entry in ledger.reader.read(EARLIEST, 10, 1000))


def test_a_piece_by_piece_entry_is_joined() -> None:
    world = World()
    ledger = world.open()
    receipts = Receipts()
    ledger.append((b"on", memoryview(b"e"), bytearray(b"!")), 1, receipts)
    world.settle()
    assert payloads(ledger) == [b"one!"]


def test_the_index_counts_messages_and_an_entry_has_that_of_its_last() -> None:
    world = World()
    ledger = world.open()
    for messages in (1, 3, 0, 2):
        world.append(ledger, b"x", messages=messages)
    assert [index for _, index in stamps(ledger)] == [0, 3, 3, 5]
    assert ledger.last_stamp.index == 5


def test_broker_time_never_decreases_whatever_the_clock_does() -> None:
    world = World()
    ledger = world.open()
    start = world.clock.now_ms()
    for now_ms in (start, start + 50, start - 1_000_000, start + 20, start + 60):
        world.clock.set_now_ms(now_ms)
        world.append(ledger, b"x")
    assert [time for time, _ in stamps(ledger)] == [start, start + 50, start + 50, start + 50, start + 60]
    world.clock.set_now_ms(start - 5_000)
    world.crash()
    ledger = world.open()
    world.append(ledger, b"x")
    assert stamps(ledger)[-1] == (start + 60, 5)


def test_without_interceptors_entries_are_stored_bare() -> None:
    world = World(settings(broker_entry_metadata_interceptors=()))
    ledger = world.open()
    world.append(ledger, b"bare")
    assert ledger.reader.read(EARLIEST, 1, 1)[0].data == b"bare"
    assert ledger.last_stamp.index is None


def test_index_and_time_go_on_after_a_spell_without_interceptors() -> None:
    world = World()
    world.append(world.open(), b"a", b"b")
    stamped = world.config
    world.config = settings(broker_entry_metadata_interceptors=())
    world.crash()
    world.append(world.open(), b"c")
    world.config = stamped
    world.crash()
    ledger = world.open()
    world.append(ledger, b"d")
    metadata, _ = split_broker_metadata(ledger.reader.read(ledger.layout.last, 1, 1)[0].data)
    assert metadata is not None
    assert metadata.index == 2


def test_receipts_are_sent_in_order_and_only_when_durable() -> None:
    world = World()
    ledger = world.open()
    world.append(ledger, b"first")
    world.hot.held = True
    receipts = Receipts()
    for number in range(5):
        ledger.append((b"%d" % number,), 1, receipts)
    assert receipts.outcomes == []
    assert ledger.layout.last == Position(1, 0)
    world.hot.complete(2)
    assert receipts.positions == [Position(1, 1), Position(1, 2)]
    assert ledger.layout.last == Position(1, 2)
    world.hot.complete()
    assert receipts.positions == [Position(1, entry_id) for entry_id in range(1, 6)]


def entry_table(*payloads: bytes, messages: int = 1) -> EntryTable:
    """Entries as a producer's SENDs bring them, in a receive buffer that is used again."""
    sends = [Send(1, number, encode_entry(METADATA, payload), messages) for number, payload in enumerate(payloads)]
    ((_, entries),) = entries_of(sends)
    assert isinstance(entries, EntryTable)
    return entries


def texts(ledger: ManagedLedger) -> list[bytes]:
    return [bytes(decode_entry(payload).payload) for payload in payloads(ledger)]


def test_many_entries_are_appended_together_with_consecutive_ids_and_indexes() -> None:
    world = World()
    ledger = world.open()
    world.append(ledger, encode_entry(METADATA, b"before"))
    receipts = Receipts()
    ledger.append_all(entry_table(b"a", b"b", b"c", messages=10), receipts)
    ledger.append_all(entry_table(b"d", b"e"), receipts)
    world.settle()
    assert receipts.positions == [Position(1, 1), Position(1, 4)]
    assert ledger.layout.last == Position(1, 5)
    assert texts(ledger) == [b"before", b"a", b"b", b"c", b"d", b"e"]
    assert [index for _, index in stamps(ledger)] == [0, 10, 20, 30, 31, 32]
    world.crash()
    assert texts(world.open()) == [b"before", b"a", b"b", b"c", b"d", b"e"]


def test_entries_that_wait_for_a_ledger_do_not_change_with_the_receive_buffer() -> None:
    world = World()
    ledger = world.open()
    receipts = Receipts()
    entries = entry_table(b"first", b"second")
    ledger.append_all(entries, receipts)
    assert receipts.outcomes == []
    entries.data[:] = 0
    world.settle()
    assert texts(ledger) == [b"first", b"second"]


def test_entries_that_fail_together_fail_once_and_revoke_all_their_indexes() -> None:
    world = World()
    ledger = world.open()
    world.append(ledger, encode_entry(METADATA, b"a"))
    world.hot.held = True
    receipts = Receipts()
    ledger.append_all(entry_table(b"b", b"c", b"d"), receipts)
    world.hot.full = True
    world.settle()
    assert [type(outcome) for outcome in receipts.outcomes] == [DiskFull]
    world.hot.full = world.hot.held = False
    world.clock.advance(10)
    assert world.append(ledger, encode_entry(METADATA, b"e"))
    assert texts(ledger) == [b"a", b"e"]
    assert [index for _, index in stamps(ledger)] == [0, 1]


def test_appends_wait_in_memory_while_the_first_ledger_is_made() -> None:
    world = World()
    ledger = world.open()
    receipts = Receipts()
    ledger.append((b"a",), 1, receipts)
    ledger.append((b"b",), 1, receipts)
    assert receipts.outcomes == []
    world.settle()
    assert receipts.positions == [Position(1, 0), Position(1, 1)]


def test_a_failed_append_fails_all_later_ones_and_revokes_their_indexes() -> None:
    world = World()
    ledger = world.open()
    world.append(ledger, b"a", b"b")
    world.hot.held = True
    receipts = Receipts()
    for payload in (b"c", b"d", b"e"):
        ledger.append((payload,), 1, receipts)
    world.hot.complete(1)
    world.hot.full = True
    world.hot.complete()
    assert receipts.positions == [Position(1, 2)]
    assert [type(error) for error in receipts.errors] == [DiskFull, DiskFull]
    assert payloads(ledger) == [b"a", b"b", b"c"]  # reading continues
    world.hot.full = world.hot.held = False
    assert world.append(ledger, b"f") == [Position(2, 0)]
    assert [index for _, index in stamps(ledger)] == [0, 1, 2, 3]


def test_a_full_disk_is_asked_again_with_back_off_and_writing_resumes() -> None:
    world = World()
    ledger = world.open()
    world.append(ledger, b"a")
    world.hot.full = True
    receipts = Receipts()
    ledger.append((b"b",), 1, receipts)  # the append itself fails
    for _ in range(3):
        ledger.append((b"c",), 1, receipts)  # the attempt to get a new ledger fails, and then there is a pause
        world.settle()
    assert [type(error) for error in receipts.errors] == [DiskFull] * 4
    world.hot.full = False
    ledger.append((b"d",), 1, receipts)
    world.settle()
    assert len(receipts.errors) == 5, "no attempt during the pause"
    world.clock.advance(10)
    assert world.append(ledger, b"e") == [Position(2, 0)]
    assert payloads(ledger) == [b"a", b"e"]
    assert [index for _, index in stamps(ledger)] == [0, 1]


def test_appends_go_on_in_the_old_ledger_until_the_next_is_there() -> None:
    world = World(settings(managed_ledger_max_entries_per_ledger=2))
    ledger = world.open()
    world.append(ledger, b"a")
    receipts = Receipts()
    for payload in (b"b", b"c", b"d"):
        ledger.append((payload,), 1, receipts)
    assert receipts.positions == [Position(1, 1), Position(1, 2), Position(1, 3)]
    world.settle()
    assert world.append(ledger, b"e") == [Position(2, 0)]
    assert [(record.ledger_id, record.entries) for record in ledger.ledgers] == [(1, 4), (2, None)]
    assert world.hot.open(1).closed


def test_appends_keep_their_order_across_a_switch_with_some_in_flight() -> None:
    world = World(settings(managed_ledger_max_entries_per_ledger=2))
    ledger = world.open()
    world.append(ledger, b"0")
    world.hot.held = True
    receipts = Receipts()
    for payload in (b"1", b"2"):
        ledger.append((payload,), 1, receipts)
    world.executor.run_all()  # the next ledger is there, and the old one has two in flight
    for payload in (b"3", b"4"):
        ledger.append((payload,), 1, receipts)
    assert len(world.hot.queue) == 2, "held back until the old ledger is done"
    world.settle()
    assert receipts.positions == [Position(1, 1), Position(1, 2), Position(2, 0), Position(2, 1)]
    assert payloads(ledger) == [b"0", b"1", b"2", b"3", b"4"]
    assert [index for _, index in stamps(ledger)] == list(range(5))


def test_a_failure_in_the_old_ledger_fails_what_waits_for_the_next() -> None:
    world = World(settings(managed_ledger_max_entries_per_ledger=2))
    ledger = world.open()
    world.append(ledger, b"0")
    world.hot.held = True
    receipts = Receipts()
    ledger.append((b"1",), 1, receipts)
    world.executor.run_all()
    ledger.append((b"2",), 1, receipts)
    world.hot.full = True
    world.hot.complete()
    assert [type(outcome) for outcome in receipts.outcomes] == [DiskFull, DiskFull]
    world.hot.full = world.hot.held = False
    world.append(ledger, b"3")
    assert payloads(ledger) == [b"0", b"3"]
    assert [index for _, index in stamps(ledger)] == [0, 1]
    world.crash()
    assert payloads(world.open()) == [b"0", b"3"]


def test_appends_held_after_a_failed_one_fail_although_the_next_ledger_could_take_them() -> None:
    """Otherwise a producer's later message would be acknowledged without the one before it."""
    world = World(settings(managed_ledger_max_entries_per_ledger=2))
    ledger = world.open()
    world.append(ledger, b"0")
    world.hot.held = True
    receipts = Receipts()
    ledger.append((b"1",), 1, receipts)
    world.executor.run_all()  # the next ledger is there
    ledger.append((b"2",), 1, receipts)
    world.hot.open(1).fail(HotLogError("a sync failed"))
    world.hot.held = False
    world.settle()
    assert [type(outcome) for outcome in receipts.outcomes] == [HotLogError, HotLogError]
    world.append(ledger, b"3")
    assert payloads(ledger) == [b"0", b"3"]
    assert [index for _, index in stamps(ledger)] == [0, 1]


def test_no_ledger_follows_a_failed_one_whose_end_is_uncertain(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    ledger = world.open()
    world.append(ledger, b"a")
    world.hot.full = True
    with pytest.raises(DiskFull):
        world.append(ledger, b"b")
    world.hot.full = False

    def not_yet() -> None:
        raise HotLogError("what failed may come back")

    with monkeypatch.context() as patch:
        patch.setattr(world.hot.open(1), "close", not_yet)
        with pytest.raises(HotLogError, match="come back"):
            world.append(ledger, b"c")
        assert [record.ledger_id for record in ledger.ledgers if record.finished] == []
    world.clock.advance(10)
    world.append(ledger, b"d")
    assert payloads(ledger) == [b"a", b"d"]


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        ({"managed_ledger_max_entries_per_ledger": 3}, [3, 3, 2]),
        ({"managed_ledger_max_size_per_ledger_mbytes": 1}, [3, 3, 2]),
    ],
)
def test_a_ledger_is_full_by_entries_or_by_size(changes: dict[str, object], sizes: list[int]) -> None:
    world = World(settings(**changes))
    ledger = world.open()
    for _ in range(8):
        world.append(ledger, bytes(350 * 1024))
    layout = ledger.layout
    assert [layout.entries_at(at) for at in range(len(layout.ids))] == sizes


def test_a_ledger_is_rolled_over_by_age_but_not_while_young() -> None:
    world = World(
        BrokerConfig(
            managed_ledger_max_entries_per_ledger=1,
            managed_ledger_min_ledger_rollover_time_minutes=10,
            managed_ledger_max_ledger_rollover_time_minutes=30,
        )
    )
    ledger = world.open()
    world.append(ledger, b"a", b"b")
    assert ledger.writing_to == 1
    world.clock.advance(601)
    ledger.tick()
    world.settle()
    assert ledger.writing_to == 2
    world.clock.advance(31 * 60)
    ledger.tick()
    world.settle()
    assert ledger.writing_to == 2, "an empty ledger is not rolled over"


def test_an_idle_ledger_is_closed_after_the_configured_time() -> None:
    world = World(settings(managed_ledger_inactive_ledger_rollover_time_seconds=5))
    ledger = world.open()
    world.append(ledger, b"a")
    world.clock.advance(4)
    ledger.tick()
    world.settle()
    assert ledger.writing_to == 1
    world.clock.advance(1)
    ledger.tick()
    world.settle()
    assert ledger.writing_to == 2


def test_a_ledger_that_fails_while_the_next_is_made_is_on_record_before_that_is_used() -> None:
    """What a crash recovers of it may be longer: an entry in the next ledger must not come before that is settled."""
    metadata = CrashingMetadataStore(MemoryMetadataStore())
    world = World(settings(managed_ledger_max_entries_per_ledger=2), metadata)
    ledger = world.open()
    world.append(ledger, b"0")
    world.hot.held = True
    receipts = Receipts()
    ledger.append((b"1",), 1, receipts)  # the ledger is full, and the next is asked for

    def fail_meanwhile(_effect: str) -> None:
        if not receipts.errors:
            world.hot.open(1).fail(HotLogError("a sync failed"))

    metadata.before = fail_meanwhile  # type: ignore[assignment]  # anything that is called before an effect
    world.executor.run_all()
    world.hot.held = False
    assert [type(outcome) for outcome in receipts.outcomes] == [HotLogError]
    ended = []

    def peek(effect: str) -> None:
        if effect == "append":
            ended.append(
                [ledger_info.entries for ledger_info in ledger.info.ledgerInfo if ledger_info.HasField("entries")]
            )

    world.hot.before = peek
    world.append(ledger, b"2")
    assert ended == [[1]]
    assert payloads(ledger) == [b"0", b"2"]


def test_how_a_ledger_ended_is_recorded_once() -> None:
    """An edit may be applied again when another has recovered the ledger, and found more in it."""
    info = ManagedLedgerInfo()
    add_ledger(info, 1)
    finish_ledger(info, LedgerEnd(1, 5, 50, None), now_ms=1)
    finish_ledger(info, LedgerEnd(1, 3, 30, None), now_ms=2)
    (ledger_info,) = info.ledgerInfo
    assert (ledger_info.entries, ledger_info.size, ledger_info.timestamp) == (5, 50, 1)


def test_roll_over_that_metadata_refuses_is_tried_again_with_the_same_ledger() -> None:
    inner = MemoryMetadataStore()
    world = World(settings(managed_ledger_max_entries_per_ledger=2), inner)
    ledger = world.open()
    world.append(ledger, b"a")
    faulty = FaultyMetadataStore(inner, [FaultRule(Fault.ERROR_BEFORE, PUT, times=2)])
    ledger._metadata._store = faulty
    world.append(ledger, b"b", b"c")
    assert len(faulty.injected) == 1
    assert ledger.writing_to == 1
    for _ in range(3):
        world.clock.advance(10)
        world.append(ledger, b"d")
    assert ledger.writing_to == 2
    assert world.hot.ledgers() == (1, 2)


def test_without_metadata_a_topic_without_ledger_refuses_and_recovers() -> None:
    inner = MemoryMetadataStore()
    faulty = FaultyMetadataStore(inner, [FaultRule(Fault.ERROR_BEFORE, PUT, skip=1, times=1)])
    world = World(metadata=faulty)
    ledger = world.open()
    with pytest.raises(MetadataUnavailable):
        world.append(ledger, b"a")
    world.clock.advance(10)
    assert world.append(ledger, b"b") == [Position(1, 0)]


def test_a_second_opener_fences_the_first() -> None:
    world = World()
    first = world.open()
    world.append(first, b"a")
    other = LedgerStore(
        hot=world.hot,
        states=world.hot,
        metadata=world.metadata,
        config=world.config,
        executor=world.executor,
        clock=world.clock,
    )
    second = other.open(TOPIC)
    receipts = Receipts()
    first.append((b"zombie",), 1, receipts)
    world.settle()
    first.append((b"zombie",), 1, receipts)
    world.settle()
    first.append((b"zombie",), 1, receipts)
    assert [type(error) for error in receipts.errors] == [LedgerClosed, Fenced, Fenced]
    with pytest.raises(Fenced):
        first.update(lambda info: set_text(info, "zombie", "1"))
    world.append(second, b"b")
    assert payloads(second) == [b"a", b"b"]


def test_a_terminated_topic_refuses_appends_for_ever_and_is_read_on() -> None:
    world = World()
    ledger = world.open()
    world.append(ledger, b"a", b"b")
    woken: list[int] = []
    ledger.on_append(lambda: woken.append(1))
    assert ledger.terminate() == Position(1, 1) == ledger.terminated == ledger.terminate()
    assert woken, "waiting readers learn that nothing more comes"
    for _ in range(2):
        with pytest.raises(TopicTerminated):
            world.append(ledger, b"c")
        assert payloads(ledger) == [b"a", b"b"]
        assert ledger.terminated == Position(1, 1)
        world.crash()
        ledger = world.open()


def test_terminating_waits_for_what_is_in_flight() -> None:
    world = World()
    ledger = world.open()
    world.append(ledger, b"a")
    world.hot.held = True
    receipts = Receipts()
    ledger.append((b"b",), 1, receipts)
    assert ledger.terminate() == Position(1, 1)
    assert receipts.positions == [Position(1, 1)]


def test_an_empty_topic_can_be_terminated() -> None:
    world = World()
    assert world.open().terminate() == EARLIEST
    world.crash()
    assert world.open().terminated == EARLIEST


@pytest.mark.parametrize(("fault", "happened"), [(Fault.ERROR_AFTER, True), (Fault.ERROR_BEFORE, False)])
def test_a_termination_with_an_unknown_outcome_is_resolved_by_the_next_append(
    fault: Fault,
    happened: bool,  # noqa: FBT001
) -> None:
    world = World()
    ledger = world.open()
    world.append(ledger, b"a")
    ledger._metadata._store = FaultyMetadataStore(
        world.metadata, [FaultRule(fault, PUT, times=1), FaultRule(Fault.ERROR_BEFORE, frozenset({"get"}), times=1)]
    )
    with pytest.raises(MetadataUnavailable):
        ledger.terminate()
    if not happened:  # the second fault is still to come
        with pytest.raises(MetadataUnavailable):
            world.append(ledger, b"x")
        world.clock.advance(10)
    receipts = Receipts()
    ledger.append((b"b",), 1, receipts)
    world.settle()
    assert bool(receipts.errors) == happened
    assert payloads(ledger) == ([b"a"] if happened else [b"a", b"b"])


def test_a_closed_topic_refuses_appends_and_is_opened_anew() -> None:
    world = World()
    ledger = world.open()
    world.append(ledger, b"a")
    ledger.close()
    ledger.close()
    with pytest.raises(TopicClosed):
        world.append(ledger, b"b")
    assert [(record.ledger_id, record.entries) for record in ledger.ledgers] == [(1, 1)]
    again = world.open()
    assert again is not ledger
    world.append(again, b"c")
    assert payloads(again) == [b"a", b"c"]


def test_a_callback_that_fails_does_not_affect_the_others() -> None:
    world = World()
    ledger = world.open()

    def broken(_outcome: object) -> None:
        raise RuntimeError("a mistake of the caller")

    ended = ledger.on_append(lambda: broken(None))
    receipts = Receipts()
    ledger.append((b"a",), 1, broken)
    ledger.append((b"b",), 1, receipts)
    world.settle()
    assert receipts.positions == [Position(1, 1)]
    ended()
    ended()


def test_an_append_from_within_a_callback_is_taken() -> None:
    world = World()
    ledger = world.open()
    receipts = Receipts()

    def again(_outcome: object) -> None:
        ledger.append((b"second",), 1, receipts)

    ledger.append((b"first",), 1, again)
    world.settle()
    assert payloads(ledger) == [b"first", b"second"]


def test_many_threads_append_at_once_and_nothing_is_lost_or_reordered() -> None:
    seed = random.SystemRandom().getrandbits(32)
    world = World(settings(managed_ledger_max_entries_per_ledger=50))
    with ThreadPoolExecutor(2) as pool:
        store = LedgerStore(
            hot=world.hot, states=world.hot, metadata=world.metadata, config=world.config, executor=pool
        )
        ledger = store.open(TOPIC)
        lock = threading.Lock()
        recorded_removal: list[Position] = []
        finished = threading.Semaphore(0)

        def done(outcome: object) -> None:
            assert isinstance(outcome, Position), (outcome, seed)
            with lock:
                recorded_removal.append(outcome)
            finished.release()

        def produce(number: int) -> None:
            for at in range(100):
                ledger.append((b"%d:%d" % (number, at),), 1, done)

        threads = [threading.Thread(target=produce, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for _ in range(400):
            assert finished.acquire(timeout=30)
        assert recorded_removal == sorted(recorded_removal), seed
        found = payloads(ledger)
        for number in range(4):
            mine = [payload for payload in found if payload.startswith(b"%d:" % number)]
            assert mine == [b"%d:%d" % (number, at) for at in range(100)]
        assert [index for _, index in stamps(ledger)] == list(range(400))
        store.close()
