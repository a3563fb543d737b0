"""Offload service of one server: notified of ledger events, driven by a tick, called by the admin API.

The service has no threads of its own, does not sleep, and reads no clock but the one that it is given. A tick never
waits: blocking work goes to the executor, one item at a time for each topic, so that a slow topic never delays another;
tasks of all topics go to the runner together, as one job. The durable state is in metadata; the state in memory can be
lost at any moment.

A topic is polled for a reason: a ledger was closed, a policy was changed, an operator asked, a due time was reached, a
retry is due. In addition, all topics in metadata are scanned periodically, open or not, so that none is missed.
"""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4
from weakref import WeakSet

from afterglow.errors import AfterglowError, OffloadInProgress, TopicMissing
from afterglow.format.objects import named_uuids
from afterglow.format.position import LATEST, Position
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
from afterglow.metadata.paths import managed_ledger_path
from afterglow.offload import planner
from afterglow.offload.backoff import report_task_result
from afterglow.offload.drivers import offloader_of
from afterglow.offload.environment import OffloadEnvironment
from afterglow.offload.explain import explain_topic
from afterglow.offload.ledger_scan import scan_ledgers
from afterglow.offload.pending_deletes import (
    PendingDeletes,
    pending_delete_of_attempt,
    pending_delete_of_ledger,
    pending_deletes_of_segments,
    pending_deletes_of_topic,
)
from afterglow.offload.segments.listing import SegmentStatus, list_records, list_segments
from afterglow.offload.segments.rollback import plan_rollback, roll_back
from afterglow.offload.segments.uncovered import assigned_from
from afterglow.offload.status import ManualOffload, check_position, last_entry_before, statistics_of
from afterglow.offload.task import RouteBytes
from afterglow.offload.task_dispatch import TaskDispatcher
from afterglow.offload.topic_offload import TopicOffload
from afterglow.offload.topic_schedule import SerialExecutor, TopicSchedule
from afterglow.tier.locations import location_of_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from uuid import UUID

    from afterglow.config import BrokerConfig
    from afterglow.format.proto.afterglow_pb2 import SegmentRecord
    from afterglow.hot.bookkeeper.address import BookKeeperAddress
    from afterglow.hot.pulsar.address import ClusterBrokers, PulsarAddress
    from afterglow.ledger.environment import Clock, Executor
    from afterglow.metadata.paths import AfterglowPaths
    from afterglow.metadata.store import MetadataStore
    from afterglow.offload.environment import Offloaders
    from afterglow.offload.explain import Explanation
    from afterglow.offload.ledger_scan import LedgerScan
    from afterglow.offload.segments.listing import SegmentView
    from afterglow.offload.segments.part_planner import Sizes
    from afterglow.offload.segments.rollback import Rollback
    from afterglow.offload.status import OffloadStatistics, OffloadStatus
    from afterglow.offload.task import PartResult, Task
    from afterglow.offload.task_dispatch import TaskRunner
    from afterglow.offload.topics import OffloadPolicies, OffloadTopic, OffloadTopics
    from afterglow.storage.health import Outage
    from afterglow.tier.locations import TierLocation, Tiers

_log = logging.getLogger(__name__)

_REMOVED = "the ledger left the topic's list"
"""Reason of pending deletes, stored with them."""


