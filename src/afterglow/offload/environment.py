"""What the offload of all topics shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import RLock
    from typing import TypeAlias
    from uuid import UUID

    from afterglow.config import BrokerConfig
    from afterglow.hot.pulsar.address import PulsarAddress
    from afterglow.ledger.clock import Clock
    from afterglow.ledger.executor import Executor
    from afterglow.ledger.store import LedgerStore
    from afterglow.metadata.paths import AfterglowPaths
    from afterglow.metadata.store import MetadataStore
    from afterglow.offload.agenda import Agenda
    from afterglow.offload.deletion import Deletions
    from afterglow.offload.offloader import LedgerOffloader
    from afterglow.offload.policies import Policies
    from afterglow.offload.segments.cutting import Sizes
    from afterglow.read.places import TierPlace, Tiers

    Offloaders: TypeAlias = Callable[[BrokerConfig, TierPlace | None, Tiers], LedgerOffloader]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadEnvironment:
    """The rooms below, time, threads, and what topics tell each other."""

    store: LedgerStore
    metadata: MetadataStore
    paths: AfterglowPaths
    policies: Policies
    tiers: Tiers
    own: TierPlace | None
    """The engine's own tier."""
    offloaders: Offloaders
    """From a policy to whoever copies."""
    deletions: Deletions
    agenda: Agenda
    executor: Executor
    clock: Clock
    lock: RLock
    """Guards what threads of the runner and topics share. Nobody waits for I/O while holding it."""
    cluster: str
    instance: str
    """Of the engine, and of its hot log."""
    home: str
    """The engine's home directory; empty where tasks are not to read files."""
    remote: Callable[[], PulsarAddress | None]
    """Where tasks read topics that do not share the engine's disk."""
    flush: Callable[[], None]
    """Lets other processes read all that the hot log has confirmed."""
    hand_out: Callable[[], None]
    """Gives the runner what waits, of all topics; what a look finds goes out when it ends anyhow."""
    new_uuid: Callable[[], UUID]
    segment_sizes: Callable[[BrokerConfig], Sizes] | None = None
    """How segments are cut under a policy; None: as it says."""
