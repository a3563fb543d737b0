"""Environment of a topic's segments: ledger, records, stores, and what makes their tasks and pending deletes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from uuid import uuid4

from afterglow.errors import NotSupported
from afterglow.offload.blocks import object_metadata
from afterglow.offload.offloader import NAME_KEY, extra_metadata, recorded_location
from afterglow.offload.pending_deletes import PendingDelete, pending_delete_of_ledger
from afterglow.offload.segments.part_planner import Sizes
from afterglow.offload.task import SegmentTask
from afterglow.read.driver_copies import open_driver_copy
from afterglow.tier.drivers import can_stream
from afterglow.tier.locations import location_of_record, store_options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    from afterglow.config import BrokerConfig
    from afterglow.format.proto.afterglow_pb2 import UploadRecord
    from afterglow.hot.pulsar.address import PulsarAddress
    from afterglow.ledger.environment import Clock
    from afterglow.ledger.managed_ledger import ManagedLedger
    from afterglow.metadata.paths import AfterglowPaths
    from afterglow.metadata.store import MetadataStore
    from afterglow.offload.segments.part_planner import Offsets, PlannedPart
    from afterglow.offload.topic_schedule import OffloadEnvironment
    from afterglow.read.copies import LedgerCopy
    from afterglow.read.objects import Located
    from afterglow.storage.store import ObjectStore
    from afterglow.tier.locations import TierLocation


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEnvironment:
    """What the segments of one topic share, as long as this process owns it."""

    ledger: ManagedLedger
    metadata: MetadataStore
    paths: AfterglowPaths
    clock: Clock
    instance: str
    """Of the server; every object carries it."""
    home: str
    """The server's home directory, where tasks find the hot ledgers; empty where they are not to look there."""
    policy: Callable[[], BrokerConfig]
    """The topic's effective policy."""
    location: Callable[[], TierLocation]
    """The tier location of new segments. Raises ``ConfigError`` or ``NotSupported`` where there is none."""
    sizes: Callable[[BrokerConfig], Sizes]
    """Sizes of blocks and parts under a policy."""
    offsets: Offsets
    open_store: Callable[[TierLocation], ObjectStore]
    store_options: Callable[[TierLocation], Mapping[str, str]]
    """What a task needs to open the same store."""
    driver_task: Callable[[UploadRecord, PlannedPart], SegmentTask]
    """The task that writes a whole segment through an external driver."""
    open_copy: Callable[[Located, int], LedgerCopy]
    """Opens what an external driver has stored of a ledger."""
    user_metadata: Callable[[str], Mapping[str, str]]
    """Of an object in the role ``data`` or ``index``."""
    give_up: Callable[[UUID, TierLocation, str], None]
    """Records that an object and its uploads are to be deleted, with the reason. Durable when it returns."""
    give_up_ledger: Callable[[int], None]
    """Records that the objects of a failed attempt at a whole ledger are to be deleted. Durable when it returns."""
    new_uuid: Callable[[], UUID] = uuid4
    remote: Callable[[], PulsarAddress | None] = lambda: None
    """Address at which tasks read the topic that do not share the server's disk."""


def segment_environment(
    ledger: ManagedLedger, env: OffloadEnvironment, policy: Callable[[], BrokerConfig]
) -> SegmentEnvironment:
    """The environment of the segments of a topic that this process owns.

    Args:
        ledger: The topic.
        env: What all topics share.
        policy: Gives its effective policy.
    """
    name = ledger.name
    extra = extra_metadata(name, cluster=env.cluster, instance=env.instance)

    def give_up_ledger(ledger_id: int) -> None:
        row = next((row for row in ledger.info.ledgerInfo if row.ledgerId == ledger_id), None)
        if row is not None and (pending := pending_delete_of_ledger(row)) is not None:
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
        offsets=lambda ledger_id, first, last: env.store.hot.open(ledger_id).offsets(first, last),
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
        remote=env.remote,
    )


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
    """The task for a segment of the external driver that it was assigned to, whatever the policy says today."""
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
