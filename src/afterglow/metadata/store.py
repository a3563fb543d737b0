"""The metadata store protocol: a tree of small values, each changed only by compare-and-set.

Guarantees of every store, tested by ``tests.support.metadata``:

* **Calls are synchronous and thread-safe**, and each ends within the store's deadline.
* **A node** has a value and a version. The version is 0 at creation and grows by 1 with every put. As in ZooKeeper it
  starts at 0 again when a deleted path is created again, so a version identifies a value only while the path is not
  deleted. A process that wrote under an earlier version may still do so: writes of processes that can be replaced
  name a guard (:mod:`afterglow.metadata.ownership`).
* **Parents are implicit.** Creating a node creates its missing parents. Such a parent is an ordinary node with the
  value ``b""`` and version 0: ``get`` returns it, creating it is a conflict, putting to it expects version 0. It stays
  when its last child is deleted. A node with children cannot be deleted.
* **Failed is not unknown.** ``MetadataUnavailable`` and ``CommitFailed`` (with ``VersionConflict``) mean that the
  change was certainly not applied; ``CommitUnknown`` that it may have been. The first read of the path through the same
  store after a ``CommitUnknown`` is decisive: a change that it does not show will not be applied later.

Not guaranteed: that a read sees the latest write of another process (compare-and-set detects that), or that a watch
fires once per change.

The checks of arguments are shared here, so that stores are interchangeable. The rules are ZooKeeper's, the strictest of
the stores, so that paths and values of an embedded server also work on a cluster.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Protocol

from afterglow.errors import CommitFailed, Fenced, InvalidName, NotSupported, ValueTooLarge, VersionConflict

if TYPE_CHECKING:
    from afterglow.metadata.watches import Watch, WatchCallback

MUST_NOT_EXIST: Final = -1
"""The expected version of a path to create."""

FIRST_VERSION: Final = 0
"""The version of a node at its creation."""


@dataclass(frozen=True, slots=True)
class Versioned:
    """A node's value at one version."""

    value: bytes
    """The stored bytes; empty for an implicit parent."""

    version: int
    """Expected version of the next put or delete; 0 or more."""

    created_ms: int
    """Creation time, epoch milliseconds by the store's clock. For display only: never compare it."""

    modified_ms: int
    """Time of the last put, epoch milliseconds by the store's clock. For display only: never compare it."""


class MetadataStore(Protocol):
    """A versioned tree of small values. :func:`check_path` defines valid paths.

    Every method raises ``InvalidName`` for an invalid path, and ``MetadataUnavailable`` if the store cannot be reached
    within its deadline or is closed.
    """

    @property
    def max_value_bytes(self) -> int:
        """Largest value that ``put`` accepts."""

    def get(self, path: str) -> Versioned | None:
        """Return the node at ``path``, or None if it does not exist."""

    def put(self, path: str, value: bytes, expected_version: int, *, guard: str | None = None) -> int:
        """Create the node (``MUST_NOT_EXIST``) or replace its value, and return its new version.

        Args:
            path: The node.
            value: Its new value.
            expected_version: As read, or ``MUST_NOT_EXIST``.
            guard: A node that must exist when the change is applied, or a missing parent created; None: no condition.

        Raises:
            Fenced: The guard does not exist, whatever the version; nothing was changed.
            VersionConflict: The path has another version, exists already, or does not exist.
            ValueTooLarge: The value exceeds ``max_value_bytes``; nothing was sent.
            CommitFailed: The store rejected the change.
            CommitUnknown: The change was sent and its outcome is unknown.
            NotSupported: ``expected_version`` is negative but not ``MUST_NOT_EXIST``, or the store is read-only.
        """

    def delete(self, path: str, expected_version: int, *, guard: str | None = None) -> None:
        """Remove the node; ``guard`` as in :meth:`put`.

        Raises:
            Fenced: The guard does not exist, whatever the version; nothing was changed.
            VersionConflict: The path has another version or does not exist.
            CommitFailed: The node has children, or the store rejected the change.
            CommitUnknown: The change was sent and its outcome is unknown.
            NotSupported: ``expected_version`` is negative, or the store is read-only.
        """

    def children(self, path: str) -> tuple[str, ...]:
        """Return the names of the nodes directly below ``path`` (which may be ``/``), sorted; empty if none."""

    def watch(self, path: str, callback: WatchCallback) -> Watch:
        """Call ``callback(path)`` after the node is created, changed or deleted, or gains or loses a child.

        It is called at least once after the last change that follows this call; several changes may be coalesced, and
        calls without a change are possible. Callbacks run one at a time on a thread of the store, those of one path in
        the order of their registration; they may use the store.
        """

    def close(self) -> None:
        """End the watches and release all resources; a second call does nothing."""


_log = logging.getLogger(__name__)

MAX_PATH_BYTES: Final = 3072
"""The longest path, in UTF-8."""

DEFAULT_MAX_VALUE_BYTES: Final = 0xFFFFF - 2 * MAX_PATH_BYTES - 1024
"""ZooKeeper's default ``jute.maxbuffer`` (0xFFFFF) limits the whole packet: the server closes the connection of a
client that sends more, which the client cannot distinguish from a lost response. All stores apply this lower limit,
which leaves room for the path, the guard, and 1 KiB for headers, access list and the chroot of both paths."""

