from __future__ import annotations

import pickle
from contextlib import nullcontext
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import pytest
from crc32c import crc32c
from tests.support.assemble import assemble_blocks
from tests.support.disk import RecordedDisk

from afterglow.errors import CorruptBlock, HotLogError, LedgerMissing, UploadMissing
from afterglow.format.blocks import plan_v1, plan_v2
from afterglow.format.objects import INSTANCE_KEY, ObjectKey
from afterglow.hot.local.log import LocalLog
from afterglow.hot.local.shared_ledger import open_shared
from afterglow.offload.block_offloader import group_blocks
from afterglow.offload.task import LedgerPart, PartBuffer, PartTask, cached_store, run_part
from afterglow.storage.memory import MemoryStore
from afterglow.testing.memory_hot import MemoryLog

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from afterglow.format.blocks import BlockPlan
    from afterglow.testing.memory_hot import MemoryLedger

KEY = str(ObjectKey(UUID(int=1), 1))
BLOCK_BYTES = 400


def task(plans: tuple[BlockPlan, ...], **changes: object) -> PartTask:
    given: dict[str, object] = {
        "topic": "public/default/persistent/t",
        "key": KEY,
        "number": 1,
        "upload_id": "upload",
        "url": "memory://bucket",
        "options": (),
        "home": "nowhere",
        "instance": "i",
        "ledgers": (LedgerPart(1, plans),),
    }
    return PartTask(**(given | changes))  # type: ignore[arg-type]  # fields by name


@pytest.fixture
def ledger() -> MemoryLedger:
    ledger = MemoryLog().create()
    for number in range(30):
        ledger.append((b"%d" % number * 20,), lambda _error: None)
    ledger.close()
    return ledger


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(str(uuid4()))


def plans_of(ledger: MemoryLedger) -> tuple[BlockPlan, ...]:
    return plan_v1(ledger.offsets(0, ledger.confirmed), BLOCK_BYTES)


def test_a_part_is_what_the_format_says(ledger: MemoryLedger) -> None:
    plans = plans_of(ledger)
    frames, _ = ledger.read_frames(0, 1 << 20)
    expected, statistics = assemble_blocks(frames, ledger.offsets(0, ledger.confirmed), plans)

    buffer = PartBuffer(len(expected))
    measured = [buffer.add(ledger, plan) for plan in plans]

    assert len(plans) > 2
    assert bytes(buffer.data) == bytes(expected)
    assert measured == statistics


def test_the_files_of_a_home_give_the_same_part_as_the_log_itself(tmp_path: Path) -> None:
    with LocalLog(tmp_path) as log:
        ledger = log.create()
        for number in range(200):
            ledger.append((b"%d" % number * 10,), lambda _error: None)
        ledger.close()
        log.flush()
        plans = plan_v1(ledger.offsets(0, ledger.confirmed), 4096)
        whole = sum(plan.header.block_bytes for plan in plans)
        direct, copied = PartBuffer(whole), PartBuffer(whole)
        disk = RecordedDisk(tmp_path)

        with open_shared(tmp_path, ledger.ledger_id, disk=disk) as shared:
            for plan in plans:
                assert direct.add(shared, plan) == copied.add(ledger, plan)

        assert direct.data == copied.data
        assert disk.calls["read_into"] == len(plans)


def test_a_task_that_is_repeated_uploads_the_same_part(ledger: MemoryLedger, store: MemoryStore) -> None:
    upload = store.create_upload(KEY, metadata={INSTANCE_KEY: "i"})
    part_task = task(plans_of(ledger), upload_id=upload.upload_id)

    first = run_part(part_task, open_ledger=lambda _id: nullcontext(ledger), open_store=lambda *_: store)
    again = run_part(part_task, open_ledger=lambda _id: nullcontext(ledger), open_store=lambda *_: store)

    assert first.error is None
    assert first.part is not None
    assert (again.part, again.statistics) == (first.part, first.statistics)
    assert store.list_parts(upload) == (first.part,)
    store.complete_upload(upload, [first.part])
    stored = store.get(KEY)
    assert (first.part.number, first.part.size_bytes, first.part.crc32c) == (1, stored.nbytes, crc32c(stored))
    assert stored.nbytes == part_task.size_bytes


