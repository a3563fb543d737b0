"""What the local store adds to the contract: its public layout, and directories that others have filled."""

from __future__ import annotations

import json
import multiprocessing
import os
from typing import TYPE_CHECKING

import pytest

from afterglow.errors import AccessDenied, BucketMissing, InvalidName, ObjectExists, ObjectMissing, StorageError
from afterglow.storage import LocalStore, durable

if TYPE_CHECKING:
    from pathlib import Path


def _files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and ".uploads" not in path.parts}


def test_a_key_is_a_file_and_its_metadata_a_flat_json_file_beside_it(tmp_path: Path) -> None:
    LocalStore(tmp_path).put("a/b", b"data", metadata={"ManagedLedgerName": "x", "n": "1"})
    assert (tmp_path / "a/b").read_bytes() == b"data"
    assert json.loads((tmp_path / "a/b.meta.json").read_text()) == {"managedledgername": "x", "n": "1"}
    assert _files(tmp_path) == {"a/b", "a/b.meta.json"}


def test_an_object_without_metadata_is_one_file(tmp_path: Path) -> None:
    LocalStore(tmp_path).put("a", b"data")
    assert _files(tmp_path) == {"a"}


def test_deleting_takes_the_metadata_file_too(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a", b"data", metadata={"k": "v"})
    store.delete(["a"])
    assert _files(tmp_path) == set()


def test_a_directory_that_others_filled_is_readable_and_stays_untouched(tmp_path: Path) -> None:
    (tmp_path / "x-ledger-1").write_bytes(b"block")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/y").write_bytes(b"index")
    (tmp_path / "sub/y.meta.json").write_text('{"ManagedLedgerName": "m"}')
    os.utime(tmp_path / "sub/y.meta.json", ns=(1, 1))
    store = LocalStore(tmp_path)
    assert [info.key for info in store.list()] == ["sub/y", "x-ledger-1"]
    assert bytes(store.get("x-ledger-1")) == b"block"
    assert store.head("x-ledger-1").metadata == {}
    assert store.head("sub/y").metadata == {"managedledgername": "m"}
    assert not store.list_uploads()
    assert not (tmp_path / ".uploads").exists()


def test_files_that_can_be_no_keys_are_not_listed(tmp_path: Path) -> None:
    (tmp_path / "new\nline").write_bytes(b"")
    (tmp_path / os.fsdecode(b"\xff")).write_bytes(b"")
    (tmp_path / "left.meta.json").write_text("{}")
    (tmp_path / "good").write_bytes(b"")
    assert [info.key for info in LocalStore(tmp_path).list()] == ["good"]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1}', '{"a": {"b": "c"}}'])
def test_a_metadata_file_of_another_form_is_named_in_the_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "a").write_bytes(b"data")
    (tmp_path / "a.meta.json").write_text(text)
    with pytest.raises(StorageError, match=r"a\.meta\.json is not a flat JSON object of strings"):
        LocalStore(tmp_path).head("a")


@pytest.mark.parametrize("key", [".uploads", ".uploads/x", "a.meta.json", "a.meta.json/b", "d/a.meta.json"])
def test_reserved_keys_are_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(InvalidName, match="reserved"):
        LocalStore(tmp_path).put(key, b"")
    assert _files(tmp_path) == set()


def test_a_key_through_or_above_another_object_is_refused(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a", b"file")
    store.put("d/e", b"below")
    for key in ("a/b", "a/b/c", "d"):
        with pytest.raises(InvalidName):
            store.put(key, b"x", metadata={"k": "v"})
    with pytest.raises(InvalidName):
        store.put("d", b"x", if_absent=True)
    assert _files(tmp_path) == {"a", "d/e"}


def test_a_name_longer_than_the_file_system_takes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidName, match="cannot store"):
        LocalStore(tmp_path).put("a" * 300, b"")


