"""The contract suite of offload drivers, for the built-in ones over a directory and S3, and for the example driver."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from afterglow.config import BrokerConfig
from afterglow.offload.block_handle import BlockHandle, SegmentLimits
from afterglow.offload.block_offloader import BlockOffloader, object_metadata
from afterglow.offload.segments.part_planner import Sizes
from afterglow.testing.offloaders import OffloaderContract
from afterglow.tier.locations import MEMORY, TierLocation, Tiers, location_of_url

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

EXAMPLE = Path(__file__).parents[2] / "examples" / "offloader"


class TestBlocksInADirectory(OffloaderContract):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Callable[[], BlockOffloader]:
        location = location_of_url(tmp_path.as_uri())
        return lambda: BlockOffloader(location, BrokerConfig(), Tiers())


class SmallBlocks(BlockOffloader):
    """Blocks, parts and a buffer so small that segments have many parts, and offers are refused for a while."""

    def streaming_offload(self, uuid: UUID, driver_metadata: Mapping[str, str]) -> BlockHandle:
        limits = SegmentLimits(sizes=Sizes(50_000, 100_000), max_bytes=1 << 40, buffer_bytes=200_000)
        data, index = (object_metadata(role, driver_metadata) for role in ("data", "index"))
        return BlockHandle(self._store(), uuid, limits=limits, data_metadata=data, index_metadata=index)


class TestSmallBlocksInMemory(OffloaderContract):
    @pytest.fixture
    def make(self) -> Callable[[], BlockOffloader]:
        location = TierLocation(MEMORY, f"contract-{uuid4()}")
        return lambda: SmallBlocks(location, BrokerConfig(), Tiers(), block_bytes=100_000, part_bytes=200_000)


def test_the_example_driver_passes_the_contract_suite_once_it_is_installed(zip_driver: dict[str, str]) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLE / "tests")]
    done = subprocess.run(command, env=zip_driver, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout
    assert "skipped" not in done.stdout
