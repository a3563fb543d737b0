"""Frames of Pulsar's binary protocol, and the buffers that bytes from a socket are received into.

``total_size:u32 · cmd_size:u32 · BaseCommand``, and behind it, for SEND and MESSAGE, an entry as in ``format.entry``.
``total_size`` counts all that follows it.

:class:`FrameBuffer` hands out whole frames. :class:`EntryBuffer` turns MESSAGE commands into the entry frames of
ledgers where they arrived, many in one call, without a Python object per entry; it hands out other commands one by one.
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
"""What a frame may have beyond the largest message: the same as in Pulsar."""

RAW_PROPERTY = "afterglow.raw"
"""In the metadata of a SUBSCRIBE, ``true``: this consumer is to get every entry as it is stored."""

INSTANCE_PROPERTY = "afterglow.instance"
"""In the metadata of a SUBSCRIBE: the hot log whose entries are wanted. A broker of ours refuses if its own is another;
Apache Pulsar takes no notice."""

START_PROPERTY = "afterglow.start"
"""In the metadata of a raw reader's SUBSCRIBE, ``LEDGER:ENTRY``: the first entry that is wanted. A broker of ours
begins there; Apache Pulsar takes no notice, and begins where ``start_message_id`` says."""

OFFLOAD_PROPERTY = "afterglow.offload"
"""In the metadata of a raw reader's SUBSCRIBE, ``true``: it reads for an offload task."""


class Refused(AfterglowError):
    """A request that is answered with an error of the protocol."""

    def __init__(self, code: ServerError.ValueType, message: str) -> None:
        super().__init__(message)
        self.code = code


def encode_command(command: BaseCommand) -> bytes:
    """A frame without payload."""
    body = command.SerializeToString()
    return HEAD.pack(len(body) + SIZE_BYTES, len(body)) + body


def encode_head(command: bytes, payload_bytes: int) -> bytes:
    """The front of a frame with payload; the payload follows as it is."""
    return HEAD.pack(SIZE_BYTES + len(command) + payload_bytes, len(command)) + command


class FrameBuffer:
    """Bytes as they arrive, handed out as whole frames.

    The buffer is as long as the longest frame under way and no longer than a frame may be: a peer that announces more
    is refused before anything is set aside for it.
    """

    def __init__(self, max_frame_bytes: int, initial_bytes: int = 1 << 16) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._initial_bytes = initial_bytes
        self._data = bytearray(initial_bytes)
        self._start = 0
        self._end = 0

    def space(self) -> memoryview:
        """Where the next bytes may be put; never empty."""
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._data) > self._initial_bytes:
                self._data = bytearray(self._initial_bytes)
        elif self._end == len(self._data):
            self._make_room()
        return memoryview(self._data)[self._end :]

    def received(self, count: int) -> Iterator[tuple[memoryview, memoryview]]:
        """Take note of ``count`` bytes put into the space; yields command and payload of each frame now whole.

        The views are valid until the next frame is asked for.

        Raises:
            InvalidFrame: A size contradicts itself or passes the limit.
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

    def _make_room(self) -> None:
        held = self._end - self._start
        needed = SIZE_BYTES
        if held >= SIZE_BYTES:
            needed += int(struct.unpack_from(">I", self._data, self._start)[0])
        # The frame under way and room for what follows it, so that the next one need not be moved at once.
        size = max(needed + self._initial_bytes // 4, self._initial_bytes)
        data = bytearray(size)
        data[:held] = memoryview(self._data)[self._start : self._end]
        self._data, self._start, self._end = data, 0, held


_SMALLEST_BYTES: Final = 1 << 12
"""Room for any command without payload that a broker sends on its own."""

_ROOM: Final = 8
"""Less than this part of the buffer is not worth another read from the socket."""


@dataclass(frozen=True, slots=True)
class Taken:
    """Entries that became frames in one call."""

    entries: int
    messages: int
    """Permits that they took: the sizes of their batches; 1 for each that is not a batch or does not parse."""
    frame_bytes: int
    with_broker_metadata: int
    """Entries that begin with the broker's metadata."""


class EntryBuffer:
    """Bytes as they arrive, in front of them the frames of the entries taken.

    Args:
        capacity_bytes: Size of the buffer; one frame that is larger gets a buffer of its own size.
        max_frame_bytes: What a peer may announce; it is refused before anything is set aside for it.
    """

    def __init__(self, capacity_bytes: int, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._capacity = max(capacity_bytes, _SMALLEST_BYTES)
        self._use(self._capacity)
        self._taken = 0  # frames of entries stand before it
        self._start = 0  # bytes that are not parsed yet stand from here
        self._end = 0  # to here

    def space(self) -> memoryview:
        """Where the next bytes may be put, once every whole frame is dealt with.

        Empty where too little is left behind the entries: they must be cut off first.
        """
        if self._start == self._end:
            self._start = self._end = self._taken
        held = self._end - self._start
        wanted = max(self._frame_bytes(), held + self._data.size // _ROOM)
        if self._start + wanted > self._data.size:
            if self._taken and self._taken + wanted > self._data.size:
                return memoryview(b"")
            self._move_up()
        return self._view[self._end :]

    def received(self, count: int) -> None:
        """Take note of ``count`` bytes put into the space."""
        self._end += count

    def take(self, consumer_id: int, ledger_id: int, first: int, last: int) -> Taken:
        """Turn the MESSAGEs that bring entries ``first`` to ``last``, one after the other, into frames.

        Stops at the first frame that is none of them, or not whole yet.

        Raises:
            InvalidFrame: A size contradicts itself or passes the limit.
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
        if code == layout.BAD_FRAME:
            self._refuse()
        return Taken(entry_id - first, messages, taken - before, stamped)

    def frame(self) -> tuple[memoryview, memoryview] | None:
        """Command and payload of the next frame, which is passed over; None where it is not whole yet.

        The views are valid until the next bytes are received.

        Raises:
            InvalidFrame: A size contradicts itself or passes the limit.
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
        """The frames taken so far. Their memory is the caller's; the buffer goes on in another."""
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
        """Size of the frame under way, as far as it is known."""
        if self._end - self._start < SIZE_BYTES:
            return HEAD.size
        (total,) = struct.unpack_from(">I", self._view, self._start)
        return SIZE_BYTES + min(int(total), self.max_frame_bytes)

    def _move_up(self) -> None:
        """Move what is not parsed yet to directly behind the entries; where there are none, make it fit."""
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
            f"a frame of {total} bytes with a command of {size}; the limit is {self.max_frame_bytes}, which follows "
            "from the broker's maxMessageSize"
        )
