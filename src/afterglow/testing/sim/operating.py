"""Policies, and offload by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from afterglow.errors import Fenced
from afterglow.format.position import LATEST, Position
from afterglow.ledger.catalog import Catalog
from afterglow.metadata.names import TopicName
from afterglow.metadata.paths import STANDALONE
from afterglow.testing.sim.acting import Acting

if TYPE_CHECKING:
    from afterglow.testing.sim.world import SimWorld


class Operator(Acting):
    """Decides what is offloaded, when and how. Its own changes never fail."""

    def __init__(self, world: SimWorld) -> None:
        super().__init__(world)
        self._streams = world.rng.choice((0.0, 0.5, 0.9))
        """How likely a topic is to stream after a change of its policy."""
        self._catalog = Catalog(world.metadata, STANDALONE)
        self._catalog.ensure_defaults()

    def set_policy(self, name: str) -> dict[str, object]:
        """Draw a policy for a topic, and tell processes."""
        rng = self.rng
        values: dict[str, object] = {
            "managedLedgerOffloadThresholdInBytes": rng.choice((-1, 0, 0, 600, 3000)),
            "managedLedgerOffloadThresholdInSeconds": rng.choice((-1, -1, 0, 30)),
            "managedLedgerOffloadDeletionLagInMillis": rng.choice((0, 1000, 60_000, 3_600_000)),
            "managedLedgerOffloadedReadPriority": rng.choice(("bookkeeper-first", "tiered-storage-first")),
            "streamingOffloadEnabled": rng.random() < self._streams,
            "maxOffloadSegmentSizeInBytes": rng.choice((300, 1500, 4000, 10_000)),
            "maxOffloadSegmentRolloverTimeInSeconds": rng.choice((1, 30, 900)),
        }
        topic = TopicName.from_managed_ledger_name(name)
        self._catalog.update_topic_policies(topic, lambda _old: {"offloadPolicies": values})
        for process in (self.world.owner, *self.world.zombies):
            process.policies.changed(topic.namespace)
        return values

    def policy(self) -> str:
        """Change a topic's policy."""
        model = self.topic()
        return f"{model.name} {self.set_policy(model.name)}"

    def offload_by_hand(self) -> str:
        """Ask for an offload up to some ledger."""
        model, process = self.topic(), self.process()
        info = self.world.watchman.lists.get(model.name)
        ids = [row.ledgerId for row in info.ledgerInfo] if info is not None else []
        if not ids:
            return "nothing there"
        ledger_id = self.rng.choice((*ids, None))
        position = LATEST if ledger_id is None else Position(ledger_id, 0)
        error = self.world.act(process, lambda: process.offload.offload_prefix(model.name, position))
        if isinstance(error, Fenced):
            self.let_go(process, model)
        return f"{process}, {model.name} to {position} {'' if error is None else type(error).__name__}"
