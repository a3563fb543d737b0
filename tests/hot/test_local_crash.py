"""A crash of process or machine between any two calls to the disk loses nothing that was acknowledged."""

from __future__ import annotations

import contextlib
import errno
import random
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.disk import RecordedDisk, UnsyncedDisk, rebuild
from tests.support.hot import Completions, append_all, read_all

from afterglow.errors import HotLogError, LedgerMissing
from afterglow.format.frames import frame_entries
from afterglow.hot.local import LocalLog
from afterglow.hot.local.ledger_files import HEAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.support.disk import Op, Survival

    from afterglow.hot.local.ledger import LocalLedger

_SEED = 76


class _Witness:
    """Does things to a log, and marks among the disk's changes what was asked and what was acknowledged."""

    def __init__(self, log: LocalLog, disk: RecordedDisk) -> None:
        self.log = log
        self.disk = disk
        self._entry = 0

    def create(self) -> LocalLedger:
        ledger = self.log.create()
        self.disk.mark(("created", ledger.ledger_id))
        return ledger

    def append(self, ledger: LocalLedger, completions: Completions) -> None:
        self._entry += 1
        entry = b"%d:" % ledger.ledger_id + b"%d," % self._entry * (self._entry % 9)
        done = completions.next()

        def marked(error: HotLogError | None) -> None:
            if error is None:
                self.disk.mark(("acked", ledger.ledger_id, entry))
            done(error)

        self.disk.mark(("appended", ledger.ledger_id, entry))
        ledger.append((entry,), marked)

    def append_some(self, ledgers: Sequence[LocalLedger], count: int) -> list[HotLogError | None]:
        completions = Completions()
        for number in range(count):
            self.append(ledgers[number % len(ledgers)], completions)
        return completions.wait()

    def put(self, value: int, *, key: bytes = b"cursor") -> None:
        completions = Completions()
        done = completions.next()

        def marked(error: HotLogError | None) -> None:
            if error is None:
                self.disk.mark(("put", key, value))
            done(error)

        self.log.put_state(key, b"%d" % value, marked)
        completions.wait()

    def delete(self, ledger_id: int) -> None:
        self.disk.mark(("deleting", ledger_id))
        self.log.delete(ledger_id)
        self.disk.mark(("deleted", ledger_id))

    def end(self, ledger: LocalLedger) -> None:
        """Close a ledger, whose end may then be recorded elsewhere."""
        ledger.close()
        self.disk.mark(("ended", ledger.ledger_id, ledger.confirmed + 1))


def _check(log: LocalLog, ops: Sequence[Op]) -> None:
    """Compare what was recovered with what the marks say."""
    appended: defaultdict[int, list[bytes]] = defaultdict(list)
    acked: defaultdict[int, list[bytes]] = defaultdict(list)
    ends: dict[int, int] = {}
    created, deleting, deleted = set(), set(), set()
    values: dict[bytes, int] = {}
    for op in ops:
        match op.subject if op.kind == "mark" else None:
            case ("created", ledger_id):
                created.add(ledger_id)
            case ("appended", ledger_id, entry):
                appended[ledger_id].append(entry)
            case ("acked", ledger_id, entry):
                acked[ledger_id].append(entry)
            case ("ended", ledger_id, end):
                ends[ledger_id] = end
            case ("deleting", ledger_id):
                deleting.add(ledger_id)
            case ("deleted", ledger_id):
                deleted.add(ledger_id)
            case ("put", key, value):
                values[key] = value
    there = set(log.ledgers())
    assert created - deleting <= there
    assert not deleted & there
    for ledger_id in there:
        ledger = log.open(ledger_id)
        found = read_all(ledger)
        assert ledger.closed
        assert found == appended[ledger_id][: len(found)]
        assert len(found) >= len(acked[ledger_id])
        assert len(found) == ends.get(ledger_id, len(found))
        # The files hold this and nothing behind it, torn or void.
        assert log._paths.frames(ledger_id).read_bytes() == frame_entries(found)
        assert log._paths.offsets(ledger_id).stat().st_size == HEAD_BYTES + 8 * len(found)
    for key, value in values.items():
        assert int(log.state()[key]) >= value
    assert log.create().ledger_id > max(created, default=0)


def _recover_after(ops: Sequence[Op], root: Path, target: Path, survival: Survival, seed: int) -> None:
    rebuild(ops, root, target, survival, random.Random(seed))
    with LocalLog(target, disk=UnsyncedDisk()) as log:
        _check(log, ops)


def _crash_everywhere(
    disk: RecordedDisk, root: Path, target: Path, survivals: Sequence[Survival] = ("all", "synced", "some", "some")
) -> int:
    """Crash after every change; gives how many crashes there were."""
    count = 0
    for end, op in enumerate(disk.ops, 1):
        if op.kind == "mark" and op.subject[0] != "acked":
            continue
        for survival in survivals:
            count += 1
            try:
                _recover_after(disk.ops[:end], root, target / str(count), survival, _SEED + count)
            except Exception as error:
                error.add_note(f"crash after {end} changes, {survival} survived, seed {_SEED + count}: {op}")
                raise
    return count


