"""Roll-over from one ledger to the next while appends continue, and the limits that trigger it.

1. Create the new hot ledger. *Crash: no list names it, it is empty, and the next start sweeps it.*
2. Commit it to the list. *Crash: the list names an empty ledger; opening the topic closes it, and the next roll-over
   removes it.*
3. Switch appends to it, once nothing is in flight in the old one. *Crash: as after 2; the hot log has the end of the
   old ledger, and opening the topic commits it.*
4. Close the old one. *Crash: as after 3.*
5. Commit its entries, size and closing time, with the topic's last index and broker time. *Crash: done.*

Until step 3 appends go to the old ledger; they stay there if 1 or 2 fails, and the roll-over is retried. After a failed
append there is no ledger to stay in: step 2 then also commits the end of the failed ledger, and 4 and 5 are skipped.

A topic without a current ledger begins with step 1 at its first append: opening a topic to read it creates no ledger.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from afterglow.errors import AfterglowError, Fenced, HotLogError, TopicClosed, TopicTerminated
from afterglow.events import log_event
from afterglow.ledger.ledger_list import add_ledger, finish_ledger, record_last_stamp
from afterglow.ledger.properties import DELETING, get_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from afterglow.config import BrokerConfig
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.hot.log import HotLedger
    from afterglow.ledger.append import Appender
    from afterglow.ledger.environment import Environment
    from afterglow.ledger.ledger_list import LedgerEnd
    from afterglow.ledger.managed_ledger_state import ManagedLedgerState
    from afterglow.ledger.topic_metadata import Edit, Snapshot, TopicMetadata

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class RolloverLimits:
    """Bounds of one ledger."""

    max_entries: int
    max_bytes: int
    min_age_s: float
    """No limit closes a younger ledger; 0: no minimum."""
    max_age_s: float
    """0: no limit."""
    max_idle_s: float
    """0: no limit."""

    @classmethod
    def from_config(cls, config: BrokerConfig) -> RolloverLimits:
        """The limits in the broker's settings."""
        return cls(
            config.managed_ledger_max_entries_per_ledger,
            config.managed_ledger_max_size_per_ledger_mbytes * _MIB,
            config.managed_ledger_min_ledger_rollover_time_minutes * 60.0,
            config.managed_ledger_max_ledger_rollover_time_minutes * 60.0,
            config.managed_ledger_inactive_ledger_rollover_time_seconds * 1.0,
        )

    def full(self, entries: int, size_bytes: int, age_s: float) -> bool:
        """Whether a ledger has reached a limit. An empty one never has."""
        if not entries or (self.min_age_s and age_s <= self.min_age_s):
            return False
        old = self.max_age_s > 0 and age_s >= self.max_age_s
        return entries >= self.max_entries or size_bytes >= self.max_bytes or old

    def idle(self, entries: int, idle_s: float) -> bool:
        """Whether a ledger with entries has been idle for too long."""
        return entries > 0 and 0 < self.max_idle_s <= idle_s


_log = logging.getLogger(__name__)


