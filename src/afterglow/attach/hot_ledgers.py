"""Ledgers of an attached cluster, as the process that plans their offload reads them: few entries, from bookies."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from afterglow.hot.bookkeeper import BookKeeperClient, BookKeeperLedger

_MAX_OPEN: Final = 10_000
"""Ledgers that stay open: each is some hundred bytes, and opening it reads its metadata."""


class ClusterLedgers:
    """The ledgers of all attached topics, an :class:`~afterglow.offload.topics.HotLedgers`. Thread-safe.

    Args:
        client: Reads the bookies.
    """

    def __init__(self, client: BookKeeperClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._open: OrderedDict[int, BookKeeperLedger] = OrderedDict()
        self._confirmed: dict[int, int] = {}

    def confirm(self, ledger_id: int, entry_id: int) -> None:
        """Allow reads of a ledger up to an entry that its writer has confirmed."""
        with self._lock:
            if entry_id <= self._confirmed.get(ledger_id, -1):
                return
            self._confirmed[ledger_id] = entry_id
            if (ledger := self._open.get(ledger_id)) is not None:
                ledger.advance(entry_id)

    def open(self, ledger_id: int) -> BookKeeperLedger:
        """A ledger; the same object until others evict it.

        Raises:
            LedgerMissing: It was deleted.
            MetadataError: Its metadata cannot be read.
        """
        with self._lock:
            if (known := self._open.get(ledger_id)) is not None:
                self._open.move_to_end(ledger_id)
                return known
            confirmed = self._confirmed.get(ledger_id, -1)
        opened = self._client.open(ledger_id, confirmed)
        with self._lock:
            ledger = self._open.setdefault(ledger_id, opened)
            ledger.advance(self._confirmed.get(ledger_id, -1))
            while len(self._open) > _MAX_OPEN:
                self._open.popitem(last=False)
        return ledger

    def drop(self, ledger_id: int) -> None:
        """Drop a ledger that the cluster has trimmed."""
        with self._lock:
            self._open.pop(ledger_id, None)
            self._confirmed.pop(ledger_id, None)
