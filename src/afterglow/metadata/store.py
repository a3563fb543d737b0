"""The protocol of metadata stores: a tree of small values, each changed only by compare-and-set.

Promised by every store, and checked by ``tests.support.metadata``:

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

What every store refuses before it touches anything is here too, so that stores stay exchangeable. The rules are
ZooKeeper's, the strictest of the stores, so that what works embedded also works on a cluster.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Protocol

from afterglow.errors import CommitFailed, InvalidName, NotSupported, ValueTooLarge, VersionConflict

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
    """A versioned tree of small values. Paths are those of :func:`afterglow.metadata.store.check_path`.

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


_log = logging.getLogger(__name__)

MAX_PATH_BYTES: Final = 3072
"""The longest path, in UTF-8. With the default below it leaves 1 KiB for chroot, header and access list."""

DEFAULT_MAX_VALUE_BYTES: Final = 0xFFFFF - MAX_PATH_BYTES - 1024
"""ZooKeeper's default ``jute.maxbuffer`` bounds the whole packet: it drops the connection of a client that sends
more, and the sender cannot tell that from a lost answer. Hence every store keeps the value this much below."""

# ZooKeeper refuses controls, surrogates, private use, specials, and (as Java sees surrogate pairs) all above the BMP.
_FORBIDDEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")


@lru_cache(maxsize=4096)
def check_path(path: str, *, allow_root: bool = False) -> str:
    """Return ``path`` if it is absolute, with neither empty nor dot components nor a trailing slash.

    Args:
        path: The path of a node.
        allow_root: Whether ``/`` itself will do; it has no value, so only listing may ask for it.

    Raises:
        InvalidName: The path breaks a rule; the message says which.
    """
    if path == "/" and allow_root:
        return path
    if not path.startswith("/"):
        raise InvalidName(f"metadata path {path!r} is not absolute: begin it with '/'")
    for component in path[1:].split("/"):
        if component in {"", ".", ".."}:
            raise InvalidName(f"metadata path {path!r} has the component {component!r}: name every component")
    if bad := _FORBIDDEN.search(path):
        raise InvalidName(f"metadata path {path!r} has the character {bad.group()!r}: URL-encode the name")
    if len(path.encode()) > MAX_PATH_BYTES:
        raise InvalidName(f"metadata path {path[:60]!r}… is longer than {MAX_PATH_BYTES} bytes: shorten the name")
    return path


def check_put(path: str, value: bytes, expected_version: int, max_value_bytes: int) -> None:
    """Check the arguments of a put, and warn of a value that has grown past half of what the store takes.

    Raises:
        InvalidName: The path is not well-formed.
        NotSupported: The expected version is negative and not ``MUST_NOT_EXIST``.
        ValueTooLarge: The value is longer than the store takes.
    """
    check_path(path)
    if expected_version < MUST_NOT_EXIST:
        raise NotSupported(f"put of {path} expects version {expected_version}: give the version that get() returned")
    if len(value) > max_value_bytes:
        raise ValueTooLarge(
            f"the value for {path} has {len(value)} bytes, the store takes {max_value_bytes} (max_value_bytes): "
            "keep fewer ledgers or larger segments in one topic"
        )
    if len(value) > max_value_bytes // 2:
        _log.warning("the value for %s has %d of at most %d bytes", path, len(value), max_value_bytes)


def check_delete(path: str, expected_version: int) -> None:
    """Check the arguments of a delete.

    Raises:
        InvalidName: The path is not well-formed.
        NotSupported: The expected version is negative: ZooKeeper would delete whatever is there.
    """
    check_path(path)
    if expected_version < 0:
        raise NotSupported(f"delete of {path} expects version {expected_version}: give the version that get() returned")


def parent_of(path: str) -> str:
    """Return the path one level up; ``/`` for a node at the top."""
    return path.rpartition("/")[0] or "/"


def ancestors_of(path: str) -> tuple[str, ...]:
    """Return the paths above ``path``, nearest first, without ``/``."""
    above: list[str] = []
    while (path := parent_of(path)) != "/":
        above.append(path)
    return tuple(above)


def check_version(path: str, found: int | None, expected: int) -> None:
    """Compare a node's version with the one that a change expects.

    Args:
        path: Of the node.
        found: The node's version; None where there is no node.
        expected: What the caller read, or ``MUST_NOT_EXIST``.

    Raises:
        VersionConflict: They differ.
    """
    if found is None:
        if expected != MUST_NOT_EXIST:
            raise does_not_exist(path, expected)
    elif expected == MUST_NOT_EXIST:
        raise VersionConflict(f"{path} exists already at version {found}: read it again")
    elif expected != found:
        raise VersionConflict(f"{path} is at version {found}, {expected} was expected: read it again")


def does_not_exist(path: str, expected: int) -> VersionConflict:
    """Return the error for the change of a node that is not there."""
    return VersionConflict(f"{path} does not exist, version {expected} was expected: read it again")


def has_children(path: str) -> CommitFailed:
    """Return the error for the deletion of a node that has children."""
    return CommitFailed(f"{path} has children and was not deleted: delete them first")


NowMs = Callable[[], int]
"""A clock: epoch milliseconds."""


def wall_clock_ms() -> int:
    """Return the time of day in epoch milliseconds."""
    return time.time_ns() // 1_000_000
