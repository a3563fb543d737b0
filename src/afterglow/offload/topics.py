"""Topics as offload sees them: owned by this process, with their ledgers in a hot log.

The managed ledgers of the embedded server are such topics, and so are those of a cluster that this process is attached
to, which other processes write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from afterglow.config import BrokerConfig
    from afterglow.format.position import Position
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.hot.log import ReadableLedger
    from afterglow.ledger.cache import TailCache
    from afterglow.ledger.layout import Layout
    from afterglow.ledger.reader import StoredEntry
    from afterglow.ledger.topic_metadata import Edit, Snapshot
    from afterglow.metadata.names import NamespaceName, TopicName


class OffloadPolicies(Protocol):
    """Effective policies of topics. Thread-safe."""

    @property
    def config(self) -> BrokerConfig:
        """The settings of the process."""
        ...

    def of(self, name: str) -> BrokerConfig:
        """The effective policy of a topic, by its managed-ledger name.

        Raises:
            MetadataError: It cannot be read.
        """
        ...

    def on_change(self, callback: Callable[[NamespaceName | None], None]) -> None:
        """Register a callback for changes of policies, with their namespace; None: of all."""
        ...


class HotLedgers(Protocol):
    """The ledgers of a hot log."""

    def open(self, ledger_id: int) -> ReadableLedger:
        """A ledger.

        Raises:
            LedgerMissing: It does not exist.
        """
        ...


class TopicReader(Protocol):
    """Reads the entries of a topic."""

    def read(self, position: Position, max_entries: int, max_bytes: int) -> Sequence[StoredEntry]:
        """Confirmed entries from ``position`` on; see :meth:`afterglow.ledger.reader.EntryReader.read`."""
        ...


class TopicTrimmer(Protocol):
    """Deletes hot copies of a topic, and removes ledgers from its list."""

    def free(self, ledger_ids: Collection[int]) -> tuple[int, ...]:
        """Delete hot copies; see :meth:`afterglow.ledger.trimming.Trimmer.free`."""
        ...

    def discard(self, ledger_ids: Collection[int], edit: Callable[[ManagedLedgerInfo], None]) -> None:
        """Remove ledgers together with another edit; see :meth:`afterglow.ledger.trimming.Trimmer.discard`."""
        ...


class OffloadTopic(Protocol):
    """A topic that this process owns. Thread-safe."""

    @property
    def name(self) -> str:
        """Its managed-ledger name."""
        ...

    @property
    def topic(self) -> TopicName:
        """Its name."""
        ...

    @property
    def info(self) -> ManagedLedgerInfo:
        """The newest metadata known here; not to be changed."""
        ...

    @property
    def layout(self) -> Layout:
        """The ledgers with the entries that readers may see, as of now."""
        ...

    @property
    def size_bytes(self) -> int:
        """Bytes of all entries that readers may see."""
        ...

    @property
    def writing_to(self) -> int | None:
        """Id of the ledger that is being written; None if none is."""
        ...

    @property
    def terminated(self) -> Position | None:
        """The last entry of a terminated topic; None if the topic takes entries."""
        ...

    @property
    def owner_epoch(self) -> int:
        """The epoch under which this process owns the topic."""
        ...

    @property
    def reader(self) -> TopicReader:
        """Reads its entries."""
        ...

    @property
    def trimmer(self) -> TopicTrimmer:
        """Deletes its hot copies."""
        ...

    def update(self, edit: Edit) -> Snapshot:
        """Change its metadata; see :meth:`afterglow.ledger.topic_metadata.TopicMetadata.update`."""
        ...

    def check_owner(self) -> None:
        """Read the owner epoch again from the store.

        Raises:
            Fenced: Another process owns the topic, or it was deleted.
            MetadataUnavailable: The store cannot be reached.
        """
        ...

    def roll(self) -> None:
        """Close the ledger that is being written, if this process decides about it."""
        ...

    def commit_ends(self) -> None:
        """Commit the ends of closed ledgers that the list does not have yet."""
        ...


class OffloadTopics(Protocol):
    """The topics that this process offloads. Thread-safe."""

    @property
    def hot(self) -> HotLedgers:
        """Their hot log."""
        ...

    @property
    def cache(self) -> TailCache:
        """Their newest entries in memory."""
        ...

    def open(self, name: str, *, create: bool = True) -> OffloadTopic:
        """An open topic; the same object until it is closed.

        Raises:
            TopicMissing: The topic does not exist, and is not to be created.
            AfterglowError: The topic cannot be opened.
        """
        ...

    def opened(self, name: str) -> OffloadTopic | None:
        """The topic if it is open here, else None."""
        ...

    def all_opened(self) -> Sequence[OffloadTopic]:
        """Every topic that is open here."""
        ...

    def info(self, name: str) -> ManagedLedgerInfo:
        """A topic's newest metadata, open or not; not to be changed.

        Raises:
            TopicMissing: The topic does not exist.
            MetadataError: The metadata cannot be read.
        """
        ...

    def all_topics(self) -> Iterable[TopicName]:
        """Every topic, open or not.

        Raises:
            MetadataUnavailable: The store cannot be reached.
        """
        ...
