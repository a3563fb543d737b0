from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.hot import HotLogContract

from afterglow.hot.local import LocalLog
from afterglow.testing.memory_hot import MemoryLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class TestLocalLog(HotLogContract):
    @pytest.fixture
    def log(self, tmp_path: Path) -> Iterator[LocalLog]:
        with LocalLog(tmp_path) as log:
            yield log

    @pytest.fixture
    def flush(self, log: LocalLog) -> Callable[[], None]:
        return log.flush


class TestLocalLogThatFlushesAtOnce(HotLogContract):
    @pytest.fixture
    def log(self, tmp_path: Path) -> Iterator[LocalLog]:
        with LocalLog(
            tmp_path, flush_interval_ms=0, checkpoint_interval_ms=1, journal_max_bytes=2000, max_open_files=2
        ) as log:
            yield log

    @pytest.fixture
    def flush(self, log: LocalLog) -> Callable[[], None]:
        return log.flush


class TestMemoryLog(HotLogContract):
    @pytest.fixture
    def log(self) -> MemoryLog:
        return MemoryLog()