class Roller:
    """Creates ledgers for one topic, and commits the ends of old ones.

    Args:
        name: The topic's name, for messages.
        environment: Hot log, executor, clock.
        metadata: The topic's metadata.
        state: Kept up to date with the list.
        on_rollover: Called on the executor, outside every lock, after the end of a ledger was committed.
    """

    def __init__(
        self,
        name: str,
        environment: Environment,
        metadata: TopicMetadata,
        state: ManagedLedgerState,
        on_rollover: Callable[[], None],
    ) -> None:
        self._name = name
        self.metadata = metadata
        """The topic's metadata."""
        self._state = state
        self._hot = environment.hot
        self._executor = environment.executor
        self._clock = environment.clock
        self._on_rollover = on_rollover
        self._prepared: HotLedger | None = None
        self.work = threading.RLock()
        """Held while the current ledger is changed or ended, and while ledgers are removed."""
        self.appender: Appender
        """Set right after construction, since roller and appender need each other."""

    def ledger_wanted(self) -> None:
        """Create a new ledger, on the executor; then call the appender's ``switch_to`` or ``no_ledger``."""
        self._submit(self._advance_task)

    def ledger_ended(self, ledger: HotLedger, end: LedgerEnd) -> None:
        """Close a ledger without appends in flight, and commit its end, on the executor."""
        self._submit(partial(self._finish_task, ledger, end))

    def advance(self) -> None:
        """Switch to a new ledger (steps 1 to 3), unless a switch is under way.

        Raises:
            HotLogError: The hot log cannot take a new ledger now.
            MetadataError: The list was not changed, or may have been; the next attempt commits the same ledger.
            TopicTerminated: The topic takes no more entries.
        """
        with self.work:
            while not self.appender.switching:
                # Kept if anything fails from here: the list may name it by now, so that it must neither be replaced by
                # another nor deleted.
                if self._prepared is None:
                    self._prepared = self._hot.create()
                ledger = self._prepared
                self.commit(partial(_add, ledger_id=ledger.ledger_id, name=self._name))
                if self.appender.switch_to(ledger):
                    self._prepared = None
                    return

    def roll(self) -> None:
        """Switch to a new ledger and commit the end of the old one (steps 1 to 5). Waits for the appends in flight.

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
            Fenced: Another process owns the topic; appends are refused from now on.
            MetadataError: See :meth:`TopicMetadata.update`.
        """
        return self._applied(partial(self.metadata.update, edit))

    def check_owner(self) -> None:
        """Read the list again.

        Raises:
            Fenced: Another process owns the topic; appends are refused from now on.
            MetadataUnavailable: The store cannot be reached.
        """
        self._applied(self.metadata.check_owner)

    def _applied(self, read: Callable[[], Snapshot]) -> Snapshot:
        try:
            snapshot = read()
        except Fenced as error:
            self.appender.refuse(error)
            raise
        self._state.apply(snapshot)
        return snapshot

    def commit_ends(self) -> None:
        """Commit the ends of closed ledgers that the list does not have yet.

        Raises:
            HotLogError: A failed ledger cannot be closed for certain yet.
            MetadataError: See :meth:`TopicMetadata.update`.
        """
        if self._state.ended():
            self.commit(_unchanged)

    def commit(self, edit: Edit) -> Snapshot:
        """Apply an edit to the list, together with ends of ledgers, index and broker time that it does not have yet.

        Raises:
            HotLogError: A failed ledger cannot be closed for certain yet.
            MetadataError: See :meth:`TopicMetadata.update`.
        """
        with self._state.lock:
            broken = self.appender.broken
            ended = self._state.ended()
            reached = self.appender.last_stamp
        if broken is not None:
            broken.close()
        now_ms = self._clock.now_ms()

        rolled: list[LedgerEnd] = []

        def edit_all(info: ManagedLedgerInfo) -> None:
            edit(info)
            rolled[:] = [end for end in ended if finish_ledger(info, end, now_ms)]
            record_last_stamp(info, reached)

        snapshot = self.update(edit_all)
        for end in rolled:
            fields = {"ledger": end.ledger_id, "entries": end.entries, "bytes": end.size_bytes}
            following = self._state.writing_to
            text = "ledger closed" if following is None else "ledger rolled"
            log_event(_log, text, topic=self._name, **fields, next=following)
        return snapshot

    def _submit(self, task: Callable[[], None]) -> None:
        try:
            self._executor.submit(task)
        except RuntimeError:  # the executor was shut down: the process is about to end
            self.appender.no_ledger(TopicClosed(f"no new ledger for {self._name}: the server is shutting down"))

    def _advance_task(self) -> None:
        try:
            with self.work:
                if self.appender.wanted:  # no other call has created one meanwhile
                    self._check_accepting()
                    self.advance()
        except (Fenced, TopicTerminated, TopicClosed) as error:
            self.appender.no_ledger(error)
            self.appender.refuse(error)
        except AfterglowError as error:
            _log.warning("no new ledger for %s yet: %s", self._name, error)
            self.appender.no_ledger(error)
        except Exception as error:  # noqa: BLE001  appends must not wait for ever, whatever the error
            _log.exception("no new ledger for %s", self._name)
            self.appender.no_ledger(HotLogError(f"no new ledger for {self._name}: {error}"))

    def _check_accepting(self) -> None:
        if (refusal := self.appender.refusal) is not None:
            raise refusal

    def _finish_task(self, ledger: HotLedger, end: LedgerEnd) -> None:
        try:
            ledger.close()
            self.commit_ends()
        except AfterglowError as error:
            # The state keeps the end; the next commit, or the next owner, adds it to the list.
            _log.warning("the end of ledger %d of %s is not committed yet: %s", end.ledger_id, self._name, error)
        else:
            self._on_rollover()


def _add(info: ManagedLedgerInfo, *, ledger_id: int, name: str) -> None:
    if info.HasField("terminatedPosition"):
        raise TopicTerminated(f"{name} was terminated and takes no more entries")
    if get_text(info, DELETING) is not None:
        raise TopicClosed(f"{name} is being deleted")
    add_ledger(info, ledger_id)


def _unchanged(_info: ManagedLedgerInfo) -> None:
    """An edit that changes nothing."""
