"""Reader of a cluster's hot log: from its bookies, and from its brokers where bookies cannot be read.

Bookies have everything that producers and brokers wrote, also broker entry metadata, markers and aborted entries, which
brokers do not deliver, and they answer while no broker runs. The bookies of a cluster that could not be read are not
tried again for some time by this process; meanwhile its readers use the brokers at once.
"""

from __future__ import annotations

import logging
import time
from threading import Lock
from typing import TYPE_CHECKING, Final

from afterglow.errors import (
    AccessDenied,
    DataLost,
    EntriesMissing,
    HotLogUnavailable,
    LedgerMissing,
    MetadataError,
    MissingDependency,
)
from afterglow.format.frames import FRAME_BYTES
from afterglow.hot.bookkeeper import shared_client

if TYPE_CHECKING:
    from collections.abc import Mapping

    from afterglow.errors import AfterglowError
    from afterglow.hot.bookkeeper import BookKeeperAddress, BookKeeperLedger
    from afterglow.read.copies import FrameLedger, HotReader

_log = logging.getLogger(__name__)

_OUT_OF_REACH: Final = (HotLogUnavailable, AccessDenied, MetadataError, MissingDependency)
"""Errors after which entries are read from brokers."""
_RETRY_S: Final = 60.0
"""Time until bookies that could not be read are tried again. A dead bookie of several does not count: its entries are
read from the others."""


