"""Offload of all topics of one engine: told what happens to ledgers, driven by a tick, asked by people.

The service has no threads of its own, does not sleep, and reads no clock but the one that it is given. A tick never
waits: work that does goes to the executor, one piece at a time for each topic, so that a slow topic never holds up
another; tasks of all topics go to the runner together, as one job. What it knows is in metadata; what it holds in
memory can be lost at any moment.

Topics are looked at for a reason: a ledger was closed, a policy was changed, somebody asked, a time has come, a try is
to be repeated. Besides that all topics of the metadata are looked at from time to time, open or not, so that a quiet
one is not forgotten.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4
from weakref import WeakSet

from afterglow.errors import AfterglowError, OffloadInProgress, TopicMissing
from afterglow.format.offload_context import named_uuids
from afterglow.format.position import LATEST, Position
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
from afterglow.offload import planner
from afterglow.offload.agenda import Agenda
from afterglow.offload.deletion import Deletions
from afterglow.offload.dispatch import Dispatcher
from afterglow.offload.doomed import doomed_attempt, doomed_records, doomed_row, doomed_segments
from afterglow.offload.drivers import offloader_of
from afterglow.offload.environment import OffloadEnvironment
from afterglow.offload.explain import explain
from afterglow.offload.lanes import Lane
from afterglow.offload.manual import ManualOffload, check_position, last_entry_before
from afterglow.offload.outages import note_result
from afterglow.offload.reach import RouteBytes
from afterglow.offload.scan import scan_ledgers
from afterglow.offload.segments.explaining import explain_streamed, view_stream
from afterglow.offload.segments.listing import SegmentStatus, list_records, list_segments
from afterglow.offload.segments.rollback import plan_rollback, roll_back
from afterglow.offload.segments.territory import assigned_from
from afterglow.offload.statistics import statistics_of
from afterglow.offload.topic import TopicOffload
from afterglow.offload.topics import Topics
from afterglow.read.places import place_of_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from afterglow.config import BrokerConfig
    from afterglow.format.proto.afterglow_pb2 import SegmentRecord
    from afterglow.hot.pulsar.address import PulsarAddress
    from afterglow.ledger.clock import Clock
    from afterglow.ledger.executor import Executor
    from afterglow.ledger.managed_ledger import ManagedLedger
    from afterglow.ledger.store import LedgerStore
    from afterglow.metadata.paths import AfterglowPaths
    from afterglow.metadata.store import MetadataStore
    from afterglow.offload.environment import Offloaders
    from afterglow.offload.explain import Explanation
    from afterglow.offload.manual import OffloadStatus
    from afterglow.offload.policies import Policies
    from afterglow.offload.runner import TaskRunner
    from afterglow.offload.scan import Scan
    from afterglow.offload.segments.cutting import Sizes
    from afterglow.offload.segments.listing import SegmentView
    from afterglow.offload.segments.rollback import Rollback
    from afterglow.offload.statistics import OffloadStatistics
    from afterglow.offload.task import PartResult, Task
    from afterglow.read.places import TierPlace, Tiers
    from afterglow.storage.health import Outage

_log = logging.getLogger(__name__)

_LEAVES = "the ledger left the topic's list"


class OffloadService:
    """Offloads ledgers; an :class:`~afterglow.ledger.offloading.Offloading`. Thread-safe.

    Args:
        metadata: Where lists and records are.
        paths: Where in it records are.
        policies: What holds for each topic.
        tiers: Open stores.
        own: The engine's own tier, for policies that name no driver.
        runner: Runs tasks. Closing it is left to its owner.
        executor: Runs pieces of work that wait.
        clock: Gives the time.
        instance: Id of the engine and of its hot log.
        home: The engine's home directory, where tasks find hot ledgers; empty where they are not to look there.
        remote: Gives the address at which tasks read topics that do not share the engine's disk; None: they cannot.
        flush: Lets other processes read all that the hot log has confirmed; called before tasks go out.
        offloaders: From a policy to whoever copies; by default through the drivers' entry points.
        new_uuid: Names attempts and segments.
        segment_sizes: How segments are cut under a policy; by default as it says.
    """

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        paths: AfterglowPaths,
        policies: Policies,
        tiers: Tiers,
        own: TierPlace | None,
        runner: TaskRunner,
        executor: Executor,
        clock: Clock,
        instance: str,
        home: str,
        remote: Callable[[], PulsarAddress | None] = lambda: None,
        flush: Callable[[], None] = lambda: None,
        offloaders: Offloaders = offloader_of,
        new_uuid: Callable[[], UUID] = uuid4,
        segment_sizes: Callable[[BrokerConfig], Sizes] | None = None,
    ) -> None:
        self._policies = policies
        self._tiers = tiers
        self._metadata = metadata
        self._paths = paths
        self._clock = clock
        self._lock = threading.RLock()
        self._scanning = threading.Lock()
        self._agenda = Agenda()
        self._dispatcher = Dispatcher(runner, clock, self._lock, self._task_ended)
        self._deletions = Deletions(
            metadata=metadata,
            paths=paths,
            policies=policies,
            tiers=tiers,
            clock=clock,
            instance=instance,
            writing=self._writes,
        )
        self._environment = partial(
            OffloadEnvironment,
            metadata=metadata,
            paths=paths,
            policies=policies,
            tiers=tiers,
            own=own,
            offloaders=offloaders,
            deletions=self._deletions,
            agenda=self._agenda,
            executor=executor,
            clock=clock,
            lock=self._lock,
            cluster=paths.cluster,
            instance=instance,
            home=home,
            remote=remote,
            flush=flush,
            hand_out=self._hand_out,
            new_uuid=new_uuid,
            segment_sizes=segment_sizes,
        )
        self._everything = Lane("the look at all topics", executor)
        self._topics = Topics(self._lock, lambda name: TopicOffload(name, self._ready))
        self._noticed: WeakSet[ManagedLedger] = WeakSet()
        self._env: OffloadEnvironment | None = None
        self._looking = 0
        self._to_look_at: set[str] = set()
        self._walk_at = 0.0
        self._walking = False
        self._started = False
        self._closed = False
        self._read_bytes = RouteBytes()
        self._file_bytes = 0
        policies.on_change(lambda _namespace: self._walk_soon())

    def attach(self, store: LedgerStore) -> None:
        """Say where topics are; before anything else, and after the store was made with this."""
        self._env = self._environment(store=store)

    def start(self) -> None:
        """Begin: at the next tick intents to delete are replayed, and all topics are looked at. Never waits."""
        with self._lock:
            self._started = True
            self._walk_at = self._clock.monotonic()

    def close(self) -> None:
        """Hand out no further task, and begin nothing. What is under way ends or is done over after the next start."""
        with self._lock:
            self._closed = True

    # --- the tick -----------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Bring everything further that is due. To be called every ``offloadTickIntervalMillis``; never waits."""
        with self._lock:
            if self._closed or not self._started:
                return
            walk = not self._walking and self._clock.monotonic() >= self._walk_at
            if walk:
                self._walking = True
                self._walk_at = self._clock.monotonic() + self._policies.config.retention_check_interval_in_seconds
                self._looking += 1
        if walk:
            self._everything.submit(self._walk)
        for tier in self._tiers.health.tick():
            for topic in self._topics.all():
                topic.on_recovery(tier)
        self._notice_entries()
        self._look_at(self._agenda.take_due(self._clock.now_ms()))
        self._hand_out()
        self._dispatcher.name_stalled(self._topics.busy(), self._policies.config.offload_stall_warning_seconds)

    def _notice_entries(self) -> None:
        """Have topics looked at that were opened since, and those whose stream has something to do."""
        now_ms = self._clock.now_ms()
        for ledger in self._store.all_opened():
            topic = self._topics.known(ledger.name)
            if ledger not in self._noticed:
                self._noticed.add(ledger)
                new = topic or self._topics.get(ledger.name)
                new.lane.submit(partial(self._notice, new))
            elif topic is not None and topic.stream.due(now_ms):
                self._agenda.put(ledger.name, 0)

    def _notice(self, topic: TopicOffload) -> None:
        """Have a topic looked at that was opened, if it streams."""
        try:
            if self._policies.of(topic.name).streaming_offload_enabled:
                self._agenda.put(topic.name, 0)
        except AfterglowError as error:
            _log.warning("%s is looked at later: %s", topic.name, error)

    def _look_at(self, names: Sequence[str]) -> None:
        """Look at topics; a look that has not begun yet will see all that another would."""
        with self._lock:
            new = [name for name in names if name not in self._to_look_at]
            self._to_look_at.update(new)
            self._looking += len(new)
            # Under the lock: a topic that a walk dropped in between would be looked at, and its tasks never handed out.
            for topic in map(self._topics.get, new):
                topic.lane.submit(partial(self._look, topic))

    def _look(self, topic: TopicOffload) -> None:
        with self._lock:
            self._to_look_at.discard(topic.name)
        try:
            topic.look()
        finally:
            self._looked()

    def _looked(self) -> None:
        """Once all looks of a tick are through, what they found goes out as one job; else with the next tick."""
        with self._lock:
            self._looking -= 1
            if self._looking or self._closed:
                return
        self._hand_out()

    def _walk(self) -> None:
        """Look which topics have a reason to be looked at, open or not, and which have intents on record."""
        try:
            for name in self._deletions.names():
                self._topics.get(name).doom()
            for name in self._deletions.uploading():
                self._topics.get(name).stream.suspect = True
            seen = set()
            for topic in self._store.all_topics():
                seen.add(topic.managed_ledger_name)
                self._consider(topic.managed_ledger_name)
            for name in self._topics.forget_others(seen):
                self._dispatcher.forget(name)
        except AfterglowError as error:
            _log.warning("not all topics were looked at, which is done again later: %s", error)
        finally:
            with self._lock:
                self._walking = False
        self._look_at(self._agenda.take_due(self._clock.now_ms()))
        self._looked()

    def _consider(self, name: str) -> None:
        try:
            policy = self._policies.of(name)
            opened = self._store.opened(name)
            wanted = self._topics.peek(name).wants_look(
                self._store.info(name),
                policy,
                opened=opened is not None,
                writing_to=None if opened is None else opened.writing_to,
            )
        except TopicMissing:
            return
        except AfterglowError as error:
            _log.warning("%s is looked at later: %s", name, error)
            return
        if wanted:
            self._agenda.put(name, 0)

    def _walk_soon(self) -> None:
        with self._lock:
            self._walk_at = self._clock.monotonic()

    def _hand_out(self) -> None:
        if not self._closed:
            self._dispatcher.hand_out(self._topics.busy())

    def _task_ended(self, task: Task, result: PartResult) -> None:
        note_result(self._tiers.health, task, result)
        with self._lock:
            self._read_bytes = self._read_bytes.plus(result.route, task.size_bytes)
            self._file_bytes += result.file_bytes
        if self._topics.get(task.topic).task_ended(task, result) and not self._closed:
            self._look_at([task.topic])

    # --- what ledgers tell --------------------------------------------------------------------------------------------

    def in_use(self, name: str, ledger_id: int) -> bool:
        """Whether a ledger is being copied, so that it must stay in the list for now."""
        topic = self._topics.known(name)
        opened = self._store.opened(name)
        assigned = None if opened is None else assigned_from(opened.info)
        if assigned is not None and ledger_id >= assigned:
            return True
        return topic is not None and topic.window.copies(ledger_id)

    def ended(self, name: str) -> None:
        """A ledger was closed: look at its topic at the next tick."""
        self._agenda.put(name, 0)

    def leaving(self, name: str, rows: Sequence[ManagedLedgerInfo.LedgerInfo]) -> None:
        """Put on record that the copies of these ledgers are to go, and stop what is under way for them.

        Raises:
            MetadataError: Not all is on record.
        """
        ids = {row.ledgerId for row in rows}
        staying = [row for row in self._store.info(name).ledgerInfo if row.ledgerId not in ids]
        kept = named_uuids(ManagedLedgerInfo(ledgerInfo=staying))
        doomed = [doomed_attempt(attempt) for attempt in self._topics.get(name).leave(ids)]
        doomed += [found for found in map(doomed_row, rows) if found is not None]
        doomed += doomed_segments(name, rows, kept, self._metadata, self._paths)
        if not staying:  # the topic goes, and with it what no list names yet
            doomed += doomed_records(name, self._metadata, self._paths)
        doomed.sort(key=lambda each: each.unfinished)  # where two say different things of one, it counts as unfinished
        for each in {each.uuid: each for each in doomed}.values():
            self._deletions.record(name, each, _LEAVES)

    def left(self, name: str) -> None:
        """Ledgers are off the list, or stay after all: carry out what is on record and may be."""
        self._topics.get(name).left()

    def _writes(self, name: str, uuid: UUID) -> bool:
        topic = self._topics.known(name)
        return topic is not None and (topic.window.writes(uuid) or topic.stream.writes(uuid))

    # --- what people ask ----------------------------------------------------------------------------------------------

    def offload_prefix(self, name: str, position: Position) -> None:
        """Offload what lies before a position; returns once it is begun. Waits for metadata.

        Without streaming these are the closed ledgers before that of the position. A topic that streams commits
        segments up to the entry before it: the live one closes there. The first entry of the newest ledger stands for
        the whole topic then. This is what ``pulsar-admin topics offload -s 0`` gives, since it knows whole ledgers
        only, and none that is open; who means the ledgers before that one gives the position behind their last entry.

        Args:
            name: The managed-ledger name.
            position: An entry, or right behind the last of a ledger, or ``LATEST``.

        Raises:
            OffloadInProgress: The one before still runs.
            InvalidPosition: The topic has no such position.
            TopicMissing: There is no such topic.
            AfterglowError: The topic cannot be opened.
        """
        ledger = self._store.open(name, create=False)
        streaming = self._policies.of(name).streaming_offload_enabled
        if not streaming:
            ledger.commit_ends()
        rows, layout = ledger.info.ledgerInfo, ledger.layout
        ids = {row.ledgerId for row in rows}.union(layout.ids)
        check_position(str(ledger.topic), ids, layout, position)
        if streaming and position == Position(max(ids, default=-1), 0):
            position = LATEST
        candidates = {
            row.ledgerId
            for row in rows
            if row.ledgerId < position.ledger_id and planner.is_candidate(row, ledger.writing_to)
        }
        with self._lock:  # a walk drops topics that have nothing under way
            topic = self._topics.get(name)
            if streaming:
                begun = topic.begin_stream_manual(last_entry_before(layout, position), ledger.info)
            else:
                begun = topic.begin_manual(ManualOffload(position.ledger_id, candidates))
        if not begun:
            raise OffloadInProgress(f"an offload of {name} by hand is already in progress; wait until it has ended")

    def status(self, name: str) -> OffloadStatus:
        """How the last offload by hand went, in this process. Never waits."""
        return self._topics.peek(name).status

    def explain(self, name: str) -> tuple[Explanation, ...]:
        """Why each ledger of a topic is where it is, oldest first. May wait for metadata.

        Raises:
            TopicMissing: There is no such topic.
            MetadataError: Its metadata cannot be read.
        """
        env = self._ready
        opened = env.store.opened(name)
        policy = self._policies.of(name)
        obstacle = outage = None
        try:
            outage = env.tiers.health.outage(str(env.offloaders(policy, env.own, env.tiers).place))
        except AfterglowError as error:
            obstacle = str(error)
        topic = self._topics.peek(name)
        work = replace(topic.work, outage=outage)
        view = view_stream(name, env, topic.stream, policy=policy, obstacle=obstacle, work=work)
        return explain(
            name,
            env.store.info(name),
            writing_to=None if opened is None else opened.writing_to,
            policy=policy,
            obstacle=obstacle,
            work=work,
            now_ms=self._clock.now_ms(),
            streamed=partial(explain_streamed, view),
        )

    def segments(self, name: str) -> tuple[SegmentView, ...]:
        """The segments of a topic in the order of positions. Waits for metadata.

        Raises:
            TopicMissing: There is no such topic.
            CorruptMetadata: A record does not parse.
            MetadataUnavailable: The store cannot be reached.
        """
        # The records first: one that is in no list any more is about to be deleted, and is nobody's concern.
        found = list_segments(self._metadata, self._paths, name, self._outage_text)
        named = {str(uuid) for uuid in named_uuids(self._store.info(name))}
        return tuple(view for view in found if view.status is not SegmentStatus.OFFLOADED or view.id in named)

    def segment_records(self, name: str) -> tuple[SegmentRecord, ...]:
        """The records of a topic's segments whose objects are complete. Waits for metadata.

        Raises:
            CorruptMetadata: A record does not parse.
            MetadataUnavailable: The store cannot be reached.
        """
        return tuple(list_records(self._metadata, self._paths, name))

    def delete_segments(self, name: str, *, dry_run: bool = True, lose_data: bool = False) -> Rollback:
        """Take a topic out of its segments, and delete these; see :mod:`afterglow.offload.segments.rollback`.

        Returns once it is on record; objects follow. Waits for metadata and the hot log.

        Args:
            name: The managed-ledger name.
            dry_run: Only say what would go.
            lose_data: Whether ledgers may leave the list whose hot copy is gone.

        Raises:
            TopicMissing: There is no such topic.
            ConfigError: The topic streams.
            OffloadInProgress: A segment is on its way.
            WouldLoseData: Hot copies are gone, and that is not allowed.
            AfterglowError: The topic cannot be opened, or read, or changed.
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
                record=partial(self._deletions.record, name, reason="the topic was taken out of its segments"),
            )
        finally:
            self._topics.get(name).doom()

    def _outage_text(self, place: TierPlace) -> str | None:
        outage = self._tiers.health.outage(str(place))
        return None if outage is None else f"{outage.sentence(self._clock.now_ms())}: {outage.error}"

    def statistics(self, name: str) -> OffloadStatistics:
        """What is in the tier of a topic. May wait for metadata and a disk.

        Raises:
            TopicMissing: There is no such topic.
            MetadataError: Its metadata cannot be read.
        """
        return statistics_of(self._topics.peek(name), self._store.info(name), self._store.hot)

    def policy(self, name: str) -> BrokerConfig:
        """What holds for a topic now. May wait for metadata.

        Raises:
            MetadataError: The policies cannot be read.
        """
        return self._policies.of(name)

    def scan(self, policy: BrokerConfig, most: int, seconds: float) -> Scan:
        """What the tier of a policy holds of whole ledgers: up to so many, found within that time. Waits for the tier.

        Raises:
            OffloadInProgress: Another such look is being made: each holds a thread that reads of topics need.
            ConfigError: The policy names no tier.
            StoreError: The tier cannot be read.
            MetadataError: Metadata cannot be read.
        """
        env = self._ready
        store = env.tiers.store(place_of_policy(policy, env.own), policy)
        if not self._scanning.acquire(blocking=False):
            raise OffloadInProgress("a tier is being scanned for another call: ask again when that has ended")
        ends_s = time.monotonic() + seconds
        try:
            return scan_ledgers(
                store, env.cluster, self._store.info, most=most, expired=lambda: time.monotonic() >= ends_s
            )
        finally:
            self._scanning.release()

    def tiers(self) -> dict[str, Outage | None]:
        """All tiers that this process uses, each with its outage; None: it is available. Never waits."""
        return self._tiers.health.all()

    def outage(self, name: str) -> Outage | None:
        """The outage of a tier that a topic uses; None where all are available. Never waits."""
        return self._topics.peek(name).outage

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
            raise AssertionError("attach() comes before all else")
        return self._env

    @property
    def _store(self) -> LedgerStore:
        return self._ready.store
