"""What a server does over and over, and how it ends what will not end."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING

from afterglow.errors import AfterglowError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_log = logging.getLogger(__name__)


async def every(interval_s: float, what: str, work: Callable[[], Awaitable[object]]) -> None:
    """Do work at intervals until cancelled; each begins when the one before is through.

    A failure is logged and does not end it.

    Args:
        interval_s: Seconds from the end of one to the begin of the next.
        what: Names the work, for the log.
        work: Does it.
    """
    while True:
        await asyncio.sleep(interval_s)
        try:
            await work()
        except AfterglowError as error:
            _log.warning("%s failed and is done again later: %s", what, error)
        except Exception:  # noqa: BLE001 - whatever it is, upkeep must not end for ever
            _log.exception("%s failed and is done again later", what)


async def cancel(task: asyncio.Task[None]) -> None:
    """End what :func:`every` does."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def within(grace_s: float, what: str, work: Callable[[], object]) -> bool:
    """Do work that may wait for somebody who does not answer; after the grace period it is left behind.

    Args:
        grace_s: Seconds to wait for it.
        what: Names the work, for the log.
        work: Does it.

    Returns:
        Whether it was done in time.
    """
    thread = threading.Thread(target=work, name=what, daemon=True)
    thread.start()
    thread.join(grace_s)
    if thread.is_alive():
        _log.warning("%s takes longer than %g s and is left behind", what, grace_s)
        return False
    return True
