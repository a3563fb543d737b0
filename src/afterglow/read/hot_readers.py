"""Readers of hot logs of other processes: a server's home on the same machine, brokers over their protocol, bookies.

:class:`HotLocation` names the hot log of a topic. It is sent with splits, and opens the reader that works in the
process that receives it.
"""

from __future__ import annotations

import time
import weakref
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final

from afterglow.errors import EntriesMissing, HotLogUnavailable, LedgerMissing
from afterglow.format.position import LedgerRange
from afterglow.hot.local.shared_ledger import open_shared, read_instance
from afterglow.hot.pulsar.address import PulsarAddress
from afterglow.hot.pulsar.remote_ledgers import RemoteLedgers
from afterglow.metadata.cluster_credentials import ClusterCredentials
from afterglow.read.bookie_log import BookieLog

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from afterglow.hot.bookkeeper import BookKeeperAddress
    from afterglow.read.copies import FrameLedger, HotReader


_PUBLISH_LAG_S: Final = 2.0
"""Longest wait for an entry of the ledger list that a running server has not published yet; usually 100 ms."""
_POLL_S: Final = 0.01
_DEADLINE_S: Final = 60.0
"""Longest time without an entry, retries included."""
_MAX_IDLE: Final = 4
"""Idle connections that are kept."""


class RemoteHotLog:
    """A :class:`~afterglow.read.copies.HotReader` over the protocol. Thread-safe; closes its connections when dropped.

    Args:
        address: The cluster.
        topic: Full name, with the partition.
        entries: Number of readable entries by ledger.
        open_ledger: The ledger that is still open, and may get more entries; None: none.
        instance: Id of the hot log that the brokers must have, if they are Afterglow's; None: any.
    """

    def __init__(
        self,
        address: PulsarAddress,
        topic: str,
        entries: Mapping[int, int],
        open_ledger: int | None = None,
        *,
        instance: str | None = None,
    ) -> None:
        self.topic = topic
        self._entries = entries
        self._open_ledger = open_ledger
        self._connections = _ConnectionPool(address, topic, instance)
        weakref.finalize(self, self._connections.close)

    def open(self, ledger_id: int) -> FrameLedger:
        """Open a ledger, without a request.

        Raises:
            LedgerMissing: Its number of entries is not known.
        """
        if ledger_id not in self._entries:
            raise LedgerMissing(f"{self.topic}: the number of entries of its ledger {ledger_id} is not known")
        return _RemoteLedger(self, ledger_id, self._entries[ledger_id] - 1, closed=ledger_id != self._open_ledger)

    @contextmanager
    def connection(self, wanted: LedgerRange) -> Iterator[RemoteLedgers]:
        """A connection for one read; one that has read the same ledger before is preferred."""
        connection = self._connections.take(wanted)
        try:
            yield connection
        finally:
            self._connections.put_back(wanted.ledger_id, connection)


class UnavailableHotLog:
    """A hot log that cannot be read, or must not be.

    Args:
        reason: The reason, and how to fix it.
    """

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def open(self, ledger_id: int) -> FrameLedger:
        """Raise an error.

        Raises:
            LedgerMissing: Always.
        """
        raise LedgerMissing(f"ledger {ledger_id} is only in the hot log: {self._reason}")


class _RemoteLedger:
    """One ledger; see :class:`~afterglow.read.copies.FrameLedger`."""

    def __init__(self, hot: RemoteHotLog, ledger_id: int, last: int, *, closed: bool) -> None:
        self._hot = hot
        self._ledger_id = ledger_id
        self._last = last
        self._closed = closed

    @property
    def confirmed(self) -> int:
        return self._last

    @property
    def closed(self) -> bool:
        return self._closed

    def read_frames(self, first: int, max_bytes: int) -> tuple[memoryview, int]:
        if not 0 <= first <= self._last:
            return memoryview(b""), 0
        with self._hot.connection(LedgerRange(self._ledger_id, 0, self._last)) as connection:
            try:
                return connection.ledger(self._ledger_id).read_frames(first, max_bytes)
            except EntriesMissing as error:
                raise LedgerMissing(f"{error}; hot=skip skips entries that only brokers have") from error


class _ConnectionPool:
    """Idle connections, by the ledger that they last read."""

    def __init__(self, address: PulsarAddress, topic: str, instance: str | None) -> None:
        self._address = address
        self._topic = topic
        self._instance = instance
        self._lock = Lock()
        self._idle: list[tuple[int, RemoteLedgers]] = []
        self._closed = False

    def take(self, wanted: LedgerRange) -> RemoteLedgers:
        with self._lock:
            for at, (ledger_id, connection) in enumerate(self._idle):
                if ledger_id == wanted.ledger_id:
                    del self._idle[at]
                    return connection
        return RemoteLedgers(self._address, self._topic, (wanted,), deadline_s=_DEADLINE_S, instance=self._instance)

    def put_back(self, ledger_id: int, connection: RemoteLedgers) -> None:
        surplus: RemoteLedgers | None = None
        with self._lock:
            if self._closed:
                surplus = connection
            else:
                self._idle.append((ledger_id, connection))
                if len(self._idle) > _MAX_IDLE:
                    _, surplus = self._idle.pop(0)
        if surplus is not None:
            surplus.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()


