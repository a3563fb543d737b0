"""Reads of a topic with a priority of their own, held against the model: the bytes, and which tier served them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.sim.model import as_sent

from afterglow.config.choices import ReadPriority
from afterglow.format.entry import split_broker_metadata
from afterglow.format.position import EARLIEST, Position
from afterglow.read.copies import StorageTier
from afterglow.read.ranges import offloaded_range_at

if TYPE_CHECKING:
    from tests.support.sim.model import TopicModel
    from tests.support.sim.process import Process

    from afterglow.ledger.managed_ledger import ManagedLedger


def read_all(ledger: ManagedLedger) -> list[tuple[Position, bytes]]:
    """Every entry of a topic, as the client sent it.

    Raises:
        AfterglowError: An entry cannot be read now.
    """
    found: list[tuple[Position, bytes]] = []
    position = EARLIEST
    while entries := ledger.reader.read(position, 1000, 1 << 20):
        found += as_sent(entries)
        position = entries[-1].position.next()
    return found


def read_by_priority(
    process: Process, ledger: ManagedLedger, model: TopicModel, priority: ReadPriority | None
) -> list[str]:
    """Read every ledger of a topic; returns what is wrong.

    Raises:
        AfterglowError: An entry cannot be read now.
    """
    source = process.sources(ledger.name)
    wanted = _wanted(process, ledger, priority)
    problems: list[str] = []
    layout = ledger.layout
    for row in ledger.info.ledgerInfo:
        entries = layout.entries_of(row.ledgerId)
        if not entries:
            continue
        found: list[tuple[Position, bytes]] = []
        outcome = source.counters.counts().fallbacks
        for served in source.walk(row, 0, entries - 1, 700, priority):
            frames = served.run.frames
            counts = source.counters.counts().fallbacks
            before, wanted = wanted, _wanted(process, ledger, priority)
            expected = wanted if offloaded_range_at(row, frames.first_entry_id) is not None else StorageTier.HOT
            fell_back = sum(n for (tier, _), n in counts.items() if tier is expected) > sum(
                n for (tier, _), n in outcome.items() if tier is expected
            )
            # A policy that was changed meanwhile holds from the next run on.
            if served.tier is not expected and wanted is before and not fell_back:
                problems.append(
                    f"{ledger.name}: ledger {row.ledgerId} was to be read from {expected}, came from {served.tier}, "
                    "and no fall-back was counted"
                )
            outcome = counts
            found += [
                (Position(row.ledgerId, frames.first_entry_id + at), bytes(split_broker_metadata(data)[1]))
                for at, data in enumerate(served.run.entries())
            ]
        problems += model.wrong_entries(found, current=True)
        if [position.entry_id for position, _ in found] != list(range(entries)):
            problems.append(f"{ledger.name}: of ledger {row.ledgerId} {len(found)} entries came, {entries} are there")
    return problems


def _wanted(process: Process, ledger: ManagedLedger, priority: ReadPriority | None) -> StorageTier:
    """The tier that is to serve what both have."""
    wanted = priority or process.policies.of(ledger.name).managed_ledger_offloaded_read_priority
    return StorageTier.HOT if wanted is ReadPriority.BOOKKEEPER_FIRST else StorageTier.TIERED
