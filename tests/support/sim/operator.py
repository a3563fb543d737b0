"""Operator actions: policies, manual offload and rollback."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.sim.actor import Actor
from tests.support.sim.invariants import uuid_of
from tests.support.sim.process import LOCATIONS

from afterglow.catalog.catalog import Catalog
from afterglow.errors import Fenced
from afterglow.format.position import LATEST, Position
from afterglow.metadata.names import TopicName
from afterglow.metadata.paths import STANDALONE
from afterglow.tier.locations import MEMORY

if TYPE_CHECKING:
    from tests.support.sim.world import SimWorld


class Operator(Actor):
    """Decides what is offloaded, when and how. Its own changes never fail.

    Args:
        world: Where it acts.
        streams: How likely a topic is to stream after a change of its policy.
    """

    def __init__(self, world: SimWorld, streams: float) -> None:
        super().__init__(world)
        self._streams = streams
        self._catalog = Catalog(world.metadata, STANDALONE)
        self._catalog.ensure_defaults()

    def set_policy(self, name: str, *, streaming: bool | None = None) -> dict[str, object]:
        """Draw a policy for a topic, and tell processes."""
        rng = self.rng
        streaming = rng.random() < self._streams if streaming is None else streaming
        values: dict[str, object] = {
            "managedLedgerOffloadThresholdInBytes": rng.choice((-1, 0, 0, 600, 3000)),
            "managedLedgerOffloadThresholdInSeconds": rng.choice((-1, -1, 0, 30)),
            "managedLedgerOffloadDeletionLagInMillis": rng.choice((0, 1000, 60_000, 3_600_000)),
            "managedLedgerOffloadedReadPriority": rng.choice(("bookkeeper-first", "tiered-storage-first")),
            "streamingOffloadEnabled": streaming,
            "maxOffloadSegmentSizeInBytes": rng.choice((300, 1500, 4000, 10_000)),
            "maxOffloadSegmentRolloverTimeInSeconds": rng.choice((1, 30, 900)),
        }
        if rng.random() < 0.3:
            values |= {"managedLedgerOffloadDriver": MEMORY, "managedLedgerOffloadBucket": rng.choice(LOCATIONS).bucket}
        topic = TopicName.from_managed_ledger_name(name)
        self._catalog.update_topic_policies(topic, lambda _old: {"offloadPolicies": values})
        for process in (self.world.owner, *self.world.zombies):
            process.policies.changed(topic.namespace)
        return values

    def policy(self) -> str:
        """Change a topic's policy."""
        model = self.topic()
        return f"{model.name} {self.set_policy(model.name)}"

    def roll_back(self) -> str:
        """Take a topic out of its segments, which are to be deleted; it must not stream then."""
        model, process = self.topic(), self.process()
        info = self.world.invariants.lists.get(model.name)
        if info is None:
            return "nothing there"
        self.set_policy(model.name, streaming=False)
        lose_data = self.rng.random() < 0.3
        rows = [row for row in info.ledgerInfo if row.offloadContext.offloadSegment]
        model.taken_out.update(uuid_of(segment) or "" for row in rows for segment in row.offloadContext.offloadSegment)
        if lose_data:
            model.discarded.update(row.ledgerId for row in rows)
        error = self.world.act(
            process, lambda: process.offload.delete_segments(model.name, dry_run=False, lose_data=lose_data)
        )
        if isinstance(error, Fenced):
            self.close_topic(process, model)
        return f"{process}, {model.name} {'' if error is None else type(error).__name__}"

    def offload_by_hand(self) -> str:
        """Ask for an offload up to some ledger."""
        model, process = self.topic(), self.process()
        info = self.world.invariants.lists.get(model.name)
        ids = [row.ledgerId for row in info.ledgerInfo] if info is not None else []
        if not ids:
            return "nothing there"
        ledger_id = self.rng.choice((*ids, None))
        position = LATEST if ledger_id is None else Position(ledger_id, 0)
        error = self.world.act(process, lambda: process.offload.offload_prefix(model.name, position))
        if isinstance(error, Fenced):
            self.close_topic(process, model)
        return f"{process}, {model.name} to {position} {'' if error is None else type(error).__name__}"
