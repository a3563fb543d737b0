"""Cache of what was read of the objects of a tier, in a file of this machine: nothing is written to the tier.

A listing tells which objects exist; the cache only saves reading the index of an object again. An entry is valid while
the sizes and etags of its two parts are the same. A cache that cannot be read or written is not used.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sqlite3
from contextlib import closing, suppress
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Final

from afterglow.errors import InvalidName
from afterglow.format.objects import parse_key
from afterglow.source.tier_objects import ListedObject, ObjectExtent

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_log = logging.getLogger(__name__)

_VERSION: Final = 1
_WAIT_S: Final = 5.0
"""Longest wait for another process that writes."""


def cache_file(location: str) -> Path | None:
    """The file for a tier, below ``AFTERGLOW_CACHE``, by default ``~/.cache/afterglow``; None without a home directory.

    Args:
        location: The tier location, with its endpoint.
    """
    name = f"{hashlib.sha256(location.encode()).hexdigest()[:32]}-{_VERSION}.db"
    if chosen := os.environ.get("AFTERGLOW_CACHE"):
        return Path(chosen) / "listings" / name
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "afterglow" / "listings" / name
    try:
        return Path.home() / ".cache" / "afterglow" / "listings" / name
    except RuntimeError:  # the user has neither HOME nor an entry in the table of users
        return None


class ListingCache:
    """The cached objects of one tier; several processes may use it.

    Args:
        file: The file, created when it is needed; None: nothing is cached.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file

    def load(self) -> dict[str, tuple[str, ListedObject]]:
        """All cached objects by key, each with its tag."""
        if self._file is None or not self._file.exists():
            return {}
        try:
            with closing(self._open(self._file)) as database:
                rows = database.execute("SELECT key, tag, record FROM objects").fetchall()
            return {key: (tag, _decode(key, record)) for key, tag, record in rows}
        except (sqlite3.Error, OSError, ValueError, TypeError, InvalidName) as error:
            _log.info("the listing cache %s cannot be read, and is made anew: %s", self._file, error)
            with suppress(OSError):
                self._file.unlink()
            return {}

    def add(self, objects: Mapping[str, tuple[str, ListedObject]]) -> None:
        """Add or replace objects."""
        self._write(
            "INSERT OR REPLACE INTO objects VALUES (?, ?, ?)",
            ((key, tag, _encode(listed)) for key, (tag, listed) in objects.items()),
        )

    def remove(self, keys: Iterable[str]) -> None:
        """Remove objects that do not exist any more."""
        self._write("DELETE FROM objects WHERE key = ?", ((key,) for key in keys))

    def _write(self, statement: str, rows: Iterable[tuple[str, ...]]) -> None:
        if self._file is None:
            return
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with closing(self._open(self._file)) as database, database:
                database.executemany(statement, rows)
        except (sqlite3.Error, OSError) as error:
            _log.info("the listing cache %s cannot be written: %s", self._file, error)

    @staticmethod
    def _open(file: Path) -> sqlite3.Connection:
        database = sqlite3.connect(file, timeout=_WAIT_S)
        database.execute("CREATE TABLE IF NOT EXISTS objects (key TEXT PRIMARY KEY, tag TEXT, record TEXT)")
        return database


def _encode(listed: ListedObject) -> str:
    return json.dumps(
        [
            listed.size_bytes,
            listed.modified_ms,
            listed.managed_ledger,
            listed.cluster,
            listed.instance,
            [astuple(extent) for extent in listed.extents],
            listed.has_statistics,
        ]
    )


def _decode(key: str, record: str) -> ListedObject:
    size_bytes, modified_ms, managed_ledger, cluster, instance, extents, has_statistics = json.loads(record)
    return ListedObject(
        parse_key(key),
        size_bytes,
        modified_ms,
        managed_ledger,
        cluster,
        instance,
        tuple(ObjectExtent(*extent) for extent in extents),
        has_statistics,
    )
