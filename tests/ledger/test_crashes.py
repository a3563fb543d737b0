"""Every scenario is run with an end of the process before each of its effects; then it must be whole again."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from tests.support.crash_points import Crashed, CrashingMetadataStore, CrashPoint
from tests.support.ledgers import TOPIC, Receipts, World, settings

from afterglow.errors import AfterglowError, HotLogError
from afterglow.format.entry import split_broker_metadata
from afterglow.format.metadata_envelope import parse_managed_ledger
from afterglow.format.position import EARLIEST
from afterglow.ledger.properties import get_pending_deletes
from afterglow.ledger.retention import Retention
from afterglow.metadata.memory import MemoryMetadataStore
from afterglow.metadata.paths import managed_ledger_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.ledger.managed_ledger import ManagedLedger


class Life:
    """A world that ends before a given effect, and what was promised to its producers until then."""

    def __init__(self, at: int | None, **changes: object) -> None:
        self.store = CrashingMetadataStore(MemoryMetadataStore())
        self.world = World(settings(**changes), self.store)
        self.acknowledged: list[bytes] = []
        self.sent = 0
        self._prepare()
        self.point = CrashPoint(at)
        self.store.before = self.world.hot.before = self.point

    def _prepare(self) -> None:
        ledger = self.world.open()
        ledger.cursors.create("s", EARLIEST)
        self.send(ledger, 3)

    def send(self, ledger: ManagedLedger, count: int) -> None:
        for _ in range(count):
            payload = b"%d" % self.sent
            self.sent += 1

            def done(outcome: object, payload: bytes = payload) -> None:
                if not isinstance(outcome, AfterglowError):
                    self.acknowledged.append(payload)

            ledger.append((payload,), 1, done)
            self.world.settle()

    def crash(self) -> World:
        self.store.before = CrashPoint()
        self.world.crash()
        return self.world


def payloads(ledger: ManagedLedger) -> list[bytes]:
    return [bytes(split_broker_metadata(entry.data)[1]) for entry in ledger.reader.read(EARLIEST, 1000, 1 << 20)]


def indexes(ledger: ManagedLedger) -> list[int]:
    found = []
    for entry in ledger.reader.read(EARLIEST, 1000, 1 << 20):
        metadata, _ = split_broker_metadata(entry.data)
        assert metadata is not None
        found.append(metadata.index)
    return found


def roll(life: Life) -> None:
    """Roll-over by a full ledger, twice, with appends all along."""
    life.send(life.world.store.open(TOPIC), 5)


def roll_after_failure(life: Life) -> None:
    ledger = life.world.store.open(TOPIC)
    life.world.hot.full = True
    ledger.append((b"lost",), 1, Receipts())
    life.world.settle()
    life.world.hot.full = False
    life.world.clock.advance(10)
    life.send(ledger, 2)


def close_and_open(life: Life) -> None:
    life.world.store.open(TOPIC).close()
    life.send(life.world.store.open(TOPIC), 2)


def acknowledge(life: Life) -> None:
    ledger = life.world.store.open(TOPIC)
    ledger.roll()
    life.send(ledger, 1)
    ledger.cursors.get("s").clear_backlog()


SCENARIOS = [roll, roll_after_failure, close_and_open, acknowledge]


def effects(scenario: Callable[[Life], None], **changes: object) -> int:
    life = Life(None, **changes)
    scenario(life)
    return len(life.point.effects)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_crash_before_any_step_loses_nothing_acknowledged(scenario: Callable[[Life], None]) -> None:
    count = effects(scenario, managed_ledger_max_entries_per_ledger=4)
    assert count >= 4
    for at in range(count):
        life = Life(at, managed_ledger_max_entries_per_ledger=4)
        with pytest.raises(Crashed):
            scenario(life)
        world = life.crash()
        ledger = world.open()
        found = payloads(ledger)
        sent = [payload for payload in found if payload != b"lost"]
        assert sent[: len(life.acknowledged)] == life.acknowledged, at
        assert sent == [b"%d" % number for number in range(len(sent))], at
        world.append(ledger, b"after")
        assert indexes(ledger) == list(range(len(found) + 1)), at
        check_hot_log(world, at)
        # Once more, with nothing between: a recovery that crashes is recovered.
        world.crash()
        assert payloads(world.open()) == [*found, b"after"], at


@pytest.mark.parametrize("scenario", [roll, close_and_open])
def test_recovery_itself_may_crash_before_any_step(scenario: Callable[[Life], None]) -> None:
    for at in range(effects(scenario, managed_ledger_max_entries_per_ledger=4)):
        for again in range(20):
            life = Life(at, managed_ledger_max_entries_per_ledger=4)
            with suppress(Crashed):
                scenario(life)
            world = life.crash()
            life.store.before = world.hot.before = CrashPoint(again)
            try:
                world.store.start()
                payloads(world.open())
            except Crashed:
                pass
            else:
                break
            world = life.crash()
            found = payloads(world.open())
            assert found[: len(life.acknowledged)] == life.acknowledged, (at, again)
        else:
            pytest.fail("recovery never came to its end")


def trim(life: Life) -> None:
    ledger = life.world.store.open(TOPIC)
    ledger.roll()
    life.send(ledger, 1)
    ledger.cursors.get("s").clear_backlog()
    ledger.cursors.get("s").flush()
    ledger.retention = Retention(0, 0)
    assert ledger.trim()


def truncate(life: Life) -> None:
    life.world.store.open(TOPIC).trimmer.truncate()


@pytest.mark.parametrize("scenario", [trim, truncate])
def test_a_crash_while_trimming_leaves_all_of_a_ledger_or_nothing(scenario: Callable[[Life], None]) -> None:
    whole = Life(None)
    scenario(whole)
    for at in range(len(whole.point.effects)):
        life = Life(at)
        with pytest.raises(Crashed):
            scenario(life)
        world = life.crash()
        ledger = world.open()
        assert payloads(ledger) == life.acknowledged[len(life.acknowledged) - ledger.layout.total_entries :]
        world.append(ledger, b"after")
        first, *rest = indexes(ledger)
        assert rest == list(range(first + 1, first + 1 + len(rest)))
        assert first + len(rest) == len(life.acknowledged)
        check_hot_log(world, at)


def test_a_deletion_that_crashed_is_finished_by_the_next_start() -> None:
    whole = Life(None)
    whole.world.store.delete(TOPIC)
    count = len(whole.point.effects)
    assert count >= 5
    for at in range(count):
        life = Life(at)
        with pytest.raises(Crashed):
            life.world.store.delete(TOPIC)
        world = life.crash()
        intent = not world.store.exists(TOPIC)
        report = world.store.start()
        world.settle()
        assert bool(report.deleted_topics) == intent, at
        assert world.store.exists(TOPIC) == (not intent)
        if intent:
            assert life.store.get(managed_ledger_path(TOPIC)) is None
            assert world.hot.ledgers() == ()
            assert dict(world.hot.state()) == {}
        else:
            assert payloads(world.open()) == life.acknowledged


def test_opening_a_topic_whose_deletion_crashed_finishes_that_first() -> None:
    life = Life(4)
    with pytest.raises(Crashed):
        life.world.store.delete(TOPIC)
    world = life.crash()
    ledger = world.open()
    assert (ledger.layout.total_entries, ledger.cursors.durable) == (0, {})
    assert world.append(ledger, b"new life")[0].ledger_id > 1


def test_durable_appends_without_a_completion_are_kept_in_order_and_counted() -> None:
    for survivors in range(4):
        life = Life(None)
        life.world.hot.held = True
        receipts = Receipts()
        ledger = life.world.open()
        for payload in (b"x", b"y", b"z"):
            ledger.append((payload,), 2, receipts)
        life.world.crash(survivors)
        ledger = life.world.open()
        assert payloads(ledger) == [b"0", b"1", b"2", *[b"x", b"y", b"z"][:survivors]]
        life.world.append(ledger, b"after")
        assert indexes(ledger) == [0, 1, 2, *[4, 6, 8][:survivors], 3 + 2 * survivors]


def test_appends_that_failed_do_not_come_back_once_the_next_ledger_is_used() -> None:
    life = Life(None)
    ledger = life.world.open()
    life.world.hot.full = True
    ledger.append((b"failed",), 1, Receipts())
    life.world.settle()
    life.world.hot.full = False
    life.send(ledger, 1)
    broken, following = life.world.hot.ledgers()
    life.world.hot.open(broken).entries.append(b"failed")  # what a crash may bring back
    life.world.crash()
    ledger = life.world.open()
    assert payloads(ledger) == [b"0", b"1", b"2", b"3"]
    assert [record.ledger_id for record in ledger.ledgers] == [broken, following]


def check_hot_log(world: World, at: int) -> None:
    """After a start and a trim the hot log holds exactly the ledgers of the list."""
    world.open().trim()
    report = world.store.start()
    world.settle()
    assert report.unknown_ledgers == (), at
    found = world.metadata.get(managed_ledger_path(TOPIC))
    assert found is not None
    info = parse_managed_ledger(found.value)
    assert get_pending_deletes(info) == (), at
    assert {ledger.ledgerId for ledger in info.ledgerInfo} == set(world.hot.ledgers()), at


def test_a_hot_copy_that_could_not_be_deleted_stays_pending_and_is_deleted_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(settings(default_retention_time_in_minutes=0, default_retention_size_in_mb=0))
    ledger = world.open()
    world.append(ledger, b"a")

    def refuse(_ledger_id: int) -> None:
        raise HotLogError("the disk does not take it")

    with monkeypatch.context() as patch:
        patch.setattr(world.hot, "delete", refuse)
        ledger.roll()
        world.append(ledger, b"b")
        ledger.trim()
    assert [ledger_info.ledgerId for ledger_info in ledger.info.ledgerInfo] == [2]
    assert world.hot.ledgers() == (1, 2)
    assert list(get_pending_deletes(ledger.info)) == [1]
    ledger.trim()
    assert world.hot.ledgers() == (2,)
    assert list(get_pending_deletes(ledger.info)) == []
