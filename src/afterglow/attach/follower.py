"""Follows the topics of a cluster: finds new ones, learns of new entries, and holds back trimming.

An active topic costs one request to its broker (``internalStats``) and one to ZooKeeper every half second at most; an
idle one a small request over an open connection (``GetLastMessageId``) at growing intervals, up to ten seconds.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from afterglow.attach.ledger_merge import committed_end
from afterglow.errors import AfterglowError, Fenced, HotLogError, TopicMissing

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.attach.cluster import AttachedCluster
    from afterglow.attach.topic import AttachedTopic
    from afterglow.attach.topics import AttachedTopics
    from afterglow.format.position import Position
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.hot.pulsar.subscription_hold import SubscriptionHolds
    from afterglow.ledger.environment import Clock

_log = logging.getLogger(__name__)

_DISCOVERY_S: Final = 5.0
"""New topics and partitions are found within this time."""
_ACKNOWLEDGE_S: Final = 1.0
_ACTIVE_S: Final = 0.5
_IDLE_S: Final = 10.0
_GROWTH: Final = 1.5
_PROBE_S: Final = 20.0
_THREADS: Final = 8


class PollResult(StrEnum):
    """Cost and result of one poll of a topic."""

    READ = "read"
    """Its ledger list and statistics were read."""
    UNCHANGED = "unchanged"
    """Its last message is the same as before, so that nothing was read."""
    FAILED = "failed"


@dataclass(slots=True)
class _Followed:
    topic: AttachedTopic
    due: float
    interval_s: float = _ACTIVE_S
    seen: tuple[Position, object] | None = None
    """The last entry, and the number of ledgers, when the topic was last found changed."""
    probed: Position | None = None
    """The last answer to a probe."""
    acknowledged: Position | None = None
    info: ManagedLedgerInfo | None = None
    """The metadata by which it was acknowledged."""
    problem: str = ""
    """The last problem, which is logged once."""
    busy: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class Follower:
    """Follows all topics of a cluster in threads of its own, from :meth:`start` to :meth:`close`.

    Args:
        cluster: The cluster.
        topics: The attached topics.
        holds: Holds the subscription of each.
        clock: The clock.
        on_fenced: Called once another process has taken over.
    """

    def __init__(
        self,
        cluster: AttachedCluster,
        topics: AttachedTopics,
        holds: SubscriptionHolds,
        clock: Clock,
        on_fenced: Callable[[Fenced], None],
    ) -> None:
        self._cluster = cluster
        self._topics = topics
        self._holds = holds
        self._clock = clock
        self._on_fenced = on_fenced
        self._stop = threading.Event()
        self._count_lock = threading.Lock()
        self._polls: Counter[PollResult] = Counter()
        self._followed: dict[str, _Followed] = {}
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="attach-follow")
        self._thread = threading.Thread(target=self._run, name="attach-follower", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End; waits for requests in progress. Subscriptions stay held."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._pool.shutdown(cancel_futures=True)

    def polls(self) -> dict[PollResult, int]:
        """Numbers of polls of all topics since the start, by result."""
        with self._count_lock:
            return {result: self._polls[result] for result in PollResult}

    def problem(self, name: str) -> str:
        """The error of the last poll of a topic, by its managed-ledger name; empty if it succeeded."""
        followed = self._followed.get(name)
        return "" if followed is None else followed.problem

    # --- the loop -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        discover_at = 0.0
        while not self._stop.is_set():
            now = self._clock.monotonic()
            if now >= discover_at:
                self._discover()
                discover_at = self._clock.monotonic() + _DISCOVERY_S
            waits = [discover_at, now + _ACKNOWLEDGE_S]
            for followed in tuple(self._followed.values()):
                self._acknowledge(followed)
                if followed.busy:
                    continue
                if now >= followed.due:
                    followed.busy = True
                    self._pool.submit(self._poll, followed)
                else:
                    waits.append(followed.due)
            self._stop.wait(max(0.05, min(waits) - self._clock.monotonic()))

    def _discover(self) -> None:
        try:
            found = {topic.managed_ledger_name for topic in self._cluster.topics()}
        except AfterglowError as error:
            _log.warning("the topics of cluster %s cannot be listed now: %s", self._cluster.settings.name, error)
            return
        for name in sorted(found - self._followed.keys()):
            try:
                topic = self._topics.open(name, create=True)
            except TopicMissing:
                continue  # deleted meanwhile
            except Fenced as error:
                self._on_fenced(error)
                return
            except AfterglowError as error:
                _log.warning("%s is attached later: %s", name, error)
                continue
            _log.info("attached %s, from %s on", topic.topic, topic.layout.first)
            followed = _Followed(topic, self._clock.monotonic(), acknowledged=topic.held_from)
            self._holds.hold(str(topic.topic), followed.acknowledged)
            self._followed[name] = followed

    # --- one topic ----------------------------------------------------------------------------------------------------

    def _poll(self, followed: _Followed) -> None:
        result = PollResult.FAILED
        try:
            result = self._follow(followed)
            followed.problem = ""
        except Fenced as error:
            self._on_fenced(error)
        except (AfterglowError, TimeoutError) as error:
            followed.interval_s = min(followed.interval_s * _GROWTH, _IDLE_S)
            if (problem := f"{type(error).__name__}: {error}") != followed.problem:
                _log.warning("%s is followed later: %s", followed.topic.topic, error)
                followed.problem = problem
        except Exception:  # noqa: BLE001 - an unknown error must not end the poll of this topic for good
            _log.exception("%s is followed later", followed.topic.topic)
        finally:
            with self._count_lock:
                self._polls[result] += 1
            followed.due = self._clock.monotonic() + followed.interval_s
            followed.busy = False

    def _follow(self, followed: _Followed) -> PollResult:
        topic = followed.topic
        if followed.interval_s >= _IDLE_S and followed.seen is not None and not self._may_have_changed(followed):
            return PollResult.UNCHANGED
        ledgers = self._cluster.ledgers(topic.topic)
        if ledgers is None:
            self._drop(followed)
            return PollResult.READ
        end = self._cluster.open_end(topic.topic)
        last, open_bytes = (None, None) if end is None else end
        if self._topics.hot.from_brokers:
            last = self._last_delivered(topic)
        topic.follow(ledgers, last, open_bytes)
        seen = topic.layout.last, len(ledgers.ledgerInfo)
        changed = seen != followed.seen
        followed.seen = seen
        followed.interval_s = _ACTIVE_S if changed else min(followed.interval_s * _GROWTH, _IDLE_S)
        return PollResult.READ

    def _last_delivered(self, topic: AttachedTopic) -> Position | None:
        """The last entry that brokers deliver; behind it are markers, and entries of transactions that have not ended.

        None if no entry is delivered, or the topic is not held yet.
        """
        name = str(topic.topic)
        return self._holds.last_message_id(name).result(_PROBE_S).last if self._holds.state(name).held else None

    def _may_have_changed(self, followed: _Followed) -> bool:
        """Whether an idle topic has another last message than before; True if its broker does not say."""
        try:
            answer = self._holds.last_message_id(str(followed.topic.topic)).result(_PROBE_S).last
        except (AfterglowError, TimeoutError):
            return True
        changed = answer != followed.probed
        followed.probed = answer
        return changed

    def _drop(self, followed: _Followed) -> None:
        """Stop following a topic that the cluster has deleted. Its segments stay until ``detach``."""
        topic = followed.topic
        _log.warning("%s was deleted in the cluster; its segments stay in the tier", topic.topic)
        self._holds.release(str(topic.topic))
        self._topics.close(topic.name)
        self._followed.pop(topic.name, None)

    def _acknowledge(self, followed: _Followed) -> None:
        """Let the cluster trim what is in committed segments. Never waits; compares two objects if nothing changed."""
        info = followed.topic.info
        if info is followed.info:
            return
        end = committed_end(info.ledgerInfo)
        if end is None or end == followed.acknowledged:
            followed.info = info
            return
        try:
            self._holds.acknowledge(str(followed.topic.topic), end)
        except HotLogError as error:
            _log.debug("%s is acknowledged later: %s", followed.topic.topic, error)
            return
        followed.acknowledged = end
        followed.info = info
