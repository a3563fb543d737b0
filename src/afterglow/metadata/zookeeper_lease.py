"""Lease by an ephemeral node in ZooKeeper: the process with the lowest number holds it, all others are standbys.

A node ends with the session of its process. The session of a holder that still runs may end too, after a pause or an
interruption of its network. Another process may then become the owner, which fences this one; if none has, the holder
creates a node anew and stays the owner, since its guard still exists.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from afterglow.errors import CommitUnknown, MetadataError, MetadataUnavailable
from afterglow.metadata.store import guard_missing

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Event

    from afterglow.errors import Fenced
    from afterglow.metadata.watches import Watch
    from afterglow.metadata.zookeeper import ZooKeeperMetadataStore

_log = logging.getLogger(__name__)

_POLL_S: Final = 1.0
"""Longest time from the end of the wait to its effect, and from a change that a watch missed."""


class ZooKeeperLease:
    """A :class:`~afterglow.metadata.lease.Lease`. Thread-safe.

    Args:
        store: The store whose session holds the lease.
        path: Parent of the nodes of all candidates.
        process: Description of this process.
    """

    def __init__(self, store: ZooKeeperMetadataStore, path: str, process: str) -> None:
        self._store = store
        self._path = path
        self._process = process
        self._prefix = f"{uuid4()}-"
        self._lock = threading.Lock()
        self._released = False
        self._watches: list[Watch] = []
        self._node: str | None = None

    @property
    def node(self) -> str | None:
        """The node of this process, which ends with its session; None before :meth:`acquire`."""
        return self._node

    def holder(self) -> str | None:
        """Description of the process that holds the lease; None: none does."""
        while nodes := self._nodes():
            found = self._store.get(f"{self._path}/{nodes[0]}")
            if found is not None:
                return found.value.decode("utf-8", "replace")
        return None

    def acquire(self, stop: Event, on_standby: Callable[[str], None]) -> bool:
        """Wait until the node of this process is the first one; returns whether it is."""
        changed = threading.Event()
        watch: Watch | None = None
        is_waiting, shown = False, ""
        try:
            while not stop.is_set():
                changed.clear()
                try:
                    watch = watch or self._store.watch(self._path, lambda _path: changed.set())
                    first = self._first()
                    if first == self._node:
                        return True
                    if first != shown and (holder := self.holder()) is not None:
                        on_standby(holder)
                        shown = first
                    is_waiting = True
                except (MetadataUnavailable, CommitUnknown) as error:
                    if not is_waiting:
                        raise
                    _log.warning("this standby cannot reach its metadata, will retry: %s", error)
                changed.wait(_POLL_S)
            return False
        finally:
            if watch is not None:
                watch.cancel()

    def keep(self, guard: str, on_lost: Callable[[Fenced], None]) -> None:
        """Create the node anew after the end of a session, as long as no other process has become the owner."""

        def check(_path: str) -> None:
            try:
                if self._store.get(guard) is None:
                    on_lost(guard_missing(self._path, guard))
                    return
                with self._lock:
                    if not self._released:
                        self._first()
            except MetadataError as error:  # the next connection calls back again
                _log.warning("the lease is checked later: %s", error)

        self._watches = [self._store.watch(path, check) for path in (guard, self._path)]
        check(guard)  # it may have changed before it was watched

    def release(self) -> None:
        """Delete the node of this process."""
        with self._lock:
            if self._released:
                return
            self._released = True
        for watch in self._watches:
            watch.cancel()
        try:
            for name in self._nodes():
                if name.startswith(self._prefix):
                    self._store.delete(f"{self._path}/{name}", 0)
        except MetadataError as error:
            _log.warning("the lease ends with the session at ZooKeeper, since it cannot be released: %s", error)

    def _first(self) -> str:
        """Path of the first node; empty if none exists. A node of this process is created if it has none."""
        nodes = self._nodes()
        own = next((name for name in nodes if name.startswith(self._prefix)), None)
        if own is None:
            self._node = self._store.create_ephemeral(f"{self._path}/{self._prefix}", self._process.encode())
            nodes = self._nodes()
        else:
            self._node = f"{self._path}/{own}"
        return f"{self._path}/{nodes[0]}" if nodes else ""

    def _nodes(self) -> list[str]:
        """Names of the nodes of all candidates, the first one first."""
        return sorted(self._store.children(self._path), key=lambda name: int(name.rpartition("-")[2]))
