"""Ownership of a metadata tree by one process at a time: each process writes under a guard that its successor deletes.

Compare-and-set alone does not stop a process that was replaced: after a path was deleted and created again, an old
version may match a new value. The guard's path is used once, and stores check it in the transaction of each change, so
nothing that a replaced process still sends has an effect, however late it arrives.

Topics have an owner epoch besides (:mod:`afterglow.ledger.topic_metadata`), from which their readers learn of a new
owner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from afterglow.errors import CommitUnknown, VersionConflict
from afterglow.metadata.store import MUST_NOT_EXIST

if TYPE_CHECKING:
    from uuid import UUID

    from afterglow.metadata.store import MetadataStore, Versioned
    from afterglow.metadata.watches import Watch, WatchCallback

_MAX_ATTEMPTS: Final = 16
"""Changes with an unknown outcome in a row; each was followed by a read, so the store is faulty."""


def take_ownership(
    store: MetadataStore, owners: str, owner_id: UUID, *, lease: str | None = None
) -> OwnedMetadataStore:
    """Become the owner of all that is written under guards below ``owners``, and fence every earlier owner.

    To be called once it is certain that no other process should write: at the start of a server, which has locked its
    home, or by a standby after the end of the active process's session.

    1. Create the guard of this process. *Crash: a guard that nobody uses; the next owner deletes it.*
    2. Delete all other guards. *Crash: some earlier owners are fenced; the next owner fences the others.*

    Args:
        store: The store; closed with the result.
        owners: Parent of the guards.
        owner_id: Names the guard; never used before.
        lease: A node that must exist for both steps: it ends when another process may become the owner; None: it is
            certain that no other process does.

    Raises:
        Fenced: Another process took ownership at the same time, or the lease has ended.
        MetadataError: The store failed; earlier owners may be fenced.
    """
    guard = f"{owners}/{owner_id}"
    _create(store, guard, lease)
    for name in store.children(owners):
        if name != str(owner_id):
            _delete(store, f"{owners}/{name}", lease or guard)
    return OwnedMetadataStore(store, guard)


class OwnedMetadataStore:
    """A :class:`~afterglow.metadata.store.MetadataStore` whose writes fail once another process has taken ownership.

    A guard that the caller names replaces that of this process. Closing it closes the inner store; the guard stays
    until the next owner deletes it.
    """

    def __init__(self, store: MetadataStore, guard: str) -> None:
        self._store = store
        self.guard = guard
        """Path of the guard of this process."""

    @property
    def max_value_bytes(self) -> int:
        """Largest value that ``put`` accepts."""
        return self._store.max_value_bytes

    def get(self, path: str) -> Versioned | None:
        """Return the node at ``path``, or None if it does not exist."""
        return self._store.get(path)

    def put(self, path: str, value: bytes, expected_version: int, *, guard: str | None = None) -> int:
        """Create the node or replace its value; see the protocol."""
        return self._store.put(path, value, expected_version, guard=guard or self.guard)

    def delete(self, path: str, expected_version: int, *, guard: str | None = None) -> None:
        """Remove the node; see the protocol."""
        self._store.delete(path, expected_version, guard=guard or self.guard)

    def children(self, path: str) -> tuple[str, ...]:
        """Return the names below ``path``, sorted."""
        return self._store.children(path)

    def watch(self, path: str, callback: WatchCallback) -> Watch:
        """Call back after changes of the node or of its list of children; see the protocol."""
        return self._store.watch(path, callback)

    def close(self) -> None:
        """Close the inner store."""
        self._store.close()


def _create(store: MetadataStore, path: str, lease: str | None) -> None:
    for _ in range(_MAX_ATTEMPTS):
        try:
            store.put(path, b"", MUST_NOT_EXIST, guard=lease)
        except CommitUnknown:
            if store.get(path) is not None:  # its path is used by this process only
                return
        else:
            return
    raise CommitUnknown(f"{path} was not created: {_MAX_ATTEMPTS} attempts in a row had an unknown outcome")


def _delete(store: MetadataStore, path: str, guard: str) -> None:
    for _ in range(_MAX_ATTEMPTS):
        found = store.get(path)
        if found is None:
            return
        try:
            store.delete(path, found.version, guard=guard)
        except (CommitUnknown, VersionConflict):
            continue
        else:
            return
    raise CommitUnknown(f"{path} was not deleted: {_MAX_ATTEMPTS} attempts in a row had an unknown outcome")
