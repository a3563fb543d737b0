"""The SQLite file itself: made, opened, its schema, and what its errors mean."""

from __future__ import annotations

import os
import sqlite3
import time
from typing import TYPE_CHECKING, Final

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
            f"{what}: another process holds {path} for longer than busy_timeout_s: end it, or raise the time-out"
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


def connect(path: Path, busy_timeout_s: float, *, read_only: bool) -> sqlite3.Connection:
    """Open a connection in autocommit mode; whoever shares it among threads holds a lock.

    Raises:
        MetadataUnavailable: The file cannot be opened.
    """
    mode = "ro" if read_only else "rw"
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


def install_schema(db: sqlite3.Connection, path: Path, busy_timeout_s: float, *, read_only: bool) -> None:
    """Switch a new file to the write-ahead log and make its tables in one transaction, or check those of an old one.

    On any error the caller closes the connection, which rolls an open transaction back.

    Raises:
        MetadataUnavailable: The file stayed locked.
        CorruptMetadata: The file holds something else.
        WrongVersion: A newer release made it.
    """
    try:
        if not read_only and not _tables(db):
            _enter_wal(db, busy_timeout_s)
            db.execute("BEGIN IMMEDIATE")
            if not _tables(db):  # another process may have been faster
                for statement in _SCHEMA:
                    db.execute(statement)
                db.execute("INSERT INTO store VALUES ('schema_version', ?), ('change', 0)", (SCHEMA_VERSION,))
            db.execute("COMMIT")
        if not {"store", "nodes"} <= _tables(db):
            raise CorruptMetadata(f"{path} is no metadata database of Afterglow: name another file (sqlite:PATH)")
        (version,) = db.execute("SELECT value FROM store WHERE key = 'schema_version'").fetchone()
    except sqlite3.Error as error:
        raise explain(error, path, "opening the metadata store") from error
    if version != SCHEMA_VERSION:
        raise WrongVersion(f"{path} has schema version {version}, this release knows {SCHEMA_VERSION}: upgrade it")


def _tables(db: sqlite3.Connection) -> set[str]:
    return {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


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
