"""Tasks: units of bulk work for workers, their results, and the function that runs one.

A task is all that travels to a worker, and a result all that comes back; entry bytes do neither. The same task run
again, anywhere, writes the same bytes under the same name, so that a worker may die at any moment and another may
repeat its work. A task decides nothing and changes no metadata: a result counts only once the topic's owner commits it.

A worker reads hot ledgers through their files or over the Pulsar protocol. It never guesses which from host names: a
worker that finds the server's own id in the home directory shares the server's disk, and no other does.
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
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import UUID

from crc32c import crc32c

from afterglow.errors import AfterglowError, LedgerMissing, ObjectExists
from afterglow.format.objects import INSTANCE_KEY
from afterglow.format.position import LedgerRange, Position
from afterglow.hot.local.shared import open_shared, read_instance
from afterglow.hot.pulsar.ledgers import RemoteLedgers
from afterglow.metadata.names import TopicName
from afterglow.offload.parts import PartBuffer
from afterglow.storage.address import open_store
from afterglow.storage.store import Part, Upload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from afterglow.config import BrokerConfig
    from afterglow.format.blocks import BlockPlan
    from afterglow.format.statistics import BlockStatistics
    from afterglow.hot.log import ReadableLedger
    from afterglow.hot.pulsar.address import PulsarAddress
    from afterglow.storage.store import ObjectStore
    from afterglow.tier.locations import TierLocation

    OpenLedger: TypeAlias = Callable[[int], AbstractContextManager[ReadableLedger]]
    """Opens a hot ledger by its id, for the length of a block."""
    OpenStore: TypeAlias = Callable[[str, tuple[tuple[str, str], ...]], ObjectStore]
    """Opens a store by its address and options."""
    from collections.abc import Callable, Iterator, Sequence


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _HotTask:
    """The fields by which a task of any kind finds its entries."""

    topic: str
    """The managed-ledger name."""
    key: str
    """Of the object; the UUID of a segment that an external driver writes."""
    home: str
    """The server's home directory, where the hot ledgers are; empty where no files are to be read."""
    instance: str
    """Id of the hot log in that home: a worker that finds it there shares the server's disk."""
    remote: PulsarAddress | None = None
    """Address at which all other workers read the topic; None: they cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _BlockTask(_HotTask):
    """A task whose blocks are planned."""

    ledgers: tuple[LedgerPart, ...]
    """What is written, in its order."""

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
    """Write one part of an object, or a whole one: read these blocks' entries from the hot log, and upload them."""

    number: int
    """Of the part, from 1."""
    upload_id: str | None
    """The multipart upload that the part belongs to; None: the part is the whole object, put only if absent."""
    url: str
    """Address of the store, without secrets."""
    options: tuple[tuple[str, str], ...] = field(repr=False)
    """Of the store; credentials may be among them."""
    metadata: tuple[tuple[str, str], ...]
    """User metadata of a whole object; that of an upload was given when it was created."""

    @property
    def task_id(self) -> str:
        """Names the task among all others."""
        return f"{self.key}/{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentTask(_BlockTask):
    """Offload one whole segment by an external driver, through its offload handle, block by block."""

    policy: BrokerConfig
    """What the driver is made from; its repr hides secrets."""
    own: TierLocation | None
    """The server's own tier."""
    metadata: tuple[tuple[str, str], ...]
    """What the handle is given: the driver's metadata of the segment, name of the managed ledger, and so on."""
    number: int = 1
    """As that of a part: the segment is one."""

    @property
    def task_id(self) -> str:
        """Names the task among all others."""
        return self.key

    @property
    def uuid(self) -> UUID:
        """Of the segment."""
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
    """Offload one whole ledger by an external driver, which knows no parts and names its objects as it likes."""

    ledger_id: int
    entries: int
    """Number of entries of the ledger."""
    uuid: UUID
    """Of this attempt."""
    size_bytes: int
    """Bytes of the ledger's entries."""
    policy: BrokerConfig
    """What the driver is made from; its repr hides secrets."""
    own: TierLocation | None
    """The server's own tier."""
    metadata: tuple[tuple[str, str], ...]
    """For the objects: name of the managed ledger, and so on."""

    @property
    def entry_bytes(self) -> int:
        """Bytes of the ledger's entries."""
        return self.size_bytes

    @property
    def task_id(self) -> str:
        """Names the task among all others."""
        return self.key


StreamTask: TypeAlias = PartTask | SegmentTask
"""Writes a segment, or a part of one."""
Task: TypeAlias = StreamTask | LedgerTask


@dataclass(frozen=True, slots=True)
class PartResult:
    """How a task ended."""

    task_id: str
    part: Part | None
    """What the store has, its tag empty for a whole object; None where the task failed, or had no parts."""
    statistics: tuple[tuple[BlockStatistics, ...], ...]
    """Of every block, for each ledger of the task."""
    error: AfterglowError | None
    """Why it failed; None where it did not."""
    read_seconds: float = 0.0
    """Spent on reading the hot log, and on checking and measuring what came."""
    upload_seconds: float = 0.0
    """Spent on the store."""
    route: Route | None = None
    """Where the entries were read; None where the task failed, or was given its ledgers."""
    file_bytes: int = 0
    """Bytes of entries that were read from ledger files, also where their upload failed."""


def failed(task: Task, error: AfterglowError) -> PartResult:
    """The result of a task that could not be done."""
    return PartResult(task.task_id, None, (), error)


