"""What clients and people do with topics, and what they must find there."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from tests.support.crash_points import Crashed
from tests.support.ledgers import message
from tests.support.sim.actor import Actor
from tests.support.sim.invariants import DELETING, text_of
from tests.support.sim.model import FOREVER, as_sent
from tests.support.sim.reading import read_by_priority

from afterglow.config.choices import ReadPriority
from afterglow.errors import Fenced, TopicClosed
from afterglow.format.position import EARLIEST, Position
from afterglow.ledger.retention import Retention

if TYPE_CHECKING:
    from tests.support.sim.model import TopicModel
    from tests.support.sim.process import Process
    from tests.support.sim.world import SimWorld

    from afterglow.errors import AfterglowError
    from afterglow.ledger.managed_ledger import ManagedLedger

_SUBSCRIPTION: Final = "s"
_MINUTE_MS: Final = 60_000


class Clients(Actor):
    """Producers, readers, one subscription for each topic, and their administrator."""

    def __init__(self, world: SimWorld) -> None:
        super().__init__(world)
        self._sent = 0

    def append(self) -> str:
        """Append some entries; the process may die before it hears of them."""
        model, process, rng = self.topic(), self.process(), self.rng
        entries = []
        for _ in range(rng.choice((1, 1, 2, 4, 8))):
            self._sent += 1
            text = b"%s %d %d;" % (model.name.encode(), model.life, self._sent)
            entries.append(message(text + rng.randbytes(rng.choice((0, 20, 60, 150, 340)))))
        hold = rng.random() < 0.2

        def append(ledger: ManagedLedger) -> None:
            hot = self.world.hot
            hot.held = hold
            try:
                for entry in entries:
                    model.send(entry)
                    ledger.append((entry,), 1, partial(self._received, process, model, model.life, entry))
                hot.complete(rng.randint(0, len(hot.queue)))
                if hot.queue and rng.random() < 0.5:
                    raise Crashed(f"{process} before the rest is durable")
                hot.complete()
            finally:
                hot.held = False

        return f"{len(entries)} " + self.on(process, model, append)

    def _received(
        self, process: Process, model: TopicModel, life: int, entry: bytes, outcome: Position | AfterglowError
    ) -> None:
        if life != model.life:
            if isinstance(outcome, Position):
                self.world.invariants.broken.append(f"{model.name}: an entry of an earlier life was acknowledged")
            return
        if isinstance(outcome, Position):
            problem = model.acknowledge(entry, outcome)
            if problem is not None:
                self.world.invariants.broken.append(problem)
        else:
            model.refuse(entry)
            if isinstance(outcome, Fenced | TopicClosed):
                self._close_later(process, model)

    def _close_later(self, process: Process, model: TopicModel) -> None:
        ledger = process.store.opened(model.name)
        if ledger is not None and not process.owns(model.name):
            process.executor.submit(ledger.close)

    def read(self) -> str:
        """Read some entries, and hold them against the model."""
        model, process, rng = self.topic(), self.process(), self.rng
        if process.store.opened(model.name) is None and model.name not in self.world.invariants.lists:
            return "nothing there"
        known = model.expected(EARLIEST)
        first = rng.choice(known) if known and rng.random() < 0.8 else EARLIEST
        most, size = rng.choice(((1, 1), (3, 500), (1000, 200), (1000, 1 << 20)))
        life = model.life
        found: list[tuple[Position, bytes]] = []
        owned = False

        def read(ledger: ManagedLedger) -> None:
            nonlocal owned
            owned = process.owns(model.name)
            found.extend(as_sent(ledger.reader.read(first, most, size)))

        is_empty = self.world.fault_plan.is_empty and process.session.is_open
        outcome = self.on(process, model, read)
        error = "->" in outcome
        owned = owned and process.owns(model.name) and process.alive and life == model.life
        problems = model.wrong_entries(found, current=owned) if life == model.life else []
        if owned and not error:
            problems += model.missing(first, [position for position, _ in found], whole=False)
        if owned and error and is_empty and not self.world.interleave:
            problems.append(f"{model.name} cannot be read from {first} on: {outcome}")
        if owned and not error and rng.random() < 0.5:
            priority = rng.choice((None, *ReadPriority))
            self.on(process, model, lambda ledger: problems.extend(read_by_priority(process, ledger, model, priority)))
        self.world.invariants.broken += problems
        return f"{len(found)} from {first}, {outcome}"

    def roll(self) -> str:
        """Begin a new ledger."""
        return self.on(self.process(), self.topic(), lambda ledger: ledger.roll())

    def trim(self) -> str:
        """Trim what retention does not keep."""
        return self.on(self.process(), self.topic(), lambda ledger: ledger.trim())

    def keep_for(self) -> str:
        """Change the retention."""
        model = self.topic()
        model.retention = self.rng.choice(
            (FOREVER, Retention(0, 0), Retention(10 * _MINUTE_MS, -1), Retention(-1, 2000), Retention(_MINUTE_MS, 1000))
        )
        for process in (self.world.owner, *self.world.zombies):
            ledger = process.store.opened(model.name)
            if ledger is not None:
                ledger.retention = model.retention
        return f"{model.name} {model.retention}"

    def subscribe(self) -> str:
        """Have everything kept that is not acknowledged."""
        model, process = self.topic(), self.process()

        def subscribe(ledger: ManagedLedger) -> None:
            ledger.cursors.create(_SUBSCRIPTION, EARLIEST)
            model.subscribed = model.subscribed or process.owns(model.name)
            model.consumed = max(model.consumed, ledger.cursors.get(_SUBSCRIPTION).mark_delete)

        return self.on(process, model, subscribe)

    def acknowledge(self) -> str:
        """Acknowledge some entries."""
        model, process = self.topic(), self.process()
        if not model.subscribed:
            return "nobody has subscribed"

        def acknowledge(ledger: ManagedLedger) -> None:
            entries = ledger.reader.read(ledger.cursors.get(_SUBSCRIPTION).mark_delete, 10, 1 << 20)
            if entries:
                to = self.rng.choice(entries).position
                model.consumed = max(model.consumed, to)
                ledger.cursors.get(_SUBSCRIPTION).ack_through(to)

        return self.on(process, model, acknowledge)

    def truncate(self) -> str:
        """Trim everything at once."""
        model = self.topic()

        def truncate(ledger: ManagedLedger) -> None:
            model.truncated = max((row.ledgerId for row in ledger.info.ledgerInfo), default=-1)
            model.consumed = max(model.consumed, Position(model.truncated, 1 << 40))
            ledger.trimmer.truncate()

        return self.on(self.process(), model, truncate)

    def terminate(self) -> str:
        """End a topic for good."""
        model, process = self.topic(), self.process()

        def terminate(ledger: ManagedLedger) -> None:
            ledger.terminate()
            model.terminated = process.owns(model.name)

        return self.on(process, model, terminate)

    def delete(self) -> str:
        """Delete a topic; the next append creates it again."""
        model, process = self.topic(), self.process()
        before = model.deletion_wanted  # by another process, which this one interrupts
        model.deletion_wanted = True
        error = self.world.act(process, lambda: process.store.delete(model.name))
        info = self.world.invariants.lists.get(model.name)
        if info is not None and text_of(info, DELETING) is None:
            model.deletion_wanted = before
        return f"{process}, {model.name} {'' if error is None else type(error).__name__}"
