"""Tasks: units of bulk work for workers, their results, and the function that runs one.

Only the task is sent to a worker, and only the result is sent back; entries are not. The same task run again, anywhere,
writes the same bytes under the same key, so that a worker may die at any moment and another may repeat its work. A task
makes no decision and changes no metadata: a result counts only once the topic's owner commits it.

A worker reads hot ledgers from their files, over the Pulsar protocol, or from the bookies of a cluster. Host names do
not decide whether from files: a worker shares the server's disk if and only if it finds the server's own id in the home
directory.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias
from uuid import UUID

from afterglow.errors import AfterglowError, CorruptBlock, HotLogError, LedgerMissing
from afterglow.format.blocks import HEADER_BYTES, Format, enclose_frames
from afterglow.format.frames import FRAME_BYTES, check_whole, scan_frames
from afterglow.format.position import LedgerRange, Position
from afterglow.format.statistics import measure_block
from afterglow.hot.bookkeeper.address import BookKeeperAddress, shared_client
from afterglow.hot.local.shared_ledger import open_shared, read_instance
from afterglow.hot.pulsar.address import ClusterBrokers
from afterglow.hot.pulsar.remote_ledgers import RemoteLedgers
from afterglow.metadata.names import TopicName
from afterglow.offload.block_assembler import BlockAssembler
from afterglow.storage.address import open_store
from afterglow.storage.store import Upload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    import numpy as np
    from numpy.typing import NDArray

    from afterglow.config import BrokerConfig
    from afterglow.format.blocks import BlockPlan
    from afterglow.format.statistics import BlockStatistics
    from afterglow.hot.log import ReadableLedger
    from afterglow.hot.pulsar.address import PulsarAddress
    from afterglow.storage.store import ObjectStore, Part
    from afterglow.tier.locations import TierLocation

    OpenLedger: TypeAlias = Callable[[int], AbstractContextManager[ReadableLedger]]
    """Opens a hot ledger by its id, for one ``with`` block."""
    OpenStore: TypeAlias = Callable[[str, tuple[tuple[str, str], ...]], ObjectStore]
    """Opens a store by its address and options."""


@dataclass(frozen=True, slots=True)
class LedgerPart:
    """Consecutive blocks of one ledger within a part."""

    ledger_id: int
    plans: tuple[BlockPlan, ...]

    @property
    def entries(self) -> LedgerRange:
        """The range of its entries."""
        return LedgerRange(self.ledger_id, self.plans[0].header.first_entry_id, self.plans[-1].end_entry_id - 1)

    @property
    def size_bytes(self) -> int:
        """Length of its blocks."""
        return sum(plan.header.block_bytes for plan in self.plans)

    @property
    def entry_bytes(self) -> int:
        """Bytes of its entries, without frames, block headers and padding."""
        return sum(plan.payload_bytes for plan in self.plans)


@dataclass(frozen=True, slots=True)
class UncutLedgerPart:
    """Consecutive entries of one ledger within a part, from which the task itself cuts blocks.

    For hot logs that do not list the sizes of their entries. The blocks depend on the entries and on ``block_bytes``
    alone, so that the same task run again writes the same bytes.
    """

    entries: LedgerRange
    """The range of its entries."""
    frame_bytes: int
    """Length of their frames."""
    block_bytes: int
    """Maximum length of a block, which only a single larger entry exceeds."""
    is_sized: bool = True
    """Whether the length of the frames is known; if not, it is an estimate."""

    @property
    def ledger_id(self) -> int:
        """The ledger."""
        return self.entries.ledger_id

    @property
    def size_bytes(self) -> int:
        """Length of its blocks, at most if no entry is larger than half a block and the length of frames is known."""
        return self.frame_bytes + HEADER_BYTES * (2 * self.frame_bytes // self.block_bytes + 1)

    @property
    def entry_bytes(self) -> int:
        """Bytes of its entries, without frames and block headers."""
        return self.frame_bytes - FRAME_BYTES * (self.entries.last - self.entries.first + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _HotTask:
    """Fields by which any task finds its entries."""

    topic: str
    """The managed-ledger name."""
    key: str
    """Key of the object; the UUID of a segment that an external driver writes."""
    home: str
    """The server's home directory, where the hot ledgers are; empty if no files are to be read."""
    instance: str
    """Id of the hot log in that home: a worker that finds it there shares the server's disk."""
    remote: PulsarAddress | BookKeeperAddress | ClusterBrokers | None = None
    """Address at which all other workers read the topic; None: they cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _BlockTask(_HotTask):
    """A task that writes blocks."""

    ledgers: tuple[LedgerPart, ...] | tuple[UncutLedgerPart, ...]
    """Blocks to be written, or entries from which to cut them, in order."""

    @property
    def size_bytes(self) -> int:
        """Length of all blocks; the memory that a :class:`PartTask` takes."""
        return sum(ledger_part.size_bytes for ledger_part in self.ledgers)

    @property
    def entry_bytes(self) -> int:
        """Bytes of the entries, without frames, block headers and padding."""
        return sum(ledger_part.entry_bytes for ledger_part in self.ledgers)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTask(_BlockTask):
    """Uploads one part of an object, with entries read from the hot log."""

    number: int
    """Number of the part, from 1."""
    upload_id: str
    """The multipart upload that the part belongs to."""
    url: str
    """Address of the store, without secrets."""
    options: tuple[tuple[str, str], ...] = field(repr=False)
    """Options of the store, perhaps with credentials."""

    @property
    def task_id(self) -> str:
        """Unique id of the task."""
        return f"{self.key}/{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentTask(_BlockTask):
    """Writes one whole segment through the offload handle of an external driver, block by block."""

    policy: BrokerConfig
    """Policy of the driver; its repr hides secrets."""
    own: TierLocation | None
    """The server's own tier."""
    metadata: tuple[tuple[str, str], ...]
    """Metadata for the handle: the driver's own metadata of the segment, and that of the managed ledger."""
    number: int = 1
    """Number of the part: the segment is one part."""

    @property
    def task_id(self) -> str:
        """Unique id of the task."""
        return self.key

    @property
    def uuid(self) -> UUID:
        """UUID of the segment."""
        return UUID(self.key)

    @property
    def begin(self) -> Position:
        """Its first entry."""
        return Position(self.ledgers[0].ledger_id, self.ledgers[0].entries.first)

    @property
    def end(self) -> Position:
        """Its last entry."""
        return Position(self.ledgers[-1].ledger_id, self.ledgers[-1].entries.last)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerTask(_HotTask):
    """Offloads one whole ledger through an external driver, which chooses the names of its objects."""

    ledger_id: int
    entries: int
    """Number of entries of the ledger."""
    uuid: UUID
    """UUID of this attempt."""
    size_bytes: int
    """Bytes of the ledger's entries."""
    policy: BrokerConfig
    """Policy of the driver; its repr hides secrets."""
    own: TierLocation | None
    """The server's own tier."""
    metadata: tuple[tuple[str, str], ...]
    """Extra metadata for the objects."""

    @property
    def entry_bytes(self) -> int:
        """Bytes of the ledger's entries."""
        return self.size_bytes

    @property
    def task_id(self) -> str:
        """Unique id of the task."""
        return self.key


