"""What tests fetch or build once and keep in the user's cache directory.

``AFTERGLOW_CACHE`` names another directory. Deleting it is always safe: what is missing is made again.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def cache_directory() -> Path:
    """Where things are kept; it need not exist."""
    if chosen := os.environ.get("AFTERGLOW_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "afterglow"


def made_once(name: str, make: Callable[[Path], Path]) -> Path:
    """Find a file or directory in the cache, or make it; of several processes that want it at once, one makes it.

    It appears whole or not at all: a ``make`` that fails leaves nothing behind.

    Args:
        name: Its path below the cache directory.
        make: Makes it inside the scratch directory that it is given, and returns where.
    """
    target = cache_directory() / name
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=target.parent, prefix="new-") as scratch:
                make(Path(scratch)).rename(target)
    finally:
        os.close(directory)
    return target