def run_part(
    task: PartTask, *, open_ledger: OpenLedger | None = None, open_store: OpenStore | None = None
) -> PartResult:
    """Do a task, holding one buffer of its size and nothing else that grows with it.

    Args:
        task: What to do.
        open_ledger: Where entries come from; by default wherever they can be reached from here.
        open_store: Where they go; by default a store that this process keeps for further tasks.

    Returns:
        What was written, or the error that was to be expected; any other propagates.
    """
    route: Route | None = None
    file_bytes = 0
    started = time.perf_counter()
    try:
        buffer = PartBuffer(task.size_bytes)
        statistics = []
        with ExitStack() as held:
            if open_ledger is None:
                open_ledger, route = held.enter_context(
                    open_hot_ledgers(task, [ledger_part.entries for ledger_part in task.ledgers])
                )
            for ledger_part in task.ledgers:
                with open_ledger(ledger_part.ledger_id) as ledger:
                    statistics.append(tuple(buffer.add(ledger, plan) for plan in ledger_part.plans))
        read = time.perf_counter()
        file_bytes = task.entry_bytes if route is Route.FILES else 0
        part = _upload((open_store or cached_store)(task.url, task.options), task, buffer.data)
    except AfterglowError as error:
        return replace(failed(task, error), file_bytes=file_bytes)
    uploaded = time.perf_counter()
    return PartResult(
        task.task_id, part, tuple(statistics), None, read - started, uploaded - read, route, file_bytes=file_bytes
    )


def _upload(store: ObjectStore, task: PartTask, data: memoryview) -> Part:
    if task.upload_id is not None:
        return store.upload_part(Upload(task.key, task.upload_id), task.number, data)
    try:
        store.put(task.key, data, metadata=dict(task.metadata), if_absent=True)
    except ObjectExists:
        # The key is this attempt's alone: an earlier run of this very task wrote it, and its result was lost.
        found = store.head(task.key)
        if found.size_bytes != data.nbytes or found.metadata.get(INSTANCE_KEY) != _instance_of(task.metadata):
            raise
    return Part(task.number, data.nbytes, "", crc32c(data))


def _instance_of(metadata: Iterable[tuple[str, str]]) -> str | None:
    return next((value for name, value in metadata if name == INSTANCE_KEY), None)


def run_task(task: Task, *, open_ledger: OpenLedger | None = None, open_store: OpenStore | None = None) -> PartResult:
    """Do a task of any kind in this process; see :func:`run_part`."""
    if isinstance(task, PartTask):
        return run_part(task, open_ledger=open_ledger, open_store=open_store)
    from afterglow.offload.drivers import run_driver_task  # noqa: PLC0415 - most tasks need no driver

    return run_driver_task(task, open_ledger=open_ledger)


# --- hot ledgers ------------------------------------------------------------------------------------------------------

_DEADLINE_S: Final = 60.0
"""Longest time without an entry over the protocol. A failed task is retried by the server; a waiting one blocks a
worker."""


class Route(StrEnum):
    """Where a task read entries."""

    FILES = "files"
    PROTOCOL = "protocol"


@dataclass(frozen=True, slots=True)
class RouteBytes:
    """Bytes that tasks have read and uploaded, by where they read them."""

    files: int = 0
    protocol: int = 0

    def plus(self, route: Route | None, size_bytes: int) -> RouteBytes:
        """With further ones; those of no known route are not counted."""
        return self if route is None else replace(self, **{route: getattr(self, route) + size_bytes})


@contextmanager
def open_hot_ledgers(task: Task, ranges: Sequence[LedgerRange]) -> Iterator[tuple[OpenLedger, Route]]:
    """Give the function that opens a task's ledgers from this process, and the route that it takes.

    Args:
        task: Names the home directory and the address.
        ranges: The entries that the task reads, in their order.

    Raises:
        LedgerMissing: They can be read neither way.
    """
    found = _instance_in(task.home)
    if found == task.instance:
        yield partial(open_shared, Path(task.home)), Route.FILES
        return
    if task.remote is None:
        there = "no hot log that can be read" if found is None else f"hot log {found}"
        raise LedgerMissing(
            f"the ledgers of {task.topic} cannot be read here: {task.home or 'no directory'} holds {there}, not "
            f"{task.instance}; run the workers on the server's machine, share its disk with them, or let them reach "
            "its port (sparkMaster, advertisedAddress)"
        )
    topic = str(TopicName.from_managed_ledger_name(task.topic))
    with RemoteLedgers(
        task.remote, topic, ranges, deadline_s=_DEADLINE_S, instance=task.instance, offloads=True
    ) as ledgers:
        yield (lambda ledger_id: nullcontext(ledgers.ledger(ledger_id))), Route.PROTOCOL


def _instance_in(home: str) -> str | None:
    """Whose hot log is in a directory; None where it has none that may be read."""
    if not home:
        return None
    try:
        return read_instance(Path(home))
    except OSError:
        return None


# --- stores that a worker's process keeps from one task to the next ---------------------------------------------------

_MOST_STORES: Final = 8
"""A process works for few tiers at a time; a store is some connections and threads of an SDK."""

_stores: OrderedDict[tuple[str, tuple[tuple[str, str], ...]], ObjectStore] = OrderedDict()
_lock = threading.Lock()


def cached_store(url: str, options: tuple[tuple[str, str], ...]) -> ObjectStore:
    """A store, the same one for the same address and options while few others are asked for.

    Raises:
        ConfigError: The address or an option is wrong.
        MissingDependency: The store's SDK is not installed.
    """
    with _lock:
        known = _stores.pop((url, options), None)
        store = known or open_store(url, **dict(options))
        _stores[url, options] = store
        while len(_stores) > _MOST_STORES:
            _stores.popitem(last=False)
        return store
