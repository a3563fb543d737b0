"""Metadata store in one SQLite file, for embedded servers.

Guarantees durable compare-and-set among any number of threads and processes of one machine: a completed put survives a
crash of the process and of the machine (write-ahead log, synced at every commit). One process may read while another
writes. Watches report changes by other processes within ``poll_interval_s``.

Not supported: network file systems, where SQLite's write-ahead log does not work, and use after ``fork``: open a new
store in the child.

A thread detects changes by other processes: every interval it asks SQLite whether another connection has committed
(``PRAGMA data_version``, which reads one word of shared memory), and only then compares the watched nodes. A commit of
this process wakes it at once.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from afterglow.errors import AfterglowError, CommitFailed, CommitUnknown, MetadataUnavailable, NotSupported
from afterglow.metadata._sqlite_file import (
    check_schema,
    connect,
    create_file,
    explain,
    install_schema,
    primary_code,
    query_unseen,
)
from afterglow.metadata.store import (
    DEFAULT_MAX_VALUE_BYTES,
    FIRST_VERSION,
    Versioned,
    ancestors_of,
    check_delete,
    check_guard,
    check_path,
    check_put,
    check_version,
    has_children,
    parent_of,
    wall_clock_ms,
)
from afterglow.metadata.watches import Notifier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afterglow.metadata.store import NowMs
    from afterglow.metadata.watches import Watch, WatchCallback

_log = logging.getLogger(__name__)

_VERSION: Final = "SELECT version FROM nodes WHERE parent = ? AND name = ?"
_NODE: Final = "SELECT value, version, created_ms, modified_ms FROM nodes WHERE parent = ? AND name = ?"
_CHILDREN: Final = "SELECT name FROM nodes WHERE parent = ? ORDER BY name"
_INSERT: Final = (
    "INSERT INTO nodes (parent, name, value, version, created_ms, modified_ms, changed, children_changed) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, 0)"
)
_UPDATE: Final = (
    "UPDATE nodes SET value = ?, version = version + 1, modified_ms = ?, changed = ? WHERE parent = ? AND name = ?"
)
_DELETE: Final = "DELETE FROM nodes WHERE parent = ? AND name = ?"
_TOUCH_PARENT: Final = "UPDATE nodes SET children_changed = ? WHERE parent = ? AND name = ?"


def _split(path: str) -> tuple[str, str]:
    return parent_of(path), path.rpartition("/")[2]


class SqliteMetadataStore:
    """A :class:`~afterglow.metadata.store.MetadataStore` over one SQLite file.

    Args:
        path: Path of the database file; created, readable by its owner only, if missing. Its directory must exist.
        read_only: Open an existing file for reading only; without watches, no file is created beside it either.
        busy_timeout_s: Longest wait of a call for other threads and processes
            (``metadataStoreOperationTimeoutSeconds``).
        poll_interval_s: Interval between polls for changes by other processes, while watches exist.
        max_value_bytes: Largest value accepted.
        now_ms: Clock for the times of nodes.

    Raises:
        MetadataUnavailable: The file cannot be opened or created, or stays locked.
        CorruptMetadata: The file is not a metadata database of Afterglow.
        WrongVersion: A newer release created it.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        read_only: bool = False,
        busy_timeout_s: float = 10.0,
        poll_interval_s: float = 0.25,
        max_value_bytes: int = DEFAULT_MAX_VALUE_BYTES,
        now_ms: NowMs = wall_clock_ms,
    ) -> None:
        self._path = Path(path)
        self._read_only = read_only
        self._timeout_s = busy_timeout_s
        self._max_value_bytes = max_value_bytes
        self._now_ms = now_ms
        self._unsettled = False
        self._write_lock = threading.Lock()
        self._read_lock = threading.Lock()
        self._closed = False
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        if read_only:
            check_schema(self._path, busy_timeout_s)
        else:
            create_file(self._path)
            self._writer = connect(self._path, busy_timeout_s, read_only=False)
            try:
                install_schema(self._writer, self._path, busy_timeout_s)
                check_schema(self._path, busy_timeout_s)
            except BaseException:
                self._writer.close()
                raise
        self._poller = ChangePoller(self._path, busy_timeout_s, poll_interval_s)

    @property
    def max_value_bytes(self) -> int:
        """Largest value that ``put`` accepts."""
        return self._max_value_bytes

    def get(self, path: str) -> Versioned | None:
        """Return the node at ``path``, or None if it does not exist."""
        check_path(path)
        rows = self._read(_NODE, _split(path))
        return Versioned(*rows[0]) if rows else None

    def children(self, path: str) -> tuple[str, ...]:
        """Return the names below ``path``, sorted."""
        check_path(path, allow_root=True)
        return tuple(row[0] for row in self._read(_CHILDREN, (path,)))

    def put(self, path: str, value: bytes, expected_version: int, *, guard: str | None = None) -> int:
        """Create the node or replace its value; see the protocol."""
        check_put(path, value, expected_version, self._max_value_bytes, guard)
        with self._transaction(f"put of {path}") as db:
            check_guard(path, guard, None if guard is None else _version(db, guard))
            found = _version(db, path)
            check_version(path, found, expected_version)
            change = _next_change(db)
            if found is None:
                self._create(db, path, value, change)
                version = FIRST_VERSION
            else:
                db.execute(_UPDATE, (value, self._now_ms(), change, *_split(path)))
                version = found + 1
        self._poller.wake()
        return version

    def delete(self, path: str, expected_version: int, *, guard: str | None = None) -> None:
        """Remove the node; see the protocol."""
        check_delete(path, expected_version, guard)
        with self._transaction(f"delete of {path}") as db:
            check_guard(path, guard, None if guard is None else _version(db, guard))
            check_version(path, _version(db, path), expected_version)
            if db.execute("SELECT 1 FROM nodes WHERE parent = ? LIMIT 1", (path,)).fetchone():
                raise has_children(path)
            change = _next_change(db)
            db.execute(_DELETE, _split(path))
            db.execute(_TOUCH_PARENT, (change, *_split(parent_of(path))))
        self._poller.wake()

    def watch(self, path: str, callback: WatchCallback) -> Watch:
        """Call back after changes of the node or of its list of children; see the protocol."""
        check_path(path)
        with self._reading() as db:
            try:
                return self._poller.add(db, path, callback)
            except sqlite3.Error as error:
                raise explain(error, self._path, f"watch of {path}") from error

    def close(self) -> None:
        """Wait for running calls, end the watches and close the file."""
        self._poller.close()
        with self._write_lock, self._read_lock:
            self._closed = True
            if self._reader is not None:
                self._reader.close()
            if self._writer is not None:
                self._writer.close()  # last: the last connection to close checkpoints the log into the file

    def _create(self, db: sqlite3.Connection, path: str, value: bytes, change: int) -> None:
        now_ms = self._now_ms()
        db.execute(_INSERT, (*_split(path), value, FIRST_VERSION, now_ms, now_ms, change))
        for ancestor in ancestors_of(path):
            exists = _version(db, ancestor) is not None
            if not exists:
                db.execute(_INSERT, (*_split(ancestor), b"", FIRST_VERSION, now_ms, now_ms, change))
            db.execute(_TOUCH_PARENT, (change, *_split(ancestor)))
            if exists:
                break

    def _read(self, query: str, arguments: tuple[str, ...]) -> list[Any]:
        if self._read_only:
            self._check_open()
            return query_unseen(self._path, self._timeout_s, query, arguments)
        if self._unsettled:
            self._settle()
        with self._reading() as db:
            try:
                return db.execute(query, arguments).fetchall()
            except sqlite3.Error as error:
                raise explain(error, self._path, "read") from error

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._held(self._read_lock, "read"):
            self._check_open()
            if self._reader is None:
                self._reader = connect(self._path, self._timeout_s, read_only=True)
            yield self._reader

    @contextmanager
    def _transaction(self, what: str) -> Iterator[sqlite3.Connection]:
        """Run one compare-and-set.

        1. Take the write lock of the file. Crash: nothing changed.
        2. The caller compares and changes. Crash, or an error: rolled back, nothing changed.
        3. COMMIT writes the pages and, last, a commit mark to the log, then syncs it. Crash: applied iff the mark is
           complete on disk. Full disk: the mark was not written, so the change failed. Any other error may have come
           after the mark, which a later recovery would apply: unknown, until `_settle` has overwritten it.
        """
        if self._read_only:
            raise NotSupported(f"{what}: the metadata store {self._path} was opened read-only")
        with self._held(self._write_lock, what):
            self._check_open()
            assert self._writer is not None
            db = self._writer
            try:
                db.execute("BEGIN IMMEDIATE")
            except sqlite3.Error as error:
                raise explain(error, self._path, what) from error
            try:
                yield db
            except sqlite3.Error as error:
                _roll_back(db)
                raise CommitFailed(f"{what} in {self._path} failed: {error}") from error
            except BaseException:
                _roll_back(db)
                raise
            try:
                db.execute("COMMIT")
            except sqlite3.Error as error:
                rolled_back = _roll_back(db)
                if rolled_back and primary_code(error) in {sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY}:
                    raise CommitFailed(f"{what} in {self._path} failed: {error}") from error
                self._unsettled = True
                raise CommitUnknown(f"{what} in {self._path} may or may not have been applied: {error}") from error

    def _settle(self) -> None:
        """Commit a new change number: it overwrites a commit mark that a failed commit may have left in the log."""
        with self._transaction("settling an unknown commit") as db:
            _next_change(db)
        self._unsettled = False

    def _check_open(self) -> None:
        if self._closed:
            raise MetadataUnavailable(f"the metadata store {self._path} is closed; open it again")

    @contextmanager
    def _held(self, lock: threading.Lock, what: str) -> Iterator[None]:
        if not lock.acquire(timeout=self._timeout_s):
            raise MetadataUnavailable(
                f"{what} in {self._path}: other threads locked the store for {self._timeout_s:g} s; retry, or raise "
                "metadataStoreOperationTimeoutSeconds"
            )
        try:
            yield
        finally:
            lock.release()


