from __future__ import annotations

import os
import queue
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from tests.support.metadata import MetadataStoreContract

from afterglow.errors import (
    CommitFailed,
    CorruptMetadata,
    MetadataUnavailable,
    NotSupported,
    WrongVersion,
)
from afterglow.metadata.sqlite import SqliteMetadataStore
from afterglow.metadata.store import MUST_NOT_EXIST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from afterglow.metadata.store import MetadataStore

TIMEOUT_S = 20.0


class TestSqliteContract(MetadataStoreContract):
    @pytest.fixture
    def reopen(self, tmp_path: Path) -> Callable[[], MetadataStore]:
        return lambda: SqliteMetadataStore(tmp_path / "metadata.db", poll_interval_s=0.02)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteMetadataStore]:
    with closing(SqliteMetadataStore(path, poll_interval_s=0.02, busy_timeout_s=0.2)) as store:
        yield store


def run(code: str, path: Path) -> subprocess.Popen[str]:
    """Start another Python process that has ``store`` open."""
    prelude = f"""
import sys
from afterglow.metadata.sqlite import SqliteMetadataStore
from tests.support.metadata import increment
store = SqliteMetadataStore({str(path)!r})
"""
    return subprocess.Popen(
        [sys.executable, "-u", "-c", prelude + code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def end(process: subprocess.Popen[str]) -> int:
    process.communicate(timeout=300)
    return process.returncode


# --- several processes ----------------------------------------------------------------------------------------------


def test_increments_by_several_processes_add_up_exactly(store: SqliteMetadataStore, path: Path) -> None:
    store.put("/count", b"0", MUST_NOT_EXIST)
    processes = [run("increment(store, '/count', 40)", path) for _ in range(3)]
    assert [end(process) for process in processes] == [0, 0, 0]
    node = store.get("/count")
    assert node is not None
    assert (int(node.value), node.version) == (120, 120)


def test_processes_that_open_a_new_file_at_once_all_succeed(path: Path) -> None:
    processes = [run(f"store.put('/p{number}', b'', -1)", path) for number in range(4)]
    assert [end(process) for process in processes] == [0, 0, 0, 0]
    with closing(SqliteMetadataStore(path)) as store:
        assert store.children("/") == ("p0", "p1", "p2", "p3")


def test_a_writer_that_is_killed_leaves_all_it_confirmed_and_a_sound_file(path: Path) -> None:
    writer = run(
        """
store.put('/count', b'0', -1)
version = 0
while True:
    version = store.put('/count', b'%d' % (version + 1), version)
    print(version, flush=True)
""",
        path,
    )
    assert writer.stdout is not None
    confirmed = [int(writer.stdout.readline()) for _ in range(30)]
    writer.send_signal(signal.SIGKILL)
    confirmed += [int(line) for line in writer.stdout if line.endswith("\n")]
    assert end(writer) == -signal.SIGKILL

    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    with closing(SqliteMetadataStore(path)) as store:
        node = store.get("/count")
        assert node is not None
        assert int(node.value) == node.version
        # At most one put was under way: it may have been made without being confirmed.
        assert confirmed[-1] <= node.version <= confirmed[-1] + 1
        store.put("/count", b"on", node.version)


def test_a_watch_reports_changes_by_another_process(store: SqliteMetadataStore, path: Path) -> None:
    events: queue.Queue[str] = queue.Queue()
    store.watch("/node", events.put)
    assert end(run("store.put('/node', b'x', -1)", path)) == 0
    assert events.get(timeout=TIMEOUT_S) == "/node"
    assert end(run("store.put('/node/child', b'x', -1)", path)) == 0
    assert events.get(timeout=TIMEOUT_S) == "/node"


def test_a_reader_sees_each_commit_while_another_process_writes(path: Path) -> None:
    writer = run("for line in sys.stdin: print(store.put(*eval(line)), flush=True)", path)
    assert writer.stdin is not None
    assert writer.stdout is not None

    def ask(line: str) -> str:
        assert writer.stdin is not None
        assert writer.stdout is not None
        writer.stdin.write(line + "\n")
        writer.stdin.flush()
        return writer.stdout.readline()

    assert ask("'/node', b'a', -1") == "0\n"
    with closing(SqliteMetadataStore(path, read_only=True)) as reader:
        for version, value in enumerate([b"b", b"c"]):
            assert ask(f"'/node', {value!r}, {version}") == f"{version + 1}\n"
            node = reader.get("/node")
            assert node is not None
            assert (node.value, node.version) == (value, version + 1)
        with pytest.raises(NotSupported, match="read-only"):
            reader.put("/node", b"", 2)
        with pytest.raises(NotSupported, match="read-only"):
            reader.delete("/node", 2)
    assert end(writer) == 0


def test_a_file_that_another_process_keeps_locked_is_unavailable_and_nothing_changes(
    store: SqliteMetadataStore, path: Path
) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as locker:
        locker.execute("BEGIN IMMEDIATE")
        with pytest.raises(MetadataUnavailable, match="metadataStoreOperationTimeoutSeconds"):
            store.put("/node", b"", MUST_NOT_EXIST)
        assert store.get("/node") is None  # reading goes on
        locker.execute("ROLLBACK")
    store.put("/node", b"", MUST_NOT_EXIST)


def test_a_thread_that_holds_the_store_too_long_is_waited_for_up_to_the_deadline(store: SqliteMetadataStore) -> None:
    with store._write_lock, pytest.raises(MetadataUnavailable, match="metadataStoreOperationTimeoutSeconds"):
        store.put("/node", b"", MUST_NOT_EXIST)


# --- errors of the disk ---------------------------------------------------------------------------------------------


def test_a_full_database_fails_the_change_for_certain(store: SqliteMetadataStore) -> None:
    store.put("/node", b"before", MUST_NOT_EXIST)
    assert store._writer is not None
    (pages,) = store._writer.execute("PRAGMA page_count").fetchone()
    store._writer.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(CommitFailed, match="/node"):
        store.put("/node", b"x" * 500_000, 0)
    node = store.get("/node")
    assert node is not None
    assert (node.value, node.version) == (b"before", 0)
    store.put("/node", b"after", 0)


def test_a_write_error_at_commit_is_unknown_and_the_next_read_settles_it(path: Path) -> None:
    # A limit on the size of files makes the kernel refuse to let the log grow; Python ignores the signal that comes
    # with it. The limit needs a process of its own.
    process = run(
        f"""
import os, resource
from afterglow.errors import CommitUnknown
store.put('/node', b'before', -1)
size = os.stat({str(path)!r} + '-wal').st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 1000, resource.RLIM_INFINITY))
try:
    store.put('/node', b'after', 0)
except CommitUnknown as error:
    print('unknown', '/node' in str(error))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
node = store.get('/node')
print(node.value, node.version)
print(store.put('/node', b'again', node.version))
os._exit(0)  # without closing, as in a crash
""",
        path,
    )
    output, _ = process.communicate(timeout=300)
    assert output.splitlines() == ["unknown True", "b'before' 0", "1"]
    with closing(SqliteMetadataStore(path)) as store:
        node = store.get("/node")
        assert node is not None
        assert (node.value, node.version) == (b"again", 1)


# --- the file -------------------------------------------------------------------------------------------------------


def test_only_the_owner_may_read_the_file_and_its_log(store: SqliteMetadataStore, path: Path) -> None:
    store.put("/node", b"secret", MUST_NOT_EXIST)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == {"metadata.db": 0o600, "metadata.db-wal": 0o600, "metadata.db-shm": 0o600}


def test_every_commit_is_synced_to_a_write_ahead_log(store: SqliteMetadataStore) -> None:
    full = 2
    assert store._writer is not None
    assert store._writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert store._writer.execute("PRAGMA synchronous").fetchone() == (full,)


def test_closing_leaves_one_file_and_no_thread(path: Path) -> None:
    before = set(threading.enumerate())
    store = SqliteMetadataStore(path)
    store.watch("/node", print)
    store.put("/node", b"", MUST_NOT_EXIST)
    store.close()
    assert [file.name for file in path.parent.iterdir()] == ["metadata.db"]
    assert set(threading.enumerate()) <= before


def test_a_path_with_special_characters_is_taken_as_it_is(tmp_path: Path) -> None:
    odd = tmp_path / "a?mode=memory#b%20c d.db"
    with closing(SqliteMetadataStore(odd)) as store:
        store.put("/node", b"", MUST_NOT_EXIST)
    assert [file.name for file in tmp_path.iterdir()] == [odd.name]


def test_a_file_that_is_not_a_database_is_rejected_and_kept(path: Path) -> None:
    path.write_bytes(b"something else entirely" * 100)
    with pytest.raises(CorruptMetadata, match=r"metadata\.db"):
        SqliteMetadataStore(path)
    assert path.read_bytes().startswith(b"something else")


def test_a_database_of_another_application_is_rejected_and_kept(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE theirs (x)")
    with pytest.raises(CorruptMetadata, match="not a metadata database of Afterglow"):
        SqliteMetadataStore(path)
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]


def test_a_file_of_a_newer_release_is_refused(path: Path) -> None:
    SqliteMetadataStore(path).close()
    with closing(sqlite3.connect(path)) as newer:
        newer.execute("UPDATE store SET value = 99 WHERE key = 'schema_version'")
        newer.commit()
    with pytest.raises(WrongVersion, match="99"):
        SqliteMetadataStore(path)


def test_a_damaged_page_is_reported_as_damage(path: Path) -> None:
    with closing(SqliteMetadataStore(path)) as store:
        for number in range(200):
            store.put(f"/node{number}", b"x" * 300, MUST_NOT_EXIST)
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(path.stat().st_size - 4096))
    with pytest.raises(CorruptMetadata, match=r"metadata\.db"), closing(SqliteMetadataStore(path)) as store:
        store.children("/")


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(MetadataUnavailable, match="create its directory"):
        SqliteMetadataStore(tmp_path / "missing" / "metadata.db")


def test_opening_read_only_makes_no_file(path: Path) -> None:
    with pytest.raises(MetadataUnavailable, match=r"metadata\.db"):
        SqliteMetadataStore(path, read_only=True)
    assert not path.exists()


def test_reading_a_store_at_rest_leaves_no_trace(path: Path) -> None:
    with closing(SqliteMetadataStore(path)) as store:
        store.put("/node", b"a", MUST_NOT_EXIST)
    before = {found.name: found.stat().st_mtime_ns for found in path.parent.iterdir()}
    with closing(SqliteMetadataStore(path, read_only=True)) as reader:
        node = reader.get("/node")
        assert node is not None
        assert node.value == b"a"
        assert {found.name: found.stat().st_mtime_ns for found in path.parent.iterdir()} == before
    assert list(before) == [path.name]
    assert {found.name: found.stat().st_mtime_ns for found in path.parent.iterdir()} == before


def test_a_reader_of_a_store_at_rest_sees_what_a_later_writer_puts(path: Path) -> None:
    SqliteMetadataStore(path).close()
    with closing(SqliteMetadataStore(path, read_only=True)) as reader:
        assert reader.get("/node") is None
        with closing(SqliteMetadataStore(path)) as writer:
            writer.put("/node", b"a", MUST_NOT_EXIST)
            assert reader.children("/") == ("node",)
        assert reader.children("/") == ("node",)
