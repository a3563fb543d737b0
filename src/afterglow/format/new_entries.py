"""Messages of producers on their way to entries of a ledger: one, or many in a table without an object for each."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import numpy as np

from afterglow.format._kernels import calls, layout
from afterglow.format.entry import encode_broker_metadata
from afterglow.format.frames import FramedEntries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


class NewEntries(Protocol):
    """Messages of one producer, each of which becomes an entry. A batch counts as one message here."""

    @property
    def messages(self) -> int:
        """Number of messages, with those in batches."""
        ...

    @property
    def size_bytes(self) -> int:
        """Bytes of all entries as sent."""
        ...

    @property
    def sequence_ids(self) -> list[int]:
        """Their sequence ids."""
        ...

    def __len__(self) -> int:
        """Number of entries."""
        ...

    def detached(self) -> NewEntries:
        """The same messages in memory of their own, which the next bytes from the client do not overwrite."""
        ...

    def framed(self, first_id: int, time_ms: int | None, before: int | None) -> tuple[FramedEntries, int]:
        """The entries as a ledger stores them, and the index of the last message; -1 without one.

        Args:
            first_id: Id of the first entry.
            time_ms: Broker time of all; None: entries have none.
            before: Index of the last message before them, -1 without one; None: entries have no index.
        """
        ...


@dataclass(slots=True, eq=False)  # not frozen, which would triple the time to create one
class NewEntry:
    """One message."""

    data: bytes | bytearray | memoryview
    """The message as sent."""
    messages: int
    sequence_id: int = 0
    highest_sequence_id: int = 0

    @property
    def size_bytes(self) -> int:
        """Its bytes."""
        return len(self.data)

    @property
    def sequence_ids(self) -> list[int]:
        """Its sequence id."""
        return [self.sequence_id]

    def __len__(self) -> int:
        return 1

    def detached(self) -> NewEntry:
        """The same message in memory of its own; see the protocol."""
        return NewEntry(bytes(self.data), self.messages, self.sequence_id, self.highest_sequence_id)

    def framed(self, first_id: int, time_ms: int | None, before: int | None) -> tuple[FramedEntries, int]:
        """The entry as a ledger stores it, and its index; see the protocol."""
        index = -1 if before is None else before + self.messages
        stamp = b""
        if time_ms is not None or before is not None:
            stamp = encode_broker_metadata(time_ms, index if index >= 0 else None)
        return FramedEntries.one(first_id, stamp, self.data), index


@dataclass(slots=True, eq=False)
class EntryTable:
    """Messages of one producer in a receive buffer."""

    data: NDArray[np.uint8]
    """Holds the messages."""

    rows: NDArray[np.int64]
    """A row for each; its columns are those of a SEND in :mod:`afterglow.format._kernels.layout`."""

    messages: int
    size_bytes: int

    @property
    def sequence_ids(self) -> list[int]:
        """Their sequence ids."""
        return self.rows[:, layout.SEND_SEQUENCE].view(np.uint64).tolist()  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return len(self.rows)

    def each(self) -> Iterator[NewEntry]:
        """Yield the messages one by one."""
        view = memoryview(self.data.data)
        for _, sequence, highest, messages, at, size in self.rows.view(np.uint64).tolist():
            yield NewEntry(view[at : at + size], messages, sequence, highest)

    def detached(self) -> EntryTable:
        """The same messages in memory of their own; see the protocol."""
        start = int(self.rows[:, layout.SEND_AT].min())
        end = int((self.rows[:, layout.SEND_AT] + self.rows[:, layout.SEND_LEN]).max())
        rows = self.rows.copy()
        rows[:, layout.SEND_AT] -= start
        return EntryTable(self.data[start:end].copy(), rows, self.messages, self.size_bytes)

    def framed(self, first_id: int, time_ms: int | None, before: int | None) -> tuple[FramedEntries, int]:
        """The entries as a ledger stores them, and the index of the last message; see the protocol."""
        index = layout.NO_INDEX if before is None else before
        time_ms = -1 if time_ms is None else time_ms
        data, offsets, last = calls.frame_sends(self.data, self.rows, self.size_bytes, first_id, time_ms, index)
        return FramedEntries(first_id, memoryview(data.data), memoryview(offsets.data)), last

    def receipts(self, ledger_id: int, first_id: int) -> memoryview:
        """The receipts for the messages, stored as entries from ``first_id`` on, as frames of the protocol."""
        table = np.empty((len(self.rows), layout.RECEIPT_COLUMNS), np.int64)
        table[:, : layout.RECEIPT_LEDGER] = self.rows[:, : layout.RECEIPT_LEDGER]
        table[:, layout.RECEIPT_LEDGER] = ledger_id
        table[:, layout.RECEIPT_ENTRY] = np.arange(first_id, first_id + len(table))
        return memoryview(calls.encode_receipts(table).data)


def encode_receipts(receipts: list[tuple[int, int, int, int, int]]) -> memoryview:
    """Encode receipts as frames of the protocol.

    Args:
        receipts: Producer id, sequence id, highest sequence id, ledger id and entry id of each.
    """
    return memoryview(calls.encode_receipts(np.array(receipts, np.uint64).view(np.int64)).data)


def by_producer(data: NDArray[np.uint8], rows: NDArray[np.int64]) -> Iterator[tuple[int, NewEntry | EntryTable]]:
    """Yield ids of producers, each with its messages in order.

    Args:
        data: A receive buffer.
        rows: A row for each SEND in it; see :class:`EntryTable`.
    """
    ids = rows[:, layout.SEND_PRODUCER].view(np.uint64)
    if (ids[1:] != ids[:-1]).any():
        order = np.argsort(ids, kind="stable")
        rows, ids = rows[order], ids[order]
        bounds = [0, *(np.flatnonzero(ids[1:] != ids[:-1]) + 1).tolist(), ids.size]
    else:
        bounds = [0, ids.size]
    sums = np.add.reduceat(rows[:, layout.SEND_MESSAGES :: layout.SEND_LEN - layout.SEND_MESSAGES], bounds[:-1])
    view = memoryview(data.data)
    firsts = rows[bounds[:-1]].view(np.uint64).tolist()
    for (start, end), first, (messages, size_bytes) in zip(pairwise(bounds), firsts, sums.tolist(), strict=True):
        producer, sequence, highest, _, at, size = first
        if end - start == 1:
            yield producer, NewEntry(view[at : at + size], messages, sequence, highest)
        else:
            yield producer, EntryTable(data, rows[start:end], messages, size_bytes)