class OffloadService:
    """Offloads ledgers; an :class:`~afterglow.ledger.offload_hooks.OffloadHooks`. Thread-safe.

    Args:
        metadata: Holds ledger lists and records.
        paths: Paths of the records.
        policies: Effective policies of topics.
        tiers: Opens stores.
        own: The server's own tier, for policies that name no driver.
        runner: Runs tasks. The caller closes it.
        executor: Runs blocking work.
        clock: The clock.
        instance: Id of the server and of its hot log.
        home: The server's home directory, where tasks find hot ledgers; empty if tasks must not read files.
        remote: Returns the address at which tasks that do not share the server's disk read topics; None: they cannot.
        flush: Makes all confirmed entries of the hot log readable for other processes; called before tasks go out.
        offloaders: Creates the offloader of a policy; by default through the entry points of drivers.
        new_uuid: Names attempts and segments.
        segment_sizes: Sizes of blocks and parts under a policy; by default those of the policy.
        tasks_cut_blocks: Whether tasks cut the blocks of segments, since the hot log does not list the sizes of all
            entries.
        ledger_list: Path of a topic's ledger list, by the managed-ledger name.
        check_undelivered: For entries that are read from brokers of a cluster, whose sizes are not known before, and
            of which some are not delivered: raises ``HotLogError`` if such ledgers of a topic, given by its
            managed-ledger name, were trimmed. None: entries are read otherwise.
    """

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        paths: AfterglowPaths,
        policies: OffloadPolicies,
        tiers: Tiers,
        own: TierLocation | None,
        runner: TaskRunner,
        executor: Executor,
        clock: Clock,
        instance: str,
        home: str,
        remote: Callable[[], PulsarAddress | BookKeeperAddress | ClusterBrokers | None] = lambda: None,
        flush: Callable[[], None] = lambda: None,
        offloaders: Offloaders = offloader_of,
        new_uuid: Callable[[], UUID] = uuid4,
        segment_sizes: Callable[[BrokerConfig], Sizes] | None = None,
        tasks_cut_blocks: bool = False,
        ledger_list: Callable[[str], str] = managed_ledger_path,
        check_undelivered: Callable[[str, Collection[int]], None] | None = None,
    ) -> None:
        self._policies = policies
        self._tiers = tiers
        self._metadata = metadata
        self._paths = paths
        self._clock = clock
        self._lock = threading.RLock()
        self._tier_scan = threading.Lock()
        self._schedule = TopicSchedule()
        self._dispatcher = TaskDispatcher(runner, clock, self._lock, self._on_task_result)
        self._pending_deletes = PendingDeletes(
            metadata=metadata,
            paths=paths,
            policies=policies,
            tiers=tiers,
            clock=clock,
            instance=instance,
            is_writing=self._is_writing,
            ledger_list=ledger_list,
        )
        self._environment = partial(
            OffloadEnvironment,
            metadata=metadata,
            paths=paths,
            policies=policies,
            tiers=tiers,
            own=own,
            offloaders=offloaders,
            pending_deletes=self._pending_deletes,
            schedule=self._schedule,
            executor=executor,
            clock=clock,
            lock=self._lock,
            cluster=paths.cluster,
            instance=instance,
            home=home,
            remote=remote,
            flush=flush,
            hand_out=self._hand_out,
            prepare_tasks=runner.prepare,
            new_uuid=new_uuid,
            segment_sizes=segment_sizes,
            tasks_cut_blocks=tasks_cut_blocks,
            check_undelivered=check_undelivered,
        )
        self._scans = SerialExecutor("the scan of all topics", executor)
        self._topics: dict[str, TopicOffload] = {}
        """Topics with state in this process, by managed-ledger name."""
        self._seen_open: WeakSet[OffloadTopic] = WeakSet()
        self._env: OffloadEnvironment | None = None
        self._polls = 0
        """Number of polls and scans that are queued or run."""
        self._queued: set[str] = set()
        """Topics whose poll has not begun."""
        self._scan_at = 0.0
        self._is_scanning = False
        self._started = False
        self._closed = False
        self._read_bytes = RouteBytes()
        self._file_bytes = 0
        policies.on_change(lambda _namespace: self._scan_soon())

    def attach(self, store: OffloadTopics) -> None:
        """Set the store of topics, which was made with this service; before anything else."""
        self._env = self._environment(store=store)

    def start(self) -> None:
        """Start: the next tick replays pending deletes and scans all topics. Never waits."""
        with self._lock:
            self._started = True
            self._scan_at = self._clock.monotonic()
        if self._policies.config.streaming_offload_enabled:
            self._ready.prepare_tasks()

    def close(self) -> None:
        """Hand out no further task, and begin nothing. Work in progress ends, or is repeated after the next start."""
        with self._lock:
            self._closed = True

    # --- the tick -----------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Begin all due work. To be called every ``offloadTickIntervalMillis``; never waits."""
        with self._lock:
            if self._closed or not self._started:
                return
            scan = not self._is_scanning and self._clock.monotonic() >= self._scan_at
            if scan:
                self._is_scanning = True
                self._scan_at = self._clock.monotonic() + self._policies.config.retention_check_interval_in_seconds
                self._polls += 1
        if scan:
            self._scans.submit(self._scan_topics)
        for tier in self._tiers.health.tick():
            with self._lock:
                topics = list(self._topics.values())
            for topic in topics:
                topic.on_recovery(tier)
        self._schedule_streams()
        self._poll_topics(self._schedule.take_due(self._clock.now_ms()))
        self._hand_out()
        self._dispatcher.log_stalled(self._busy_topics(), self._policies.config.offload_stall_warning_seconds)

    def _schedule_streams(self) -> None:
        """Schedule topics that were opened since the last tick, and those whose stream is due."""
        now_ms = self._clock.now_ms()
        for ledger in self._store.all_opened():
            topic = self._topics.get(ledger.name)
            if ledger not in self._seen_open:
                self._seen_open.add(ledger)
                topic = topic or self._topic(ledger.name)
                topic.executor.submit(partial(self._on_open, topic))
            elif topic is not None and topic.is_stream_due(now_ms):
                self._schedule.put(ledger.name, 0)

    def _on_open(self, topic: TopicOffload) -> None:
        """Schedule a topic that was opened, if it streams."""
        try:
            if self._policies.of(topic.name).streaming_offload_enabled:
                self._schedule.put(topic.name, 0)
        except AfterglowError as error:
            _log.warning("%s is polled later: %s", topic.name, error)

    def _poll_topics(self, names: Sequence[str]) -> None:
        """Poll topics; a poll that is queued already covers them."""
        with self._lock:
            new = [name for name in names if name not in self._queued]
            self._queued.update(new)
            self._polls += len(new)
            # Under the lock: a topic that a scan dropped in between would be polled, and its tasks never handed out.
            for topic in map(self._topic, new):
                topic.executor.submit(partial(self._poll, topic))

    def _poll(self, topic: TopicOffload) -> None:
        with self._lock:
            self._queued.discard(topic.name)
        try:
            topic.poll()
        finally:
            self._end_poll()

    def _end_poll(self) -> None:
        """Hand out the tasks of all polls of a tick as one job, once the last poll has ended."""
        with self._lock:
            self._polls -= 1
            if self._polls or self._closed:
                return
        self._hand_out()

    def _scan_topics(self) -> None:
        """Find topics that need a poll, open or not, and those with pending deletes or uploads on record."""
        try:
            for name in self._pending_deletes.names():
                self._topic(name).schedule_deletes()
            for name in self._pending_deletes.uploading():
                self._topic(name).has_upload_records = True
            existing = set()
            for topic in self._store.all_topics():
                existing.add(topic.managed_ledger_name)
                self._scan_topic(topic.managed_ledger_name)
            for name in self._drop_idle_topics(existing):
                self._dispatcher.drop(name)
        except AfterglowError as error:
            _log.warning("the scan of all topics failed and is retried later: %s", error)
        finally:
            with self._lock:
                self._is_scanning = False
        self._poll_topics(self._schedule.take_due(self._clock.now_ms()))
        self._end_poll()

    def _scan_topic(self, name: str) -> None:
        try:
            policy = self._policies.of(name)
            opened = self._store.opened(name)
            needs_poll = self._peek(name).needs_poll(
                self._store.info(name),
                policy,
                opened=opened is not None,
                writing_to=None if opened is None else opened.writing_to,
            )
        except TopicMissing:
            return
        except AfterglowError as error:
            _log.warning("%s is polled later: %s", name, error)
            return
        if needs_poll:
            self._schedule.put(name, 0)

    def _scan_soon(self) -> None:
        with self._lock:
            self._scan_at = self._clock.monotonic()

    def _hand_out(self) -> None:
        if not self._closed:
            self._dispatcher.hand_out(self._busy_topics())

    def _on_task_result(self, task: Task, result: PartResult) -> None:
        report_task_result(self._tiers.health, task, result)
        with self._lock:
            self._read_bytes = self._read_bytes.plus(result.route, task.size_bytes)
            self._file_bytes += result.file_bytes
        if self._topic(task.topic).on_task_result(task, result) and not self._closed:
            self._poll_topics([task.topic])

    # --- topics -------------------------------------------------------------------------------------------------------

    def _topic(self, name: str) -> TopicOffload:
        """The state of a topic, created if this process has none."""
        with self._lock:
            found = self._topics.get(name)
            if found is None:
                found = self._topics[name] = TopicOffload(name, self._ready)
            return found

    def _peek(self, name: str) -> TopicOffload:
        """The state of a topic, for a query; if this process has none, it is created and not kept."""
        with self._lock:
            return self._topics.get(name) or TopicOffload(name, self._ready)

    def _busy_topics(self) -> list[TopicOffload]:
        """Topics with work in progress."""
        with self._lock:
            return [topic for topic in self._topics.values() if len(topic.ledgers) or topic.is_streaming]

    def _drop_idle_topics(self, existing: Collection[str]) -> list[str]:
        """Drop the state of deleted topics, and of topics with no state to report; returns both."""
        with self._lock:
            dropped = [
                name
                for name, topic in self._topics.items()
                if topic.can_be_dropped or (name not in existing and topic.is_quiet)
            ]
            for name in dropped:
                self._topics.pop(name).drop()
            return dropped

    # --- ledger events ------------------------------------------------------------------------------------------------

    def is_in_use(self, name: str, ledger_id: int) -> bool:
        """Whether a ledger is being copied, so that it must stay in the ledger list for now."""
        topic = self._topics.get(name)
        opened = self._store.opened(name)
        assigned = None if opened is None else assigned_from(opened.info)
        if assigned is not None and ledger_id >= assigned:
            return True
        return topic is not None and topic.ledgers.is_copying(ledger_id)

    def on_ledger_closed(self, name: str) -> None:
        """A ledger was closed: poll its topic at the next tick."""
        self._schedule.put(name, 0)

    def before_removal(self, name: str, ledger_infos: Sequence[ManagedLedgerInfo.LedgerInfo]) -> None:
        """Record pending deletes of the copies of these ledgers, and cancel their attempts.

        Raises:
            MetadataError: Not all pending deletes are recorded.
        """
        ids = {ledger_info.ledgerId for ledger_info in ledger_infos}
        staying = [ledger_info for ledger_info in self._store.info(name).ledgerInfo if ledger_info.ledgerId not in ids]
        kept = named_uuids(ManagedLedgerInfo(ledgerInfo=staying))
        pending = [pending_delete_of_attempt(attempt) for attempt in self._topic(name).begin_removal(ids)]
        pending += [found for found in map(pending_delete_of_ledger, ledger_infos) if found is not None]
        pending += pending_deletes_of_segments(name, ledger_infos, kept, self._metadata, self._paths)
        if not staying:  # the topic is deleted, and with it segments that no ledger list names yet
            pending += pending_deletes_of_topic(name, self._metadata, self._paths)
        pending.sort(key=lambda each: each.unfinished)  # the last of one UUID counts: an unfinished one, if any
        for each in {each.uuid: each for each in pending}.values():
            self._pending_deletes.record(name, each, _REMOVED)

    def after_removal(self, name: str) -> None:
        """Ledgers were removed from the ledger list, or were kept after an error: carry out pending deletes."""
        self._topic(name).end_removal()

    def _is_writing(self, name: str, uuid: UUID) -> bool:
        topic = self._topics.get(name)
        return topic is not None and topic.is_writing(uuid)

    # --- requests -----------------------------------------------------------------------------------------------------

    def offload_prefix(self, name: str, position: Position) -> None:
        """Begin to offload the entries before a position. Waits for metadata.

        Without streaming these are the closed ledgers before that of the position. A topic that streams commits
        segments up to the entry before the position: the live segment closes there. For such a topic, the first entry
        of the newest ledger means the whole topic: ``pulsar-admin topics offload -s 0`` sends it, since pulsar-admin
        knows whole, closed ledgers only. To offload only the ledgers before the newest one, give the position after
        their last entry.

        Args:
            name: The managed-ledger name.
            position: An entry, or the position after the last entry of a ledger, or ``LATEST``.

        Raises:
            OffloadInProgress: The previous manual offload still runs.
            InvalidPosition: The topic has no such position.
            TopicMissing: No such topic exists.
            AfterglowError: The topic cannot be opened.
        """
        ledger = self._store.open(name, create=False)
        streaming = self._policies.of(name).streaming_offload_enabled
        if not streaming:
            ledger.commit_ends()
        ledger_infos, layout = ledger.info.ledgerInfo, ledger.layout
        ids = {ledger_info.ledgerId for ledger_info in ledger_infos}.union(layout.ids)
        check_position(str(ledger.topic), ids, layout, position)
        if streaming and position == Position(max(ids, default=-1), 0):
            position = LATEST
        candidates = {
            ledger_info.ledgerId
            for ledger_info in ledger_infos
            if ledger_info.ledgerId < position.ledger_id and planner.is_candidate(ledger_info, ledger.writing_to)
        }
        with self._lock:  # a scan drops idle topics
            topic = self._topic(name)
            if streaming:
                begun = topic.begin_manual_segments(last_entry_before(layout, position), ledger.info)
            else:
                begun = topic.begin_manual(ManualOffload(position.ledger_id, candidates))
        if not begun:
            raise OffloadInProgress(f"a manual offload of {name} is already in progress; wait until it has ended")

    def status(self, name: str) -> OffloadStatus:
        """Status of the last manual offload in this process. Never waits."""
        return self._peek(name).status

    def explain(self, name: str) -> tuple[Explanation, ...]:
        """Explain the offload state of each ledger of a topic, oldest first. May wait for metadata.

        Raises:
            TopicMissing: No such topic exists.
            MetadataError: Its metadata cannot be read.
        """
        return explain_topic(self._peek(name), self._ready, self._policies.of(name))

    def segments(self, name: str) -> tuple[SegmentView, ...]:
        """The segments of a topic in the order of positions. Waits for metadata.

        Raises:
            TopicMissing: No such topic exists.
            CorruptMetadata: A record cannot be parsed.
            MetadataUnavailable: The store cannot be reached.
        """
        # Records are read first: a segment that the ledger list does not name any more is about to be deleted.
        found = list_segments(self._metadata, self._paths, name, self._outage_text)
        named = {str(uuid) for uuid in named_uuids(self._store.info(name))}
        return tuple(view for view in found if view.status is not SegmentStatus.OFFLOADED or view.id in named)

    def segment_records(self, name: str) -> tuple[SegmentRecord, ...]:
        """The records of a topic's segments whose objects are complete. Waits for metadata.

        Raises:
            CorruptMetadata: A record cannot be parsed.
            MetadataUnavailable: The store cannot be reached.
        """
        return tuple(list_records(self._metadata, self._paths, name))

    def delete_segments(self, name: str, *, dry_run: bool = True, lose_data: bool = False) -> Rollback:
        """Delete all segments of a topic; see :mod:`afterglow.offload.segments.rollback`.

        Returns once the pending deletes are recorded; objects are deleted later. Waits for metadata and the hot log.

        Args:
            name: The managed-ledger name.
            dry_run: Only return the plan.
            lose_data: Whether ledgers without a hot copy may be removed.

        Raises:
            TopicMissing: No such topic exists.
            ConfigError: The topic streams.
            OffloadInProgress: A segment is assigned and not committed.
            WouldLoseData: Ledgers have no hot copy, and ``lose_data`` is not set.
            AfterglowError: The topic cannot be opened, read or changed.
        """
        plan = plan_rollback(
            name,
            self._store.info(name),
            self._policies.of(name),
            hot=self._store.hot,
            metadata=self._metadata,
            paths=self._paths,
        )
        if dry_run:
            return plan
        try:
            return roll_back(
                self._store.open(name, create=False),
                plan,
                lose_data=lose_data,
                metadata=self._metadata,
                paths=self._paths,
                record=partial(self._pending_deletes.record, name, reason="the topic was taken out of its segments"),
            )
        finally:
            self._topic(name).schedule_deletes()

    def _outage_text(self, location: TierLocation) -> str | None:
        outage = self._tiers.health.outage(str(location))
        return None if outage is None else f"{outage.sentence(self._clock.now_ms())}: {outage.error}"

    def statistics(self, name: str) -> OffloadStatistics:
        """Statistics of a topic's offload. May wait for metadata and a disk.

        Raises:
            TopicMissing: No such topic exists.
            MetadataError: Its metadata cannot be read.
        """
        return statistics_of(self._peek(name), self._store.info(name), self._store.hot)

    def scan(self, policy: BrokerConfig, limit: int, timeout_s: float) -> LedgerScan:
        """Scan the tier of a policy for objects of whole ledgers: at most ``limit``, within ``timeout_s``.

        Waits for the tier.

        Raises:
            OffloadInProgress: Another scan is running: each holds a thread that reads of topics need.
            ConfigError: The policy names no tier.
            StoreError: The tier cannot be read.
            MetadataError: Metadata cannot be read.
        """
        env = self._ready
        store = env.tiers.store(location_of_policy(policy, env.own), policy)
        if not self._tier_scan.acquire(blocking=False):
            raise OffloadInProgress("a scan of a tier is already in progress; wait until it has ended")
        deadline_s = time.monotonic() + timeout_s
        try:
            return scan_ledgers(
                store, env.cluster, self._store.info, limit=limit, is_expired=lambda: time.monotonic() >= deadline_s
            )
        finally:
            self._tier_scan.release()

    def tiers(self) -> dict[str, Outage | None]:
        """All tiers that this process uses, each with its outage; None: the tier is available. Never waits."""
        return self._tiers.health.all()

    def outage(self, name: str) -> Outage | None:
        """The outage of a tier that a topic uses; None if all are available. Never waits."""
        return self._peek(name).outage

    @property
    def read_bytes(self) -> RouteBytes:
        """Bytes that tasks have read and uploaded since the start, all topics together."""
        return self._read_bytes

    @property
    def file_bytes(self) -> int:
        """Bytes of entries that tasks have read from ledger files since the start, all topics together."""
        return self._file_bytes

    # --- inside -------------------------------------------------------------------------------------------------------

    @property
    def _ready(self) -> OffloadEnvironment:
        if self._env is None:
            raise AssertionError("attach() must be called first")
        return self._env

    @property
    def _store(self) -> OffloadTopics:
        return self._ready.store