# ZooKeeper rejects controls, surrogates, private use, specials, and (as Java's surrogate pairs) all above the BMP.
_FORBIDDEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")


@lru_cache(maxsize=4096)
def check_path(path: str, *, allow_root: bool = False) -> str:
    """Return ``path`` if it is absolute, with neither empty nor dot components nor a trailing slash.

    Args:
        path: The path of a node.
        allow_root: Whether ``/`` is allowed; it has no value, so only ``children`` accepts it.

    Raises:
        InvalidName: The path breaks a rule; the message says which.
    """
    if path == "/" and allow_root:
        return path
    if not path.startswith("/"):
        raise InvalidName(f"metadata path {path!r} is not absolute; begin it with '/'")
    for component in path[1:].split("/"):
        if component in {"", ".", ".."}:
            raise InvalidName(f"metadata path {path!r} has the invalid component {component!r}")
    if invalid := _FORBIDDEN.search(path):
        raise InvalidName(f"metadata path {path!r} has the invalid character {invalid.group()!r}; URL-encode the name")
    if len(path.encode()) > MAX_PATH_BYTES:
        raise InvalidName(f"metadata path {path[:60]!r}… is longer than {MAX_PATH_BYTES} bytes; shorten the name")
    return path


def check_put(path: str, value: bytes, expected_version: int, max_value_bytes: int, guard: str | None) -> None:
    """Check the arguments of a put, and warn of a value larger than half of the store's limit.

    Raises:
        InvalidName: The path or the guard is invalid.
        NotSupported: The expected version is negative and not ``MUST_NOT_EXIST``.
        ValueTooLarge: The value exceeds the store's limit.
    """
    _check_paths(path, guard)
    if expected_version < MUST_NOT_EXIST:
        raise NotSupported(f"put of {path} expects version {expected_version}; give the version that get() returned")
    if len(value) > max_value_bytes:
        raise ValueTooLarge(
            f"the value of {path} has {len(value)} bytes, above the limit of {max_value_bytes} (max_value_bytes); "
            "keep fewer ledgers or larger segments in one topic"
        )
    if len(value) > max_value_bytes // 2:
        _log.warning("the value of %s has %d bytes, over half of the limit of %d", path, len(value), max_value_bytes)


def check_delete(path: str, expected_version: int, guard: str | None) -> None:
    """Check the arguments of a delete.

    Raises:
        InvalidName: The path or the guard is invalid.
        NotSupported: The expected version is negative: ZooKeeper would delete any version.
    """
    _check_paths(path, guard)
    if expected_version < 0:
        raise NotSupported(f"delete of {path} expects version {expected_version}; give the version that get() returned")


def _check_paths(path: str, guard: str | None) -> None:
    check_path(path)
    if guard is not None:
        check_path(guard)


def parent_of(path: str) -> str:
    """Return the parent path; ``/`` for a top-level node."""
    return path.rpartition("/")[0] or "/"


def ancestors_of(path: str) -> tuple[str, ...]:
    """Return the ancestors of ``path``, nearest first, without ``/``."""
    above: list[str] = []
    while (path := parent_of(path)) != "/":
        above.append(path)
    return tuple(above)


def check_version(path: str, found: int | None, expected: int) -> None:
    """Compare a node's version with the expected one.

    Args:
        path: Path of the node.
        found: The node's version; None if it does not exist.
        expected: The version that the caller read, or ``MUST_NOT_EXIST``.

    Raises:
        VersionConflict: They differ.
    """
    if found is None:
        if expected != MUST_NOT_EXIST:
            raise does_not_exist(path, expected)
    elif expected == MUST_NOT_EXIST:
        raise VersionConflict(f"{path} already exists at version {found}; read it again")
    elif expected != found:
        raise VersionConflict(f"{path} is at version {found}, {expected} was expected; read it again")


def does_not_exist(path: str, expected: int) -> VersionConflict:
    """Return the error for the change of a missing node."""
    return VersionConflict(f"{path} does not exist, version {expected} was expected; read it again")


def check_guard(path: str, guard: str | None, found: object) -> None:
    """Check the guard of a change.

    Args:
        path: The node that is to be changed.
        guard: The node that must exist, if any.
        found: That node, or its version; None if it does not exist.

    Raises:
        Fenced: It does not exist.
    """
    if guard is not None and found is None:
        raise guard_missing(path, guard)


def guard_missing(path: str, guard: str) -> Fenced:
    """Return the error for a change whose guard does not exist."""
    return Fenced(
        f"{path} was not changed: another process has taken over and deleted {guard}; stop one of them, or restart "
        "this one to take over in turn"
    )


def has_children(path: str) -> CommitFailed:
    """Return the error for the deletion of a node with children."""
    return CommitFailed(f"{path} has children and was not deleted; delete them first")


NowMs = Callable[[], int]
"""A wall clock, in epoch milliseconds."""


def wall_clock_ms() -> int:
    """Return the current time in epoch milliseconds."""
    return time.time_ns() // 1_000_000