StreamTask: TypeAlias = PartTask | SegmentTask
"""Writes a segment, or a part of one."""
Task: TypeAlias = StreamTask | LedgerTask


@dataclass(frozen=True, slots=True)
class PartResult:
    """Result of a task."""

    task_id: str
    part: Part | None
    """The part as stored, with an empty tag for a whole object; None if the task failed, or had no parts."""
    statistics: tuple[tuple[BlockStatistics, ...], ...]
    """Statistics of every block, for each ledger of the task."""
    error: AfterglowError | None
    """The error of a failed task."""
    read_seconds: float = 0.0
    """Time spent on reading the hot log, and on checking and measuring the entries."""
    upload_seconds: float = 0.0
    """Time spent on the store."""
    route: Route | None = None
    """Route by which entries were read; None if the task failed, or was given open ledgers."""
    file_bytes: int = 0
    """Bytes of entries read from ledger files, also if their upload failed."""
    cut: tuple[LedgerPart, ...] = ()
    """Blocks that the task has cut, with offsets in the part; empty if they were planned."""


_READ_BYTES: Final = 8 << 20
"""Frames per read of entries from which a task cuts blocks."""


# --- bytes of a part --------------------------------------------------------------------------------------------------


class PartBuffer:
    """Consecutive blocks of one or more ledgers, in one buffer.

    Frames are read from the hot log straight into the buffer, and every frame is checked there: the hot copy will be
    deleted because the object holds the same entries.

    Args:
        size_bytes: Length of all blocks that will be added.
    """

    def __init__(self, size_bytes: int) -> None:
        self._buffer = memoryview(bytearray(size_bytes))
        self._end = 0

    @property
    def data(self) -> memoryview:
        """The blocks added so far."""
        return self._buffer[: self._end]

    def add(self, ledger: ReadableLedger, plan: BlockPlan) -> BlockStatistics:
        """Append a block, and measure it.

        Raises:
            HotLogError: The ledger cannot be read, or not all of it yet; can be retried.
            CorruptBlock: The frames of the ledger do not match the plan.
        """
        header = plan.header
        last = plan.end_entry_id - 1
        if ledger.confirmed < last:
            raise _not_readable(ledger, last)
        block = self._buffer[self._end : self._end + header.block_bytes]
        body, end = header.header_bytes, header.header_bytes + plan.end - plan.start
        enclose_frames(block, 0, header, end - body)
        _read_frames(ledger, header.first_entry_id, last, block[body:end])
        frames = scan_frames(block, header.first_entry_id, body, end)
        check_whole(frames, f"ledger {ledger.ledger_id}")
        if frames.end_entry_id != plan.end_entry_id:
            raise CorruptBlock(
                f"ledger {ledger.ledger_id} has {len(frames)} entries from entry {header.first_entry_id} on where "
                f"{plan.entries} were planned"
            )
        self._end += header.block_bytes
        return measure_block(block, block, frames.offsets, stripes=header.format is Format.V1)


