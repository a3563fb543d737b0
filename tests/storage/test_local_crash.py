"""A process that dies at any step of a write leaves the old object or the new one, and the write can be done again.

The crash is simulated at the seam to the kernel: from the n-th call that changes the file system on, no such call has
any effect any more, as if the process had ended there. What runs afterwards is a fresh store over what is left.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import pytest

from afterglow.errors import ObjectExists, ObjectMissing, UploadMissing
from afterglow.storage import LocalStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_STEPS = ("open", "write", "fsync", "rename", "link", "unlink", "mkdir", "rmdir", "utime", "copy_file_range")
_MANY = 200


class _Crash(BaseException):
    """The process is dead; nobody may catch this."""


def _crash_at(monkeypatch: pytest.MonkeyPatch, step: int) -> Callable[[], bool]:
    """Let the process die at the ``step``-th change; the result tells whether it came so far."""
    count = 0

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            if count >= step:
                raise _Crash
            return real(*args, **kwargs)

        return call

    for name in _STEPS:
        monkeypatch.setattr(os, name, dying(getattr(os, name)))
    return lambda: count >= step


def _at_every_step(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    prepare: Callable[[LocalStore], Any],
    write: Callable[[LocalStore, Any], None],
    check: Callable[[LocalStore, Any], str],
) -> list[str]:
    """Crash a write at each of its steps in turn; give what ``check`` found after each, and last without a crash."""
    seen = []
    for step in range(1, _MANY):
        root = tmp_path / str(step)
        root.mkdir()
        prepared = prepare(LocalStore(root))
        with monkeypatch.context() as patched:
            crashed = _crash_at(patched, step)
            with contextlib.suppress(_Crash):
                write(LocalStore(root), prepared)
            ended = crashed()
        seen.append(check(LocalStore(root), prepared))
        if not ended:
            return seen
    raise AssertionError("the write has no end")


def _state(store: LocalStore) -> tuple[bytes, dict[str, str]] | None:
    listed = [info.key for info in store.list()]
    try:
        state = bytes(store.get("d/a")), dict(store.head("d/a").metadata)
    except ObjectMissing:
        assert listed == []
        return None
    assert listed == ["d/a"]
    return state


_OLD = (b"old", {"who": "old"})
_NEW = (b"newer", {"who": "new", "more": "1"})


def _put(store: LocalStore, state: tuple[bytes, dict[str, str]]) -> None:
    store.put("d/a", state[0], metadata=state[1])


@pytest.mark.parametrize("old", [None, _OLD, (b"old", {}), (b"newer", {"who": "old"})])
@pytest.mark.parametrize("new", [_NEW, (b"newer", {})])
def test_a_put_leaves_the_old_object_or_the_new(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    old: tuple[bytes, dict[str, str]] | None,
    new: tuple[bytes, dict[str, str]],
) -> None:
    def check(store: LocalStore, _: object) -> str:
        state = _state(store)
        assert state in (old, new)
        for again in (_OLD, new):  # the key is as usable as before
            _put(store, again)
            assert _state(store) == again
        return "new" if state == new else "old"

    seen = _at_every_step(
        tmp_path,
        monkeypatch,
        lambda store: None if old is None else _put(store, old),
        lambda store, _: _put(store, new),
        check,
    )
    assert seen[-1] == "new"
    assert seen == sorted(seen, reverse=True)  # old … old, then new … new: one step decides
    assert len(seen) >= 8  # so many steps were tried at least


def test_a_put_if_absent_leaves_nothing_or_the_new_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def put(store: LocalStore, _: object) -> None:
        store.put("d/a", _NEW[0], metadata=_NEW[1], if_absent=True)

    def check(store: LocalStore, _: object) -> str:
        state = _state(store)
        assert state in (None, _NEW)
        if state is None:
            put(store, None)
        else:
            with pytest.raises(ObjectExists):
                put(store, None)
        assert _state(store) == _NEW
        return "old" if state is None else "new"

    seen = _at_every_step(tmp_path, monkeypatch, lambda _: None, put, check)
    assert seen[-1] == "new"
    assert seen == sorted(seen, reverse=True)


def test_a_delete_leaves_the_whole_object_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(store: LocalStore, _: object) -> str:
        state = _state(store)
        assert state in (None, _OLD)
        store.put("d/a", b"again")  # nothing of the old metadata comes back
        assert _state(store) == (b"again", {})
        return "there" if state else "gone"

    seen = _at_every_step(
        tmp_path, monkeypatch, lambda store: _put(store, _OLD), lambda store, _: store.delete(["d/a"]), check
    )
    assert seen[-1] == "gone"
    assert seen == sorted(seen, reverse=True)


@pytest.mark.parametrize("old", [None, _OLD])
def test_completing_an_upload_can_be_done_again_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: tuple[bytes, dict[str, str]] | None
) -> None:
    new = (b"first, last", {"who": "upload"})

    def prepare(store: LocalStore) -> tuple[Any, Any]:
        if old is not None:
            _put(store, old)
        upload = store.create_upload("d/a", metadata=new[1])
        return upload, [store.upload_part(upload, 1, b"first, "), store.upload_part(upload, 2, b"last")]

    def check(store: LocalStore, prepared: tuple[Any, Any]) -> str:
        upload, parts = prepared
        state = _state(store)
        assert state in (old, new)
        known = upload in store.list_uploads()
        assert known or state == new  # never neither: then the parts would be lost
        try:
            store.complete_upload(upload, parts)
        except UploadMissing:
            assert not known
        assert _state(store) == new
        assert not store.list_uploads()
        return "new" if state == new else "old"

    seen = _at_every_step(
        tmp_path, monkeypatch, prepare, lambda store, prepared: store.complete_upload(*prepared), check
    )
    assert seen[-1] == "new"
    assert seen == sorted(seen, reverse=True)


def test_a_part_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(store: LocalStore, upload: Any) -> str:
        (part,) = store.list_parts(upload)
        assert part.size_bytes in {3, 5}
        store.complete_upload(upload, [part])
        state = _state(store)
        assert state in ((b"old", {}), (b"newer", {}))
        return "new" if part.size_bytes == 5 else "old"

    def prepare(store: LocalStore) -> Any:
        upload = store.create_upload("d/a")
        store.upload_part(upload, 1, b"old")
        return upload

    def write(store: LocalStore, upload: Any) -> None:
        store.upload_part(upload, 1, b"newer")

    seen = _at_every_step(tmp_path, monkeypatch, prepare, write, check)
    assert seen[-1] == "new"
    assert seen == sorted(seen, reverse=True)


def test_an_upload_is_created_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(store: LocalStore, _: object) -> str:
        uploads = store.list_uploads()
        for upload in uploads:
            store.complete_upload(upload, [store.upload_part(upload, 1, b"x")])
            assert _state(store) == (b"x", {"who": "new"})
        return "new" if uploads else "old"

    def write(store: LocalStore, _: object) -> None:
        store.create_upload("d/a", metadata={"who": "new"})

    seen = _at_every_step(tmp_path, monkeypatch, lambda _: None, write, check)
    assert seen[-1] == "new"
    assert seen == sorted(seen, reverse=True)


def test_an_aborted_upload_is_there_or_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(store: LocalStore, upload: Any) -> str:
        known = upload in store.list_uploads()
        assert len(store.list_parts(upload)) == 1 if known else True
        store.abort_upload(upload)
        assert not store.list_uploads()
        return "there" if known else "gone"

    def prepare(store: LocalStore) -> Any:
        upload = store.create_upload("d/a")
        store.upload_part(upload, 1, b"old")
        return upload

    seen = _at_every_step(tmp_path, monkeypatch, prepare, lambda store, upload: store.abort_upload(upload), check)
    assert seen[-1] == "gone"
    assert seen == sorted(seen, reverse=True)


def test_every_file_is_synced_before_it_gets_its_name_and_every_name_before_the_call_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a crash of the machine, not only of the process, would need."""
    paths: dict[int, str] = {}
    unsynced: set[str] = set()  # files with bytes, and directories with names, that only memory holds
    real_open, real_write, real_fsync = os.open, os.write, os.fsync
    real_rename, real_link, real_copy = os.rename, os.link, os.copy_file_range

    def traced_open(path: Any, *args: Any, **kwargs: Any) -> int:
        descriptor = real_open(path, *args, **kwargs)
        paths[descriptor] = str(path)
        return descriptor

    def traced_write(descriptor: int, data: Any) -> int:
        unsynced.add(paths[descriptor])
        return real_write(descriptor, data)

    def traced_copy(source: int, target: int, *args: Any, **kwargs: Any) -> int:
        unsynced.add(paths[target])
        return real_copy(source, target, *args, **kwargs)

    def traced_fsync(descriptor: int) -> None:
        real_fsync(descriptor)
        unsynced.discard(paths[descriptor])

    def named(real: Callable[..., None]) -> Callable[..., None]:
        def call(source: Any, target: Any) -> None:
            assert str(source) not in unsynced, f"{source} gets the name {target} before its bytes are durable"
            real(source, target)
            unsynced.add(str(target.parent))

        return call

    monkeypatch.setattr(os, "open", traced_open)
    monkeypatch.setattr(os, "write", traced_write)
    monkeypatch.setattr(os, "copy_file_range", traced_copy)
    monkeypatch.setattr(os, "fsync", traced_fsync)
    monkeypatch.setattr(os, "rename", named(real_rename))
    monkeypatch.setattr(os, "link", named(real_link))

    store = LocalStore(tmp_path)
    _put(store, _OLD)
    assert unsynced == set()
    _put(store, _NEW)
    assert unsynced == set()
    store.put("d/b", b"data", metadata={"k": "v"}, if_absent=True)
    assert unsynced == set()
    upload = store.create_upload("d/c", metadata={"k": "v"})
    assert unsynced == set()
    parts = [store.upload_part(upload, number, b"part") for number in (1, 2)]
    assert unsynced == set()
    store.complete_upload(upload, parts)
    assert unsynced == set()
