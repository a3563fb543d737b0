from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.disk import RecordedDisk

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    return home


@pytest.fixture
def disk(home: Path) -> RecordedDisk:
    """A disk below the home that counts calls and fails on demand."""
    return RecordedDisk(home)
