"""Environments of offload: services shared by all topics, and the services of one topic's segments."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

from afterglow.errors import AfterglowError, NotSupported
from afterglow.offload.block_offloader import object_metadata
from afterglow.offload.offloader import NAME_KEY, extra_metadata, recorded_location
from afterglow.offload.pending_deletes import PendingDelete, pending_delete_of_ledger
from afterglow.offload.segments.part_planner import Sizes
from afterglow.offload.segments.uncovered import find_ledger
from afterglow.offload.task import SegmentTask
from afterglow.read.driver_copies import open_driver_copy
from afterglow.tier.drivers import can_stream
from afterglow.tier.locations import location_of_record, store_options

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from threading import RLock
    from typing import TypeAlias
    from uuid import UUID

    import numpy as np
    from numpy.typing import NDArray

    from afterglow.config import BrokerConfig
    from afterglow.format.proto.afterglow_pb2 import UploadRecord
    from afterglow.hot.bookkeeper.address import BookKeeperAddress
    from afterglow.hot.pulsar.address import ClusterBrokers, PulsarAddress
    from afterglow.ledger.environment import Clock, Executor
    from afterglow.metadata.paths import AfterglowPaths
    from afterglow.metadata.store import MetadataStore
    from afterglow.offload.offloader import LedgerOffloader
    from afterglow.offload.pending_deletes import PendingDeletes
    from afterglow.offload.segments.part_planner import FrameEnd, Offsets, PlannedPart
    from afterglow.offload.topic_schedule import TopicSchedule
    from afterglow.offload.topics import HotLedgers, OffloadPolicies, OffloadTopic, OffloadTopics
    from afterglow.read.copies import LedgerCopy
    from afterglow.read.objects import TierObject
    from afterglow.storage.store import ObjectStore
    from afterglow.tier.locations import TierLocation, Tiers

    Offloaders: TypeAlias = Callable[[BrokerConfig, TierLocation | None, Tiers], LedgerOffloader]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadEnvironment:
    """Services, clock and threads shared by the offload of all topics."""

    store: OffloadTopics
    metadata: MetadataStore
    paths: AfterglowPaths
    policies: OffloadPolicies
    tiers: Tiers
    own: TierLocation | None
    """The server's own tier."""
    offloaders: Offloaders
    """Creates the offloader of a policy."""
    pending_deletes: PendingDeletes
    schedule: TopicSchedule
    executor: Executor
    clock: Clock
    lock: RLock
    """Guards state shared by topics and threads of the task runner. Never held during I/O."""
    cluster: str
    instance: str
    """Id of the server and of its hot log."""
    home: str
    """The server's home directory; empty if tasks must not read files."""
    remote: Callable[[], PulsarAddress | BookKeeperAddress | ClusterBrokers | None]
    """Address at which workers that do not share the server's disk read topics."""
    flush: Callable[[], None]
    """Makes all confirmed entries of the hot log readable for other processes."""
    hand_out: Callable[[], None]
    """Submits the waiting tasks of all topics before a poll has ended."""
    prepare_tasks: Callable[[], None]
    """Starts what tasks run on, since some will come soon; returns at once."""
    new_uuid: Callable[[], UUID]
    segment_sizes: Callable[[BrokerConfig], Sizes] | None = None
    """Sizes of blocks and parts under a policy; None: those of the policy."""
    tasks_cut_blocks: bool = False
    """Whether tasks cut the blocks of segments, since the hot log does not list the sizes of all entries."""
    check_undelivered: Callable[[str, Collection[int]], None] | None = None
    """See :class:`~afterglow.offload.service.OffloadService`."""

    def flush_for(self, name: str) -> None:
        """Flush the hot log before tasks of a topic go out. A failure is logged; tasks that need the data fail."""
        try:
            self.flush()
        except AfterglowError as error:
            _log.warning("%s: cannot flush the hot log: %s", name, error)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEnvironment:
    """Services of the segments of one topic, for as long as this process owns the topic."""

    ledger: OffloadTopic
    metadata: MetadataStore
    paths: AfterglowPaths
    clock: Clock
    instance: str
    """Id of the server, in the user metadata of every object."""
    home: str
    """The server's home directory, where tasks find hot ledgers; empty if tasks must not read files."""
    policy: Callable[[], BrokerConfig]
    """The topic's effective policy."""
    location: Callable[[], TierLocation]
    """The tier location of new segments. Raises ``ConfigError`` or ``NotSupported`` if the policy has none."""
    sizes: Callable[[BrokerConfig], Sizes]
    """Sizes of blocks and parts under a policy."""
    frame_end: FrameEnd
    offsets: Offsets | None
    """Of all frames, to plan blocks; None: tasks cut the blocks of their parts."""
    open_store: Callable[[TierLocation], ObjectStore]
    store_options: Callable[[TierLocation], Mapping[str, str]]
    """Options with which a task opens the same store."""
    driver_task: Callable[[UploadRecord, PlannedPart], SegmentTask]
    """The task that writes a whole segment through an external driver."""
    open_copy: Callable[[TierObject, int], LedgerCopy]
    """Opens the copy of a ledger that an external driver stored."""
    user_metadata: Callable[[str], Mapping[str, str]]
    """User metadata of an object in the role ``data`` or ``index``."""
    give_up: Callable[[UUID, TierLocation, str], None]
    """Records a pending delete of an object and its uploads, with a reason. Durable when it returns."""
    give_up_ledger: Callable[[int], None]
    """Records a pending delete of the objects of a failed whole-ledger attempt. Durable when it returns."""
    new_uuid: Callable[[], UUID] = uuid4
    check_undelivered: Callable[[Collection[int]], None] | None = None
    """Raises ``HotLogError`` if ledgers were trimmed, of which a broker did not deliver some entries; None: entries are
    not read from brokers of a cluster."""
    remote: Callable[[], PulsarAddress | BookKeeperAddress | ClusterBrokers | None] = lambda: None
    """Address at which tasks that do not share the server's disk read the topic."""


