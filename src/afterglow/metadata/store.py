"""The seam to versioned metadata: a tree of small values, each changed only by compare-and-set.

Promised by every store, and checked by ``afterglow.testing.metadata``:

* **Calls are synchronous and thread-safe**, and each ends within the store's deadline.
* **A node** has a value and a version. The version is 0 at creation and grows by 1 with every put. As in ZooKeeper it
  starts at 0 again when a deleted path is created anew, so a version identifies a value only while the path is not
  deleted: a record whose path can come back must carry its identity in the path or the value.
* **Parents are implicit.** Creating a node creates the missing nodes above it. Such a parent is an ordinary node with
  the value ``b""`` and version 0: ``get`` returns it, creating it is a conflict, putting to it expects version 0. It
  stays when its last child goes. A node with children cannot be deleted.
* **Failed is not unknown.** ``MetadataUnavailable`` and ``CommitFailed`` (with ``VersionConflict``) mean that the
  change was certainly not made; ``CommitUnknown`` that it may have been. The first read of the path through the same
  store after a ``CommitUnknown`` is decisive: what it shows as not applied will not be applied later.

Not promised: that a read through one store at once sees what another process wrote (compare-and-set settles that), or
that a watch fires once per change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from afterglow.metadata.watches import Watch, WatchCallback

MUST_NOT_EXIST: Final = -1
"""The expected version of a path that is to be created."""

FIRST_VERSION: Final = 0
"""The version of a node at its creation."""


@dataclass(frozen=True, slots=True)
class Versioned:
    """A node's value as it stood at one version."""

    value: bytes
    """The stored bytes; empty for an implicit parent."""

    version: int
    """What the next put or delete must expect; 0 or more."""

    created_ms: int
    """When the node was created, epoch milliseconds by the store's clock. For people: never compare it."""

    modified_ms: int
    """When the value was last put, epoch milliseconds by the store's clock. For people: never compare it."""


class MetadataStore(Protocol):
    """A versioned tree of small values. Paths are those of :func:`afterglow.metadata.checks.check_path`.

    Every method raises ``InvalidName`` for a path that is not well-formed, and ``MetadataUnavailable`` when the store
    cannot be reached within its deadline or is closed.
    """

    @property
    def max_value_bytes(self) -> int:
        """The longest value that ``put`` takes."""

    def get(self, path: str) -> Versioned | None:
        """Return the node at ``path``, or None where there is none."""

    def put(self, path: str, value: bytes, expected_version: int) -> int:
        """Create the node (``MUST_NOT_EXIST``) or replace its value, and return its new version.

        Raises:
            VersionConflict: The path has another version, exists already, or does not exist.
            ValueTooLarge: The value passes ``max_value_bytes``; nothing was sent.
            CommitFailed: The store refused the change.
            CommitUnknown: The change was sent and its outcome was not heard.
            NotSupported: ``expected_version`` is negative but not ``MUST_NOT_EXIST``, or the store is read-only.
        """

    def delete(self, path: str, expected_version: int) -> None:
        """Remove the node.

        Raises:
            VersionConflict: The path has another version or does not exist.
            CommitFailed: The node has children, or the store refused the change.
            CommitUnknown: The change was sent and its outcome was not heard.
            NotSupported: ``expected_version`` is negative, or the store is read-only.
        """

    def children(self, path: str) -> tuple[str, ...]:
        """Return the names of the nodes directly below ``path`` (which may be ``/``), sorted; empty if none."""

    def watch(self, path: str, callback: WatchCallback) -> Watch:
        """Call ``callback(path)`` after the node is created, changed or deleted, or gains or loses a child.

        At least once after the last change that follows this call; several changes may be told as one, and a call
        without a change is possible. Callbacks run one at a time on a thread of the store, those of one path in the
        order of their registration; they may use the store.
        """

    def close(self) -> None:
        """Release everything held, and end the watches; a second call does nothing."""
