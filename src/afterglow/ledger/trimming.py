"""Trimming of a topic's oldest ledgers, by retention or truncation, and deletion of their hot copies.

The edit that removes a ledger from the list records its id as a pending delete in the same commit, so that no hot copy
is lost track of:

1. Remove the ledgers from the list, and record them as pending deletes. *Crash: readers do not see them any more;
   opening the topic continues with step 2.*
2. Delete their hot copies. *Crash: deleting again is harmless.*
3. Remove the pending deletes. *Crash: done.*

:mod:`afterglow.ledger.retention` selects the ledgers. Copies in tiers have intents of their own, recorded through
:mod:`afterglow.ledger.offload_hooks` and carried out by :mod:`afterglow.offload.pending_deletes`.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from afterglow.errors import AfterglowError, HotLogError
from afterglow.events import log_event
from afterglow.format.position import Position
from afterglow.ledger.ledger_list import drop_ledgers, free_ledgers, remove_pending_deletes
from afterglow.ledger.offload_hooks import recorded_removal
from afterglow.ledger.properties import get_pending_deletes
from afterglow.ledger.retention import consumed_before, ledgers_to_trim, ledgers_to_truncate
from afterglow.metadata.names import TopicName
from afterglow.metadata.paths import topic_label

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.ledger.cursors import Cursors
    from afterglow.ledger.environment import Environment
    from afterglow.ledger.ledger_list import LedgerRecord
    from afterglow.ledger.managed_ledger_state import ManagedLedgerState
    from afterglow.ledger.retention import Retention
    from afterglow.ledger.rollover import Roller
    from afterglow.ledger.topic_metadata import Edit, Snapshot, TopicMetadata

_log = logging.getLogger(__name__)


def delete_hot_copies(environment: Environment, metadata: TopicMetadata) -> Snapshot:
    """Steps 2 and 3, for every pending delete. Ledgers that the hot log cannot delete now stay pending.

    Raises:
        MetadataError: The pending deletes were not removed; the ledgers will be deleted again.
    """
    deleted: list[int] = []
    for ledger_id in get_pending_deletes(metadata.snapshot.info):
        environment.cache.drop_ledger(ledger_id)
        try:
            environment.hot.delete(ledger_id)
        except HotLogError as error:
            _log.warning("the hot copy of ledger %d will be deleted later: %s", ledger_id, error)
        else:
            deleted.append(ledger_id)
    for ledger_id in deleted:
        log_event(_log, "hot copy deleted", topic=topic_label(metadata.path), ledger=ledger_id)
    return metadata.update(partial(remove_pending_deletes, ledger_ids=deleted)) if deleted else metadata.snapshot


class Trimmer:
    """Removes ledgers of one topic. Thread-safe; calls do not overlap.

    Args:
        name: The managed-ledger name.
        environment: Hot log, cache, clock, offload hooks.
        state: Kept up to date with the list.
        roller: Changes the list, and makes the ledger that is to be the last.
        cursors: The slowest durable one holds back trimming.
    """

    def __init__(
        self, name: str, environment: Environment, state: ManagedLedgerState, roller: Roller, cursors: Cursors
    ) -> None:
        self._name = name
        self._environment = environment
        self._state = state
        self._roller = roller
        self._cursors = cursors
        self._offloading = environment.offloading

    def trim(self, retention: Retention) -> tuple[int, ...]:
        """Remove ledgers that are consumed and past retention; returns their ids. Waits for metadata.

        Raises:
            MetadataError: The store failed; nothing is lost, and the next call continues.
        """
        with self._roller.work:
            records = self._state.records
            choose = partial(
                ledgers_to_trim,
                below=consumed_before(self._cursors.mark_deletes(), records),
                retention=retention,
                now_ms=self._environment.clock.now_ms(),
                in_use=self._in_use,
            )
            if self._can_replace_last(records):
                last = records[-1]
                following = replace(last, ledger_id=last.ledger_id + 1, entries=None, size_bytes=None, closed_ms=0)
                if last.ledger_id in choose([*records, following]):
                    self._try_roll()
                    records = self._state.records
            return self._drop(choose(records), "consumed and past retention", retention.policy)

    def truncate(self) -> tuple[int, ...]:
        """Acknowledge and remove every entry; returns ids of the removed ledgers. Waits as a roll-over does.

        Raises:
            HotLogError: The hot log cannot take a new ledger now.
            MetadataError: The store failed; acknowledgements and removals made so far stay.
        """
        with self._roller.work:
            end = self._state.layout.last
            if self._state.terminated is None and self._state.layout.total_entries:
                self._roller.roll()
                # Entries appended since then are not acknowledged.
                end = min(Position(self._state.records[-1].ledger_id, -1), self._state.layout.last)
            for cursor in (*self._cursors.durable.values(), *self._cursors.readers):
                cursor.ack_through(end)
            return self._drop(ledgers_to_truncate(self._state.records, self._in_use), "truncated on request")

    def free(self, ledger_ids: Collection[int]) -> tuple[int, ...]:
        """Delete the hot copies of those of the ledgers that are fully offloaded; returns their ids.

        1. Commit that the hot copies are gone, and record them as pending deletes. *Crash: readers use the tier;
           opening the topic continues with step 2.*
        2. Delete them: steps 2 and 3 of :mod:`afterglow.ledger.trimming`.

        Raises:
            MetadataError: The store failed; nothing is lost, and the next call continues.
        """
        with self._roller.work:
            self._roller.update(partial(free_ledgers, ledger_ids=frozenset(ledger_ids)))
            self.delete_hot_copies()
            return tuple(
                record.ledger_id
                for record in self._state.records
                if record.hot_deleted and record.ledger_id in ledger_ids
            )

    def discard(self, ledger_ids: Collection[int], edit: Edit) -> None:
        """Remove ledgers from the list regardless of retention, together with another edit, in one compare-and-set.

        The last ledger of the list must stay. The caller sees to copies in tiers. Waits for metadata.

        Raises:
            Fenced: Another process owns the topic.
            MetadataError: The store failed.
            AfterglowError: The edit raised it; nothing was changed.
        """
        ids = frozenset(ledger_ids)

        def both(info: ManagedLedgerInfo) -> None:
            edit(info)
            drop_ledgers(info, ids)

        with self._roller.work:
            dropped = [record for record in self._state.records if record.ledger_id in ids]
            self._roller.update(both)
            for record in dropped:
                self._log("ledger deleted", record, "deleted on request, with its segments")
            self._cursors.drop_trimmed()
            self.delete_hot_copies()

    def delete_hot_copies(self) -> None:
        """Carry out pending deletes; those that fail are repeated later."""
        if not get_pending_deletes(self._state.snapshot.info):
            return
        try:
            self._state.apply(delete_hot_copies(self._environment, self._roller.metadata))
        except AfterglowError as error:
            _log.warning("%s removes its pending deletes later: %s", self._name, error)

    def _can_replace_last(self, records: Sequence[LedgerRecord]) -> bool:
        """Whether the last ledger only marks the end of the topic, which a new ledger could do."""
        return bool(records and records[-1].entries) and self._state.writing_to is None and not self._state.terminated

    def _try_roll(self) -> None:
        try:
            self._roller.roll()
        except HotLogError as error:
            _log.warning("%s keeps its last ledger until a new one can be created: %s", self._name, error)

    def _drop(self, ledger_ids: Sequence[int], reason: str, policy: str = "") -> tuple[int, ...]:
        """Remove ledgers, so that a crash anywhere leaves no copy without a record.

        1. Record the deletion of their copies in tiers. *Crash: the list still names the ledgers, and copies that a
           list names are not deleted.*
        2. Remove them from the list, and delete their hot copies (steps 1 to 3 of the module). *Crash: opening the
           topic continues.*
        3. Delete the copies in tiers. *Crash: the next start carries out what is recorded.*
        """
        with ExitStack() as removal:
            if ledger_ids:
                ids = frozenset(ledger_ids)
                dropped = [record for record in self._state.records if record.ledger_id in ids]
                infos = [info for info in map(self._state.ledger_info, ledger_ids) if info is not None]
                removal.enter_context(recorded_removal(self._offloading, self._name, infos))
                self._roller.update(partial(drop_ledgers, ledger_ids=ids))
                for record in dropped:
                    self._log("ledger trimmed", record, reason, policy)
                self._cursors.drop_trimmed()
            self.delete_hot_copies()
        return tuple(ledger_ids)

    def _log(self, event: str, record: LedgerRecord, reason: str, policy: str = "") -> None:
        log_event(
            _log,
            event,
            topic=str(TopicName.from_managed_ledger_name(self._name)),
            ledger=record.ledger_id,
            entries=record.entries,
            bytes=record.size_bytes,
            reason=reason,
            policy=policy or None,
        )

    def _in_use(self, ledger_id: int) -> bool:
        return self._offloading.is_in_use(self._name, ledger_id)
