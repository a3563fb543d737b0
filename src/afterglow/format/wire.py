"""Frames of Pulsar's binary protocol.

``total_size:u32 · cmd_size:u32 · BaseCommand``, and behind it, for SEND and MESSAGE, an entry as in ``format.entry``.
``total_size`` counts all that follows it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from afterglow.errors import BadFrame

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afterglow.format.proto.pulsar_api_pb2 import BaseCommand

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
            BadFrame: A size contradicts itself or passes the limit.
        """
        self._end += count
        view = memoryview(self._data)
        while self._end - self._start >= SIZE_BYTES:
            (total,) = struct.unpack_from(">I", view, self._start)
            if not SIZE_BYTES <= total <= self.max_frame_bytes:
                raise BadFrame(f"a frame of {total} bytes; the limit is {self.max_frame_bytes}")
            frame = self._start + SIZE_BYTES
            if self._end - frame < SIZE_BYTES:
                return
            (size,) = struct.unpack_from(">I", view, frame)
            if size > total - SIZE_BYTES:
                raise BadFrame(f"a command of {size} bytes in a frame of {total}")
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
