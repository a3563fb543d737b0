"""A disk that fails costs appends, never the process, never what was acknowledged."""

from __future__ import annotations

import errno
import fcntl
import random
import subprocess
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from tests.support.disk import RecordedDisk, UnsyncedDisk, rebuild
from tests.support.hot import Completions, append_all, read_all

from afterglow.errors import DiskFull, HotLogError, LedgerClosed
from afterglow.hot.local import LocalLog
from afterglow.hot.local.disk import Disk
from afterglow.hot.local.paths import HotLogPaths

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from afterglow.hot.log import HotLedger

_DAY_MS = 86_400_000


@pytest.fixture
def log(home: Path, disk: RecordedDisk) -> Iterator[LocalLog]:
    """A log whose rounds and checkpoints come when the test asks for them."""
    with LocalLog(home, disk=disk, flush_interval_ms=_DAY_MS, checkpoint_interval_ms=_DAY_MS) as log:
        log._background.stop()
        yield log
        disk.fault = lambda _method, _path: None


@contextmanager
def _failing(disk: RecordedDisk, code: int, *methods: str, suffix: str = "") -> Iterator[None]:
    """All calls of these methods fail, on files whose names end so."""
    before = disk.fault
    disk.fault = lambda method, path: (
        OSError(code, "on purpose") if method in methods and path.name.endswith(suffix) else None
    )
    yield
    disk.fault = before


def _append(ledger: HotLedger, *entries: bytes) -> list[HotLogError | None]:
    completions = Completions()
    for entry in entries:
        ledger.append((entry,), completions.next())
    return completions.wait()


def test_a_full_disk_fails_appends_and_creations_until_there_is_room(log: LocalLog, disk: RecordedDisk) -> None:
    ledger, other = log.create(), log.create()
    append_all(ledger, [b"0", b"1"])
    append_all(other, [b"0"])
    with _failing(disk, errno.ENOSPC, "write", suffix=".journal"):
        first, second = _append(ledger, b"2", b"3")
        assert isinstance(first, DiskFull)
        assert isinstance(second, DiskFull)
        assert "free space" in str(first)
        with pytest.raises(DiskFull):
            log.create()
        assert ledger.closed
        with pytest.raises(LedgerClosed):
            ledger.append((b"late",), Completions().next())
        assert read_all(ledger) == [b"0", b"1"]
        assert log.pending_bytes == len(b"0") + len(b"1") + len(b"0") + 3 * 12  # confirmed, not flushed
    assert not other.closed
    append_all(other, [b"1"])
    newer = log.create()
    append_all(newer, [b"0"])
    assert [read_all(each) for each in (ledger, other, newer)] == [[b"0", b"1"], [b"0", b"1"], [b"0"]]


@pytest.mark.parametrize("code", [errno.EROFS, errno.EIO])
def test_a_disk_that_takes_nothing_leaves_everything_readable(log: LocalLog, disk: RecordedDisk, code: int) -> None:
    ledger, unflushed = log.create(), log.create()
    append_all(ledger, [b"0"])
    log.flush()
    append_all(unflushed, [b"1"])
    changes = ("write", "sync", "sync_directory", "rename", "unlink", "truncate")
    with _failing(disk, code, *changes):
        (error,) = _append(ledger, b"late")
        assert type(error) is HotLogError
        for refused in (log.create, log.flush, log.checkpoint):
            with pytest.raises(HotLogError, match="read-only" if code == errno.EROFS else "check the disk"):
                refused()
        assert (read_all(ledger), read_all(unflushed)) == ([b"0"], [b"1"])
    log.flush()
    log.checkpoint()
    append_all(log.create(), [b"works"])


def test_a_failed_sync_is_never_followed_by_another_of_the_same_file(log: LocalLog, disk: RecordedDisk) -> None:
    ledger = log.create()
    append_all(ledger, [b"0"])
    number = log._committer.number
    synced = []

    def fault(method: str, path: Path) -> OSError | None:
        if method in {"sync", "write"} and path.suffix == ".journal":
            synced.append((method, path.name))
            if synced[-1] == ("sync", f"{number}.journal"):
                return OSError(errno.EIO, "on purpose")
        return None

    disk.fault = fault
    assert isinstance(_append(ledger, b"1")[0], HotLogError)
    append_all(log.create(), [b"0"])
    log.checkpoint()
    assert synced.count(("sync", f"{number}.journal")) == 1
    assert ("write", f"{number}.journal") not in synced[synced.index(("sync", f"{number}.journal")) :]


