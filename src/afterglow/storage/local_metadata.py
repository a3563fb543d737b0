"""User metadata of local objects: the file ``K.meta.json`` beside the file ``K``, a flat JSON object of strings.

Two files cannot be replaced in one step. So that a crash between the two still shows either the old object or the new
one, both files of an object carry the same modification time to the nanosecond, and while an object is being replaced
the old metadata is kept aside under the time of the old object:

====================  =========  ================  ==========  ===================
after the step        ``K``      ``K.meta.json``   kept aside  what a reader sees
====================  =========  ================  ==========  ===================
0. before             old        old               -           old
1. old kept aside     old        old               old         old
2. metadata renamed   old        new               old         old: the one aside
3. object renamed     new        new               old         new
4. aside removed      new        new               -           new
====================  =========  ================  ==========  ===================

Files that other tools copied here carry any time; where nothing aside matches, ``K.meta.json`` is believed.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from afterglow.errors import StorageError
from afterglow.storage import durable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["SUFFIX", "metadata_path", "read_metadata", "write_metadata"]

SUFFIX = ".meta.json"


def metadata_path(target: Path) -> Path:
    """Tell where the metadata of an object's file lies."""
    return target.with_name(target.name + SUFFIX)


def read_metadata(target: Path, aside: Path) -> tuple[os.stat_result, dict[str, str]]:
    """Tell an object's status and the metadata that belongs to it, while others may be replacing it.

    Raises:
        FileNotFoundError: There is no such object.
        StorageError: The metadata file is not a flat JSON object of strings.
    """
    while True:
        status = os.stat(target)  # noqa: PTH116 - the status handed back
        beside = _load(metadata_path(target))
        if beside is None:
            return status, {}
        modified_ns, metadata = beside
        if modified_ns == status.st_mtime_ns:
            return status, metadata
        kept = _load(aside)
        if kept is not None and kept[0] == status.st_mtime_ns:
            return status, kept[1]
        if os.stat(target).st_mtime_ns == status.st_mtime_ns:  # noqa: PTH116 - as above
            return status, metadata
        # The object was replaced between our looks: look again.


def write_metadata(temporary: Path, path: Path, metadata: Mapping[str, str], modified_ns: int) -> None:
    """Put a metadata file in place under the time of the object it belongs to; its name is not durable yet."""
    text = json.dumps(dict(metadata), indent=1, sort_keys=True) + "\n"
    durable.write_file(temporary, [text.encode()], modified_ns=modified_ns)
    os.rename(temporary, path)  # noqa: PTH104 - crash tests step through the calls of os


def _load(path: Path) -> tuple[int, dict[str, str]] | None:
    try:
        with path.open("rb") as file:
            modified_ns = os.fstat(file.fileno()).st_mtime_ns
            text = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise StorageError(f"{path} is not a flat JSON object of strings; correct or remove it")
    return modified_ns, {key.lower(): item for key, item in value.items()}