def test_a_missing_root_is_made_only_when_asked(tmp_path: Path) -> None:
    root = tmp_path / "not" / "there"
    store = LocalStore(root)
    for call in (lambda: store.get("a"), lambda: store.head("a"), lambda: list(store.list()), store.list_uploads):
        with pytest.raises(BucketMissing, match="create it"):
            call()
    with pytest.raises(BucketMissing, match="create=true"):
        store.put("a", b"")
    assert not root.exists()
    making = LocalStore(root, create=True)
    assert not list(making.list())
    assert not making.list_uploads()
    with pytest.raises(ObjectMissing):
        making.get("a")
    assert not root.exists()
    making.put("a", b"data")
    assert bytes(store.get("a")) == b"data"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_rights_is_access_denied(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(AccessDenied, match="access to the directory"):
            LocalStore(tmp_path).put("a", b"")
    finally:
        tmp_path.chmod(0o700)


def test_ranges_beyond_four_gibibytes_are_read(tmp_path: Path) -> None:
    size = (4 << 30) + 7
    with (tmp_path / "big").open("wb") as file:
        file.truncate(size)
        file.seek(size - 5)
        file.write(b"after")
    store = LocalStore(tmp_path)
    assert store.head("big").size_bytes == size
    assert bytes(store.get("big", size - 6, size)) == b"\0after"
    assert bytes(store.get("big", size - 2)) == b"er"


def test_a_long_range_is_read_in_several_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "_ONE_READ_BYTES", 10)
    body = bytes(range(256))
    store = LocalStore(tmp_path)
    store.put("a", body)
    assert store.get("a", 3, 250) == body[3:250]


@pytest.mark.parametrize("kernel", ["refuses", "stops", "lacks it"])
def test_parts_are_joined_where_the_kernel_does_not_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    def copy_file_range(*_: object, **__: object) -> int:
        if kernel == "refuses":
            raise OSError(18, "Invalid cross-device link")
        return 0

    if kernel == "lacks it":
        monkeypatch.delattr(os, "copy_file_range")
    else:
        monkeypatch.setattr(os, "copy_file_range", copy_file_range)
    monkeypatch.setattr(durable, "_COPY_BYTES", 7)
    store = LocalStore(tmp_path)
    upload = store.create_upload("a")
    parts = [store.upload_part(upload, number, bytes([number]) * 100) for number in (1, 2)]
    store.complete_upload(upload, parts)
    assert bytes(store.get("a")) == b"\1" * 100 + b"\2" * 100


def test_nothing_is_left_in_the_reserved_directory_after_work(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for _ in range(2):
        store.put("a", b"1", metadata={"k": "v"})
    with pytest.raises(ObjectExists):
        store.put("a", b"2", if_absent=True)
    upload = store.create_upload("b")
    store.complete_upload(upload, [store.upload_part(upload, 1, b"x")])
    store.abort_upload(store.create_upload("c"))
    left = [path for path in (tmp_path / ".uploads").rglob("*") if path.is_file() and path.parent.name != "locks"]
    assert left == []


def test_what_crashes_left_long_ago_is_swept_by_the_next_upload(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    alive = store.create_upload("alive")
    reserved = tmp_path / ".uploads"
    young, old = reserved / "tmp/young", reserved / "tmp/old"
    dead = reserved / "multipart" / ("f" * 32)
    dead.mkdir()
    (dead / "00001").write_bytes(b"part")
    for path in (young, old):
        path.write_bytes(b"")
    for path in (old, dead, reserved / "multipart" / alive.upload_id):
        os.utime(path, (1, 1))
    store.create_upload("next")
    assert (young.exists(), old.exists(), dead.exists()) == (True, False, False)
    assert alive in store.list_uploads()


def _race(
    root: str, number: int, start: multiprocessing.synchronize.Event, results: multiprocessing.Queue[int]
) -> None:
    store = LocalStore(root)
    start.wait()
    try:
        store.put("a", f"{number}".encode() * 1_000, metadata={"racer": str(number)}, if_absent=True)
    except ObjectExists:
        results.put(-1)
    else:
        results.put(number)


def test_of_racing_processes_exactly_one_puts_if_absent(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    start, results = context.Event(), context.Queue()
    racers = [context.Process(target=_race, args=(str(tmp_path), n, start, results)) for n in range(3)]
    for racer in racers:
        racer.start()
    start.set()
    winners = [number for number in (results.get(timeout=60) for _ in racers) if number >= 0]
    for racer in racers:
        racer.join()
    assert len(winners) == 1
    store = LocalStore(tmp_path)
    assert bytes(store.get("a")) == f"{winners[0]}".encode() * 1_000
    assert store.head("a").metadata == {"racer": str(winners[0])}
