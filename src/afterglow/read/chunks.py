"""Messages that came in chunks, put together at the place of their last chunk.

A producer cuts the payload of a large message, after compression, into chunks that are entries of their own, one after
the other, with those of other producers between them. After a reconnect it may send them again, from any chunk on. So,
for each message: chunk 0 begins it, also anew; the chunk that follows is taken; one that was taken before is passed
over; any other ends it, and it will not be whole. That is how stock consumers see it.

What began before the entries that are read is looked for behind their start, by going back. Chunks of one message are
taken to follow each other within ``REACH_BYTES`` and ``MOST_CHUNKS``: no search goes further.

Memory: payloads of messages that are not whole yet take ``HELD_BYTES`` at most. Beyond that, the message that waits
longest keeps only the positions of its chunks, which are read again when its last one comes. A whole message takes its
stored bytes and, where it was compressed, its own, each ``MAX_UNCOMPRESSED_BYTES`` at most: a larger one is bad.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from afterglow.errors import CorruptEntry, IncompleteMessage
from afterglow.format.compression import MAX_UNCOMPRESSED_BYTES, decompress
from afterglow.format.frames import Frames
from afterglow.format.marks import find_marks
from afterglow.format.position import Position
from afterglow.read.chunk_search import MOST_CHUNKS, REACH_BYTES, ChunkSearch, OpenMessage, Part

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afterglow.format.compression import BytesLike
    from afterglow.format.marks import Chunk, Marks
    from afterglow.read.chunk_search import Key
    from afterglow.read.copies import FrameRun
    from afterglow.read.messages import Around

HELD_BYTES: Final = 32 << 20
"""Of payloads of messages that are not whole: six chunks of the usual 5 MiB."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A message of which all chunks are there."""

    parts: tuple[Part, ...]
    last: Chunk
    around: Around

    def value(self) -> BytesLike:
        """Its payload, expanded; of an encrypted one, as its chunks are stored.

        Raises:
            CorruptEntry: It does not expand, or is too large.
            IncompleteMessage: A chunk is not there any more.
            AfterglowError: A chunk cannot be read.
        """
        size_bytes = sum(part.size_bytes for part in self.parts)
        if size_bytes > MAX_UNCOMPRESSED_BYTES:
            raise CorruptEntry(
                f"its {len(self.parts)} chunks take {size_bytes} bytes, above the limit of {MAX_UNCOMPRESSED_BYTES}"
            )
        joined = b"".join(self._payload(part) for part in self.parts)
        if self.last.encrypted:
            return joined
        return decompress(self.last.codec, joined, self.last.uncompressed_bytes)

    def _payload(self, part: Part) -> bytes:
        if part.payload is not None:
            return part.payload
        served = next(self.around.after(part.position), None)
        if served is not None and _start(served.run) == part.position:
            frames = served.run.frames
            lone = Frames(frames.first_entry_id, frames.offsets[:2], None)
            for chunk in find_marks(served.run.data, lone).chunks():
                return _payload(served.run, chunk)
        raise IncompleteMessage(f"its chunk in entry {part.position} is not there any more")


