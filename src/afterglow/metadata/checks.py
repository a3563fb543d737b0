"""What every metadata store refuses before it touches anything: one set of rules, so that stores stay exchangeable.

The rules are ZooKeeper's, the strictest of the stores, so that what works embedded also works on a cluster.
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from typing import Final

from afterglow.errors import CommitFailed, InvalidName, NotSupported, ValueTooLarge, VersionConflict
from afterglow.metadata.store import MUST_NOT_EXIST

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