def test_a_task_of_an_upload_that_was_aborted_writes_nothing(ledger: MemoryLedger, store: MemoryStore) -> None:
    upload = store.create_upload(KEY)
    store.abort_upload(upload)
    part_task = task(plans_of(ledger), upload_id=upload.upload_id)

    result = run_part(part_task, open_ledger=lambda _id: nullcontext(ledger), open_store=lambda *_: store)

    assert isinstance(result.error, UploadMissing)
    assert list(store.list()) == []


def test_parts_of_several_ledgers_become_one_object(store: MemoryStore) -> None:
    log = MemoryLog()
    ledger_parts = []
    at = 0
    for _ in range(2):
        ledger = log.create()
        for number in range(9):
            ledger.append((b"%d" % number * 50,), lambda _error: None)
        plans = plan_v2(ledger.offsets(0, 8), ledger.ledger_id, 0, block_bytes=300, offset=at)
        at = plans[-1].offset + plans[-1].header.block_bytes
        ledger_parts.append(LedgerPart(ledger.ledger_id, plans))
    upload = store.create_upload(KEY)
    part_task = task((), ledgers=tuple(ledger_parts), upload_id=upload.upload_id, number=3)

    result = run_part(part_task, open_ledger=lambda id_: nullcontext(log.open(id_)), open_store=lambda *_: store)

    assert result.part is not None
    assert result.part.number == 3
    assert [len(each) for each in result.statistics] == [len(ledger_part.plans) for ledger_part in ledger_parts]
    store.complete_upload(upload, [result.part])
    assert store.head(KEY).size_bytes == at == part_task.size_bytes


def test_expected_failures_come_back_and_others_propagate(ledger: MemoryLedger, store: MemoryStore) -> None:
    part_task = task(plans_of(ledger), upload_id="unknown")
    gone = run_part(part_task, open_ledger=lambda _id: nullcontext(ledger), open_store=lambda *_: store)
    assert isinstance(gone.error, UploadMissing)
    assert gone.part is None
    assert gone.task_id == part_task.task_id

    def broken(*_: object) -> MemoryStore:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_part(part_task, open_ledger=lambda _id: nullcontext(ledger), open_store=broken)


def test_a_ledger_that_is_not_flushed_yet_is_an_error_to_be_retried(ledger: MemoryLedger, store: MemoryStore) -> None:
    plans = plans_of(ledger)
    ledger.entries.pop()

    result = run_part(task(plans), open_ledger=lambda _id: nullcontext(ledger), open_store=lambda *_: store)

    assert type(result.error) is HotLogError
    assert "entry 28 only, and entry 29 is to be offloaded" in str(result.error)


def _longer(ledger: MemoryLedger) -> None:
    ledger.entries[3] += b"x"


def _shorter(ledger: MemoryLedger) -> None:
    ledger.entries[3] = b""


@pytest.mark.parametrize("damage", [_longer, _shorter])
def test_a_ledger_that_is_not_as_planned_is_not_uploaded(
    ledger: MemoryLedger, store: MemoryStore, damage: Callable[[MemoryLedger], None]
) -> None:
    plans = plans_of(ledger)
    damage(ledger)
    upload = store.create_upload(KEY)
    part_task = task(plans, upload_id=upload.upload_id)

    result = run_part(part_task, open_ledger=lambda _id: nullcontext(ledger), open_store=lambda *_: store)

    assert isinstance(result.error, CorruptBlock)
    assert store.list_parts(upload) == ()


