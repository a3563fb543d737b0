"""Finds what changed in the SQLite file, whoever changed it.

One thread asks SQLite every interval whether another connection has committed (``PRAGMA data_version``, which reads one
word of shared memory), and only then compares the watched nodes. A commit of this process wakes it at once.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from typing import TYPE_CHECKING, Final

from afterglow.errors import AfterglowError
from afterglow.metadata._sqlite_file import connect
from afterglow.metadata.checks import parent_of
from afterglow.metadata.watches import Notifier

if TYPE_CHECKING:
    from pathlib import Path

    from afterglow.metadata.watches import Watch, WatchCallback

_log = logging.getLogger(__name__)

_State = tuple[int, int] | None
"""The change numbers of a node and of its list of children; None where there is no node."""

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
        """Watch ``path`` for changes to what ``db`` shows now."""
        with self._lock:
            # Kept if known: an older state can only cause a call too many.
            self._known.setdefault(path, _state(db, path))
            watch = self._notifier.add(path, callback)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="afterglow-metadata-poll", daemon=True)
                self._thread.start()
        return watch

    def wake(self) -> None:
        """Look for changes now: this process has made some."""
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
        seen = -1  # no data version, so that the first round compares: a change may have preceded this thread
        while not self._closed:
            try:
                if db is None:
                    db = connect(self._path, self._busy_timeout_s, read_only=True)
                (current,) = db.execute("PRAGMA data_version").fetchone()
                if current != seen:
                    self._compare(db)
                    seen = current
            except (sqlite3.Error, AfterglowError) as error:
                _log.warning("looking for changes in %s failed, trying again: %s", self._path, error)
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