class ChunkedMessages:
    """Follows the chunks of one topic that is read forwards. Not thread-safe.

    Args:
        around: The entries before what is read.
        payloads: Whether values are wanted: without, nothing of them is held.
        held_bytes: Of payloads of messages that are not whole.
        reach_bytes: Of entries between a chunk and the next of its message.
    """

    def __init__(
        self, around: Around, *, payloads: bool, held_bytes: int = HELD_BYTES, reach_bytes: int = REACH_BYTES
    ) -> None:
        self._around = around
        self._payloads = payloads
        self._held_most = held_bytes
        self._reach = reach_bytes
        self._next: Position | None = None
        """Behind the run that is read."""
        self._base = 0
        """Bytes from the origin to the run that is read."""
        self._run_bytes = 0
        self._open: OrderedDict[Key, OpenMessage] = OrderedDict()
        """By the position of their last chunks."""
        self._held = 0
        self._back: ChunkSearch | None = None
        self._seen: set[Key] = set()
        """Messages of which a chunk came since the origin: going back tells nothing of them."""
        self._whole: OrderedDict[Key, None] = OrderedDict()
        """Of which all chunks have come, the newest: chunks of theirs that follow were sent again."""

    def enter(self, run: FrameRun) -> None:
        """Go on to a run, in the order of the topic. What was left out before it is noticed.

        Raises:
            AfterglowError: Entries before it cannot be read.
        """
        start = _start(run)
        if self._follows(start):
            self._base += self._run_bytes
        else:
            self._open.clear()
            self._seen.clear()
            self._held = self._base = 0
            self._back = ChunkSearch(self._around, start, self._reach)
        self._next = _end(run)
        self._run_bytes = run.frame_bytes
        if self._base > self._reach or len(self._seen) > MOST_CHUNKS:
            self._back = None  # nothing before the origin is near enough
            self._seen.clear()

    def take(self, run: FrameRun, marks: Marks) -> dict[int, Whole | IncompleteMessage]:
        """Take the chunks of some entries of the run that was entered last.

        Returns:
            For each entry that holds the last chunk of a message the message, or why there is none. Other chunks, and
            those of messages that came whole before, are not in it.

        Raises:
            AfterglowError: Entries before it cannot be read.
        """
        found: dict[int, Whole | IncompleteMessage] = {}
        for chunk in marks.chunks():
            outcome = self._take(run, chunk)
            if outcome is not None:
                found[chunk.entry_id] = outcome
        return found

    def left_open(self) -> Iterator[IncompleteMessage]:
        """The messages of which the last chunk has not come, but for those of transactions."""
        for (uuid, transaction), message in self._open.items():
            if transaction is None:
                yield _incomplete(message.parts[-1].position, uuid, len(message.parts), message.shape[0])

    def _take(self, run: FrameRun, chunk: Chunk) -> Whole | IncompleteMessage | None:
        key = (chunk.uuid, chunk.transaction)
        position = Position(run.ledger_id, chunk.entry_id)
        offsets, first = run.frames.offsets, run.frames.first_entry_id
        at = self._base + int(offsets[chunk.entry_id - first] - offsets[0])
        message = self._message(key, chunk, at)
        if chunk.number == 0:
            self._drop(key)
            message = self._open[key] = OpenMessage.begun(chunk, at)
        if message is not None and message.has(chunk):
            return None
        if message is None or not message.takes(chunk):
            self._drop(key)
            if chunk.number != chunk.count - 1 or key in self._whole:
                return None
            return _incomplete(position, chunk.uuid, 0 if message is None else len(message.parts), chunk.count)
        payload = _payload(run, chunk) if self._payloads else None
        message.parts.append(Part(position, chunk.payload_bytes, payload))
        message.at = at
        self._held += len(payload or b"")
        if len(message.parts) < chunk.count:
            self._open.move_to_end(key)
            self._let_go()
            return None
        self._drop(key)
        self._whole[key] = None
        if len(self._whole) > MOST_CHUNKS:
            self._whole.popitem(last=False)
        return Whole(tuple(message.parts), chunk, self._around)

    def _message(self, key: Key, chunk: Chunk, at: int) -> OpenMessage | None:
        """The message that a chunk may belong to, as far as it has come."""
        message = self._open.get(key)
        if message is None and self._back is not None and key not in self._seen:
            if chunk.number:
                message = self._back.message(key, at)
                if message is not None:
                    self._open[key] = message
                elif self._back.whole(key):
                    self._whole[key] = None
            self._seen.add(key)
        if message is not None and at - message.at > self._reach:
            self._drop(key)
            return None
        return message

    def _drop(self, key: Key) -> None:
        message = self._open.pop(key, None)
        if message is not None:
            self._held -= sum(len(part.payload or b"") for part in message.parts)

    def _let_go(self) -> None:
        """Keep within what may be held: the message that waits longest goes first."""
        if len(self._open) > MOST_CHUNKS:
            self._drop(next(iter(self._open)))
        for message in self._open.values():
            if self._held <= self._held_most:
                return
            for part in message.parts:
                self._held -= len(part.payload or b"")
                part.payload = None

    def _follows(self, start: Position) -> bool:
        """Whether no entry stands between the last run and a position."""
        if self._next is None or start == self._next or not self._open:
            return start == self._next
        before = next(self._around.before(start), None)
        return before is not None and _end(before.run) == self._next


def _start(run: FrameRun) -> Position:
    return Position(run.ledger_id, run.frames.first_entry_id)


def _end(run: FrameRun) -> Position:
    return Position(run.ledger_id, run.frames.end_entry_id)


def _payload(run: FrameRun, chunk: Chunk) -> bytes:
    return bytes(run.data[chunk.payload_at : chunk.payload_at + chunk.payload_bytes])


def _incomplete(position: Position, uuid: bytes, number: int, count: int) -> IncompleteMessage:
    name = uuid.decode("utf-8", "replace")
    return IncompleteMessage(
        f"entry {position}: message {name!r} came in {count} chunks, of which chunk {number} is missing"
    )
