"""Offload drivers: the offloader of a policy, found by entry point, and tasks that write through an external driver.

A driver's package registers a callable ``factory(policy, own, tiers)`` in the entry point group
``afterglow.offloaders``, under the name that policies use:

* ``policy``: the topic's :class:`~afterglow.config.BrokerConfig`; settings of the driver itself are in its
  ``managed_ledger_extra_configurations``.
* ``own``: the server's own :class:`~afterglow.tier.locations.TierLocation`, or None.
* ``tiers``: opens stores; an external driver need not use it.

The callable returns a :class:`~afterglow.offload.offloader.LedgerOffloader`, and must be cheap: it is called for every
ledger, in the server and in workers.
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
from afterglow.offload.block_assembler import BlockAssembler
from afterglow.offload.block_offloader import BlockOffloader
from afterglow.offload.offloader import OffloadResult
from afterglow.offload.task import (
    LedgerPart,
    PartBuffer,
    PartResult,
    Route,
    SegmentTask,
    failed,
    open_hot_ledgers,
    read_uncut,
)
from afterglow.storage.store import Part
from afterglow.tier.drivers import driver_factory
from afterglow.tier.locations import Tiers, is_built_in, location_of_policy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from afterglow.config import BrokerConfig
    from afterglow.format.blocks import BlockPlan
    from afterglow.format.statistics import BlockStatistics
    from afterglow.hot.log import ReadableLedger
    from afterglow.offload.offloader import LedgerOffloader, OffloadHandle
    from afterglow.offload.task import LedgerTask, OpenLedger, UncutLedgerPart
    from afterglow.tier.locations import TierLocation


def offloader_of(policy: BrokerConfig, own: TierLocation | None, tiers: Tiers) -> LedgerOffloader:
    """The offloader of a policy; without a driver, that of the server's own tier.

    Raises:
        ConfigError: There is neither, the driver is not installed, or the policy lacks a setting of the driver.
        MissingDependency: The driver's package cannot be imported.
    """
    if policy.managed_ledger_offload_driver is None:
        if own is None:
            raise ConfigError("no tier to offload to: set managedLedgerOffloadDriver, or start with --tier")
        return BlockOffloader(own, policy, tiers)
    offloader = driver_factory(policy.managed_ledger_offload_driver)(policy, own, tiers)
    return cast("LedgerOffloader", offloader)


def offloader_at(location: TierLocation, policy: BrokerConfig, tiers: Tiers) -> LedgerOffloader:
    """The offloader that wrote the objects at a tier location, also if the policy names another driver by now.

    Raises:
        ConfigError: The driver is not installed, or the policy lacks a setting of the driver.
        MissingDependency: The driver's package cannot be imported.
    """
    if is_built_in(location.driver):
        return BlockOffloader(location, policy, tiers)
    return offloader_of(replace(policy, managed_ledger_offload_driver=location.driver), None, tiers)


def block_offloader(policy: BrokerConfig, own: TierLocation | None, tiers: Tiers) -> LedgerOffloader:
    """Entry point of the built-in drivers.

    Raises:
        ConfigError: The policy lacks a setting of the driver.
    """
    return BlockOffloader(location_of_policy(policy, own), policy, tiers)


_tiers = Tiers()


def run_driver_task(task: LedgerTask | SegmentTask, *, open_ledger: OpenLedger | None = None) -> PartResult:
    """Run a task; see :func:`~afterglow.offload.task.run_part`. The driver determines the memory that it takes.

    A failed task deletes nothing: it may be a slow duplicate of a task that succeeded. The topic's owner records a
    pending delete of whatever a failed attempt has written.
    """
    route: Route | None = None
    started = time.perf_counter()
    part: Part | None = None
    cut: tuple[LedgerPart, ...] = ()
    statistics: tuple[tuple[BlockStatistics, ...], ...] = ()
    try:
        with ExitStack() as held:
            if open_ledger is None:
                open_ledger, route = held.enter_context(open_hot_ledgers(task, _ranges(task)))
            if isinstance(task, SegmentTask):
                cut, statistics = _write_segment(task, open_ledger)
                part = Part(task.number, task.size_bytes, "", None)
            else:
                _write_ledger(task, held.enter_context(open_ledger(task.ledger_id)))
    except AfterglowError as error:
        return failed(task, error)
    except Exception as error:  # noqa: BLE001 - of the driver; if raised, it would end the Spark job of all tasks
        driver = task.policy.managed_ledger_offload_driver
        return failed(task, StorageError(f"offload driver {driver} failed with {error!r}"))
    seconds = time.perf_counter() - started
    file_bytes = task.entry_bytes if route is Route.FILES else 0
    return PartResult(
        task.task_id, part, statistics, None, upload_seconds=seconds, route=route, file_bytes=file_bytes, cut=cut
    )


def _ranges(task: LedgerTask | SegmentTask) -> list[LedgerRange]:
    if isinstance(task, SegmentTask):
        return [ledger_part.entries for ledger_part in task.ledgers]
    return [LedgerRange(task.ledger_id, 0, task.entries - 1)]


def _write_ledger(task: LedgerTask, ledger: ReadableLedger) -> None:
    if ledger.confirmed + 1 != task.entries:
        raise HotLogError(
            f"ledger {task.ledger_id} has {ledger.confirmed + 1} readable entries here, and {task.entries} are to be "
            "offloaded; the server has not flushed it yet"
        )
    offloader = offloader_of(task.policy, task.own, _tiers)
    offloader.offload(ledger, task.uuid, dict(task.metadata))


def _write_segment(
    task: SegmentTask, open_ledger: OpenLedger
) -> tuple[tuple[LedgerPart, ...], tuple[tuple[BlockStatistics, ...], ...]]:
    """Offer the entries of a segment in order; returns the blocks, if they were not planned, and their statistics."""
    offloader = offloader_of(task.policy, task.own, _tiers)
    handle = offloader.streaming_offload(task.uuid, dict(task.metadata))
    cut, statistics = [], []
    try:
        for ledger_part in task.ledgers:
            with open_ledger(ledger_part.ledger_id) as ledger:
                if isinstance(ledger_part, LedgerPart):
                    statistics.append(tuple(_offer_block(handle, ledger, plan) for plan in ledger_part.plans))
                    continue
                plans, found = _offer_uncut(handle, ledger, ledger_part)
                cut.append(LedgerPart(ledger_part.ledger_id, plans))
                statistics.append(found)
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
    return tuple(cut), tuple(statistics)


def _offer_block(handle: OffloadHandle, ledger: ReadableLedger, plan: BlockPlan) -> BlockStatistics:
    """Offer the entries of one block."""
    buffer = PartBuffer(plan.header.block_bytes)
    statistics = buffer.add(ledger, plan)
    frames = buffer.data[HEADER_BYTES:]
    first = plan.header.first_entry_id
    _offer_frames(handle, Position(ledger.ledger_id, first), frames, scan_frames(frames, first).offsets)
    return statistics


def _offer_uncut(
    handle: OffloadHandle, ledger: ReadableLedger, part: UncutLedgerPart
) -> tuple[tuple[BlockPlan, ...], tuple[BlockStatistics, ...]]:
    """Offer the entries of one ledger; returns the blocks that a built-in driver would have cut from them."""
    assembler = BlockAssembler(part.block_bytes, part.block_bytes)
    for first, frames, offsets in read_uncut(ledger, part):
        _offer_frames(handle, Position(ledger.ledger_id, first), frames, offsets)
        for _ in assembler.add(part.ledger_id, first, frames, offsets):
            pass  # only the index of the blocks is wanted
    assembler.close()
    ((_, plans, found),) = assembler.ledgers()
    return tuple(plans), tuple(found)


def _offer_frames(handle: OffloadHandle, begin: Position, frames: memoryview, offsets: NDArray[np.int64]) -> None:
    """Offer consecutive entries, waiting while the driver's buffer is full."""
    taken, count = 0, offsets.size - 1
    while True:
        rest = frames[int(offsets[taken]) :]
        at = Position(begin.ledger_id, begin.entry_id + taken)
        taken += handle.offer_range(rest, at, count - taken)
        if taken == count:
            return
        if not handle.wait() and not handle.can_offer(int(offsets[taken + 1] - offsets[taken])):
            raise StorageError(
                f"the offload driver refuses entry {at.ledger_id}:{begin.entry_id + taken} though no upload is in "
                "progress: its handle must accept every entry of a segment"
            )
