"""Schedule of topics: which topics this process offloads, when each is due, and the lane in which its work runs."""

from __future__ import annotations

import heapq
import logging
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from afterglow.errors import AfterglowError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from threading import RLock
    from typing import TypeAlias
    from uuid import UUID

    from afterglow.config import BrokerConfig
    from afterglow.hot.pulsar.address import PulsarAddress
    from afterglow.ledger.environment import Clock, Executor
    from afterglow.ledger.store import LedgerStore
    from afterglow.metadata.paths import AfterglowPaths
    from afterglow.metadata.store import MetadataStore
    from afterglow.offload.offloader import LedgerOffloader
    from afterglow.offload.pending_deletes import PendingDeletes
    from afterglow.offload.segments.part_planner import Sizes
    from afterglow.offload.topic_offload import TopicOffload
    from afterglow.policy.resolver import Policies
    from afterglow.tier.locations import TierLocation, Tiers

    Offloaders: TypeAlias = Callable[[BrokerConfig, TierLocation | None, Tiers], LedgerOffloader]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadEnvironment:
    """Services, clock and threads that the offload of all topics shares."""

    store: LedgerStore
    metadata: MetadataStore
    paths: AfterglowPaths
    policies: Policies
    tiers: Tiers
    own: TierLocation | None
    """The server's own tier."""
    offloaders: Offloaders
    """Makes the offloader that a policy asks for."""
    pending_deletes: PendingDeletes
    schedule: TopicSchedule
    executor: Executor
    clock: Clock
    lock: RLock
    """Guards what threads of the runner and topics share. Never held during I/O."""
    cluster: str
    instance: str
    """Of the server, and of its hot log."""
    home: str
    """The server's home directory; empty where tasks are not to read files."""
    remote: Callable[[], PulsarAddress | None]
    """Address at which workers read topics that do not share the server's disk."""
    flush: Callable[[], None]
    """Lets other processes read all that the hot log has confirmed."""
    hand_out: Callable[[], None]
    """Gives the runner the waiting tasks of all topics before the end of a run."""
    new_uuid: Callable[[], UUID]
    segment_sizes: Callable[[BrokerConfig], Sizes] | None = None
    """How segments are cut under a policy; None: as it says."""

    def flush_for(self, name: str) -> None:
        """Flush the hot log before tasks of a topic go out. Where that fails, the tasks will find out if it matters."""
        try:
            self.flush()
        except AfterglowError as error:
            _log.warning("%s: the hot log was not written back: %s", name, error)


class TopicSchedule:
    """Due times by topic name, the earliest of each. Thread-safe. Topics without one cost nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._due_ms: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []  # may hold times that were moved or cancelled

    def __len__(self) -> int:
        return len(self._due_ms)

    def put(self, name: str, at_ms: int) -> None:
        """Set a due time, unless there is an earlier one. Epoch milliseconds; 0 is at once."""
        with self._lock:
            known = self._due_ms.get(name)
            if known is None or at_ms < known:
                self._due_ms[name] = at_ms
                heapq.heappush(self._heap, (at_ms, name))

    def cancel(self, name: str) -> None:
        """Remove a due time."""
        with self._lock:
            self._due_ms.pop(name, None)

    def take_due(self, now_ms: int) -> list[str]:
        """Remove and return the names that are due, the earliest first."""
        due = []
        with self._lock:
            while self._heap and self._heap[0][0] <= now_ms:
                at_ms, name = heapq.heappop(self._heap)
                if self._due_ms.get(name) == at_ms:
                    del self._due_ms[name]
                    due.append(name)
        return due


class Lane:
    """Runs work of one topic in the order it came, never two items at once. Thread-safe.

    Args:
        name: For messages.
        executor: Lends a thread for one item at a time, so that lanes take turns.
    """

    def __init__(self, name: str, executor: Executor) -> None:
        self._name = name
        self._executor = executor
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], None]] = deque()
        self._running = False

    @property
    def idle(self) -> bool:
        """Whether no item runs or waits."""
        return not self._running

    def submit(self, work: Callable[[], None]) -> None:
        """Run an item after all that were submitted before. After the executor's shutdown: never."""
        with self._lock:
            self._waiting.append(work)
            if self._running:
                return
            self._running = True
        self._lend()

    def _lend(self) -> None:
        try:
            self._executor.submit(self._run_one)
        except RuntimeError:  # it was shut down: the process is about to end, and metadata holds all that matters
            _log.debug("%s: work is left to the next start", self._name)

    def _run_one(self) -> None:
        with self._lock:
            work = self._waiting.popleft()
        try:
            work()
        except Exception:  # noqa: BLE001 - of any kind: the topic must not stand still for ever
            _log.exception("%s: background work failed", self._name)
        with self._lock:
            if not self._waiting:
                self._running = False
                return
        self._lend()


class KnownTopics:
    """Topics with state in this process, by their managed-ledger names. Thread-safe.

    Args:
        lock: Guards them.
        make: Makes one that has nothing under way.
    """

    def __init__(self, lock: RLock, make: Callable[[str], TopicOffload]) -> None:
        self._lock = lock
        self._make = make
        self._known: dict[str, TopicOffload] = {}

    def __len__(self) -> int:
        return len(self._known)

    def get(self, name: str) -> TopicOffload:
        """A topic, made and kept where it is not known."""
        with self._lock:
            found = self._known.get(name)
            if found is None:
                found = self._known[name] = self._make(name)
            return found

    def peek(self, name: str) -> TopicOffload:
        """A topic for a question; one that is not known is made and not kept."""
        with self._lock:
            return self._known.get(name) or self._make(name)

    def known(self, name: str) -> TopicOffload | None:
        """A topic if it is known."""
        with self._lock:
            return self._known.get(name)

    def all(self) -> list[TopicOffload]:
        """All known topics."""
        with self._lock:
            return list(self._known.values())

    def busy(self) -> list[TopicOffload]:
        """Topics with work under way."""
        with self._lock:
            return [topic for topic in self._known.values() if len(topic.window) or topic.is_streaming]

    def drop_idle(self, existing: Collection[str]) -> list[str]:
        """Drop topics that were deleted, given those that exist, and topics with no state to report; returns both."""
        with self._lock:
            dropped = [
                name
                for name, topic in self._known.items()
                if topic.can_be_dropped or (name not in existing and topic.is_quiet)
            ]
            for name in dropped:
                self._known.pop(name).drop()
            return dropped
