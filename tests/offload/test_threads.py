"""The service as a server drives it: real threads, ledgers on disk, a tier in a directory."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from tests.support.ledgers import settings

from afterglow.catalog.catalog import Catalog
from afterglow.hot.local.log import LocalLog
from afterglow.ledger.environment import SystemClock
from afterglow.ledger.store import LedgerStore
from afterglow.metadata.paths import STANDALONE, AfterglowPaths
from afterglow.metadata.sqlite import SqliteMetadataStore
from afterglow.offload.service import OffloadService
from afterglow.offload.task import run_task
from afterglow.policy.resolver import Policies
from afterglow.storage.local import LocalStore
from afterglow.tier.locations import Tiers, location_of_url
from afterglow.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from afterglow.ledger.managed_ledger import ManagedLedger
    from afterglow.offload.task import PartResult, Task

TOPICS = [f"public/default/persistent/t{number}" for number in range(6)]
LEDGERS = 5


class PoolRunner:
    """Runs tasks on threads, as they would run elsewhere: from the files of the home."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool

    def prepare(self) -> None:
        """The threads start by themselves."""

    def submit(self, tasks: Sequence[Task], done: Callable[[Task, PartResult], None]) -> None:
        for task in tasks:
            self._pool.submit(self._run, task, done)

    def close(self) -> None:
        """Nothing is kept here."""

    @staticmethod
    def _run(task: Task, done: Callable[[Task, PartResult], None]) -> None:
        done(task, run_task(task))


def fill(ledger: ManagedLedger) -> None:
    for number in range(LEDGERS):
        for entry in range(20):
            ledger.append((b"%d:%d" % (number, entry) * 100,), 1, lambda _outcome: None)
        ledger.roll()


def test_many_topics_at_once_end_in_the_tier_and_nowhere_else(tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    tier.mkdir()
    config = settings(managed_ledger_offload_threshold_in_bytes=0, managed_ledger_offload_deletion_lag_in_millis=1)
    metadata = SqliteMetadataStore(tmp_path / "metadata.db")
    with LocalLog(tmp_path) as log, ThreadPoolExecutor(8) as pool, ThreadPoolExecutor(4) as workers:
        service = OffloadService(
            metadata=metadata,
            paths=AfterglowPaths(),
            policies=Policies(config, Catalog(metadata, STANDALONE)),
            tiers=Tiers(),
            own=location_of_url(tier.as_uri()),
            runner=PoolRunner(workers),
            executor=pool,
            clock=SystemClock(),
            instance=log.instance,
            home=str(tmp_path),
            flush=log.flush,
        )
        store = LedgerStore(hot=log, states=log, metadata=metadata, config=config, executor=pool, offloading=service)
        service.attach(store)
        service.start()
        ledgers = [store.open(name) for name in TOPICS]
        for filling in [pool.submit(partial(fill, ledger)) for ledger in ledgers]:
            filling.result()
        deadline = time.monotonic() + 60
        closed = [row for ledger in ledgers for row in ledger.ledgers[:-1]]
        assert len(closed) > 3 * len(TOPICS)
        while any(not row.hot_deleted for ledger in ledgers for row in ledger.ledgers[:-1]):
            assert time.monotonic() < deadline, [service.explain(name) for name in TOPICS]
            service.tick()
            time.sleep(0.01)
        for name in TOPICS:
            statistics = service.statistics(name)
            assert (statistics.last_failure_ms, statistics.running) == (0, ())
        objects = LocalStore(tier)
        assert len(list(objects.list())) == 2 * len(closed)
        now_ms = int(time.time() * 1000) + 60_000
        found = verify(
            metadata,
            lambda _location: objects,
            tiers=[objects],
            instance=log.instance,
            now_ms=now_ms,
            grace_ms=0,
            deep=True,
            hot=lambda ledger_id: ledger_id in log.ledgers(),
        )
        assert [finding for finding in found if finding.kind.is_fault] == []

        going = len(ledgers[0].ledgers[:-1])
        store.delete(TOPICS[0])
        while any(service._pending_deletes.names()):
            assert time.monotonic() < deadline
            service.tick()
            time.sleep(0.01)
        assert len(list(objects.list())) == 2 * (len(closed) - going)
        service.close()
        store.close()
    metadata.close()