def test_appends_queued_after_a_failed_group_fail_with_it(log: LocalLog, disk: RecordedDisk) -> None:
    """In another ledger too: its producer must not get a success between two failures."""
    ledger, other = log.create(), log.create()
    syncing, queued = threading.Event(), threading.Event()

    def fault(method: str, path: Path) -> OSError | None:
        if method != "sync" or path.suffix != ".journal" or queued.is_set():
            return None
        syncing.set()
        queued.wait(30)
        return OSError(errno.EIO, "on purpose")

    disk.fault = fault
    completions = Completions()
    ledger.append((b"0",), completions.next())
    assert syncing.wait(30)
    other.append((b"0",), completions.next())
    queued.set()
    first, second = completions.wait()
    assert isinstance(first, HotLogError)
    assert isinstance(second, HotLogError)
    assert ledger.closed
    assert other.closed
    assert (read_all(ledger), read_all(other)) == ([], [])


def test_a_fenced_ledger_is_closed_only_when_its_failed_appends_are_void(log: LocalLog, disk: RecordedDisk) -> None:
    ledger = log.create()
    append_all(ledger, [b"0"])
    with _failing(disk, errno.EIO, "sync", suffix=".journal"):
        assert isinstance(_append(ledger, b"1")[0], HotLogError)
        with pytest.raises(HotLogError):
            ledger.close()
    ledger.close()
    assert (ledger.confirmed, read_all(ledger)) == (0, [b"0"])


def test_a_ledger_that_cannot_be_flushed_takes_no_more_and_loses_nothing(
    log: LocalLog, disk: RecordedDisk, home: Path, tmp_path: Path
) -> None:
    broken, other = log.create(), log.create()
    append_all(broken, [b"0", b"1"])
    append_all(other, [b"0"])
    with _failing(disk, errno.ENOSPC, "write", suffix=f"{broken.ledger_id}.ledger"):
        with pytest.raises(DiskFull):
            log.flush()
        assert broken.closed
        assert not other.closed
        assert read_all(broken) == [b"0", b"1"]
        with pytest.raises(DiskFull):
            log.checkpoint()
    # The journal has what the ledger's file has not.
    rebuild(disk.ops, home, tmp_path / "crashed", "synced", random.Random(0))
    with LocalLog(tmp_path / "crashed") as recovered:
        assert read_all(recovered.open(broken.ledger_id)) == [b"0", b"1"]
    log.checkpoint()
    assert log.pending_bytes == 0
    assert read_all(broken) == [b"0", b"1"]


@pytest.mark.parametrize("suffix", [".ledger", ".offsets"])
def test_after_a_failed_sync_a_ledger_is_written_again_from_the_journal(
    log: LocalLog, disk: RecordedDisk, home: Path, suffix: str
) -> None:
    ledger = log.create()
    append_all(ledger, [b"before"])
    log.checkpoint()
    append_all(ledger, [b"lost?", b"or not"])
    with _failing(disk, errno.EIO, "sync", suffix=suffix), pytest.raises(HotLogError):
        log.checkpoint()
    assert ledger.closed
    path = home / "hot" / "ledgers" / f"{ledger.ledger_id}{suffix}"
    written = path.read_bytes()
    path.write_bytes(written[:-9] + bytes(9))  # what the system may do with pages that it could not write
    log.checkpoint()
    assert path.read_bytes() == written
    assert read_all(ledger) == [b"before", b"lost?", b"or not"]


@pytest.mark.parametrize("step", ["write", "sync", "rename", "sync_directory"])
def test_journals_stay_until_a_checkpoint_is_durable(
    log: LocalLog, disk: RecordedDisk, home: Path, tmp_path: Path, step: str
) -> None:
    ledger = log.create()
    append_all(ledger, [b"0", b"1"])
    names = {"write": "checkpoint.new", "sync": "checkpoint.new", "rename": "checkpoint", "sync_directory": "hot"}
    with _failing(disk, errno.EIO, step, suffix=names[step]), pytest.raises(HotLogError):
        log.checkpoint()
    for survival in ("all", "synced"):
        target = tmp_path / survival
        rebuild(disk.ops, home, target, survival, random.Random(0))
        with LocalLog(target, disk=UnsyncedDisk()) as recovered:
            assert read_all(recovered.open(ledger.ledger_id)) == [b"0", b"1"]
    log.checkpoint()
    assert len(list((home / "hot" / "journal").iterdir())) == 1


def test_a_journal_file_that_cannot_be_begun_does_not_fail_later_appends(log: LocalLog, disk: RecordedDisk) -> None:
    ledger = log.create()
    append_all(ledger, [b"0"])
    with _failing(disk, errno.ENOSPC, "open", suffix=".journal"), pytest.raises(DiskFull):
        log.checkpoint()
    append_all(ledger, [b"1"])
    assert read_all(ledger) == [b"0", b"1"]


def test_a_ledger_can_be_deleted_on_a_full_disk_and_stays_deleted(
    log: LocalLog, disk: RecordedDisk, home: Path, tmp_path: Path
) -> None:
    ledger, old = log.create(), log.create()
    append_all(ledger, [b"0"])
    append_all(old, [b"0"])
    log.flush()
    with _failing(disk, errno.ENOSPC, "write", suffix=".journal"):
        log.delete(ledger.ledger_id)
        assert not (home / "hot" / "ledgers" / f"{ledger.ledger_id}.ledger").exists()
        assert log.ledgers() == (old.ledger_id,)
    newer = log.create()  # the record of the deletion goes with it
    rebuild(disk.ops, home, tmp_path / "crashed", "synced", random.Random(0))
    with LocalLog(tmp_path / "crashed", disk=UnsyncedDisk()) as recovered:
        assert recovered.ledgers() == (old.ledger_id, newer.ledger_id)


