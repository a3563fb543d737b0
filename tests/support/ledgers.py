"""A small world around managed ledgers: everything below them, under a test's control, and able to crash."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.clock import ManualClock, ManualExecutor

from afterglow.config import BrokerConfig
from afterglow.errors import AfterglowError
from afterglow.format.entry import encode_entry
from afterglow.format.proto.pulsar_api_pb2 import MessageMetadata
from afterglow.ledger.store import LedgerStore
from afterglow.metadata.memory import MemoryMetadataStore
from afterglow.testing.memory_hot import MemoryLog

if TYPE_CHECKING:
    from afterglow.format.position import Position
    from afterglow.ledger.entry_source import Sources
    from afterglow.ledger.managed_ledger import ManagedLedger
    from afterglow.ledger.offload_buffer import OffloadBuffer
    from afterglow.ledger.offload_hooks import OffloadHooks
    from afterglow.metadata.store import MetadataStore

TOPIC = "public/default/persistent/t"
"""The managed-ledger name of the topic that tests use."""


def settings(**changes: object) -> BrokerConfig:
    """Settings by which no ledger is too young to be rolled over and everything is retained, with changes."""
    given: dict[str, object] = {
        "managed_ledger_min_ledger_rollover_time_minutes": 0,
        "default_retention_time_in_minutes": -1,
        "default_retention_size_in_mb": -1,
    }
    return BrokerConfig(**(given | changes))  # type: ignore[arg-type]  # settings by name


def message(payload: bytes, publish_time_ms: int = 0) -> bytes:
    """An entry as a client sends it."""
    return encode_entry(MessageMetadata(producer_name="p", sequence_id=0, publish_time=publish_time_ms), payload)


class Receipts:
    """What appends have called back with, in order."""

    def __init__(self) -> None:
        self.outcomes: list[Position | AfterglowError] = []

    def __call__(self, outcome: Position | AfterglowError) -> None:
        """Take one outcome."""
        self.outcomes.append(outcome)

    @property
    def positions(self) -> list[Position]:
        """Of the appends that succeeded."""
        return [outcome for outcome in self.outcomes if not isinstance(outcome, AfterglowError)]

    @property
    def errors(self) -> list[AfterglowError]:
        """Of the appends that failed."""
        return [outcome for outcome in self.outcomes if isinstance(outcome, AfterglowError)]


class World:
    """A store of ledgers on manual parts.

    Args:
        config: The broker's settings; by default those of :func:`settings`.
        metadata: By default in memory.
        sources: Where entries are read from that the cache does not hold; by default the hot log alone.
        offloading: Who copies ledgers out of the hot log; by default nobody.
    """

    buffer: OffloadBuffer | None = None
    """Keeps what the tail cache evicts; to be set before a boot."""

    def __init__(
        self,
        config: BrokerConfig | None = None,
        metadata: MetadataStore | None = None,
        sources: Sources | None = None,
        offloading: OffloadHooks | None = None,
    ) -> None:
        self.config = config or settings()
        self.metadata: MetadataStore = metadata or MemoryMetadataStore()
        self.hot = MemoryLog()
        self.clock = ManualClock()
        self.sources = sources
        self.offloading = offloading
        self.boot()

    def boot(self) -> None:
        """Start a process over what is there."""
        self.executor = ManualExecutor()
        self.prepare()
        self.store = LedgerStore(
            hot=self.hot,
            states=self.hot,
            metadata=self.metadata,
            config=self.config,
            executor=self.executor,
            clock=self.clock,
            sources=self.sources,
            offloading=self.offloading,
            buffer=self.buffer,
        )

    def prepare(self) -> None:
        """Make what the ledgers are given; for worlds that build on this one."""

    def crash(self, survivors: int = 0) -> None:
        """Kill the process and start another; see :meth:`MemoryLog.crash`."""
        self.hot = self.hot.crash(survivors)
        self.boot()

    def open(self, name: str = TOPIC) -> ManagedLedger:
        """Open a topic; creates it if it is missing."""
        return self.store.open(name)

    def settle(self) -> None:
        """Complete everything that is under way, in the hot log and on the executor."""
        while self.hot.complete() + self.executor.run_all():
            pass

    def append(self, ledger: ManagedLedger, *entries: bytes, messages: int = 1) -> list[Position]:
        """Append entries, wait for all, and return where they stand.

        Raises:
            AfterglowError: One failed.
        """
        receipts = Receipts()
        for entry in entries:
            ledger.append((entry,), messages, receipts)
        self.settle()
        for error in receipts.errors:
            raise error
        return receipts.positions
