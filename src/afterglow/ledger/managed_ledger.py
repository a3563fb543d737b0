"""One topic: appended to, read, acknowledged, trimmed, ended.

The topic belongs to whoever opened it last; an earlier opener is fenced, in this process or another, and can change
nothing more. Nothing here waits for metadata on the way of an append. What does wait says so; the broker runs it on a
thread.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import TYPE_CHECKING

from afterglow.errors import AfterglowError, Fenced, TopicClosed, TopicTerminated
from afterglow.ledger.append import Appender
from afterglow.ledger.cursors import Cursors
from afterglow.ledger.deletion import finish_deletion, mark_deleted
from afterglow.ledger.listeners import Listeners
from afterglow.ledger.offloading import told
from afterglow.ledger.reader import EntryReader
from afterglow.ledger.recovery import Stamper, recover
from afterglow.ledger.rollover import Roller
from afterglow.ledger.state import TopicState
from afterglow.ledger.time_search import TimeSearch
from afterglow.ledger.trimming import Trimmer
from afterglow.metadata.names import TopicName

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from afterglow.format.position import Position
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.ledger.append import Done
    from afterglow.ledger.cursor import Cursor
    from afterglow.ledger.durable_cursor import DurableCursor
    from afterglow.ledger.environment import Environment
    from afterglow.ledger.layout import Layout
    from afterglow.ledger.ledger_list import LedgerRecord, Progress
    from afterglow.ledger.reader import Reading, StoredEntry
    from afterglow.ledger.retention import Retention
    from afterglow.ledger.time_search import Found
    from afterglow.ledger.update import Edit, Snapshot, TopicMetadata

_log = logging.getLogger(__name__)


class ManagedLedger:
    """A topic that is open. Thread-safe. Made by :class:`~afterglow.ledger.store.LedgerStore`.

    Args:
        name: Its managed-ledger name.
        environment: What all topics share.
        metadata: Just opened, so that this is the owner.

    Raises:
        LedgerMissing: The hot log lacks the ledger that was being written.
        CorruptMetadata: A cursor does not parse.
        MetadataError: The store failed.
    """

    def __init__(self, name: str, environment: Environment, metadata: TopicMetadata) -> None:
        self.name = name
        self.topic = TopicName.from_managed_ledger_name(name)
        self.retention: Retention | None = None
        """How long consumed ledgers are kept; None: as the environment says at each trim."""
        self._environment = environment
        self._metadata = metadata
        snapshot, reached = recover(str(self.topic), environment, metadata)
        self._state = TopicState(snapshot)
        self._closed = False
        self._listeners = Listeners()
        self._roller = Roller(str(self.topic), environment, metadata, self._state, self)
        stamper = Stamper(environment.config.broker_entry_metadata_interceptors, reached, environment.clock)
        self._appender = Appender(environment, self._state, stamper, self._roller)
        self._roller.appender = self._appender
        self._trimmer = Trimmer(name, environment, metadata, self._state, self._roller)
        self._reader = EntryReader(environment.sources(name), environment, self._state)
        self._cursors = Cursors(name, environment, metadata, self)
        self._cursors.load()
        if self.terminated is not None:
            self._appender.refuse(self._terminated())
        self._trimmer.empty_trash()

    def __repr__(self) -> str:
        return f"ManagedLedger({self.topic}, {self.first_position}..{self.last_confirmed})"

    # --- appending ----------------------------------------------------------------------------------------------------

    def append(self, parts: Sequence[bytes | bytearray | memoryview], messages: int, done: Done) -> None:
        """Append one entry and call back; returns at once, and never waits for metadata.

        Args:
            parts: Pieces of the entry as the client sent it, to be joined; not to be changed until ``done``.
            messages: How many messages it holds; the index grows by that.
            done: Called once with the position, when the entry is durable, or with the error; in the order of the
                appends, from any thread, maybe before this returns. It must not block.

        Raises:
            EntryTooLarge: No ledger can hold it; ``done`` is not called.
        """
        self._appender.append(parts, messages, done)

    def on_append(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have ``callback`` called, from any thread, after readers can see more; returns what ends that."""
        return self._listeners.add(callback)

    @property
    def progress(self) -> Progress:
        """Index and broker time of the last confirmed entry."""
        return self._appender.progress

    # --- reading ------------------------------------------------------------------------------------------------------

    @property
    def layout(self) -> Layout:
        """Where the entries lie that readers may see, as of now."""
        return self._state.layout

    @property
    def first_position(self) -> Position:
        """The first entry; in an empty topic, a position not behind any entry to come."""
        return self.layout.first

    @property
    def last_confirmed(self) -> Position:
        """The last entry; in an empty topic, a position before every entry to come."""
        return self.layout.last

    @property
    def size_bytes(self) -> int:
        """Bytes of all entries."""
        return self._state.size_bytes

    @property
    def number_of_entries(self) -> int:
        """All entries that readers may see."""
        return self.layout.total_entries

    def next_valid(self, position: Position) -> Position:
        """The entry behind ``position``; behind the last one, where the next may come."""
        following = position.next()
        return self.layout.at_or_after(following) or following

    def entries_between(self, after: Position, until: Position) -> int:
        """How many entries stand behind ``after`` and not behind ``until``."""
        return self.layout.entries_between(after, until)

    def read(self, position: Position, max_entries: int, max_bytes: int) -> list[StoredEntry]:
        """Entries from ``position`` on, in order, across ledgers; at least one if there is one. May wait for a disk.

        Raises:
            LedgerMissing: No copy of a ledger can be read.
            CorruptBlock: What is stored is damaged.
        """
        return self._reader.read(position, max_entries, max_bytes)

    def read_over(self, position: Position, max_entries: int, max_bytes: int) -> Reading:
        """The same, and what was left out on the way because no copy can give it. May wait for a disk or a tier.

        Raises:
            LedgerMissing: No copy of a ledger can be read.
            CorruptBlock: What is stored is damaged.
        """
        return self._reader.read_over(position, max_entries, max_bytes)

    def read_memory(self, position: Position, max_entries: int, max_bytes: int) -> Reading | None:
        """What :meth:`read` would begin with as far as it is in memory; None where it is not. Never waits."""
        return self._reader.read_memory(position, max_entries, max_bytes)

    def is_far(self, position: Position) -> bool:
        """Whether a read that begins there may have to wait for a tier. Never waits."""
        return self._reader.is_far(position)

    def first_at_or_after(self, time_ms: int) -> Found:
        """The first entry written at or after a moment; see :mod:`afterglow.ledger.time_search`.

        May wait for a disk or a tier.

        Raises:
            LedgerMissing: No copy of a ledger can be read.
            AfterglowError: An entry that must be looked at cannot be read.
        """
        with self._state.lock:
            layout = self._state.layout
            times = {row.ledger_id: row.last_broker_time_ms for row in self._state.records}
            times.update({end.ledger_id: end.last_broker_time_ms for end in self._state.ended()})
        recorded = {ledger_id: time for ledger_id, time in times.items() if time is not None}
        return TimeSearch(self._reader, layout, recorded).first_at_or_after(time_ms)

    def find_by_time(self, time_ms: int) -> Position:
        """What to read next after a seek by time: behind the last entry where all were written before."""
        found = self.first_at_or_after(time_ms).position
        return self.last_confirmed.next() if found is None else found

    def last_before(self, time_ms: int) -> Position | None:
        """The last entry before which, and itself, all were written before a moment: what a TTL lets expire."""
        layout = self.layout
        found = self.first_at_or_after(time_ms).position
        older = layout.total_entries if found is None else layout.rank(found.previous())
        return layout.at_rank(older - 1) if older > 0 else None

    # --- cursors ------------------------------------------------------------------------------------------------------

    def cursors(self) -> tuple[DurableCursor, ...]:
        """The durable cursors, as of now."""
        return tuple(self._cursors.durable.values())

    def cursor(self, name: str) -> DurableCursor:
        """A durable cursor.

        Raises:
            CursorMissing: There is none of that name.
        """
        return self._cursors.get(name)

    def create_cursor(self, name: str, start: Position, properties: Mapping[str, str] | None = None) -> DurableCursor:
        """A durable cursor, created where there is none; one that is there stays as it is. Waits for metadata.

        Args:
            name: Of the subscription, not encoded.
            start: Of a new one: the entry to be read first; ``EARLIEST`` and ``LATEST`` mean the ends of the topic.
            properties: Of a new one.

        Raises:
            InvalidName: The name is not well-formed.
            MetadataError: The store failed; the cursor may be there.
        """
        return self._cursors.create(name, start, properties)

    def delete_cursor(self, name: str) -> None:
        """Remove a durable cursor for good. Waits for metadata.

        Raises:
            CursorMissing: There is none of that name.
            MetadataError: The store failed; the cursor may be gone after a restart.
        """
        self._cursors.delete(name)

    def limit_mark_deletes(self, per_second: float) -> None:
        """Persist at most so many states of each cursor per second from now on; 0: as many as come."""
        self._cursors.limit_rate(per_second)

    def create_reader(self, name: str, start: Position) -> Cursor:
        """A cursor in memory only, which holds nothing back from being trimmed; forgotten when nobody holds it.

        Args:
            name: For messages; need not be unique.
            start: The entry to be read first; ``EARLIEST`` and ``LATEST`` mean the ends of the topic.
        """
        return self._cursors.create_reader(name, start)

    # --- the list of ledgers ------------------------------------------------------------------------------------------

    @property
    def ledgers(self) -> tuple[LedgerRecord, ...]:
        """The list of ledgers, ascending."""
        return self._state.records

    @property
    def info(self) -> ManagedLedgerInfo:
        """The newest metadata known here. Not to be changed: use :meth:`update`."""
        return self._state.snapshot.info

    @property
    def owner_epoch(self) -> int:
        """The epoch under which the topic is owned."""
        return self._metadata.owner_epoch

    @property
    def writing_to(self) -> int | None:
        """The ledger that takes appends; None until the first append after opening."""
        return self._state.writing_to

    def update(self, edit: Edit) -> Snapshot:
        """Change the topic's metadata; see :meth:`TopicMetadata.update`. Waits for metadata.

        Raises:
            Fenced: Another owner has taken over; appends are refused from now on.
            MetadataError: The store failed.
        """
        return self._roller.update(edit)

    def check_owner(self) -> None:
        """Find out whether the topic is still owned here, as far as the store knows. Waits for metadata.

        Raises:
            Fenced: Another owner has taken over, or the topic was deleted; appends are refused from now on.
            MetadataUnavailable: The store cannot be reached.
        """
        self._roller.check_owner()

    def roll(self) -> None:
        """Go on in a new ledger, and put the one before on record. Waits for metadata and for appends in flight.

        Raises:
            HotLogError: The hot log cannot take a new ledger now.
            MetadataError: The store failed.
            TopicTerminated: The topic takes no more entries.
        """
        self._roller.roll()

    def commit_ends(self) -> None:
        """Put ledgers on record that have ended and are not, which else comes a moment later. Waits for metadata.

        Raises:
            HotLogError: A failed ledger cannot be ended for sure yet.
            MetadataError: The store failed.
        """
        self._roller.commit_ends()

    # --- letting go ---------------------------------------------------------------------------------------------------

    def trim(self) -> tuple[int, ...]:
        """Let go of ledgers that are consumed and that retention no longer holds; returns their ids.

        Waits for metadata.

        Raises:
            MetadataError: The store failed; nothing is lost, and the next call goes on.
        """
        # A topic is open before anybody serves it, and for offload alone: its policies count all the same.
        told_retention = self.retention
        if told_retention is None:
            told_retention = self._environment.retention(self.name)
        return self._trimmer.trim(self._cursors, told_retention)

    def truncate(self) -> tuple[int, ...]:
        """Acknowledge everything for every cursor and let go of it; returns the ids. Waits as :meth:`roll` does.

        Raises:
            HotLogError: The hot log cannot take a new ledger now.
            MetadataError: The store failed; what was let go of so far stays so.
        """
        return self._trimmer.truncate(self._cursors)

    def free(self, ledger_ids: Collection[int]) -> tuple[int, ...]:
        """Delete the hot copies of ledgers that are offloaded whole; returns those that were.

        1. Commit that the hot copies are gone, and note them as trash. *Crash: readers use the tier; opening the topic
           goes on.*
        2. Delete them; see :mod:`afterglow.ledger.trimming`.

        Raises:
            MetadataError: The store failed; nothing is lost, and the next call goes on.
        """
        return self._trimmer.free(ledger_ids)

    def discard(self, ledger_ids: Collection[int], edit: Edit) -> None:
        """Take ledgers off the list whatever retention says, and change it otherwise with the same compare-and-set.

        The last ledger of the list must stay. Copies outside the hot log are the caller's to see to. Waits for
        metadata.

        Raises:
            Fenced: Another owner has taken over.
            MetadataError: The store failed.
            AfterglowError: What the edit raises; nothing was changed.
        """
        self._trimmer.discard(ledger_ids, edit, self._cursors)

    def terminate(self) -> Position:
        """End the topic for good; returns its last entry. Waits for appends in flight and for metadata.

        1. Refuse appends, wait for those in flight, close the ledger. *Crash: the topic goes on.*
        2. Commit the last position, with the ledger's end. *Crash: the topic is terminated.*

        Raises:
            HotLogError: A failed ledger cannot be ended for sure yet.
            MetadataError: The store failed; the topic goes on, or turns out to be terminated at the next append.
        """
        with self._roller.work:
            if (known := self.terminated) is not None:
                return known
            self._appender.shut(self._terminated())
            last = self.last_confirmed

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
        self._environment.offloading.ended(self.name)
        self._listeners.call()
        return self.terminated or last  # an attempt that was not heard of may have committed it before

    @property
    def terminated(self) -> Position | None:
        """The last entry of a terminated topic; None where the topic goes on."""
        return self._state.terminated

    def delete(self) -> None:
        """Delete the topic with its cursors; see :mod:`afterglow.ledger.trimming`. Waits for all of it.

        Raises:
            HotLogError: A hot copy cannot be deleted now; the next start goes on.
            MetadataError: The store failed; the topic goes on, or the next start goes on with deleting it.
        """
        with self._roller.work, ExitStack() as leaving:
            self._appender.shut(TopicClosed(f"{self.topic} is being deleted"))
            try:
                leaving.enter_context(told(self._environment.offloading, self.name, self.info.ledgerInfo))
                self.update(mark_deleted)
            except Fenced:
                raise
            except AfterglowError:
                self._appender.accept()
                raise
            self._closed = True
            self._cursors.abandon()
            finish_deletion(self._environment, self._metadata)

    def close(self) -> None:
        """Refuse appends, wait for those in flight, put the last ledger and the cursors on record.

        Where metadata cannot be reached that is left to the next opener. A second call does nothing. Not to be called
        on the thread that delivers the hot log's completions, since it waits for these.
        """
        with self._roller.work:
            if self._closed:
                return
            self._closed = True
            self._appender.shut(TopicClosed(f"{self.topic} was closed: open it again"))
            try:
                self._roller.commit_ends()
            except AfterglowError as error:
                _log.warning("%s was closed but its last ledger is not on record: %s", self.topic, error)
            self._cursors.close()

    @property
    def closed(self) -> bool:
        """Whether it was closed or deleted, and must be opened anew."""
        return self._closed

    # --- upkeep -------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """To be called every second or so, on a thread: roll-over by age, ends not on record yet, states of cursors."""
        if self._metadata.stale:
            self.update(_nothing)  # readers would go on to look for what a change without an answer has let go of
        self._appender.roll_if_due()
        # A ledger that failed is put on record with the next one: until then its disk may not even let it be closed.
        if self._state.ended() and self._appender.broken is None:
            self.rolled()
        self._cursors.tick()

    def appended(self) -> None:
        """Told by the append path: readers can see more."""
        self._listeners.call()

    def rolled(self) -> None:
        """Told by the roll-over: a ledger has ended. Puts it on record where that failed, and trims."""
        try:
            self._roller.commit_ends()
            self._environment.offloading.ended(self.name)
            self.trim()
        except AfterglowError as error:
            _log.warning("%s is trimmed later: %s", self.topic, error)

    def _terminated(self) -> TopicTerminated:
        return TopicTerminated(f"{self.topic} was terminated and takes no more entries")


def _nothing(_info: ManagedLedgerInfo) -> None:
    """Change nothing: the list is read again where that is needed."""
