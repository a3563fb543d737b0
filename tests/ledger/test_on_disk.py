"""The same on real parts: ledgers on disk, metadata in SQLite, threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.support.ledgers import message, settings

from afterglow.format.entry import split_broker_metadata
from afterglow.format.position import EARLIEST, Position
from afterglow.hot.local import LocalLog
from afterglow.ledger.store import LedgerStore
from afterglow.metadata.sqlite import SqliteMetadataStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from afterglow.errors import AfterglowError
    from afterglow.ledger.managed_ledger import ManagedLedger

TOPICS = [f"public/default/persistent/t{number}" for number in range(3)]
EACH = 200


@contextmanager
def server(home: Path) -> Iterator[LedgerStore]:
    config = settings(managed_ledger_max_entries_per_ledger=50, managed_ledger_cache_size_mb=0)
    metadata = SqliteMetadataStore(home / "metadata.db")
    with LocalLog(home) as hot, ThreadPoolExecutor(2) as executor:
        store = LedgerStore(hot=hot, states=hot, metadata=metadata, config=config, executor=executor)
        store.start()
        try:
            yield store
        finally:
            store.close()
    metadata.close()


class Producer:
    """Sends numbers to a topic without waiting, and notes the receipts."""

    def __init__(self, ledger: ManagedLedger) -> None:
        self.ledger = ledger
        self.outcomes: list[Position | AfterglowError] = []
        self._all = threading.Event()

    def _done(self, outcome: Position | AfterglowError) -> None:
        self.outcomes.append(outcome)
        if len(self.outcomes) == EACH:
            self._all.set()

    def send(self) -> list[Position]:
        for number in range(EACH):
            self.ledger.append((message(b"%d" % number),), 1, self._done)
        assert self._all.wait(30)
        return [outcome for outcome in self.outcomes if isinstance(outcome, Position)]


def test_topics_on_disk_keep_everything_in_order_over_restarts(tmp_path: Path) -> None:
    sent: dict[str, list[Position]] = {name: [] for name in TOPICS}
    for life in range(3):
        with server(tmp_path) as store, ThreadPoolExecutor(len(TOPICS)) as pool:
            ledgers = [store.open(name) for name in TOPICS]
            for ledger in ledgers:
                cursor = ledger.cursors.create("s", EARLIEST)
                assert cursor.backlog == EACH * life - (len(sent[ledger.name]) // 2 if life else 0)
            for ledger, positions in zip(ledgers, pool.map(lambda it: Producer(it).send(), ledgers), strict=True):
                assert positions == sorted(positions)
                assert len(positions) == EACH
                sent[ledger.name] += positions
            for ledger in ledgers:
                # Every second entry is acknowledged, from the end on.
                acked = sent[ledger.name][1::2]
                ledger.cursors.get("s").ack([(position, None) for position in reversed(acked)])
                entries = ledger.reader.read(EARLIEST, 10_000, 1 << 30)
                assert [entry.position for entry in entries] == sent[ledger.name]
                stamps = [split_broker_metadata(entry.data)[0] for entry in entries]
                assert [stamp.index for stamp in stamps if stamp] == list(range(EACH * (life + 1)))
                times = [stamp.broker_timestamp for stamp in stamps if stamp]
                assert times == sorted(times)
                moment = times[len(times) // 3]
                assert ledger.reader.find_by_time(moment) == sent[ledger.name][times.index(moment)]
                ledger.roll()
                assert len(ledger.ledgers) > life + 1


def test_a_deleted_topic_leaves_no_ledger_on_the_disk(tmp_path: Path) -> None:
    with server(tmp_path) as store:
        ledger = store.open(TOPICS[0])
        Producer(ledger).send()
        ledger.cursors.create("s", EARLIEST).clear_backlog()
        store.delete(TOPICS[0])
    with LocalLog(tmp_path) as hot:
        assert (hot.ledgers(), hot.state()) == ((), {})