def _quiet(home: Path, disk: RecordedDisk, **settings: Any) -> LocalLog:
    """A log that does nothing by itself: rounds and checkpoints come when the test asks for them."""
    home.mkdir(exist_ok=True)
    log = LocalLog(home, disk=disk, flush_interval_ms=3_600_000, checkpoint_interval_ms=3_600_000, **settings)
    log._background.stop()
    return log


def _work(witness: _Witness) -> None:
    """A bit of everything."""
    log = witness.log
    first, second = witness.create(), witness.create()
    witness.append_some([first, second], 5)
    witness.put(1)
    log.flush()
    witness.append_some([first], 2)
    log.checkpoint()
    witness.append_some([first, second], 4)
    witness.put(2)
    third = witness.create()
    witness.end(second)
    log.flush()
    witness.append_some([third, first], 6)
    witness.delete(second.ledger_id)
    log.checkpoint()
    witness.append_some([third], 3)
    log.flush()
    witness.put(3)
    witness.delete(first.ledger_id)
    witness.append_some([third], 1)


def test_a_crash_between_any_two_calls_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    disk = RecordedDisk(home)
    with _quiet(home, disk) as log:
        _work(_Witness(log, disk))
    assert _crash_everywhere(disk, home, tmp_path / "crashes") > 400


def test_a_crash_amid_busy_background_work_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    disk = RecordedDisk(home)
    with LocalLog(
        home, disk=disk, flush_interval_ms=0, checkpoint_interval_ms=2, journal_max_bytes=600, max_open_files=2
    ) as log:
        witness = _Witness(log, disk)
        completions = Completions()
        ledgers = [witness.create() for _ in range(3)]
        for number in range(60):
            witness.append(ledgers[number % 3], completions)
            if number % 20 == 19:
                completions.wait()
        completions.wait()
    assert _crash_everywhere(disk, home, tmp_path / "crashes", ("synced", "some")) > 100


