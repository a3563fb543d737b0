"""The protocol of hot logs: ledgers that store entries durably and return them.

A ledger is appended to by one writer, closed once, and immutable afterwards. Entry ids count from 0 without gaps.

* **Durable before done.** An append is completed only once its bytes would survive a crash of the machine, and in the
  order of the appends of its ledger.
* **One failure fails all later appends.** If an append fails, every append queued after it in the same ledger fails
  too, and the ledger is fenced: it ends at its last confirmed entry and takes no more. The caller uses a new ledger.
* **Only confirmed entries are read.** Readers never see an entry whose append did not complete.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias

    import numpy as np
    from numpy.typing import NDArray

    from afterglow.errors import HotLogError
    from afterglow.format.frames import FramedEntries

    Completion: TypeAlias = Callable[[HotLogError | None], None]
    """Called once, from any thread, when an append is durable (None) or has failed. It must not block."""
    Deliver: TypeAlias = Callable[[list[Completion], HotLogError | None], object]
    """Takes the completions of one group commit, all with the same result, in the order in which they are to be called.
    Its return value is ignored."""


class ReadableLedger(Protocol):
    """The reading half of a ledger, also of one written by another process."""

    @property
    def ledger_id(self) -> int:
        """Unique in its log, ascending by creation, never reused."""
        ...

    @property
    def confirmed(self) -> int:
        """Id of the last confirmed entry; -1 before the first."""
        ...

    @property
    def size_bytes(self) -> int:
        """Bytes of all confirmed entries, without frames."""
        ...

    def read(self, first: int, last: int) -> list[bytes | memoryview]:
        """The confirmed entries ``first`` to ``last``, both inclusive; fewer where ``last`` is not confirmed yet.

        Raises:
            LedgerMissing: The ledger was deleted.
            CorruptBlock: A stored entry is damaged.
        """
        ...

    def read_frames(self, first: int, max_bytes: int) -> tuple[memoryview, int]:
        """Confirmed entries from ``first`` on as contiguous frames, with their number; at least one if there is one.

        Raises:
            LedgerMissing: The ledger was deleted.
            CorruptBlock: A stored entry is damaged.
        """
        ...

    def offsets(self, first: int, last: int) -> NDArray[np.int64]:
        """Offset of each frame from entry ``first`` to ``last`` among the ledger's frames, and the end of the last one.

        Raises:
            IndexError: ``first`` to ``last`` is not a range of confirmed entries.
            LedgerMissing: The ledger was deleted.
        """
        ...


@runtime_checkable
class HotLedger(ReadableLedger, Protocol):
    """One ledger."""

    @property
    def closed(self) -> bool:
        """Whether it takes no more entries: it was closed, or fenced after a failure."""
        ...

    def append(self, parts: Sequence[bytes | bytearray | memoryview], done: Completion) -> int:
        """Append one entry, given as buffers to be joined; returns its id at once.

        The buffers must not change until ``done`` is called.

        Raises:
            LedgerClosed: The ledger takes no more entries.
            TypeError: A buffer is not contiguous bytes.
            EntryTooLarge: The entry's length does not fit the frame's 31 bits.
        """
        ...

    def append_framed(self, entries: FramedEntries, done: Completion) -> None:
        """Append entries that are framed with the next ids, all or none; their buffer must not change any more.

        Raises:
            LedgerClosed: The ledger takes no more entries.
            ValueError: The first id is not the next one.
        """
        ...

    def close(self) -> None:
        """Wait for appends in flight, then end the ledger durably at its last confirmed entry.

        Closing twice is not an error. Neither waits nor needs the disk if nothing is in flight and no append failed. It
        must not be called from a completion.

        Raises:
            HotLogError: An append had failed, and a crash could still bring it back. The ledger takes no entries all
                the same; close it again before its end is recorded elsewhere.
        """
        ...


@runtime_checkable
class HotLog(Protocol):
    """All ledgers of one hot log."""

    @property
    def pending_bytes(self) -> int:
        """Bytes in memory that are not on disk yet. Callers throttle appends by it."""
        ...

    def create(self) -> HotLedger:
        """A new, empty ledger, durable when this returns.

        Raises:
            HotLogError: The log cannot take a new ledger now.
        """
        ...

    def open(self, ledger_id: int) -> HotLedger:
        """An existing ledger; one that was open when its process died was recovered when the log was opened.

        Raises:
            LedgerMissing: The ledger does not exist.
        """
        ...

    def delete(self, ledger_id: int) -> None:
        """Delete a ledger and its bytes, closing it first. A missing ledger is not an error.

        Works on a full disk too, since it frees space.
        """
        ...

    def ledgers(self) -> tuple[int, ...]:
        """Ids of all ledgers, ascending."""
        ...

    def close(self) -> None:
        """Close every open ledger and release all resources."""
        ...


@runtime_checkable
class KeyedState(Protocol):
    """Small values that become durable in the same group commits as entries; the last one of each key wins.

    For values that change too often for metadata commits: the states of cursors.
    """

    def put_state(self, key: bytes, value: bytes | None, done: Completion) -> None:
        """Set the value of a key, or remove it with None; returns at once. Puts take effect in their order.

        Raises:
            HotLogError: The log is closed.
        """
        ...

    def state(self) -> Mapping[bytes, bytes]:
        """All keys with their durable values, as of now."""
        ...


_log = logging.getLogger(__name__)


def call_each(dones: list[Completion], error: HotLogError | None) -> None:
    """Call the completions of one group commit in order; one that raises does not stop the others.

    The default of every hot log, called in the log's own thread. With an event loop, pass
    ``lambda dones, error: loop.call_soon_threadsafe(call_each, dones, error)``: one hop for a whole group.
    """
    for done in dones:
        try:
            done(error)
        except Exception:  # noqa: BLE001 - a completion may raise anything
            _log.exception("a completion of an append raised")
