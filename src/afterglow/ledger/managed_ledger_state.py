"""State of an open topic in memory: its ledger list, joined with ends of ledgers that the list does not have yet.

The list has the end of a ledger only some time after the next one is in use. With both joined, readers see every
confirmed entry and nothing else.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from afterglow.format.position import Position
from afterglow.ledger.layout import Layout
from afterglow.ledger.ledger_list import LedgerEnd, records

if TYPE_CHECKING:
    from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo
    from afterglow.ledger.ledger_list import LedgerRecord
    from afterglow.ledger.topic_metadata import Snapshot


class ManagedLedgerState:
    """The newest known list, the ledgers that were closed since, and the one that is written. Thread-safe.

    Args:
        snapshot: The topic's metadata when it was opened.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.lock = threading.RLock()
        """Guards this and the whole append path. Never held during I/O."""
        self._snapshot = snapshot
        self._records = records(snapshot.info)
        self._infos = _by_id(snapshot.info)
        self._ended: dict[int, LedgerEnd] = {}
        self._tail_id: int | None = None
        self._tail_bytes = 0
        self._layout = Layout()
        self._confirmed = 0  # entries that the layout does not have yet
        self._bytes_before_tail = 0
        self._rebuild(0)

    @property
    def snapshot(self) -> Snapshot:
        """The newest metadata that was applied."""
        return self._snapshot

    @property
    def layout(self) -> Layout:
        """The ledgers with the entries that readers may see."""
        if not self._confirmed:
            return self._layout
        with self.lock:
            self._layout = self._layout.with_tail(self._layout.tail_entries + self._confirmed)
            self._confirmed = 0
            return self._layout

    @property
    def records(self) -> tuple[LedgerRecord, ...]:
        """The ledgers of the list, ascending by id."""
        return self._records

    def ledger_info(self, ledger_id: int) -> ManagedLedgerInfo.LedgerInfo | None:
        """A ledger as the list has it, not to be changed; None if it is not in the list."""
        return self._infos.get(ledger_id)

    @property
    def terminated(self) -> Position | None:
        """The last entry of a terminated topic; None if the topic takes appends."""
        info = self._snapshot.info
        if not info.HasField("terminatedPosition"):
            return None
        return Position(info.terminatedPosition.ledgerId, info.terminatedPosition.entryId)

    @property
    def writing_to(self) -> int | None:
        """Id of the ledger that takes appends; None if none exists."""
        return self._tail_id

    @property
    def size_bytes(self) -> int:
        """Bytes of all entries that readers may see."""
        with self.lock:
            return self._bytes_before_tail + self._tail_bytes

    def ended(self) -> tuple[LedgerEnd, ...]:
        """Ends of ledgers that the list does not have yet."""
        with self.lock:
            return tuple(self._ended.values())

    def has_ended(self, ledger_id: int) -> bool:
        """Whether a ledger is among :meth:`ended`."""
        with self.lock:
            return ledger_id in self._ended

    def apply(self, snapshot: Snapshot) -> None:
        """Take newer metadata; an older version than the known one is ignored."""
        with self.lock:
            if snapshot.version <= self._snapshot.version:
                return
            self._snapshot = snapshot
            self._records = records(snapshot.info)
            self._infos = _by_id(snapshot.info)
            open_ids = {record.ledger_id for record in self._records if not record.finished}
            self._ended = {id_: end for id_, end in self._ended.items() if id_ in open_ids}
            self._rebuild(self._tail_entries)

    def begin(self, ledger_id: int) -> None:
        """Make a new, empty ledger of the list the one that takes appends."""
        with self.lock:
            self._tail_id = ledger_id
            self._tail_bytes = 0
            self._rebuild(0)

    def confirm(self, entries: int, data_bytes: int) -> None:
        """Let readers see more entries of the ledger that takes appends."""
        with self.lock:
            self._tail_bytes += data_bytes
            self._confirmed += entries

    def follow_tail(self, ledger_id: int | None, entries: int, data_bytes: int) -> None:
        """Let readers see the entries of a ledger that another process writes.

        Args:
            ledger_id: The ledger; None if none is being written.
            entries: Number of its confirmed entries.
            data_bytes: Their bytes.
        """
        with self.lock:
            self._tail_id = ledger_id
            self._tail_bytes = data_bytes
            self._rebuild(entries)

    def end_tail(self, last_broker_time_ms: int | None) -> LedgerEnd:
        """Record that the ledger that takes appends has ended with its confirmed entries.

        Args:
            last_broker_time_ms: Broker time of the topic's last entry; ignored if the ledger has no entries.
        """
        with self.lock:
            assert self._tail_id is not None
            entries = self._tail_entries
            time_ms = last_broker_time_ms if entries else None
            end = LedgerEnd(self._tail_id, entries, self._tail_bytes, time_ms)
            self._ended[end.ledger_id] = end
            self._tail_id = None
            self._tail_bytes = 0
            self._rebuild(0)
            return end

    @property
    def _tail_entries(self) -> int:
        return 0 if self._tail_id is None else self.layout.tail_entries

    def _rebuild(self, tail_entries: int) -> None:
        """Compute the layout anew. A ledger of the list that is not in use yet is not visible."""
        visible: list[tuple[int, int]] = []
        size = 0
        for record in self._records:
            if record.entries is not None:
                visible.append((record.ledger_id, record.entries))
                size += record.size_bytes or 0
            elif record.ledger_id in self._ended:
                visible.append((record.ledger_id, self._ended[record.ledger_id].entries))
                size += self._ended[record.ledger_id].size_bytes
            elif record.ledger_id == self._tail_id:
                visible.append((record.ledger_id, tail_entries))
        self._layout = Layout.of(visible)
        self._confirmed = 0
        self._bytes_before_tail = size


def _by_id(info: ManagedLedgerInfo) -> dict[int, ManagedLedgerInfo.LedgerInfo]:
    return {ledger.ledgerId: ledger for ledger in info.ledgerInfo}
