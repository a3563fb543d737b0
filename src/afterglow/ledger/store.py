"""The managed ledgers of one server: opening, listing and deleting topics, and repairs at the start."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from afterglow.errors import AfterglowError, HotLogError, InvalidName, LedgerMissing, TopicClosed, TopicMissing
from afterglow.format.metadata_envelope import parse_managed_ledger
from afterglow.ledger.cache import TailCache
from afterglow.ledger.deletion import finish_deletion, mark_deleted
from afterglow.ledger.entry_source import HotSource
from afterglow.ledger.environment import Environment, SystemClock
from afterglow.ledger.keyed_states import KeyedStates
from afterglow.ledger.managed_ledger import ManagedLedger
from afterglow.ledger.offload_hooks import NoOffloadHooks, recorded_removal
from afterglow.ledger.properties import DELETING, get_pending_deletes, get_text
from afterglow.ledger.retention import Retention
from afterglow.ledger.topic_metadata import TopicMetadata
from afterglow.metadata.names import Domain, TopicName, decode_name
from afterglow.metadata.paths import MANAGED_LEDGERS, managed_ledger_path, topic_of, topics_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from afterglow.config import BrokerConfig
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.hot.log import HotLog, KeyedState
    from afterglow.ledger.entry_source import Sources
    from afterglow.ledger.environment import Clock, Executor
    from afterglow.ledger.offload_buffer import OffloadBuffer
    from afterglow.ledger.offload_hooks import OffloadHooks
    from afterglow.metadata.names import NamespaceName
    from afterglow.metadata.store import MetadataStore

_log = logging.getLogger(__name__)

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class StartReport:
    """Repairs made at a start."""

    deleted_topics: tuple[TopicName, ...]
    """Topics whose deletion a crash had interrupted."""
    swept_ledgers: tuple[int, ...]
    """Empty hot ledgers that were in no list; deleted."""
    unknown_ledgers: tuple[int, ...]
    """Hot ledgers with entries that are in no list; left in place, for an operator to inspect."""


class LedgerStore:
    """The topics of one server. Thread-safe.

    Args:
        hot: Holds the ledgers; only this process writes them.
        states: Holds states of cursors; usually the hot log itself.
        metadata: Holds the ledger lists.
        config: The broker's settings.
        executor: Runs background work.
        clock: Wall-clock and monotonic time; by default the system's.
        sources: Give the source of a topic's entries that are not in memory; by default the hot log.
        offloading: Notified of closed and removed ledgers; by default no hooks.
        buffer: Takes entries that the tail cache evicts before they are in a tier; by default none.
        retention: Retention of a topic by its managed-ledger name; by default that of the broker's settings. Called at
            each trim of a topic whose own ``retention`` is not set; may wait, and raise AfterglowError.
    """

    def __init__(
        self,
        *,
        hot: HotLog,
        states: KeyedState,
        metadata: MetadataStore,
        config: BrokerConfig,
        executor: Executor,
        clock: Clock | None = None,
        sources: Sources | None = None,
        offloading: OffloadHooks | None = None,
        buffer: OffloadBuffer | None = None,
        retention: Callable[[str], Retention] | None = None,
    ) -> None:
        self._environment = Environment(
            hot=hot,
            metadata=metadata,
            cursor_states=KeyedStates(states, "cursor"),
            swept=KeyedStates(states, "swept"),
            config=config,
            clock=clock or SystemClock(),
            executor=executor,
            cache=TailCache(config.managed_ledger_cache_size_mb * _MIB, buffer),
            sources=sources or (lambda name: HotSource(name, hot)),
            offloading=offloading or NoOffloadHooks(),
            retention=retention or (lambda _name: Retention.from_config(config)),
        )
        self._lock = threading.Lock()
        self._names: dict[str, threading.RLock] = {}
        self._open: dict[str, ManagedLedger] = {}
        self._closed = False
        # These ledgers were created by other processes: lists that are read later name all of them that have entries.
        # The change of a list that names an empty one may still arrive.
        self._found = hot.ledgers()

    @property
    def clock(self) -> Clock:
        """The clock of all topics."""
        return self._environment.clock

    @property
    def hot(self) -> HotLog:
        """The hot log."""
        return self._environment.hot

    @property
    def cache(self) -> TailCache:
        """The tail cache of all topics."""
        return self._environment.cache

    def open(self, name: str, *, create: bool = True) -> ManagedLedger:
        """An open topic; the same object until it is closed or deleted. May wait for metadata and disk.

        Args:
            name: The topic's managed-ledger name; of a partitioned topic, that of one of its partitions.
            create: Whether to create a missing topic.

        Raises:
            TopicMissing: The topic does not exist, and is not to be created.
            TopicClosed: This store was closed.
            InvalidName: The name is not that of a persistent topic.
            AfterglowError: The topic cannot be opened; see :class:`ManagedLedger`.
        """
        TopicName.from_managed_ledger_name(name)
        with self._exclusively(name):
            if (known := self.opened(name)) is not None:
                return known
            if self._closed:
                raise TopicClosed(f"cannot open {name}: the server is shutting down")
            metadata = self._metadata_of(name)
            snapshot = metadata.open(create=create)
            if get_text(snapshot.info, DELETING) is not None:
                finish_deletion(self._environment, metadata)
                metadata.open(create=create)
            opened = ManagedLedger(name, self._environment, metadata)
            with self._lock:
                self._open[name] = opened
        if self._environment.config.trigger_offload_on_topic_load:
            self._environment.offloading.on_ledger_closed(name)
        return opened

    def opened(self, name: str) -> ManagedLedger | None:
        """The topic if it is open here, else None."""
        with self._lock:
            known = self._open.get(name)
            return None if known is None or known.closed else known

    def all_opened(self) -> tuple[ManagedLedger, ...]:
        """Every topic that is open here."""
        with self._lock:
            return tuple(ledger for ledger in self._open.values() if not ledger.closed)

    def exists(self, name: str) -> bool:
        """Whether the topic exists, open or not. Waits for metadata.

        Raises:
            MetadataUnavailable: The store cannot be reached.
        """
        found = self._environment.metadata.get(managed_ledger_path(name))
        return found is not None and get_text(parse_managed_ledger(found.value), DELETING) is None

    def topics(self, namespace: NamespaceName) -> tuple[TopicName, ...]:
        """The persistent topics of a namespace, partitions included, sorted. Waits for metadata.

        Raises:
            MetadataUnavailable: The store cannot be reached.
        """
        names = self._environment.metadata.children(topics_path(namespace))
        return tuple(sorted((namespace.topic(decode_name(name)) for name in names), key=str))

    def delete(self, name: str) -> None:
        """Delete a topic with its cursors, open or not. Waits for all of it.

        Raises:
            TopicMissing: The topic does not exist.
            HotLogError: A hot copy cannot be deleted now; the next start continues.
            MetadataError: The store failed; the topic is unchanged, or the next start continues the deletion.
        """
        with self._exclusively(name):
            if (known := self.opened(name)) is not None:
                known.delete()
                return
            metadata = self._metadata_of(name)
            snapshot = metadata.open(create=False)
            with recorded_removal(self._environment.offloading, name, snapshot.info.ledgerInfo):
                metadata.update(mark_deleted)
                finish_deletion(self._environment, metadata)

    def all_topics(self) -> Iterator[TopicName]:
        """Every persistent topic, open or not, partitions included. Waits for metadata.

        Raises:
            MetadataUnavailable: The store cannot be reached.
        """
        metadata = self._environment.metadata
        for tenant in metadata.children(MANAGED_LEDGERS):
            for second in metadata.children(f"{MANAGED_LEDGERS}/{tenant}"):
                above = f"{MANAGED_LEDGERS}/{tenant}/{second}"
                for third in metadata.children(above):
                    parents = [third] if third == Domain.PERSISTENT.value else []
                    parents = parents or [f"{third}/{name}" for name in metadata.children(f"{above}/{third}")]
                    for parent in parents:
                        for name in metadata.children(f"{above}/{parent}"):
                            try:
                                yield topic_of(f"{above}/{parent}/{name}")
                            except InvalidName as error:
                                _log.warning("skipped a node in metadata: %s", error)

    def info(self, name: str) -> ManagedLedgerInfo:
        """A topic's newest metadata, open or not; not to be changed. Waits for metadata if the topic is not open.

        Raises:
            TopicMissing: The topic does not exist.
            CorruptMetadata: The metadata does not parse.
            MetadataUnavailable: The store cannot be reached.
        """
        if (known := self.opened(name)) is not None:
            return known.info
        found = self._environment.metadata.get(managed_ledger_path(name))
        if found is None:
            raise TopicMissing(f"topic {name} not found")
        return parse_managed_ledger(found.value)

    def start(self) -> StartReport:
        """Complete interrupted deletions, and sweep empty ledgers that are in no list and states without a cursor.

        To be called once after the hot log was opened; topics may be opened before and meanwhile.

        Raises:
            MetadataError: The lists could not be read; nothing is swept.
        """
        named: set[int] = set()
        deleted: list[TopicName] = []
        for topic in self.all_topics():
            found = self._environment.metadata.get(managed_ledger_path(topic.managed_ledger_name))
            if found is None:
                continue
            info = parse_managed_ledger(found.value)
            named.update(ledger.ledgerId for ledger in info.ledgerInfo)
            named.update(get_pending_deletes(info))
            if get_text(info, DELETING) is not None and self._finish_deletion(topic):
                deleted.append(topic)
        swept: list[int] = []
        unknown: list[int] = []
        for ledger_id in sorted(set(self._found) - named):
            outcome = self._sweep(ledger_id)
            if outcome is not None:
                (swept if outcome else unknown).append(ledger_id)
        self._sweep_states()
        if unknown:
            _log.warning("the hot log holds ledgers %s of no topic; they are left in place", unknown)
        return StartReport(tuple(deleted), tuple(swept), tuple(unknown))

    def tick(self) -> None:
        """Periodic work of all open topics; to be called every second or so, on a thread."""
        for ledger in self.all_opened():
            try:
                ledger.tick()
            except AfterglowError as error:
                _log.warning("periodic work of %s failed: %s", ledger.topic, error)

    def trim(self) -> None:
        """Trim every open topic. Waits for metadata."""
        for ledger in self.all_opened():
            try:
                ledger.trim()
            except AfterglowError as error:
                _log.warning("%s will be trimmed later: %s", ledger.topic, error)

    def close(self) -> None:
        """Close every topic; a second call does nothing. Hot log and metadata store stay open for the caller to close.

        Not to be called on the thread that delivers the hot log's completions.
        """
        self._closed = True
        for ledger in self.all_opened():
            ledger.close()

    def _exclusively(self, name: str) -> threading.RLock:
        with self._lock:
            return self._names.setdefault(name, threading.RLock())

    def _metadata_of(self, name: str) -> TopicMetadata:
        environment = self._environment
        return TopicMetadata(environment.metadata, managed_ledger_path(name), environment.config, environment.clock)

    def _finish_deletion(self, topic: TopicName) -> bool:
        try:
            self.delete(topic.managed_ledger_name)
        except TopicMissing:
            return False
        except AfterglowError as error:
            _log.warning("%s will be deleted at the next start: %s", topic, error)
            return False
        return True

    def _sweep(self, ledger_id: int) -> bool | None:
        """Delete a ledger that is in no list if it is empty: a ledger is appended to only after a list has it.

        It is recorded as swept before another thread deletes it: a topic whose list names it only now can be opened.

        Returns:
            Whether it is deleted; None if it is gone already.
        """
        try:
            if self._environment.hot.open(ledger_id).confirmed >= 0:
                return False
        except LedgerMissing:
            return None
        self._environment.swept.put(str(ledger_id), b"", partial(self._on_swept, ledger_id))
        return True

    def _on_swept(self, ledger_id: int, error: HotLogError | None) -> None:
        if error is None:
            self._environment.executor.submit(partial(self._delete_swept, ledger_id))
        else:
            _log_not_swept(ledger_id, error)

    def _delete_swept(self, ledger_id: int) -> None:
        hot = self._environment.hot
        try:
            if hot.open(ledger_id).confirmed < 0:  # a list may name it by now
                hot.delete(ledger_id)
        except LedgerMissing:
            return
        except HotLogError as error:
            _log_not_swept(ledger_id, error)

    def _sweep_states(self) -> None:
        states = self._environment.cursor_states
        for path in states.names():
            if self._environment.metadata.get(path) is None:
                states.put(path, None, lambda _error: None)


def _log_not_swept(ledger_id: int, error: HotLogError) -> None:
    _log.warning("the empty ledger %d, which no list names, is swept at the next start: %s", ledger_id, error)