def _read_frames(ledger: ReadableLedger, first: int, last: int, target: memoryview) -> None:
    # Some ledgers read into a given buffer. Found by name: isinstance() with a protocol takes much longer.
    if (read_into := getattr(ledger, "read_into", None)) is not None:
        read_into(first, last, target)
        return
    while first <= last:
        # At least one entry is returned, even if it does not fit: then the plan is not one of this ledger.
        frames, count = ledger.read_frames(first, target.nbytes)
        if not count or frames.nbytes > target.nbytes:
            raise CorruptBlock(f"ledger {ledger.ledger_id}: the frames from entry {first} on do not match the plan")
        target[: frames.nbytes] = frames
        target = target[frames.nbytes :]
        first += count
    if target.nbytes:  # otherwise the missing end of an entry would be uploaded as zeros
        raise CorruptBlock(f"ledger {ledger.ledger_id}: the frames up to entry {last} are {target.nbytes} bytes short")


# --- running tasks ----------------------------------------------------------------------------------------------------


def failed(task: Task, error: AfterglowError) -> PartResult:
    """The result of a failed task."""
    return PartResult(task.task_id, None, (), error)


def run_part(
    task: PartTask, *, open_ledger: OpenLedger | None = None, open_store: OpenStore | None = None
) -> PartResult:
    """Run a task, with one buffer of its size and no other memory that grows with it.

    Args:
        task: The task.
        open_ledger: Opens hot ledgers; by default by the route that this process has.
        open_store: Opens the store; by default one that this process keeps for further tasks.

    Returns:
        The stored part, or an error of ours; other exceptions propagate.
    """
    route: Route | None = None
    file_bytes = 0
    started = time.perf_counter()
    try:
        with ExitStack() as held:
            if open_ledger is None:
                open_ledger, route = held.enter_context(
                    open_hot_ledgers(task, [ledger_part.entries for ledger_part in task.ledgers])
                )
            blocks = _read_blocks(task, open_ledger)
        read = time.perf_counter()
        file_bytes = task.entry_bytes if route is Route.FILES else 0
        store = (open_store or cached_store)(task.url, task.options)
        part = store.upload_part(Upload(task.key, task.upload_id), task.number, blocks.data)
    except AfterglowError as error:
        return replace(failed(task, error), file_bytes=file_bytes)
    uploaded = time.perf_counter()
    return PartResult(
        task.task_id,
        part,
        blocks.statistics,
        None,
        read - started,
        uploaded - read,
        route,
        file_bytes=file_bytes,
        cut=blocks.cut,
    )


