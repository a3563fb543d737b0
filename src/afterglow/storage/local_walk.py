"""Which files of a directory are objects, and in which order they are listed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from afterglow.errors import InvalidName
from afterglow.storage import durable
from afterglow.storage.local_metadata import SUFFIX
from afterglow.storage.names import check_key
from afterglow.storage.store import ObjectInfo

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["RESERVED", "info_of", "object_path", "walk"]

RESERVED = ".uploads"
"""The directory of unfinished work, directly below the root."""


def object_path(root: Path, key: str) -> Path:
    """Tell the file of a key; it lies below the root.

    Raises:
        InvalidName: The key is malformed or reserved.
    """
    components = check_key(key).split("/")
    if components[0] == RESERVED or any(component.endswith(SUFFIX) for component in components):
        raise InvalidName(f"object key {key!r} is reserved: not under {RESERVED}/, no name ending in {SUFFIX}")
    return root.joinpath(*components)


def info_of(key: str, found: os.stat_result, metadata: Mapping[str, str]) -> ObjectInfo:
    """Describe an object by its file's status."""
    etag = f"{found.st_mtime_ns:x}-{found.st_size:x}"
    return ObjectInfo(key, found.st_size, etag, found.st_mtime_ns // 1_000_000, metadata)


def walk(root: Path, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
    """Yield the objects below a root in key order; directories that cannot hold one of them are not opened."""
    yield from _walk(root, root, "", prefix, start_after)


def _walk(root: Path, directory: Path, base: str, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
    found = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                key = base + entry.name
                if entry.is_dir(follow_symlinks=False):
                    key += "/"  # with its slash it sorts where the keys below it do
                    wanted = (key.startswith(prefix) or prefix.startswith(key)) and (
                        key > start_after or start_after.startswith(key)
                    )
                else:
                    wanted = key.startswith(prefix) and key > start_after and entry.is_file()
                if wanted and _can_be_key(root, key.removesuffix("/")):
                    found.append(key)
    except FileNotFoundError:
        return  # removed by another tool meanwhile
    for key in sorted(found):
        if key.endswith("/"):
            yield from _walk(root, root / key, key, prefix, start_after)
        elif (status := durable.status(root / key)) is not None:
            yield info_of(key, status, {})


def _can_be_key(root: Path, key: str) -> bool:
    try:
        object_path(root, key)
    except InvalidName:
        return False
    return True
