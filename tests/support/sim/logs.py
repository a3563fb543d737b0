"""What the code under test logs: out of the way, or in the trace."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.sim.world import SimWorld


@contextmanager
def logs_of(world: SimWorld | None) -> Iterator[None]:
    """Keep what the code logs out of the way, or in the trace."""
    logger = logging.getLogger("afterglow")
    level, propagate, handlers = logger.level, logger.propagate, list(logger.handlers)
    logger.propagate = False
    if world is None:
        logger.setLevel(logging.CRITICAL + 1)
    else:
        logger.setLevel(logging.INFO)
        logger.handlers = [_TraceHandler(world)]
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.propagate = propagate
        logger.handlers = handlers


class _TraceHandler(logging.Handler):
    def __init__(self, world: SimWorld) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        self._world.note(f"      log: {record.getMessage()}")
        if record.exc_info:
            self._world.note(f"      log: {record.exc_info[1]!r}")
