"""Roll-over: from one ledger to the next while appends go on, and the limits that trigger it.

1. Create the new hot ledger. *Crash: no list names it, it is empty, and the next start sweeps it.*
2. Commit it to the list. *Crash: the list names an empty ledger; opening the topic finishes it, and the next
   roll-over drops it.*
3. Switch appends to it, once nothing is in flight in the old one. *Crash: as after 2; the hot log knows how the old
   one ended, and opening the topic writes that into the list.*
4. Close the old one. *Crash: as after 3.*
5. Commit its entries, size and closing time, with the index and broker time that the topic has reached. *Crash: done.*

Until 3 appends go on in the old ledger; a failure of 1 or 2 leaves them there, and is tried again. After a failed
append there is nothing to go on in: then 2 also commits how the failed ledger ended, and 4 and 5 are not needed.

A topic without a ledger in use begins at 1 with its first append: opening a topic to read it writes no ledger.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from afterglow.errors import AfterglowError, Fenced, HotLogError, TopicClosed, TopicTerminated
from afterglow.ledger.ledger_list import add_ledger, finish_ledger, record_progress
from afterglow.ledger.properties import DELETING, get_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.config import BrokerConfig
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.hot.log import HotLedger
    from afterglow.ledger.append import Appender
    from afterglow.ledger.environment import Environment
    from afterglow.ledger.ledger_list import LedgerEnd
    from afterglow.ledger.state import TopicState
    from afterglow.ledger.update import Edit, Snapshot, TopicMetadata

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class RolloverLimits:
    """Bounds of one ledger."""

    max_entries: int
    max_bytes: int
    min_age_s: float
    """No limit closes a ledger that is not older; 0: any age will do."""
    max_age_s: float
    """0: age does not matter."""
    max_idle_s: float
    """0: idleness does not matter."""

    @classmethod
    def from_config(cls, config: BrokerConfig) -> RolloverLimits:
        """The limits that a configuration gives."""
        return cls(
            config.managed_ledger_max_entries_per_ledger,
            config.managed_ledger_max_size_per_ledger_mbytes * _MIB,
            config.managed_ledger_min_ledger_rollover_time_minutes * 60.0,
            config.managed_ledger_max_ledger_rollover_time_minutes * 60.0,
            config.managed_ledger_inactive_ledger_rollover_time_seconds * 1.0,
        )

    def full(self, entries: int, size_bytes: int, age_s: float) -> bool:
        """Whether a ledger with so much in it is to be followed by another. An empty one never is."""
        if not entries or (self.min_age_s and age_s <= self.min_age_s):
            return False
        old = self.max_age_s > 0 and age_s >= self.max_age_s
        return entries >= self.max_entries or size_bytes >= self.max_bytes or old

    def idle(self, entries: int, idle_s: float) -> bool:
        """Whether a ledger was left alone for so long that it is to be closed."""
        return entries > 0 and 0 < self.max_idle_s <= idle_s


_log = logging.getLogger(__name__)


class RollListener(Protocol):
    """Who wants to know. Called outside every lock."""

    def appended(self) -> None:
        """Readers can see more entries."""

    def rolled(self) -> None:
        """An ended ledger is on record. Called on the executor."""


class Roller:
    """Gets new ledgers for one topic, and puts ended ones on record. An :class:`~afterglow.ledger.append.AppendEvents`.

    Args:
        name: Of the topic, for messages.
        environment: Hot log, executor, clock.
        metadata: Where the list is.
        state: Kept in step with the list.
        listener: Told what has happened.
    """

    def __init__(
        self, name: str, environment: Environment, metadata: TopicMetadata, state: TopicState, listener: RollListener
    ) -> None:
        self._name = name
        self._metadata = metadata
        self._state = state
        self._hot = environment.hot
        self._executor = environment.executor
        self._clock = environment.clock
        self._listener = listener
        self._prepared: HotLedger | None = None
        self.work = threading.RLock()
        """Held by whoever changes which ledger is in use, or ends it for good."""
        self.appender: Appender
        """Set right after both are made: each needs the other."""

    def ledger_wanted(self) -> None:
        """Get a new ledger, on the executor."""
        self._submit(self._advance_task)

    def ledger_ended(self, ledger: HotLedger, end: LedgerEnd) -> None:
        """Put an ended ledger on record, on the executor."""
        self._submit(partial(self._finish_task, ledger, end))

    def appended(self) -> None:
        """Tell readers."""
        self._listener.appended()

    def advance(self) -> None:
        """Bring a new ledger into use (steps 1 to 3), unless one is about to be.

        Raises:
            HotLogError: The hot log cannot take a new ledger now.
            MetadataError: The list was not changed, or may have been; the same ledger is committed at the next try.
            TopicTerminated: The topic takes no more entries.
        """
        with self.work:
            while not self.appender.switching:
                # Kept if anything fails from here: the list may name it by now, so that another must not take its place
                # and it must not be deleted.
                if self._prepared is None:
                    self._prepared = self._hot.create()
                ledger = self._prepared
                self.commit(partial(_add, ledger_id=ledger.ledger_id, name=self._name))
                if self.appender.switch_to(ledger):
                    self._prepared = None
                    return

    def roll(self) -> None:
        """Go on in a new ledger, and put the one before on record (steps 1 to 5). Waits for the appends in flight.

        Raises:
            HotLogError: The hot log cannot take a new ledger now.
            MetadataError: The store failed.
            TopicTerminated: The topic takes no more entries.
        """
        with self.work:
            self.advance()
            self.appender.wait_for_switch()
            self.commit_ends()

    def update(self, edit: Edit) -> Snapshot:
        """Apply an edit to the list.

        Raises:
            Fenced: Another owner has taken over; appends are refused from now on.
            MetadataError: See :meth:`TopicMetadata.update`.
        """
        return self._applied(partial(self._metadata.update, edit))

    def check_owner(self) -> None:
        """Read the list again.

        Raises:
            Fenced: Another owner has taken over; appends are refused from now on.
            MetadataUnavailable: The store cannot be reached.
        """
        self._applied(self._metadata.check_owner)

    def _applied(self, read: Callable[[], Snapshot]) -> Snapshot:
        try:
            snapshot = read()
        except Fenced as error:
            self.appender.refuse(error)
            raise
        self._state.apply(snapshot)
        return snapshot

    def commit_ends(self) -> None:
        """Put ended ledgers on record, if there are any that are not.

        Raises:
            HotLogError: A failed ledger cannot be ended for sure yet.
            MetadataError: See :meth:`TopicMetadata.update`.
        """
        if self._state.ended():
            self.commit(_nothing)

    def commit(self, edit: Edit) -> Snapshot:
        """Apply an edit to the list, and with it what the list does not know yet: ended ledgers, index, broker time.

        Raises:
            HotLogError: A failed ledger cannot be ended for sure yet.
            MetadataError: See :meth:`TopicMetadata.update`.
        """
        with self._state.lock:
            broken = self.appender.broken
            ended = self._state.ended()
            reached = self.appender.progress
        if broken is not None:
            broken.close()
        now_ms = self._clock.now_ms()

        def edit_all(info: ManagedLedgerInfo) -> None:
            edit(info)
            for end in ended:
                finish_ledger(info, end, now_ms)
            record_progress(info, reached)

        return self.update(edit_all)

    def _submit(self, task: Callable[[], None]) -> None:
        try:
            self._executor.submit(task)
        except RuntimeError:  # the executor was shut down: the process is about to end
            self.appender.no_ledger(TopicClosed(f"{self._name} gets no new ledger: the server is shutting down"))

    def _advance_task(self) -> None:
        try:
            with self.work:
                if self.appender.wanted:  # and none came meanwhile
                    self._check_accepting()
                    self.advance()
        except (Fenced, TopicTerminated, TopicClosed) as error:
            self.appender.no_ledger(error)
            self.appender.refuse(error)
        except AfterglowError as error:
            _log.warning("%s gets no new ledger yet: %s", self._name, error)
            self.appender.no_ledger(error)
        except Exception as error:  # noqa: BLE001  whatever it is, appends must not wait for ever
            _log.exception("%s gets no new ledger", self._name)
            self.appender.no_ledger(HotLogError(f"{self._name} gets no new ledger: {error}"))

    def _check_accepting(self) -> None:
        if (refusal := self.appender.refusal) is not None:
            raise refusal

    def _finish_task(self, ledger: HotLedger, end: LedgerEnd) -> None:
        try:
            ledger.close()
            self.commit_ends()
        except AfterglowError as error:
            # The state keeps the end, and the next commit, or opening the topic, brings it to the list.
            _log.warning("ledger %d of %s has ended but is not on record yet: %s", end.ledger_id, self._name, error)
        else:
            self._listener.rolled()


def _add(info: ManagedLedgerInfo, *, ledger_id: int, name: str) -> None:
    if info.HasField("terminatedPosition"):
        raise TopicTerminated(f"{name} was terminated and takes no more entries")
    if get_text(info, DELETING) is not None:
        raise TopicClosed(f"{name} is being deleted")
    add_ledger(info, ledger_id)


def _nothing(_info: ManagedLedgerInfo) -> None:
    """Commit only what the list does not know yet."""
