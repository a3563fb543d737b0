"""What messages in chunks had come to where reading begins: found by going back from there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, TypeAlias

from afterglow.format.marks import find_marks
from afterglow.format.position import Position

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afterglow.format.marks import Chunk
    from afterglow.read.copies import ServedRun
    from afterglow.read.messages import Around

REACH_BYTES: Final = 1 << 30
"""Of entries between a chunk and the next of its message: five seconds of a topic that takes 200 MB/s."""

MOST_CHUNKS: Final = 1 << 16
"""Messages that are not whole at a time, and chunks that are looked at when going back: some 30 MB."""

Key: TypeAlias = tuple[bytes, int | None]
"""Of a message: its uuid and its transaction."""


@dataclass(slots=True)
class Part:
    """A chunk that was taken."""

    position: Position
    size_bytes: int
    payload: bytes | None
    """None: it is not held."""


@dataclass(slots=True)
class OpenMessage:
    """A message that is not whole."""

    shape: tuple[int, int]
    """How many chunks it has, and the bytes of them all: what all its chunks say."""
    parts: list[Part]
    at: int
    """Where its last chunk stands, in bytes from the origin."""

    @classmethod
    def begun(cls, chunk: Chunk, at: int) -> Self:
        """A message whose first chunk has come, and is not taken yet."""
        return cls((chunk.count, chunk.total_bytes), [], at)

    def takes(self, chunk: Chunk) -> bool:
        """Whether a chunk is the one that follows."""
        return self.shape == (chunk.count, chunk.total_bytes) and chunk.number == len(self.parts)

    def has(self, chunk: Chunk) -> bool:
        """Whether a chunk was taken before."""
        return self.shape == (chunk.count, chunk.total_bytes) and 0 <= chunk.number < len(self.parts)


class ChunkSearch:
    """Goes back from where reading began, only as far as it is asked to. Not thread-safe.

    Args:
        around: The entries before.
        origin: Where reading began.
        reach_bytes: Of entries between a chunk and the next of its message.
    """

    def __init__(self, around: Around, origin: Position, reach_bytes: int) -> None:
        self._around = around
        self._origin = origin
        self._reach = reach_bytes
        self._runs: Iterator[ServedRun] | None = None
        self._at = 0
        """Bytes from the origin, negative."""
        self._chunks = 0
        self._ended = False
        self._found: dict[Key, list[tuple[Chunk, Position, int]]] = {}
        """The chunks of each message, newest first, back to one that makes those before it of no account."""
        self._settled: set[Key] = set()

    def message(self, key: Key, at: int) -> OpenMessage | None:
        """A message as far as it had come at the origin; None: it had not begun, or was whole, or was cut off.

        Args:
            key: The message.
            at: Where its next chunk stands, in bytes from the origin.
        """
        while key not in self._settled and not self._ended and self._chunks < MOST_CHUNKS:
            found = self._found.get(key)
            if (found[-1][2] if found else at) - self._at > self._reach:
                break
            self._step()
        message: OpenMessage | None = None
        for chunk, position, chunk_at in reversed(self._found.get(key, [])):
            if chunk.number == 0:
                message = OpenMessage.begun(chunk, chunk_at)
            if message is None or chunk_at - message.at > self._reach:
                message = None
                continue
            if message.has(chunk):
                continue
            if not message.takes(chunk) or chunk.number == chunk.count - 1:
                message = None
                continue
            message.parts.append(Part(position, chunk.payload_bytes, None))
            message.at = chunk_at
        return message

    def whole(self, key: Key) -> bool:
        """Whether the last chunk of a message came before the origin, as the chunk that is nearest to it."""
        nearest = next((chunk for chunk, _, _ in self._found.get(key, ())), None)
        return nearest is not None and nearest.number == nearest.count - 1

    def _step(self) -> None:
        if self._runs is None:
            self._runs = self._around.before(self._origin)
        served = next(self._runs, None)
        if served is None:
            self._ended = True
            return
        run = served.run
        self._at -= run.frame_bytes
        offsets, first = run.frames.offsets, run.frames.first_entry_id
        for chunk in reversed(list(find_marks(run.data, run.frames).chunks())):
            key = (chunk.uuid, chunk.transaction)
            self._chunks += 1
            if key in self._settled:
                continue
            at = self._at + int(offsets[chunk.entry_id - first] - offsets[0])
            self._found.setdefault(key, []).append((chunk, Position(run.ledger_id, chunk.entry_id), at))
            if chunk.number in {0, chunk.count - 1}:
                self._settled.add(key)
