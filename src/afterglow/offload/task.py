"""One piece of bulk work: what it needs to know, how it is done, and what is told of it.

A task is all that travels to a worker, and a result all that comes back; entry bytes do neither. The same task run
again, anywhere, writes the same bytes under the same name, so that a worker may die at any moment and another may do
its work over. A task decides nothing and changes no metadata: its results count only once somebody commits them.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID

from crc32c import crc32c

from afterglow.errors import AfterglowError, ObjectExists
from afterglow.format.objects import INSTANCE_KEY
from afterglow.format.position import Position
from afterglow.hot.pulsar.runs import LedgerRange
from afterglow.offload.parts import PartBuffer
from afterglow.offload.reach import Route, reach
from afterglow.offload.workers import cached_store
from afterglow.storage.store import Part, Upload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from afterglow.config import BrokerConfig
    from afterglow.format.plan import BlockPlan
    from afterglow.format.statistics import BlockStatistics
    from afterglow.hot.pulsar.address import PulsarAddress
    from afterglow.offload.parts import ReadableLedger
    from afterglow.read.places import TierPlace
    from afterglow.storage.store import ObjectStore

    OpenLedger: TypeAlias = Callable[[int], AbstractContextManager[ReadableLedger]]
    """Opens a hot ledger by its id, for the length of a block."""
    OpenStore: TypeAlias = Callable[[str, tuple[tuple[str, str], ...]], ObjectStore]
    """Opens a store by its address and options."""


@dataclass(frozen=True, slots=True)
class LedgerPart:
    """Consecutive blocks of one ledger within a part."""

    ledger_id: int
    plans: tuple[BlockPlan, ...]

    @property
    def stretch(self) -> LedgerRange:
        """Its entries."""
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
class PartTask:
    """Write one part of an object, or a whole one: read these blocks' entries from the hot log, and upload them."""

    topic: str
    """The managed-ledger name; for people."""
    key: str
    """Of the object."""
    number: int
    """Of the part, from 1."""
    upload_id: str | None
    """The multipart upload that the part belongs to; None: the part is the whole object, put only where there is
    none."""
    url: str
    """Address of the store, without secrets."""
    options: tuple[tuple[str, str], ...] = field(repr=False)
    """Of the store; credentials may be among them."""
    metadata: tuple[tuple[str, str], ...]
    """User metadata of a whole object; that of an upload was given when it was created."""
    home: str
    """The engine's home directory, where the hot ledgers are; empty where no files are to be read."""
    instance: str
    """Id of the hot log in that home: a worker that finds it there shares the engine's disk."""
    ledgers: tuple[LedgerPart, ...]
    """What the part holds, in its order."""
    remote: PulsarAddress | None = None
    """Where all other workers read the topic; None: nowhere."""

    @property
    def task_id(self) -> str:
        """Names the task among all others."""
        return f"{self.key}/{self.number}"

    @property
    def size_bytes(self) -> int:
        """Length of the part, and of the memory that the task takes."""
        return sum(piece.size_bytes for piece in self.ledgers)

    @property
    def entry_bytes(self) -> int:
        """Bytes of the entries, without frames, block headers and padding."""
        return sum(piece.entry_bytes for piece in self.ledgers)


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """Offload one whole segment by an external driver, through its offload handle."""

    topic: str
    """The managed-ledger name."""
    key: str
    """The segment's UUID as text."""
    policy: BrokerConfig
    """What the driver is made from; its repr hides secrets."""
    own: TierPlace | None
    """The server's own tier."""
    metadata: tuple[tuple[str, str], ...]
    """What the handle is given: the driver's metadata of the segment, name of the managed ledger, and so on."""
    home: str
    """The server's home directory, where the hot ledgers are; empty where no files are to be read."""
    instance: str
    """Id of the hot log in that home."""
    ledgers: tuple[LedgerPart, ...]
    """What the segment holds, in order. Its blocks are read and offered one at a time."""
    remote: PulsarAddress | None = None
    """Where workers read the topic that do not share the server's disk; None: nowhere."""
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
        return Position(self.ledgers[0].ledger_id, self.ledgers[0].stretch.first)

    @property
    def end(self) -> Position:
        """Its last entry."""
        return Position(self.ledgers[-1].ledger_id, self.ledgers[-1].stretch.last)

    @property
    def size_bytes(self) -> int:
        """Of its entries with their frames, and a little more."""
        return sum(piece.size_bytes for piece in self.ledgers)

    @property
    def entry_bytes(self) -> int:
        """Bytes of the entries, without frames."""
        return sum(piece.entry_bytes for piece in self.ledgers)


@dataclass(frozen=True, slots=True)
class LedgerTask:
    """Offload one whole ledger by an external driver, which knows no parts."""

    topic: str
    """The managed-ledger name."""
    key: str
    """For people: the driver names its objects as it likes."""
    ledger_id: int
    entries: int
    """That the ledger has."""
    uuid: UUID
    """Of this attempt."""
    size_bytes: int
    """Bytes of the ledger's entries."""
    policy: BrokerConfig
    """What the driver is made from; its repr hides secrets."""
    own: TierPlace | None
    """The engine's own tier."""
    metadata: tuple[tuple[str, str], ...]
    """For the objects: name of the managed ledger, and so on."""
    home: str
    """The engine's home directory, where the hot ledgers are; empty where no files are to be read."""
    instance: str
    """Id of the hot log in that home."""
    remote: PulsarAddress | None = None
    """Where workers read the topic that do not share the engine's disk; None: nowhere."""

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
                open_ledger, route = held.enter_context(reach(task, [piece.stretch for piece in task.ledgers]))
            for piece in task.ledgers:
                with open_ledger(piece.ledger_id) as ledger:
                    statistics.append(tuple(buffer.add(ledger, plan) for plan in piece.plans))
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
        # The key is this attempt's alone: whoever was there before us ran this very task and was not heard.
        found = store.head(task.key)
        if found.size_bytes != data.nbytes or found.metadata.get(INSTANCE_KEY) != _instance_of(task.metadata):
            raise
    return Part(task.number, data.nbytes, "", crc32c(data))


def _instance_of(metadata: Iterable[tuple[str, str]]) -> str | None:
    return next((value for name, value in metadata if name == INSTANCE_KEY), None)
