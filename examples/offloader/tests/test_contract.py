"""The contract suite of offload drivers, for zip files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from afterglow.config import BrokerConfig
from afterglow.testing.offloaders import OffloaderContract
from afterglow_zip import DIRECTORY, ZipOffloader

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class TestZipOffloader(OffloaderContract):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Callable[[], ZipOffloader]:
        policy = BrokerConfig(managed_ledger_extra_configurations=((DIRECTORY, str(tmp_path / "zips")),))
        return lambda: ZipOffloader(policy)