@pytest.mark.parametrize("missing_bytes", [1, 7, 30])
def test_a_torn_read_of_the_hot_log_is_not_uploaded(
    ledger: MemoryLedger, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, missing_bytes: int
) -> None:
    """The last entry would end with zeros, and the hot copy be deleted on the word of that object."""
    plans, read_frames = plans_of(ledger), ledger.read_frames

    def torn(first: int, max_bytes: int) -> tuple[memoryview, int]:
        frames, count = read_frames(first, max_bytes)
        return frames[:-missing_bytes], count

    monkeypatch.setattr(ledger, "read_frames", torn)
    upload = store.create_upload(KEY)
    part_task = task(plans, upload_id=upload.upload_id)
    result = run_part(part_task, open_ledger=lambda _id: nullcontext(ledger), open_store=lambda *_: store)
    assert isinstance(result.error, CorruptBlock)
    assert store.list_parts(upload) == ()


def test_a_damaged_frame_in_the_file_is_noticed(tmp_path: Path) -> None:
    with LocalLog(tmp_path) as log:
        ledger = log.create()
        for number in range(20):
            ledger.append((b"%d" % number * 10,), lambda _error: None)
        ledger.close()
        log.flush()
        plans = plan_v1(ledger.offsets(0, 19), 1 << 20)
        path = tmp_path / "hot" / "ledgers" / f"{ledger.ledger_id}.ledger"
        stored = bytearray(path.read_bytes())
        stored[int(ledger.offsets(10, 10)[0])] ^= 1
        path.write_bytes(stored)

        result = run_part(task(plans, home=str(tmp_path), instance=log.instance))

        assert isinstance(result.error, CorruptBlock)
        assert f"ledger {ledger.ledger_id}" in str(result.error)


def test_a_home_that_is_not_the_servers_is_refused(tmp_path: Path, ledger: MemoryLedger) -> None:
    none = run_part(task(plans_of(ledger), home=str(tmp_path)))
    assert isinstance(none.error, LedgerMissing)
    assert "holds no hot log that can be read, not i" in str(none.error)

    LocalLog(tmp_path).close()
    other = run_part(task(plans_of(ledger), home=str(tmp_path)))
    assert isinstance(other.error, LedgerMissing)
    assert "run the workers on the server's machine" in str(other.error)


def test_a_task_is_small_and_hides_secrets(ledger: MemoryLedger) -> None:
    part_task = task(plans_of(ledger)[:1], options=(("secret_key", "hunter2"),))

    assert "hunter2" not in repr(part_task)
    assert len(pickle.dumps(part_task)) < 2000
    assert pickle.loads(pickle.dumps(part_task)) == part_task


def test_results_travel(ledger: MemoryLedger, store: MemoryStore) -> None:
    upload = store.create_upload(KEY)
    for upload_id in (upload.upload_id, "unknown"):
        part_task = task(plans_of(ledger), upload_id=upload_id)
        result = run_part(part_task, open_ledger=lambda _id: nullcontext(ledger), open_store=lambda *_: store)
        arrived = pickle.loads(pickle.dumps(result))
        assert (arrived.part, arrived.statistics) == (result.part, result.statistics)
        assert repr(arrived.error) == repr(result.error)


def test_small_blocks_share_a_part_and_large_ones_do_not(ledger: MemoryLedger) -> None:
    plans = plans_of(ledger)

    parts = group_blocks(plans, 2 * BLOCK_BYTES)

    assert [plan for part in parts for plan in part] == list(plans)
    assert [len(part) for part in parts[:-1]] == [2] * (len(parts) - 1)
    assert [len(part) for part in group_blocks(plans, 1)] == [1] * len(plans)


def test_a_worker_keeps_few_stores_open(tmp_path: Path) -> None:
    first = cached_store(tmp_path.as_uri(), ())
    assert cached_store(tmp_path.as_uri(), ()) is first
    for number in range(9):
        cached_store((tmp_path / str(number)).as_uri(), (("create", "true"),))
    assert cached_store(tmp_path.as_uri(), ()) is not first