def _version(db: sqlite3.Connection, path: str) -> int | None:
    row: tuple[int] | None = db.execute(_VERSION, _split(path)).fetchone()
    return None if row is None else row[0]


def _next_change(db: sqlite3.Connection) -> int:
    db.execute("UPDATE store SET value = value + 1 WHERE key = 'change'")
    (change,) = db.execute("SELECT value FROM store WHERE key = 'change'").fetchone()
    return int(change)


def _roll_back(db: sqlite3.Connection) -> bool:
    """Roll back, unless SQLite has done so itself; returns whether the transaction has ended."""
    if db.in_transaction:
        try:
            db.execute("ROLLBACK")
        except sqlite3.Error:
            return False
    return not db.in_transaction


_State = tuple[int, int] | None
"""The change numbers of a node and of its list of children; None if the node does not exist."""

_STATE: Final = "SELECT changed, children_changed FROM nodes WHERE parent = ? AND name = ?"


class ChangePoller:
    """The watches of one SQLite store; its threads start with the first watch."""

    def __init__(self, path: Path, busy_timeout_s: float, interval_s: float) -> None:
        self._path = path
        self._busy_timeout_s = busy_timeout_s
        self._interval_s = interval_s
        self._notifier = Notifier("afterglow-metadata-sqlite")
        self._lock = threading.Lock()
        self._known: dict[str, _State] = {}
        self._woken = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None

    def add(self, db: sqlite3.Connection, path: str, callback: WatchCallback) -> Watch:
        """Watch ``path`` for changes after the state that ``db`` shows now."""
        with self._lock:
            # Keep a known state: an older one can only cause an extra call.
            self._known.setdefault(path, _state(db, path))
            watch = self._notifier.add(path, callback)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="afterglow-metadata-poll", daemon=True)
                self._thread.start()
        return watch

    def wake(self) -> None:
        """Poll now: this process has committed a change."""
        self._woken.set()

    def close(self) -> None:
        """Stop the threads."""
        with self._lock:
            self._closed = True
            thread = self._thread
        self._woken.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._notifier.close()

    def _run(self) -> None:
        db: sqlite3.Connection | None = None
        seen = -1  # not a data version, so that the first round compares: a change may have preceded this thread
        while not self._closed:
            try:
                if db is None:
                    db = connect(self._path, self._busy_timeout_s, read_only=True)
                (current,) = db.execute("PRAGMA data_version").fetchone()
                if current != seen:
                    self._compare(db)
                    seen = current
            except (sqlite3.Error, AfterglowError) as error:
                _log.warning("polling %s for changes failed and is retried: %s", self._path, error)
            self._woken.wait(self._interval_s)
            self._woken.clear()
        if db is not None:
            db.close()

    def _compare(self, db: sqlite3.Connection) -> None:
        changed: list[str] = []
        with self._lock:
            watched = set(self._notifier.paths())
            self._known = {path: known for path, known in self._known.items() if path in watched}
            for path, known in self._known.items():
                if (state := _state(db, path)) != known:
                    self._known[path] = state
                    changed.append(path)
        self._notifier.changed(changed)


def _state(db: sqlite3.Connection, path: str) -> _State:
    row: _State = db.execute(_STATE, (parent_of(path), path.rpartition("/")[2])).fetchone()
    return row
