"""Readers of hot logs in other processes: of a server's home on the same machine, and of brokers over the protocol.

:class:`HotLocation` names the hot log of a topic. It travels with splits, and opens the reader that works in the
process where it arrives.
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

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from afterglow.read.copies import FrameLedger, HotReader


_PUBLISH_LAG_S: Final = 2.0
"""Longest wait for an entry of the ledger list that a running server has not published yet; usually 100 ms."""
_POLL_S: Final = 0.01
_DEADLINE_S: Final = 60.0
"""Longest time without an entry, retries included."""
_MAX_IDLE: Final = 4
"""Connections that are kept for reads to come."""


class RemoteHot:
    """A :class:`~afterglow.read.copies.HotReader` over the protocol. Thread-safe; its connections end with it.

    Args:
        address: The cluster.
        topic: Full name, with the partition.
        entries: How many entries each ledger has that may be asked for.
        written: The ledger that is still written, whose entries these are not all; None: none.
        instance: The hot log that the brokers must have, where they are ours; None: any.
    """

    def __init__(
        self,
        address: PulsarAddress,
        topic: str,
        entries: Mapping[int, int],
        written: int | None = None,
        *,
        instance: str | None = None,
    ) -> None:
        self.topic = topic
        self._entries = entries
        self._written = written
        self._lines = _Lines(address, topic, instance)
        weakref.finalize(self, self._lines.close)

    def open(self, ledger_id: int) -> FrameLedger:
        """A ledger. Nothing is asked of the brokers yet.

        Raises:
            LedgerMissing: Its number of entries is not known.
        """
        if ledger_id not in self._entries:
            raise LedgerMissing(f"{self.topic}: the number of entries of its ledger {ledger_id} is not known")
        return _Ledger(self, ledger_id, self._entries[ledger_id] - 1, closed=ledger_id != self._written)

    @contextmanager
    def line(self, wanted: LedgerRange) -> Iterator[RemoteLedgers]:
        """A connection for one read, which goes on where an earlier read ended if there was one."""
        line = self._lines.take(wanted)
        try:
            yield line
        finally:
            self._lines.give(wanted.ledger_id, line)


class NoHot:
    """A hot log that cannot be read, or is not to be.

    Args:
        reason: Why; ends with the cure.
    """

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def open(self, ledger_id: int) -> FrameLedger:
        """Refuse.

        Raises:
            LedgerMissing: Always.
        """
        raise LedgerMissing(f"ledger {ledger_id} can be read from the hot log alone: {self._reason}")


class _Ledger:
    """One ledger; see :class:`~afterglow.read.copies.FrameLedger`."""

    def __init__(self, hot: RemoteHot, ledger_id: int, last: int, *, closed: bool) -> None:
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
        with self._hot.line(LedgerRange(self._ledger_id, 0, self._last)) as line:
            try:
                return line.ledger(self._ledger_id).read_frames(first, max_bytes)
            except EntriesMissing as error:
                raise LedgerMissing(f"{error}; hot=skip leaves out what only brokers have") from error


class _Lines:
    """Connections that no read uses at the moment, by the ledger that they were last used for."""

    def __init__(self, address: PulsarAddress, topic: str, instance: str | None) -> None:
        self._address = address
        self._topic = topic
        self._instance = instance
        self._lock = Lock()
        self._idle: list[tuple[int, RemoteLedgers]] = []
        self._closed = False

    def take(self, wanted: LedgerRange) -> RemoteLedgers:
        with self._lock:
            for at, (ledger_id, line) in enumerate(self._idle):
                if ledger_id == wanted.ledger_id:
                    del self._idle[at]
                    return line
        return RemoteLedgers(self._address, self._topic, (wanted,), deadline_s=_DEADLINE_S, instance=self._instance)

    def give(self, ledger_id: int, line: RemoteLedgers) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append((ledger_id, line))
            surplus = [self._idle.pop(0)[1]] if len(self._idle) > _MAX_IDLE else [] if not self._closed else [line]
        for each in surplus:
            each.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for _, line in idle:
            line.close()


class SharedHot:
    """The hot log of a home directory, which a server may be running on. Holds nothing open.

    Args:
        home: The server's home directory.
    """

    def __init__(self, home: Path) -> None:
        self._home = home

    def open(self, ledger_id: int) -> FrameLedger:
        """A ledger.

        Raises:
            LedgerMissing: It does not exist.
        """
        ledger = HomeLedger(self._home, ledger_id)
        assert ledger.confirmed >= -1  # raises where it does not exist
        return ledger


class HomeLedger:
    """A ledger whose files are opened for each read, so that a scan over many ledgers does not hold them all open."""

    def __init__(self, home: Path, ledger_id: int) -> None:
        self._home = home
        self._ledger_id = ledger_id

    @property
    def confirmed(self) -> int:
        """Id of the last entry that may be read; -1 where there is none."""
        with open_shared(self._home, self._ledger_id) as ledger:
            return ledger.confirmed

    @property
    def closed(self) -> bool:
        """Whether no more entries will come."""
        with open_shared(self._home, self._ledger_id) as ledger:
            return ledger.closed

    def read_frames(self, first: int, max_bytes: int) -> tuple[memoryview, int]:
        """Confirmed entries from ``first`` on as contiguous frames, and how many."""
        with open_shared(self._home, self._ledger_id) as ledger:
            # The ledger list may name entries that the server has not published yet.
            deadline = time.monotonic() + _PUBLISH_LAG_S
            while ledger.confirmed < first and not ledger.closed and time.monotonic() < deadline:
                time.sleep(_POLL_S)
            return ledger.read_frames(first, max_bytes)

    def frame_bytes(self, first: int, last: int) -> int:
        """Bytes of the frames of entries, both ends inclusive, as far as they are there."""
        with open_shared(self._home, self._ledger_id) as ledger:
            last = min(last, ledger.confirmed)
            if first > last:
                return 0
            return int(ledger.offsets(last, last)[1] - ledger.offsets(first, first)[0])


@dataclass(frozen=True, slots=True)
class HotLocation:
    """Where the hot log of a topic is. Holds no secrets when it has come to another process."""

    home: str = ""
    """The server's home, an absolute path on its machine; empty where there is none, or none is known."""
    topic: str = ""
    """Full name, with the partition."""
    service_url: str = ""
    """The brokers that serve it; empty where none is known."""
    instance: str = ""
    """Id of the hot log: another machine may have another server's home at the same path. Empty: not known."""
    credentials: ClusterCredentials | None = field(default=None, repr=False, compare=False)
    """What these brokers are shown. Stays in this process; others take theirs from their environment."""

    def __reduce__(self) -> tuple[type[HotLocation], tuple[str, str, str, str]]:
        return HotLocation, (self.home, self.topic, self.service_url, self.instance)

    def open(self, ledger_id: int | None = None, last: int = -1) -> HotReader:
        """The hot log, as it is reached from here.

        Args:
            ledger_id: The ledger that is to be read: brokers do not report the end of a ledger.
            last: Its last entry that may be asked for.

        Raises:
            HotLogUnavailable: It cannot be reached from this machine.
            ConfigError: The token's file cannot be read.
        """
        if self._is_here():
            return SharedHot(Path(self.home))
        if self.service_url:
            entries = {} if ledger_id is None else {ledger_id: last + 1}
            return RemoteHot(self.address(), self.topic, entries, instance=self.instance or None)
        raise HotLogUnavailable(
            f"the hot log in {self.home} cannot be reached from here: read it on the server's machine, share its "
            "disk, let the server run and be reached (service_url), or leave it out (hot=skip)"
        )

    def _is_here(self) -> bool:
        home = Path(self.home)
        if not self.home or not home.is_dir():
            return False
        return not self.instance or read_instance(home) == self.instance

    def address(self) -> PulsarAddress:
        """The brokers, and what they are shown.

        Raises:
            ConfigError: The service URL is not well-formed, or the token's file cannot be read.
        """
        credentials = self.credentials or ClusterCredentials.of()
        return PulsarAddress(self.service_url, token=credentials.token, trust_certs=credentials.ca_file)
