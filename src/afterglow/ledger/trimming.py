"""Trimming of a topic's oldest ledgers, by retention or truncation, and deletion of their hot copies.

The edit that takes a ledger off the list writes its id down in the same commit, so that a crash forgets none:

1. Take the ledgers off the list, and note them as trash. *Crash: they are gone for readers; opening the topic goes on.*
2. Delete their hot copies. *Crash: deleting again does no harm.*
3. Strike them off the trash. *Crash: done.*

Retention, in :mod:`afterglow.ledger.retention`, decides which ledgers are trimmed.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from afterglow.errors import AfterglowError, HotLogError
from afterglow.format.position import Position
from afterglow.ledger.ledger_list import drop_ledgers, forget_trash, free_ledgers
from afterglow.ledger.offloading import told
from afterglow.ledger.properties import get_trash
from afterglow.ledger.retention import consumed_before, to_trim, to_truncate

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.ledger.cursors import Cursors
    from afterglow.ledger.environment import Environment
    from afterglow.ledger.ledger_list import LedgerRecord
    from afterglow.ledger.retention import Retention
    from afterglow.ledger.rollover import Roller
    from afterglow.ledger.state import TopicState
    from afterglow.ledger.update import Edit, Snapshot, TopicMetadata

_log = logging.getLogger(__name__)


def empty_trash(environment: Environment, metadata: TopicMetadata) -> Snapshot:
    """Steps 2 and 3, for every ledger that is noted. What the hot log cannot delete now stays noted.

    Raises:
        MetadataError: The trash was not struck off; it is deleted again some time.
    """
    gone: list[int] = []
    for ledger_id in get_trash(metadata.snapshot.info):
        environment.cache.drop_ledger(ledger_id)
        try:
            environment.hot.delete(ledger_id)
        except HotLogError as error:
            _log.warning("the hot copy of ledger %d is deleted later: %s", ledger_id, error)
        else:
            gone.append(ledger_id)
    return metadata.update(partial(forget_trash, ledger_ids=gone)) if gone else metadata.snapshot


class Trimmer:
    """Lets go of one topic's ledgers. Thread-safe; one call at a time does its work.

    Args:
        name: The managed-ledger name.
        environment: Hot log, cache, clock.
        metadata: Where the list is.
        state: Kept in step with the list.
        roller: Changes the list, and makes the ledger that is to be the last.
    """

    def __init__(
        self, name: str, environment: Environment, metadata: TopicMetadata, state: TopicState, roller: Roller
    ) -> None:
        self._name = name
        self._environment = environment
        self._metadata = metadata
        self._state = state
        self._roller = roller
        self._offloading = environment.offloading

    def trim(self, cursors: Cursors, retention: Retention) -> tuple[int, ...]:
        """Let go of ledgers that are consumed and that retention no longer holds; returns their ids.

        Raises:
            MetadataError: The store failed; nothing is lost, and the next call goes on.
        """
        with self._roller.work:
            rows = self._state.records
            choose = partial(
                to_trim,
                below=consumed_before(cursors.mark_deletes(), rows),
                retention=retention,
                now_ms=self._environment.clock.now_ms(),
                in_use=self._in_use,
            )
            if self._last_could_go(rows) and rows[-1].ledger_id in choose([*rows, _open_after(rows[-1])]):
                self._try_roll()
                rows = self._state.records
            return self._drop(choose(rows), cursors)

    def truncate(self, cursors: Cursors) -> tuple[int, ...]:
        """Acknowledge everything for every cursor and let go of it; returns the ids.

        Raises:
            HotLogError: The hot log cannot take a new ledger now.
            MetadataError: The store failed; what was let go of so far stays so.
        """
        with self._roller.work:
            end = self._state.layout.last
            if self._state.terminated is None and self._state.layout.total_entries:
                self._roller.roll()
                # Of what has come since then nothing is acknowledged.
                end = min(Position(self._state.records[-1].ledger_id, -1), self._state.layout.last)
            for cursor in (*cursors.durable.values(), *cursors.readers):
                cursor.ack_through(end)
            return self._drop(to_truncate(self._state.records, self._in_use), cursors)

    def free(self, ledger_ids: Collection[int]) -> tuple[int, ...]:
        """Delete the hot copies of those of the ledgers that are offloaded whole; returns them.

        Raises:
            MetadataError: The store failed; nothing is lost, and the next call goes on.
        """
        with self._roller.work:
            self._roller.update(partial(free_ledgers, ledger_ids=frozenset(ledger_ids)))
            self.empty_trash()
            return tuple(
                row.ledger_id for row in self._state.records if row.hot_deleted and row.ledger_id in ledger_ids
            )

    def discard(self, ledger_ids: Collection[int], edit: Edit, cursors: Cursors) -> None:
        """Take ledgers off the list, whatever holds them, and change it otherwise, all at once.

        Raises:
            MetadataError: The store failed.
            AfterglowError: What the edit raises; nothing was changed.
        """

        def both(info: ManagedLedgerInfo) -> None:
            edit(info)
            drop_ledgers(info, ledger_ids)

        with self._roller.work:
            self._roller.update(both)
            cursors.trimmed()
            self.empty_trash()

    def empty_trash(self) -> None:
        """Delete the hot copies of ledgers that have left the list; what fails is done later."""
        if not get_trash(self._state.snapshot.info):
            return
        try:
            self._state.apply(empty_trash(self._environment, self._metadata))
        except AfterglowError as error:
            _log.warning("%s strikes its deleted ledgers off later: %s", self._name, error)

    def _last_could_go(self, rows: Sequence[LedgerRecord]) -> bool:
        """Whether the last ledger only marks the end of the topic, and a new one could do that."""
        return bool(rows and rows[-1].entries) and self._state.writing_to is None and self._state.terminated is None

    def _try_roll(self) -> None:
        try:
            self._roller.roll()
        except HotLogError as error:
            _log.warning("%s keeps its last ledger until there is a new one: %s", self._name, error)

    def _drop(self, ledger_ids: Sequence[int], cursors: Cursors) -> tuple[int, ...]:
        """Let go of ledgers, so that a crash anywhere forgets no copy of them.

        1. Have their copies outside the hot log put on record as to be deleted. *Crash: the list still names them, and
           copies that a list names are not deleted.*
        2. Take them off the list; see :mod:`afterglow.ledger.trimming` for the hot copies. *Crash: opening goes on.*
        3. Have the copies outside deleted. *Crash: what is on record is done at the next start.*
        """
        with ExitStack() as leaving:
            if ledger_ids:
                rows = [row for row in map(self._state.row, ledger_ids) if row is not None]
                leaving.enter_context(told(self._offloading, self._name, rows))
                self._roller.update(partial(drop_ledgers, ledger_ids=frozenset(ledger_ids)))
                cursors.trimmed()
            self.empty_trash()
        return tuple(ledger_ids)

    def _in_use(self, ledger_id: int) -> bool:
        return self._offloading.in_use(self._name, ledger_id)


def _open_after(row: LedgerRecord) -> LedgerRecord:
    """The ledger that would follow."""
    return replace(row, ledger_id=row.ledger_id + 1, entries=None, size_bytes=None, closed_ms=0)
