"""One open topic: a managed ledger that is appended to, read, acknowledged, trimmed and terminated.

A topic has one owner, the process that opened it last. Earlier owners are fenced, in this process or another, and can
change nothing more. An append never waits for metadata. Methods that do wait say so; the broker runs them on a thread.
"""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from afterglow.errors import AfterglowError, Fenced, TopicClosed, TopicTerminated
from afterglow.format.new_entries import NewEntry
from afterglow.ledger.append import Appender
from afterglow.ledger.cursors import Cursors
from afterglow.ledger.deletion import finish_deletion, mark_deleted
from afterglow.ledger.managed_ledger_state import ManagedLedgerState
from afterglow.ledger.offload_hooks import recorded_removal
from afterglow.ledger.reader import EntryReader
from afterglow.ledger.recovery import Stamper, recover
from afterglow.ledger.rollover import Roller
from afterglow.ledger.trimming import Trimmer
from afterglow.metadata.names import TopicName

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from afterglow.format.new_entries import NewEntries
    from afterglow.format.position import Position
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.ledger.append import Done
    from afterglow.ledger.environment import Environment
    from afterglow.ledger.layout import Layout
    from afterglow.ledger.ledger_list import EntryStamp, LedgerRecord
    from afterglow.ledger.retention import Retention
    from afterglow.ledger.topic_metadata import Edit, Snapshot, TopicMetadata

_log = logging.getLogger(__name__)


class Listeners:
    """Callbacks without arguments. Thread-safe; a callback that raises is logged and does not stop the others."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: tuple[Callable[[], None], ...] = ()

    def add(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` from now on; returns a function that removes it, and may be called twice."""
        entry = partial(callback)  # the same function may be added twice, and each is removed by itself
        with self._lock:
            self._callbacks = (*self._callbacks, entry)
        return partial(self._remove, entry)

    def call(self) -> None:
        """Call every callback, in the order in which they were added."""
        for callback in self._callbacks:
            try:
                callback()
            except Exception:  # noqa: BLE001  a callback may raise anything
                _log.exception("a listener failed")

    def _remove(self, entry: Callable[[], None]) -> None:
        with self._lock:
            self._callbacks = tuple(callback for callback in self._callbacks if callback is not entry)


