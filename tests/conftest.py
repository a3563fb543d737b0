"""What every test shares: Hypothesis profiles, and kernels that are never older than their source."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import settings

import afterglow

if TYPE_CHECKING:
    import pytest

# No deadline: the first example may have to compile a kernel. The blob reproduces a failure on another machine.
settings.register_profile("default", max_examples=60, deadline=None, print_blob=True)
settings.register_profile("nightly", max_examples=5000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_configure(config: pytest.Config) -> None:
    # Not in a worker: the process that starts the workers was here before them.
    if not hasattr(config, "workerinput"):
        remove_stale_kernels(Path(afterglow.__file__).parent / "format" / "_kernels")


def remove_stale_kernels(directory: Path) -> None:
    """Remove compiled kernels if any source is newer than one of them.

    numba compares a kernel with its own file only, not with the files whose functions are inlined into it.
    """
    compiled = [*directory.glob("__pycache__/*.nbi"), *directory.glob("__pycache__/*.nbc")]
    newest = max(path.stat().st_mtime for path in directory.glob("*.py"))
    if any(path.stat().st_mtime < newest for path in compiled):
        for path in compiled:
            path.unlink(missing_ok=True)
