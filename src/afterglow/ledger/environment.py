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
    from afterglow.ledger.entry_source import Sources
    from afterglow.ledger.keyed_states import KeyedStates
    from afterglow.ledger.offload_hooks import OffloadHooks
    from afterglow.ledger.retention import Retention
    from afterglow.metadata.store import MetadataStore


class Clock(Protocol):
    """Wall-clock and monotonic time."""

    def now_ms(self) -> int:
        """Wall-clock time, epoch milliseconds; may jump either way."""
        ...

    def monotonic(self) -> float:
        """Monotonic seconds, for waits and rates."""
        ...


class SystemClock:
    """The clocks of the operating system."""

    def now_ms(self) -> int:
        """Wall-clock time, epoch milliseconds."""
        return wall_clock_ms()

    def monotonic(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()


class Executor(Protocol):
    """Runs tasks in the background; a ``concurrent.futures.Executor`` fits."""

    def submit(self, task: Callable[[], None], /) -> object:
        """Run ``task`` once, soon; the task handles its own errors."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Stores, settings, clock and executor."""

    hot: HotLog
    """Holds the ledgers."""
    metadata: MetadataStore
    """Holds ledger lists and snapshots of cursors."""
    cursor_states: KeyedStates
    """Holds the newest states of cursors, by the path of their metadata."""
    swept: KeyedStates
    """Ids of empty ledgers that a start has deleted because no list named them.

    A process that has ended, or has lost its topics, may have sent the change of a list that names such a ledger, and
    the change may arrive after the lists were read. The topic is then opened as if the ledger were there, and empty.
    They are few, one per crash within a roll-over, and are kept for ever.
    """
    config: BrokerConfig
    """The broker's settings."""
    clock: Clock
    executor: Executor
    """Runs work that appends and acknowledgements do not wait for; several tasks may run at once."""
    cache: TailCache
    sources: Sources
    """Gives the source of a topic's entries that are not in memory."""
    offloading: OffloadHooks
    """Notified of closed and removed ledgers."""
    retention: Callable[[str], Retention]
    """Retention of a topic by its managed-ledger name, unless it was set on the open topic. May wait."""
