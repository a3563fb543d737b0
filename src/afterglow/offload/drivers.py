"""Offload drivers: entry points by which policies find them, and tasks that write through an external one.

A driver's package registers, in the group ``afterglow.offloaders``, under the name by which policies ask for it, a
callable ``factory(policy, own, tiers)``:

* ``policy``: the topic's :class:`~afterglow.config.BrokerConfig`; what is particular to the driver stands in its
  ``managed_ledger_extra_configurations``.
* ``own``: the server's own :class:`~afterglow.tier.locations.TierLocation`, or None.
* ``tiers``: opens stores; a driver of its own kind need not use it.

It returns a :class:`~afterglow.offload.offloader.LedgerOffloader`, and is cheap: it is called for every ledger, in the
server and in workers.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from afterglow.errors import AfterglowError, ConfigError, HotLogError, StorageError
from afterglow.format.blocks import HEADER_BYTES
from afterglow.format.frames import scan_frames
from afterglow.format.position import LedgerRange, Position
from afterglow.offload.block_offloader import BlockOffloader
from afterglow.offload.offloader import OffloadResult
from afterglow.offload.task import PartBuffer, PartResult, Route, SegmentTask, failed, open_hot_ledgers
from afterglow.storage.store import Part
from afterglow.tier.drivers import driver_factory
from afterglow.tier.locations import Tiers, is_built_in, location_of_policy

if TYPE_CHECKING:
    from afterglow.config import BrokerConfig
    from afterglow.format.blocks import BlockPlan
    from afterglow.format.statistics import BlockStatistics
    from afterglow.hot.log import ReadableLedger
    from afterglow.offload.offloader import LedgerOffloader, OffloadHandle
    from afterglow.offload.task import LedgerTask, OpenLedger
    from afterglow.tier.locations import TierLocation


def offloader_of(policy: BrokerConfig, own: TierLocation | None, tiers: Tiers) -> LedgerOffloader:
    """The offloader that a policy asks for; without a driver, that of the server's own tier.

    Raises:
        ConfigError: There is neither, the driver is not installed, or the policy lacks something that it needs.
        MissingDependency: The driver's package cannot be imported.
    """
    if policy.managed_ledger_offload_driver is None:
        if own is None:
            raise ConfigError("no tier to offload to: set managedLedgerOffloadDriver, or start with --tier")
        return BlockOffloader(own, policy, tiers)
    made = driver_factory(policy.managed_ledger_offload_driver)(policy, own, tiers)
    return cast("LedgerOffloader", made)


def offloader_at(location: TierLocation, policy: BrokerConfig, tiers: Tiers) -> LedgerOffloader:
    """The offloader that wrote something to a place once, whatever the policy asks for today.

    Raises:
        ConfigError: The driver is not installed, or the policy lacks something that it needs.
        MissingDependency: The driver's package cannot be imported.
    """
    if is_built_in(location.driver):
        return BlockOffloader(location, policy, tiers)
    return offloader_of(replace(policy, managed_ledger_offload_driver=location.driver), None, tiers)


def block_offloader(policy: BrokerConfig, own: TierLocation | None, tiers: Tiers) -> LedgerOffloader:
    """What the built-in drivers are registered with.

    Raises:
        ConfigError: The policy lacks something that the driver needs.
    """
    return BlockOffloader(location_of_policy(policy, own), policy, tiers)


_tiers = Tiers()


def run_driver_task(task: LedgerTask | SegmentTask, *, open_ledger: OpenLedger | None = None) -> PartResult:
    """Do a task; see :func:`~afterglow.offload.task.run_part`. How much memory it takes is up to the driver.

    Whatever an attempt leaves behind is deleted by the topic's owner, on record: a task that failed may be a slow copy
    of one that succeeded, and must not take away what that has written.
    """
    route: Route | None = None
    started = time.perf_counter()
    part: Part | None = None
    statistics: tuple[tuple[BlockStatistics, ...], ...] = ()
    try:
        with ExitStack() as held:
            if open_ledger is None:
                open_ledger, route = held.enter_context(open_hot_ledgers(task, _ranges(task)))
            if isinstance(task, SegmentTask):
                statistics = _write_segment(task, open_ledger)
                part = Part(task.number, task.size_bytes, "", None)
            else:
                _write_ledger(task, held.enter_context(open_ledger(task.ledger_id)))
    except AfterglowError as error:
        return failed(task, error)
    except Exception as error:  # noqa: BLE001 - a driver's own; raised, it would end the Spark job of all other tasks
        driver = task.policy.managed_ledger_offload_driver
        return failed(task, StorageError(f"offload driver {driver} failed with {error!r}"))
    seconds = time.perf_counter() - started
    file_bytes = task.entry_bytes if route is Route.FILES else 0
    return PartResult(task.task_id, part, statistics, None, upload_seconds=seconds, route=route, file_bytes=file_bytes)


def _ranges(task: LedgerTask | SegmentTask) -> list[LedgerRange]:
    if isinstance(task, SegmentTask):
        return [ledger_part.entries for ledger_part in task.ledgers]
    return [LedgerRange(task.ledger_id, 0, task.entries - 1)]


def _write_ledger(task: LedgerTask, ledger: ReadableLedger) -> None:
    if ledger.confirmed + 1 != task.entries:
        raise HotLogError(
            f"ledger {task.ledger_id} has {ledger.confirmed + 1} entries as seen here, and {task.entries} are "
            "to be offloaded; the server has not written it back yet"
        )
    offloader = offloader_of(task.policy, task.own, _tiers)
    offloader.offload(ledger, task.uuid, dict(task.metadata))


def _write_segment(task: SegmentTask, open_ledger: OpenLedger) -> tuple[tuple[BlockStatistics, ...], ...]:
    """Offer the entries of a segment in order; returns what was measured of each of its blocks, for each ledger."""
    offloader = offloader_of(task.policy, task.own, _tiers)
    handle = offloader.streaming_offload(task.uuid, dict(task.metadata))
    statistics = []
    try:
        for ledger_part in task.ledgers:
            with open_ledger(ledger_part.ledger_id) as ledger:
                statistics.append(tuple(_offer_block(handle, ledger, plan) for plan in ledger_part.plans))
        stored = handle.result()
    except BaseException:
        handle.abort()
        raise
    wanted = OffloadResult(task.uuid, task.begin, task.end)
    if stored != wanted:
        raise StorageError(
            f"offload driver {task.policy.managed_ledger_offload_driver}: segment {task.uuid} should hold the entries "
            f"{wanted.begin} to {wanted.end}, and the driver stored {stored.begin} to {stored.end} as {stored.uuid}"
        )
    return tuple(statistics)


def _offer_block(handle: OffloadHandle, ledger: ReadableLedger, plan: BlockPlan) -> BlockStatistics:
    """Offer the entries of one block, waiting where the driver has no room for them."""
    buffer = PartBuffer(plan.header.block_bytes)
    statistics = buffer.add(ledger, plan)
    frames = buffer.data[HEADER_BYTES:]
    first, count = plan.header.first_entry_id, plan.entries
    offsets = scan_frames(frames, first).offsets
    taken = 0
    while True:
        rest = frames[int(offsets[taken]) :]
        taken += handle.offer_range(rest, Position(ledger.ledger_id, first + taken), count - taken)
        if taken == count:
            return statistics
        if not handle.wait() and not handle.can_offer(int(offsets[taken + 1] - offsets[taken])):
            raise StorageError(
                f"the offload driver refuses entry {ledger.ledger_id}:{first + taken} though nothing is under way: its "
                "handle must take every entry of a segment"
            )
