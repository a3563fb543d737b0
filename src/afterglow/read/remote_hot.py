"""The hot log of a topic behind its brokers, read over the protocol, to whoever was told how far its ledgers go."""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Final

from afterglow.errors import EntriesMissing, LedgerMissing
from afterglow.hot.pulsar.ledgers import RemoteLedgers
from afterglow.hot.pulsar.runs import LedgerRange

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from afterglow.hot.pulsar.address import PulsarAddress
    from afterglow.read.copies import ReadableLedger

_DEADLINE_S: Final = 60.0
"""Longest time without an entry, whatever was tried."""
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

    def open(self, ledger_id: int) -> ReadableLedger:
        """A ledger. Nothing is asked of the brokers yet.

        Raises:
            LedgerMissing: It is not known how far it goes.
        """
        if ledger_id not in self._entries:
            raise LedgerMissing(f"{self.topic}: how far its ledger {ledger_id} is written is not known")
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

    def open(self, ledger_id: int) -> ReadableLedger:
        """Refuse.

        Raises:
            LedgerMissing: Always.
        """
        raise LedgerMissing(f"ledger {ledger_id} can be read from the hot log alone: {self._reason}")


class _Ledger:
    """One ledger; see :class:`~afterglow.read.copies.ReadableLedger`."""

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
