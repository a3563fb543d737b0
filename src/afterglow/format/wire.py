"""Frames of Pulsar's binary protocol, and the receive buffers of sockets.

A frame is ``total_size:u32 · cmd_size:u32 · BaseCommand``, followed, for SEND and MESSAGE, by an entry as in
``format.entry``. ``total_size`` counts the bytes after it.

:class:`FrameBuffer` returns whole frames. :class:`EntryBuffer` converts MESSAGE commands in place into the entry frames
of ledgers, many in one call, without a Python object per entry; it returns other commands one by one.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

import numpy as np

from afterglow.errors import AfterglowError, InvalidFrame
from afterglow.format._kernels import calls, layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from afterglow.format.proto.pulsar_api_pb2 import BaseCommand, ServerError


SIZE_BYTES = 4
HEAD = struct.Struct(">II")
_U32 = struct.Struct(">I")

COMMAND_ALLOWANCE_BYTES = 10_240
"""Bytes that a frame may have beyond the largest message: the same as in Pulsar."""

RAW_PROPERTY = "afterglow.raw"
"""In the metadata of a SUBSCRIBE, ``true``: the consumer receives every entry as stored."""

INSTANCE_PROPERTY = "afterglow.instance"
"""In the metadata of a SUBSCRIBE: the id of the expected hot log. An Afterglow broker rejects the request if it has
another one; Apache Pulsar ignores it."""

START_PROPERTY = "afterglow.start"
"""In the metadata of a raw reader's SUBSCRIBE, ``LEDGER:ENTRY``: the first entry to send. Apache Pulsar ignores it and
starts at ``start_message_id``."""

OFFLOAD_PROPERTY = "afterglow.offload"
"""In the metadata of a raw reader's SUBSCRIBE, ``true``: the reader belongs to an offload task."""


class Refused(AfterglowError):
    """A rejected request; the broker answers it with this protocol error."""

    def __init__(self, code: ServerError.ValueType, message: str) -> None:
        super().__init__(message)
        self.code = code


def encode_command(command: BaseCommand) -> bytes:
    """Encode a frame without payload."""
    body = command.SerializeToString()
    return HEAD.pack(len(body) + SIZE_BYTES, len(body)) + body


def encode_head(command: bytes, payload_bytes: int) -> bytes:
    """Encode a frame with payload up to its payload."""
    return HEAD.pack(SIZE_BYTES + len(command) + payload_bytes, len(command)) + command


@dataclass(frozen=True, slots=True)
class EncodedMessages:
    """MESSAGEs for one consumer."""

    frames: memoryview
    entries: int
    messages: int
    """Number of messages, with those in batches."""
    size_bytes: int
    """Bytes of the messages, without the commands."""


def encode_messages(
    entries: Sequence[bytes | memoryview],
    *,
    consumer_id: int,
    ledger_id: int,
    first_id: int,
    partition: int,
    epoch: int | None,
    expose_broker_metadata: bool,
) -> EncodedMessages:
    """Encode consecutive entries as MESSAGEs, up to one that is damaged or a marker.

    Args:
        entries: As stored.
        consumer_id: The consumer, as its client numbers it.
        ledger_id: Their ledger.
        first_id: Id of the first entry.
        partition: Index of the topic's partition, or -1.
        epoch: Epoch of the consumer, if it has one.
        expose_broker_metadata: Whether the consumer receives the broker's metadata.
    """
    data = np.frombuffer(entries[0] if len(entries) == 1 else b"".join(entries), np.uint8)
    frames, count, messages, size_bytes = calls.encode_messages(
        data,
        np.fromiter(map(len, entries), np.int64, len(entries)),
        consumer=consumer_id,
        ledger=ledger_id,
        first_id=first_id,
        partition=partition,
        epoch=-1 if epoch is None else epoch,
        expose=expose_broker_metadata,
    )
    return EncodedMessages(memoryview(frames.data), count, messages, size_bytes)


_BUSY_BYTES: Final = 1 << 20
"""Size that the buffer of a busy connection grows to: more frames in one read cost less each."""

_IDLE_READS: Final = 64
"""After so many reads that would have fit in a quarter of the buffer it is replaced by one of the initial size."""

_SEND: Final = bytes((1 << 3, 6))
"""A command of type SEND begins with these bytes, as all clients encode it."""