class SharedHotLog:
    """The hot log in the home directory of a server that may be running. Keeps no files open.

    Args:
        home: The server's home directory.
    """

    def __init__(self, home: Path) -> None:
        self._home = home

    def open(self, ledger_id: int) -> FrameLedger:
        """Open a ledger.

        Raises:
            LedgerMissing: It does not exist.
        """
        ledger = SharedLedger(self._home, ledger_id)
        assert ledger.confirmed >= -1  # raises if it does not exist
        return ledger


class SharedLedger:
    """A ledger whose files are opened for each read, so that a scan over many ledgers does not hold them all open."""

    def __init__(self, home: Path, ledger_id: int) -> None:
        self._home = home
        self._ledger_id = ledger_id

    @property
    def confirmed(self) -> int:
        """Id of the last entry that may be read; -1 if the ledger is empty."""
        with open_shared(self._home, self._ledger_id) as ledger:
            return ledger.confirmed

    @property
    def closed(self) -> bool:
        """Whether the ledger is closed."""
        with open_shared(self._home, self._ledger_id) as ledger:
            return ledger.closed

    def read_frames(self, first: int, max_bytes: int) -> tuple[memoryview, int]:
        """Confirmed entries from ``first`` on as contiguous frames, and their number."""
        with open_shared(self._home, self._ledger_id) as ledger:
            # The ledger list may name entries that the server has not published yet.
            deadline = time.monotonic() + _PUBLISH_LAG_S
            while ledger.confirmed < first and not ledger.closed and time.monotonic() < deadline:
                time.sleep(_POLL_S)
            return ledger.read_frames(first, max_bytes)

    def frame_bytes(self, first: int, last: int) -> int:
        """Bytes of the frames of the confirmed entries from ``first`` to ``last``, both inclusive."""
        with open_shared(self._home, self._ledger_id) as ledger:
            last = min(last, ledger.confirmed)
            if first > last:
                return 0
            return int(ledger.offsets(last, last)[1] - ledger.offsets(first, first)[0])


@dataclass(frozen=True, slots=True)
class HotLocation:
    """Location of the hot log of a topic. Pickled without credentials."""

    home: str = ""
    """The server's home, an absolute path on its machine; empty: not known."""
    topic: str = ""
    """Full name, with the partition."""
    service_url: str = ""
    """Address of the brokers; empty: not known."""
    instance: str = ""
    """Id of the hot log: another machine may have another server's home at the same path. Empty: not known."""
    credentials: ClusterCredentials | None = field(default=None, repr=False, compare=False)
    """Credentials for the brokers. Not pickled: other processes take theirs from their environment."""
    bookies: BookKeeperAddress | None = None
    """The bookies, which are preferred to brokers; None: not known, or not to be used."""

    def __reduce__(self) -> tuple[type[HotLocation], tuple[object, ...]]:
        return HotLocation, (self.home, self.topic, self.service_url, self.instance, None, self.bookies)

    def open(self, ledger_id: int | None = None, last: int = -1) -> HotReader:
        """Open the hot log from this process: on the local disk, else from bookies or through brokers.

        Args:
            ledger_id: The ledger to read: neither reports the end of an open ledger.
            last: Its last readable entry.

        Raises:
            HotLogUnavailable: It cannot be reached from this machine.
            ConfigError: The token file cannot be read.
        """
        if self._is_on_this_disk():
            return SharedHotLog(Path(self.home))
        if self.service_url or self.bookies:
            return self.reader({} if ledger_id is None else {ledger_id: last + 1}, bounded=True)
        raise HotLogUnavailable(
            f"the hot log in {self.home} cannot be reached from this machine; read on the server's machine, share its "
            "disk, start the server and make it reachable (service_url), or skip the hot log (hot=skip)"
        )

    def reader(
        self, entries: Mapping[int, int], open_ledger: int | None = None, *, bounded: bool = False, without: str = ""
    ) -> HotReader:
        """A reader of the hot log of a cluster: from bookies if they are known, else, and after that, from brokers.

        Args:
            entries: Number of readable entries by ledger.
            open_ledger: The ledger that is still open, and may get more entries; None: none.
            bounded: Whether no entry behind ``entries`` is read, even of a ledger that was closed since then.
            without: The reason why there is no broker, for messages.

        Raises:
            ConfigError: The service URL is malformed, or the token file cannot be read.
        """
        brokers: RemoteHotLog | None = None
        if self.service_url:
            address, instance = self.address(), self.instance or None
            brokers = RemoteHotLog(address, self.topic, entries, open_ledger, instance=instance)
        if self.bookies is not None:
            return BookieLog(self.bookies, self.topic, entries, brokers, bounded=bounded, without=without)
        return brokers or UnavailableHotLog(without)

    def _is_on_this_disk(self) -> bool:
        home = Path(self.home)
        if not self.home or not home.is_dir():
            return False
        return not self.instance or read_instance(home) == self.instance

    def address(self) -> PulsarAddress:
        """Address of the brokers, with credentials.

        Raises:
            ConfigError: The service URL is malformed, or the token file cannot be read.
        """
        credentials = self.credentials or ClusterCredentials.of()
        return PulsarAddress(self.service_url, token=credentials.token, trust_certs=credentials.ca_file)
