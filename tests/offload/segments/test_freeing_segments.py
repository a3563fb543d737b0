"""What goes with ledgers in segments: objects, uploads, records; at once or after any crash, and nothing too early."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.crash_points import Crashed, CrashingMetadataStore, CrashingStore, CrashPoint
from tests.support.faults import Fault, FaultRule, FaultyStore
from tests.support.ledgers import TOPIC, settings
from tests.support.offloads import OffloadWorld

from afterglow.errors import TopicMissing
from afterglow.format.objects import named_uuids
from afterglow.format.position import EARLIEST, LATEST
from afterglow.ledger.retention import Retention
from afterglow.metadata.memory import MemoryMetadataStore
from afterglow.metadata.paths import AfterglowPaths

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.config import BrokerConfig


PATHS = AfterglowPaths()


def streaming(**changes: object) -> BrokerConfig:
    given: dict[str, object] = {
        "streaming_offload_enabled": True,
        "max_offload_segment_size_in_bytes": 1500,
        "managed_ledger_offload_deletion_lag_in_millis": 1000,
        "managed_ledger_cache_size_mb": 0,
    }
    return settings(**(given | changes))


class Life:
    """A topic that streams, with three closed ledgers and an open one, in a process that can end before any effect."""

    def __init__(self, prepare: Callable[[Life], None] = lambda _life: None) -> None:
        self.point = CrashPoint()
        self.metadata = CrashingMetadataStore(MemoryMetadataStore())
        self.world = OffloadWorld(streaming(), self.metadata, wrap=lambda store: CrashingStore(store, self._count))
        ledger = self.world.topic(2, 20, 3)
        self.world.append(ledger, *[b"live" * 15] * 22)
        prepare(self)

    def end_before(self, effect: int | None) -> None:
        """Die before that effect from now on; None: never."""
        self.point = CrashPoint(effect)
        self.metadata.before = self.point
        self.world.hot.before = self.point

    def start_again(self) -> None:
        """Start another process over what is there."""
        self.end_before(None)
        self.world.crash()
        self.world.store.start()

    def entries(self) -> list[bytes]:
        """All entries, from whichever copy serves; none where the topic is gone."""
        found: list[bytes] = []
        position = EARLIEST
        try:
            ledger = self.world.store.open(TOPIC, create=False)
        except TopicMissing:
            return found
        while read := ledger.reader.read(position, 1000, 1 << 20):
            found += [bytes(entry.data) for entry in read]
            position = read[-1].position.next()
        return found

    def records(self) -> dict[str, tuple[str, ...]]:
        """UUIDs on record."""
        nodes = {"segments": PATHS.segments, "uploads": PATHS.uploads, "deletes": PATHS.deletes}
        return {name: self.metadata.children(path(TOPIC)) for name, path in nodes.items()}

    def _count(self, effect: str) -> None:
        self.point(effect)


def nothing_left(life: Life) -> bool:
    """Whether the tier holds nothing, nor does metadata once no request can be under way any more."""
    world = life.world
    if world.objects() or world.tier.list_uploads():
        return False
    world.run_late()
    nodes = [world.metadata.get(path(TOPIC)) for path in (PATHS.segments, PATHS.uploads, PATHS.deletes)]
    return not world.objects() and not world.tier.list_uploads() and nodes == [None] * 3


# --- stages -----------------------------------------------------------------------------------------------------------


def assigned(life: Life) -> None:
    """Segments of history and a live one, of which no task has run."""
    life.world.service.tick()
    life.world.settle()
    assert life.records()["uploads"]


def filling(life: Life) -> None:
    """History committed, and a live segment with an upload in the store and parts in it."""
    life.world.run()
    assert len(life.records()["uploads"]) == 1
    assert len(life.world.tier.list_uploads()) == 1


def committed(life: Life) -> None:
    """Everything committed."""
    life.world.service.offload_prefix(TOPIC, LATEST)
    life.world.run()
    assert not life.records()["uploads"]
    assert len(life.records()["segments"]) > 2


def freed(life: Life) -> None:
    """Closed ledgers in the tier alone, and a live segment."""
    filling(life)
    life.world.clock.advance(2)
    life.world.run()
    assert life.world.hot.ledgers() == (4,)
    assert life.world.tier.list_uploads()


# --- retention --------------------------------------------------------------------------------------------------------


def test_an_object_stays_while_any_ledger_names_it_and_goes_with_the_last() -> None:
    life = Life(committed)
    world = life.world
    ledger = world.open()
    ledger.retention = Retention.of(-1, 0)  # nothing of what is consumed
    cursor = ledger.cursors.create("s", EARLIEST)
    seen = []
    for row in list(world.info().ledgerInfo)[:-1]:
        cursor.ack_through(type(ledger.layout.last)(row.ledgerId, row.entries - 1))
        assert ledger.trim() == (row.ledgerId,)
        world.run()
        named = {str(uuid) for uuid in named_uuids(world.info())}
        assert {key.removesuffix("-index") for key in world.objects()} == named
        assert set(life.records()["segments"]) == named
        assert life.records()["deletes"] == ()
        world.check()
        seen.append(len(named))
    assert seen == sorted(seen, reverse=True)
    assert len(set(seen)) < len(seen), "one ledger left without taking an object with it"


def test_ledgers_from_an_assigned_segment_on_are_not_dropped_also_right_after_a_restart() -> None:
    life = Life(filling)
    for _ in range(2):
        ledger = life.world.open()
        ledger.retention = Retention.of(0, 0)
        before = [row.ledgerId for row in life.world.info().ledgerInfo]
        ledger.trimmer.truncate()
        after = [row.ledgerId for row in life.world.info().ledgerInfo if row.entries or not row.HasField("entries")]
        assert after[0] <= before[-1]
        assert set(life.records()["uploads"]) <= {str(uuid) for uuid in named_uuids(life.world.info())}
        life.start_again()
    life.world.run()
    life.world.check()


# --- the topic goes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", [assigned, filling, committed, freed])
@pytest.mark.parametrize("opened", [True, False])
def test_nothing_is_left_of_a_topic_that_was_deleted(stage: Callable[[Life], None], *, opened: bool) -> None:
    life = Life(stage)
    if not opened:
        life.start_again()
    life.world.store.delete(TOPIC)
    assert life.world.objects() or stage is assigned
    life.world.run()
    assert nothing_left(life)
    life.world.check()


@pytest.mark.parametrize("restarted", [True, False])
def test_an_upload_that_the_store_creates_after_its_topic_was_deleted_is_aborted(*, restarted: bool) -> None:
    """Promises 3, 4 and 9: the request of an owner that has ended may reach the store after the next one's listing."""
    life = Life(assigned)
    world = life.world
    (key, *_) = life.records()["uploads"]
    world.store.delete(TOPIC)
    world.runner.waiting.clear()
    life.start_again()
    world.run()
    assert world.tier.list_uploads() == ()
    assert life.records()["uploads"] == ()
    world.tier.create_upload(key)
    if restarted:
        life.start_again()
    world.run_late()
    assert world.tier.list_uploads() == ()
    assert nothing_left(life)
    assert world.findings() == []