class FrameBuffer:
    """A receive buffer that returns whole frames.

    It grows to the size of the frame being received, and up to a MiB while every read fills it. A frame larger than
    ``max_frame_bytes`` is rejected before memory is allocated for it.
    """

    def __init__(self, max_frame_bytes: int, initial_bytes: int = 1 << 16) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._initial_bytes = initial_bytes
        self._small_reads = 0
        self._use(initial_bytes)
        self._start = 0
        self._end = 0

    def space(self) -> memoryview:
        """Return the free part of the buffer for the next bytes; never empty."""
        if self._start == self._end:
            was_full = self._end == self._data.size
            self._start = self._end = 0
            if was_full and self._data.size < _BUSY_BYTES:
                self._use(min(2 * self._data.size, _BUSY_BYTES))
            elif self._data.size > _BUSY_BYTES or self._small_reads >= _IDLE_READS:
                self.shrink()
        elif self._end == self._data.size:
            self._move()
        return self._view[self._end :]

    def shrink(self) -> None:
        """Return to the initial size if nothing is being received."""
        if self._start == self._end and self._data.size > self._initial_bytes:
            self._start = self._end = 0
            self._use(self._initial_bytes)

    def add(self, count: int) -> None:
        """Account for ``count`` bytes written to :meth:`space`."""
        self._end += count
        self._small_reads = self._small_reads + 1 if 4 * count < self._data.size else 0

    def frame(self) -> tuple[memoryview, memoryview] | None:
        """Consume the next frame and return its command and payload; None if it is incomplete.

        The views are valid until the next call of :meth:`space`.

        Raises:
            InvalidFrame: Sizes contradict each other or exceed the limit.
        """
        held = self._end - self._start
        if held < SIZE_BYTES:
            return None
        (total,) = _U32.unpack_from(self._view, self._start)
        if not SIZE_BYTES <= total <= self.max_frame_bytes:
            raise InvalidFrame(f"a frame of {total} bytes; the limit is {self.max_frame_bytes}")
        if held < HEAD.size:
            return None
        command = self._start + HEAD.size
        (size,) = _U32.unpack_from(self._view, self._start + SIZE_BYTES)
        if size > total - SIZE_BYTES:
            raise InvalidFrame(f"a command of {size} bytes in a frame of {total}")
        if held < SIZE_BYTES + total:
            return None
        self._start += SIZE_BYTES + total
        return self._view[command : command + size], self._view[command + size : self._start]

    def sends(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]] | None:
        """Consume the SENDs of ordinary, valid messages that come next; None if there are none.

        Returns:
            The buffer, whose content is valid until the next call of :meth:`space`, and a row for each SEND; see
            :func:`afterglow.format.new_entries.by_producer`.
        """
        command = self._start + HEAD.size
        if self._view[command : command + len(_SEND)] != _SEND or command + len(_SEND) > self._end:
            return None
        rows, self._start = calls.find_sends(self._data, self._start, self._end, self.max_frame_bytes)
        return (self._data, rows) if len(rows) else None

    def received(self, count: int) -> Iterator[tuple[memoryview, memoryview]]:
        """Account for ``count`` bytes, and yield each whole frame; see :meth:`add` and :meth:`frame`.

        Raises:
            InvalidFrame: Sizes contradict each other or exceed the limit.
        """
        self.add(count)
        while (found := self.frame()) is not None:
            yield found

    def _use(self, size: int) -> None:
        self._data = np.empty(size, np.uint8)
        self._view = memoryview(self._data.data)
        self._small_reads = 0

    def _move(self) -> None:
        """Move the incomplete frame to the beginning, in a larger buffer if it does not fit."""
        rest = self._data[self._start : self._end].copy()
        needed = HEAD.size
        if rest.size >= SIZE_BYTES:
            needed = SIZE_BYTES + int.from_bytes(rest[:SIZE_BYTES].tobytes(), "big")
        # Space for this frame and a quarter buffer more, so that the next frame need not be moved at once.
        size = max(needed + self._initial_bytes // 4, self._initial_bytes)
        if size > self._data.size or not self._start:
            self._use(max(size, min(2 * self._data.size, _BUSY_BYTES)))
        self._data[: rest.size] = rest
        self._start, self._end = 0, rest.size


_MIN_CAPACITY_BYTES: Final = 1 << 12
"""Holds any command without payload that a broker sends."""

_MIN_SPACE_FRACTION: Final = 8
"""Less free space than an eighth of the buffer is not worth another read from the socket."""


@dataclass(frozen=True, slots=True)
class TakenEntries:
    """Entries that one call of :meth:`EntryBuffer.take` converted to frames."""

    entries: int
    messages: int
    """Permits that they used: the size of each batch; 1 for each entry that is not a batch or does not parse."""
    frame_bytes: int
    with_broker_metadata: int
    """Entries that begin with broker entry metadata."""


class EntryBuffer:
    """A receive buffer that collects entry frames before the bytes not parsed yet.

    Args:
        capacity_bytes: Size of the buffer; it grows for a single larger frame.
        max_frame_bytes: Largest frame; a larger one is rejected before memory is allocated for it.
    """

    def __init__(self, capacity_bytes: int, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._capacity = max(capacity_bytes, _MIN_CAPACITY_BYTES)
        self._use(self._capacity)
        self._frame_start = 0  # of the last frame that was consumed
        self._taken = 0  # end of the entry frames
        self._start = 0  # start and end of the bytes not parsed yet
        self._end = 0

    def space(self) -> memoryview:
        """Return the free part of the buffer for the next bytes; call it after handling every whole frame.

        Empty if too little is left after the entries: call :meth:`cut` first.
        """
        if self._start == self._end:
            self._start = self._end = self._taken
        held = self._end - self._start
        wanted = max(self._frame_bytes(), held + self._data.size // _MIN_SPACE_FRACTION)
        if self._start + wanted > self._data.size:
            if self._taken and self._taken + wanted > self._data.size:
                return memoryview(b"")
            self._move_up()
        return self._view[self._end :]

    def received(self, count: int) -> None:
        """Account for ``count`` bytes written to :meth:`space`."""
        self._end += count

    def take(self, consumer_id: int, ledger_id: int, first: int, last: int) -> TakenEntries:
        """Convert the MESSAGEs with entries ``first`` to ``last``, in order, to entry frames.

        Stops at the first frame that is another command, or incomplete.

        Raises:
            InvalidFrame: Sizes contradict each other or exceed the limit.
        """
        found = np.array([self._taken, first, 0, 0, self._start], np.int64)
        code = calls.take_messages(
            self._data,
            self._start,
            self._end,
            self.max_frame_bytes,
            consumer=consumer_id,
            ledger=ledger_id,
            last=last,
            found=found,
        )
        taken, entry_id, messages, stamped, start = found.tolist()
        before, self._taken, self._start = self._taken, taken, start
        if code == layout.INVALID_FRAME:
            self._refuse()
        return TakenEntries(entry_id - first, messages, taken - before, stamped)

    def frame(self) -> tuple[memoryview, memoryview] | None:
        """Consume the next frame and return its command and payload; None if it is incomplete.

        The views are valid until the next bytes are received.

        Raises:
            InvalidFrame: Sizes contradict each other or exceed the limit.
        """
        held = self._end - self._start
        if held < HEAD.size:
            return None
        total, size = HEAD.unpack_from(self._view, self._start)
        if not SIZE_BYTES <= total <= self.max_frame_bytes or size > total - SIZE_BYTES:
            self._refuse()
        if held < SIZE_BYTES + total:
            return None
        command = self._start + HEAD.size
        self._frame_start = self._start
        self._start += SIZE_BYTES + total
        return self._view[command : command + size], self._view[command + size : self._start]

    def unread(self) -> None:
        """Give back the frame that the last call of :meth:`frame` consumed; no other method was called since."""
        self._start = self._frame_start

    def cut(self) -> memoryview:
        """Return the entry frames taken so far. The caller owns their memory; the buffer continues in new memory."""
        frames = self._view[: self._taken]
        rest = self._data[self._start : self._end]
        self._use(max(self._capacity, self._frame_bytes()))
        self._data[: rest.size] = rest
        self._taken, self._start, self._end = 0, 0, rest.size
        return frames

    def _use(self, size: int) -> None:
        self._data = np.empty(size, np.uint8)
        self._view = memoryview(self._data.data)

    def _frame_bytes(self) -> int:
        """Return the size of the next frame, or of its header if the size is unknown yet."""
        if self._end - self._start < SIZE_BYTES:
            return HEAD.size
        (total,) = struct.unpack_from(">I", self._view, self._start)
        return SIZE_BYTES + min(int(total), self.max_frame_bytes)

    def _move_up(self) -> None:
        """Move the bytes not parsed yet directly after the entries; without entries, grow the buffer if needed."""
        rest = self._data[self._start : self._end]
        size = self._frame_bytes()
        if self._taken or size <= self._data.size:
            rest = rest.copy()  # the ranges may overlap
        else:
            self._use(size)
        self._data[self._taken : self._taken + rest.size] = rest
        self._start, self._end = self._taken, self._taken + rest.size

    def _refuse(self) -> NoReturn:
        total, size = HEAD.unpack_from(self._view, self._start)
        raise InvalidFrame(
            f"invalid frame of {total} bytes with a command of {size}; the limit is {self.max_frame_bytes}, from the "
            "broker's maxMessageSize"
        )
