"""Ledgers of an attached cluster, as the process that plans their offload sees them.

From bookies, few entries of them are read, which have the sizes of all before. A broker reports the size of a ledger
only, so that sizes of entries are estimates.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

import numpy as np

from afterglow.errors import LedgerMissing, NotSupported
from afterglow.format.frames import FRAME_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from afterglow.hot.bookkeeper import BookKeeperClient, BookKeeperLedger
    from afterglow.hot.log import ReadableLedger

_MAX_OPEN: Final = 10_000
"""Ledgers that stay open: each is some hundred bytes, and opening it reads its metadata."""


class AttachedLedgers(Protocol):
    """The ledgers of all attached topics, an :class:`~afterglow.offload.topics.HotLedgers`. Thread-safe."""

    from_brokers: bool
    """Whether entries are read from brokers."""

    def confirm(self, ledger_id: int, entry_id: int, size_bytes: int | None = None) -> None:
        """Allow reads of a ledger up to an entry that its writer has confirmed.

        Args:
            ledger_id: The ledger.
            entry_id: The entry.
            size_bytes: Bytes of the entries up to this one; None: unknown.
        """
        ...

    def bytes_up_to(self, ledger_id: int, entry_id: int) -> int:
        """Bytes of the entries of a ledger up to a confirmed one.

        Raises:
            HotLogError: The ledger cannot be read.
            MetadataError: Its metadata cannot be read.
        """
        ...

    def open(self, ledger_id: int) -> ReadableLedger:
        """A ledger.

        Raises:
            LedgerMissing: It was deleted.
            MetadataError: Its metadata cannot be read.
        """
        ...

    def drop(self, ledger_id: int) -> None:
        """Drop a ledger that the cluster has trimmed."""
        ...


class ClusterLedgers:
    """Ledgers that are read from bookies, an :class:`AttachedLedgers`. Thread-safe.

    Args:
        client: Reads the bookies.
    """

    from_brokers = False

    def __init__(self, client: BookKeeperClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._open: OrderedDict[int, BookKeeperLedger] = OrderedDict()
        self._confirmed: dict[int, int] = {}

    def confirm(self, ledger_id: int, entry_id: int, size_bytes: int | None = None) -> None:
        """Allow reads of a ledger up to an entry that its writer has confirmed; its size is not needed."""
        del size_bytes
        with self._lock:
            if entry_id <= self._confirmed.get(ledger_id, -1):
                return
            self._confirmed[ledger_id] = entry_id
            if (ledger := self._open.get(ledger_id)) is not None:
                ledger.advance(entry_id)

    def bytes_up_to(self, ledger_id: int, entry_id: int) -> int:
        """Bytes of the entries of a ledger up to a confirmed one, by reading this one.

        Raises:
            AfterglowError: It cannot be read.
        """
        return self.open(ledger_id).bytes_up_to(entry_id)

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


class BrokerLedgers:
    """Ledgers that are read from brokers, an :class:`AttachedLedgers`. Thread-safe."""

    from_brokers = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[int, tuple[int, int]] = {}

    def confirm(self, ledger_id: int, entry_id: int, size_bytes: int | None = None) -> None:
        """Record the size of a ledger up to an entry that its writer has confirmed; an unknown size stays as it is."""
        if size_bytes is None or entry_id < 0:
            return
        with self._lock:
            if entry_id >= self._known.get(ledger_id, (-1, 0))[0]:
                self._known[ledger_id] = entry_id, size_bytes

    def bytes_up_to(self, ledger_id: int, entry_id: int) -> int:
        """Estimate of the bytes of a ledger's entries up to one of them.

        Raises:
            LedgerMissing: The ledger is not known.
        """
        return self.open(ledger_id).offset(entry_id + 1) - FRAME_BYTES * (entry_id + 1)

    def open(self, ledger_id: int) -> EstimatedLedger:
        """A ledger.

        Raises:
            LedgerMissing: It is not known.
        """
        with self._lock:
            known = self._known.get(ledger_id)
        if known is None:
            raise LedgerMissing(f"the size of ledger {ledger_id} is not known: the cluster has not listed it yet")
        return EstimatedLedger(ledger_id, *known)

    def drop(self, ledger_id: int) -> None:
        """Drop a ledger that the cluster has trimmed."""
        with self._lock:
            self._known.pop(ledger_id, None)


class EstimatedLedger:
    """A ledger whose entries are assumed to have the same size, a :class:`~afterglow.hot.log.ReadableLedger`.

    Only tasks read entries, from brokers.
    """

    def __init__(self, ledger_id: int, confirmed: int, size_bytes: int) -> None:
        self.ledger_id = ledger_id
        self.confirmed = confirmed
        self.size_bytes = size_bytes

    def offset(self, entry_id: int) -> int:
        """Estimate of the offset of a frame among the ledger's frames."""
        return self.size_bytes * entry_id // (self.confirmed + 1) + FRAME_BYTES * entry_id

    def offsets(self, first: int, last: int) -> NDArray[np.int64]:
        """Estimates of the offset of one frame, and of its end.

        Raises:
            NotSupported: Offsets of several frames are required, as to offload the whole ledger.
        """
        if first != last:
            raise self._unreadable()
        return np.array([self.offset(first), self.offset(last + 1)], np.int64)

    def read(self, first: int, last: int) -> NoReturn:
        """Raise an error: entries are not read here.

        Raises:
            NotSupported: Always.
        """
        del first, last
        raise self._unreadable()

    def read_frames(self, first: int, max_bytes: int) -> NoReturn:
        """Raise an error: entries are not read here.

        Raises:
            NotSupported: Always.
        """
        del first, max_bytes
        raise self._unreadable()

    def _unreadable(self) -> NotSupported:
        return NotSupported(
            f"ledger {self.ledger_id} cannot be offloaded as a whole: its entries are read from brokers, which do not "
            "deliver all of them; stream the topic (streamingOffloadEnabled=true), or read bookies (--entries "
            "bookkeeper)"
        )
