"""The SQLite file itself: made, opened, its schema, and what its errors mean."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from afterglow.errors import CorruptMetadata, MetadataUnavailable, WrongVersion

if TYPE_CHECKING:
    from pathlib import Path

    from afterglow.errors import AfterglowError

SCHEMA_VERSION: Final = 1

# A node is found, and the children of a node are listed in order, by the same index. `changed` and `children_changed`
# hold the store-wide change number of the last put and of the last gain or loss of a child: a watch compares them, and
# they are never reused, unlike versions.
_SCHEMA: Final = (
    "CREATE TABLE store (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    """CREATE TABLE nodes (
        parent TEXT NOT NULL,
        name TEXT NOT NULL,
        value BLOB NOT NULL,
        version INTEGER NOT NULL,
        created_ms INTEGER NOT NULL,
        modified_ms INTEGER NOT NULL,
        changed INTEGER NOT NULL,
        children_changed INTEGER NOT NULL,
        PRIMARY KEY (parent, name)
    )""",
)

_TABLES: Final = "SELECT name FROM sqlite_master WHERE type = 'table'"
_SCHEMA_VERSION: Final = "SELECT value FROM store WHERE key = 'schema_version'"

_FEW: Final = 100  # a process can open and close the file so often in a row only on purpose

_DAMAGE: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_SCHEMA})
_LOCKED: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


def primary_code(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code; -1 where the error is Python's own."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return -1 if code is None else code & 0xFF


def explain(error: sqlite3.Error, path: Path, what: str) -> AfterglowError:
    """Return our error for one that struck while nothing was being committed."""
    code = primary_code(error)
    if code in _DAMAGE:
        return CorruptMetadata(f"{what}: {path} is no intact metadata database: {error}; restore it from a copy")
    if code in _LOCKED:
        return MetadataUnavailable(
            f"{what}: another process keeps {path} locked; end it, or raise metadataStoreOperationTimeoutSeconds"
        )
    return MetadataUnavailable(f"{what}: {path} cannot be used: {error}; check that it exists and its permissions")


def create_file(path: Path) -> None:
    """Make an empty file that only its owner may read, durably; SQLite gives its log the same permissions.

    Raises:
        MetadataUnavailable: The directory is missing or may not be written.
    """
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except FileExistsError:
        return
    except OSError as error:
        raise MetadataUnavailable(
            f"the metadata file {path} cannot be made: {error}; create its directory, or name another (sqlite:PATH)"
        ) from error


def connect(path: Path, busy_timeout_s: float, *, read_only: bool, at_rest: bool = False) -> sqlite3.Connection:
    """Open a connection in autocommit mode; whoever shares it among threads holds a lock.

    Args:
        path: Of the file.
        busy_timeout_s: How long a statement waits for other connections.
        read_only: Refuse to change the file. Its log is made beside it all the same if it is not there.
        at_rest: Look at the file alone, as if nobody could change it; for reading only.

    Raises:
        MetadataUnavailable: The file cannot be opened.
    """
    mode = "ro&immutable=1" if at_rest else "ro" if read_only else "rw"
    try:
        db = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=busy_timeout_s,
            isolation_level=None,
            check_same_thread=False,
        )
    except sqlite3.Error as error:
        raise explain(error, path, "opening the metadata store") from error
    try:
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA fullfsync = 1")  # macOS: reach the platter, not only the drive's cache
    except sqlite3.Error as error:
        db.close()
        raise explain(error, path, "opening the metadata store") from error
    return db


def query_unseen(path: Path, busy_timeout_s: float, query: str, arguments: tuple[str, ...] = ()) -> list[Any]:
    """Run one query and leave no trace.

    SQLite makes a log and a table of locks beside a file that it opens, and a connection that may only read leaves
    them there. So they are joined where another process has made them. Where there are none the file is at rest and is
    read by itself; if that turns out to have ended meanwhile, what was read may be torn, and is read again.

    Raises:
        MetadataUnavailable: The file cannot be opened, or stays locked.
        CorruptMetadata: The file is damaged.
    """
    for _ in range(_FEW):
        before = _rest(path)
        try:
            with closing(connect(path, busy_timeout_s, read_only=True, at_rest=before is not None)) as db:
                rows = db.execute(query, arguments).fetchall()
        except sqlite3.Error as error:
            if before == _rest(path):
                raise explain(error, path, "read") from error
            continue
        if before is None or before == _rest(path):
            return rows
    raise MetadataUnavailable(f"read: {path} is opened and closed by others all the time; try again")


def _rest(path: Path) -> tuple[int, ...] | None:
    """What would tell that a file at rest was changed since; None while others have it open."""
    if path.with_name(f"{path.name}-wal").exists():
        return None
    try:
        found = path.stat()
    except OSError as error:
        raise MetadataUnavailable(f"the metadata file {path} cannot be read: {error.strerror}") from error
    return found.st_ino, found.st_size, found.st_mtime_ns


def install_schema(db: sqlite3.Connection, path: Path, busy_timeout_s: float) -> None:
    """Switch a new file to the write-ahead log and make its tables in one transaction.

    On any error the caller closes the connection, which rolls an open transaction back.

    Raises:
        MetadataUnavailable: The file stayed locked.
        CorruptMetadata: The file is damaged.
    """
    try:
        if not db.execute(_TABLES).fetchone():
            _enter_wal(db, busy_timeout_s)
            db.execute("BEGIN IMMEDIATE")
            if not db.execute(_TABLES).fetchone():  # another process may have been faster
                for statement in _SCHEMA:
                    db.execute(statement)
                db.execute("INSERT INTO store VALUES ('schema_version', ?), ('change', 0)", (SCHEMA_VERSION,))
            db.execute("COMMIT")
    except sqlite3.Error as error:
        raise explain(error, path, "opening the metadata store") from error


def check_schema(path: Path, busy_timeout_s: float) -> None:
    """Insist that a file is a metadata database of this release.

    Raises:
        MetadataUnavailable: The file cannot be opened, or stays locked.
        CorruptMetadata: The file holds something else.
        WrongVersion: A newer release made it.
    """
    tables = {name for (name,) in query_unseen(path, busy_timeout_s, _TABLES)}
    if not {"store", "nodes"} <= tables:
        raise CorruptMetadata(f"{path} is no metadata database of Afterglow: name another file (sqlite:PATH)")
    ((version,),) = query_unseen(path, busy_timeout_s, _SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise WrongVersion(f"{path} has schema version {version}, this release knows {SCHEMA_VERSION}: upgrade it")


def _enter_wal(db: sqlite3.Connection, busy_timeout_s: float) -> None:
    """Switch to the write-ahead log. SQLite does not wait for the lock that this takes, so the loop does."""
    deadline = time.monotonic() + busy_timeout_s
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if primary_code(error) not in _LOCKED or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return