class _Blocks(NamedTuple):
    """The blocks of a part, as read."""

    data: bytearray | memoryview
    statistics: tuple[tuple[BlockStatistics, ...], ...]
    cut: tuple[LedgerPart, ...]


def _read_blocks(task: PartTask, open_ledger: OpenLedger) -> _Blocks:
    buffer = PartBuffer(sum(part.size_bytes for part in task.ledgers if isinstance(part, LedgerPart)))
    assembler: BlockAssembler | None = None
    statistics = []
    for part in task.ledgers:
        with open_ledger(part.ledger_id) as ledger:
            if isinstance(part, LedgerPart):
                statistics.append(tuple(buffer.add(ledger, plan) for plan in part.plans))
                continue
            assembler = assembler or BlockAssembler(part.block_bytes)
            for first, frames, offsets in read_uncut(ledger, part):
                for _ in assembler.add(part.ledger_id, first, frames, offsets):
                    raise AssertionError("unreachable: all blocks are one part")
    if assembler is None:
        return _Blocks(buffer.data, tuple(statistics), ())
    data = assembler.close()
    cut = tuple((LedgerPart(ledger_id, tuple(plans)), tuple(found)) for ledger_id, plans, found in assembler.ledgers())
    return _Blocks(data, tuple(found for _, found in cut), tuple(part for part, _ in cut))


def read_uncut(ledger: ReadableLedger, part: UncutLedgerPart) -> Iterator[tuple[int, memoryview, NDArray[np.int64]]]:
    """Read the entries of a part some megabytes at a time; yields the first entry, the frames and their offsets.

    Raises:
        HotLogError: The ledger cannot be read, or not all of it yet; can be retried.
        CorruptBlock: The frames of the ledger do not have the planned length.
    """
    first, last, left = part.entries.first, part.entries.last, part.frame_bytes
    if ledger.confirmed < last:
        raise _not_readable(ledger, last)
    while first <= last:
        data, count = ledger.read_frames(first, min(left, _READ_BYTES) if part.is_sized else _READ_BYTES)
        left -= data.nbytes if part.is_sized else 0
        frames = scan_frames(data, first)
        check_whole(frames, f"ledger {ledger.ledger_id}")
        if not count or left < 0 or frames.end_entry_id > last + 1:
            break
        yield first, data, frames.offsets
        first = frames.end_entry_id
    if (left and part.is_sized) or first <= last:  # an object with other entries would be committed as these
        raise CorruptBlock(
            f"ledger {ledger.ledger_id}: the frames of entries {part.entries.first} to {last} do not have "
            f"{part.frame_bytes} bytes"
        )


def _not_readable(ledger: ReadableLedger, last: int) -> HotLogError:
    return HotLogError(
        f"ledger {ledger.ledger_id} is readable here up to entry {ledger.confirmed} only, and entry {last} is "
        "to be offloaded; the server has not flushed it yet"
    )


def run_task(task: Task, *, open_ledger: OpenLedger | None = None, open_store: OpenStore | None = None) -> PartResult:
    """Run a task of any kind in this process; see :func:`run_part`."""
    if isinstance(task, PartTask):
        return run_part(task, open_ledger=open_ledger, open_store=open_store)
    from afterglow.offload.drivers import run_driver_task  # noqa: PLC0415 - most tasks need no driver

    return run_driver_task(task, open_ledger=open_ledger)


