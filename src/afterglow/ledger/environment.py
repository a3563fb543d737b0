"""Shared environment of all topics of one process: hot log, metadata, clock, executor, caches."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from afterglow.metadata.store import wall_clock_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.config import BrokerConfig
    from afterglow.hot.log import HotLog
    from afterglow.ledger.cache import TailCache
    from afterglow.ledger.cursor_store import CursorStates
    from afterglow.ledger.entry_source import Sources
    from afterglow.ledger.offload_hooks import OffloadHooks
    from afterglow.ledger.retention import Retention
    from afterglow.metadata.store import MetadataStore


class Clock(Protocol):
    """The time of day, and time that only passes."""

    def now_ms(self) -> int:
        """The time of day in epoch milliseconds; may jump either way."""
        ...

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back. For waiting and for rates."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        """The time of day in epoch milliseconds."""
        return wall_clock_ms()

    def monotonic(self) -> float:
        """Seconds since some moment."""
        return time.monotonic()


class Executor(Protocol):
    """Runs tasks soon, on threads of its own. A ``concurrent.futures.Executor`` is one."""

    def submit(self, task: Callable[[], None], /) -> object:
        """Run ``task`` once, later; it handles its own errors."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The rooms below, and what time and background work come from."""

    hot: HotLog
    """Where ledgers are."""
    metadata: MetadataStore
    """Where lists of ledgers and snapshots of cursors are."""
    cursor_states: CursorStates
    """Where the newest states of cursors are."""
    config: BrokerConfig
    """The broker's settings."""
    clock: Clock
    executor: Executor
    """Runs what appends and acknowledgements do not wait for; several tasks may run at once."""
    cache: TailCache
    sources: Sources
    """Where entries are read from that the cache does not hold."""
    offloading: OffloadHooks
    """Who copies ledgers out of the hot log."""
    retention: Callable[[str], Retention]
    """How long a topic is kept, by its managed-ledger name, where nobody has told the topic itself. May wait."""
