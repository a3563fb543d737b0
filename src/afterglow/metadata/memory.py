"""Metadata store in the memory of this process: for tests and simulations, and the reference implementation.

Stores of the same name share one tree, so that a test can close one and open another.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from afterglow.errors import MetadataUnavailable
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
    from afterglow.metadata.store import NowMs
    from afterglow.metadata.watches import Watch, WatchCallback


@dataclass(slots=True)
class _Tree:
    """Nodes, shared by the stores of a name and guarded by the lock."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    nodes: dict[str, Versioned] = field(default_factory=dict)
    names: dict[str, set[str]] = field(default_factory=dict)
    notifiers: list[Notifier] = field(default_factory=list)


_named_trees: dict[str, _Tree] = {}
_named_trees_lock = threading.Lock()


def _tree(name: str | None) -> _Tree:
    if name is None:
        return _Tree()
    with _named_trees_lock:
        return _named_trees.setdefault(name, _Tree())


class MemoryMetadataStore:
    """A :class:`~afterglow.metadata.store.MetadataStore` over a dictionary.

    Args:
        name: Name of the tree to share with other stores of this process; None for a private tree.
        max_value_bytes: Largest value accepted.
        now_ms: Clock for the times of nodes.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        max_value_bytes: int = DEFAULT_MAX_VALUE_BYTES,
        now_ms: NowMs = wall_clock_ms,
    ) -> None:
        self._tree = _tree(name)
        self._max_value_bytes = max_value_bytes
        self._now_ms = now_ms
        self._closed = False
        self._notifier = Notifier("afterglow-metadata-memory")
        with self._tree.lock:
            self._tree.notifiers.append(self._notifier)

    @property
    def max_value_bytes(self) -> int:
        """Largest value that ``put`` accepts."""
        return self._max_value_bytes

    def get(self, path: str) -> Versioned | None:
        """Return the node at ``path``, or None if it does not exist."""
        check_path(path)
        with self._tree.lock:
            self._check_open()
            return self._tree.nodes.get(path)

    def put(self, path: str, value: bytes, expected_version: int, *, guard: str | None = None) -> int:
        """Create the node or replace its value; see the protocol."""
        check_put(path, value, expected_version, self._max_value_bytes, guard)
        with self._tree.lock:
            self._check_open()
            check_guard(path, guard, None if guard is None else self._tree.nodes.get(guard))
            node = self._tree.nodes.get(path)
            check_version(path, None if node is None else node.version, expected_version)
            if node is None:
                self._create(path, value)
                return FIRST_VERSION
            changed = Versioned(value, node.version + 1, node.created_ms, self._now_ms())
            self._tree.nodes[path] = changed
            self._notify(path)
            return changed.version

    def delete(self, path: str, expected_version: int, *, guard: str | None = None) -> None:
        """Remove the node; see the protocol."""
        check_delete(path, expected_version, guard)
        with self._tree.lock:
            self._check_open()
            check_guard(path, guard, None if guard is None else self._tree.nodes.get(guard))
            node = self._tree.nodes.get(path)
            check_version(path, None if node is None else node.version, expected_version)
            if self._tree.names.get(path):
                raise has_children(path)
            del self._tree.nodes[path]
            self._tree.names[parent_of(path)].remove(path.rpartition("/")[2])
            self._notify(path, parent_of(path))

    def children(self, path: str) -> tuple[str, ...]:
        """Return the names below ``path``, sorted."""
        check_path(path, allow_root=True)
        with self._tree.lock:
            self._check_open()
            return tuple(sorted(self._tree.names.get(path, ())))

    def watch(self, path: str, callback: WatchCallback) -> Watch:
        """Call back after changes of the node or of its list of children; see the protocol."""
        check_path(path)
        with self._tree.lock:
            self._check_open()
            return self._notifier.add(path, callback)

    def close(self) -> None:
        """End the watches; a named tree stays for the next store."""
        with self._tree.lock:
            if self._closed:
                return
            self._closed = True
            self._tree.notifiers.remove(self._notifier)
        self._notifier.close()

    def _create(self, path: str, value: bytes) -> None:
        now_ms = self._now_ms()
        for created in (path, *ancestors_of(path)):
            if created in self._tree.nodes:
                break
            node_value = value if created == path else b""
            self._tree.nodes[created] = Versioned(node_value, FIRST_VERSION, now_ms, now_ms)
            self._tree.names.setdefault(parent_of(created), set()).add(created.rpartition("/")[2])
            self._notify(created, parent_of(created))

    def _notify(self, *paths: str) -> None:
        for notifier in self._tree.notifiers:
            notifier.changed(paths)

    def _check_open(self) -> None:
        if self._closed:
            raise MetadataUnavailable("this memory metadata store is closed; open it again")