def test_a_crash_during_recovery_loses_nothing_either(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    disk = RecordedDisk(home)
    with _quiet(home, disk) as log:
        _work(_Witness(log, disk))
    chance = random.Random(_SEED)
    for number, end in enumerate(chance.sample(range(len(disk.ops) // 4, len(disk.ops)), 4)):
        crashed = tmp_path / f"crashed-{number}"
        rebuild(disk.ops[:end], home, crashed, "some", chance)
        again = RecordedDisk(crashed)
        known = len(again.ops)
        with LocalLog(crashed, disk=again) as log:
            assert log.ledgers() is not None
        marks = [op for op in disk.ops[:end] if op.kind == "mark"]
        for stop in range(known, len(again.ops), 2):
            target = tmp_path / f"again-{number}-{stop}"
            _recover_after([*marks, *again.ops[:stop]], crashed, target, "some", _SEED + stop)


def test_a_journal_torn_at_any_byte_gives_back_every_whole_group(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    disk = RecordedDisk(home)
    log = _quiet(home, disk)
    witness = _Witness(log, disk)
    ledger = witness.create()
    for _ in range(4):
        witness.append_some([ledger], 1)
    journal = home / "hot" / "journal" / f"{log._committer.number}.journal"
    whole = journal.read_bytes()
    writes = [op for op in disk.ops if op.kind == "write" and whole.endswith(op.data)]
    for length in range(len(whole) - len(writes[-1].data), len(whole) + 1):
        target = tmp_path / str(length)
        rebuild(disk.ops, home, target, "all", random.Random(_SEED))
        (target / "hot" / "journal" / journal.name).write_bytes(whole[:length])
        with LocalLog(target, disk=UnsyncedDisk()) as recovered:
            found = read_all(recovered.open(ledger.ledger_id))
        assert len(found) == (4 if length == len(whole) else 3)
        assert found == read_all(ledger)[: len(found)]
    log.close()


@pytest.mark.parametrize("where", ["first batch", "middle batch", "entry", "header"])
def test_damage_to_acknowledged_entries_is_reported_and_not_taken_for_a_torn_end(tmp_path: Path, where: str) -> None:
    home, damaged = tmp_path / "home", tmp_path / "damaged"
    home.mkdir()
    disk = RecordedDisk(home)
    with _quiet(home, disk) as log:
        ledger = log.create()
        for _ in range(3):
            append_all(ledger, [b"entry" * 10])
        name = f"{log._committer.number}.journal"
        rebuild(disk.ops, home, damaged, "all", random.Random(_SEED))
    journal = damaged / "hot" / "journal" / name
    data = bytearray(journal.read_bytes())
    entry = data.index(b"entry" * 10)  # which nothing but the checksum of its batch covers
    data[{"header": 9, "first batch": 60, "middle batch": len(data) // 2, "entry": entry}[where]] ^= 1
    journal.write_bytes(data)
    with pytest.raises(HotLogError, match=name):
        LocalLog(damaged)
    journal.unlink()
    with pytest.raises(HotLogError, match=r"is missing|neither"):
        LocalLog(damaged)


def test_damage_in_an_older_journal_is_reported_wherever_it_is(tmp_path: Path) -> None:
    home, damaged = tmp_path / "home", tmp_path / "damaged"
    home.mkdir()
    disk = RecordedDisk(home)
    with _quiet(home, disk) as log:
        ledger = log.create()
        append_all(ledger, [b"entry"])
        name = f"{log._committer.number}.journal"
        log._committer.rotate()
        append_all(ledger, [b"entry"])
        rebuild(disk.ops, home, damaged, "all", random.Random(_SEED))
    journal = damaged / "hot" / "journal" / name
    journal.write_bytes(journal.read_bytes()[:-1])  # in the last file this would be a torn end
    with pytest.raises(HotLogError, match=name):
        LocalLog(damaged)


@pytest.mark.parametrize("method", ["write", "sync"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_remains_of_a_failed_group_never_come_back_once_others_were_acknowledged(
    tmp_path: Path, method: str, code: int
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    disk = RecordedDisk(home)
    log = _quiet(home, disk)
    witness = _Witness(log, disk)
    first, other = witness.create(), witness.create()
    assert witness.append_some([first, other], 4) == [None] * 4
    failed = threading.Event()

    def fault(called: str, path: Path) -> OSError | None:
        if called != method or path.suffix != ".journal" or failed.is_set():
            return None
        failed.set()
        return OSError(code, "on purpose")

    disk.fault = fault
    outcomes = witness.append_some([first], 3)
    assert all(isinstance(error, HotLogError) for error in outcomes)
    assert first.closed
    assert first.confirmed == 1
    assert not other.closed  # it had nothing under way
    assert witness.append_some([other], 2) == [None] * 2
    witness.end(first)
    newer = witness.create()
    assert witness.append_some([newer, other], 4) == [None] * 4
    assert _crash_everywhere(disk, home, tmp_path / "crashes") > 100
    log.close()


def test_bytes_after_the_last_entry_of_an_open_ledger_are_truncated(tmp_path: Path) -> None:
    home, crashed = tmp_path / "home", tmp_path / "crashed"
    home.mkdir()
    disk = RecordedDisk(home)
    with _quiet(home, disk) as log:
        ledger = log.create()
        append_all(ledger, [b"0", b"1"])
        log.flush()
        rebuild(disk.ops, home, crashed, "all", random.Random(_SEED))
    path = crashed / "hot" / "ledgers" / f"{ledger.ledger_id}.ledger"
    for name in (path, path.with_suffix(".offsets")):
        name.write_bytes(name.read_bytes() + b"rest" * 10)
    with LocalLog(crashed) as recovered:
        assert read_all(recovered.open(ledger.ledger_id)) == [b"0", b"1"]
    assert path.read_bytes() == frame_entries([b"0", b"1"])
    assert path.with_suffix(".offsets").stat().st_size == HEAD_BYTES + 16


def test_ids_are_never_reused_even_when_all_ledgers_are_deleted(tmp_path: Path) -> None:
    ids = []
    for _ in range(3):
        with LocalLog(tmp_path) as log:
            ids.append(log.create().ledger_id)
            log.delete(ids[-1])
    assert ids == sorted(set(ids))
    with LocalLog(tmp_path) as log, pytest.raises(LedgerMissing):
        log.open(ids[0])


def _kill_at(disk: RecordedDisk, journal_sync: int) -> None:
    """From that sync of a journal on nothing has any effect any more, as if the process had ended before it."""
    count = 0

    def fault(method: str, path: Path) -> OSError | None:
        nonlocal count
        count += method == "sync" and path.suffix == ".journal"
        return OSError(errno.EIO, "the process is dead") if count >= journal_sync else None

    disk.fault = fault


@pytest.mark.parametrize("journal_sync", range(1, 20, 2))
def test_what_recovery_serves_survives_the_machine_though_the_killed_process_had_not_synced_it(
    tmp_path: Path, journal_sync: int
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    disk = RecordedDisk(home)
    killed = _quiet(home, disk)
    _kill_at(disk, journal_sync)
    with contextlib.suppress(HotLogError):
        _work(_Witness(killed, disk))
    killed.close()
    disk.fault = lambda _method, _path: None
    before = len(disk.ops)
    with LocalLog(home, disk=disk) as log:
        for ledger_id in log.ledgers():
            disk.mark(("ended", ledger_id, log.open(ledger_id).confirmed + 1))
        log.create()
    for end in range(before, len(disk.ops) + 1):
        for survival in ("synced", "some"):
            target = tmp_path / f"{end}-{survival}"
            _recover_after(disk.ops[:end], home, target, survival, _SEED + end)