# --- hot ledgers ------------------------------------------------------------------------------------------------------

_DEADLINE_S: Final = 60.0
"""Longest time without an entry over the protocol. The server retries a failed task; a waiting task blocks a worker."""


class Route(StrEnum):
    """Route by which a task reads entries."""

    FILES = "files"
    PROTOCOL = "protocol"
    BOOKIES = "bookies"


@dataclass(frozen=True, slots=True)
class RouteBytes:
    """Bytes that tasks have read and uploaded, by route."""

    files: int = 0
    protocol: int = 0
    bookies: int = 0

    @property
    def total(self) -> int:
        """The sum of all routes."""
        return self.files + self.protocol + self.bookies

    def plus(self, route: Route | None, size_bytes: int) -> RouteBytes:
        """The sum with further bytes; bytes of an unknown route are not counted."""
        return self if route is None else replace(self, **{route: getattr(self, route) + size_bytes})


@contextmanager
def open_hot_ledgers(task: Task, ranges: Sequence[LedgerRange]) -> Iterator[tuple[OpenLedger, Route]]:
    """Return the function that opens a task's ledgers from this process, and its route.

    Args:
        task: Has the home directory and the address.
        ranges: The entries that the task reads, in order.

    Raises:
        LedgerMissing: They can be read by neither route.
    """
    found = _instance_in(task.home)
    if found == task.instance:
        yield partial(open_shared, Path(task.home)), Route.FILES
        return
    if task.remote is None:
        hot_log = "no hot log that can be read" if found is None else f"hot log {found}"
        raise LedgerMissing(
            f"the ledgers of {task.topic} cannot be read here: {task.home or 'no directory'} holds {hot_log}, not "
            f"{task.instance}; run the workers on the server's machine, share its disk with them, or let them reach "
            "its port (sparkMaster, advertisedAddress)"
        )
    if isinstance(task.remote, BookKeeperAddress):
        client = shared_client(task.remote)
        ends = {entry_range.ledger_id: entry_range.last for entry_range in ranges}
        # Its owner found the entries of the task confirmed.
        yield (lambda ledger_id: nullcontext(client.open(ledger_id, ends[ledger_id]))), Route.BOOKIES
        return
    topic = str(TopicName.from_managed_ledger_name(task.topic))
    if isinstance(task.remote, ClusterBrokers):
        remote = RemoteLedgers(task.remote.address, topic, ranges, deadline_s=_DEADLINE_S, fills_gaps=True)
    else:
        remote = RemoteLedgers(
            task.remote, topic, ranges, deadline_s=_DEADLINE_S, instance=task.instance, offloads=True
        )
    with remote as ledgers:
        yield (lambda ledger_id: nullcontext(ledgers.ledger(ledger_id))), Route.PROTOCOL


def _instance_in(home: str) -> str | None:
    """Id of the hot log in a directory; None if it has none that can be read."""
    if not home:
        return None
    try:
        return read_instance(Path(home))
    except OSError:
        return None


# --- stores that a worker process keeps for further tasks -------------------------------------------------------------

_MAX_STORES: Final = 8
"""A process writes to few tiers at a time; a store holds connections and threads of an SDK."""

_stores: OrderedDict[tuple[str, tuple[tuple[str, str], ...]], ObjectStore] = OrderedDict()
_lock = threading.Lock()


def cached_store(url: str, options: tuple[tuple[str, str], ...]) -> ObjectStore:
    """A store; the same for the same address and options, until others evict it.

    Raises:
        ConfigError: The address or an option is invalid.
        MissingDependency: The store's SDK is not installed.
    """
    with _lock:
        known = _stores.pop((url, options), None)
        store = known or open_store(url, **dict(options))
        _stores[url, options] = store
        while len(_stores) > _MAX_STORES:
            _stores.popitem(last=False)
        return store
