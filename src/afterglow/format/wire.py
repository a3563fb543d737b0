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
    from collections.abc import Iterator

    from afterglow.format.proto.pulsar_api_pb2 import BaseCommand, ServerError


SIZE_BYTES = 4
HEAD = struct.Struct(">II")

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


class FrameBuffer:
    """A receive buffer that returns whole frames.

    It grows to the size of the frame being received. A frame larger than ``max_frame_bytes`` is rejected before memory
    is allocated for it.
    """

    def __init__(self, max_frame_bytes: int, initial_bytes: int = 1 << 16) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._initial_bytes = initial_bytes
        self._data = bytearray(initial_bytes)
        self._start = 0
        self._end = 0

    def space(self) -> memoryview:
        """Return the free part of the buffer for the next bytes; never empty."""
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._data) > self._initial_bytes:
                self._data = bytearray(self._initial_bytes)
        elif self._end == len(self._data):
            self._grow()
        return memoryview(self._data)[self._end :]

    def received(self, count: int) -> Iterator[tuple[memoryview, memoryview]]:
        """Account for ``count`` bytes written to :meth:`space`; yields command and payload of each whole frame.

        The views are valid until the next frame is requested.

        Raises:
            InvalidFrame: Sizes contradict each other or exceed the limit.
        """
        self._end += count
        view = memoryview(self._data)
        while self._end - self._start >= SIZE_BYTES:
            (total,) = struct.unpack_from(">I", view, self._start)
            if not SIZE_BYTES <= total <= self.max_frame_bytes:
                raise InvalidFrame(f"a frame of {total} bytes; the limit is {self.max_frame_bytes}")
            frame = self._start + SIZE_BYTES
            if self._end - frame < SIZE_BYTES:
                return
            (size,) = struct.unpack_from(">I", view, frame)
            if size > total - SIZE_BYTES:
                raise InvalidFrame(f"a command of {size} bytes in a frame of {total}")
            if self._end - frame < total:
                return
            self._start = frame + total
            command = frame + SIZE_BYTES
            yield view[command : command + size], view[command + size : self._start]

    def _grow(self) -> None:
        held = self._end - self._start
        needed = SIZE_BYTES
        if held >= SIZE_BYTES:
            needed += int(struct.unpack_from(">I", self._data, self._start)[0])
        # Space for this frame and a quarter buffer more, so that the next frame need not be moved at once.
        size = max(needed + self._initial_bytes // 4, self._initial_bytes)
        data = bytearray(size)
        data[:held] = memoryview(self._data)[self._start : self._end]
        self._data, self._start, self._end = data, 0, held


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
        self._start += SIZE_BYTES + total
        return self._view[command : command + size], self._view[command + size : self._start]

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