def segment_environment(
    ledger: OffloadTopic, env: OffloadEnvironment, policy: Callable[[], BrokerConfig]
) -> SegmentEnvironment:
    """The environment for the segments of a topic that this process owns.

    Args:
        ledger: The topic.
        env: Services shared by all topics.
        policy: Returns the topic's effective policy.
    """
    name = ledger.name
    extra = extra_metadata(name, cluster=env.cluster, instance=env.instance)

    def give_up_ledger(ledger_id: int) -> None:
        ledger_info = find_ledger(ledger.info, ledger_id)
        if ledger_info is not None and (pending := pending_delete_of_ledger(ledger_info)) is not None:
            env.pending_deletes.record(name, pending, "an attempt to offload the ledger failed")

    return SegmentEnvironment(
        ledger=ledger,
        metadata=env.metadata,
        paths=env.paths,
        clock=env.clock,
        instance=env.instance,
        home=env.home,
        policy=policy,
        location=lambda: _streaming_location(policy(), env),
        sizes=env.segment_sizes or Sizes.of_policy,
        frame_end=partial(frame_end, env.store.hot),
        offsets=None if env.tasks_cut_blocks else partial(_offsets, env.store.hot),
        open_store=lambda location: env.tiers.store(location, policy()),
        store_options=lambda location: store_options(location, policy()),
        driver_task=lambda record, part: _driver_task(record, part, extra, policy(), env),
        open_copy=lambda located, ledger_id: open_driver_copy(located, ledger_id, policy(), env.tiers),
        user_metadata=lambda role: object_metadata(role, extra),
        give_up=lambda uuid, location, reason: env.pending_deletes.record(
            name, PendingDelete(uuid, location, unfinished=True), reason
        ),
        give_up_ledger=give_up_ledger,
        new_uuid=env.new_uuid,
        check_undelivered=None if env.check_undelivered is None else partial(env.check_undelivered, name),
        remote=env.remote,
    )


def frame_end(hot: HotLedgers, ledger_id: int, entry_id: int) -> int:
    """End of a frame among the frames of a hot ledger.

    Raises:
        HotLogError: The ledger cannot be read.
        IndexError: The entry is not confirmed.
    """
    return int(hot.open(ledger_id).offsets(entry_id, entry_id)[1])


def _offsets(hot: HotLedgers, ledger_id: int, first: int, last: int) -> NDArray[np.int64]:
    return hot.open(ledger_id).offsets(first, last)


def _streaming_location(policy: BrokerConfig, env: OffloadEnvironment) -> TierLocation:
    offloader = env.offloaders(policy, env.own, env.tiers)
    location = recorded_location(offloader)
    if not can_stream(offloader):
        raise NotSupported(
            f"the offload driver {location.driver} takes whole ledgers only: set streamingOffloadEnabled=false, or "
            "managedLedgerOffloadDriver to a driver that streams"
        )
    return location


def _driver_task(
    record: UploadRecord,
    part: PlannedPart,
    extra: Mapping[str, str],
    policy: BrokerConfig,
    env: OffloadEnvironment,
) -> SegmentTask:
    """The task for the external driver to which the segment was assigned, also if the policy names another by now."""
    location = location_of_record(record.location)
    return SegmentTask(
        topic=extra[NAME_KEY],
        key=record.uuid,
        policy=replace(policy, managed_ledger_offload_driver=location.driver, origins={}),
        own=env.own,
        metadata=tuple(({**dict(location.properties), **extra}).items()),
        home=env.home,
        instance=env.instance,
        ledgers=part.ledgers,
        remote=env.remote(),
    )
