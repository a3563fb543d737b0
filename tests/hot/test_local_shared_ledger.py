"""Reading a home that another process writes, or wrote."""

from __future__ import annotations

import random
import runpy
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.disk import UnsyncedDisk, rebuild
from tests.support.hot import Completions, append_all

from afterglow.errors import CorruptBlock, LedgerMissing
from afterglow.format.frames import frame_entries
from afterglow.hot.local import LocalLog, open_shared, read_instance
from afterglow.hot.local.published_ends import SLOT_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.disk import RecordedDisk

    from afterglow.hot.local import SharedLedger

_DAY_MS = 86_400_000
_FOLLOWER = Path(__file__).with_name("follower.py")


@pytest.fixture
def log(home: Path, disk: RecordedDisk) -> Iterator[LocalLog]:
    with LocalLog(home, disk=disk, flush_interval_ms=_DAY_MS, checkpoint_interval_ms=_DAY_MS) as log:
        log._background.stop()
        yield log


def _read(ledger: SharedLedger) -> list[bytes]:
    return [bytes(entry) for entry in ledger.read(0, ledger.confirmed)]


def _closed(ledger: SharedLedger) -> bool:
    return ledger.closed  # it changes between two looks, which a type checker does not expect of a property


def test_another_process_reads_a_growing_ledger_and_never_anything_unconfirmed(home: Path) -> None:
    payload = runpy.run_path(str(_FOLLOWER))["payload"]
    with LocalLog(home, flush_interval_ms=1, checkpoint_interval_ms=20, max_open_files=4) as log:
        ledger, others = log.create(), [log.create() for _ in range(5)]
        command = [sys.executable, str(_FOLLOWER), str(home), str(ledger.ledger_id)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follower:
            assert follower.stdout is not None
            assert follower.stdout.readline() == "reading\n"
            for start in range(0, 20_000, 200):
                completions = Completions()
                for entry_id in range(start, start + 200):
                    ledger.append((payload(entry_id),), completions.next())
                    others[entry_id % 5].append((b"other",), completions.next())
                completions.wait()
            ledger.close()
            assert follower.stdout.read() == "20000\n"


def test_entries_are_readable_when_flushed_and_not_before(home: Path, log: LocalLog) -> None:
    ledger = log.create()
    with open_shared(home, ledger.ledger_id) as shared:
        append_all(ledger, [b"0", b"1"])
        assert (shared.confirmed, shared.closed, shared.size_bytes) == (-1, False, 0)
        assert shared.read(0, 5) == []
        assert shared.read_frames(0, 100)[1] == 0
        log.flush()
        assert (shared.confirmed, shared.closed, shared.size_bytes) == (1, False, 2)
        append_all(ledger, [b"2"])
        assert _read(shared) == [b"0", b"1"]
        frames, count = shared.read_frames(0, 1000)
        assert (bytes(frames), count) == (frame_entries([b"0", b"1"]), 2)
        assert shared.offsets(0, 1).tolist() == [0, 13, 26]
        with pytest.raises(IndexError):
            shared.offsets(0, 2)
        log.flush()
        assert _read(shared) == [b"0", b"1", b"2"]
        ledger.close()
        assert not _closed(shared)
        log.flush()
        assert _closed(shared)
        log.checkpoint()
        assert _read(shared) == [b"0", b"1", b"2"]


def test_entries_after_the_published_end_are_not_visible(home: Path, log: LocalLog) -> None:
    ledger = log.create()
    append_all(ledger, [b"0"])
    log.flush()
    with (home / "hot" / "ledgers" / f"{ledger.ledger_id}.ledger").open("ab") as file:
        file.write(frame_entries([b"unconfirmed"], 1))
    with open_shared(home, ledger.ledger_id) as shared:
        assert _read(shared) == [b"0"]
        assert shared.read_frames(0, 1000)[1] == 1
        assert shared.read_frames(1, 1000)[1] == 0


def test_an_end_is_published_only_once_all_before_it_is_written(home: Path, log: LocalLog, disk: RecordedDisk) -> None:
    ledger = log.create()
    append_all(ledger, [b"0", b"1"])
    ends: list[int] = []
    with open_shared(home, ledger.ledger_id) as shared:

        def peek(method: str, path: Path) -> None:
            if method == "write" and path.stem == str(ledger.ledger_id):
                ends.append(shared.confirmed)

        disk.fault = peek
        log.flush()
        assert set(ends) == {-1}
        assert shared.confirmed == 1


def test_a_slot_serves_one_ledger_after_the_other(home: Path, log: LocalLog) -> None:
    first = log.create()
    append_all(first, [b"first"])
    log.flush()
    with open_shared(home, first.ledger_id) as shared_first:
        assert _read(shared_first) == [b"first"]
        first.close()
        log.flush()
        second = log.create()
        append_all(second, [b"second", b"third"])
        log.flush()
        assert log._book.active[second.ledger_id].slot == 0
        with open_shared(home, second.ledger_id) as shared_second:
            assert _read(shared_second) == [b"second", b"third"]
        assert _read(shared_first) == [b"first"]
        assert shared_first.closed


def test_a_slot_met_half_written_is_read_again(home: Path, log: LocalLog) -> None:
    ledger = log.create()
    append_all(ledger, [b"0"])
    log.flush()
    published = home / "hot" / "published"
    whole = published.read_bytes()[:SLOT_BYTES]

    class TornOnce(UnsyncedDisk):
        torn = 3

        def read(self, descriptor: int, length: int, offset: int) -> bytes:
            data = super().read(descriptor, length, offset)
            if data == whole and self.torn:
                self.torn -= 1
                return data[:15] + b"\x05" + data[16:]
            return data

    disk = TornOnce()
    with open_shared(home, ledger.ledger_id, disk=disk) as shared:
        assert shared.confirmed == 0
    assert disk.torn == 0


@pytest.mark.parametrize("when", ["never made", "deleted", "deleted while open"])
def test_a_ledger_that_is_not_there_is_missing(home: Path, log: LocalLog, when: str) -> None:
    ledger = log.create()
    append_all(ledger, [b"0"])
    log.flush()
    shared = open_shared(home, ledger.ledger_id)
    if when == "never made":
        with pytest.raises(LedgerMissing):
            open_shared(home, 99)
    else:
        log.delete(ledger.ledger_id)
        log.flush()
        with pytest.raises(LedgerMissing):
            shared.confirmed if when == "deleted while open" else open_shared(home, ledger.ledger_id)
    shared.close()


def test_without_a_living_writer_only_what_a_checkpoint_made_durable_is_read(
    home: Path, disk: RecordedDisk, log: LocalLog, tmp_path: Path
) -> None:
    checkpointed, closed = log.create(), log.create()
    append_all(checkpointed, [b"0", b"1"])
    append_all(closed, [b"2"])
    closed.close()
    log.checkpoint()
    newer = log.create()
    append_all(newer, [b"3"])
    append_all(checkpointed, [b"4"])
    newer.close()
    log.flush()
    crashed = tmp_path / "crashed"
    rebuild(disk.ops, home, crashed, "all", random.Random(0))
    with open_shared(crashed, checkpointed.ledger_id) as shared:
        assert _read(shared) == [b"0", b"1"]
        assert not shared.closed
    with open_shared(crashed, closed.ledger_id) as shared:
        assert _read(shared) == [b"2"]
        assert shared.closed
    with open_shared(crashed, newer.ledger_id) as shared:
        assert _read(shared) == []
    with LocalLog(crashed), open_shared(crashed, checkpointed.ledger_id) as shared:
        assert _read(shared) == [b"0", b"1", b"4"]
        assert shared.closed
    with open_shared(crashed, newer.ledger_id) as shared:  # after a clean end, all
        assert _read(shared) == [b"3"]


def test_a_reader_that_outlives_the_writer_learns_from_the_next_one(home: Path) -> None:
    command = (
        "import sys; from pathlib import Path; from afterglow.hot.local import LocalLog\n"
        "from tests.support.hot import append_all\n"
        "log = LocalLog(Path(sys.argv[1]), checkpoint_interval_ms=10**8); ledger = log.create()\n"
        "append_all(ledger, [b'0', b'1']); log.flush(); append_all(ledger, [b'2'])\n"
        "print(ledger.ledger_id, flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", command, str(home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        ledger_id = int(writer.stdout.readline())
        shared = open_shared(home, ledger_id)
        seen = _read(shared)
        assert seen[:2] == [b"0", b"1"]
        writer.kill()
    assert _read(shared)[:2] == [b"0", b"1"]
    assert not _closed(shared)
    with LocalLog(home):
        assert _read(shared) == [b"0", b"1", b"2"]
        assert _closed(shared)
    shared.close()


def test_damage_is_reported_with_the_ledger(home: Path, log: LocalLog) -> None:
    ledger = log.create()
    append_all(ledger, [b"0" * 100, b"1" * 100])
    log.flush()
    path = home / "hot" / "ledgers" / f"{ledger.ledger_id}.ledger"
    data = bytearray(path.read_bytes())
    data[112 + 11] ^= 1  # the id of entry 1
    path.write_bytes(data)
    with pytest.raises(CorruptBlock, match=f"ledger {ledger.ledger_id} is damaged"):
        ledger.read(0, 1)
    with open_shared(home, ledger.ledger_id) as shared, pytest.raises(CorruptBlock, match="entry 1"):
        shared.read_frames(0, 1000)
    path.write_bytes(data[:100])
    with pytest.raises(CorruptBlock, match="ends at 100"):
        ledger.read(0, 0)


def test_a_home_has_one_instance_id_for_ever(home: Path, tmp_path: Path) -> None:
    assert read_instance(home) is None
    with LocalLog(home) as log:
        instance = log.instance
        assert read_instance(home) == instance
    with LocalLog(home) as log:
        assert log.instance == instance
    with LocalLog(tmp_path / "other" / "home") as other:
        assert other.instance != instance