class ManagedLedger:
    """An open topic. Thread-safe. Made by :class:`~afterglow.ledger.store.LedgerStore`.

    Args:
        name: Its managed-ledger name.
        environment: Hot log, metadata store and settings, shared by all topics.
        metadata: The topic's metadata, just opened, so that this process is the owner.

    Raises:
        LedgerMissing: The hot log lacks the ledger that was being written.
        CorruptMetadata: A cursor does not parse.
        MetadataError: The store failed.
    """

    def __init__(self, name: str, environment: Environment, metadata: TopicMetadata) -> None:
        self.name = name
        self.topic = TopicName.from_managed_ledger_name(name)
        self.retention: Retention | None = None
        """How long consumed ledgers are kept; None: the environment is asked at each trim."""
        self._environment = environment
        self._metadata = metadata
        snapshot, reached = recover(str(self.topic), environment, metadata)
        self._state = ManagedLedgerState(snapshot)
        self._closed = False
        self._listeners = Listeners()
        self._roller = Roller(str(self.topic), environment, metadata, self._state, self._on_rollover)
        stamper = Stamper(environment.config.broker_entry_metadata_interceptors, reached, environment.clock)
        self._appender = Appender(environment, self._state, stamper, self._roller, self._listeners.call)
        self._roller.appender = self._appender
        self.reader = EntryReader(environment.sources(name), environment, self._state)
        """Reads entries by position, and finds them by time."""
        self.cursors = Cursors(name, environment, metadata, self.reader)
        """Durable cursors of subscriptions, and cursors in memory for readers."""
        self.trimmer = Trimmer(name, environment, self._state, self._roller, self.cursors)
        """Removes ledgers from the list, and frees hot copies."""
        self.cursors.load()
        if self.terminated is not None:
            self._appender.refuse(self._terminated())
        self.trimmer.delete_hot_copies()

    def __repr__(self) -> str:
        return f"ManagedLedger({self.topic}, {self.layout.first}..{self.layout.last})"

    # --- appending ----------------------------------------------------------------------------------------------------

    def append(self, parts: Sequence[bytes | bytearray | memoryview], messages: int, done: Done) -> None:
        """Append one entry and call back; see :meth:`append_all`.

        Args:
            parts: Buffers that make up the entry as the client sent it.
            messages: Number of messages in the entry; the index grows by it.
            done: Called as by :meth:`append_all`.

        Raises:
            EntryTooLarge: No ledger can hold it; ``done`` is not called.
        """
        self._appender.append(NewEntry(b"".join(parts), messages), done)

    def append_all(self, entries: NewEntries, done: Done) -> None:
        """Append entries, all or none, and call back; returns at once, and never waits for metadata.

        Args:
            entries: The entries; their memory may be reused when this returns.
            done: Called once with the position of the first one when all are durable, or with the error; in the order
                of the appends, from any thread, possibly before this returns. It must not block.

        Raises:
            EntryTooLarge: No ledger can hold one of them; ``done`` is not called.
        """
        self._appender.append(entries, done)

    def on_append(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback``, from any thread, after new entries become readable; returns a function that removes it."""
        return self._listeners.add(callback)

    @property
    def last_stamp(self) -> EntryStamp:
        """Index and broker time of the last confirmed entry."""
        return self._appender.last_stamp

    # --- ledgers and their entries ------------------------------------------------------------------------------------

    @property
    def layout(self) -> Layout:
        """The ledgers with the entries that readers may see, as of now."""
        return self._state.layout

    @property
    def size_bytes(self) -> int:
        """Bytes of all entries that readers may see."""
        return self._state.size_bytes

    @property
    def ledgers(self) -> tuple[LedgerRecord, ...]:
        """The ledger list, ascending by id."""
        return self._state.records

    @property
    def info(self) -> ManagedLedgerInfo:
        """The newest metadata known here. Not to be changed: use :meth:`update`."""
        return self._state.snapshot.info

    @property
    def writing_to(self) -> int | None:
        """Id of the ledger that takes appends; None until the first append after opening."""
        return self._state.writing_to

    @property
    def owner_epoch(self) -> int:
        """The epoch under which this process owns the topic."""
        return self._metadata.owner_epoch

    def update(self, edit: Edit) -> Snapshot:
        """Change the topic's metadata; see :meth:`TopicMetadata.update`. Waits for metadata.

        Raises:
            Fenced: Another process owns the topic; appends are refused from now on.
            MetadataError: The store failed.
        """
        return self._roller.update(edit)

    def check_owner(self) -> None:
        """Read the owner epoch again from the store. Waits for metadata.

        Raises:
            Fenced: Another process owns the topic, or it was deleted; appends are refused from now on.
            MetadataUnavailable: The store cannot be reached.
        """
        self._roller.check_owner()

    def roll(self) -> None:
        """Switch appends to a new ledger and commit the end of the old one. Waits for metadata and appends in flight.

        Raises:
            HotLogError: The hot log cannot take a new ledger now.
            MetadataError: The store failed.
            TopicTerminated: The topic takes no more entries.
        """
        self._roller.roll()

    def commit_ends(self) -> None:
        """Commit the ends of closed ledgers now rather than a moment later. Waits for metadata.

        Raises:
            HotLogError: A failed ledger cannot be closed for certain yet.
            MetadataError: The store failed.
        """
        self._roller.commit_ends()

    def trim(self) -> tuple[int, ...]:
        """Remove ledgers that are consumed and past retention; returns their ids. Waits for metadata.

        Raises:
            MetadataError: The store failed; nothing is lost, and the next call continues.
        """
        # A topic may be open before the broker serves it, or for offload alone. Its policies apply all the same.
        retention = self.retention
        return self.trimmer.trim(self._environment.retention(self.name) if retention is None else retention)

    # --- end of the topic ---------------------------------------------------------------------------------------------

    def terminate(self) -> Position:
        """End the topic for good; returns its last entry. Waits for appends in flight and for metadata.

        1. Refuse appends, wait for those in flight, close the ledger. *Crash: the topic takes appends again.*
        2. Commit the last position, with the ledger's end. *Crash: the topic is terminated.*

        Raises:
            HotLogError: A failed ledger cannot be closed for certain yet.
            MetadataError: The store failed; the topic takes appends again, or the next append finds it terminated.
        """
        with self._roller.work:
            if (known := self.terminated) is not None:
                return known
            self._appender.shut(self._terminated())
            last = self.layout.last

            def edit(info: ManagedLedgerInfo) -> None:
                if not info.HasField("terminatedPosition"):
                    info.terminatedPosition.ledgerId = last.ledger_id
                    info.terminatedPosition.entryId = last.entry_id

            try:
                self._roller.commit(edit)
            except Fenced:
                raise
            except AfterglowError:
                self._appender.accept()
                raise
        self._environment.offloading.on_ledger_closed(self.name)
        self._listeners.call()
        return self.terminated or last  # an earlier attempt with an unknown outcome may have committed another position

    @property
    def terminated(self) -> Position | None:
        """The last entry of a terminated topic; None if the topic takes appends."""
        return self._state.terminated

    def delete(self) -> None:
        """Delete the topic with its cursors; see :mod:`afterglow.ledger.deletion`. Waits for all of it.

        Raises:
            HotLogError: A hot copy cannot be deleted now; the next start continues.
            MetadataError: The store failed; the topic is unchanged, or the next start continues the deletion.
        """
        with self._roller.work, ExitStack() as removal:
            self._appender.shut(TopicClosed(f"{self.topic} is being deleted"))
            try:
                removal.enter_context(recorded_removal(self._environment.offloading, self.name, self.info.ledgerInfo))
                self.update(mark_deleted)
            except Fenced:
                raise
            except AfterglowError:
                self._appender.accept()
                raise
            self._closed = True
            self.cursors.abandon()
            finish_deletion(self._environment, self._metadata)

    def close(self) -> None:
        """Refuse appends, wait for those in flight, commit the end of the last ledger and the cursors.

        If metadata cannot be reached, the next owner does that. A second call does nothing. Not to be called on the
        thread that delivers the hot log's completions, since it waits for these.
        """
        with self._roller.work:
            if self._closed:
                return
            self._closed = True
            self._appender.shut(TopicClosed(f"{self.topic} was closed; open it again"))
            try:
                self._roller.commit_ends()
            except AfterglowError as error:
                _log.warning("%s was closed, but the end of its last ledger is not committed: %s", self.topic, error)
            self.cursors.close()

    @property
    def closed(self) -> bool:
        """Whether it was closed or deleted, and must be opened anew."""
        return self._closed

    # --- periodic work ------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Roll over by age, commit ends of ledgers, persist cursors. To be called every second or so, on a thread."""
        if self._metadata.stale:
            # Readers must not ask for ledgers that a change without a known outcome has removed.
            self.update(_unchanged)
        self._appender.roll_if_due()
        # The end of a failed ledger is committed with the next ledger: until then its disk may not let it be closed.
        if self._state.ended() and self._appender.broken is None:
            self._on_rollover()
        self.cursors.tick()

    def _on_rollover(self) -> None:
        """Commit ends that are not committed yet, schedule offload, and trim."""
        try:
            self._roller.commit_ends()
            self._environment.offloading.on_ledger_closed(self.name)
            self.trim()
        except AfterglowError as error:
            _log.warning("%s will be trimmed later: %s", self.topic, error)

    def _terminated(self) -> TopicTerminated:
        return TopicTerminated(f"{self.topic} was terminated and takes no more entries")


def _unchanged(_info: ManagedLedgerInfo) -> None:
    """An edit that changes nothing: the update reads the value again if it is stale."""
