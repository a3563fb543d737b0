"""Periodic work of a server, and work with a deadline at its end."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING

from afterglow.errors import AfterglowError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_log = logging.getLogger(__name__)


async def run_periodically(interval_s: float, what: str, work: Callable[[], Awaitable[object]]) -> None:
    """Run work at intervals until cancelled. A failure is logged, and the work is run again after the interval.

    Args:
        interval_s: Seconds from the end of one run to the start of the next.
        what: Name of the work, for the log.
        work: The work.
    """
    while True:
        await asyncio.sleep(interval_s)
        try:
            await work()
        except AfterglowError as error:
            _log.warning("%s failed, will retry: %s", what, error)
        except Exception:  # noqa: BLE001 - an unknown error must not end the upkeep for good
            _log.exception("%s failed, will retry", what)


async def cancel_task(task: asyncio.Task[None]) -> None:
    """Cancel a task, and wait for its end."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def run_with_timeout(timeout_s: float, what: str, work: Callable[[], object]) -> bool:
    """Run work that may wait for a store that does not respond; after the timeout it is abandoned to its thread.

    Args:
        timeout_s: Seconds to wait.
        what: Name of the work, for the log.
        work: The work.

    Returns:
        Whether the work ended in time.
    """
    thread = threading.Thread(target=work, name=what, daemon=True)
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        _log.warning("%s did not end within %g s, not waiting any longer", what, timeout_s)
        return False
    return True