def test_files_that_cannot_be_removed_at_once_are_removed_before_the_next_checkpoint(
    log: LocalLog, disk: RecordedDisk, home: Path, tmp_path: Path
) -> None:
    ledger = log.create()
    append_all(ledger, [b"0"])
    ledger.close()
    log.checkpoint()
    with _failing(disk, errno.EIO, "unlink", suffix=".ledger"):
        with pytest.raises(HotLogError, match="cannot remove"):
            log.delete(ledger.ledger_id)
        with pytest.raises(HotLogError):
            log.checkpoint()
    assert log.ledgers() == ()
    log.checkpoint()
    rebuild(disk.ops, home, tmp_path / "crashed", "synced", random.Random(0))
    with LocalLog(tmp_path / "crashed", disk=UnsyncedDisk()) as recovered:
        assert recovered.ledgers() == ()


def test_state_that_is_not_durable_is_not_returned(log: LocalLog, disk: RecordedDisk) -> None:
    completions = Completions()
    log.put_state(b"key", b"1", completions.next())
    completions.wait()
    with _failing(disk, errno.EIO, "sync", suffix=".journal"):
        log.put_state(b"key", b"2", completions.next())
        assert isinstance(completions.wait()[1], HotLogError)
    assert log.state() == {b"key": b"1"}
    log.put_state(b"key", b"3", completions.next())
    assert completions.wait()[2] is None
    assert log.state() == {b"key": b"3"}


def test_files_of_a_new_ledger_that_cannot_be_made_leave_no_ledger(log: LocalLog, disk: RecordedDisk) -> None:
    with _failing(disk, errno.ENOSPC, "open", suffix=".offsets"), pytest.raises(DiskFull):
        log.create()
    assert log.ledgers() == ()
    ledger = log.create()
    assert log.ledgers() == (ledger.ledger_id,)
    log.checkpoint()


def test_a_home_that_cannot_be_recovered_now_can_be_later(
    home: Path, disk: RecordedDisk, log: LocalLog, tmp_path: Path
) -> None:
    ledger = log.create()
    append_all(ledger, [b"0", b"1"])
    crashed = tmp_path / "crashed"
    rebuild(disk.ops, home, crashed, "synced", random.Random(0))
    full = RecordedDisk(crashed)
    with _failing(full, errno.ENOSPC, "write"), pytest.raises(DiskFull):
        LocalLog(crashed, disk=full)
    assert full.open_now == 0
    with LocalLog(crashed, disk=full) as recovered:
        assert read_all(recovered.open(ledger.ledger_id)) == [b"0", b"1"]


def test_two_do_not_write_the_same_home(home: Path) -> None:
    with LocalLog(home), pytest.raises(HotLogError, match="in use by another process"):
        LocalLog(home)
    with LocalLog(home) as log:
        append_all(log.create(), [b"0"])


def test_a_completion_that_would_wait_for_itself_is_refused(home: Path) -> None:
    translated: list[Exception] = []
    with LocalLog(home) as log:
        ledger = log.create()
        completions = Completions()
        done = completions.next()

        def wait_for_myself(error: HotLogError | None) -> None:
            try:
                log.create()
            except RuntimeError as wrong:
                translated.append(wrong)
            done(error)

        ledger.append((b"0",), wait_for_myself)
        completions.wait()
    assert len(translated) == 1


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    mount_point = tmp_path / "tiny"
    mount_point.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount_point)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system of 1 MiB can be mounted here: {error}")
    yield mount_point
    subprocess.run(["umount", str(mount_point)], check=True)


def test_a_disk_that_is_really_full_takes_entries_again_after_a_deletion(tiny_disk: Path) -> None:
    entry = bytes(10_000)
    with LocalLog(tiny_disk, flush_interval_ms=0, checkpoint_interval_ms=10) as log:
        ledger = log.create()
        count = 0
        while True:
            (error,) = _append(ledger, entry) if not ledger.closed else [DiskFull()]
            if error is not None:
                break
            count += 1
        assert count > 10
        assert all(bytes(found) == entry for found in ledger.read(0, count))
        log.delete(ledger.ledger_id)
        log.checkpoint()
        append_all(log.create(), [entry] * 10)


def test_a_home_whose_lock_is_only_queried_can_be_opened(home: Path) -> None:
    LocalLog(home).close()
    disk = Disk()
    with disk.opened(HotLogPaths(home).lock) as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        release = threading.Timer(0.1, fcntl.flock, (asking, fcntl.LOCK_UN))
        release.start()
        LocalLog(home).close()
        release.join()
