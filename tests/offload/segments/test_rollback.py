"""Taking a topic out of its segments again: refused in time, whole or not at all, and nothing lost unasked."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from tests.support.crash_points import Crashed, CrashingMetadataStore, CrashingStore, CrashPoint
from tests.support.ledgers import TOPIC, settings
from tests.support.offloads import OffloadWorld

from afterglow.errors import ConfigError, NotSupported, OffloadConflict, OffloadInProgress, TopicMissing, WouldLoseData
from afterglow.format.position import EARLIEST, LATEST, Position
from afterglow.metadata.memory import MemoryMetadataStore
from afterglow.metadata.names import NamespaceName
from afterglow.metadata.paths import AfterglowPaths
from afterglow.offload.segments.edits import add_stub
from afterglow.offload.segments.listing import SegmentStatus

if TYPE_CHECKING:
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo

PATHS = AfterglowPaths()
NAMESPACE = NamespaceName("public", "default")


class Life:
    """A topic with three closed ledgers and an open one, all in segments, and switched back."""

    def __init__(self, *, switched_back: bool = True, freed: bool = False) -> None:
        self.point = CrashPoint()
        self.metadata = CrashingMetadataStore(MemoryMetadataStore())
        self.world = OffloadWorld(
            settings(
                max_offload_segment_size_in_bytes=700,
                managed_ledger_offload_deletion_lag_in_millis=1000,
                managed_ledger_cache_size_mb=0,
            ),
            self.metadata,
            wrap=lambda store: CrashingStore(store, self._count),
        )
        self.world.catalog.ensure_defaults()
        self.set_policies(streamingOffloadEnabled=True)
        self.world.append(self.world.topic(2, 9, 3), b"last")
        self.world.service.offload_prefix(TOPIC, LATEST)
        self.world.run()
        if switched_back:
            self.set_policies()
            self.world.run()
        if freed:
            self.world.clock.advance(2)
            self.world.run()

    def set_policies(self, **given: object) -> None:
        """Let the namespace have these offload policies."""
        self.world.catalog.update_policies(NAMESPACE, lambda old: {**old, "offload_policies": given})
        self.world.policies.changed(NAMESPACE)

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
        """All entries, from whichever copy serves."""
        found: list[bytes] = []
        position = EARLIEST
        ledger = self.world.store.open(TOPIC, create=False)
        while read := ledger.reader.read(position, 1000, 1 << 20):
            found += [bytes(entry.data) for entry in read]
            position = read[-1].position.next()
        return found

    def named(self) -> int:
        """How many times the list names a segment."""
        return sum(len(row.offloadContext.offloadSegment) for row in self.world.info().ledgerInfo)

    def _count(self, effect: str) -> None:
        self.point(effect)


def clean(world: OffloadWorld) -> bool:
    """Whether no segment is named or on record, nor anything else in the tier."""
    records = [world.metadata.children(path(TOPIC)) for path in (PATHS.segments, PATHS.uploads, PATHS.deletes)]
    return not world.objects() and records == [()] * 3 and not any(map(context, world.info().ledgerInfo))


def context(row: ManagedLedgerInfo.LedgerInfo) -> bool:
    return row.HasField("offloadContext")


def test_a_dry_run_lists_what_would_go_and_changes_nothing() -> None:
    life = Life()
    before = life.world.info(), life.world.objects(), life.world.intents()
    plan = life.world.service.delete_segments(TOPIC)
    assert [view.id for view in plan.segments] == [view.id for view in life.world.service.segments(TOPIC)]
    assert len(plan.segments) > 1
    assert (plan.ledgers, plan.lost, plan.done) == ((1, 2, 3, 4), (), False)
    assert (life.world.info(), life.world.objects(), life.world.intents()) == before


def test_afterwards_no_ledger_names_a_segment_and_all_may_be_offloaded_whole() -> None:
    life = Life()
    world = life.world
    before = life.entries()
    plan = world.service.delete_segments(TOPIC, dry_run=False)
    assert plan.done
    assert life.named() == 0
    assert not any(map(context, world.info().ledgerInfo))
    assert len(world.intents()) == len(plan.segments)
    world.run()
    assert clean(world)
    assert world.service.segments(TOPIC) == ()
    assert life.entries() == before
    world.check()
    world.service.offload_prefix(TOPIC, LATEST)
    world.run()
    assert world.offloaded() == [1, 2, 3, 4]
    assert life.entries() == before
    world.check()
    life.set_policies(streamingOffloadEnabled=True)
    world.append(world.open(), b"once more")
    world.service.offload_prefix(TOPIC, LATEST)
    world.run()
    assert [view.begin.ledger_id for view in world.service.segments(TOPIC)] == [5]
    world.check()


def test_a_topic_without_segments_has_nothing_to_take_out_of() -> None:
    world = OffloadWorld()
    world.topic(2)
    plan = world.service.delete_segments(TOPIC, dry_run=False)
    assert (plan.segments, plan.ledgers, plan.lost) == ((), (), ())
    with pytest.raises(TopicMissing):
        world.service.delete_segments("public/default/persistent/none")


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_topic_that_streams_is_refused(*, dry_run: bool) -> None:
    life = Life(switched_back=False)
    with pytest.raises(ConfigError, match="streamingOffloadEnabled=false"):
        life.world.service.delete_segments(TOPIC, dry_run=dry_run)
    assert life.world.intents() == ()
    assert life.named()


@pytest.mark.parametrize("dry_run", [True, False])
def test_an_assigned_segment_refuses_a_rollback(*, dry_run: bool) -> None:
    life = Life(switched_back=False)
    world = life.world
    world.append(world.open(), b"one more")
    world.run()
    life.set_policies()
    assert world.service.segments(TOPIC)[-1].status is SegmentStatus.ASSIGNED
    with pytest.raises(OffloadInProgress, match="is being uploaded"):
        world.service.delete_segments(TOPIC, dry_run=dry_run)
    assert world.intents() == ()
    world.run()
    world.service.delete_segments(TOPIC, dry_run=False)
    world.run()
    assert clean(world)


def test_entries_whose_hot_copy_is_gone_are_lost_only_if_that_is_said() -> None:
    life = Life(freed=True)
    world = life.world
    before = life.entries()
    plan = world.service.delete_segments(TOPIC)
    assert [(each.ledger_id, each.entries) for each in plan.lost] == [(1, 2), (2, 9), (3, 3), (4, 1)]
    with pytest.raises(WouldLoseData, match=r"1, 2, 3, 4 have no hot copy, and their 15 entries .* --lose-data"):
        world.service.delete_segments(TOPIC, dry_run=False)
    world.run()
    assert life.entries() == before
    world.append(world.open(), b"kept")
    world.open().cursors.create("s", EARLIEST)
    world.service.delete_segments(TOPIC, dry_run=False, lose_data=True)
    assert [entry.rpartition(b"kept")[1:] for entry in life.entries()] == [(b"kept", b"")]
    assert min(row.ledgerId for row in world.info().ledgerInfo) == 5
    assert world.open().cursors.get("s").backlog == 1
    world.run()
    assert clean(world)
    world.check()
    life.start_again()
    assert len(life.entries()) == 1


def test_a_hot_copy_that_vanished_unseen_counts_as_gone() -> None:
    life = Life()
    life.world.hot.delete(2)
    assert [each.ledger_id for each in life.world.service.delete_segments(TOPIC).lost] == [2]
    life.world.service.delete_segments(TOPIC, dry_run=False, lose_data=True)
    life.world.run()
    assert [row.ledgerId for row in life.world.info().ledgerInfo] == [1, 3, 4, 5]
    assert len(life.entries()) == 6
    life.world.check()


def test_another_ledger_marks_the_end_of_a_topic_whose_last_one_is_lost() -> None:
    life = Life(freed=True)
    life.start_again()
    world = life.world
    # As after a start without an append: the empty ledger behind it was never there.
    world.open().update(lambda info: info.ledgerInfo.pop() and None)
    life.start_again()
    assert [row.ledgerId for row in world.info().ledgerInfo][-1] == 4
    world.service.delete_segments(TOPIC, dry_run=False, lose_data=True)
    world.run()
    assert len(world.info().ledgerInfo) == 1
    assert life.entries() == []
    world.append(world.open(), b"goes on")
    assert len(life.entries()) == 1
    world.check()


def test_the_last_ledger_of_a_terminated_topic_is_not_dropped() -> None:
    life = Life(switched_back=False)
    world = life.world
    world.open().terminate()
    life.set_policies()
    world.run()
    world.clock.advance(2)
    world.run()
    with pytest.raises(NotSupported, match="delete the topic instead"):
        world.service.delete_segments(TOPIC, dry_run=False, lose_data=True)
    assert life.named()
    assert world.intents() == ()


def test_what_changes_between_plan_and_commit_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life()
    world = life.world
    ledger = world.open()
    world.clock.advance(2)
    free = ledger.trimmer.free
    record = world.service._pending_deletes.record

    def then_free(*args: object, **kwargs: object) -> None:
        record(*args, **kwargs)  # type: ignore[arg-type]  # passed on as they are
        free([1])

    monkeypatch.setattr(world.service._pending_deletes, "record", then_free)
    before = life.entries()
    with pytest.raises(OffloadInProgress, match="ledger 1 was deleted meanwhile"):
        world.service.delete_segments(TOPIC, dry_run=False)
    monkeypatch.undo()
    assert life.entries() == before
    world.check()


def test_a_segment_that_was_about_to_begin_behind_others_does_not_begin_without_them() -> None:
    """Its beginning was chosen when those before it were still named."""
    life = Life()
    life.world.service.delete_segments(TOPIC, dry_run=False)
    with pytest.raises(OffloadConflict, match="cannot begin at 2:5"):
        life.world.open().update(partial(add_stub, uuid=uuid4(), begin=Position(2, 5), assigned_ms=1))
    life.world.run()
    assert clean(life.world)


@pytest.mark.parametrize(("freed", "least"), [(False, 13), (True, 18)])
def test_whatever_effect_a_crash_comes_before_the_topic_is_in_segments_or_out_of_all_of_them(
    *, freed: bool, least: int
) -> None:
    def scenario(life: Life) -> None:
        life.world.service.delete_segments(TOPIC, dry_run=False, lose_data=True)
        life.world.run()

    life = Life(freed=freed)
    life.end_before(None)
    scenario(life)
    count = len(life.point.effects)
    assert count >= least
    for at in range(count):
        life = Life(freed=freed)
        before, named = life.entries(), life.named()
        life.end_before(at)
        with pytest.raises(Crashed):
            scenario(life)
        life.start_again()
        assert life.named() in (0, named)
        kept = life.entries()
        assert kept in ([before, []] if freed else [before])
        life.world.check()
        for _ in range(2):
            life.world.run()
            life.world.clock.advance(120)
        life.world.check()
        assert life.entries() == kept
        scenario(life)
        assert clean(life.world)
        life.world.check()
