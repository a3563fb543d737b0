"""What messages in chunks had come to where reading begins: found by going back from there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from afterglow.errors import AfterglowError
from afterglow.format.marks import find_marks
from afterglow.format.position import Position

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afterglow.format.marks import Chunk
    from afterglow.read.copies import FrameRun, ServedRun
    from afterglow.read.messages import Around

REACH_BYTES: Final = 1 << 30
"""Of entries between a chunk and the next of its message: five seconds of a topic that takes 200 MB/s."""

MOST_CHUNKS: Final = 1 << 16
"""Messages that are not whole at a time, and chunks that are looked at when going back: some 30 MB."""

Key: TypeAlias = tuple[bytes, int | None]
"""Of a message: its uuid and its transaction."""


@dataclass(slots=True)
class Part:
    """A chunk as it was seen."""

    chunk: Chunk
    position: Position
    at: int
    """Where it stands, in bytes from where reading began."""
    payload: bytes | None
    """None: it is not held."""


@dataclass(slots=True)
class OpenMessage:
    """A message that is not whole."""

    parts: list[Part]
    """Its chunks, from the first on."""

    def next(self, part: Part, reach_bytes: int) -> OpenMessage | None:
        """The message with a chunk that follows in the topic; None: it will not be whole."""
        last = self.parts[-1]
        if part.at - last.at > reach_bytes or not _alike(part.chunk, last.chunk):
            return None
        if 0 < part.chunk.number < len(self.parts):
            return self  # sent again
        if part.chunk.number != len(self.parts):
            return None
        self.parts.append(part)
        return self


def follow(message: OpenMessage | None, part: Part, reach_bytes: int) -> OpenMessage | None:
    """A message, None where none has begun, after another chunk of it: chunk 0 begins it, also anew."""
    if part.chunk.number == 0:
        return OpenMessage([part])
    return None if message is None else message.next(part, reach_bytes)


def part_of(run: FrameRun, chunk: Chunk, run_at: int, *, payload: bool) -> Part:
    """A chunk of a run that begins ``run_at`` bytes from where reading began."""
    offsets = run.frames.offsets
    at = run_at + int(offsets[chunk.entry_id - run.frames.first_entry_id] - offsets[0])
    held = bytes(run.data[chunk.payload_at : chunk.payload_at + chunk.payload_bytes]) if payload else None
    return Part(chunk, Position(run.ledger_id, chunk.entry_id), at, held)


class ChunkSearch:
    """Goes back from where reading began, only as far as it is asked to. Not thread-safe.

    Args:
        around: The entries before.
        origin: Where reading began.
        reach_bytes: Of entries between a chunk and the next of its message.
        held_bytes: Of payloads that are kept of a message that is looked for.
    """

    def __init__(self, around: Around, origin: Position, reach_bytes: int, held_bytes: int) -> None:
        self._around = around
        self._origin = origin
        self._reach = reach_bytes
        self._held_most = held_bytes
        self._runs: Iterator[ServedRun] | None = None
        self._at = 0
        """How far it has gone, in bytes from the origin: negative."""
        self._seen = 0
        self._ended = False
        self._failure: AfterglowError | None = None
        self._found: dict[Key, list[Part]] = {}
        """The chunks of each message, newest first, back to one that makes those before it of no account."""
        self._settled: set[Key] = set()

    def message(self, key: Key, at: int) -> tuple[OpenMessage | None, bool]:
        """A message as far as it had come at the origin; to be asked once for each.

        Args:
            key: The message.
            at: Where its next chunk stands, in bytes from the origin.

        Returns:
            The message, None where it had not begun or will not be whole; and whether it was whole already.

        Raises:
            AfterglowError: Entries cannot be read.
        """
        held = 0
        while key not in self._settled and not self._ended and self._seen < MOST_CHUNKS:
            found = self._found.get(key)
            if (found[-1].at if found else at) - self._at > self._reach:
                break
            held = self._step(key, held)
        message: OpenMessage | None = None
        whole = False
        for part in reversed(self._found.pop(key, [])):
            message = follow(message, part, self._reach)
            if part.chunk.number == part.chunk.count - 1:
                message, whole = None, True
        return message, whole

    def _step(self, wanted: Key, held: int) -> int:
        """Go back by a run; returns the bytes that are held of a message after it."""
        self._runs = self._runs or self._around.before(self._origin)
        if self._failure is not None:
            raise self._failure  # the runs would say that the topic begins there
        try:
            served = next(self._runs, None)
        except AfterglowError as error:
            self._failure = error
            raise
        if served is None:
            self._ended = True
            return held
        run = served.run
        self._at -= run.frame_bytes
        for chunk in reversed(list(find_marks(run.data, run.frames).chunks())):
            key = (chunk.uuid, chunk.transaction)
            self._seen += 1
            if key in self._settled:
                continue
            keep = key == wanted and held + chunk.payload_bytes <= self._held_most
            held += chunk.payload_bytes if keep else 0
            self._found.setdefault(key, []).append(part_of(run, chunk, self._at, payload=keep))
            if chunk.number in {0, chunk.count - 1}:
                self._settled.add(key)
        return held


def _alike(one: Chunk, other: Chunk) -> bool:
    """Whether two chunks of one name say the same of their message."""
    return (one.count, one.total_bytes) == (other.count, other.total_bytes)