def test_an_object_that_a_task_still_writes_goes_when_the_task_has_ended() -> None:
    life = Life(assigned)
    world = life.world
    waiting = list(world.runner.waiting)
    world.runner.waiting.clear()
    uploads = world.tier.list_uploads()
    world.store.delete(TOPIC)
    world.run()
    assert life.records()["deletes"]
    assert world.tier.list_uploads() == uploads != ()
    world.run_late()
    assert life.records()["deletes"]
    assert world.tier.list_uploads() == uploads
    world.runner.waiting.extend(waiting)
    world.run()
    world.clock.advance(120)
    world.run()
    assert nothing_left(life)


def test_a_record_that_was_written_while_its_topic_was_deleted_is_found_at_the_next_start() -> None:
    life = Life(filling)
    (name,) = life.records()["uploads"]
    kept = life.metadata.get(PATHS.uploads(TOPIC) + "/" + name)
    assert kept is not None
    life.world.store.delete(TOPIC)
    life.world.run()
    assert nothing_left(life)
    life.metadata.put(PATHS.uploads(TOPIC) + "/" + name, kept.value, -1)
    life.start_again()
    life.world.run()
    assert nothing_left(life)


def test_a_topic_created_anew_keeps_nothing_of_its_earlier_life() -> None:
    life = Life(filling)
    before = set(life.world.objects())
    life.world.store.delete(TOPIC)
    life.world.append(life.world.open(), b"new")
    life.world.service.offload_prefix(TOPIC, LATEST)
    life.world.run()
    life.world.run_late()
    assert life.entries()[0].endswith(b"new")
    assert len(life.world.objects()) == 2
    assert not before & set(life.world.objects())
    assert life.world.tier.list_uploads() == ()
    assert [len(found) for found in life.records().values()] == [1, 0, 0]
    life.world.check()


def test_records_are_kept_until_the_store_has_deleted_the_objects() -> None:
    rule = FaultRule(Fault.ERROR_BEFORE, frozenset({"delete"}), times=1)
    world = OffloadWorld(streaming(), wrap=lambda store: FaultyStore(store, [rule]))
    world.topic(2)
    world.service.offload_prefix(TOPIC, LATEST)
    world.run()
    world.store.delete(TOPIC)
    world.run()
    assert len(world.metadata.children(PATHS.segments(TOPIC))) == len(world.intents()) == 1
    world.clock.advance(120)
    world.run()
    assert world.metadata.get(PATHS.segments(TOPIC)) is None
    assert world.objects() == []


# --- crashes ----------------------------------------------------------------------------------------------------------


def delete(life: Life) -> None:
    life.world.store.delete(TOPIC)
    life.world.run()
    life.world.run_late()


def retain(life: Life) -> None:
    ledger = life.world.open()
    ledger.retention = Retention.of(0, 0)
    ledger.trim()
    life.world.run()


@pytest.mark.parametrize(
    ("stage", "scenario", "least"),
    [
        (assigned, delete, 20),
        (filling, delete, 20),
        (committed, delete, 20),
        (freed, delete, 20),
        (filling, retain, 10),
        (committed, retain, 10),
        (freed, retain, 10),
    ],
)
def test_whatever_effect_a_crash_comes_before_all_goes_that_is_to_go(
    stage: Callable[[Life], None], scenario: Callable[[Life], None], least: int
) -> None:
    life = Life(stage)
    life.end_before(None)
    scenario(life)
    count = len(life.point.effects)
    assert count >= least
    for at in range(count):
        life = Life(stage)
        before = life.entries()
        life.end_before(at)
        with pytest.raises(Crashed):
            scenario(life)
        life.start_again()
        now = life.entries()
        assert now == before[len(before) - len(now) :]
        life.world.check()
        for _ in range(3):
            life.world.run()
            life.world.clock.advance(120)
        assert life.entries() == now
        life.world.check()
        if not now:
            assert nothing_left(life)
            continue
        named = {str(uuid) for uuid in named_uuids(life.world.info())}
        assert set(life.records()["segments"]) | set(life.records()["uploads"]) <= named
        assert set(life.records()["deletes"]) <= named  # what was to leave, and did not
        life.world.store.delete(TOPIC)
        life.world.run()
        assert nothing_left(life), life.point.effects[at:]
