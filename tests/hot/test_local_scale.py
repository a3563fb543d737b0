"""What the local hot log costs: counted in calls to the disk, not timed."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

import pytest
from tests.support.disk import RecordedDisk, rebuild
from tests.support.hot import Completions, append_all, read_all

from afterglow.hot.local import LocalLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from afterglow.errors import HotLogError
    from afterglow.hot.log import Completion

_DAY_MS = 86_400_000
_TIMEOUT_S = 20.0


@pytest.fixture
def log(home: Path, disk: RecordedDisk) -> Iterator[LocalLog]:
    with LocalLog(home, disk=disk, flush_interval_ms=_DAY_MS, checkpoint_interval_ms=_DAY_MS) as log:
        log._background.stop()
        yield log


def _hold_first_sync(disk: RecordedDisk) -> tuple[threading.Event, Callable[[], None]]:
    """Have the next sync of a journal wait; gives an event that says it does, and what lets it go."""
    waiting, go = threading.Event(), threading.Event()

    def fault(method: str, path: Path) -> None:
        if method == "sync" and path.suffix == ".journal" and not waiting.is_set():
            waiting.set()
            assert go.wait(_TIMEOUT_S)

    disk.fault = fault
    return waiting, go.set


@pytest.mark.parametrize("ledger_count", [1, 10, 1000])
def test_a_group_commit_costs_one_write_and_one_sync_however_many_ledgers(
    log: LocalLog, disk: RecordedDisk, ledger_count: int
) -> None:
    ledgers = [log.create() for _ in range(ledger_count)]
    waiting, go = _hold_first_sync(disk)
    before = disk.calls.copy()
    completions = Completions()
    ledgers[0].append((b"first",), completions.next())
    assert waiting.wait(_TIMEOUT_S)  # what is appended now gathers behind it
    for number in range(1000):
        ledgers[number % ledger_count].append((b"%d" % number,), completions.next())
    go()
    assert completions.wait() == [None] * 1001
    assert disk.calls - before == {"write": 2, "sync": 2}


def test_a_round_writes_each_ledger_once_for_many_group_commits(log: LocalLog, disk: RecordedDisk) -> None:
    ledgers = [log.create() for _ in range(10)]
    for number in range(20):
        for ledger in ledgers:
            append_all(ledger, [b"%d" % number])
    before = disk.calls.copy()
    log.flush()
    assert disk.calls["write"] - before["write"] == 2 * 10 + 1  # frames, offsets; one for what is published
    assert disk.calls["sync"] == before["sync"]


def test_a_checkpoint_syncs_only_ledgers_that_changed(log: LocalLog, disk: RecordedDisk) -> None:
    ledgers = [log.create() for _ in range(30)]
    log.checkpoint()
    append_all(ledgers[3], [b"0"])
    append_all(ledgers[7], [b"0"])
    before = disk.calls.copy()
    log.checkpoint()
    assert disk.calls["sync"] - before["sync"] == 2 * 2 + 2  # two files each; the journal's header, the checkpoint


def test_a_start_reads_in_proportion_to_what_was_not_checkpointed(
    log: LocalLog, disk: RecordedDisk, home: Path, tmp_path: Path
) -> None:
    for _ in range(20):
        append_all(log.create(), [bytes(1000)] * 100)
    log.checkpoint()
    read_bytes = []
    ledger = log.create()
    for number in (1, 2):
        append_all(ledger, [bytes(1000)] * 20)
        crashed = tmp_path / str(number)
        rebuild(disk.ops, home, crashed, "synced", random.Random(0))
        start = RecordedDisk(crashed)
        with LocalLog(crashed, disk=start, checkpoint_interval_ms=_DAY_MS) as recovered:
            read_bytes.append(start.read_bytes)
            assert read_all(recovered.open(ledger.ledger_id)) == [bytes(1000)] * 20 * number
    assert read_bytes[0] < 25_000
    assert 20_000 < read_bytes[1] - read_bytes[0] < 25_000


def test_a_start_after_a_clean_end_replays_nothing(home: Path) -> None:
    with LocalLog(home) as log:
        for _ in range(20):
            append_all(log.create(), [bytes(1000)] * 10)
        ids = log.ledgers()
    disk = RecordedDisk(home)
    with LocalLog(home, disk=disk) as log:
        assert disk.read_bytes < 1000
        assert log.ledgers() == ids
        assert log._book.active == {}
        assert len(read_all(log.open(ids[7]))) == 10


def test_journals_are_dropped_by_size_without_being_asked(home: Path) -> None:
    with LocalLog(home, journal_max_bytes=20_000) as log:
        ledger = log.create()
        for _ in range(30):
            append_all(ledger, [bytes(1000)] * 10)
        log.checkpoint()  # after those that the size asked for
        assert log._committer.number > 10
        assert len(list((home / "hot" / "journal").iterdir())) == 1
        assert len(read_all(ledger)) == 300


def test_open_files_stay_within_their_limit(home: Path, disk: RecordedDisk) -> None:
    with LocalLog(home, disk=disk, max_open_files=8, flush_interval_ms=0, checkpoint_interval_ms=5) as log:
        ledgers = [log.create() for _ in range(40)]
        for _ in range(5):
            for ledger in ledgers:
                append_all(ledger, [b"entry"])
        readers = [threading.Thread(target=lambda: [read_all(ledger) for ledger in ledgers]) for _ in range(3)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        # Beside these: two in use by each of four threads; lock, table, journal; for a moment one that is made.
        assert disk.most_open <= 8 + 2 * 4 + 3 + 1
    assert disk.open_now == 0


def test_pending_bytes_count_what_the_disk_has_not(log: LocalLog, disk: RecordedDisk) -> None:
    ledger, completions = log.create(), Completions()
    waiting, go = _hold_first_sync(disk)
    ledger.append((bytes(1000),), completions.next())
    assert waiting.wait(_TIMEOUT_S)
    ledger.append((bytes(500),), completions.next())
    assert log.pending_bytes == 1500 + 2 * 12
    go()
    completions.wait()
    assert log.pending_bytes == 1500 + 2 * 12
    log.flush()
    assert log.pending_bytes == 0


def test_unconfirmed_entries_are_not_readable(log: LocalLog, disk: RecordedDisk) -> None:
    ledger, completions = log.create(), Completions()
    append_all(ledger, [b"0"])
    waiting, go = _hold_first_sync(disk)
    ledger.append((b"1",), completions.next())
    assert waiting.wait(_TIMEOUT_S)
    log.flush()
    assert (ledger.confirmed, read_all(ledger), ledger.read_frames(1, 100)[1]) == (0, [b"0"], 0)
    assert ledger.read(0, 10) == [b"0"]
    go()
    completions.wait()
    assert read_all(ledger) == [b"0", b"1"]


def test_a_group_is_delivered_by_one_call_of_the_hook(home: Path, disk: RecordedDisk) -> None:
    groups: list[int] = []
    finished = threading.Event()

    def deliver(dones: list[Completion], error: HotLogError | None) -> None:
        assert error is None
        groups.append(len(dones))
        if sum(groups) == 51:
            finished.set()

    with LocalLog(home, disk=disk, deliver=deliver) as log:
        ledgers = [log.create() for _ in range(5)]  # creations are no business of the hook
        assert groups == []
        waiting, go = _hold_first_sync(disk)
        ledgers[0].append((b"",), lambda _: None)
        assert waiting.wait(_TIMEOUT_S)
        for number in range(50):
            ledgers[number % 5].append((b"",), lambda _: None)
        go()
        assert finished.wait(_TIMEOUT_S)
        assert groups == [1, 50]