class _Outages:
    """The clusters whose bookies this process cannot read now. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._until: dict[BookKeeperAddress, float] = {}
        self._logged: set[BookKeeperAddress] = set()

    def is_out(self, address: BookKeeperAddress) -> bool:
        """Whether the bookies could not be read just now."""
        return time.monotonic() < self._until.get(address, 0.0)

    def add(self, address: BookKeeperAddress, error: AfterglowError) -> None:
        """Account for an error; the first one of a cluster is logged."""
        with self._lock:
            self._until[address] = time.monotonic() + _RETRY_S
            if address in self._logged:
                return
            self._logged.add(address)
        _log.warning("the bookies of %s cannot be read, reading from a broker: %s", address.metadata, error)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._until.clear()
            self._logged.clear()


outages: Final = _Outages()
"""Of this process: all topics of a cluster have the same bookies."""


class BookieLog:
    """A :class:`~afterglow.read.copies.HotReader` of one topic of a cluster, as of one moment. Thread-safe.

    Args:
        address: The bookies.
        topic: Full name, with the partition, for messages.
        entries: Number of readable entries by ledger. Of another ledger, those are read that its bookies know to be
            confirmed.
        brokers: Reads entries from brokers; None: no broker, so that an error of bookies is the reader's.
        bounded: Whether no entry behind ``entries`` is read, even of a ledger that was closed since then.
        without: The reason why there is no broker, for messages.
    """

    def __init__(
        self,
        address: BookKeeperAddress,
        topic: str,
        entries: Mapping[int, int],
        brokers: HotReader | None = None,
        *,
        bounded: bool = False,
        without: str = "",
    ) -> None:
        self.topic = topic
        self._address = address
        self._entries = dict(entries)
        self._brokers = brokers
        self._bounded = bounded
        self._without = without
        self._lock = Lock()
        self._open: dict[int, BookKeeperLedger] = {}

    def open(self, ledger_id: int) -> BookieLedger | FrameLedger:
        """Open a ledger.

        Raises:
            LedgerMissing: It does not exist, and the number of its entries is not known.
            HotLogUnavailable: Neither bookies nor brokers can be read.
            AfterglowError: Its metadata is damaged.
        """
        if self._brokers is not None and outages.is_out(self._address):
            return self._brokers.open(ledger_id)
        try:
            ledger = self.ledger(ledger_id)
        except LedgerMissing:
            if ledger_id not in self._entries:
                raise
            ledger = None  # reading an entry will raise the error that names it
        except _OUT_OF_REACH as error:
            return self.from_brokers(ledger_id, error)
        return BookieLedger(self, ledger_id, ledger, self._entries.get(ledger_id) if self._bounded else None)

    def ledger(self, ledger_id: int) -> BookKeeperLedger:
        """A ledger in BookKeeper; the same one for all readers.

        Raises:
            LedgerMissing: It does not exist.
            AfterglowError: Its metadata, or the last confirmed entry of an open ledger, cannot be read.
        """
        with self._lock:
            known = self._open.get(ledger_id)
        if known is not None:
            return known
        client = shared_client(self._address)
        try:
            ledger = client.open(ledger_id, self._entries.get(ledger_id, 0) - 1)
        except LedgerMissing:
            if not client.has_bookies():  # another root of ledgers, which does not mean that this ledger is lost
                raise HotLogUnavailable(
                    f"no bookies are registered below {self._address.root} in {self._address.metadata}; check the "
                    "address and its chroot"
                ) from None
            raise
        if not ledger.closed and ledger_id not in self._entries:
            ledger.advance(client.confirmed_by_bookies(ledger_id))
        with self._lock:
            return self._open.setdefault(ledger_id, ledger)

    def entries_of(self, ledger_id: int) -> int:
        """Number of entries of a ledger by the ledger list, or by a broker; 0 if it is not known."""
        return self._entries.get(ledger_id, 0)

    def from_brokers(self, ledger_id: int, error: AfterglowError) -> FrameLedger:
        """A ledger whose bookies failed, as brokers serve it.

        Raises:
            HotLogUnavailable: There is no broker.
        """
        with self._lock:
            self._open.pop(ledger_id, None)  # its client may have been closed for others
        if self._brokers is None:
            raise HotLogUnavailable(f"{error}; {self._without}" if self._without else str(error)) from error
        outages.add(self._address, error)
        return self._brokers.open(ledger_id)


class BookieLedger:
    """One ledger; see :class:`~afterglow.read.copies.FrameLedger`."""

    def __init__(self, log: BookieLog, ledger_id: int, ledger: BookKeeperLedger | None, limit: int | None) -> None:
        """See :meth:`BookieLog.open`.

        Args:
            log: The hot log.
            ledger_id: The ledger.
            ledger: The ledger in BookKeeper; None: it is gone.
            limit: Number of entries that may be read; None: all that are confirmed.
        """
        self._log = log
        self._ledger_id = ledger_id
        self._ledger = ledger
        self._limit = limit

    @property
    def confirmed(self) -> int:
        """Id of the last entry that may be read; -1 if the ledger is empty."""
        if self._ledger is None:
            return self._log.entries_of(self._ledger_id) - 1
        confirmed = self._ledger.confirmed
        return confirmed if self._limit is None else min(confirmed, self._limit - 1)

    @property
    def closed(self) -> bool:
        """Whether the ledger is closed."""
        return self._ledger is not None and self._ledger.closed

    def read_frames(self, first: int, max_bytes: int) -> tuple[memoryview, int]:
        """Confirmed entries from ``first`` on as contiguous frames, and their number.

        Raises:
            DataLost: The ledger was deleted, or no bookie has the entry.
            CorruptBlock: All replicas of the entry are damaged.
            AfterglowError: Neither bookies nor brokers can be read.
        """
        last = self.confirmed
        if not 0 <= first <= last:
            return memoryview(b""), 0
        if self._ledger is None:
            raise self._lost(first, last, "the ledger was deleted from BookKeeper")
        try:
            return self._ledger.read_frames(first, max_bytes, last)
        except (LedgerMissing, EntriesMissing) as error:
            raise self._lost(first, last, str(error)) from error
        except _OUT_OF_REACH as error:
            return self._log.from_brokers(self._ledger_id, error).read_frames(first, max_bytes)

    def frame_bytes(self, first: int, last: int) -> int:
        """Bytes of the frames of the confirmed entries from ``first`` to ``last``, both inclusive, by two small reads.

        Raises:
            AfterglowError: One of the two entries cannot be read.
        """
        last = min(last, self.confirmed)
        if self._ledger is None or first > last:
            return 0
        size_bytes = self._ledger.bytes_up_to(last) - self._ledger.bytes_up_to(first - 1)
        return size_bytes + FRAME_BYTES * (last - first + 1)

    def _lost(self, first: int, last: int, reason: str) -> DataLost:
        name = self._ledger_id
        return DataLost(
            f"entries {name}:{first} to {name}:{last} of {self._log.topic} are lost: {reason}, and no tier has them; "
            "start behind them, or omit entries that are in no tier (hot=skip)"
        )
