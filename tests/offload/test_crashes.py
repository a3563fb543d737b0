"""Every scenario is run with an end of the process before each of its effects, in metadata, hot log and tier alike.

After the next start, and with time, everything must be committed or cleaned; nothing acknowledged may be lost before,
at no moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.crash_points import Crashed, CrashingMetadataStore, CrashingStore, CrashPoint
from tests.support.ledgers import TOPIC, settings
from tests.support.offloads import OffloadWorld

from afterglow.errors import StoreUnavailable, TopicMissing
from afterglow.format.objects import ledger_uuid
from afterglow.format.position import EARLIEST, LATEST
from afterglow.metadata.memory import MemoryMetadataStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.storage.store import ObjectStore


class Life:
    """A world with a topic of three closed ledgers that ends before a given effect."""

    def __init__(self, prepare: Callable[[Life], None], **changes: object) -> None:
        self.point = CrashPoint()
        self.metadata = CrashingMetadataStore(MemoryMetadataStore())
        self.world = OffloadWorld(
            settings(
                managed_ledger_offload_deletion_lag_in_millis=1000,
                managed_ledger_cache_size_mb=0,
                **changes,
            ),
            self.metadata,
            wrap=self._wrap,
        )
        self.world.topic(2, 20, 3)
        self.kept = self.entries()
        """Entries that must be readable until they are deleted."""
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
        """All entries, from whichever copy serves."""
        ledger = self.world.store.open(TOPIC)
        found: list[bytes] = []
        at = EARLIEST
        while batch := ledger.reader.read(at, 1000, 1 << 20):
            found += [bytes(entry.data) for entry in batch]
            at = batch[-1].position.next()
        return found

    def settle(self) -> None:
        """Let all happen that time brings."""
        for _ in range(4):
            self.world.run()
            self.world.clock.advance(120)
        self.world.run_late()

    def _wrap(self, store: ObjectStore) -> ObjectStore:
        return CrashingStore(store, self._count)

    def _count(self, effect: str) -> None:
        self.point(effect)


def nothing(_life: Life) -> None:
    """Begin with closed ledgers in the hot log alone."""


def offloaded(life: Life) -> None:
    """Begin with objects that have just been committed."""
    life.world.service.offload_prefix(TOPIC, LATEST)
    life.world.run()
    assert life.world.offloaded() == [1, 2, 3]


def failed(life: Life) -> None:
    """Begin with attempts that have failed at several stages, and will be tried again."""
    life.world.service.tick()
    life.world.settle()
    life.world.runner.run_one()
    life.world.runner.fail_one(StoreUnavailable("no route"))
    life.world.runner.run_one(1)
    while life.world.runner.waiting:
        life.world.runner.fail_one(StoreUnavailable("no route"))
    life.world.run()
    assert life.world.offloaded() == [1]


def freed(life: Life) -> None:
    """Begin with objects alone."""
    offloaded(life)
    life.world.clock.advance(2)
    life.world.run()
    assert life.world.hot.ledgers() == (4,)


def under_way(life: Life) -> None:
    """Begin with an upload half done."""
    life.world.service.offload_prefix(TOPIC, LATEST)
    life.world.service.tick()
    life.world.settle()
    life.world.runner.run_one()
    life.world.runner.run_one()


def offload(life: Life) -> None:
    life.world.service.offload_prefix(TOPIC, LATEST)
    life.world.run()


def retry(life: Life) -> None:
    life.world.clock.advance(1)
    life.world.run()
    assert life.world.offloaded() == [1, 2, 3]
    life.world.run_late()


def give_up(life: Life) -> None:
    life.world.service.offload_prefix(TOPIC, LATEST)
    life.world.service.tick()
    life.world.settle()
    life.world.runner.run_one()
    life.world.runner.fail_one(StoreUnavailable("no route"))
    life.world.run()
    assert life.world.offloaded() == [1, 3]


def go_on(life: Life) -> None:
    life.world.run()


def free(life: Life) -> None:
    life.world.clock.advance(2)
    life.world.run()


def retain(life: Life) -> None:
    life.kept = []
    life.world.store.open(TOPIC).trimmer.truncate()
    life.world.run()


def delete(life: Life) -> None:
    life.kept = []
    life.world.store.delete(TOPIC)
    life.world.run()
    life.world.run_late()


AT_ONCE: dict[str, object] = {"managed_ledger_offload_threshold_in_bytes": 0}
SCENARIOS: list[tuple[Callable[[Life], None], Callable[[Life], None], int, dict[str, object]]] = [
    (nothing, offload, 13, {}),
    (nothing, go_on, 13, AT_ONCE),
    (nothing, give_up, 10, {}),
    (failed, retry, 19, AT_ONCE),
    (under_way, go_on, 10, {}),
    (offloaded, free, 8, {}),
    (offloaded, retain, 24, {}),
    (freed, retain, 21, {}),
    (offloaded, delete, 22, {}),
    (freed, delete, 19, {}),
    (under_way, delete, 23, {}),
    (failed, delete, 23, AT_ONCE),
]


@pytest.mark.parametrize(("prepare", "scenario", "least", "changes"), SCENARIOS)
def test_whatever_effect_a_crash_comes_before_all_is_committed_or_cleaned(
    prepare: Callable[[Life], None], scenario: Callable[[Life], None], least: int, changes: dict[str, object]
) -> None:
    life = Life(prepare, **changes)
    life.end_before(None)
    scenario(life)
    count = len(life.point.effects)
    assert count >= least
    for at in range(count):
        life = Life(prepare, **changes)
        before = life.entries()
        life.end_before(at)
        with pytest.raises(Crashed):
            scenario(life)
        life.start_again()
        # Whatever is listed is whole at once; what was to go is going.
        assert _readable(life) in ([before] if life.kept else [before, []])
        life.world.check()
        life.settle()
        _check_settled(life, before)
        if _readable(life):
            offload(life)
            life.settle()
            _check_settled(life, _readable(life))
            assert set(life.world.offloaded()) >= {row.ledgerId for row in life.world.info().ledgerInfo[:-1]}


def _readable(life: Life) -> list[bytes]:
    try:
        info = life.world.store.info(TOPIC)
    except TopicMissing:
        return []
    return life.entries() if info.ledgerInfo else []


def _check_settled(life: Life, before: list[bytes]) -> None:
    world = life.world
    assert _readable(life) in ([before] if life.kept else [before, []])
    world.check()
    complete = {str(ledger_uuid(row)) for row in world.info().ledgerInfo if row.offloadContext.complete}
    assert [row for row in world.info().ledgerInfo if ledger_uuid(row) and not row.offloadContext.complete] == []
    assert {key.split("-ledger-")[0] for key in world.objects()} == complete
    assert len(world.objects()) == 2 * len(complete)
    assert world.tier.list_uploads() == ()
    # An intent stays on record while the list still names its object: the ledger was to leave, and did not.
    assert set(world.intents()) <= complete
