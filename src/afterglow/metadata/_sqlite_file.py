"""The SQLite file of a metadata store: creation, connections, schema, and mapping of errors."""

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

# One index serves lookups of a node and ordered listings of its children. `changed` and `children_changed` hold the
# store-wide change number of the last put and of the last creation or deletion of a child. Watches compare them; unlike
# versions they are never reused.
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

_MAX_ATTEMPTS: Final = 100  # other processes would have to open and close the file this often during one read

_DAMAGE: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_SCHEMA})
_LOCKED: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


def primary_code(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code; -1 for an error of the Python module."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return -1 if code is None else code & 0xFF


def explain(error: sqlite3.Error, path: Path, what: str) -> AfterglowError:
    """Return Afterglow's error for one of SQLite outside a commit."""
    code = primary_code(error)
    if code in _DAMAGE:
        return CorruptMetadata(f"{what}: metadata database {path} is corrupt: {error}; restore it from a backup")
    if code in _LOCKED:
        return MetadataUnavailable(
            f"{what}: another process keeps {path} locked; stop it, or raise metadataStoreOperationTimeoutSeconds"
        )
    return MetadataUnavailable(f"{what}: {path} cannot be used: {error}; check that it exists, and its permissions")


def create_file(path: Path) -> None:
    """Create an empty file that only its owner may read, durably; SQLite gives its log the same permissions.

    Raises:
        MetadataUnavailable: The directory is missing or not writable.
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
            f"metadata file {path} cannot be created: {error}; create its directory, or choose another (sqlite:PATH)"
        ) from error


def connect(path: Path, busy_timeout_s: float, *, read_only: bool, at_rest: bool = False) -> sqlite3.Connection:
    """Open a connection in autocommit mode; threads that share it need a lock.

    Args:
        path: Path of the file.
        busy_timeout_s: Longest wait of a statement for other connections.
        read_only: Do not change the file. SQLite still creates a missing log beside it.
        at_rest: Read the file without its log, as immutable; for reading only.

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
    """Run one query without creating files.

    SQLite creates a log and a lock table beside a file that it opens, and a read-only connection leaves them there. So
    this function uses them only if another process has created them. Otherwise the file is at rest and is read as
    immutable; if another process opened it in the meantime, the result may be torn, and the query is repeated.

    Raises:
        MetadataUnavailable: The file cannot be opened, or stays locked.
        CorruptMetadata: The file is damaged.
    """
    for _ in range(_MAX_ATTEMPTS):
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
    raise MetadataUnavailable(f"read: other processes keep opening and closing {path}; retry")


def _rest(path: Path) -> tuple[int, ...] | None:
    """Return a fingerprint of a file at rest; None while another process has it open."""
    if path.with_name(f"{path.name}-wal").exists():
        return None
    try:
        found = path.stat()
    except OSError as error:
        raise MetadataUnavailable(f"metadata file {path} cannot be read: {error.strerror}") from error
    return found.st_ino, found.st_size, found.st_mtime_ns


def install_schema(db: sqlite3.Connection, path: Path, busy_timeout_s: float) -> None:
    """Switch a new file to the write-ahead log and create its tables in one transaction.

    On any error the caller closes the connection, which rolls an open transaction back.

    Raises:
        MetadataUnavailable: The file stayed locked.
        CorruptMetadata: The file is damaged.
    """
    try:
        if not db.execute(_TABLES).fetchone():
            _enter_wal(db, busy_timeout_s)
            db.execute("BEGIN IMMEDIATE")
            if not db.execute(_TABLES).fetchone():  # another process may have created them first
                for statement in _SCHEMA:
                    db.execute(statement)
                db.execute("INSERT INTO store VALUES ('schema_version', ?), ('change', 0)", (SCHEMA_VERSION,))
            db.execute("COMMIT")
    except sqlite3.Error as error:
        raise explain(error, path, "opening the metadata store") from error


def check_schema(path: Path, busy_timeout_s: float) -> None:
    """Check that a file is a metadata database of this release.

    Raises:
        MetadataUnavailable: The file cannot be opened, or stays locked.
        CorruptMetadata: The file has other contents.
        WrongVersion: A newer release created it.
    """
    tables = {name for (name,) in query_unseen(path, busy_timeout_s, _TABLES)}
    if not {"store", "nodes"} <= tables:
        raise CorruptMetadata(f"{path} is not a metadata database of Afterglow; choose another file (sqlite:PATH)")
    ((version,),) = query_unseen(path, busy_timeout_s, _SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise WrongVersion(f"{path} has schema version {version}, this release supports {SCHEMA_VERSION}; upgrade it")


def _enter_wal(db: sqlite3.Connection, busy_timeout_s: float) -> None:
    """Switch to the write-ahead log. SQLite's busy timeout does not apply to this statement, hence the loop."""
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
