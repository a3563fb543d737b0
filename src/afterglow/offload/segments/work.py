"""The streaming half of one topic's offload: its stream, the tasks that wait or run, and what people asked for.

Pieces run on the topic's lane; what threads of the runner share is guarded by the lock of the environment.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from uuid import UUID

from afterglow.errors import AccessDenied, AfterglowError, BucketMissing, ConfigError, NotSupported
from afterglow.ledger.ledger_list import first_unoffloaded
from afterglow.offload.blocks import object_metadata
from afterglow.offload.doomed import Doomed, doomed_row
from afterglow.offload.manual import OffloadState, OffloadStatus
from afterglow.offload.offloader import can_stream, extra_metadata, recorded_place
from afterglow.offload.segments.stream import TopicStream, run_between
from afterglow.offload.segments.territory import is_assigned, to_stream
from afterglow.offload.segments.upload import SegmentRoom
from afterglow.offload.task import PartTask, SegmentTask
from afterglow.offload.window import MOST_BYTES
from afterglow.read.drivers import open_driver_copy
from afterglow.read.places import place_of_record, store_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from afterglow.config import BrokerConfig
    from afterglow.format.position import Position
    from afterglow.format.proto.afterglow_pb2 import UploadRecord
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.ledger.managed_ledger import ManagedLedger
    from afterglow.offload.environment import OffloadEnvironment
    from afterglow.offload.segments.cutting import PlannedPart
    from afterglow.offload.segments.upload import SegmentUpload
    from afterglow.offload.task import PartResult, StreamTask
    from afterglow.read.places import TierPlace
    from afterglow.storage.store import ObjectStore

_log = logging.getLogger(__name__)


_TRIES: Final = 3
"""A store may refuse once or twice in passing."""


def _is_lasting(error: AfterglowError, failures: int) -> bool:
    """Whether somebody has to put something right before a stream can go on, so that nobody should wait for it."""
    refused = isinstance(error, BucketMissing | AccessDenied) and failures >= _TRIES
    return refused or isinstance(error, ConfigError | NotSupported)


def wants_stream(info: ManagedLedgerInfo, *, streaming: bool) -> bool:
    """Whether a topic that nobody has open has something to stream, or a segment to finish."""
    rows = info.ledgerInfo
    # After a switch back the ledger that is being written must end, if a part of it is in segments.
    unended = any(streaming or row.offloadContext.offloadSegment for row in rows if not row.HasField("entries"))
    if unended or any(is_assigned(row) for row in rows):
        return True
    counts = {row.ledgerId: row.entries for row in rows}
    return bool(to_stream(rows, counts.get, streaming=streaming, writing_to=None))


class StreamWork:
    """The segments of one topic, as long as this process owns it.

    Args:
        name: The managed-ledger name.
        environment: What all topics share.
    """

    def __init__(self, name: str, environment: OffloadEnvironment) -> None:
        self._name = name
        self._env = environment
        self._policy = environment.policies.config
        self._ledger: ManagedLedger | None = None
        self._stream: TopicStream | None = None
        self._waiting: deque[StreamTask] = deque()
        self._running: dict[str, StreamTask] = {}
        self._target: Position | None = None
        self._retries_now = False
        self._status: OffloadStatus | None = None
        self._stalled = False
        self.suspect = False
        """Whether an upload is on record: after a crash perhaps one that no list names."""

    # --- what others ask ----------------------------------------------------------------------------------------------

    @property
    def uploads(self) -> tuple[SegmentUpload, ...]:
        """Segments that are assigned, as far as they are known here."""
        return () if self._stream is None else self._stream.uploads

    @property
    def error(self) -> AfterglowError | None:
        """Why the stream does not go on; None where it does."""
        return None if self._stream is None else self._stream.error

    @property
    def failed_ms(self) -> int:
        """When an attempt of the stream last failed, epoch milliseconds; 0: none has."""
        return 0 if self._stream is None else self._stream.failed_ms

    @property
    def retry_ms(self) -> int:
        """When the stream is tried again after a failure, epoch milliseconds; 0: it goes on."""
        return 0 if self._stream is None else self._stream.retry_ms

    @property
    def busy(self) -> bool:
        """Whether tasks wait or run, or a segment is assigned, or somebody waits for one."""
        with self._env.lock:
            return bool(self._waiting or self._running or self.uploads or self._target is not None or self.suspect)

    @property
    def status(self) -> OffloadStatus | None:
        """How the last offload by hand of the streaming topic went; None where there was none."""
        with self._env.lock:
            return OffloadStatus(OffloadState.RUNNING) if self._target is not None else self._status

    def due(self, now_ms: int) -> bool:
        """Whether a look would do something. Compares a few numbers."""
        return self._stream is not None and self._stream.due(now_ms)

    def writes(self, uuid: UUID) -> bool:
        """Whether a task may still write an object of that UUID."""
        with self._env.lock:
            return any(task.key == str(uuid) for task in self._running.values())

    def stalled(self, now_ms: int, patience_s: float) -> TopicStream | None:
        """The stream, told once, if a segment is assigned and nothing went forward for so long."""
        stream = self._stream
        if stream is None or not stream.uploads or stream.waits_for_entries:
            return None
        is_stalled = now_ms - stream.progress_ms >= 1000 * patience_s
        told, self._stalled = self._stalled, is_stalled
        return stream if is_stalled and not told else None

    # --- offload by hand ----------------------------------------------------------------------------------------------

    def begin_manual(self, target: Position | None, info: ManagedLedgerInfo) -> bool:
        """Begin an offload by hand, unless one is running.

        Args:
            target: Everything up to this entry is to be committed; None: nothing, which has succeeded already.
            info: The topic's list.

        Returns:
            Whether none was running.
        """
        with self._env.lock:
            if self._target is not None:
                return False
            if target is None:
                self._status = OffloadStatus(OffloadState.SUCCESS, "", first_unoffloaded(info))
                return True
            self._target = target
            return True

    def retry_now(self) -> None:
        """Have the next look try again, whatever failed before."""
        with self._env.lock:
            self._retries_now = True

    def fail_manual(self, error: AfterglowError) -> None:
        """Nothing more comes of it."""
        with self._env.lock:
            if self._target is not None:
                self._target = None
                self._status = OffloadStatus(OffloadState.ERROR, str(error))

    def _fail_switched_off(self) -> None:
        self.fail_manual(
            NotSupported(f"{self._name} does not stream any more: streamingOffloadEnabled was switched off")
        )

    def _settle_manual(self, ledger: ManagedLedger, stream: TopicStream, target: Position | None) -> None:
        """End an offload by hand that the stream knew of when it last advanced: earlier errors say nothing of it."""
        if target is None:
            return
        if stream.error is not None and _is_lasting(stream.error, stream.failures):
            self.fail_manual(stream.error)
        elif stream.leaves_out(target):
            self._fail_switched_off()
        elif stream.committed_to(target):
            with self._env.lock:
                self._target = None
                self._status = OffloadStatus(OffloadState.SUCCESS, "", first_unoffloaded(ledger.info))

    # --- pieces of work -----------------------------------------------------------------------------------------------

    def look(self, ledger: ManagedLedger, policy: BrokerConfig, *, held: bool) -> None:
        """Go forward.

        Args:
            ledger: The topic, owned by this process.
            policy: What holds for it.
            held: Whether whole ledgers are still being copied, which is waited for.

        Raises:
            Fenced: Another owner has taken over.
        """
        self._policy = policy
        if held:
            return
        if not self._concerns(ledger, policy):
            self._fail_switched_off()
            if self._stream is not None:
                self.drop()  # else it would count as due with every entry
            return
        if self._ledger is not ledger or (self.suspect and not self.uploads):
            self._begin(ledger)
        stream = self._stream
        assert stream is not None
        with self._env.lock:
            target = self._target
            retries_now, self._retries_now = self._retries_now, False
        stream.close_at(target)
        if retries_now:
            stream.retry_now()
        tasks = stream.advance(self._hand_out_now)
        self.suspect = self.suspect and stream.error is not None
        if tasks:
            self._enqueue(tasks)
        self._settle_manual(ledger, stream, target)
        self._tell_buffer(ledger, stream)
        if (at_ms := stream.next_look_ms) is not None:
            self._env.agenda.put(self._name, at_ms)

    def drop(self) -> None:
        """The topic is not ours any more, or is gone. What tasks still write is the next owner's to judge."""
        with self._env.lock:
            self._ledger = self._stream = None
            self._waiting.clear()
        if (buffer := self._env.store.cache.buffer) is not None:
            buffer.forget(self._name)

    def _tell_buffer(self, ledger: ManagedLedger, stream: TopicStream) -> None:
        """Have entries kept in memory from the first one on that is still to be uploaded."""
        # Where it is not known which that is, as while metadata cannot be reached, what is held is still needed.
        if (buffer := self._env.store.cache.buffer) is None or not stream.is_loaded:
            return
        if (begin := stream.untaken) is None:
            buffer.forget(self._name)
            return
        ids = ledger.layout.ids
        buffer.want(self._name, begin, ids[bisect_left(ids, begin.ledger_id) :])

    def _concerns(self, ledger: ManagedLedger, policy: BrokerConfig) -> bool:
        """Whether there are segments, or are to be."""
        if policy.streaming_offload_enabled or self.uploads or self.suspect:
            return True
        return any(row.offloadContext.offloadSegment for row in ledger.info.ledgerInfo)

    def _begin(self, ledger: ManagedLedger) -> None:
        env = self._env
        extra = extra_metadata(self._name, cluster=env.cluster, instance=env.instance)
        room = SegmentRoom(
            ledger=ledger,
            metadata=env.metadata,
            paths=env.paths,
            clock=env.clock,
            instance=env.instance,
            home=env.home,
            offsets=self._offsets,
            run_between=lambda begin, end: run_between(ledger.layout, begin, end),
            open_store=self._store,
            store_options=lambda place: store_options(place, self._policy),
            driver_task=lambda record, part: self._driver_task(record, part, extra),
            open_copy=lambda located, ledger_id: open_driver_copy(located, ledger_id, self._policy, env.tiers),
            user_metadata=lambda role: object_metadata(role, extra),
            give_up=self._give_up_segment,
            new_uuid=env.new_uuid,
            remote=env.remote,
        )
        with env.lock:
            self._ledger = ledger
            self._stream = TopicStream(room, lambda: self._policy, self._place, self._give_up_ledger, env.segment_sizes)

    def _offsets(self, ledger_id: int, first: int, last: int) -> NDArray[np.int64]:
        return self._env.store.hot.open(ledger_id).offsets(first, last)

    def _store(self, place: TierPlace) -> ObjectStore:
        return self._env.tiers.store(place, self._policy)

    def _place(self) -> TierPlace:
        offloader = self._env.offloaders(self._policy, self._env.own, self._env.tiers)
        place = recorded_place(offloader)
        if not can_stream(offloader):
            raise NotSupported(
                f"the offload driver {place.driver} takes whole ledgers only: set streamingOffloadEnabled=false, or "
                "managedLedgerOffloadDriver to a driver that streams"
            )
        return place

    def _driver_task(self, record: UploadRecord, part: PlannedPart, extra: Mapping[str, str]) -> SegmentTask:
        """What writes a segment through the external driver that it was assigned to, whatever the policy says today."""
        env = self._env
        place = place_of_record(record.place)
        return SegmentTask(
            topic=self._name,
            key=record.uuid,
            policy=replace(self._policy, managed_ledger_offload_driver=place.driver, origins={}),
            own=env.own,
            metadata=tuple(({**dict(place.properties), **extra}).items()),
            home=env.home,
            instance=env.instance,
            ledgers=part.ledgers,
            remote=env.remote(),
        )

    def _give_up_segment(self, uuid: UUID, place: TierPlace, reason: str) -> None:
        self._env.deletions.record(self._name, Doomed(uuid, place, unfinished=True), reason)

    def _give_up_ledger(self, ledger_id: int) -> None:
        assert self._ledger is not None
        row = next((row for row in self._ledger.info.ledgerInfo if row.ledgerId == ledger_id), None)
        doomed = None if row is None else doomed_row(row)
        if doomed is not None:
            self._env.deletions.record(self._name, doomed, "an attempt to offload the ledger failed")

    # --- tasks --------------------------------------------------------------------------------------------------------

    def next_task(self) -> tuple[StreamTask, int] | None:
        """A task to hand out, and the requests that come with it; None where none waits or enough are out."""
        with self._env.lock:
            if not self._waiting:
                return None
            task = self._waiting[0]
            out_bytes = sum(running.size_bytes for running in self._running.values())
            if out_bytes and out_bytes + task.size_bytes > MOST_BYTES:
                return None
            # With a segment's first part those of its owner: head, index, its check; of several also create, complete.
            several = isinstance(task, PartTask) and task.upload_id is not None
            owners = 0 if task.number > 1 else 5 if several else 3
            return task, 1 + owners

    def _enqueue(self, tasks: Sequence[StreamTask]) -> None:
        try:
            self._env.flush()
        except AfterglowError as error:  # whether that matters, the tasks will find out
            _log.warning("%s: the hot log was not written back: %s", self._name, error)
        with self._env.lock:
            self._waiting.extend(tasks)

    def _hand_out_now(self, tasks: Sequence[StreamTask]) -> None:
        if tasks:
            self._enqueue(tasks)
        self._env.hand_out()

    def hand_out(self, task: StreamTask) -> None:
        """The task that :meth:`next_task` gave goes out."""
        with self._env.lock:
            self._waiting.popleft()
            self._running[task.task_id] = task

    def task_ended(self, task: StreamTask, result: PartResult) -> bool:
        """Take a result, the first of each task; returns whether it was one of ours."""
        with self._env.lock:
            if self._running.pop(task.task_id, None) is None:
                return False
            if self._stream is not None:
                self._stream.told(UUID(task.key), task.number, result)
            return True
