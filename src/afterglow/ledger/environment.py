"""What all topics of one engine share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.config import BrokerConfig
    from afterglow.hot.log import HotLog
    from afterglow.ledger.cache import TailCache
    from afterglow.ledger.clock import Clock
    from afterglow.ledger.cursor_states import CursorStates
    from afterglow.ledger.executor import Executor
    from afterglow.ledger.offloading import Offloading
    from afterglow.ledger.retention import Retention
    from afterglow.ledger.source import Sources
    from afterglow.metadata.store import MetadataStore


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
    offloading: Offloading
    """Who copies ledgers out of the hot log."""
    retention: Callable[[str], Retention]
    """How long a topic is kept, by its managed-ledger name, where nobody has told the topic itself. May wait."""
