"""A store that is out for five minutes while producers go on: seconds of work on the virtual clock."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import pytest
from tests.support.faults import Fault, FaultRule
from tests.support.ledgers import message
from tests.support.sim import promises
from tests.support.sim.fault_plan import NO_FAULTS, FaultPlan
from tests.support.sim.schedule import settings
from tests.support.sim.world import SimWorld

from afterglow.catalog.catalog import Catalog
from afterglow.format.position import LATEST, Position
from afterglow.metadata.names import TopicName
from afterglow.metadata.paths import STANDALONE
from afterglow.offload.status import OffloadState

if TYPE_CHECKING:
    from tests.support.sim.model import TopicModel

    from afterglow.errors import AfterglowError

TOPICS = tuple(f"public/default/persistent/t{number}" for number in range(3))
WRITES = frozenset({"put", "upload_part", "complete_upload"})
OUT = FaultPlan(
    "the tier is out",
    tier=(
        FaultRule(Fault.ERROR_AFTER, WRITES, times=2),  # what was on its way may have arrived
        FaultRule(Fault.ERROR_BEFORE, times=None),
    ),
)
POLICY = {
    "streamingOffloadEnabled": True,
    "maxOffloadSegmentSizeInBytes": 4_000,
    "maxOffloadSegmentRolloverTimeInSeconds": 30,
    "managedLedgerOffloadDeletionLagInMillis": 60_000,
}


class Load:
    """Producers of all topics, and a server that streams them."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        config = replace(settings(self.rng), managed_ledger_max_entries_per_ledger=self.rng.choice((20, 50)))
        self.world = SimWorld(self.rng, config, TOPICS)
        self.refused: list[AfterglowError] = []
        self.sent = 0
        catalog = Catalog(self.world.metadata, STANDALONE)
        catalog.ensure_defaults()
        for name in TOPICS:
            topic = TopicName.from_managed_ledger_name(name)
            catalog.update_topic_policies(topic, lambda _old: {"offloadPolicies": POLICY})
        self.world.owner.policies.changed(None)

    def go_on(self, seconds: int) -> None:
        """Send to every topic each second, and let the server do what is due."""
        for _ in range(seconds):
            for model in self.world.models.values():
                self._append(model)
            world = self.world
            world.act(world.owner, world.owner.tick)
            while len(world.owner.executor) or world.owner.tasks:
                if len(world.owner.executor):
                    world.act(world.owner, world.owner.executor.run)
                else:
                    world.run_task(world.owner, 0)
            world.clock.advance(1)
            assert not world.invariants.broken

    def _append(self, model: TopicModel) -> None:
        world = self.world
        self.sent += 1
        entry = message(b"%d;" % self.sent + self.rng.randbytes(self.rng.choice((20, 150, 340))))
        ledger = world.owner.open(model.name)
        model.send(entry)
        world.act(world.owner, lambda: ledger.append((entry,), 1, partial(self._received, model, entry)))

    def _received(self, model: TopicModel, entry: bytes, outcome: Position | AfterglowError) -> None:
        if isinstance(outcome, Position):
            assert model.acknowledge(entry, outcome) is None
        else:
            self.refused.append(outcome)

    def committed(self) -> list[int]:
        """How many segments of each topic are in the tier."""
        return [
            len(
                {
                    segment.uidLsb
                    for row in self.world.invariants.lists[name].ledgerInfo
                    for segment in row.offloadContext.offloadSegment
                    if segment.complete
                }
            )
            for name in TOPICS
        ]


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_a_store_that_is_out_for_five_minutes_costs_nothing_but_time(seed: int, *, dies: bool) -> None:
    load = Load(seed)
    world = load.world
    load.go_on(120)
    before = load.committed()
    assert all(before)
    world.change_faults(OUT, spare_one=False)
    load.go_on(150)
    if dies:
        world.kill(world.owner)
    load.go_on(150)
    during = load.committed()
    # What the store had taken without an answer may be committed when it is seen; nothing else can be.
    assert all(now - then <= 1 for now, then in zip(during, before, strict=True))
    world.change_faults(NO_FAULTS)
    load.go_on(60)
    assert all(now > then + 3 for now, then in zip(load.committed(), during, strict=True))
    assert load.refused == []
    for name in TOPICS:
        assert world.act(world.owner, partial(world.owner.offload.offload_prefix, name, LATEST)) is None
    while world.orphans:
        world.run_orphan(0)
    assert promises.come_to_rest(world) == []
    assert [world.owner.offload.status(name).state for name in TOPICS] == [OffloadState.SUCCESS] * len(TOPICS)
    assert promises.check(world) == []
    assert world.invariants.broken == []
    assert sum(len(entries) for model in world.models.values() for entries in model.acknowledged.values()) == load.sent
