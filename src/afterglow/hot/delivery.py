"""Calling completions."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from afterglow.errors import HotLogError
    from afterglow.hot.log import Completion

__all__ = ["call_each"]

_log = logging.getLogger(__name__)


def call_each(dones: list[Completion], error: HotLogError | None) -> None:
    """Call the completions of one group commit in their order; one that raises does not keep the rest from theirs.

    The default of every hot log, which calls it in a thread of its own. Whoever lives in an event loop passes the log
    ``lambda dones, error: loop.call_soon_threadsafe(call_each, dones, error)``: one hop for a whole group.
    """
    for done in dones:
        try:
            done(error)
        except Exception:  # noqa: BLE001 - whatever a caller's completion raises is the caller's
            _log.exception("a completion of an append raised")
